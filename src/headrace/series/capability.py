"""The recipe of series, as headrace finds it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.recipe import Recipe
from headrace.series.reasons import REASONS

if TYPE_CHECKING:
    from headrace.cli.init.commented import Section
    from headrace.cli.init.look import Data
    from headrace.cli.tables import Detail
    from headrace.dataset.grade import Doubt
    from headrace.dataset.manifest import Manifest
    from headrace.dataset.open import FinishedRun
    from headrace.dataset.verify import Check
    from headrace.report.figure import Figure
    from headrace.report.report_data import ReportData
    from headrace.run.context import RunContext
    from headrace.run.prepare import Outcome


class SeriesRecipe(Recipe):
    """Time series of many entities on a regular axis, cut by time and scaled."""

    name = "series"
    commands = ("series",)
    help = """Clean, split and scale time series of many entities, for training on their windows.

    A run that was killed resumes.

    Example:  headrace series data --out out --target streamflow
    """
    init_word = "series"
    stages: ClassVar = {
        "spread": ("sort rows by entity", "tables"),
        "frequency": ("find the frequency", "steps"),
        "clean": ("clean series", "batches"),
        "fit": ("fit scalers", "steps"),
        "write": ("scale and write series", "batches"),
        "finish": ("write reports and scalers", "steps"),
    }
    reasons: ClassVar = {reason.word: reason.sentence for reason in REASONS}
    requested_drops = Recipe.requested_drops | {"not_listed", "in_no_split"}
    unproved = (
        "An entity may occur under two names; only exact copies are found.",
        (
            "Entities may overlap in calendar time across splits; the check of calendar time counts"
            " them and is not a law."
        ),
    )

    def settings(self) -> Any:
        from headrace.series.settings import Series

        return Series

    def execute(
        self, settings: Any, context: RunContext, files: Sequence[tuple[Path, str]]
    ) -> Outcome:
        from headrace.series.recipe import execute

        return execute(settings, context, files)

    def init_options(self) -> type[Any]:
        from headrace.cli.init.options import InitSeriesOptions

        return InitSeriesOptions

    def init(self, options: Any, data: Data) -> tuple[list[Section], str]:
        from headrace.series.init import series_sections

        return series_sections(options, data)

    def verify(self, run: FinishedRun, workers: int | None) -> list[Check]:
        from headrace.series.verify import verify_series

        return verify_series(run, workers)

    def doubts(self, manifest: Manifest) -> Iterable[Doubt]:
        from headrace.series.doubts import doubts_of

        return doubts_of(manifest)

    def figures(
        self, report_data: ReportData, common: Callable[[ReportData], list[Figure]]
    ) -> list[Figure]:
        from headrace.series.figures import figures

        return figures(report_data)

    def summary(
        self,
        console: Any,
        manifest: Manifest,
        run: Path,
        detail: Detail,
        common: Callable[[], None],
    ) -> None:
        from headrace.series.command import print_series

        print_series(console, manifest, run, detail)

    def roles(self, config: Mapping[str, Any]) -> dict[str, str]:
        from headrace.series.settings import output_roles

        return output_roles(config)
