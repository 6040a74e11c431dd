"""What a temporal split says of itself without the rows of some entities."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.arrays import I64
from headrace.dataset.open import FinishedRun
from headrace.formats.dates import parse_dates
from headrace.formats.text_columns import nulled
from headrace.run.forget import Erasure
from headrace.split.cutoff import DateBins
from headrace.split.settings import TemporalSplit
from headrace.split.shards import on_utc


def _keys(run: FinishedRun) -> tuple[Sequence[str], Callable[[pa.Table], I64]]:
    """The dates of rows in microseconds, on the clock of the index."""
    config = json.loads((run.root / "config.json").read_bytes())
    config.pop("recipe", None)
    settings = TemporalSplit(**config)
    mixed = run.manifest.facts["date_form"] == "iso_mixed"

    def keys(table: pa.Table) -> I64:
        dates = parse_dates(nulled(table[settings.time], ("", *settings.null_values)), settings.time_format)
        return on_utc(dates.micros, ~dates.instant, settings.timezone) if mixed else dates.micros

    return [settings.time], keys


def _count(run: FinishedRun, keys: I64) -> I64:
    """Count rows in the stretches of time that the manifest counts."""
    dates = run.manifest.facts["dates"]
    return DateBins(dates["first_us"], dates["width_us"], len(dates["rows"]["train"])).counts(keys)


def _facts(facts: dict[str, Any], counts: Mapping[str, I64], entities: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Take rows from the counts by date and entities from those of splits; drop names that look like missing ones."""
    dates = {
        **facts["dates"],
        "rows": {split: (np.array(own) - counts[split]).tolist() for split, own in facts["dates"]["rows"].items()},
    }
    train, val = set(entities["train"]), set(entities["val"])
    erased = {name for own in entities.values() for name in own}
    like = dict(facts["missing_like"])
    if "entity" in like:
        like["entity"] = {name: rows for name, rows in like["entity"].items() if name not in erased}
    return {
        **facts,
        "dates": dates,
        "train_entities": facts["train_entities"] - len(train),
        "val_entities": facts["val_entities"] - len(val),
        "entities_before_cutoff": facts["entities_before_cutoff"] - len(train | val),
        "missing_like": like,
    }


ERASURE = Erasure(keys=_keys, count=_count, facts=_facts)
