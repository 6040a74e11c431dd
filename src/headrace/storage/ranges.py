"""Which byte ranges of an object are asked for: near ones as one, large ones in pieces. Pure."""

from __future__ import annotations

from collections.abc import Sequence

PIECE_BYTES = 8 << 20  # of a large range that is fetched in parallel
_JOIN_GAP_BYTES = 512 << 10  # between two ranges that are cheaper to fetch than another request


def joined_ranges(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges [start, stop) that cover the given ones; sorted, without overlap, none empty or above 8 MiB."""
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(each for each in ranges if each[0] < each[1]):
        if joined and start <= joined[-1][1] + _JOIN_GAP_BYTES:
            joined[-1] = joined[-1][0], max(stop, joined[-1][1])
        else:
            joined.append((start, stop))
    return [(at, min(at + PIECE_BYTES, stop)) for start, stop in joined for at in range(start, stop, PIECE_BYTES)]
