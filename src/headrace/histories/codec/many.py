"""Many small rows opened at once: what makes bytes a row is checked for all of them in a few vector operations.

Columns of all rows are had end to end (`columns_of`), without Python work for each row. Or each row is a handful of
views of its own blob, as `decode_row` gives them (`decode_rows`): a tenth of its cost for rows of ten measurements.
Blobs are copied once for the checks, so large rows are opened one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.arrays import I64, U8, U16, U32
from headrace.histories.codec.addresses import KINDS, Addresses
from headrace.histories.codec.rows import (
    HEADER,
    HEADER_BYTES,
    MAGIC,
    VERSION,
    RowColumns,
    blob_bytes,
    decode_row,
    peer_width,
)

_LARGE = 1 << 16


@dataclass(frozen=True)
class Joined:
    """Blobs end to end, and per row [R] where it begins, its header and the counts in it, checked against its size."""

    data: U8
    begin: I64
    head: npt.NDArray[np.void]
    n: I64
    peers4: I64
    peers6: I64
    width: I64

    @property
    def starts(self) -> I64:
        """Where the measurements of each row begin among those of all."""
        return np.cumsum(self.n) - self.n

    @property
    def at_index(self) -> I64:
        """Where the peer indices of each row begin in it."""
        return HEADER_BYTES + 4 * self.n + -(-2 * self.n // 4) * 4

    @property
    def at_peers(self) -> I64:
        """Where the peers of each row begin in it."""
        return self.at_index + -(-self.width * self.n // 4) * 4


@dataclass(frozen=True)
class Columns:
    """The measurements of rows end to end: seconds uint32 [N], since the first of their row; codes uint16 [N].

    index [N]: of each measurement among the peers of its row, 0 in a row without; None if no row has peers.
    """

    seconds: U32
    codes: U16
    index: npt.NDArray[Any] | None


def joined(blobs: Sequence[bytes | memoryview]) -> Joined | None:
    """The blobs, of which there is one at least; None if some header is not that of a row of its size."""
    sizes = np.fromiter(map(len, blobs), np.int64, len(blobs))
    return joined_at(np.frombuffer(b"".join(blobs), np.uint8), sizes)


def joined_at(data: U8, sizes: I64) -> Joined | None:
    """The same of blobs that stand end to end. sizes [R]: bytes of each."""
    if (sizes < HEADER_BYTES).any() or (sizes % 8).any():
        return None
    begin = np.cumsum(sizes) - sizes
    head = data.view("<u8")[(begin[:, None] >> 3) + np.arange(HEADER_BYTES // 8)].view(HEADER).ravel()
    n, peers4, peers6, width = (head[name].astype(np.int64) for name in ("n", "peers4", "peers6", "peer_width"))
    sound = (head["magic"] == MAGIC) & (head["version"] == VERSION) & (n > 0) & (width == peer_width(peers4 + peers6))
    family = head["entity_family"]
    sound &= ((family == 4) | (family == 6)) & (head["first_time"] < 1 << 62)
    sound &= (head["entity_kind"] < len(KINDS)) & (head["peer_kind"] < len(KINDS))
    sound &= (blob_bytes(n, peers4, peers6) == sizes) & (head["length"] == sizes.astype(np.uint64))
    return Joined(data, begin, head, n, peers4, peers6, width) if sound.all() else None


def columns_of(found: Joined) -> Columns | None:
    """The columns; None if times do not ascend from 0 to the header's span, or a peer index is of no peer."""
    every = np.arange(len(found.n))
    seconds = _values(found, every, HEADER_BYTES + 0 * found.n, 4)
    starts = found.starts
    if seconds[starts].any() or (seconds[starts + found.n - 1] != found.head["time_span"]).any():
        return None
    falls = seconds[1:] < seconds[:-1]
    falls[starts[1:] - 1] = False
    if falls.any():
        return None
    index = _index(found)
    if index is not None:
        peers = found.peers4 + found.peers6
        if ((np.maximum.reduceat(index, starts) >= peers) & (peers > 0)).any():
            return None
    return Columns(seconds, _values(found, every, HEADER_BYTES + 4 * found.n, 2), index)


