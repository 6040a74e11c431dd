"""Compare the rows of a dataset's splits by their content: choose columns, count repeats, report
them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.arrays import I64, U64, concatenated
from headrace.dataset.distinguishing import Distinguishing
from headrace.dataset.indexed import IndexedDataset
from headrace.dataset.manifest import CONFIG, in_usual_order, read_config
from headrace.dataset.open import FinishedRun
from headrace.dataset.verify import Check
from headrace.engine.local import run_tasks
from headrace.errors import CorruptShard
from headrace.formats.column_paths import has_column, known_columns
from headrace.formats.content import NOTHING, Repeated, among, count_sorted, row_digests, tagged
from headrace.formats.dialect import dialect_of
from headrace.gate.json import interpreting
from headrace.recipe import recipe_of_run
from headrace.settings import Duplicates

_SHARE = 0.001  # share of a split; more repeats are worth a warning


def roles_of(dataset: IndexedDataset) -> dict[str, Any]:
    """Return the columns with a role in a prepared run, the settings to read its times, and its
    cutoff.
    """
    manifest = getattr(dataset, "manifest", None)
    if manifest is None:
        return {}
    settings = read_config(dataset.root, manifest)
    named = {name: settings.get(name) for name in ("time", "entity", "label")}
    with interpreting(dataset.root / CONFIG):
        dialect = dialect_of(settings.get("dialect") or {})
        named["time_format"] = next(iter(dialect.time_format), None)
        roles: dict[str, Any] = {
            "targets": tuple(settings.get("targets") or ()),
            "null_values": dialect.null_values,
            "label_horizon": settings.get("label_horizon"),
            "cutoff_us": manifest.metadata.get("cutoff_us"),
            "known_at": tuple(settings.get("known_at") or ()),
        }
        named |= recipe_of_run(manifest.recipe).roles(settings)
    schema = dataset.schema
    for role, name in named.items():
        # Settings name columns of the source, which packed rows no longer have.
        if isinstance(name, str) and (role == "time_format" or has_column(schema, name)):
            roles[role] = name
        if isinstance(name, list) and role == "time" and known_columns(schema, name) == name:
            roles[role] = tuple(name)
    return roles


def map_blocks(
    dataset: IndexedDataset,
    split: str,
    workers: int,
    columns: Sequence[str] | None,
    work: Callable[[pa.Table], Any],
    blocks: Sequence[int] | None = None,
) -> list[Any]:
    """Apply a function to the table of each block of a split, in threads; results are in the order
    of blocks.
    """
    read = dataset.block_reader(split)
    if blocks is None:
        blocks = range(len(dataset.split_index(split).rows))

    def applied(block: int) -> Any:
        table = read(block, None if columns is None else list(columns))
        try:
            return work(table)
        except CorruptShard as error:
            index = dataset.split_index(split)
            shard = index.shards[int(index.shard_of_block[block])]
            raise error.at(path=dataset.root / shard) from None

    return run_tasks([partial(applied, block) for block in blocks], workers)


def split_digests(
    dataset: IndexedDataset,
    split: str,
    workers: int,
    compared: Sequence[str],
) -> U64:
    """Digest all rows of a split, in the order of the index. compared: the columns to read."""
    return concatenated(map_blocks(dataset, split, workers, compared, row_digests), np.uint64)


class StoredDigests:
    """Digests of the rows of splits, kept in a temporary file until their repeats are counted.

    The file takes 8 bytes a row; memory does not grow with the rows. Several threads may add
    digests at the same time.
    """

    def __init__(self, splits: Sequence[str]) -> None:
        self._splits, self._sizes, self._lock = list(splits), [0], Lock()

    def __enter__(self) -> StoredDigests:
        self._file = tempfile.TemporaryFile(prefix="headrace-digests-")
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def keep(self, split: str, digests: U64) -> None:
        """Add the digests of some rows of a split, in any order."""
        words = tagged(digests, self._splits.index(split))
        words.sort()
        with self._lock:
            self._file.write(words.data)
            self._sizes.append(len(words))

    def keep_split(
        self, run: IndexedDataset, split: str, workers: int, compared: Sequence[str], gone: I64
    ) -> None:
        """Add digests of a split's rows except the numbers in `gone`, ascending.

        compared: the columns to read.
        """
        index = run.split_index(split)
        read = run.block_reader(split)

        def digested(block: int) -> None:
            digests = row_digests(read(block, list(compared)))
            first = int(index.first_row[block])
            here = slice(*np.searchsorted(gone, (first, first + len(digests))))
            self.keep(split, np.delete(digests, gone[here] - first))

        run_tasks([partial(digested, block) for block in range(len(index.rows))], workers)

    def count(self) -> Repeated:
        """Count the repeats among all kept digests."""
        self._file.flush()
        ends = np.cumsum(self._sizes)
        words = np.empty(0, np.uint64)
        if ends[-1]:
            words = np.memmap(self._file, np.uint64, "r")
        return count_sorted(
            [words[first:stop] for first, stop in pairwise(ends.tolist())], self._splits
        )


def repeats_without(
    run: FinishedRun, gone: Mapping[str, I64], workers: int
) -> dict[str, dict[str, int]]:
    """Count the repeats of a run, as in its manifest, without some rows of each split, given by
    number.
    """
    stored = run.manifest.metadata["duplicates"]
    with StoredDigests(in_usual_order(run.splits)) as digests:
        for split in in_usual_order(run.splits):
            digests.keep_split(run, split, workers, stored["content"], np.unique(gone[split]))
        repeats = digests.count()
    return {"in_earlier_split": dict(repeats.earlier), "repeated": dict(repeats.same_split)}


def repeats_warning(
    repeats: Mapping[str, int],
    rows: Mapping[str, int],
    unit: str = "rows",
    verb: str = "repeat the content of",
) -> str | None:
    """Return a warning about splits that repeat earlier ones, if the share is large.

    repeats: repeats by split.
    """
    parts = []
    for split, count in repeats.items():
        if count > _SHARE * rows[split]:
            percent = f"{100 * count / rows[split]:.1f} % of the {split} {unit}"
            parts.append(f"{percent} ({count:,} of {rows[split]:,})")
    if parts:
        return f"{' and '.join(parts)} {verb} an earlier split"
    return None


def columns_in_words(names: Sequence[str]) -> str:
    """List the compared columns for a message."""
    return ", ".join(names[:8]) + (
        f" and {len(names) - 8:,} more columns" if len(names) > 8 else ""
    )


def comparison_in_words(run: FinishedRun, stored: Mapping[str, Any], unit: str = "rows") -> str:
    """Say by which columns a run's content was compared, of how many rows, and which it left
    out.
    """
    if "content" not in stored:
        return ""
    message = f", compared by {columns_in_words(stored['content'])}"
    if unit == "rows":
        rows = sum(totals.rows for totals in run.manifest.splits.values())
        message = f", of {rows:,} rows{message}"
    left_out = Distinguishing.recorded(stored).left_out
    if left_out:
        message += f"; not by {columns_in_words(left_out)}, which distinguishes every row"
    return message


def content_check(
    run: FinishedRun,
    policy: Duplicates,
    stored: Mapping[str, Any],
    repeats: Repeated,
    content: Callable[[], Mapping[str, U64]],
    unit: str = "rows",
) -> Check:
    """Judge repeats that were counted again: "group" allows no content in two splits, "drop" no
    repeats at all.

    stored: the manifest's counts. content: reads the digests of the rows of each split, in the
    order of the index, to name the first wrong row. unit: what is compared, such as rows.
    """
    earlier = sum(repeats.earlier.values())
    repeated = sum(repeats.same_split.values())
    problem = None
    if policy == "count":
        name = "content counted"
        detail = f"{earlier:,} {unit} have the content of an earlier split"
    else:
        name = "content apart"
        detail = "no content is in two splits"
        if policy == "drop":
            detail = "no content appears twice"
    detail += comparison_in_words(run, stored, unit)
    if policy != "count" and (earlier or (repeated and policy == "drop")):
        problem = first_repeat(run, content(), once=policy == "drop")
    if problem is None and (dict(repeats.earlier), dict(repeats.same_split)) != (
        stored["in_earlier_split"],
        stored["repeated"],
    ):
        problem = (
            f"{run.root}: {earlier:,} {unit} have the content of an earlier split and"
            f" {repeated:,} of an earlier one of their own, which is not what the manifest counts;"
            " prepare the run again"
        )
    return Check(name, detail, problem, "count" if policy == "count" else "law")


def first_repeat(run: FinishedRun, content: Mapping[str, U64], *, once: bool) -> str:
    """Name the first row whose content is in an earlier split, or with `once` in any
    earlier row.
    """
    known = np.empty(0, np.uint64)
    for split, digests in content.items():
        repeats = (digests != NOTHING) & among(digests, known)
        if once:
            later = np.ones(len(digests), np.bool_)
            later[np.unique(digests, return_index=True)[1]] = False
            repeats |= later & (digests != NOTHING)
        if repeats.any():
            row = int(np.flatnonzero(repeats)[0])
            for other, digests_of_split in content.items():
                same = np.flatnonzero(digests_of_split == digests[row])
                if len(same):
                    where = place_of_row(run, other, int(same[0]))
                    return f"{place_of_row(run, split, row)}: its content is that of {where}"
        known = np.unique(np.concatenate([known, digests]))
    raise AssertionError("repeats were counted")


def place_of_row(run: FinishedRun, split: str, row: int) -> str:
    """Name a row of a split by its shard and its number there, from 1."""
    index = run.split_index(split)
    block = int(np.searchsorted(index.first_row, row, side="right")) - 1
    shard = int(index.shard_of_block[block])
    first = int(index.first_row[np.argmax(index.shard_of_block == shard)])
    return f"{run.root / index.shards[shard]}: row {row - first + 1}"
