"""Read many small shards as one: a group is a shard whose rows are those of its parts, in order.

A recipe does the work of a task, writes files and keeps a receipt for each shard. So a source of
many files, most of them small, is cut into groups. Where a group ends follows from the names and
sizes of the files alone, and mostly from single names, so that a file that comes or goes changes
the groups around it and no others.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from headrace.arrays import I32, U64
from headrace.errors import HeadraceError, InputError
from headrace.formats import delimited, jsonl, records
from headrace.formats.delimited_rows import DelimitedChunk
from headrace.formats.joined import SMALL_BYTES, ended, joins
from headrace.formats.json_parse import Lines, Location
from headrace.formats.partitions import stored
from headrace.formats.registry import reading
from headrace.formats.shard import BOM, Chunk, Shard, unchanged
from headrace.storage.places import place_of

MANY_SHARDS = 1000  # fewer are no burden
_GROUP_BYTES = 4 << 20
_MOST_PARTS = 512
_ONE_IN = 128  # names that end a group


def grouped(shards: Sequence[Shard]) -> list[Shard]:
    """Return the shards, with neighbours that are small and alike as groups if there are many.

    The name of a group is those of its first and last part; its size is that of all.
    """
    names = [shard.name for shard in shards]
    firsts = first_of_groups(
        names,
        [shard.size for shard in shards],
        lambda first, number: _are_alike(shards[first], shards[number]),
    )
    return [
        _group(shards[first:stop])
        for first, stop in zip(firsts, [*firsts[1:], len(shards)], strict=True)
    ]


def first_of_groups(
    names: Sequence[str],
    sizes: Sequence[int],
    are_alike: Callable[[int, int], bool] = lambda first, number: True,
) -> list[int]:
    """Return the index of the first shard of each group; of each shard, if there are few.

    are_alike: whether the shard with the second index may be in a group that begins with the first.
    """
    if len(names) <= MANY_SHARDS:
        return list(range(len(names)))
    firsts: list[int] = []
    group_bytes = 0
    closed = True
    for number, (name, size) in enumerate(zip(names, sizes, strict=True)):
        small = size <= SMALL_BYTES
        group_bytes += size
        if closed or not small or group_bytes > _GROUP_BYTES or not are_alike(firsts[-1], number):
            firsts.append(number)
            group_bytes = size
        closed = not small or number - firsts[-1] + 1 == _MOST_PARTS or ends_group(name)
    return firsts


def ends_group(name: str) -> bool:
    """Return whether a group ends with a file of this name, whatever is around it."""
    return xxhash.xxh3_64_intdigest(name.encode()) % _ONE_IN == 0


def _are_alike(first: Shard, shard: Shard) -> bool:
    """Return whether a shard may be in a group that begins with another: it is read as the same
    columns.
    """
    same = (first.file_type, first.dialect, first.content)
    return same == (shard.file_type, shard.dialect, shard.content) and first.schema.equals(
        shard.schema
    )


def _group(shards: Sequence[Shard]) -> Shard:
    """Return a group of shards; what they all derive of their files is derived of the group."""
    first = shards[0]
    if len(shards) == 1:
        return first
    derived: dict[str, Any] = {
        "file_schema": first.file_schema,
        "partition": first.partition,
        "complete": first.complete,
    }
    parts = [_stored(shard) for shard in shards]
    if any(_derivation(shard) != _derivation(first) for shard in shards):
        parts = list(shards)
        derived = {"file_schema": None, "partition": {}, "complete": None}
    elif first.complete is not None:
        derived["complete"] = _group([shard.complete or shard for shard in shards])
    return replace(
        first,
        name=f"{first.name} to {shards[-1].name}",
        size=sum(shard.size for shard in shards),
        null_columns=frozenset().union(*(shard.null_columns for shard in shards)),
        parts=tuple(parts),
        **derived,
    )


def _derivation(shard: Shard) -> tuple[object, ...]:
    """Return how the rows of a shard follow from those in its file."""
    complete = None if shard.complete is None else shard.complete.schema
    return (*shard.partition.items(),), shard.file_schema, complete


def _stored(shard: Shard) -> Shard:
    """Return a shard as `read_chunks` finds it at last: with the columns of its file."""
    if shard.file_schema is not None:
        shard = replace(shard, schema=shard.file_schema, file_schema=None)
    if shard.complete is not None:
        return _stored(shard.complete)
    return stored(shard)


def part_of(group: Shard, part: Shard) -> Shard:
    """Return a part as a shard of the source: with the columns that the group has."""
    if part.schema.equals(group.schema):
        return part
    return replace(
        group,
        path=part.path,
        name=part.name,
        size=part.size,
        mtime_ns=part.mtime_ns,
        complete=None if group.complete is None else part_of(group.complete, part),
        parts=(),
    )


@dataclass
class GroupChunk:
    """Consecutive rows of a group, held in memory.

    without_rows: the names of parts that have none, of those read for it.
    """

    chunks: list[Chunk]
    first_row: int
    without_rows: list[str]

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(chunk.rows for chunk in self.chunks)

    def sizes(self) -> I32 | None:
        """Return None, because the parts were not joined as bytes."""
        return None

    def digests(self, names: Sequence[str]) -> U64:
        """Digest the fields of delimited rows; see `DelimitedChunk.digests`."""
        digests = [np.empty(0, np.uint64)]
        for chunk in self.chunks:
            assert isinstance(chunk, DelimitedChunk)
            digests.append(chunk.digests(names))
        return np.concatenate(digests)

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows as columns."""
        if len(self.chunks) == 1:
            return self.chunks[0].table(columns)
        return pa.concat_tables([chunk.table(columns) for chunk in self.chunks]).combine_chunks()


