"""Packed sequences, as headrace finds them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.near import STAGES
from headrace.packing.chats.rejections import REASONS
from headrace.recipe import Recipe

if TYPE_CHECKING:
    from headrace.cli.init.commented import Section
    from headrace.cli.init.look import Data
    from headrace.cli.tables import Detail
    from headrace.dataset.index import SplitIndex
    from headrace.dataset.manifest import Manifest
    from headrace.dataset.open import FinishedRun
    from headrace.dataset.verify import Check
    from headrace.report.figure import Figure
    from headrace.report.report_data import ReportData
    from headrace.run.context import RunContext
    from headrace.run.prepare import Outcome
    from headrace.stream.loader.options import RowForm, StreamOptions

_FOR_OTHERS = (
    "shards of .{0} are for other readers; prepare with packed_storage='parquet' to stream"
)


class PackedSequencesRecipe(Recipe):
    """Chats as tokens with a loss mask, packed into bins."""

    name = "packed_sequences"
    commands = ("pack",)
    init_word = "pack"
    stages: ClassVar = {
        "sample": ("choose a sample", "parts"),
        "tokenise": ("render and tokenise", "parts"),
        **STAGES,
        "pack": ("pack into bins", "splits"),
        "materialise": ("write bins", "shards"),
    }
    reasons: ClassVar = {
        "no_split_key": "the conversation key is missing or empty",
        "too_short": "one token has nothing to predict",
        "too_long": "no sequence of the row fits a bin, or its answer would be cut away",
        "sampled_out": "not in the sample",
        "in_benchmark": "holds an item of a benchmark that is excluded",
        "key_in_test": "its conversation key is in test",
        "key_in_valid": "its conversation key is in valid",
        "content_in_test": "its user turns, or a sequence of it, are in test",
        "content_in_valid": "its user turns, or a sequence of it, are in valid",
        "duplicate": "an earlier row is the same",
        "weight": "left out so that token shares are as the weights",
        "bin_without_label": "its bin has no token in the loss",
        **REASONS,
    }
    requested_drops = Recipe.requested_drops | {"sampled_out", "weight"}
    row = "bin"
    unproved = (
        (
            "The tokens may not be those of the chats: sequences are compared with the 64-bit"
            " fingerprints of packing."
        ),
    )
    row_options = ("packed", "pack")
    readers: ClassVar = {"npy": _FOR_OTHERS.format("npy"), "bin": _FOR_OTHERS.format("bin")}

    def settings(self) -> Any:
        from headrace.packing.config import PackedSequences

        return PackedSequences

    def execute(
        self, settings: Any, context: RunContext, files: Sequence[tuple[Path, str]]
    ) -> Outcome:
        from headrace.packing.recipe import execute

        return execute(settings, context, files)

    def command(self, word: str) -> Any:
        from headrace.packing.command import pack

        return pack

    def init_options(self) -> type[Any]:
        from headrace.cli.init.options import InitPackOptions

        return InitPackOptions

    def init(self, options: Any, data: Data) -> tuple[list[Section], str]:
        from headrace.packing.init import pack_sections

        return pack_sections(options, data)

    def example(self, settings: Any) -> list[str]:
        from headrace.packing.mask_view import masked_lines

        return masked_lines(settings)

    def verify(self, run: FinishedRun, workers: int | None) -> list[Check]:
        from headrace.packing.verify import verify_packed

        return verify_packed(run, workers)

    def figures(
        self, report_data: ReportData, common: Callable[[ReportData], list[Figure]]
    ) -> list[Figure]:
        from headrace.packing.figures import figures

        return figures(report_data)

    def summary(
        self,
        console: Any,
        manifest: Manifest,
        run: Path,
        detail: Detail,
        common: Callable[[], None],
    ) -> None:
        from headrace.packing.command import print_packed

        print_packed(console, manifest, run, detail)

    def row_option(self, option: str, value: Any) -> Any:
        if option == "pack":
            from headrace.packing.on_the_fly.settings import pack_setting

            return pack_setting(value)
        from headrace.packing.read.batches import packed_setting

        return packed_setting(value)

    def detect_form(
        self, splits: Sequence[tuple[Path, SplitIndex]], options: StreamOptions
    ) -> RowForm | None:
        from headrace.packing.read.batches import packed_form

        return packed_form(splits, options)
