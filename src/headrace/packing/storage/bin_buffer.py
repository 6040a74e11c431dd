"""Bins that come one at a time, collected in flat arrays that grow and are used again."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.bins.rows import PackedRows


class BinBuffer:
    """Copies bins end to end. `rows` are views, valid until the next `clear`. Memory: the largest group it held."""

    def __init__(self) -> None:
        self._ids = np.empty(1 << 12, np.int32)
        self._mask = np.empty(1 << 12, np.uint8)
        self._starts = np.empty(1 << 8, np.int32)
        self._token_ends = [0]
        self._start_ends = [0]

    def __len__(self) -> int:
        return len(self._token_ends) - 1

    def add(self, ids: npt.NDArray[np.int32], mask: npt.NDArray[np.uint8], starts: npt.NDArray[np.int32]) -> None:
        """Copy one bin. The arrays may be used again by the caller."""
        token, start = self._token_ends[-1], self._start_ends[-1]
        self._ids = _with_room(self._ids, token, len(ids))
        self._mask = _with_room(self._mask, token, len(ids))
        self._starts = _with_room(self._starts, start, len(starts))
        self._ids[token : token + len(ids)] = ids
        self._mask[token : token + len(ids)] = mask
        self._starts[start : start + len(starts)] = starts
        self._token_ends.append(token + len(ids))
        self._start_ends.append(start + len(starts))

    def add_rows(self, rows: PackedRows) -> None:
        """Copy several bins."""
        token, start = self._token_ends[-1], self._start_ends[-1]
        self._ids = _with_room(self._ids, token, len(rows.ids))
        self._mask = _with_room(self._mask, token, len(rows.ids))
        self._starts = _with_room(self._starts, start, len(rows.starts))
        self._ids[token : token + len(rows.ids)] = rows.ids
        self._mask[token : token + len(rows.ids)] = rows.mask
        self._starts[start : start + len(rows.starts)] = rows.starts
        self._token_ends.extend((rows.token_offsets[1:] + token).tolist())
        self._start_ends.extend((rows.start_offsets[1:] + start).tolist())

    def rows(self) -> PackedRows:
        """All bins held, as views."""
        return PackedRows(
            self._ids[: self._token_ends[-1]],
            self._mask[: self._token_ends[-1]],
            self._starts[: self._start_ends[-1]],
            np.array(self._token_ends, np.int64),
            np.array(self._start_ends, np.int64),
        )

    def clear(self) -> None:
        """Forget the bins and keep the memory."""
        del self._token_ends[1:], self._start_ends[1:]


def _with_room(array: npt.NDArray[Any], used: int, more: int) -> npt.NDArray[Any]:
    if used + more <= len(array):
        return array
    grown = np.empty(max(used + more, 2 * len(array)), array.dtype)
    grown[:used] = array[:used]
    return grown
