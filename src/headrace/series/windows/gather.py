"""Windows out of matrices: one gather a batch, whatever the number of matrices.

A window of W rows of a row-major matrix is one stretch of memory. So a view that has at every number the stretch of
memory from this number on has windows as its rows, and a batch of windows is one index into it: about a memory copy.
The view begins at the matrix with the lowest address and reaches over all of them, and over what may lie between; only
rows of matrices are ever asked for. Measured against torch's `index_select` on such a view, numpy's index is as fast.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.arrays import F32, I64


class Matrices:
    """Row-major matrices [rows, C] float32 end to end, whose rows are numbered through.

    bases: the first row of each, and the end; int64 [matrices + 1].
    """

    def __init__(self, matrices: Sequence[F32], bases: I64) -> None:
        self.matrices, self.bases = [each for each in matrices if each.size], bases
        self.bases = np.concatenate([[0], np.cumsum([len(each) for each in self.matrices])]).astype(np.int64)
        assert self.bases[-1] == bases[-1]
        assert all(each.flags.c_contiguous and each.dtype == np.float32 for each in self.matrices)
        self.columns = matrices[0].shape[1] if len(matrices) else 0
        addresses = np.array([each.ctypes.data for each in self.matrices], np.int64)
        self._lowest = int(np.argmin(addresses)) if len(addresses) else 0
        self._offset = (addresses - addresses.min(initial=np.iinfo(np.int64).max)) // 4 - self.bases[:-1] * self.columns
        self._views: dict[int, F32] = {}
        self._extent = int((self._offset + self.bases[1:] * self.columns).max(initial=0))

    @property
    def rows(self) -> int:
        """All rows."""
        return int(self.bases[-1])

    def offsets(self, starts: I64) -> I64:
        """Where in memory these rows begin, in values from the first of the view: int64, same length."""
        if len(self.matrices) == 1:
            return starts * self.columns
        offsets: I64 = starts * self.columns + self._offset[np.searchsorted(self.bases, starts, side="right") - 1]
        return offsets

    def windows(self, offsets: I64, window_rows: int) -> F32:
        """The W rows from each of these offsets on, as a new array [B, W, C]. No window crosses two matrices."""
        if not len(offsets):
            return np.empty((0, window_rows, self.columns), np.float32)
        return self._view(window_rows)[offsets].reshape(-1, window_rows, self.columns)

    def copy_rows(self, begins: I64, ends: I64) -> F32:
        """The rows of these stretches end to end, in memory of their own: [sum, C]. Each is in one matrix."""
        out = np.empty((int((ends - begins).sum()), self.columns), np.float32)
        at = 0
        numbers = np.searchsorted(self.bases, begins, side="right") - 1
        for begin, end, number in zip(begins.tolist(), ends.tolist(), numbers.tolist(), strict=True):
            if begin < end:
                base = int(self.bases[number])
                out[at : at + end - begin] = self.matrices[number][begin - base : end - base]
                at += end - begin
        return out

    def _view(self, window_rows: int) -> F32:
        """At every number the W rows of memory that begin there."""
        if window_rows not in self._views:
            width = window_rows * self.columns
            self._views[window_rows] = np.lib.stride_tricks.as_strided(
                self.matrices[self._lowest].reshape(-1), (self._extent - width + 1, width), (4, 4), writeable=False
            )
        return self._views[window_rows]
