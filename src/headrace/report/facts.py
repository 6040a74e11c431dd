"""Read the files of a finished run once (manifest, configuration, blocks), and compare two runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import polars as pl

from headrace.dataset.manifest import Manifest, in_usual_order
from headrace.dataset.open import FinishedRun, find_run
from headrace.errors import CorruptShard
from headrace.recipe import recipe_of_run
from headrace.storage.places import place_of

Kind = Literal["recipe", "settings", "source", "counts", "schema", "libraries"]
ABSENT = "–"


@dataclass(frozen=True)
class RunFacts:
    """A finished run, read-only. config: its settings. blocks: index.parquet, one row per block."""

    run: FinishedRun
    config: dict[str, Any]
    blocks: pl.DataFrame

    @property
    def manifest(self) -> Manifest:
        """The run's manifest."""
        return self.run.manifest

    @property
    def output(self) -> str:
        """The name of the dataset directory, or of the run's own directory if it is not in a dataset directory."""
        run = place_of(self.run.root).real()
        return run.parent.parent.name if run.parent.name == "runs" else run.name

    @property
    def rows_in_splits(self) -> dict[str, int]:
        """Source rows of each split; if output rows are not source rows, the recipe has counted them."""
        counted: dict[str, int] = self.manifest.facts.get("source_rows", {})
        return {name: counted.get(name, totals.rows) for name, totals in self.manifest.splits.items()}

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits in their usual order."""
        return in_usual_order(self.manifest.splits)

    def reason_in_words(self, reason: str) -> str:
        """Return why rows were dropped, in words; by default the reason's name without underscores."""
        return recipe_of_run(self.manifest.recipe).reasons.get(reason, reason.replace("_", " "))

    @cached_property
    def shards(self) -> pl.DataFrame:
        """One row per shard, unordered: split, shard, source_shard, rows, bytes, blocks."""
        return self.blocks.group_by("split", "shard").agg(
            pl.col("source_shard").first(),
            pl.col("rows").sum(),
            pl.col("length").sum().alias("bytes"),
            pl.len().alias("blocks"),
        )


def read_run(path: str | Path, run: str | None = None) -> RunFacts:
    """Read the facts of the run at a path. Raises `InputError` without a finished run, `CorruptShard` for damage."""
    root, manifest = find_run(path, run)
    finished = FinishedRun(root, manifest)
    blocks = pl.from_arrow(finished.index.table)
    assert isinstance(blocks, pl.DataFrame)
    path = root / "config.json"
    try:
        record = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CorruptShard(f"{path}: cannot be read ({error}); restore it or prepare the run again") from error
    return RunFacts(finished, record if isinstance(record, dict) else {}, blocks)


@dataclass(frozen=True)
class Difference:
    """One difference between two runs. first, second: as text; "–" if a run lacks the item."""

    kind: Kind
    name: str
    first: str
    second: str


def differences(first: RunFacts, second: RunFacts) -> list[Difference]:
    """List all differences, in the order of `Kind`; empty for the same run twice."""
    one, two = first.manifest, second.manifest
    found = list(_differing("recipe", {"recipe": one.recipe}, {"recipe": two.recipe}))
    found += _differing("settings", first.config, second.config)
    found += _differing(
        "source", *({key.replace("_", " "): each.source[key] for key in each.source} for each in (one, two))
    )
    found += _differing("counts", _counts(first), _counts(second))
    found += _differing("schema", _columns(first), _columns(second))
    if [each["name"] for each in one.schema] != [each["name"] for each in two.schema] and _columns(first) == _columns(
        second
    ):
        order = [", ".join(each["name"] for each in manifest.schema) for manifest in (one, two)]
        found.append(Difference("schema", "order of columns", *order))
    found += _differing("libraries", one.libraries, two.libraries)
    return found


def _differing(kind: Kind, first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[Difference]:
    for name in sorted({*first, *second}):
        if name not in first or name not in second or first[name] != second[name]:
            yield Difference(kind, name, _text(first, name), _text(second, name))


def _text(values: Mapping[str, Any], name: str) -> str:
    if name not in values:
        return ABSENT
    value = values[name]
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)


def _counts(facts: RunFacts) -> dict[str, Any]:
    manifest = facts.manifest
    found: dict[str, Any] = {}
    for split, totals in manifest.splits.items():
        found |= {f"{split} rows": totals.rows, f"{split} shards": totals.shards, f"{split} bytes": totals.bytes}
    found |= {f"dropped: {reason}": rows for reason, rows in manifest.dropped.items() if rows}
    numbers = {
        name: value
        for name, value in manifest.facts.items()
        if isinstance(value, int | float) and not name.endswith("_us")  # times follow from the settings
    }
    return found | {name.replace("_", " "): value for name, value in numbers.items()}


def _columns(facts: RunFacts) -> dict[str, str]:
    return {each["name"]: f"{each['type']}{'' if each['nullable'] else ', no nulls'}" for each in facts.manifest.schema}