class JoinedChunk(GroupChunk):
    """The rows of a group of text, whose bytes are joined."""

    def sizes(self) -> I32 | None:
        """Return each row's bytes, as `group_records` copies them."""
        return self.chunks[0].sizes()


def parts_without_rows(chunk: Chunk) -> list[str]:
    """Return the names of the parts without rows that were read for a chunk of a group."""
    inner: Any = chunk
    while not isinstance(inner, GroupChunk):  # of chosen, widened, … rows
        inner = inner.chunk
    return inner.without_rows


def joined_chunk(group: Shard) -> JoinedChunk | None:
    """Read the rows of a group of text as one text; None if they must be read part by part."""
    bodies = _bodies(group)
    if bodies is None or not any(bodies):
        return None
    data = b"".join(bodies)
    chunk: Chunk
    if group.dialect is not None:
        marked = records.mark(data, group.dialect.text)
        delimited.check_returns(group, marked, None)
        chunk = delimited.chunk_of(group, marked, 0, None)
        ends = chunk.ends
    else:
        chunk = jsonl.JsonlChunk(group, Lines.of(data, Location(group.path)), 0)
        ends = records.record_ends(records.as_bytes(data), np.empty(0, np.int64))
    if chunk.sizes() is None:  # blank lines, and other things that one of the parts has
        return None
    boundaries = np.cumsum([len(body) for body in bodies])
    rows = np.diff(np.searchsorted(ends, boundaries, side="right"), prepend=0)
    empty = [group.parts[index].name for index in np.flatnonzero(rows == 0).tolist()]
    return JoinedChunk([chunk], 0, empty)


def _bodies(group: Shard) -> list[bytes] | None:
    """Read the records of each part, with a line end behind the last; None if they are not text
    that may be joined.
    """
    is_lines = group.dialect is None and group.file_type.format.name == "jsonl"
    is_delimited = group.dialect is not None and joins(group.dialect.text)
    plain = group.file_type.compression == "none" and group.content != "nothing"
    plain = plain and all(_derivation(part) == ((), None, None) for part in group.parts)
    if not plain or not (is_lines or is_delimited):
        return None
    newline = b"\n" if group.dialect is None else group.dialect.newline.encode()
    header = 0 if group.dialect is None else group.dialect.header_bytes
    bodies = []
    for part in group.parts:
        with reading(part.path):
            data = place_of(part.path).read()
        body = ended(data[header:], newline)
        if body is None or (is_lines and body.startswith(BOM)):
            return None
        bodies.append(body)
    return bodies


def group_records(group: Shard, sizes: I32) -> Iterator[pa.LargeBinaryArray]:
    """Yield the bytes of each row of a group whose `GroupChunk` has sizes."""
    data = b"".join(_bodies(group) or [])
    ends = np.cumsum(sizes, dtype=np.int64)
    unchanged(group)
    if len(data) != int(ends[-1]):
        raise InputError(
            "has other rows than it had", path=group.path, remedy="run again once it is complete"
        )
    yield records.slices(pa.py_buffer(data), ends)


def at_fault(
    group: Shard,
    error: HeadraceError,
    attempt: Callable[[Shard], Any],
    compare: Callable[[Sequence[Shard], Sequence[Any]], object] = lambda parts, results: None,
) -> HeadraceError:
    """Return an error that names the part at fault, of one that arose when a group was read.

    attempt: does the same with any shard. compare: raises for parts whose results do not fit. If
    neither fails, the fault is in the last part of the shortest beginning of the group that does.
    """
    parts = [part_of(group, part) for part in group.parts]
    try:
        compare(parts, [attempt(part) for part in parts])
    except HeadraceError as alone:
        return alone

    def fails(count: int) -> bool:
        try:
            attempt(_group(parts[:count]))
        except HeadraceError:
            return True
        return False

    counts = range(1, len(group.parts))
    error.path = str(group.parts[bisect_left(counts, True, key=fails)].path)
    error.row = None
    return error
