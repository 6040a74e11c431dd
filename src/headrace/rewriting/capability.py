"""The rewrite, as headrace finds it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.recipe import Recipe

if TYPE_CHECKING:
    from headrace.report.figure import Figure
    from headrace.report.report_data import ReportData
    from headrace.run.context import RunContext
    from headrace.run.erase import Erasure
    from headrace.run.prepare import Outcome


class RewriteRecipe(Recipe):
    """Shards, plain or prepared, as Parquet made to be trained on."""

    name = "rewrite"
    commands = ("rewrite",)
    help = """Rewrite shards as Parquet made to be trained on.

    The rows are the same, and decode several times faster. The splits of a prepared dataset stay;
    plain shards become the split "all". A rewrite that was killed resumes.

    Example:  headrace rewrite raw --out fast
    """
    stages: ClassVar = {
        "nulls": ("find nulls", "shards"),
        "shuffle": ("shuffle rows", "shards"),
        "rewrite": ("rewrite shards", "shards"),
        "forget": ("write shards again", "shards"),
    }
    reasons: ClassVar = {
        "forgotten": "its entity was erased",
    }
    unproved = (
        (
            "The splits may share entities, times and content: they come from the source and were"
            " not compared again."
        ),
    )

    def settings(self) -> Any:
        from headrace.rewriting.settings import Rewrite

        return Rewrite

    def execute(
        self, settings: Any, context: RunContext, files: Sequence[tuple[Path, str]]
    ) -> Outcome:
        from headrace.rewriting.recipe import execute

        return execute(settings, context, files)

    def figures(
        self, report_data: ReportData, common: Callable[[ReportData], list[Figure]]
    ) -> list[Figure]:
        from headrace.rewriting.figures import figures

        return figures(report_data)

    def erasure(self) -> Erasure:
        from headrace.run.erase import Erasure

        return Erasure(encoding="fast")
