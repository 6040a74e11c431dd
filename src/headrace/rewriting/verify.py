"""Prove of a rewrite that its rows repeat each other as it says."""

from __future__ import annotations

import json

from headrace.dataset.contents import content_check, split_digests
from headrace.dataset.manifest import in_usual_order
from headrace.dataset.open import FinishedRun
from headrace.dataset.verify import Check
from headrace.engine.local import default_workers


def verify_rewrite(run: FinishedRun, workers: int | None = None) -> list[Check]:
    """Compare the rows again where the run does. 8 bytes a row."""
    said = run.manifest.facts.get("duplicates")
    if said is None:
        return []
    asked = json.loads((run.root / "config.json").read_bytes()).get("duplicates", "count")
    splits = in_usual_order(run.splits)
    content = {split: split_digests(run, split, workers or default_workers(), said["content"]) for split in splits}
    return [content_check(run, asked, said, content)]
