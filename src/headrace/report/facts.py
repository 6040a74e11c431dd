"""What every finished run has on disk, read once: manifest, configuration, blocks."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from headrace.dataset.manifest import Manifest, in_usual_order
from headrace.dataset.open import FinishedRun, find_run
from headrace.errors import CorruptShard
from headrace.recipe import registration_of_run


@dataclass(frozen=True)
class RunFacts:
    """A finished run, read-only.

    config: what was asked. blocks: index.parquet, a row for each block.
    """

    run: FinishedRun
    config: dict[str, Any]
    blocks: pl.DataFrame

    @property
    def manifest(self) -> Manifest:
        """The run's manifest."""
        return self.run.manifest

    @property
    def rows_in_splits(self) -> dict[str, int]:
        """Source rows of each split; where output rows are not source rows, the recipe counted them."""
        counted: dict[str, int] = self.manifest.facts.get("source_rows", {})
        return {name: counted.get(name, totals.rows) for name, totals in self.manifest.splits.items()}

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits in the order in which people think of them."""
        return in_usual_order(self.manifest.splits)

    def reason_in_words(self, reason: str) -> str:
        """Why rows were dropped; the reason's own name where its recipe has no words for it."""
        return registration_of_run(self.manifest.recipe).reasons.get(reason, reason.replace("_", " "))

    @cached_property
    def shards(self) -> pl.DataFrame:
        """A row for each shard, in no order: split, shard, source_shard, rows, bytes, blocks."""
        return self.blocks.group_by("split", "shard").agg(
            pl.col("source_shard").first(),
            pl.col("rows").sum(),
            pl.col("length").sum().alias("bytes"),
            pl.len().alias("blocks"),
        )


def read_run(path: str | Path, run: str | None = None) -> RunFacts:
    """The facts of the run behind a path. Raises `InputError` without a finished run, `CorruptShard` for damage."""
    root, manifest = find_run(path, run)
    finished = FinishedRun(root, manifest)
    blocks = pl.from_arrow(finished.index.table)
    assert isinstance(blocks, pl.DataFrame)
    return RunFacts(finished, _config(root), blocks)


def _config(root: Path) -> dict[str, Any]:
    path = root / "config.json"
    try:
        record = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CorruptShard(f"{path}: cannot be read ({error}); restore it or prepare the run again") from error
    return record if isinstance(record, dict) else {}
