"""Prove from the output alone that near rows are split as `duplicates` requires."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.dataset.open import FinishedRun
from headrace.dataset.verify import Check
from headrace.split.settings import TemporalSplit
from headrace.stream.audit.near import SplitBlocks, near_duplicates


def near_checks(run: FinishedRun, settings: TemporalSplit, said: Mapping[str, Any], workers: int) -> list[Check]:
    """Search near rows again, as the settings do: across splits or cells of folds, and with "drop" anywhere."""
    if settings.near is None:
        return []
    splits = [SplitBlocks(run, split, workers) for split in run.splits]
    found = near_duplicates(splits, said["content"], settings.near, packed=False)
    across, own = sum(each.rows for each in found.shared), sum(found.repeated.values())
    parts = [f"{each.rows:,} {each.split} rows with one of {each.earlier}" for each in found.shared]
    listed = f"{', '.join(parts)} have a Jaccard index of {settings.near:g} or more"
    if settings.duplicates == "count":
        return [Check("near content apart", f"not asked for: {listed}", kind="count")]
    once = settings.duplicates == "drop"
    detail = f"no row has a Jaccard index of {settings.near:g} or more with one of another split"
    detail = f"no two rows have a Jaccard index of {settings.near:g} or more" if once else detail
    problem = None
    if across + (own if once else 0) > said["near"]["not_compared"]:  # the pairs that the run did not compare
        examples = [pair for each in found.shared for pair in each.examples][:1]
        such = "".join(f", such as {late} and {early}" for early, late, _ in examples)
        problem = f"{run.root}: {listed}{such}" if across else f"{run.root}: {own:,} rows are near one of their split"
    return [Check("near content apart", listed if across else detail, problem)]
