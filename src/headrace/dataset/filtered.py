"""Filter the rows of a split into a split of their own, with exact counts and a reader.

Blocks that statistics rule out (Parquet, lists of terms) are neither counted nor read; for blocks
that match entirely the count is known. The others are counted by reading only the filter's columns,
in threads, and the counts are kept in the cache directory. Everything that follows from an index –
plans, equal steps, resuming – then holds for the matching rows. `FilteredRows` is a dataset with
such splits; `Dataset.filter` returns one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from headrace.arrays import I64
from headrace.dataset.condition import Condition, Filter, Holds, Range, condition_of
from headrace.dataset.index import Index, SplitIndex
from headrace.dataset.indexed import IndexedDataset, ReadBlock, Verify, check_rows
from headrace.dataset.local_shards import FileCache
from headrace.digest import canonical_json, sha256_hex
from headrace.engine.local import default_workers, run_tasks
from headrace.errors import HeadraceError, SettingsError
from headrace.formats.column_paths import ColumnPath, column_path
from headrace.formats.decoders import Decoder
from headrace.formats.parquet import footer_of
from headrace.formats.shard import column_name
from headrace.formats.source import file_type_of_word
from headrace.gate.cache_entry import identity_of, keep_entry, read_entry
from headrace.gate.json import parse_object

_VERSION = 3


@dataclass(frozen=True, kw_only=True)
class FilterReport:
    """Counts of a filter's effect on a split: `rows` of `total_rows` match.

    blocks: those of the split; ruled_out: by statistics, never read; ruled_in: match entirely by
    statistics; counted: by reading the filter's columns (now or when the counts were kept); empty:
    counted blocks without a matching row.
    """

    rows: int
    total_rows: int
    blocks: int
    ruled_out: int
    ruled_in: int
    counted: int
    empty: int


def _read_matching(
    read_block: ReadBlock,
    blocks: I64,
    condition: Condition,
    names: Sequence[str],
    number: int,
    columns: Sequence[str] | None,
) -> pa.Table:
    """Return the matching rows of a block.

    blocks: the number in `read_block` of each block; names: of all columns.
    """
    selected = list(names if columns is None else columns)
    more = [name for name in condition.columns if name not in selected]
    return condition.matching(read_block(int(blocks[number]), [*selected, *more])).select(selected)


class _CountsFile(NamedTuple):
    """A file in the cache, and what it must be."""

    path: Path
    identity: bytes


def _counts(
    root: Path,
    index: SplitIndex,
    read_block: ReadBlock,
    condition: Condition,
    stored: _CountsFile | None,
) -> tuple[I64, list[Holds]]:
    """Count the matching rows of every block; also return what statistics decided about it.

    stored: the file of both.
    """
    # a missing or damaged file is written again
    with suppress(OSError, ValueError, KeyError, TypeError, OverflowError):
        record = {}
        if stored is not None:
            record = parse_object(read_entry(*stored))
        if len(record["counts"]) == len(record["held"]) == len(index.rows):
            return np.array(record["counts"], np.int64), record["held"]

    def count(block: int) -> int:
        table = read_block(block, condition.columns or index.schema.names[:1])
        check_rows(table, index, block, root)
        return int(condition.matching(table).num_rows)

    judging = [partial(_judge, root, index, shard, condition) for shard in range(len(index.shards))]
    matching: list[Holds] = ["some"] * len(index.rows)
    for judged in run_tasks(judging, default_workers()):
        for block, holds in judged.items():
            matching[block] = holds
    unknown = [block for block, holds in enumerate(matching) if holds == "some"]
    counts = np.where(np.array(matching, dtype=object) == "all", index.rows, 0).astype(np.int64)
    counts[unknown] = run_tasks([partial(count, block) for block in unknown], default_workers())
    if stored is not None:
        content = canonical_json({"counts": counts.tolist(), "held": matching})
        keep_entry(stored.path, content, stored.identity)
    return counts, matching


def _judge(root: Path, index: SplitIndex, shard: int, condition: Condition) -> dict[int, Holds]:
    """Judge a Parquet shard's blocks by its footer: statistics of columns whose type is the
    dataset's.
    """
    file_type = file_type_of_word(index.formats[shard])
    blocks = []
    if condition.clauses:
        blocks = np.flatnonzero(index.shard_of_block == shard).tolist()
    if not blocks or file_type.format.name != "parquet":
        return {}
    try:
        footer = footer_of(root / index.shards[shard], file_type)
    except (OSError, pa.ArrowException, HeadraceError):
        return {}  # reading the block raises with the reason
    if index.block[blocks].max() >= footer.metadata.num_row_groups:
        return {}
    ranges_of = _paths_in_file(condition, footer.schema)
    judged = {}
    for block in blocks:
        row_group = footer.metadata.row_group(int(index.block[block]))
        ranges = {}
        columns = [row_group.column(number) for number in range(row_group.num_columns)]
        uses = Counter(column.path_in_schema for column in columns)
        for column in columns:
            path = ranges_of.get(column.path_in_schema)
            known = column.statistics if path is not None else None
            if path is None or known is None or not known.has_min_max:
                continue
            if uses[column.path_in_schema] == 1:  # else a name with dots reads as another's path
                # bounds truncated inside a character
                with suppress(UnicodeDecodeError, pa.ArrowException):
                    ranges[path.name] = Range(
                        type=path.type, low=known.min, high=known.max, nullable=path.nullable
                    )
        judged[block] = condition.holds_in(ranges)
    return judged


def _paths_in_file(condition: Condition, file_schema: pa.Schema) -> dict[str, ColumnPath]:
    """Find the terms' columns among those of a Parquet file, by the file's paths, if their types
    are those of the dataset.
    """
    raw = {column_name(name): name for name in file_schema.names}
    named = pa.schema([field.with_name(column_name(field.name)) for field in file_schema])
    paths: dict[str, ColumnPath] = {}
    for clause in [clause for group in condition.clauses for clause in group]:
        path = column_path(named, clause.path.name)
        requested = clause.path
        if path is None or (path.column, path.fields) != (requested.column, requested.fields):
            continue
        if path.type == requested.type:
            paths[".".join([raw[path.column], *path.fields])] = path
    return paths


class FilteredRows(IndexedDataset):
    """The matching rows of another dataset.

    Rows of a split are counted on first access to the split.
    """

    def __init__(self, source: IndexedDataset, condition: Filter, *, cache_dir: Path) -> None:
        super().__init__(source.root)
        self._source = source
        self._cache_dir = cache_dir
        self._filtered_indexes: dict[str, tuple[SplitIndex, I64, FilterReport]] = {}
        self.condition = condition_of(condition, source.schema)

    def __str__(self) -> str:
        counted = []
        for name, (_, _, report) in self._filtered_indexes.items():
            counted.append(
                f"; {name} {report.rows:,} of {report.total_rows:,} rows, {report.ruled_out:,} of"
                f" {report.blocks:,} blocks ruled out by statistics"
            )
        return f"rows where {self.condition}{''.join(counted)}"

    @property
    def index(self) -> Index:
        """All blocks, before the filter."""
        return self._source.index

    @property
    def contents(self) -> str:
        """A digest that changes whenever the rows may."""
        return sha256_hex(canonical_json([self._source.contents, self.condition.digest]))

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits."""
        return self._source.splits

    @property
    def split_rows(self) -> Mapping[str, int]:
        """The number of matching rows of each split."""
        return {name: self.report(name).rows for name in self.splits}

    def report(self, split: str | None = None) -> FilterReport:
        """Count the rows that match in a split, and the blocks that need no reading."""
        return self._of(split)[2]

    def split_index(self, split: str | None = None) -> SplitIndex:
        """Return the blocks of a split that hold matching rows, renumbered."""
        return self._of(split)[0]

    def block_reader(
        self,
        split: str | None = None,
        *,
        verify: Verify = "first_touch",
        files: FileCache | None = None,
        decoder: Decoder = "auto",
    ) -> ReadBlock:
        """Return a function (block number in `split_index`, columns or None) → the matching rows of
        that block.

        It is thread-safe, and picklable if the source's is.
        """
        index, blocks, _ = self._of(split)
        reader = self._source.block_reader(split, verify=verify, files=files, decoder=decoder)
        return partial(_read_matching, reader, blocks, self.condition, index.schema.names)

    def _of(self, split: str | None) -> tuple[SplitIndex, I64, FilterReport]:
        """Return the blocks of a split that hold matching rows, their numbers in the source, and
        the report.
        """
        index = self._source.split_index(split)
        if index.split not in self._filtered_indexes:
            stored = None
            # a source without a digest of its contents is counted each time
            with suppress(SettingsError):
                identity = identity_of(
                    "filter",
                    _VERSION,
                    self._source.contents,
                    index.identity,
                    self.condition.digest,
                )
                stored = _CountsFile(self._cache_dir / f"filter-{identity.hex()}.json", identity)
            counts, matching = _counts(
                self.root, index, self._source.block_reader(split), self.condition, stored
            )
            blocks = np.flatnonzero(counts)
            left = {}
            for name in ("shard_of_block", "block", "offset", "length"):
                left[name] = getattr(index, name)[blocks]
            report = FilterReport(
                rows=int(counts.sum()),
                total_rows=index.total_rows,
                blocks=len(counts),
                ruled_out=matching.count("none"),
                ruled_in=matching.count("all"),
                counted=matching.count("some"),
                empty=sum(
                    not count and match == "some"
                    for count, match in zip(counts.tolist(), matching, strict=True)
                ),
            )
            filtered = replace(index, rows=counts[blocks], condition=self.condition.digest, **left)
            self._filtered_indexes[index.split] = filtered, blocks, report
        return self._filtered_indexes[index.split]
