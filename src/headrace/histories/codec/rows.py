"""The row blob: a part of one entity's history as columns, little-endian, describing itself. Version 1.

A header of 64 bytes; then `n` times (u32, seconds since the first, ascending, ties allowed), `n` latency codes (u16),
`n` peer indices (u8, u16 or u32, as many bytes as the peers need; none without peers), and the peers: IPv4 first, 4
bytes each, then IPv6, 16 bytes each, both ascending. Each column begins at a multiple of 4 bytes and the blob ends at
one of 8, with zeros between. Columns are read as views, so a window of a row costs what the window holds.

`encode_rows` makes the blobs of many rows at once: a few vector operations per column, whatever the number of rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.arrays import I64, U8, U16, U32, Ints
from headrace.errors import CorruptShard
from headrace.histories.codec.addresses import KINDS, Addresses, Kind

MAGIC = b"HIST"
VERSION = 1
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
        ("zero", "u1", 2),
        ("entity", "u1", 16),
        ("length", "<u8"),
    ]
)
HEADER_BYTES = HEADER.itemsize
LARGEST_SPAN = (1 << 32) - 1


@dataclass(frozen=True)
class RowColumns:
    """One row, as views of its blob.

    first_time: epoch seconds; offsets uint32 [n]: seconds since then, ascending; codes uint16 [n]: see `latency`;
    peers [n]: index into the peers (uint8, uint16 or uint32), None in rows without peers; peer_family uint8 [m]: 4 or
    6; peer_bytes uint8 [m, 16]; entity_kind, peer_kind: "address" or "number"; entity_family 4 or 6; entity_bytes
    uint8 [16]; part: place among the rows of the entity, from 0.
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

    @property
    def n(self) -> int:
        """How many measurements the row has."""
        return len(self.offsets)

    @property
    def times(self) -> I64:
        """Epoch seconds of every measurement: int64 [n], computed."""
        return self.offsets.astype(np.int64) + self.first_time

    @property
    def last_time(self) -> int:
        """Epoch seconds of the last measurement."""
        return self.first_time + int(self.offsets[-1])


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """Sorted measurements of many rows, and where the rows begin.

    times int64 [N], epoch seconds, ascending inside a row; codes uint16 [N]; peer [N], place in `peers`, or None;
    peers: ascending by family and bytes, each once; starts int64 [R]: where each row begins, the first at 0, no row
    empty; entity: of each row, [R]; part int64 [R].
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


@dataclass(frozen=True)
class Encoded:
    """Blobs end to end: data uint8, row r is data[offsets[r]:offsets[r + 1]]; offsets int64 [R + 1]."""

    data: U8
    offsets: I64

    def row(self, place: int) -> bytes:
        """One blob."""
        return self.data[int(self.offsets[place]) : int(self.offsets[place + 1])].tobytes()

    def blobs(self, places: I64) -> list[bytes]:
        """The blobs of these rows."""
        view = self.data.data
        starts, stops = self.offsets[places].tolist(), self.offsets[places + 1].tolist()
        return [bytes(view[start:stop]) for start, stop in zip(starts, stops, strict=True)]


def peer_width(peers: I64) -> I64:
    """Bytes of a peer index in rows of so many peers: int64 [R] → 0, 1, 2 or 4."""
    return np.select([peers == 0, peers <= 1 << 8, peers <= 1 << 16], [0, 1, 2], 4).astype(np.int64)


def blob_bytes(n: I64, peers4: I64, peers6: I64) -> I64:
    """Length of rows of `n` measurements and so many peers of each family: int64 [R]."""
    width = peer_width(peers4 + peers6)
    return _up(HEADER_BYTES + 4 * n + _up(2 * n, 4) + _up(width * n, 4) + 4 * peers4 + 16 * peers6, 8)


def one_blob_bytes(n: int, peers4: int, peers6: int) -> int:
    """The same of one row, without the cost of arrays: a context may open ten small ones."""
    peers = peers4 + peers6
    width = 0 if not peers else 1 if peers <= 1 << 8 else 2 if peers <= 1 << 16 else 4
    columns = 4 * n + -(-2 * n // 4) * 4 + -(-width * n // 4) * 4 + 4 * peers4 + 16 * peers6
    return -(-(HEADER_BYTES + columns) // 8) * 8


def _up(size: I64, multiple: int) -> I64:
    return -(-size // multiple) * multiple


def encode_rows(rows: Measurements, *, compiled: bool = False) -> Encoded:
    """The blobs of all rows, in order; O(N log N) for the peers of each row. Raises `ValueError` for a longer span
    than `LARGEST_SPAN` in one row, or a time before 1970. compiled: by numba, the same bytes in O(N)."""
    starts, count = rows.starts, len(rows.times)
    n = np.diff(starts, append=count)
    first = rows.times[starts]
    span = rows.times[starts + n - 1] - first
    if len(first) and (int(span.max()) > LARGEST_SPAN or int(first.min()) < 0):
        raise ValueError("times of a row are before 1970, or further apart than 2**32 - 1 seconds")
    found = _peers_compiled(rows) if compiled else _peers_of_rows(rows, n)
    peers6 = found.sixes
    peers4 = found.count - peers6
    width = peer_width(found.count)
    lengths = blob_bytes(n, peers4, peers6)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    data = np.zeros(int(offsets[-1]), np.uint8)
    begin = offsets[:-1]

    at_times = begin + HEADER_BYTES
    at_codes = at_times + 4 * n
    at_index = at_codes + _up(2 * n, 4)
    at_peers = at_index + _up(width * n, 4)
    places = _Places(at_times, at_codes, at_index, at_peers, width)
    (_fill_compiled if compiled else _fill)(data, rows, n, found, places)

    header = np.zeros(len(starts), HEADER)
    header["magic"], header["version"] = MAGIC, VERSION
    header["entity_kind"], header["peer_kind"] = KINDS.index(rows.entity_kind), KINDS.index(rows.peer_kind)
    header["entity_family"] = rows.entity.family
    header["n"], header["peers4"], header["peers6"] = n, peers4, peers6
    header["part"], header["first_time"], header["time_span"] = rows.part, first, span
    header["peer_width"], header["entity"], header["length"] = width, rows.entity.bytes, lengths
    words = HEADER_BYTES // 8
    data.view("<u8")[(begin[:, None] >> 3) + np.arange(words)] = header.view("<u8").reshape(-1, words)
    return Encoded(data, offsets)


@dataclass(frozen=True)
class _RowPeers:
    """index [N]: of each measurement among its row's peers, None without; held [M]: the peers of all rows, ascending in
    each; count, sixes int64 [R]: how many each row has, and how many of them are IPv6."""

    index: Ints | None
    held: Ints
    count: I64
    sixes: I64


@dataclass(frozen=True)
class _Places:
    """At which byte each column of a row begins, and how wide its peer indices are: int64 [R]."""

    times: I64
    codes: I64
    index: I64
    peers: I64
    width: I64


def _fill(data: U8, rows: Measurements, n: I64, found: _RowPeers, at: _Places) -> None:
    """Write the columns of all rows."""
    place = np.arange(len(rows.times)) - np.repeat(rows.starts, n)  # of each measurement in its row
    # Every column begins at an even byte, so words and half-words are scattered as such.
    words, halves = data.view("<u4"), data.view("<u2")
    words[np.repeat(at.times >> 2, n) + place] = rows.times - np.repeat(rows.times[rows.starts], n)
    halves[np.repeat(at.codes >> 1, n) + place] = rows.codes
    if found.index is None:
        return
    wide = np.repeat(at.width, n)
    for size, view in ((1, data), (2, halves), (4, words)):
        mine = slice(None) if (at.width == size).all() else np.flatnonzero(wide == size)
        if isinstance(mine, slice) or len(mine):
            view[(np.repeat(at.index // size, n) + place)[mine]] = found.index[mine]
    held, count = found.held, found.count
    held_row = np.repeat(np.arange(len(count)), count)
    is_6 = rows.peers.family[held] == 6
    nth = np.arange(len(held)) - np.repeat(np.cumsum(count) - count, count)
    four = at.peers[held_row[~is_6]] + 4 * nth[~is_6]
    words[four >> 2] = np.ascontiguousarray(rows.peers.bytes[held[~is_6], :4]).view("<u4").ravel()
    fours = count - found.sixes
    six = (at.peers + 4 * fours)[held_row[is_6]] + 16 * (nth[is_6] - fours[held_row[is_6]])
    words[(six[:, None] >> 2) + np.arange(4)] = np.ascontiguousarray(rows.peers.bytes[held[is_6]]).view("<u4")


def _fill_compiled(data: U8, rows: Measurements, n: I64, found: _RowPeers, at: _Places) -> None:  # noqa: ARG001 - as `_fill`
    from headrace.histories.codec.row_kernels import fill_columns, fill_peers

    fill_columns(data, (at.times, at.codes, at.index), rows.starts, rows.times, rows.codes, found.index, at.width)
    if found.index is not None:
        fours = int(np.searchsorted(rows.peers.family, 6))
        fill_peers(data, at.peers, found.held, found.count, fours, rows.peers.bytes)


def _peers_of_rows(rows: Measurements, n: I64) -> _RowPeers:
    none = np.zeros(len(rows.starts), np.int64)
    if rows.peer is None:
        return _RowPeers(None, none[:0], none, none)
    peers = max(len(rows.peers), 1)
    keys = np.repeat(np.arange(len(rows.starts)), n) * peers + rows.peer
    order = np.argsort(keys)
    keys = keys[order]
    new = np.ones(len(keys), np.bool_)
    new[1:] = keys[1:] != keys[:-1]
    place = np.empty(len(keys), np.int64)
    place[order] = np.cumsum(new) - 1
    held_row, held = np.divmod(keys[new], peers)
    count = np.bincount(held_row, minlength=len(rows.starts))
    sixes = np.bincount(held_row[rows.peers.family[held] == 6], minlength=len(rows.starts))
    return _RowPeers(place - np.repeat(np.cumsum(count) - count, n), held, count, sixes)


def _peers_compiled(rows: Measurements) -> _RowPeers:
    from headrace.histories.codec.row_kernels import peers_of_rows

    none = np.zeros(len(rows.starts), np.int64)
    if rows.peer is None:
        return _RowPeers(None, none[:0], none, none)
    fours = int(np.searchsorted(rows.peers.family, 6))
    return _RowPeers(*peers_of_rows(rows.peer, rows.starts, len(rows.peers), fours))


def decode_row(blob: bytes | memoryview | U8, where: str) -> RowColumns:
    """The columns of a blob, as views without copying (peers are copied). where: file and row, for errors.

    Raises `CorruptShard` for bytes that are no row: every column lies inside the blob, every peer index is of a peer,
    times ascend from 0 to the header's span.
    """
    data = np.frombuffer(blob, np.uint8)
    if len(data) < HEADER_BYTES:
        raise _corrupt(where, f"has {len(data)} bytes, a row has at least {HEADER_BYTES}")
    head = np.frombuffer(data, HEADER, 1)[0]
    if bytes(head["magic"]) != MAGIC:
        raise _corrupt(where, f"begins with {bytes(data[:4])!r}, a row with {MAGIC!r}")
    if int(head["version"]) != VERSION:
        raise _corrupt(where, f"has row version {int(head['version'])}, this headrace reads {VERSION}")
    n, peers4, peers6, width = (int(head[name]) for name in ("n", "peers4", "peers6", "peer_width"))
    peers = peers4 + peers6
    if n == 0 or width != (0 if not peers else 1 if peers <= 1 << 8 else 2 if peers <= 1 << 16 else 4):
        raise _corrupt(where, f"says {n} measurements, {peers} peers and {width} bytes a peer index, which cannot be")
    length = one_blob_bytes(n, peers4, peers6)
    if not length == len(data) == int(head["length"]):
        raise _corrupt(where, f"has {len(data)} bytes, its header says {int(head['length'])}, its counts {length}")
    kinds = int(head["entity_kind"]), int(head["peer_kind"])
    if max(kinds) >= len(KINDS) or int(head["entity_family"]) not in (4, 6):
        raise _corrupt(where, f"has kinds {kinds} and entity family {int(head['entity_family'])}, which are none")
    if int(head["first_time"]) >= 1 << 62:
        raise _corrupt(where, f"begins at second {int(head['first_time'])}")
    offsets = np.frombuffer(data, "<u4", n, HEADER_BYTES)
    at_codes = HEADER_BYTES + 4 * n
    codes = np.frombuffer(data, "<u2", n, at_codes)
    at_index = at_codes + -(-2 * n // 4) * 4
    index = np.frombuffer(data, f"<u{width}", n, at_index) if width else None
    at_peers = at_index + -(-width * n // 4) * 4
    if offsets[0] != 0 or offsets[-1] != head["time_span"] or (offsets[1:] < offsets[:-1]).any():
        raise _corrupt(where, "has times that do not ascend from its first to its last")
    if index is not None and int(index.max()) >= peers:
        raise _corrupt(where, f"names peer {int(index.max())} of {peers}")
    peer_bytes = np.zeros((peers, 16), np.uint8)
    peer_bytes[:peers4, :4] = data[at_peers : at_peers + 4 * peers4].reshape(-1, 4)
    six = at_peers + 4 * peers4
    peer_bytes[peers4:] = data[six : six + 16 * peers6].reshape(-1, 16)
    return RowColumns(
        first_time=int(head["first_time"]),
        offsets=offsets,
        codes=codes,
        peers=index,
        peer_family=np.repeat(np.array([4, 6], np.uint8), [peers4, peers6]),
        peer_bytes=peer_bytes,
        entity_kind=KINDS[kinds[0]],
        peer_kind=KINDS[kinds[1]],
        entity_family=int(head["entity_family"]),
        entity_bytes=np.array(head["entity"]),
        part=int(head["part"]),
    )


def _corrupt(where: str, what: str) -> CorruptShard:
    return CorruptShard(f"{where}: {what}; it is damaged: restore the file or prepare the run again")
