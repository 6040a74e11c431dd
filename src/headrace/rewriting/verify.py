"""Verify that the rows of a rewrite repeat each other as its manifest says."""

from __future__ import annotations

import numpy as np

from headrace.arrays import U64
from headrace.dataset.contents import KeptDigests, content_check, split_digests
from headrace.dataset.manifest import in_usual_order
from headrace.dataset.open import FinishedRun
from headrace.dataset.verify import Check
from headrace.engine.local import default_workers
from headrace.gate.json import read_object


def verify_rewrite(run: FinishedRun, workers: int | None = None) -> list[Check]:
    """Compare the rows again if the run did.

    O(blocks) of memory, and 8 bytes per row in a temporary file.
    """
    duplicates = run.manifest.metadata.get("duplicates")
    if duplicates is None:
        return []
    rule = read_object(run.root / "config.json").get("duplicates", "count")
    splits = in_usual_order(run.splits)
    workers = workers or default_workers()
    compared = duplicates["content"]
    with KeptDigests(splits) as digests:
        for split in splits:
            digests.keep_split(run, split, workers, compared, np.empty(0, np.int64))
        repeats = digests.count()

    def content() -> dict[str, U64]:
        return {split: split_digests(run, split, workers, compared) for split in splits}

    return [content_check(run, rule, duplicates, repeats, content)]
