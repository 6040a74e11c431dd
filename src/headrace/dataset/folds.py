"""Open a fold of a prepared run: for each split of the fold a list of the run's splits, called cells.

The rows of every cell were written once, in shards of their own. A fold joins the blocks of its cells into one index.
So opening a fold costs a pass over the index of the run, and whatever holds for a split holds for a split of a fold.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.dataset.index import Index, RunIndex, SplitIndex
from headrace.dataset.indexed import IndexedDataset
from headrace.dataset.manifest import FoldLists
from headrace.dataset.open import FinishedRun
from headrace.errors import SettingsError


class _FoldIndex(Index):
    def __init__(self, index: RunIndex, lists: FoldLists) -> None:
        super().__init__(index.schema, index.null_values)
        self._index, self._lists = index, lists

    def split(self, split: str) -> SplitIndex:
        """Return the blocks of all cells of one split, in natural order."""
        return self._index.joined(split, self._lists[split])


class Fold(IndexedDataset):
    """One fold of a finished run, read-only: the same shards as its other folds, in other splits."""

    def __init__(self, run: FinishedRun, number: int) -> None:
        super().__init__(run.root)
        found = run.manifest.folds
        if not found:
            raise SettingsError(f"{run.root}: was prepared as one split and has no folds; prepare it in folds")
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < len(found):
            raise SettingsError(f"{run.root}: has no fold {number!r}; it has 0 to {len(found) - 1}")
        self._run, self._lists = run, found[number]
        self.manifest = run.manifest.fold(number)
        self.number, self.folds = number, len(found)

    def __str__(self) -> str:
        rows = ", ".join(f"{name} {count:,}" for name, count in self.split_rows.items())
        return f"fold {self.number} of {self.folds}, {rows} rows"

    @property
    def index(self) -> Index:
        """The blocks of all splits of the fold."""
        return _FoldIndex(self._run.index, self._lists)

    @property
    def contents(self) -> str:
        """A digest that changes whenever the rows may."""
        return f"{self._run.contents} fold {self.number}"

    @property
    def split_rows(self) -> Mapping[str, int]:
        """The number of rows of each split."""
        return {split: totals.rows for split, totals in self.manifest.splits.items()}
