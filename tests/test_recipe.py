"""The registry knows the built-in recipes, installed or not, and loads none of their libraries."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from headrace.errors import SettingsError
from headrace.recipe import BUILT_IN, GROUP, load, registration, registrations

ROOT = Path(__file__).parents[1]


def test_the_package_declares_the_recipes_that_the_registry_lists() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert project["entry-points"][GROUP] == BUILT_IN
    assert list(registrations())[: len(BUILT_IN)] == list(BUILT_IN)


@pytest.mark.parametrize("name", BUILT_IN)
def test_everything_that_a_registration_refers_to_is_there(name: str) -> None:
    recipe = registrations()[name]
    references = [recipe.settings, recipe.verify, recipe.figures, recipe.summary]
    references += [*recipe.commands.values(), *([recipe.init.options, recipe.init.sections] if recipe.init else [])]

    assert all(load(each) is not None for each in references if each is not None)
    assert name == load(recipe.settings).model_construct().recipe_name


def test_a_name_that_is_not_known_is_answered_with_the_nearest() -> None:
    with pytest.raises(SettingsError, match=r"recipe is 'rewite'; did you mean 'rewrite'\?"):
        registration("rewite")
    with pytest.raises(SettingsError, match="recipe is None; known: histories, packed_sequences, "):
        registration(None)


def test_all_registrations_are_read_without_a_library_of_data() -> None:
    code = "import sys; from headrace.recipe import registrations; registrations(); print(*sorted({'numpy', 'pyarrow', 'polars', 'pydantic', 'torch', 'typer', 'rich'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "" == done.stdout.strip()
