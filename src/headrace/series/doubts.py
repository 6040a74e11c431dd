"""Say what to know of a finished run of series before training on it."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.dataset.grade import Doubt
from headrace.dataset.open import FinishedRun
from headrace.errors import setting
from headrace.report.words import many_entities
from headrace.series.store import shared_times, stored_settings


def doubts_of(run: FinishedRun) -> Iterator[Doubt]:
    """Yield entities that are left out, splits that overlap in time, and windows without inputs."""
    entities = run.manifest.metadata["entities"]
    fraction = entities["failed"] / max(1, entities["original"])
    if fraction:
        words = f"{entities['failed']:,} of {many_entities(entities['original'])} are left out"
        yield Doubt(words, fraction)
    settings = stored_settings(run)
    if shared_times(run.root, settings):
        ends = setting("train_end")
        yield Doubt(f"splits overlap in calendar time, as `verify` lists; {ends} cuts at dates")
    if not (settings.feature_names or settings.calendar or settings.static_features):
        yield Doubt(
            "there is no feature: a window has no inputs unless"
            f" {setting('is_autoregressive', True)} makes the past target one"
        )
