"""A dataset with the rows that match a filter only: `Dataset.filter` gives one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from headrace.dataset.condition import Filter, condition_of
from headrace.dataset.file_cache import FileCache
from headrace.dataset.filtered import FilteredSplit, FilterReport, filter_split
from headrace.dataset.index import Index, SplitIndex
from headrace.dataset.indexed import IndexedDataset, ReadBlock, Verify
from headrace.digest import canonical_json, sha256_hex
from headrace.errors import SettingsError


class FilteredRows(IndexedDataset):
    """The matching rows of another dataset. Rows of a split are counted when the split is first asked for."""

    def __init__(self, source: IndexedDataset, asked: Filter, *, cache_dir: Path) -> None:
        super().__init__(source.root)
        self._source = source
        self._cache_dir = cache_dir
        self._found: dict[str, FilteredSplit] = {}
        self.condition = condition_of(asked, source.schema)

    def __str__(self) -> str:
        counted = [f"{name} {_said(each.report)}" for name, each in self._found.items()]
        return f"rows where {self.condition}" + "".join(f"; {each}" for each in counted)

    @property
    def index(self) -> Index:
        """All blocks, before the filter."""
        return self._source.index

    @property
    def contents(self) -> str:
        """A word that changes whenever the rows may."""
        return sha256_hex(canonical_json([self._source.contents, self.condition.digest]))

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits."""
        return self._source.splits

    @property
    def split_rows(self) -> Mapping[str, int]:
        """Matching rows of each split."""
        return {name: self.report(name).rows for name in self.splits}

    def report(self, split: str | None = None) -> FilterReport:
        """What the filter leaves of a split, and how many blocks it spares."""
        return self._of(split).report

    def split_index(self, split: str | None = None) -> SplitIndex:
        """The blocks of a split that hold matching rows."""
        return self._of(split).index

    def block_reader(
        self, split: str | None = None, *, verify: Verify = "first_touch", files: FileCache | None = None
    ) -> ReadBlock:
        """A function (block number in `split_index`, columns or None) → the matching rows of that block."""
        return self._of(split).read_block.over(self._source.block_reader(split, verify=verify, files=files))

    def _of(self, split: str | None) -> FilteredSplit:
        index = self._source.split_index(split)
        if index.split not in self._found:
            try:
                contents: str | None = self._source.contents
            except SettingsError:  # it has none: count each time
                contents = None
            self._found[index.split] = filter_split(
                self.root,
                index,
                self._source.block_reader(split),
                self.condition,
                contents=contents,
                cache_dir=self._cache_dir,
            )
        return self._found[index.split]


def _said(report: FilterReport) -> str:
    return (
        f"{report.rows:,} of {report.total_rows:,} rows, {report.ruled_out:,} of {report.blocks:,} blocks ruled out by"
        " statistics"
    )
