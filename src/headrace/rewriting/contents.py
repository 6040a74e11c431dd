"""Compare the rows of a rewrite, and choose those to drop: rows in a benchmark, and later copies.

If rows may be dropped, all rows are read once more before any is written. If they are only counted, they are digested
as they are written, and one range of digests is compared at a time. If copies are dropped, digests of all rows are
compared in memory, at 32 bytes per row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.arrays import I64, U64, Bools
from headrace.dataset.contents import names_told, repeats_told, roles_of
from headrace.dataset.indexed import IndexedDataset
from headrace.dataset.open import FinishedRun
from headrace.errors import InputError, SettingsError
from headrace.formats.content import NOTHING, Repeated, content_columns, row_digests, tagged
from headrace.recipe import registration_of_run
from headrace.rewriting.settings import Rewrite
from headrace.run.context import STAGE_DIRECTORY, TaskFiles, read_arrow
from headrace.run.repeats import keep_words
from headrace.stream.audit.exclude import IN_BENCHMARK
from headrace.stream.audit.overlap import Benchmarks, texts_of

REASONS = (IN_BENCHMARK, "duplicate")
_MOST_SPLITS = 4  # limit of the split numbers in digests


@dataclass(frozen=True)
class Kept:
    """The rows of a piece to leave out. copies, in_benchmark: their numbers, ascending int64."""

    copies: I64
    in_benchmark: I64

    def mask(self, rows: int) -> Bools:
        """Return a mask of the rows that stay."""
        stays = np.ones(rows, np.bool_)
        stays[self.copies] = stays[self.in_benchmark] = False
        return stays


def compared_columns(settings: Rewrite, source: IndexedDataset, names: Sequence[str], *, bins: bool) -> tuple[str, ...]:
    """Return the columns that make the content of a row; none if rows are not compared.

    These are the columns in `content`, else those that the source's own run compared, else all without a role in the
    source.
    names: columns of the output.
    Raises `SettingsError` for columns that do not exist, and if duplicates are to be dropped but the rows cannot be
    compared: packed bins, rows of a recipe that compares them itself, only columns with a role, or too many splits.
    """
    if settings.duplicates == "allow":
        return ()
    if unknown := [name for name in settings.content if name not in names]:
        raise SettingsError(f"content names {unknown}, which the output does not have; it has {', '.join(names)}")
    manifest = source.manifest if isinstance(source, FinishedRun) else None
    more = None if manifest is None else registration_of_run(manifest.recipe).contents
    why = None
    if settings.content:
        found = settings.content
    elif bins or more is not None:
        what = "packed bins, which hold many sequences each" if bins else "of a recipe that compares them itself"
        found, why = (), f"the rows are {what}; give duplicates to the run that made them, or name columns in content="
    else:
        own = None if manifest is None else manifest.facts.get("duplicates")
        said = own.get("content") if isinstance(own, dict) else None
        roles = roles_of(source)
        left_out = {roles.get("time"), roles.get("entity"), roles.get("label"), *roles.get("targets", ())}
        found = tuple(name for name in said or content_columns(names, left_out) if name in names)
        why = None if found else "all columns of the output have a role; name those to compare with content="
    if found and len(source.splits) > _MOST_SPLITS:
        found, why = (), f"the source has {len(source.splits)} splits, and {_MOST_SPLITS} can be compared"
    if why is not None and settings.duplicates == "drop":
        raise SettingsError(f"duplicates is 'drop', and {why}")
    return found


def known_repeats(source: IndexedDataset, splits: Sequence[str], compared: Sequence[str]) -> Repeated | None:
    """Return the repeats that a prepared source counted by the same columns; None if it did not.

    splits: of the source, in their usual order. `verify` counts again in what was written.
    """
    if not isinstance(source, FinishedRun) or registration_of_run(source.manifest.recipe).contents is not None:
        return None
    said = source.manifest.facts.get("duplicates")
    if not isinstance(said, dict) or list(compared) != said.get("content"):
        return None
    earlier, own = said["in_earlier_split"], said["repeated"]
    if (set(earlier), set(own)) != (set(splits[1:]), set(splits)):
        return None
    return Repeated({name: earlier[name] for name in splits[1:]}, {name: own[name] for name in splits})


def compare(
    files: TaskFiles, number: int, tables: Iterator[pa.Table], compared: Sequence[str], benchmarks: Benchmarks | None
) -> dict[str, Any]:
    """Write a digest of each row of a piece, and whether a benchmark has it. tables: its rows, block by block."""
    excluded: Counter[str] = Counter()
    digests, holds, rows = [np.empty(0, np.uint64)], [np.empty(0, np.bool_)], 0
    for table in tables:
        rows += len(table)
        if compared:
            digests.append(row_digests(table.select(list(compared))))
        if benchmarks is not None:
            holds.append(benchmarks.mask(texts_of(table), len(table), excluded))
    columns: dict[str, Any] = {"content": np.concatenate(digests)} if compared else {}
    columns |= {} if benchmarks is None else {"holds": pa.array(np.concatenate(holds))}
    files.write_arrow(_file(number), pa.table(columns))
    names = () if benchmarks is None else benchmarks.digests
    return {"rows_read": rows, "excluded": {name: excluded[name] for name in names}}


def _file(number: int) -> str:
    return f"{STAGE_DIRECTORY}/compare-{number:05d}.arrow"


def decide(run: Path, rows: Sequence[int], splits: Sequence[int], *, drop: bool) -> list[Kept]:
    """Choose the rows to drop from the files of `compare`; of each content the first row stays, split by split.

    rows, splits: of each piece, the number of its rows and the index of its split.
    """
    tables = [read_arrow(run / _file(number)) for number in range(len(rows))]
    holds = [
        table["holds"].to_numpy() if "holds" in table.column_names else np.zeros(count, np.bool_)
        for table, count in zip(tables, rows, strict=True)
    ]
    copies = np.zeros(sum(rows), np.bool_)
    if drop:
        digests = np.concatenate([np.empty(0, np.uint64), *(table["content"].to_numpy() for table in tables)])
        held = np.flatnonzero((digests != NOTHING) & ~np.concatenate(holds))
        held = held[np.argsort(np.repeat(splits, rows)[held], kind="stable")]
        copies[held] = True
        copies[held[np.unique(digests[held], return_index=True)[1]]] = False
    parts = np.split(copies, np.cumsum(rows)[:-1])
    return [Kept(np.flatnonzero(copy), np.flatnonzero(own)) for copy, own in zip(parts, holds, strict=True)]


def counted_file(number: int) -> str:
    """Return the path of the digests of a piece's kept rows, each with its split, relative to the run."""
    return f"{STAGE_DIRECTORY}/rewrite-{number:05d}.content.arrow"


def keep_digests(files: TaskFiles, number: int, digests: Sequence[U64], split: int) -> None:
    """Write the digests of the rows of a piece that were written, with the number of their split."""
    keep_words(files, counted_file(number), tagged(np.concatenate([np.empty(0, np.uint64), *digests]), split))


def told(found: Repeated, rows: Mapping[str, int], compared: Sequence[str]) -> Iterator[str]:
    """Yield a warning if splits repeat content of earlier ones."""
    if (sentence := repeats_told(found.earlier, rows)) is not None:
        yield (
            f"{sentence}, compared by {names_told(compared)}; set content= to the columns that count, or choose "
            f'duplicates="drop"'
        )


def check_left(kept: Sequence[Kept], rows: Sequence[int]) -> None:
    """Raise `InputError` if all rows are dropped."""
    if sum(len(each.copies) + len(each.in_benchmark) for each in kept) == sum(rows):
        raise InputError(f"all {sum(rows):,} rows hold items of the benchmarks in exclude; there is nothing to rewrite")
