"""Cut rows into padded batches of like lengths. Pure.

A padded batch is a bin with another rule of capacity: its rows times its width are at most
`tokens`, and its rows at most `rows`. Rows are sorted by width, and each bin takes as many of the
longest rows left as it may. No cut of sorted rows needs fewer bins.

Ranks need equal numbers of bins, so `cut` makes a number of them that is at least the fewest. It
cuts with the smallest bound on rows times width that does not need more bins, which makes bins
even, and then halves the largest bins until the number is exact.

Cost: O(n log n) to sort, and a step of Python per bin for each of a dozen bounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np

from headrace.arrays import I64, offsets_from_lengths
from headrace.bins.bins import Bins


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchBound:
    """What a padded batch may hold.

    rows: most rows. tokens: most rows times width; None: any. multiple: widths are rounded up to a
    multiple.
    """

    rows: int
    tokens: int | None = None
    multiple: int = 1

    def widths(self, lengths: I64) -> I64:
        """Return the width that each row needs, at least 1: int64 [n]."""
        return np.maximum(-(-lengths // self.multiple) * self.multiple, 1)

    def fewest(self, lengths: I64) -> int:
        """Count the bins that rows of these lengths need, int64 [n].

        No row may be wider than `tokens`.
        """
        return len(self._ends(np.sort(self.widths(lengths))[::-1], self.tokens))

    def cut(self, lengths: I64, bins: int) -> Bins:
        """Cut the rows into `bins` bins, the widest first; rows of a bin are in their order.

        bins: at least `fewest`. With fewer rows than bins, the last bins are empty.
        """
        if not len(lengths):
            return Bins(np.zeros(bins + 1, np.int64), np.empty(0, np.int64))
        widths = self.widths(lengths)
        order = np.argsort(-widths, kind="stable")
        widths = widths[order]
        ends = self._even_ends(widths, bins)
        starts = np.concatenate([[0], ends[:-1]])
        parts = np.stack([starts, ends], axis=1)
        parts = _halved(widths, parts, bins)
        rows = [np.sort(order[begin:end]) for begin, end in parts.tolist()]
        sizes = np.zeros(bins, np.int64)
        sizes[: len(parts)] = parts[:, 1] - parts[:, 0]
        return Bins(offsets_from_lengths(sizes), np.concatenate(rows))

    def _ends(self, widths: I64, tokens: int | None) -> list[int]:
        """Return where each bin ends that takes as many of the widest rows left as it may.

        widths: descending. tokens: most rows times width, in place of the bound's own.
        """
        ends = []
        at = 0
        count = len(widths)
        while at < count:
            width = int(widths[at])
            rows = self.rows
            if tokens is not None:
                rows = min(rows, tokens // width)
            at = min(count, at + rows)
            ends.append(at)
        return ends

    def _even_ends(self, widths: I64, bins: int) -> I64:
        """Return the ends of bins under the smallest bound on tokens that needs at most `bins`."""
        low = int(widths[0])
        high = low * min(self.rows, len(widths))
        if self.tokens is not None:
            high = min(high, self.tokens)
        ends = self._ends(widths, high)
        while low < high:
            middle = (low + high) // 2
            closer = self._ends(widths, middle)
            if len(closer) <= bins:
                high = middle
                ends = closer
            else:
                low = middle + 1
        return np.array(ends, np.int64)


def _halved(widths: I64, parts: I64, bins: int) -> I64:
    """Halve the largest bins of several rows until there are `bins`, or no such bin."""
    heap = _by_tokens(widths, parts)
    heapify(heap)
    while len(heap) < bins and heap[0][0] < 0:
        _, begin, end = heappop(heap)
        middle = (begin + end + 1) // 2
        halves = np.array([(begin, middle), (middle, end)], np.int64)
        for half in _by_tokens(widths, halves):
            heappush(heap, half)
    return np.array(sorted((begin, end) for _, begin, end in heap), np.int64)


def _by_tokens(widths: I64, parts: I64) -> list[tuple[int, int, int]]:
    """Return bins behind their negative rows times width, which is 0 for those of one row."""
    rows = parts[:, 1] - parts[:, 0]
    tokens = np.where(rows > 1, rows * widths[parts[:, 0]], 0)
    return list(zip((-tokens).tolist(), *parts.T.tolist(), strict=True))
