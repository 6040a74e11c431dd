"""The registry knows the built-in recipes, installed or not, and loads none of their libraries."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from headrace.errors import SettingsError
from headrace.recipe import BUILT_IN, GROUP, find_recipe, recipes
from raised import raised

ROOT = Path(__file__).parents[1]


def test_the_package_declares_the_recipes_that_the_registry_lists() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert project["entry-points"][GROUP] == BUILT_IN
    assert list(recipes())[: len(BUILT_IN)] == list(BUILT_IN)


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_recipe_has_its_settings_commands_and_init(name: str) -> None:
    recipe = recipes()[name]

    for word in recipe.commands:
        recipe.command(word)
    if recipe.init_word is not None:
        assert recipe.init_options().__doc__
    assert name == recipe.name == recipe.settings().recipe_name


def test_a_name_that_is_not_known_is_answered_with_the_nearest() -> None:
    with raised(SettingsError, setting="recipe", value="rewite", remedy="did you mean 'rewrite'?"):
        find_recipe("rewite")
    with raised(SettingsError, setting="recipe", remedy="use one of histories, packed_sequences, "):
        find_recipe(None)


def test_all_recipes_are_found_without_a_library_of_data() -> None:
    code = "import sys; from headrace.recipe import recipes; recipes(); print(*sorted({'numpy', 'pyarrow', 'polars', 'pydantic', 'torch', 'typer', 'rich'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "" == done.stdout.strip()
