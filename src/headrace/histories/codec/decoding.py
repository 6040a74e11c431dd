"""Decode row blobs: many rows are checked together, in a few vector operations for each law that bytes must keep.

Rows are decoded up to the first that is damaged, and what is wrong with that one is told in words. Blobs that do not
already lie end to end are copied once for the checks, so large rows are decoded one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.arrays import I64, U8, U16, U32, Bools
from headrace.errors import CorruptShard
from headrace.histories.codec.addresses import KINDS, Addresses
from headrace.histories.codec.rows import (
    HEADER,
    HEADER_BYTES,
    MAGIC,
    VERSION,
    RowColumns,
    blob_bytes,
    peer_width,
)

_LARGE = 1 << 16

Law = tuple[Bools, Callable[[int], str]]


def first_broken(laws: Sequence[Law]) -> tuple[int, str] | None:
    """Find the first row that breaks a law, and say what the first law that it breaks says of it.

    laws: which rows are wrong, bool [R], and words for one of these by its number.
    """
    rows = [int(wrong.argmax()) if wrong.any() else len(wrong) for wrong, _ in laws]
    first = min(rows)
    wrong, words = laws[rows.index(first)]
    return None if first == len(wrong) else (first, words(first))


@dataclass(frozen=True)
class Decoded:
    """The columns of R sound rows, end to end.

    head [R]: their headers; n, peers4, peers6 int64 [R]: measurements, and peers of each family; at_index int64 [R]:
    the byte of a row where its peer indices begin; seconds uint32 [N], since the first of the row; codes uint16 [N];
    index [N]: of each measurement among the peers of its row, 0 in a row without, None if no row has any; peers [P]:
    row by row. damage: what is wrong with the row that follows, None if no row does.
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
    damage: str | None = None

    @property
    def starts(self) -> I64:
        """Say where the measurements of each row begin."""
        return np.cumsum(self.n) - self.n


def decode_together(data: U8, sizes: I64) -> Decoded:
    """Decode blobs that lie end to end, up to the first that is damaged. sizes [R]: bytes of each."""
    found = _decode(data, sizes)
    if isinstance(found, Decoded):
        return found
    rows, damage = found
    before = decode_together(data[: int(sizes[:rows].sum())], sizes[:rows])
    return before if before.damage else replace(before, damage=damage)


