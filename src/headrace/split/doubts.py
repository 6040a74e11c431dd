"""Say what to know of a finished split before training on it."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from headrace.dataset.grade import Doubt
from headrace.dataset.open import FinishedRun
from headrace.formats.types import is_text
from headrace.split.earlier import settings_of


def doubts_of(run: FinishedRun) -> Iterator[Doubt]:
    """Yield that no column is more than text, and that a split has no row."""
    settings = settings_of(run)
    roles = {*settings.time_columns, settings.entity_column, settings.label}
    roles.update(settings.targets or ())
    inputs = [field.type for field in run.index.schema if field.name not in roles]
    if inputs and all(is_text(type_) or pa.types.is_temporal(type_) for type_ in inputs):
        yield Doubt("no column besides those with a role holds numbers: streams deliver text")
    if run.manifest.folds:
        return
    for split, totals in run.manifest.splits.items():
        if not totals.rows:
            yield Doubt(f"{split} has no row")
