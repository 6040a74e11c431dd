"""A small sample of a source's files: whole ones where they are small, else the first rows of a few.

Which files is decided by their order alone. What was taken is counted in bytes of the source, compressed as they lie,
so that output and time can be scaled by it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.cli.init.look import evenly
from headrace.errors import InputError
from headrace.formats import records
from headrace.formats.detect import Compression, detect, open_bytes
from headrace.formats.source import read_chunks, survey

_FEW = 4  # files of which heads are taken
_MOST = 64  # files that are taken whole
_SMALL = 8  # files of less than so manieth of the sample are taken whole
_EXPANSION = 8  # of compressed text, at most about
_CODEC = {"gz": "gzip", "zst": "zstd"}


def take_sample(files: Sequence[tuple[Path, str]], directory: Path, sample_bytes: int) -> int:
    """Write a sample of about so many bytes of the files below a directory; how many bytes of the source it stands for.

    Files keep their names. Raises `InputError` where a file cannot be cut.
    """
    sizes = np.array([path.stat().st_size for path, _ in files], np.int64)
    total = int(sizes.sum())
    if total <= sample_bytes:
        chosen = list(range(len(files)))
    elif total / len(files) <= sample_bytes / _SMALL:
        chosen = evenly(len(files), min(_MOST, max(1, sample_bytes * len(files) // max(1, total))))
    else:
        chosen = evenly(len(files), _FEW)
    room, taken = max(1, sample_bytes // len(chosen)), 0
    for place in chosen:
        path, name = files[place]
        target = directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if total <= sample_bytes or sizes[place] <= room:
            shutil.copyfile(path, target)
            taken += int(sizes[place])
        else:
            taken += take_head(path, name, target, room)
    return taken


def take_head(path: Path, name: str, target: Path, room: int) -> int:
    """Write the first rows of a file, about `room` of its bytes. How many of its bytes these are."""
    kind = detect(path)
    if kind.format in ("csv", "tsv", "jsonl"):
        return _text(path, target, kind.compression, room, "quoted" if kind.format != "jsonl" else "plain")
    if kind.format == "parquet" and kind.compression == "none":
        return _parquet(path, target, room)
    if kind.format == "arrow":
        return _arrow(path, name, target, room)
    raise InputError(f"{path}: is {kind.extension}, of which no part can be taken; there is no estimate for it")


def _text(path: Path, target: Path, compression: Compression, room: int, quotes: str) -> int:
    held = b""
    wanted = room if compression == "none" else room * _EXPANSION
    with open_bytes(path, compression) as stream:
        while len(held) < wanted and (block := stream.read(min(1 << 20, wanted - len(held)))):
            held += block
    data = records.as_bytes(held)
    positions = records.quote_positions(data) if quotes == "quoted" else np.empty(0, np.int64)
    ends = records.record_ends(data, positions)
    ends = ends[ends < len(held)] if len(ends) > 1 else ends
    held = held[: int(ends[-1])] if len(ends) else held
    if compression == "none":
        target.write_bytes(held)
        return len(held)
    _compressed(target, held, compression)
    if os.path.getsize(target) > 2 * room:  # it shrinks less than was thought
        ends = ends[ends <= len(held) * room // os.path.getsize(target)]
        _compressed(target, held[: int(ends[-1])] if len(ends) else held, compression)
    return os.path.getsize(target)


def _compressed(target: Path, data: bytes, compression: Compression) -> None:
    with pa.output_stream(str(target), compression=_CODEC[compression]) as stream:
        stream.write(data)


def _parquet(path: Path, target: Path, room: int) -> int:
    with pq.ParquetFile(path) as file:
        metadata = file.metadata
        size = path.stat().st_size
        if not metadata.num_rows:
            shutil.copyfile(path, target)
            return size
        rows = max(1, metadata.num_rows * room // size)
        held: list[pa.RecordBatch] = []
        for batch in file.iter_batches(min(rows, 65_536), use_threads=False):
            held.append(batch)
            if sum(map(len, held)) >= rows:
                break
        codec = metadata.row_group(0).column(0).compression if metadata.num_columns else "NONE"
        table = pa.Table.from_batches(held, file.schema_arrow).slice(0, rows)
        pq.write_table(table, target, compression=codec, row_group_size=max(1, metadata.row_group(0).num_rows))
    return int(size * len(table) // metadata.num_rows)


def _arrow(path: Path, name: str, target: Path, room: int) -> int:
    """Arrow files are cut by what their rows take in memory, which is nearly what they take on disk."""
    shard = survey(path, name)
    held, size = [], 0
    for chunk in read_chunks(shard):
        table = chunk.table(shard.schema.names)
        rows = max(1, len(table) * min(room, table.nbytes) // max(1, table.nbytes))
        held.append(table.slice(0, min(rows, len(table))))
        size += held[-1].nbytes
        if size >= room:
            break
    table = pa.concat_tables(held)
    with pa.OSFile(str(target), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return size
