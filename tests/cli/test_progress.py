"""What a terminal shows of a run says in words what is done, whatever the recipe."""

import re
from pathlib import Path

import pytest

import headrace
from headrace.recipe import registrations

RECIPES = Path(headrace.__file__).parent / "recipes"


@pytest.mark.parametrize("name", registrations())
def test_every_stage_of_a_recipe_has_words(name: str) -> None:
    stages = {
        stage
        for module in (RECIPES / name).rglob("*.py")
        for stage in re.findall(r"stage\(\s*\"(\w+)\"", module.read_text("utf-8"))
    }

    assert stages
    assert stages - registrations()[name].stages.keys() == set()
