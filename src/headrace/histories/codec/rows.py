"""Encode and decode the row blob.

A row blob holds a part of one entity's history as columns. It is little-endian and describes itself. Version 1:

A header of 64 bytes; then `n` times (u32, seconds since the first, ascending, ties allowed), `n` latency codes (u16),
`n` peer indices (u8, u16 or u32, the width that the peers need; none without peers), and the peers: IPv4 first, 4 bytes
each, then IPv6, 16 bytes each, both ascending. Each column begins at a multiple of 4 bytes and the blob ends at a
multiple of 8, with zeros between. Columns are read as views, so reading a window of a row costs only the window.

Version 2 is a row whose entity or peers are texts, or that has value columns beside the latency. It begins as version 1
does. Two bytes of the header give the number of value columns, and whether there is no latency. The values follow the
peers, see `values`. Rows that need none of this are of version 1.

`encode_rows` makes the blobs of many rows at once, with a few vector operations per column for any number of rows. Many
rows are checked and decoded together too, with a few vector operations per rule of the format, up to the first damaged
row. Blobs that are not already contiguous are copied once for the checks, so large rows are decoded one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.arrays import I64, U8, U16, U32, Bools, Ints, borders_of, ranges
from headrace.errors import CorruptShard
from headrace.histories.codec.addresses import KINDS, Addresses, Kind
from headrace.histories.codec.laws import damaged, first_broken
from headrace.histories.codec.values import (
    STORED,
    Values,
    read_column,
    read_values,
    types_of_values,
    up,
    values_bytes,
    write_values,
)

MAGIC = b"HIST"
VERSION, WITH_VALUES = 1, 2
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
        ("first_time", "<u8"),
        ("time_span", "<u4"),
        ("peer_width", "u1"),
        ("peer_kind", "u1"),
        ("values", "u1"),
        ("no_latency", "u1"),
        ("entity", "u1", 16),
        ("length", "<u8"),
    ]
)
HEADER_BYTES = HEADER.itemsize
LARGEST_SPAN = (1 << 32) - 1


@dataclass(frozen=True)
class RowColumns:
    """One row, as views of its blob.

    first_time: epoch seconds.
    offsets: uint32 [n], seconds since first_time, ascending. codes: uint16 [n], latency codes.
    peers: [n], index into the peers (uint8, uint16 or uint32); None in rows without peers.
    peer_family: uint8 [m], 4 or 6. peer_bytes: uint8 [m, 16].
    entity_kind, peer_kind: see `KINDS`. entity_family: 4 or 6. entity_bytes: uint8 [16].
    part: index among the rows of the entity, from 0. values: the value columns, [n] each.
    has_latency: False if there is no latency, so all codes are 0.
    """

    first_time: int
    offsets: U32
    codes: U16
    peers: npt.NDArray[Any] | None
    peer_family: U8
    peer_bytes: U8
    entity_kind: Kind
    peer_kind: Kind
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
    """Sorted measurements of many rows, and where the rows begin.

    times: int64 [N], epoch seconds, ascending inside a row.
    codes: uint16 [N].
    peer: [N], index in `peers`, or None. peers: ascending by family and bytes, each once.
    starts: int64 [R], where each row begins; the first at 0, no row empty.
    entity: of each row, [R]. part: int64 [R]. values: [N] each, of stored types.
    """

    times: I64
    codes: U16
    peer: Ints | None
    peers: Addresses
    starts: I64
    entity: Addresses
    entity_kind: Kind
    part: I64
    peer_kind: Kind = "address"
    values: Values = ()
    has_latency: bool = True


@dataclass(frozen=True)
class Encoded:
    """Contiguous blobs: data uint8, row r is data[offsets[r]:offsets[r + 1]]; offsets int64 [R + 1]."""

    data: U8
    offsets: I64

    def column(self, places: I64) -> pa.LargeBinaryArray:
        """Return copies of the blobs of these rows as an Arrow array."""
        buffers = [None, pa.py_buffer(self.offsets), pa.py_buffer(self.data)]
        whole = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(self.offsets) - 1, buffers)
        return whole.take(pa.array(places))

    def blobs(self, places: I64) -> list[bytes]:
        """Return copies of the blobs of these rows."""
        view = self.data.data
        starts, stops = self.offsets[places].tolist(), self.offsets[places + 1].tolist()
        return [bytes(view[start:stop]) for start, stop in zip(starts, stops, strict=True)]


def _layout(n: I64, peers4: I64, peers6: I64) -> tuple[I64, I64, I64, I64, I64]:
    """Lay out rows with `n` measurements and these numbers of peers of each family.

    Returns the bytes of a peer index, 0, 1, 2 or 4; the bytes of a row where its codes, peer indices and peers begin;
    and its length without value columns; int64 [R] each.
    """
    peers = peers4 + peers6
    width = np.select([peers == 0, peers <= 1 << 8, peers <= 1 << 16], [0, 1, 2], 4).astype(np.int64)
    at_codes = HEADER_BYTES + 4 * n
    at_index = at_codes + up(2 * n, 4)
    at_peers = at_index + up(width * n, 4)
    return width, at_codes, at_index, at_peers, up(at_peers + 4 * peers4 + 16 * peers6)


def blob_bytes(n: I64, peers4: I64, peers6: I64) -> I64:
    """Return the length of rows with `n` measurements and these numbers of peers of each family: int64 [R]."""
    return _layout(n, peers4, peers6)[-1]


def encode_rows(rows: Measurements, *, compiled: bool = False) -> Encoded:
    """Encode all rows, in order; O(N log N) for the peers of each row.

    compiled: use numba, which gives the same bytes in O(N).
    Raises `ValueError` if one row spans more than `LARGEST_SPAN`, or for a time before 1970.
    """
    starts = rows.starts
    n = np.diff(starts, append=len(rows.times))
    first = rows.times[starts]
    span = rows.times[starts + n - 1] - first
    if len(first) and (int(span.max()) > LARGEST_SPAN or int(first.min()) < 0):
        raise ValueError("times of a row are before 1970, or further apart than 2**32 - 1 seconds")
    index, held, count, peers6 = _peers_of_rows(rows, n, compiled=compiled)
    peers4 = count - peers6
    width, within_codes, within_index, within_peers, plain = _layout(n, peers4, peers6)
    lengths = plain + values_bytes(n, [each.dtype for each in rows.values])
    offsets = borders_of(lengths)
    data = np.zeros(int(offsets[-1]), np.uint8)
    begin = offsets[:-1]
    at_times, at_codes, at_index, at_peers = places = (
        begin + HEADER_BYTES,
        begin + within_codes,
        begin + within_index,
        begin + within_peers,
    )
    if compiled:
        from headrace.histories.codec.partition_kernels import fill_rows

        peers = (held, count, _fours(rows), rows.peers.bytes)
        fill_rows(data, starts, (rows.times, rows.codes, index), places, width, peers)
    else:
        # Every column begins at an aligned byte, so words and half-words are scattered whole.
        words, halves = data.view("<u4"), data.view("<u2")
        words[ranges(at_times >> 2, n)] = rows.times - np.repeat(first, n)
        halves[ranges(at_codes >> 1, n)] = rows.codes
        for size, view in ((1, data), (2, halves), (4, words)):
            mine = width == size  # none if rows have no peers
            if mine.any():
                view[ranges(at_index[mine] // size, n[mine])] = index[np.repeat(mine, n)]
        six, place = _peer_words(at_peers, peers4, count)
        of_peer = np.ascontiguousarray(rows.peers.bytes[held]).view("<u4").reshape(-1, 4)
        words[place] = of_peer[:, 0]
        words[place[six][:, None] + np.arange(4)] = of_peer[six]

    header = np.zeros(len(starts), HEADER)
    if rows.values:
        write_values(data.view("<u8"), begin + plain, n, rows.values)
    is_new = rows.values or not rows.has_latency or "text" in (rows.entity_kind, rows.peer_kind)
    header["magic"], header["version"] = MAGIC, WITH_VALUES if is_new else VERSION
    header["values"], header["no_latency"] = len(rows.values), not rows.has_latency
    header["entity_kind"], header["peer_kind"] = KINDS.index(rows.entity_kind), KINDS.index(rows.peer_kind)
    header["entity_family"] = rows.entity.family
    header["n"], header["peers4"], header["peers6"] = n, peers4, peers6
    header["part"], header["first_time"], header["time_span"] = rows.part, first, span
    header["peer_width"], header["entity"], header["length"] = width, rows.entity.bytes, lengths
    at_headers = (begin[:, None] >> 3) + np.arange(HEADER_BYTES // 8)
    data.view("<u8")[at_headers] = header.view("<u8").reshape(at_headers.shape)
    return Encoded(data, offsets)


def _fours(rows: Measurements) -> int:
    """Count the IPv4 peers, which come first."""
    return int(np.searchsorted(rows.peers.family, 6))


def _peer_words(at: I64, fours: I64, count: I64) -> tuple[Bools, I64]:
    """Find out which peers are IPv6, and the word where each begins: [P].

    at, fours, count: the byte where the peers of a row begin, the number of IPv4 peers, which come first, and of all.
    """
    nth, fours = ranges(0, count), np.repeat(fours, count)
    six = nth >= fours
    return six, np.repeat(at, count) + np.where(six, 16 * nth - 12 * fours, 4 * nth) >> 2


def _peers_of_rows(rows: Measurements, n: I64, *, compiled: bool) -> tuple[Ints, Ints, I64, I64]:
    """Find the peers of each row.

    Returns index [N], each measurement's index among the peers of its row, empty without peers; held [M], the peers of
    all rows, ascending in each; and per row the number of peers, and how many of them are IPv6, int64 [R].
    """
    if rows.peer is None:
        none = np.zeros(len(rows.starts), np.int64)
        return none[:0], none[:0], none, none
    peers = max(len(rows.peers), 1)
    if compiled:
        from headrace.histories.codec.partition_kernels import peers_of_rows

        index, held, count, sixes = peers_of_rows(rows.peer, rows.starts, len(rows.peers), _fours(rows))
        return index, held, count, sixes
    keys, place = np.unique(np.repeat(np.arange(len(n)), n) * peers + rows.peer, return_inverse=True)
    row, held = np.divmod(keys, peers)
    count = np.bincount(row, minlength=len(n))
    sixes = np.bincount(row[rows.peers.family[held] == 6], minlength=len(n))
    return place - np.repeat(np.cumsum(count) - count, n), held, count, sixes


_LARGE = 1 << 16


@dataclass(frozen=True)
class Decoded:
    """The columns of R undamaged rows, end to end.

    head: [R], their headers. n, peers4, peers6: int64 [R], numbers of measurements, and of peers of each family.
    at_index: int64 [R], the byte of a row where its peer indices begin.
    seconds: uint32 [N], since the first of the row. codes: uint16 [N].
    index: [N], each measurement's index among the peers of its row; 0 in a row without peers; None if no row has any.
    peers: [P], row by row. values: [N] each. at_values: int64 [R], the byte of a row where they begin.
    damage: what is wrong with the next row; None if there is no damaged row.
    """

    head: npt.NDArray[np.void]
    n: I64
    peers4: I64
    peers6: I64
    at_index: I64
    seconds: U32
    codes: U16
    index: npt.NDArray[Any] | None
    peers: Addresses
    values: Values
    at_values: I64
    damage: str | None = None

    @property
    def starts(self) -> I64:
        """Return the index at which the measurements of each row begin."""
        return np.cumsum(self.n) - self.n


def decode_together(data: U8, sizes: I64) -> Decoded:
    """Decode contiguous blobs, up to the first that is damaged. sizes [R]: bytes of each."""
    found = _decode(data, sizes)
    if isinstance(found, Decoded):
        return found
    rows, damage = found
    before = decode_together(data[: int(sizes[:rows].sum())], sizes[:rows])
    return before if before.damage else replace(before, damage=damage)


def _decode(data: U8, sizes: I64) -> Decoded | tuple[int, str]:
    """Decode all rows, or return the number of the damaged row and the message for it."""
    broken = first_broken(
        [
            (sizes < HEADER_BYTES, lambda row: f"has {sizes[row]} bytes, a row has at least {HEADER_BYTES}"),
            (sizes % 8 != 0, lambda row: f"has {sizes[row]} bytes, which is not a multiple of 8"),
        ]
    )
    if broken is not None:
        return broken
    begin = np.cumsum(sizes) - sizes
    head = data.view("<u8")[(begin[:, None] >> 3) + np.arange(HEADER_BYTES // 8)].view(HEADER).ravel()
    n, peers4, peers6, width = (head[name].astype(np.int64) for name in ("n", "peers4", "peers6", "peer_width"))
    peers, (needed, at_codes, at_index, at_peers, lengths) = peers4 + peers6, _layout(n, peers4, peers6)
    magic, version, family, first_time = (head[name] for name in ("magic", "version", "entity_family", "first_time"))
    kinds = np.column_stack([head["entity_kind"], head["peer_kind"]])
    columns, at_values = head["values"], begin + lengths
    types = types_of_values(data[: int(sizes[:1].sum())], int(lengths[:1].sum()), int(columns[:1].sum()))
    lengths = lengths + values_bytes(n, [STORED[each] for each in types.tolist()])
    broken = first_broken(
        [
            (magic != MAGIC, lambda row: f"begins with {head[row].tobytes()[:4]!r}, a row with {MAGIC!r}"),
            (
                (version != VERSION) & (version != WITH_VALUES),
                lambda row: f"has row version {version[row]}, this headrace reads {VERSION} and {WITH_VALUES}",
            ),
            (
                (version == VERSION) & ((columns > 0) | (head["no_latency"] > 0) | (kinds > 1).any(axis=1)),
                lambda row: f"is of version {VERSION} and has what only version {WITH_VALUES} has",
            ),
            (
                (columns != columns[:1]) | (head["no_latency"] != head["no_latency"][:1]) | (head["no_latency"] > 1),
                lambda row: f"has {columns[row]} value columns, the row before has others",
            ),
            (
                (n == 0) | (width != needed),
                lambda row: (
                    f"says {n[row]} measurements, {peers[row]} peers and {width[row]} bytes a peer index, "
                    "which cannot be"
                ),
            ),
            (
                (lengths != sizes) | (head["length"] != sizes.astype(np.uint64)),
                lambda row: f"has {sizes[row]} bytes, its header says {head['length'][row]}, its counts {lengths[row]}",
            ),
            (
                (kinds >= len(KINDS)).any(axis=1) | ((family != 4) & (family != 6)),
                lambda row: (
                    f"has kinds {tuple(kinds[row].tolist())} and entity family {family[row]}, which are not known"
                ),
            ),
            (first_time >= 1 << 62, lambda row: f"begins at second {first_time[row]}"),
        ]
    )
    if broken is not None:
        return broken
    starts = np.cumsum(n) - n
    seconds = read_column(data, begin + HEADER_BYTES, n, "<u4")
    wrong = (seconds[starts + n - 1] != head["time_span"]) | _descend(seconds, starts)
    index = _indices(data, begin + at_index, n, width)
    most = np.zeros(len(n), np.int64) if index is None else np.maximum.reduceat(index, starts)
    broken = first_broken(
        [
            (wrong, lambda row: "has times that do not ascend from its first to its last"),
            ((most >= peers) & (peers > 0), lambda row: f"names peer {most[row]} of {peers[row]}"),
            (
                (data[at_values[:, None] + np.arange(len(types))] != types).any(axis=1),
                lambda row: "has value columns of other types than the row before",
            ),
        ]
    )
    if broken is not None:
        return broken
    codes = read_column(data, begin + at_codes, n, "<u2")
    held = _peers(data, begin + at_peers, peers4, peers)
    values = read_values(data, at_values, n, types) if len(types) else ()
    return Decoded(head, n, peers4, peers6, at_index, seconds, codes, index, held, values, at_values - begin)


def _peers(data: U8, at: I64, fours: I64, count: I64) -> Addresses:
    """Read the peers of rows; see `_peer_words`."""
    six, place = _peer_words(at, fours, count)
    words, of_peer = data.view("<u4"), np.zeros((len(place), 4), "<u4")
    of_peer[:, 0] = words[place]
    of_peer[six] = words[place[six][:, None] + np.arange(4)]
    return Addresses(np.where(six, 6, 4).astype(np.uint8), of_peer.view(np.uint8))


def _descend(seconds: npt.NDArray[Any], starts: I64) -> Bools:
    """Return which rows have times that do not begin at 0 and ascend; [R]."""
    wrong: Bools = seconds[starts] != 0
    falls = seconds[1:] < seconds[:-1]
    falls[starts[1:] - 1] = False
    if falls.any():
        wrong[np.searchsorted(starts, np.flatnonzero(falls) + 1, side="right") - 1] = True
    return wrong


def _indices(data: U8, at: I64, n: I64, width: I64) -> npt.NDArray[Any] | None:
    """Read the peer indices of rows, whose widths may differ."""
    widths = np.unique(width[width > 0]).tolist()
    if not widths:
        return None
    if len(widths) == 1 and width.all():
        return read_column(data, at, n, f"<u{widths[0]}")
    index = np.zeros(int(n.sum()), np.uint32)
    for size in widths:
        mine = width == size
        index[np.repeat(mine, n)] = read_column(data, at[mine], n[mine], f"<u{size}")
    return index


def decode_blobs(blobs: Sequence[bytes | memoryview]) -> Decoded:
    """Decode blobs, contiguous or not, up to the first that is damaged."""
    sizes = np.fromiter(map(len, blobs), np.int64, len(blobs))
    data = blobs[0] if len(blobs) == 1 else b"".join(blobs)
    return decode_together(np.frombuffer(data, np.uint8), sizes)


def decode_row(blob: bytes | memoryview | U8, where: str) -> RowColumns:
    """Decode one blob into views of it; peers are copied. where: file and row, for errors. Raises `CorruptShard`."""
    return decode_rows([blob.data if isinstance(blob, np.ndarray) else blob], [where])[0]


def decode_rows(blobs: Sequence[bytes | memoryview], names: Sequence[str]) -> list[RowColumns]:
    """Decode blobs into views of each of them; peers are copied, so that no row keeps others in memory.

    names: file and row of each, for errors.
    Raises `CorruptShard` for bytes that are not a row. Every column must lie in the blob, every peer index must name a
    peer, and times must ascend from 0 to the header's span.
    """
    small = [number for number, blob in enumerate(blobs) if len(blob) < _LARGE]
    groups = [[number] for number, blob in enumerate(blobs) if len(blob) >= _LARGE]
    rows: dict[int, RowColumns] = {}
    for group in [small, *groups] if small else groups:
        found = decode_blobs([blobs[number] for number in group])
        rows.update(zip(group, _views(found, [blobs[number] for number in group]), strict=False))
        if found.damage:
            raise CorruptShard(damaged(names[group[len(found.n)]], found.damage))
    return [rows[number] for number in range(len(blobs))]


def _views(found: Decoded, blobs: Sequence[bytes | memoryview]) -> list[RowColumns]:
    head = found.head
    ends = np.cumsum(found.peers4 + found.peers6).tolist()
    names = ("n", "peer_width", "first_time", "part", "entity_kind", "peer_kind", "entity_family")
    columns = zip(blobs, *(head[name].tolist() for name in names), found.at_index.tolist(), strict=False)
    types = np.array([STORED.index(each.dtype) for each in found.values], np.uint8)
    rows = []
    for number, (blob, n, width, first_time, part, kind, peer_kind, family, at_index) in enumerate(columns):
        held = slice(ends[number - 1] if number else 0, ends[number])
        rows.append(
            RowColumns(
                first_time=first_time,
                offsets=np.frombuffer(blob, "<u4", n, HEADER_BYTES),
                codes=np.frombuffer(blob, "<u2", n, HEADER_BYTES + 4 * n),
                peers=np.frombuffer(blob, f"<u{width}", n, at_index) if width else None,
                peer_family=found.peers.family[held].copy(),
                peer_bytes=found.peers.bytes[held].copy(),
                entity_kind=KINDS[kind],
                peer_kind=KINDS[peer_kind],
                entity_family=family,
                entity_bytes=head["entity"][number].copy(),
                part=part,
                values=read_values(np.frombuffer(blob, np.uint8), found.at_values[[number]], found.n[[number]], types)
                if len(types)
                else (),
                has_latency=not head["no_latency"][number],
            )
        )
    return rows
