"""What a temporal split says of itself without the rows of some entities."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.arrays import I64, U64
from headrace.dataset.indexed import ReadBlock
from headrace.dataset.open import FinishedRun
from headrace.engine.local import run_tasks
from headrace.formats.content import count_repeats, row_digests, tagged
from headrace.formats.dates import parse_dates
from headrace.formats.text_columns import nulled
from headrace.run.erase import Erased, Erasure
from headrace.split.cutoff import DateBins
from headrace.split.settings import TemporalSplit
from headrace.split.shards import SPLITS, on_utc


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
    """Count rows in the stretches of time that the manifest counts; none in a run of an older version."""
    dates = run.manifest.facts.get("dates")
    if dates is None:
        return np.zeros(0, np.int64)
    return DateBins(dates["first_us"], dates["width_us"], len(dates["rows"]["train"])).counts(keys)


def _facts(run: FinishedRun, erased: Erased, counts: Mapping[str, I64], workers: int) -> dict[str, Any]:
    """Take rows from the counts by date and entities from those of splits, and count repeated content again.

    Names of erased entities that look like missing values are left out.
    """
    facts = run.manifest.facts
    changed: dict[str, Any] = {"guidance": None} if "guidance" in facts else {}  # it counts rows that are gone
    if "dates" in facts:
        rows = {split: (np.array(own) - counts[split]).tolist() for split, own in facts["dates"]["rows"].items()}
        changed["dates"] = {**facts["dates"], "rows": rows}
    like = facts.get("missing_like", {})
    if "entity" in like:
        names = {name for own in erased.entities.values() for name in own}
        kept = {name: rows for name, rows in like["entity"].items() if name not in names}
        changed["missing_like"] = {**like, "entity": kept}
    if facts.get("duplicates") is not None:
        changed["duplicates"] = {**facts["duplicates"], **_repeats(run, erased, workers)}
    train, val = set(erased.entities["train"]), set(erased.entities["val"])
    gone = {"train_entities": len(train), "val_entities": len(val), "entities_before_cutoff": len(train | val)}
    return {**changed, **{name: facts[name] - count for name, count in gone.items()}}


def _repeats(run: FinishedRun, erased: Erased, workers: int) -> dict[str, dict[str, int]]:
    """Count the rows that repeat the content of others, without those that are erased. 8 bytes a row."""
    compared = list(run.manifest.facts["duplicates"]["content"])
    words = [np.empty(0, np.uint64)]
    for number, split in enumerate(SPLITS):
        read, blocks = run.block_reader(split), range(len(run.split_index(split).rows))

        def look(block: int, read: ReadBlock = read) -> U64:
            return row_digests(read(block, compared))

        digests = [np.empty(0, np.uint64), *run_tasks([partial(look, block) for block in blocks], workers)]
        words.append(tagged(np.delete(np.concatenate(digests), erased.rows[split]), number))
    found = count_repeats(np.concatenate(words), SPLITS)
    return {"in_earlier_split": dict(found.earlier), "repeated": dict(found.own)}


ERASURE = Erasure(keys=_keys, count=_count, facts=_facts)
