"""The recipe of histories, as headrace finds it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.errors import setting
from headrace.recipe import Recipe, SplitContents

if TYPE_CHECKING:
    from headrace.cli.init.commented import Section
    from headrace.cli.init.look import Data
    from headrace.cli.tables import Detail
    from headrace.dataset.indexed import IndexedDataset
    from headrace.dataset.manifest import Manifest
    from headrace.dataset.open import FinishedRun
    from headrace.dataset.verify import Check
    from headrace.report.figure import Figure
    from headrace.report.report_data import ReportData
    from headrace.run.context import RunContext
    from headrace.run.prepare import Outcome


class HistoriesRecipe(Recipe):
    """The measurements of each entity as one long row, to draw contexts from."""

    name = "histories"
    commands = ("histories",)
    init_word = "histories"
    stages: ClassVar = {
        "gather": ("gather measurements", "shards"),
        "dictionary": ("sort texts", "dictionaries"),
        "compare": ("compare entities", "partitions"),
        "order": ("order entities", "partitions"),
        "rows": ("list rows", "files"),
    }
    reasons: ClassVar = {
        "not_sampled": "not in the sample",
        "null_time": "has no time",
        "unreadable_time": "time cannot be read",
        "ambiguous_time": "time comes twice where clocks change",
        "skipped_time": "time does not exist where clocks change",
        "null_entity": "has no entity",
        "unreadable_entity": "entity is not an address or a number",
        "null_peer": "has no peer",
        "unreadable_peer": "peer is not an address or a number",
        "unreadable_value": "value is not a number of its type",
        "missing_value": "has no value",
        "negative_value": "value is below 0",
        "zero_value": "value is 0",
        "duplicate": "its entity has the measurements of another one",
        "other_period": "its entity is in the other split at that time",
    }
    requested_drops = Recipe.requested_drops | {"not_sampled", "other_period"}
    row = "big row"
    content_unit = "entity"
    unproved = (
        (
            "An entity may be in both splits under two names, where it has other measurements under"
            " each."
        ),
        "Without `train_end`, train and test cover the same time; only their entities differ.",
    )
    readers: ClassVar = {
        "array_record": (
            "histories in ArrayRecord shards cannot be streamed as a table; read them as contexts "
            f"(`headrace histories plan` counts them), or prepare them with"
            f" {setting('format', 'arrow')}"
        )
    }

    def settings(self) -> Any:
        from headrace.histories.config import Histories

        return Histories

    def execute(
        self, settings: Any, context: RunContext, files: Sequence[tuple[Path, str]]
    ) -> Outcome:
        from headrace.histories.recipe import execute

        return execute(settings, context, files)

    def command(self, word: str) -> Any:
        from headrace.histories.command import app

        return app

    def init_options(self) -> type[Any]:
        from headrace.cli.init.options import InitHistoriesOptions

        return InitHistoriesOptions

    def init(self, options: Any, data: Data) -> tuple[list[Section], str]:
        from headrace.histories.init import histories_sections

        return histories_sections(options, data)

    def verify(self, run: FinishedRun, workers: int | None) -> list[Check]:
        from headrace.histories.verify import verify_histories

        return verify_histories(run, workers)

    def figures(
        self, report_data: ReportData, common: Callable[[ReportData], list[Figure]]
    ) -> list[Figure]:
        from headrace.histories.figures import figures

        return figures(report_data)

    def summary(
        self,
        console: Any,
        manifest: Manifest,
        run: Path,
        detail: Detail,
        common: Callable[[], None],
    ) -> None:
        from headrace.histories.command import print_histories

        print_histories(console, manifest, run, detail)

    def contents(self, dataset: IndexedDataset, split: str, workers: int) -> SplitContents:
        from headrace.histories.verify import contents_of_split

        return contents_of_split(dataset, split, workers)

    def roles(self, config: Mapping[str, Any]) -> dict[str, str]:
        return {
            "entity": "src_id",
            "time": "first_time",
            "until": "last_time",
            "time_format": f"epoch_{config.get('time_unit', 's')}",
        }
