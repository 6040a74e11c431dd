"""Register the recipe; imports nothing that takes time."""

from headrace.recipe import Init, Registration

REGISTRATION = Registration(
    name="every_nth",
    settings="every_nth.settings:EveryNth",
    help="Keep every n-th row of each file.\n\nExample:  headrace thin raw --out thinned --step 10",
    commands={"thin": "every_nth.settings:EveryNth"},
    init=Init(word="thin", options="every_nth.init_options:ThinOptions", sections="every_nth.init:sections"),
    stages={"thin": ("thin out files", "files")},
    reasons={"between": "is between two rows that are kept"},
    row="kept row",
    verify="every_nth.verify:verify_thinned",
    figures="every_nth.figures:figures",
)
