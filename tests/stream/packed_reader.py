"""A trainer's reader of packed Parquet, written from what such readers are documented to do, and from nothing of ours.

It finds files by a path, a directory or a glob; asks every footer for three column names; maps a row number to (file,
row group, row) by bisection; keeps one decoded row group; reads rows as Python lists. Its collate feeds every sequence
without its last token and labels it with its tokens from the second on, under the mask of the token before.
"""

from __future__ import annotations

import glob
from bisect import bisect_right
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

COLUMNS = ["input_ids", "seq_start_id", "loss_mask"]
ENDINGS = (".parquet", ".pq")


def find_files(spec):
    """The files of a path, a directory (not below it) or a glob, in the order of their names."""
    path = Path(spec)
    if path.is_dir():
        found = {str(each) for each in path.iterdir() if each.name.lower().endswith(ENDINGS)}
    elif path.exists():
        found = {str(path)}
    else:
        found = {each for each in glob.glob(str(spec)) if each.lower().endswith(ENDINGS)}
    if not found:
        raise ValueError(f"no packed Parquet at {spec}")
    return sorted(found)


class PackedReader:
    """Rows by number over all files; a negative number is a row from the end that trains nothing."""

    def __init__(self, spec):
        self.files = find_files(spec)
        self.groups = []  # of each file, where its row groups begin
        ends = []
        for file in self.files:
            metadata = pq.read_metadata(file)
            names = pq.read_schema(file).names
            missing = [name for name in COLUMNS if name not in names]
            if missing:
                raise ValueError(f"{file}: missing required columns {missing}")
            rows = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
            self.groups.append(np.cumsum([0, *rows]).tolist())
            ends.append(metadata.num_rows)
        self.begins = np.cumsum([0, *ends]).tolist()
        if not self.begins[-1]:
            raise ValueError(f"{spec}: empty")
        self.decoded = 0
        self._cached = None, None

    def __len__(self):
        return self.begins[-1]

    def __getitem__(self, number):
        row = number % len(self)
        file = bisect_right(self.begins, row) - 1
        inside = row - self.begins[file]
        group = bisect_right(self.groups[file], inside) - 1
        if self._cached[0] != (file, group):
            with pq.ParquetFile(self.files[file]) as opened:
                self._cached = (file, group), opened.read_row_group(group, columns=COLUMNS)
            self.decoded += 1
        table, place = self._cached[1], inside - self.groups[file][group]
        ids, starts, mask = (table[name][place].as_py() for name in COLUMNS)
        if number < 0:
            mask = [0] * len(mask)
        return {"input_ids": ids, "seq_boundaries": [*starts, len(ids)], "loss_mask": mask}


def collate(rows, *, pack_size, filling, multiple=16):
    """Rows as training sees them: arrays [rows, width], and cu_seqlens of each row, the width among them."""
    made = []
    for row in rows:
        borders = row["seq_boundaries"]
        pairs = list(pairwise(borders))
        ids, mask = row["input_ids"], row["loss_mask"]
        made.append(
            {
                "tokens": [each for begin, end in pairs for each in ids[begin : end - 1]],
                "labels": [each for begin, end in pairs for each in ids[begin + 1 : end]],
                "loss_mask": [each for begin, end in pairs for each in mask[begin : end - 1]],
                "position_ids": [each for begin, end in pairs for each in range(end - begin - 1)],
                "cu_seqlens": np.cumsum([0, *(end - begin - 1 for begin, end in pairs)]).tolist(),
            }
        )
        assert len(made[-1]["tokens"]) <= pack_size
    longest = max(len(row["tokens"]) for row in made)
    width = min(pack_size, -(-longest // multiple) * multiple)
    for row in made:
        empty = width - len(row["tokens"])
        row["tokens"] += [filling] * empty
        row["labels"] += [filling] * empty
        row["loss_mask"] += [0] * empty
        row["position_ids"] += list(range(empty))
        if row["cu_seqlens"][-1] < width:
            row["cu_seqlens"].append(width)
    arrays = {
        name: np.array([row[name] for row in made]) for name in made[0] if name != "cu_seqlens"
    }
    return {**arrays, "cu_seqlens": [row["cu_seqlens"] for row in made]}
