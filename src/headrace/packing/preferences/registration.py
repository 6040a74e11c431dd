"""Register preferences and prompts."""

from headrace.packing.registration import LAYOUTS
from headrace.packing.registration import REGISTRATION as PACKED
from headrace.recipe import Init, Registration

_OTHER_REASONS = {
    "prompts_differ": "the two answers have no common prompt, or the template writes it in two ways",
    "no_prompt": "nothing is asked, or the prompt ends with an answer",
    "no_label": "nothing says whether the answer was liked",
    "several_turns": "an answer is not one turn of the assistant",
    "same_answers": "both answers are the same tokens",
    "too_long": "prompt and answer have more tokens than max_tokens",
}

REGISTRATION = Registration(
    name="preferences",
    settings="headrace.packing.preferences.settings:Preferences",
    commands={"preferences": "headrace.packing.command:preferences"},
    words={("preferences",): {"layout": LAYOUTS}},
    init=Init(
        word="preferences",
        options="headrace.cli.init.asked:AskedPreferences",
        sections="headrace.packing.init:preference_sections",
    ),
    stages=PACKED.stages,
    reasons={**PACKED.reasons, **_OTHER_REASONS},
    unproved=PACKED.unproved,
    verify="headrace.packing.verify:verify_preferences",
)
