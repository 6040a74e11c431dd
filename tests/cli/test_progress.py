"""What a terminal shows of a run says in words what is done, whatever the recipe."""

import re
from pathlib import Path

import headrace
from headrace.run.stage_words import STAGES

RECIPES = Path(headrace.__file__).parent / "recipes"


def test_every_stage_of_every_recipe_has_words() -> None:
    stages = {
        name
        for module in RECIPES.rglob("*.py")
        for name in re.findall(r"stage\(\s*\"(\w+)\"", module.read_text("utf-8"))
    }

    assert {"scan", "tokenise", "gather", "clean", "rewrite"} <= stages
    assert stages - STAGES.keys() == set()
