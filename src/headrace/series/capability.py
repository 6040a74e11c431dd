"""The recipe of series, as headrace finds it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.recipe import Recipe

if TYPE_CHECKING:
    from headrace.cli.init.commented import Section
    from headrace.cli.tables import Detail
    from headrace.dataset.manifest import Manifest
    from headrace.dataset.open import FinishedRun
    from headrace.dataset.verify import Check
    from headrace.report.facts import RunFacts
    from headrace.report.figure import Figure
    from headrace.run.context import RunContext
    from headrace.run.prepare import Outcome


class SeriesRecipe(Recipe):
    """Time series of many entities on a regular axis, cut by time and scaled."""

    name = "series"
    commands = ("series",)
    init_word = "series"
    stages: ClassVar = {
        "spread": ("sort rows by entity", "tables"),
        "frequency": ("find the frequency", "steps"),
        "clean": ("clean series", "batches"),
        "fit": ("fit scalers", "steps"),
        "write": ("scale and write series", "batches"),
        "finish": ("write reports and scalers", "steps"),
    }
    reasons: ClassVar = {
        "null_entity": "has no entity",
        "entity_failed": "its entity does not pass",
        "in_no_split": "too close before a cut, of a held-out entity in the part of others, or needed by no fold",
        "bad_time": "time cannot be read",
        "off_grid": "time is between two steps",
        "duplicate_time": "another row has its time",
        "trimmed": "before the first or after the last value",
        "not_listed": "its entity was not requested",
        "duplicate": "its entity has the values and times of an earlier one",
    }
    unproved = (
        "An entity may occur under two names; only exact copies are found.",
        "Entities may overlap in calendar time across splits; the check of calendar time counts them and is not a law.",
    )

    def settings(self) -> Any:
        from headrace.series.config import Series

        return Series

    def execute(self, settings: Any, context: RunContext, files: Sequence[tuple[Path, str]]) -> Outcome:
        from headrace.series.recipe import execute

        return execute(settings, context, files)

    def command(self, word: str) -> Any:
        from headrace.series.command import series

        return series

    def init_options(self) -> type[Any]:
        from headrace.cli.init.asked import AskedSeries

        return AskedSeries

    def init(self, options: Any) -> tuple[list[Section], str]:
        from headrace.series.init import series_sections

        return series_sections(options)

    def verify(self, run: FinishedRun, workers: int | None) -> list[Check]:
        from headrace.series.verify import verify_series

        return verify_series(run, workers)

    def figures(self, facts: RunFacts, common: Callable[[RunFacts], list[Figure]]) -> list[Figure]:
        from headrace.series.figures import figures

        return figures(facts)

    def summary(self, console: Any, manifest: Manifest, run: Path, detail: Detail, common: Callable[[], None]) -> None:
        from headrace.series.command import print_series

        print_series(console, manifest, run, detail)

    def roles(self, config: Mapping[str, Any]) -> dict[str, str]:
        from headrace.series.config import output_roles

        return output_roles(config)
