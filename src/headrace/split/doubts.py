"""Say what to know of a finished split before training on it."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.dataset.grade import Doubt
from headrace.dataset.manifest import Manifest


def doubts_of(manifest: Manifest) -> Iterator[Doubt]:
    """Yield that no column is more than text, and that a split has no row."""
    if manifest.metadata["inputs"] == "text":
        yield Doubt("no column besides those with a role holds numbers, so a stream delivers none")
    if manifest.folds:
        return
    for split, totals in manifest.splits.items():
        if not totals.rows:
            yield Doubt(f"{split} has no row")
