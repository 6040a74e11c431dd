"""What a terminal shows of a run says in words what is done, whatever the recipe."""

import re
from pathlib import Path

import pytest

import headrace
from headrace.recipe import recipes

SOURCE = Path(headrace.__file__).parent


@pytest.mark.parametrize("name", recipes())
def test_every_stage_of_a_recipe_has_words(name: str) -> None:
    folder = type(recipes()[name]).__module__.split(".")[1]
    stages = {
        stage
        for module in (SOURCE / folder).rglob("*.py")
        for stage in re.findall(r"stage\(\s*\"(\w+)\"", module.read_text("utf-8"))
    }

    assert stages
    assert stages - recipes()[name].stages.keys() == set()
