"""Rows that are tokens already, packed, and read back by code that headrace has no part in."""

import gzip
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

import headrace
from headrace.run.prepare import Prepared

Row = dict[str, Any]
Sequence = tuple[
    tuple[int, ...], tuple[int, ...]
]  # ids; per position whether its label, the next id, is trained

VOCABULARY = 5000


def token_rows(count: int, seed: int = 0, *, longest: int = 300, keys: int = 40) -> list[Row]:
    """Rows of ids with a mask; `task` is shared by several rows."""
    random = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        size = int(random.integers(2, longest + 1))
        mask = random.integers(0, 2, size)
        mask[-1] = 1
        ids = random.integers(1, VOCABULARY, size)
        rows.append(
            {
                "input_ids": ids.tolist(),
                "loss_mask": mask.tolist(),
                "task": f"t{number * 7919 % keys}",
            }
        )
    return rows


def write_jsonl(path: Path, rows: Iterable[Any]) -> Path:
    """One JSON line a row; a text is written as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(
        (row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows
    ).encode()
    path.write_bytes(gzip.compress(lines, mtime=0) if path.suffix == ".gz" else lines)
    return path


def sources(directory: Path, *, files: int = 3, rows: int = 120, longest: int = 300) -> list[Path]:
    """Files of different sizes."""
    return [
        write_jsonl(
            directory / f"part-{number}.jsonl",
            token_rows(rows * (number + 1), number, longest=longest),
        )
        for number in range(files)
    ]


def packed(
    blend: Any, out: Path, *, workers: int | None = 1, on_event: Any = None, **asked: Any
) -> Prepared:
    """A run of the recipe with small bins."""
    settings = {"pack_size": 512, "train_ratio": 0.8, "val_ratio": 0.1, "test_ratio": 0.1} | asked
    recipe = headrace.PackedSequences(blend=blend, **settings)
    options = {} if on_event is None else {"on_event": on_event}
    return headrace.prepare(recipe, out, workers=workers, **options)


def sequence_of(row: Row) -> Sequence:
    """What a row must become."""
    return tuple(row["input_ids"]), (*row["loss_mask"][1:], 0)


def bins_of(directory: Path) -> list[list[Sequence]]:
    """The bins of all shards of a directory, in name order, each as its sequences."""
    found = []
    for path in sorted(directory.iterdir()):
        for bin_ in pq.read_table(path).to_pylist():
            ids, mask, starts = bin_["input_ids"], bin_["loss_mask"], bin_["seq_start_id"]
            ends = [*starts[1:], len(ids)]
            found.append(
                [(tuple(ids[a:b]), tuple(mask[a:b])) for a, b in zip(starts, ends, strict=True)]
            )
    return found


def sequences_in(out: Path, split: str) -> list[Sequence]:
    """All sequences of a split, as a trainer sees them through the links."""
    return [sequence for each in bins_of(out / "splits" / split) for sequence in each]


def all_sequences(out: Path) -> Counter[Sequence]:
    """The multiset of sequences over all splits."""
    return Counter(
        sequence
        for split in sorted((out / "splits").iterdir())
        for sequence in sequences_in(out, split.name)
    )


def labels(sequence: Sequence) -> int:
    return sum(sequence[1])
