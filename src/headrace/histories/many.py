"""Many small rows opened at once: what makes bytes a row is checked for all of them in a few vector operations.

Each row is then a handful of views of its own blob, as `decode_row` gives them: a tenth of its cost for rows of ten
measurements. Blobs are copied once for the checks, so large rows are opened one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.arrays import I64, U8
from headrace.histories.addresses import KINDS
from headrace.histories.rows import (
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
    def at_index(self) -> I64:
        """Where the peer indices of each row begin in it."""
        return HEADER_BYTES + 4 * self.n + -(-2 * self.n // 4) * 4

    @property
    def at_peers(self) -> I64:
        """Where the peers of each row begin in it."""
        return self.at_index + -(-self.width * self.n // 4) * 4


def joined(blobs: Sequence[bytes | memoryview]) -> Joined | None:
    """The blobs, of which there is one at least; None if some header is not that of a row of its size."""
    sizes = np.fromiter(map(len, blobs), np.int64, len(blobs))
    if (sizes < HEADER_BYTES).any() or (sizes % 8).any():
        return None
    data = np.frombuffer(b"".join(blobs), np.uint8)
    begin = np.cumsum(sizes) - sizes
    head = data[begin[:, None] + np.arange(HEADER_BYTES)].view(HEADER).ravel()
    n, peers4, peers6, width = (head[name].astype(np.int64) for name in ("n", "peers4", "peers6", "peer_width"))
    sound = (head["magic"] == MAGIC) & (head["version"] == VERSION) & (n > 0) & (width == peer_width(peers4 + peers6))
    sound &= np.isin(head["entity_family"], (4, 6)) & (head["first_time"] < 1 << 62)
    sound &= (head["entity_kind"] < len(KINDS)) & (head["peer_kind"] < len(KINDS))
    sound &= (blob_bytes(n, peers4, peers6) == sizes) & (head["length"] == sizes.astype(np.uint64))
    return Joined(data, begin, head, n, peers4, peers6, width) if sound.all() else None


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
    if found is None or not _columns_are_sound(found):
        return None
    n, peers, width = found.n, found.peers4 + found.peers6, found.width
    family, data = _peers(found)
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


def _columns_are_sound(found: Joined) -> bool:
    """Times ascend from 0 to the header's span, and every peer index is of a peer."""
    n = found.n
    starts = np.cumsum(n) - n
    row = np.repeat(np.arange(len(n)), n)
    place = np.arange(len(row)) - starts[row]
    seconds = found.data.view("<u4")[((found.begin + HEADER_BYTES) >> 2)[row] + place]
    if seconds[starts].any() or (seconds[starts + n - 1] != found.head["time_span"]).any():
        return False
    if ((seconds[1:] < seconds[:-1]) & (row[1:] == row[:-1])).any():
        return False
    peers = found.peers4 + found.peers6
    for size in (1, 2, 4):
        mine = np.flatnonzero(found.width[row] == size)
        at = ((found.begin + found.at_index) // size)[row[mine]] + place[mine]
        if (found.data.view(f"<u{size}")[at] >= peers[row[mine]]).any():
            return False
    return True


def _peers(found: Joined) -> tuple[U8, U8]:
    """family uint8 [P] and bytes uint8 [P, 16] of all rows' peers, row by row."""
    peers = found.peers4 + found.peers6
    row = np.repeat(np.arange(len(peers)), peers)
    place = np.arange(len(row)) - (np.cumsum(peers) - peers)[row]
    six = place >= found.peers4[row]
    at = (found.begin + found.at_peers)[row] + np.where(six, 16 * place - 12 * found.peers4[row], 4 * place)
    data = np.zeros((len(row), 16), np.uint8)
    for mask, size in ((~six, 4), (six, 16)):
        data[mask, :size] = found.data[at[mask][:, None] + np.arange(size)]
    return np.where(six, 6, 4).astype(np.uint8), data