def _decode(data: U8, sizes: I64) -> Decoded | tuple[int, str]:
    """Decode all rows, or return the row that is damaged and the words for it."""
    broken = first_broken(
        [
            (sizes < HEADER_BYTES, lambda row: f"has {sizes[row]} bytes, a row has at least {HEADER_BYTES}"),
            (sizes % 8 != 0, lambda row: f"has {sizes[row]} bytes, which is no multiple of 8"),
        ]
    )
    if broken is not None:
        return broken
    begin = np.cumsum(sizes) - sizes
    head = data.view("<u8")[(begin[:, None] >> 3) + np.arange(HEADER_BYTES // 8)].view(HEADER).ravel()
    n, peers4, peers6, width = (head[name].astype(np.int64) for name in ("n", "peers4", "peers6", "peer_width"))
    peers, lengths = peers4 + peers6, blob_bytes(n, peers4, peers6)
    magic, version, family, first_time = (head[name] for name in ("magic", "version", "entity_family", "first_time"))
    kinds = np.column_stack([head["entity_kind"], head["peer_kind"]])
    broken = first_broken(
        [
            (magic != MAGIC, lambda row: f"begins with {head[row].tobytes()[:4]!r}, a row with {MAGIC!r}"),
            (version != VERSION, lambda row: f"has row version {version[row]}, this headrace reads {VERSION}"),
            (
                (n == 0) | (width != peer_width(peers)),
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
                lambda row: f"has kinds {tuple(kinds[row].tolist())} and entity family {family[row]}, which are none",
            ),
            (first_time >= 1 << 62, lambda row: f"begins at second {first_time[row]}"),
        ]
    )
    if broken is not None:
        return broken
    at_codes = HEADER_BYTES + 4 * n
    at_index = at_codes + -(-2 * n // 4) * 4
    starts = np.cumsum(n) - n
    seconds = _column(data, begin + HEADER_BYTES, n, 4)
    wrong = (seconds[starts] != 0) | (seconds[starts + n - 1] != head["time_span"])
    falls = seconds[1:] < seconds[:-1]
    falls[starts[1:] - 1] = False
    if falls.any():
        wrong[np.searchsorted(starts, np.flatnonzero(falls) + 1, side="right") - 1] = True
    index = _indices(data, begin + at_index, n, width)
    most = np.zeros(len(n), np.int64) if index is None else np.maximum.reduceat(index, starts)
    broken = first_broken(
        [
            (wrong, lambda row: "has times that do not ascend from its first to its last"),
            ((most >= peers) & (peers > 0), lambda row: f"names peer {most[row]} of {peers[row]}"),
        ]
    )
    if broken is not None:
        return broken
    codes = _column(data, begin + at_codes, n, 2)
    held = _peers(data, begin + at_index + -(-width * n // 4) * 4, peers4, peers)
    return Decoded(head, n, peers4, peers6, at_index, seconds, codes, index, held)


def _column(data: U8, at: I64, n: I64, width: int) -> npt.NDArray[Any]:
    """Read a column of rows end to end. at: bytes where it begins; n: values of each row, [R]; width: bytes of one."""
    view, first = data.view(f"<u{width}"), at // width
    if len(n) == 1:  # a large row comes alone, and as it lies
        return view[int(first[0]) : int(first[0] + n[0])]
    return view[np.repeat(first - (np.cumsum(n) - n), n) + np.arange(int(n.sum()))]


def _indices(data: U8, at: I64, n: I64, width: I64) -> npt.NDArray[Any] | None:
    """Read the peer indices of rows, whose widths may differ."""
    widths = np.unique(width[width > 0]).tolist()
    if not widths:
        return None
    if len(widths) == 1 and width.all():
        return _column(data, at, n, widths[0])
    index = np.zeros(int(n.sum()), np.uint32)
    for size in widths:
        mine = width == size
        index[np.repeat(mine, n)] = _column(data, at[mine], n[mine], size)
    return index


def _peers(data: U8, at: I64, fours: I64, peers: I64) -> Addresses:
    """Read the peers of rows. at: bytes where they begin; fours: how many of the peers are IPv4 and stand first."""
    nth = np.arange(int(peers.sum())) - np.repeat(np.cumsum(peers) - peers, peers)
    fours = np.repeat(fours, peers)
    six = nth >= fours
    place = np.repeat(at, peers) + np.where(six, 16 * nth - 12 * fours, 4 * nth) >> 2
    words, of_peer = data.view("<u4"), np.zeros((len(nth), 4), "<u4")
    of_peer[:, 0] = words[place]
    if six.any():
        of_peer[six] = words[place[six][:, None] + np.arange(4)]
    return Addresses(np.where(six, 6, 4).astype(np.uint8), of_peer.view(np.uint8))


def decode_blobs(blobs: Sequence[bytes | memoryview]) -> Decoded:
    """Decode blobs, wherever they lie, up to the first that is damaged."""
    sizes = np.fromiter(map(len, blobs), np.int64, len(blobs))
    data = blobs[0] if len(blobs) == 1 else b"".join(blobs)
    return decode_together(np.frombuffer(data, np.uint8), sizes)


def decode_row(blob: bytes | memoryview | U8, where: str) -> RowColumns:
    """Decode one blob into views of it; peers are copied. where: file and row, for errors. Raises `CorruptShard`."""
    return decode_rows([blob.data if isinstance(blob, np.ndarray) else blob], [where])[0]


def decode_rows(blobs: Sequence[bytes | memoryview], names: Sequence[str]) -> list[RowColumns]:
    """Decode blobs into views of each of them; peers are copied, so that no row keeps others in memory.

    names: file and row of each, for errors. Raises `CorruptShard` for bytes that are no row: every column lies inside
    the blob, every peer index is of a peer, times ascend from 0 to the header's span.
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


def damaged(where: str, damage: str) -> str:
    """Say that a row is damaged."""
    return f"{where}: {damage}; it is damaged: restore the file or prepare the run again"


def _views(found: Decoded, blobs: Sequence[bytes | memoryview]) -> list[RowColumns]:
    peers, head = found.peers4 + found.peers6, found.head
    ends = np.cumsum(peers).tolist()
    names = ("n", "peer_width", "first_time", "part", "entity_kind", "peer_kind", "entity_family")
    columns = zip(blobs, *(head[name].tolist() for name in names), found.at_index.tolist(), strict=False)
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
            )
        )
    return rows
