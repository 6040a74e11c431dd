"""Update the facts of a split after rows of some entities are erased."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.arrays import I64
from headrace.dataset.contents import map_blocks, repeats_without
from headrace.dataset.open import FinishedRun
from headrace.dataset.vouched import tree_of
from headrace.run.erase import Erased, Erasure
from headrace.split.allocate import EntitySet, Hashes, hash_entities
from headrace.split.cutoff import DateBins
from headrace.split.earlier import (
    DIRECTORY,
    GONE,
    arrow_bytes,
    groups_of_earlier,
    hashes_of_rows,
    settings_of,
)
from headrace.split.verify import times_of


def _keys(run: FinishedRun) -> tuple[Sequence[str], Callable[[pa.Table], I64]]:
    """Return the dates of rows in microseconds, on the clock of the index."""
    settings = settings_of(run)
    return [*settings.time_columns], lambda table: times_of(run, settings, table)[1]


def _count(run: FinishedRun, keys: I64) -> I64:
    """Count rows in the manifest's time bins."""
    return DateBins.recorded(run.manifest.metadata["dates"]).counts(keys)


def _metadata(
    run: FinishedRun, erased: Erased, counts: Mapping[str, I64], workers: int
) -> dict[str, Any]:
    """Subtract erased rows from counts by date and erased entities from those of splits."""
    metadata = run.manifest.metadata
    changed = _recount_shared(run, erased, workers)
    dates = metadata["dates"]
    rows = {
        split: (np.array(bins) - counts[split]).tolist() for split, bins in dates["rows"].items()
    }
    changed["dates"] = {**dates, "rows": rows}
    if "folds" in metadata:
        return changed
    train = set(erased.entities["train"])
    val = set(erased.entities["val"])
    removed = {
        "train_entities": len(train),
        "val_entities": len(val),
        "entities_before_cutoff": len(train | val),
    }
    return {**changed, **{name: metadata[name] - count for name, count in removed.items()}}


def _recount_random(
    run: FinishedRun,
    erased: Erased,
    counts: Mapping[str, I64],  # noqa: ARG001 - as `Erasure.metadata`
    workers: int,
) -> dict[str, Any]:
    """Recount repeated content."""
    return _recount_shared(run, erased, workers)


def _recount_shared(run: FinishedRun, erased: Erased, workers: int) -> dict[str, Any]:
    """Recount repeated content, and leave out names of erased entities that look like missing
    values, and classes that only their rows had.
    """
    metadata = run.manifest.metadata
    changed: dict[str, Any] = {}
    missing_like = metadata["missing_like"]
    if "entity" in missing_like:
        remaining = dict(missing_like["entity"])
        for names in erased.entities.values():
            for name in names:
                remaining.pop(name, None)
        changed["missing_like"] = {**missing_like, "entity": remaining}
    if metadata["label_map"] is not None:
        changed["label_map"] = _remaining_classes(run, erased, workers)
    duplicates = metadata["duplicates"]
    if duplicates is not None:
        repeats: dict[str, Any] = repeats_without(run, erased.rows, workers)
        if "near" in duplicates:  # near rows are not counted again
            repeats["near"] = {"not_compared": duplicates["near"]["not_compared"]}
        changed["duplicates"] = {**duplicates, **repeats}
    return changed


def _files(run: FinishedRun, erased: Erased) -> dict[str, bytes | None]:
    """Leave out what a later run would only read of source shards, and from the groups of earlier
    runs those that lose their last rows: a hash with a known key can be tested against names.
    """
    names = [name for name in tree_of(run.root).files if name.startswith(f"{DIRECTORY}/")]
    files: dict[str, bytes | None] = dict.fromkeys(names)
    if GONE in files:
        remains = groups_of_earlier(run).without(_erased_groups(run, erased))
        files[GONE] = arrow_bytes(remains.table())
    return files


def _knows(run: FinishedRun, column: str, names: Sequence[str]) -> list[str]:
    """Return the entities that earlier runs had in a split, and whose shards are gone."""
    settings = settings_of(run)
    if column != settings.entity_column:
        return []
    hashes = hash_entities(pa.array(names, pa.large_string()), settings.seed)
    known = groups_of_earlier(run).hashes.index_of(hashes) >= 0
    return [name for name, is_known in zip(names, known.tolist(), strict=True) if is_known]


def _erased_groups(run: FinishedRun, erased: Erased) -> Hashes:
    """Hash the groups of the rows to erase. Those that keep other rows are known from these."""
    settings = settings_of(run)
    drawn = list(run.manifest.metadata.get("drawn", {}).get("columns", ()))
    columns = [*drawn, *filter(None, [settings.entity_column])]
    entities = EntitySet()
    entities.add(hash_entities(pa.array(erased.others, pa.large_string()), settings.seed))
    for split, rows in erased.rows.items():
        index = run.split_index(split)
        read = run.block_reader(split)
        block_of_row = np.searchsorted(index.first_row, rows, side="right") - 1
        for block in np.unique(block_of_row).tolist() if columns else ():
            within = rows[block_of_row == block] - index.first_row[block]
            table = read(block, list(dict.fromkeys(columns))).take(pa.array(within))
            entities.add(hashes_of_rows(settings, table, drawn))
    return entities.ordered()


def _remaining_classes(run: FinishedRun, erased: Erased, workers: int) -> dict[str, int]:
    """Return the map of classes without those of which only erased rows are; others keep their
    numbers.
    """
    label = str(settings_of(run).label)
    gone = {-1}
    remaining = {-1}
    for split in run.splits:
        blocks = map_blocks(
            run, split, workers, [label], lambda table: _class_numbers(table[label])
        )
        numbers = np.concatenate([np.empty(0, np.int64), *blocks])
        is_erased = np.zeros(len(numbers), np.bool_)
        is_erased[erased.rows[split]] = True
        gone.update(np.unique(numbers[is_erased]).tolist())
        remaining.update(np.unique(numbers[~is_erased]).tolist())
    classes: Mapping[str, int] = run.manifest.metadata["label_map"]
    return {text: number for text, number in classes.items() if number not in gone - remaining}


def _class_numbers(column: pa.ChunkedArray) -> I64:
    """Return the numbers of classes that a split wrote; texts in a run of CSV files."""
    return np.asarray(column.cast(pa.int64()).to_numpy(), np.int64)


ERASURE = Erasure(keys=_keys, count=_count, metadata=_metadata, knows=_knows, files=_files)
RANDOM_ERASURE = Erasure(metadata=_recount_random, knows=_knows, files=_files)