def _index(found: Joined) -> npt.NDArray[Any] | None:
    widths = np.unique(found.width).tolist()
    if widths == [0]:
        return None
    if len(widths) == 1:
        return _values(found, np.arange(len(found.n)), found.at_index, widths[0])
    index = np.zeros(int(found.n.sum()), np.uint32)
    for width in widths:
        if width:
            mine = found.width == width
            index[np.repeat(mine, found.n)] = _values(found, np.flatnonzero(mine), found.at_index, width)
    return index


def _values(found: Joined, rows: I64, at: I64, width: int) -> npt.NDArray[Any]:
    """A column of some rows end to end. at: byte of each row of all where its column begins; width: of a value."""
    view = found.data.view(f"<u{width}")
    first, n = (found.begin + at)[rows] // width, found.n[rows]
    if len(rows) == 1:  # a large row comes alone, and as it lies
        return view[int(first[0]) : int(first[0] + n[0])]
    before = np.cumsum(n) - n
    return view[np.repeat(first - before, n) + np.arange(int(n.sum()))]


def peers_of(found: Joined) -> Addresses:
    """The peers of all rows, row by row: [P]."""
    peers = found.peers4 + found.peers6
    nth = np.arange(int(peers.sum())) - np.repeat(np.cumsum(peers) - peers, peers)
    fours = np.repeat(found.peers4, peers)
    six = nth >= fours
    at = np.repeat(found.begin + found.at_peers, peers) + np.where(six, 16 * nth - 12 * fours, 4 * nth) >> 2
    words, of_peer = found.data.view("<u4"), np.zeros((len(nth), 4), "<u4")
    of_peer[:, 0] = words[at]
    if six.any():
        of_peer[six] = words[at[six][:, None] + np.arange(4)]
    return Addresses(np.where(six, 6, 4).astype(np.uint8), of_peer.view(np.uint8))


def decode_rows(blobs: Sequence[bytes | memoryview], names: Sequence[str]) -> list[RowColumns]:
    """What `decode_row` gives for each blob. names: file and row of each, for errors. Raises `CorruptShard`."""
    small = [place for place, blob in enumerate(blobs) if len(blob) < _LARGE]
    if len(small) < 2:
        return [decode_row(blob, name) for blob, name in zip(blobs, names, strict=True)]
    rows = _decoded([blobs[place] for place in small])
    if rows is None:  # the decoder says which of them is none, and why
        rows = [decode_row(blobs[place], names[place]) for place in small]
    of_place = dict(zip(small, rows, strict=True))
    return [
        of_place[place] if place in of_place else decode_row(blob, name)
        for place, (blob, name) in enumerate(zip(blobs, names, strict=True))
    ]


def _decoded(blobs: Sequence[bytes | memoryview]) -> list[RowColumns] | None:
    found = joined(blobs)
    if found is None or columns_of(found) is None:
        return None
    n, peers, width = found.n, found.peers4 + found.peers6, found.width
    of_peers = peers_of(found)
    family, data = of_peers.family, of_peers.bytes
    after = np.cumsum(peers)
    head = found.head
    columns = (n, width, found.at_index, after - peers, after, head["first_time"], head["part"])
    kinds = (head["entity_kind"], head["peer_kind"], head["entity_family"])
    rows = []
    for place, (
        count,
        size,
        at_index,
        start,
        stop,
        first_time,
        part,
        entity_kind,
        peer_kind,
        entity_family,
    ) in enumerate(zip(*(each.tolist() for each in (*columns, *kinds)), strict=True)):
        blob = blobs[place]
        rows.append(
            RowColumns(
                first_time=first_time,
                offsets=np.frombuffer(blob, "<u4", count, HEADER_BYTES),
                codes=np.frombuffer(blob, "<u2", count, HEADER_BYTES + 4 * count),
                peers=np.frombuffer(blob, f"<u{size}", count, at_index) if size else None,
                peer_family=family[start:stop].copy(),  # copies, so that no row keeps the others in memory
                peer_bytes=data[start:stop].copy(),
                entity_kind=KINDS[entity_kind],
                peer_kind=KINDS[peer_kind],
                entity_family=entity_family,
                entity_bytes=head["entity"][place].copy(),
                part=part,
            )
        )
    return rows
