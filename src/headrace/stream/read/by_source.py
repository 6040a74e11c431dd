"""Count rows and tokens by the source of a blend, and average losses by it.

Each batch of a blend has `BLEND_SOURCE`: the number of each row's source, and -1 for rows that are
not valid. In packed batches it has an entry for each sequence, those of filling among them, so it
is parallel to the lengths of `cu_seqlens`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import I64
from headrace.errors import StreamError, setting
from headrace.stream.loader.options import BLEND_SOURCE, TOKENS, VALID
from headrace.stream.read.columns import Column, Columns
from headrace.stream.read.ragged import Ragged


class SourceCounts:
    """Rows and tokens by source in the batches of one pass, which are read ahead of the loop.

    delivered: how many batches the loop has; these are only added up. Pickled without counts.
    """

    def __init__(self, delivered: int = 0) -> None:
        self.delivered = delivered
        self._lock = Lock()
        self._total: I64 | None = None  # int64 [2, sources], of the batches below `_first`
        self._first = 0
        self._ahead: deque[I64] = deque()

    def __reduce__(self) -> tuple[type[SourceCounts], tuple[int]]:
        return SourceCounts, (self.delivered,)

    def restart(self, batch: int) -> None:
        """Forget batches from number `batch` on, because they are read again."""
        with self._lock:
            while self._ahead and self._first + len(self._ahead) > batch:
                self._ahead.pop()

    def add_columns(self, columns: Columns, batch_size: int, sources: int) -> None:
        """Add the next rows, which are whole batches. columns: as batches are made of them."""
        source = np.asarray(columns[BLEND_SOURCE])
        tokens = None
        if TOKENS in columns:
            tokens = _lengths(columns[TOKENS])
        if tokens is None:
            tokens = np.zeros(len(source), np.int64)
        for start in range(0, len(source), batch_size):
            part = slice(start, start + batch_size)
            self.add(source[part], tokens[part], sources)

    def add(self, source: I64, tokens: I64, sources: int) -> None:
        """Add the next batch: the source of each row and its tokens, int64 [rows]."""
        rows = np.bincount(source + 1, minlength=sources + 1)[1:]
        of_tokens = np.bincount(source + 1, tokens, minlength=sources + 1)[1:]
        counts = np.stack([rows, of_tokens.astype(np.int64)])
        with self._lock:
            self._ahead.append(counts)
            self._fold()

    def total(self) -> I64 | None:
        """Return rows and tokens of the delivered batches, int64 [2, sources]; None if this process
        read none.
        """
        with self._lock:
            self._fold()
            return self._total

    def _fold(self) -> None:
        while self._ahead and self._first < self.delivered:
            counts = self._ahead.popleft()
            self._first += 1
            self._total = counts if self._total is None else self._total + counts


def _lengths(column: Column) -> I64 | None:
    """Return the length of each list, int64 [rows]; None for a column that has no lists."""
    if isinstance(column, Ragged):
        return column.lengths
    if isinstance(column, np.ndarray):
        if column.ndim == 2:
            return np.full(len(column), column.shape[1], np.int64)
        return None
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        return np.asarray(pc.list_value_length(column).fill_null(0), np.int64)
    return None


def loss_by_source(
    losses: Any, batch: Mapping[str, Any], names: Sequence[str], *, mask: Any = None
) -> dict[str, float]:
    """Average losses by source over all ranks; see `StreamLoader.loss_by_source`."""
    import torch

    if BLEND_SOURCE not in batch:
        raise StreamError(
            "a batch lacks the source of its rows",
            column=BLEND_SOURCE,
            remedy="let the transform keep it, and stream a headrace.blend(...)",
        )
    losses = losses.detach()
    source = batch[BLEND_SOURCE].to(losses.device)
    counted = torch.ones(losses.shape, dtype=torch.bool, device=losses.device)
    if mask is None and "cu_seqlens" in batch:
        mask = batch["loss_mask"]
    if mask is not None:
        counted = mask.to(losses.device).reshape(losses.shape) != 0
    if "cu_seqlens" in batch:
        lengths = torch.diff(batch["cu_seqlens"].to(losses.device)).to(torch.int64)
        source = torch.repeat_interleave(source, lengths)
    elif losses.ndim > 1:
        source = source.reshape(-1, *[1] * (losses.ndim - 1)).expand(losses.shape)
    if source.numel() != losses.numel():
        raise StreamError(
            f"there are {losses.numel():,} losses, and the batch has {source.numel():,} places",
            value=tuple(losses.shape),
            remedy=(
                f"give a loss of each row, or of each token: {setting('reduction', 'none')} in"
                " torch's losses"
            ),
        )
    # sums and counts in one vector of fixed length: no rank waits for a source it did not see
    entry = torch.where(counted.reshape(-1), source.reshape(-1) + 1, 0)
    values = torch.where(entry > 0, losses.reshape(-1).to(torch.float64), 0)
    sums = torch.zeros(2, len(names) + 1, dtype=torch.float64, device=losses.device)
    sums[0].index_add_(0, entry, values)
    sums[1].index_add_(0, entry, torch.ones_like(values))
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.all_reduce(sums)
    means = (sums[0, 1:] / sums[1, 1:]).tolist()
    return dict(zip(names, means, strict=True))


def without_source(names: Sequence[str]) -> list[str]:
    """Return the names of columns that are the data's own."""
    return [name for name in names if name not in (VALID, BLEND_SOURCE)]
