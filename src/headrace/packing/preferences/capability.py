"""Preferences and prompts, as headrace finds them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.packing.capability import PackedSequencesRecipe
from headrace.recipe import Recipe

if TYPE_CHECKING:
    from headrace.cli.init.commented import Section
    from headrace.cli.init.look import Data
    from headrace.cli.tables import Detail
    from headrace.dataset.manifest import Manifest
    from headrace.dataset.open import FinishedRun
    from headrace.dataset.verify import Check
    from headrace.run.context import RunContext
    from headrace.run.prepare import Outcome

_OTHER_REASONS = {
    "prompts_differ": (
        "the two answers have no common prompt, or the template writes it in two ways"
    ),
    "no_prompt": "nothing is asked, or the prompt ends with an answer",
    "no_label": "nothing says whether the answer was liked",
    "several_turns": "an answer is not one turn of the assistant",
    "same_answers": "both answers are the same tokens",
    "too_long": "prompt and answer have more tokens than max_tokens",
}


class PreferencesRecipe(Recipe):
    """Preference pairs, judged answers or prompts, as tokens."""

    name = "preferences"
    commands = ("preferences",)
    init_word = "preferences"
    stages = PackedSequencesRecipe.stages
    reasons: ClassVar = {**PackedSequencesRecipe.reasons, **_OTHER_REASONS}
    unproved = PackedSequencesRecipe.unproved

    def settings(self) -> Any:
        from headrace.packing.preferences.settings import Preferences

        return Preferences

    def execute(
        self, settings: Any, context: RunContext, files: Sequence[tuple[Path, str]]
    ) -> Outcome:
        from headrace.packing.preferences.recipe import execute

        return execute(settings, context, files)

    def command(self, word: str) -> Any:
        from headrace.packing.command import preferences

        return preferences

    def init_options(self) -> type[Any]:
        from headrace.cli.init.options import InitPreferencesOptions

        return InitPreferencesOptions

    def init(self, options: Any, data: Data) -> tuple[list[Section], str]:
        from headrace.packing.preferences.init import preference_sections

        return preference_sections(options, data)

    def verify(self, run: FinishedRun, workers: int | None) -> list[Check]:
        from headrace.packing.preferences.verify import verify_preferences

        return verify_preferences(run, workers)

    def summary(
        self,
        console: Any,
        manifest: Manifest,
        run: Path,
        detail: Detail,
        common: Callable[[], None],
    ) -> None:
        from headrace.packing.chats.words import sentence_of

        common()
        console.print(sentence_of(manifest.metadata["words"]), highlight=False)
