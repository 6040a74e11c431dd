"""A small sample of a source's files: whole ones where they are small, else the first rows of a few.

Which files is decided by their order alone. What was taken is counted in bytes of the source, compressed as they lie,
so that output and time can be scaled by it. Of objects in a store only about the bytes that are taken are fetched.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.cli.estimate.sized import SizedFile
from headrace.cli.init.look import evenly
from headrace.engine.local import run_tasks
from headrace.errors import InputError
from headrace.formats import records
from headrace.formats.detect import Compression, detect, open_bytes
from headrace.formats.source import read_chunks, survey
from headrace.storage.places import parallel_reads, place_of

_FEW = 4  # files of which heads are taken
_MOST = 64  # files that are taken whole
_SMALL = 8  # files of less than so manieth of the sample are taken whole
_EXPANSION = 8  # of compressed text, at most about
_BUFFER = 64 << 10  # of a column of Parquet that is read piece by piece
_PARQUET_CODEC = {"uncompressed": "none", "lz4_raw": "lz4"}  # as footers say it → as it is asked for
_CODEC = {"gz": "gzip", "zst": "zstd"}


def take_sample(files: Sequence[SizedFile], directory: Path, sample_bytes: int) -> int:
    """Write a sample of about so many bytes of the files below a directory; how many bytes of the source it stands for.

    Files keep their names. Raises `InputError` where a file cannot be cut.
    """
    total = sum(file.size for file in files)
    if total <= sample_bytes:
        chosen = list(range(len(files)))
    elif total / len(files) <= sample_bytes / _SMALL:
        chosen = evenly(len(files), min(_MOST, max(1, sample_bytes * len(files) // max(1, total))))
    else:
        chosen = evenly(len(files), _FEW)
    room = total if total <= sample_bytes else max(1, sample_bytes // len(chosen))
    tasks = [partial(_take, files[place], directory, room) for place in chosen]
    return sum(run_tasks(tasks, parallel_reads(files[place].path for place in chosen)))


def _take(file: SizedFile, directory: Path, room: int) -> int:
    target = directory / file.name
    target.parent.mkdir(parents=True, exist_ok=True)
    if file.size > room:
        return take_head(file, target, room)
    place_of(file.path).fetch(target)
    return file.size


def take_head(file: SizedFile, target: Path, room: int) -> int:
    """Write the first rows of a file, about `room` of its bytes. How many of its bytes these are."""
    path = file.path
    kind = detect(path)
    if kind.format in ("csv", "tsv", "jsonl"):
        return _text(path, target, kind.compression, room, "quoted" if kind.format != "jsonl" else "plain")
    if kind.format == "parquet" and kind.compression == "none":
        return _parquet(file, target, room)
    if kind.format == "arrow":
        return _arrow(path, file.name, target, room)
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


def _parquet(file: SizedFile, target: Path, room: int) -> int:
    path = file.path
    with pq.ParquetFile(
        place_of(path).arrow_stream(),
        pre_buffer=False,  # which would fetch row groups that nobody asks for
        buffer_size=_BUFFER,
    ) as source:
        metadata = source.metadata
        if not metadata.num_rows:
            place_of(file.path).fetch(target)
            return file.size
        rows = max(1, metadata.num_rows * room // file.size)
        held: list[pa.RecordBatch] = []
        for batch in source.iter_batches(min(rows, 65_536), use_threads=False):
            held.append(batch)
            if sum(map(len, held)) >= rows:
                break
        codec = metadata.row_group(0).column(0).compression.lower() if metadata.num_columns else "none"
        table = pa.Table.from_batches(held, source.schema_arrow).slice(0, rows)
        codec = _PARQUET_CODEC.get(codec, codec)
        pq.write_table(table, target, compression=codec, row_group_size=max(1, metadata.row_group(0).num_rows))
    return int(file.size * len(table) // metadata.num_rows)


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
