"""The temporal and the random split, as headrace finds them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.near import STAGES
from headrace.recipe import Recipe

if TYPE_CHECKING:
    from headrace.cli.init.commented import Section
    from headrace.cli.init.look import Data
    from headrace.dataset.grade import Doubt
    from headrace.dataset.manifest import Manifest
    from headrace.dataset.open import FinishedRun
    from headrace.dataset.verify import Check
    from headrace.report.figure import Figure
    from headrace.report.report_data import ReportData
    from headrace.run.context import RunContext
    from headrace.run.erase import Erasure
    from headrace.run.prepare import Outcome


class _SplitRecipe(Recipe):
    """What both splits of tables do in the same way."""

    requested_drops = Recipe.requested_drops | {
        "gap_before_cutoff",
        "label_past_cutoff",
        "in_no_fold",
    }

    stages: ClassVar = {
        "scan": ("find entities and dates", "shards"),
        **STAGES,
        "assignment": ("keep the groups of an earlier run", "tables"),
        "link": ("join linked entities", "shards"),
        "near_rows": ("join near rows", "shards"),
        "split": ("write splits", "shards"),
        "join": ("join files", "splits"),
        "forget": ("write shards again", "shards"),
    }

    @cached_property
    def reasons(self) -> Mapping[str, str]:
        from headrace.split.reasons import sentences

        return sentences()

    def execute(
        self, settings: Any, context: RunContext, files: Sequence[tuple[Path, str]]
    ) -> Outcome:
        from headrace.split.recipe import execute

        return execute(settings, context, files)

    def verify(self, run: FinishedRun, workers: int | None) -> list[Check]:
        from headrace.split.verify import verify_split

        return verify_split(run, workers)

    def doubts(self, manifest: Manifest) -> Iterable[Doubt]:
        from headrace.split.doubts import doubts_of

        return doubts_of(manifest)

    def figures(
        self, data: ReportData, common: Callable[[ReportData], list[Figure]]
    ) -> list[Figure]:
        from headrace.split.figures import figures

        return figures(data)


class TemporalSplitRecipe(_SplitRecipe):
    """Rows before a cutoff are in train or val by entity; rows from it on are in test."""

    name = "temporal_split"
    commands = ("split",)
    init_word = "split"
    unproved = (
        (
            "Rows of other entities at the same time may be in two splits: val is from the time of"
            " train."
        ),
    )

    def settings(self) -> Any:
        from headrace.split.settings import TemporalSplit

        return TemporalSplit

    def command(self, word: str) -> Any:
        from headrace.split.command import split

        return split

    def flags(self) -> Any:
        from headrace.split.command import flag_models

        return flag_models()

    def init_options(self) -> type[Any]:
        from headrace.cli.init.options import InitSplitOptions

        return InitSplitOptions

    def init(self, options: Any, data: Data) -> tuple[list[Section], str]:
        from headrace.split.init import split_sections

        return split_sections(options, data)

    def erasure(self) -> Erasure:
        from headrace.split.forget import ERASURE

        return ERASURE


class RandomSplitRecipe(_SplitRecipe):
    """Rows or groups are drawn into train, val and test; `headrace split` without a time."""

    name = "random_split"
    unproved = ("Time does not part the splits: a test row may be older than a train row.",)

    def settings(self) -> Any:
        from headrace.split.random_split import RandomSplit

        return RandomSplit

    def erasure(self) -> Erasure:
        from headrace.split.forget import RANDOM_ERASURE

        return RANDOM_ERASURE
