"""Read the files of a finished run once: manifest, configuration, blocks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.dataset.manifest import Manifest, in_usual_order, read_config
from headrace.dataset.open import FinishedRun, find_run
from headrace.recipe import recipe_of_run
from headrace.storage.places import place_of


@dataclass(frozen=True)
class ReportData:
    """A finished run, read-only. config: its settings. blocks: index.parquet, one row per block."""

    run: FinishedRun
    config: dict[str, Any]
    blocks: pa.Table

    @property
    def manifest(self) -> Manifest:
        """The run's manifest."""
        return self.run.manifest

    @property
    def output(self) -> str:
        """The name of the dataset directory, or of the run's own directory if it is not in a
        dataset directory.
        """
        run = place_of(self.run.root).real()
        if run.parent.name == "runs":
            return run.parent.parent.name
        return run.name

    @property
    def rows_in_splits(self) -> dict[str, int]:
        """Source rows of each split; if output rows are not source rows, the recipe has counted
        them.
        """
        counted: dict[str, int] = self.manifest.metadata.get("source_rows", {})
        return {
            name: counted.get(name, totals.rows) for name, totals in self.manifest.splits.items()
        }

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits in their usual order."""
        return in_usual_order(self.manifest.splits)

    def reason_in_words(self, reason: str) -> str:
        """Return why rows were dropped, in words; by default the reason's name without
        underscores.
        """
        return recipe_of_run(self.manifest.recipe).reasons.get(reason, reason.replace("_", " "))


def read_run(path: str | Path, run: str | None = None) -> ReportData:
    """Read the facts of the run at a path.

    Raises `InputError` without a finished run, `CorruptShard` for damage.
    """
    root, manifest = find_run(path, run)
    finished = FinishedRun(root, manifest)
    return ReportData(finished, read_config(root, manifest), finished.index.table)
