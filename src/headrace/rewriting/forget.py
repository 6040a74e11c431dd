"""Rewrite shards of a rewrite without the rows to erase."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.arrays import I64
from headrace.dataset.contents import repeats_without
from headrace.dataset.open import FinishedRun
from headrace.run.erase import Erased, Erasure


def _facts(
    run: FinishedRun, erased: Erased, _counts: Mapping[str, I64], workers: int
) -> dict[str, Any]:
    """Count repeated content again."""
    duplicates = run.manifest.metadata.get("duplicates")
    if duplicates is None:
        return {}
    return {"duplicates": {**duplicates, **repeats_without(run, erased.rows, workers)}}


ERASURE = Erasure(metadata=_facts, encoding="fast")
