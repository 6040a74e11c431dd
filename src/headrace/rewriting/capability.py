"""The rewrite, as headrace finds it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.recipe import Recipe

if TYPE_CHECKING:
    from headrace.cli.init.commented import Section
    from headrace.dataset.open import FinishedRun
    from headrace.dataset.verify import Check
    from headrace.report.figure import Figure
    from headrace.report.run_facts import RunFacts
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
    init_word = "rewrite"
    stages: ClassVar = {
        "compare": ("compare rows", "shards"),
        "nulls": ("find nulls", "shards"),
        "rewrite": ("rewrite shards", "shards"),
        "forget": ("write shards again", "shards"),
    }
    reasons: ClassVar = {
        "in_benchmark": "holds an item of a benchmark that is excluded",
        "duplicate": "an earlier row has its content",
        "forgotten": "its entity was erased",
    }
    unproved = (
        (
            "The splits may share entities and times: they come from the source and were not"
            " compared again."
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

    def init_options(self) -> type[Any]:
        from headrace.cli.init.asked import AskedRewrite

        return AskedRewrite

    def init(self, options: Any) -> tuple[list[Section], str]:
        from headrace.rewriting.init import rewrite_sections

        return rewrite_sections(options)

    def verify(self, run: FinishedRun, workers: int | None) -> list[Check]:
        from headrace.rewriting.verify import verify_rewrite

        return verify_rewrite(run, workers)

    def figures(
        self, run_facts: RunFacts, common: Callable[[RunFacts], list[Figure]]
    ) -> list[Figure]:
        from headrace.rewriting.figures import figures

        return figures(run_facts)

    def erasure(self) -> Erasure:
        from headrace.rewriting.forget import ERASURE

        return ERASURE
