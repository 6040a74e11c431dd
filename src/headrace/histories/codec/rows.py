"""The row blob: a part of one entity's history as columns, little-endian, describing itself. Version 1.

A header of 64 bytes; then `n` times (u32, seconds since the first, ascending, ties allowed), `n` latency codes (u16),
`n` peer indices (u8, u16 or u32, as many bytes as the peers need; none without peers), and the peers: IPv4 first, 4
bytes each, then IPv6, 16 bytes each, both ascending. Each column begins at a multiple of 4 bytes and the blob ends at
one of 8, with zeros between. Columns are read as views, so a window of a row costs what the window holds.

`encode_rows` makes the blobs of many rows at once: a few vector operations per column, whatever the number of rows.
`decoding` reads them back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.arrays import I64, U8, U16, U32, Ints
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
        """Count the measurements of the row."""
        return len(self.offsets)

    @property
    def times(self) -> I64:
        """Compute the epoch seconds of every measurement: int64 [n]."""
        return self.offsets.astype(np.int64) + self.first_time

    @property
    def last_time(self) -> int:
        """Compute the epoch seconds of the last measurement."""
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
        """Copy one blob."""
        return self.data[int(self.offsets[place]) : int(self.offsets[place + 1])].tobytes()

    def blobs(self, places: I64) -> list[bytes]:
        """Copy the blobs of these rows."""
        view = self.data.data
        starts, stops = self.offsets[places].tolist(), self.offsets[places + 1].tolist()
        return [bytes(view[start:stop]) for start, stop in zip(starts, stops, strict=True)]


def peer_width(peers: I64) -> I64:
    """Give the bytes of a peer index in rows of so many peers: int64 [R] → 0, 1, 2 or 4."""
    return np.select([peers == 0, peers <= 1 << 8, peers <= 1 << 16], [0, 1, 2], 4).astype(np.int64)


def blob_bytes(n: I64, peers4: I64, peers6: I64) -> I64:
    """Give the length of rows of `n` measurements and so many peers of each family: int64 [R]."""
    width = peer_width(peers4 + peers6)
    return _up(HEADER_BYTES + 4 * n + _up(2 * n, 4) + _up(width * n, 4) + 4 * peers4 + 16 * peers6, 8)


def _up(size: I64, multiple: int) -> I64:
    return -(-size // multiple) * multiple


def encode_rows(rows: Measurements, *, compiled: bool = False) -> Encoded:
    """Encode all rows, in order; O(N log N) for the peers of each row. Raises `ValueError` for a longer span
    than `LARGEST_SPAN` in one row, or a time before 1970. compiled: by numba, the same bytes in O(N)."""
    starts = rows.starts
    n = np.diff(starts, append=len(rows.times))
    first = rows.times[starts]
    span = rows.times[starts + n - 1] - first
    if len(first) and (int(span.max()) > LARGEST_SPAN or int(first.min()) < 0):
        raise ValueError("times of a row are before 1970, or further apart than 2**32 - 1 seconds")
    index, held, count, peers6 = _peers_of_rows(rows, n, compiled=compiled)
    peers4, width = count - peers6, peer_width(count)
    lengths = blob_bytes(n, peers4, peers6)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    data = np.zeros(int(offsets[-1]), np.uint8)
    begin = offsets[:-1]

    at_times = begin + HEADER_BYTES
    at_codes = at_times + 4 * n
    at_index = at_codes + _up(2 * n, 4)
    at_peers = at_index + _up(width * n, 4)
    if compiled:
        from headrace.histories.codec.partition_kernels import fill_rows

        columns, places = (rows.times, rows.codes, index), (at_times, at_codes, at_index, at_peers)
        fill_rows(data, starts, columns, places, width, (held, count, _fours(rows), rows.peers.bytes))
    else:
        place = np.arange(len(rows.times)) - np.repeat(starts, n)  # of each measurement in its row
        # Every column begins at an even byte, so words and half-words are scattered as such.
        words, halves = data.view("<u4"), data.view("<u2")
        words[np.repeat(at_times >> 2, n) + place] = rows.times - np.repeat(first, n)
        halves[np.repeat(at_codes >> 1, n) + place] = rows.codes
        wide = np.repeat(width, n)
        for size, view in ((1, data), (2, halves), (4, words)):
            mine = np.flatnonzero(wide == size)  # none where rows have no peers
            if len(mine):
                view[(np.repeat(at_index // size, n) + place)[mine]] = index[mine]
        _fill_peers(words, rows.peers, held, count, peers4, at_peers)

    header = np.zeros(len(starts), HEADER)
    header["magic"], header["version"] = MAGIC, VERSION
    header["entity_kind"], header["peer_kind"] = KINDS.index(rows.entity_kind), KINDS.index(rows.peer_kind)
    header["entity_family"] = rows.entity.family
    header["n"], header["peers4"], header["peers6"] = n, peers4, peers6
    header["part"], header["first_time"], header["time_span"] = rows.part, first, span
    header["peer_width"], header["entity"], header["length"] = width, rows.entity.bytes, lengths
    at_headers = (begin[:, None] >> 3) + np.arange(HEADER_BYTES // 8)
    data.view("<u8")[at_headers] = header.view("<u8").reshape(at_headers.shape)
    return Encoded(data, offsets)


def _fours(rows: Measurements) -> int:
    """Count the peers that are IPv4, which stand first."""
    return int(np.searchsorted(rows.peers.family, 6))


def _fill_peers(words: U32, peers: Addresses, held: Ints, count: I64, fours: I64, at: I64) -> None:
    """Write the peers of rows. held, count: as `_peers_of_rows` gives them; at: bytes where they begin, [R]."""
    row = np.repeat(np.arange(len(count)), count)
    nth = np.arange(len(held)) - np.repeat(np.cumsum(count) - count, count)
    six = peers.family[held] == 6
    place = (at[row] + np.where(six, 16 * nth - 12 * fours[row], 4 * nth)) >> 2
    of_peer = np.ascontiguousarray(peers.bytes[held]).view("<u4").reshape(-1, 4)
    words[place] = of_peer[:, 0]
    words[place[six][:, None] + np.arange(4)] = of_peer[six]


def _peers_of_rows(rows: Measurements, n: I64, *, compiled: bool) -> tuple[Ints, Ints, I64, I64]:
    """index [N]: of each measurement among its row's peers, empty without; held [M]: the peers of all rows, ascending
    in each; how many each row has, and how many of them are IPv6, int64 [R]."""
    if rows.peer is None:
        none = np.zeros(len(rows.starts), np.int64)
        return none[:0], none[:0], none, none
    peers = max(len(rows.peers), 1)
    if compiled:
        from headrace.histories.codec.partition_kernels import peers_of_rows

        return peers_of_rows(rows.peer, rows.starts, len(rows.peers), _fours(rows))
    keys, place = np.unique(np.repeat(np.arange(len(n)), n) * peers + rows.peer, return_inverse=True)
    row, held = np.divmod(keys, peers)
    count = np.bincount(row, minlength=len(n))
    sixes = np.bincount(row[rows.peers.family[held] == 6], minlength=len(n))
    return place - np.repeat(np.cumsum(count) - count, n), held, count, sixes
