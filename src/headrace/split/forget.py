"""Update the facts of a temporal split after rows of some entities are erased."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.arrays import I64
from headrace.dataset.contents import repeats_without
from headrace.dataset.open import FinishedRun
from headrace.run.erase import Erased, Erasure
from headrace.split.cutoff import DateBins
from headrace.split.shards import settings_of, times_of


def _keys(run: FinishedRun) -> tuple[Sequence[str], Callable[[pa.Table], I64]]:
    """Return the dates of rows in microseconds, on the clock of the index."""
    settings = settings_of(run)
    return [settings.time], lambda table: times_of(run, settings, table)[1]


def _count(run: FinishedRun, keys: I64) -> I64:
    """Count rows in the manifest's time bins; a run of an older version has none."""
    bins = DateBins.recorded(run.manifest.facts.get("dates"))
    return np.zeros(0, np.int64) if bins is None else bins.counts(keys)


def _facts(run: FinishedRun, erased: Erased, counts: Mapping[str, I64], workers: int) -> dict[str, Any]:
    """Subtract erased rows from counts by date and erased entities from those of splits; recount repeated content.

    Names of erased entities that look like missing values are left out.
    """
    facts = run.manifest.facts
    changed: dict[str, Any] = {}
    if "dates" in facts:
        rows = {split: (np.array(own) - counts[split]).tolist() for split, own in facts["dates"]["rows"].items()}
        changed["dates"] = {**facts["dates"], "rows": rows}
    like = facts.get("missing_like", {})
    if "entity" in like:
        names = {name for own in erased.entities.values() for name in own}
        kept = {name: rows for name, rows in like["entity"].items() if name not in names}
        changed["missing_like"] = {**like, "entity": kept}
    if facts.get("duplicates") is not None:
        repeats: dict[str, Any] = repeats_without(run, erased.rows, workers)
        if "near" in facts["duplicates"]:  # near rows are not counted again
            repeats["near"] = {"not_compared": facts["duplicates"]["near"]["not_compared"]}
        changed["duplicates"] = {**facts["duplicates"], **repeats}
    if "folds" in facts:
        return changed
    train, val = set(erased.entities["train"]), set(erased.entities["val"])
    gone = {"train_entities": len(train), "val_entities": len(val), "entities_before_cutoff": len(train | val)}
    return {**changed, **{name: facts[name] - count for name, count in gone.items()}}


ERASURE = Erasure(keys=_keys, count=_count, facts=_facts)
