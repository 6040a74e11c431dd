"""Say what to know of a finished run of series before training on it."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.dataset.grade import Doubt
from headrace.dataset.manifest import Manifest
from headrace.errors import setting
from headrace.report.words import many_entities


def doubts_of(manifest: Manifest) -> Iterator[Doubt]:
    """Yield entities that are left out, and splits that overlap in time.

    Windows always have inputs: of a run without features, the past of the target.
    """
    metadata = manifest.metadata
    entities = metadata["entities"]
    fraction = entities["failed"] / max(1, entities["original"])
    if fraction:
        words = f"{entities['failed']:,} of {many_entities(entities['original'])} are left out"
        yield Doubt(words, fraction)
    if metadata["calendar_time"] == "shared":
        ends = setting("train_end")
        yield Doubt(f"splits overlap in calendar time, as `verify` lists; {ends} cuts at dates")
