"""Encode and decode the row blob.

A row blob holds a part of one entity's history as columns. It is little-endian and describes
itself. Version 1:

A header of 64 bytes; then `n` times (u32, since the first, ascending, ties allowed), `n`
latency codes (u16), `n` peer indices (u8, u16 or u32, the width that the peers need; none without
peers), and the peers: IPv4 first, 4 bytes each, then IPv6, 16 bytes each, both ascending. Each
column starts at a multiple of 4 bytes and the blob ends at a multiple of 8, with zeros between.
Columns are read as views, so reading a window of a row costs only the window.

Version 2 is a row whose entity or peers are texts, or that has value columns beside the latency. It
starts as version 1 does. Two bytes of the header give the number of value columns, and the form:
whether there is no latency, and the unit of times if it is not seconds. The values follow the
peers, see `values`. Rows that need none of this are of version 1.

`encode_rows` makes the blobs of many rows at once. Many rows are checked and decoded together too,
with a few vector operations per rule of the format, up to the first damaged row. Blobs that are not
already contiguous are copied once for the checks, so large rows are decoded one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.arrays import I64, U8, U16, U32, Bools, Ints, offsets_from_lengths, ranges
from headrace.errors import CorruptShard
from headrace.gate import RESTORE
from headrace.histories import ID_KINDS, US_PER, IdKind, TimeUnit
from headrace.histories.codec.addresses import Addresses
from headrace.histories.codec.partition_kernels import fill_rows, peers_of_rows
from headrace.histories.codec.values import (
    STORED,
    Values,
    read_column,
    read_values,
    round_up,
    values_bytes,
    write_values,
)

MAGIC = b"HIST"
VERSION = 1
VERSION_WITH_VALUES = 2
HEADER = np.dtype(
    [
        ("magic", "S4"),
        ("version", "<u2"),
        ("entity_kind", "u1"),
        ("entity_family", "u1"),
        ("n", "<u4"),
        ("peers4", "<u4"),
        ("peers6", "<u4"),
        ("part", "<u4"),
        ("first_time", "<i8"),
        ("time_span", "<u4"),
        ("peer_width", "u1"),
        ("peer_kind", "u1"),
        ("values", "u1"),
        ("form", "u1"),
        ("entity", "u1", 16),
        ("length", "<u8"),
    ]
)
HEADER_BYTES = HEADER.itemsize
LARGEST_SPAN = (1 << 32) - 1
_NO_LATENCY = 1  # in the form of a row; the unit of its times is in the two bits above
_UNITS = tuple(US_PER)
_LARGE_BYTES = 1 << 16  # rows from this size on are decoded alone


@dataclass(frozen=True)
class RowColumns:
    """One row, as views of its blob.

    first_time: since 1970, in the unit of the run.
    offsets: uint32 [n], since first_time, ascending. codes: uint16 [n], latency codes.
    peers: [n], index into the peers (uint8, uint16 or uint32); None in rows without peers.
    peer_family: uint8 [m], 4 or 6. peer_bytes: uint8 [m, 16].
    entity_family: 4 or 6. entity_bytes: uint8 [16].
    part: index among the rows of the entity, from 0. values: the value columns, [n] each.
    has_latency: False if there is no latency, so all codes are 0.
    """

    first_time: int
    offsets: U32
    codes: U16
    peers: npt.NDArray[Any] | None
    peer_family: U8
    peer_bytes: U8
    entity_kind: IdKind
    peer_kind: IdKind
    entity_family: int
    entity_bytes: U8
    part: int
    values: Values = ()
    has_latency: bool = True

    @property
    def n(self) -> int:
        """The number of measurements in the row."""
        return len(self.offsets)


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """Sorted measurements of many rows, and where the rows start.

    times: int64 [N], since 1970 in `time_unit`, ascending inside a row.
    codes: uint16 [N].
    peer: [N], index in `peers`, or None. peers: ascending by family and bytes, each once.
    starts: int64 [R], where each row starts; the first at 0, no row empty.
    entity: of each row, [R]. part: int64 [R]. values: [N] each, of stored types.
    """

    times: I64
    codes: U16
    peer: Ints | None
    peers: Addresses
    starts: I64
    entity: Addresses
    entity_kind: IdKind
    part: I64
    peer_kind: IdKind = "address"
    values: Values = ()
    has_latency: bool = True
    time_unit: TimeUnit = "s"


@dataclass(frozen=True)
class Encoded:
    """Contiguous blobs: data uint8, row r is data[offsets[r]:offsets[r + 1]]; offsets int64 [R +
    1].
    """

    data: U8
    offsets: I64

    def column(self, rows: I64) -> pa.LargeBinaryArray:
        """Return copies of the blobs of these rows as an Arrow array."""
        buffers = [None, pa.py_buffer(self.offsets), pa.py_buffer(self.data)]
        blobs = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(self.offsets) - 1, buffers)
        return blobs.take(pa.array(rows))

    def blobs(self, rows: I64) -> list[bytes]:
        """Return copies of the blobs of these rows."""
        view = self.data.data
        starts = self.offsets[rows].tolist()
        stops = self.offsets[rows + 1].tolist()
        return [bytes(view[start:stop]) for start, stop in zip(starts, stops, strict=True)]


@dataclass(frozen=True)
class RowLayout:
    """Where the columns of rows are, int64 [R] each.

    width: bytes of a peer index, 0, 1, 2 or 4.
    codes, index, peers: the bytes of a row where its codes, peer indices and peers start.
    length: bytes of a row without value columns.
    """

    width: I64
    codes: I64
    index: I64
    peers: I64
    length: I64


def lay_out(n: I64, peers4: I64, peers6: I64) -> RowLayout:
    """Lay out rows with `n` measurements and these numbers of peers of each family."""
    peers = peers4 + peers6
    width = np.select([peers == 0, peers <= 1 << 8, peers <= 1 << 16], [0, 1, 2], 4).astype(
        np.int64
    )
    at_codes = HEADER_BYTES + 4 * n
    at_index = at_codes + round_up(2 * n, 4)
    at_peers = at_index + round_up(width * n, 4)
    length = round_up(at_peers + 4 * peers4 + 16 * peers6)
    return RowLayout(width, at_codes, at_index, at_peers, length)


def encode_rows(rows: Measurements) -> Encoded:  # noqa: PLR0914 - the columns of the format
    """Encode all rows, in order, in O(N).

    Raises `ValueError` if one row spans more than `LARGEST_SPAN`.
    """
    starts = rows.starts
    n = np.diff(starts, append=len(rows.times))
    first_times = rows.times[starts]
    spans = rows.times[starts + n - 1] - first_times
    if len(starts) and int(spans.max()) > LARGEST_SPAN:
        raise ValueError("times of a row are further apart than 2**32 - 1")
    ipv4_peers = int(np.searchsorted(rows.peers.family, 6))  # they come first
    if rows.peer is None:
        index = row_peers = np.zeros(0, np.uint32)
        peer_counts = peers6 = np.zeros(len(starts), np.int64)
    else:
        index, row_peers, peer_counts, peers6 = peers_of_rows(
            rows.peer, starts, len(rows.peers), ipv4_peers
        )
    layout = lay_out(n, peer_counts - peers6, peers6)
    lengths = layout.length + values_bytes(n, [column.dtype for column in rows.values])
    offsets = offsets_from_lengths(lengths)
    begin = offsets[:-1]
    data = np.zeros(int(offsets[-1]), np.uint8)
    peer_words = np.ascontiguousarray(rows.peers.bytes).view("<u4").reshape(-1, 4)
    fill_rows(
        data,
        data.view("<u2"),
        data.view("<u4"),
        ipv4_peers,
        starts,
        rows.times,
        rows.codes,
        index,
        begin + HEADER_BYTES,
        begin + layout.codes,
        begin + layout.index,
        begin + layout.peers,
        layout.width,
        row_peers,
        peer_counts,
        peer_words,
    )
    if rows.values:
        write_values(data.view("<u8"), begin + layout.length, n, rows.values)

    header = np.zeros(len(starts), HEADER)
    has_text = "text" in (rows.entity_kind, rows.peer_kind)
    header["magic"] = MAGIC
    header["version"] = VERSION
    form = _UNITS.index(rows.time_unit) << 1 | (not rows.has_latency)
    if rows.values or form or has_text:
        header["version"] = VERSION_WITH_VALUES
    header["values"] = len(rows.values)
    header["form"] = form
    header["entity_kind"] = ID_KINDS.index(rows.entity_kind)
    header["peer_kind"] = ID_KINDS.index(rows.peer_kind)
    header["entity_family"] = rows.entity.family
    header["entity"] = rows.entity.bytes
    header["n"] = n
    header["peers4"] = peer_counts - peers6
    header["peers6"] = peers6
    header["part"] = rows.part
    header["first_time"] = first_times
    header["time_span"] = spans
    header["peer_width"] = layout.width
    header["length"] = lengths
    at_headers = (begin[:, None] >> 3) + np.arange(HEADER_BYTES // 8)
    data.view("<u8")[at_headers] = header.view("<u8").reshape(at_headers.shape)
    return Encoded(data, offsets)


@dataclass(frozen=True)
class Decoded:
    """The columns of R undamaged rows, end to end.

    headers: [R]. n, peers4, peers6: int64 [R], numbers of measurements, and of peers of each
    family. at_index: int64 [R], the byte of a row where its peer indices start.
    offsets: uint32 [N], since the first of the row. codes: uint16 [N].
    index: [N], each measurement's index among the peers of its row; 0 in a row without peers; None
    if no row has any. peers: [P], row by row. values: [N] each. at_values: int64 [R], the byte of a
    row where they start. damage: what is wrong with the next row; None if there is no damaged row.
    """

    headers: npt.NDArray[np.void]
    n: I64
    peers4: I64
    peers6: I64
    at_index: I64
    offsets: U32
    codes: U16
    index: npt.NDArray[Any] | None
    peers: Addresses
    values: Values
    at_values: I64
    damage: str | None = None

    @property
    def starts(self) -> I64:
        """Return the index at which the measurements of each row start."""
        return np.cumsum(self.n) - self.n

    @property
    def has_latency(self) -> Bools:
        """Return whether each row has latencies."""
        has: Bools = self.headers["form"] & _NO_LATENCY == 0
        return has

    @property
    def time_units(self) -> I64:
        """Return the unit of the times of each row, as an index in `US_PER`."""
        return (self.headers["form"] >> 1).astype(np.int64)

    @property
    def entities(self) -> Addresses:
        """Return the entity of each row."""
        entities = np.ascontiguousarray(self.headers["entity"])
        return Addresses(self.headers["entity_family"].copy(), entities)


class Rule(NamedTuple):
    """A rule for rows: which rows break it, bool [R], and a function that says how a row does, by
    its number.
    """

    broken: Bools
    message: Callable[[int], str]


class Violation(NamedTuple):
    """The first row that breaks a rule, and what is wrong with it."""

    row: int
    message: str


def first_violation(rules: Sequence[Rule]) -> Violation | None:
    """Return the first row that breaks a rule, with the message of the first rule that it
    breaks.
    """
    rows = [int(rule.broken.argmax()) if rule.broken.any() else len(rule.broken) for rule in rules]
    first = min(rows)
    rule = rules[rows.index(first)]
    if first == len(rule.broken):
        return None
    return Violation(first, rule.message(first))


def damaged(path: str | PathLike[str], damage: str, row: int | None = None) -> CorruptShard:
    """Return the error for a damaged row.

    path: of its file, or of file and row.
    """
    return CorruptShard(damage, path=path, row=row, remedy=RESTORE)


def decode_together(data: U8, sizes: I64) -> Decoded:
    """Decode contiguous blobs, up to the first that is damaged. sizes [R]: bytes of each."""
    decoded = _decode(data, sizes)
    if isinstance(decoded, Decoded):
        return decoded
    rows = decoded.row
    before = decode_together(data[: int(sizes[:rows].sum())], sizes[:rows])
    if before.damage:
        return before
    return replace(before, damage=decoded.message)


def _decode(data: U8, sizes: I64) -> Decoded | Violation:  # noqa: PLR0914 - the columns of the format
    """Decode all rows, or return the first damaged one."""
    violation = first_violation(
        [
            Rule(
                sizes < HEADER_BYTES,
                lambda row: f"has {sizes[row]} bytes, a row has at least {HEADER_BYTES}",
            ),
            Rule(
                sizes % 8 != 0,
                lambda row: f"has {sizes[row]} bytes, which is not a multiple of 8",
            ),
        ]
    )
    if violation is not None:
        return violation
    begin = np.cumsum(sizes) - sizes
    at_headers = (begin[:, None] >> 3) + np.arange(HEADER_BYTES // 8)
    headers = data.view("<u8")[at_headers].view(HEADER).ravel()
    n = headers["n"].astype(np.int64)
    peers4 = headers["peers4"].astype(np.int64)
    peers6 = headers["peers6"].astype(np.int64)
    peers = peers4 + peers6
    layout = lay_out(n, peers4, peers6)
    types = _value_types(data, sizes, layout, headers)
    lengths = layout.length + values_bytes(n, [STORED[number] for number in types.tolist()])
    violation = _broken_header(headers, layout, sizes, lengths)
    if violation is not None:
        return violation
    starts = np.cumsum(n) - n
    offsets = read_column(data, begin + HEADER_BYTES, n, "<u4")
    unordered = (offsets[starts + n - 1] != headers["time_span"]) | _descend(offsets, starts)
    index = _read_indices(data, begin + layout.index, n, layout.width)
    largest = np.zeros(len(n), np.int64)
    if index is not None:
        largest = np.maximum.reduceat(index, starts)
    at_values = begin + layout.length
    violation = first_violation(
        [
            Rule(unordered, lambda row: "has times that do not ascend from its first to its last"),
            Rule(
                (largest >= peers) & (peers > 0),
                lambda row: f"names peer {largest[row]} of {peers[row]}",
            ),
            Rule(
                (data[at_values[:, None] + np.arange(len(types))] != types).any(axis=1),
                lambda row: "has value columns of other types than the row before",
            ),
        ]
    )
    if violation is not None:
        return violation
    return Decoded(
        headers=headers,
        n=n,
        peers4=peers4,
        peers6=peers6,
        at_index=layout.index,
        offsets=offsets,
        codes=read_column(data, begin + layout.codes, n, "<u2"),
        index=index,
        peers=_read_peers(data, begin + layout.peers, peers4, peers),
        values=read_values(data, at_values, n, types),
        at_values=layout.length,
    )


def _value_types(data: U8, sizes: I64, layout: RowLayout, headers: npt.NDArray[np.void]) -> U8:
    """Read the types of the first row's value columns; none if it is too short for them or a type
    is unknown.
    """
    if not len(headers):
        return data[:0]
    columns = int(headers["values"][0])
    at = int(layout.length[0])
    types = data[: int(sizes[0])][at : at + columns]
    if len(types) == columns and (types < len(STORED)).all():
        return types
    return types[:0]


def _broken_header(
    headers: npt.NDArray[np.void], layout: RowLayout, sizes: I64, lengths: I64
) -> Violation | None:
    """Check what the headers say. lengths: bytes of each row by its counts, [R]."""
    n = headers["n"]
    columns = headers["values"]
    form = headers["form"]
    version = headers["version"]
    family = headers["entity_family"]
    width = headers["peer_width"]
    kinds = np.column_stack([headers["entity_kind"], headers["peer_kind"]])
    peers = headers["peers4"].astype(np.int64) + headers["peers6"]
    other_columns = (columns != columns[:1]) | (form != form[:1]) | (form >> 1 >= len(_UNITS))
    needs_values = (columns > 0) | (form > 0) | (kinds > 1).any(axis=1)
    return first_violation(
        [
            Rule(
                headers["magic"] != MAGIC,
                lambda row: f"begins with {headers[row].tobytes()[:4]!r}, a row with {MAGIC!r}",
            ),
            Rule(
                (version != VERSION) & (version != VERSION_WITH_VALUES),
                lambda row: (
                    f"has row version {version[row]}, this headrace reads {VERSION} and"
                    f" {VERSION_WITH_VALUES}"
                ),
            ),
            Rule(
                (version == VERSION) & needs_values,
                lambda row: (
                    f"is of version {VERSION} and has what only version {VERSION_WITH_VALUES} has"
                ),
            ),
            Rule(
                other_columns,
                lambda row: f"has {columns[row]} value columns, the row before has others",
            ),
            Rule(
                (n == 0) | (width != layout.width),
                lambda row: (
                    f"says {n[row]} measurements, {peers[row]} peers and {width[row]} bytes a peer"
                    " index, which cannot be"
                ),
            ),
            Rule(
                (lengths != sizes) | (headers["length"] != sizes.astype(np.uint64)),
                lambda row: (
                    f"has {sizes[row]} bytes, its header says {headers['length'][row]}, its counts"
                    f" {lengths[row]}"
                ),
            ),
            Rule(
                (kinds >= len(ID_KINDS)).any(axis=1) | ((family != 4) & (family != 6)),
                lambda row: (
                    f"has kinds {tuple(kinds[row].tolist())} and entity family {family[row]}, which"
                    " are not known"
                ),
            ),
            Rule(
                np.abs(headers["first_time"] >> 1) >= 1 << 61,
                lambda row: f"begins at time {headers['first_time'][row]}",
            ),
        ]
    )


def _read_peers(data: U8, at: I64, ipv4_counts: I64, counts: I64) -> Addresses:
    """Read the peers of rows.

    at: the byte where the peers of each row start; ipv4_counts, counts: the number of IPv4 peers,
    which come first, and of all.
    """
    number = ranges(0, counts)
    ipv4 = np.repeat(ipv4_counts, counts)
    is_ipv6 = number >= ipv4
    offset = np.where(is_ipv6, 16 * number - 12 * ipv4, 4 * number)
    word = np.repeat(at, counts) + offset >> 2
    words = data.view("<u4")
    addresses = np.zeros((len(word), 4), "<u4")
    addresses[:, 0] = words[word]
    addresses[is_ipv6] = words[word[is_ipv6][:, None] + np.arange(4)]
    return Addresses(np.where(is_ipv6, 6, 4).astype(np.uint8), addresses.view(np.uint8))


def _descend(offsets: npt.NDArray[Any], starts: I64) -> Bools:
    """Return which rows have times that do not start at 0 and ascend; [R]."""
    wrong: Bools = offsets[starts] != 0
    falls = offsets[1:] < offsets[:-1]
    falls[starts[1:] - 1] = False
    if falls.any():
        wrong[np.searchsorted(starts, np.flatnonzero(falls) + 1, side="right") - 1] = True
    return wrong


def _read_indices(data: U8, at: I64, n: I64, width: I64) -> npt.NDArray[Any] | None:
    """Read the peer indices of rows, whose widths may differ."""
    widths = np.unique(width[width > 0]).tolist()
    if not widths:
        return None
    if len(widths) == 1 and width.all():
        return read_column(data, at, n, f"<u{widths[0]}")
    index = np.zeros(int(n.sum()), np.uint32)
    for size in widths:
        rows = width == size
        index[np.repeat(rows, n)] = read_column(data, at[rows], n[rows], f"<u{size}")
    return index


def decode_blobs(blobs: Sequence[bytes | memoryview]) -> Decoded:
    """Decode blobs, contiguous or not, up to the first that is damaged."""
    sizes = np.fromiter(map(len, blobs), np.int64, len(blobs))
    data = blobs[0] if len(blobs) == 1 else b"".join(blobs)
    return decode_together(np.frombuffer(data, np.uint8), sizes)


def decode_rows(blobs: Sequence[bytes | memoryview], names: Sequence[str]) -> list[RowColumns]:
    """Decode blobs into views of each of them; peers are copied, so that no row keeps others in
    memory.

    names: file and row of each, for errors.
    Raises `CorruptShard` for bytes that are not a row. Every column must lie in the blob, every
    peer index must name a peer, and times must ascend from 0 to the header's span.
    """
    small = []
    for number, blob in enumerate(blobs):
        if len(blob) < _LARGE_BYTES:
            small.append(number)
    groups = []
    for number, blob in enumerate(blobs):
        if len(blob) >= _LARGE_BYTES:
            groups.append([number])
    if small:
        groups.insert(0, small)
    rows: dict[int, RowColumns] = {}
    for group in groups:
        members = [blobs[number] for number in group]
        decoded = decode_blobs(members)
        rows.update(zip(group, _views(decoded, members), strict=False))
        if decoded.damage:
            raise damaged(names[group[len(decoded.n)]], decoded.damage)
    return [rows[number] for number in range(len(blobs))]


def _views(decoded: Decoded, blobs: Sequence[bytes | memoryview]) -> list[RowColumns]:
    peer_offsets = offsets_from_lengths(decoded.peers4 + decoded.peers6).tolist()
    types = np.array([STORED.index(column.dtype) for column in decoded.values], np.uint8)
    names = ("n", "peer_width", "first_time", "part", "entity_kind", "peer_kind", "entity_family")
    fields = zip(*(decoded.headers[name].tolist() for name in names), strict=True)
    rows = []
    for number, (n, width, first_time, part, entity_kind, peer_kind, family) in enumerate(fields):
        blob = blobs[number]
        peers = None
        if width:
            peers = np.frombuffer(blob, f"<u{width}", n, int(decoded.at_index[number]))
        peer_range = slice(peer_offsets[number], peer_offsets[number + 1])
        values: Values = ()
        if len(types):
            data = np.frombuffer(blob, np.uint8)
            values = read_values(data, decoded.at_values[[number]], decoded.n[[number]], types)
        rows.append(
            RowColumns(
                first_time=first_time,
                offsets=np.frombuffer(blob, "<u4", n, HEADER_BYTES),
                codes=np.frombuffer(blob, "<u2", n, HEADER_BYTES + 4 * n),
                peers=peers,
                peer_family=decoded.peers.family[peer_range].copy(),
                peer_bytes=decoded.peers.bytes[peer_range].copy(),
                entity_kind=ID_KINDS[entity_kind],
                peer_kind=ID_KINDS[peer_kind],
                entity_family=family,
                entity_bytes=decoded.headers["entity"][number].copy(),
                part=part,
                values=values,
                has_latency=bool(decoded.has_latency[number]),
            )
        )
    return rows
