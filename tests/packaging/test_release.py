"""What a release says of itself in several files is the same in all of them."""

from __future__ import annotations

import re
import runpy
import tomllib
from pathlib import Path

import yaml

import headrace

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
RECIPE = yaml.safe_load((ROOT / "release/conda/recipe.yaml").read_text("utf-8"))
CONDA_NAMES = {"xxhash": "python-xxhash"}


def test_the_version_is_the_same_everywhere() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))

    assert {PROJECT["version"]} == {
        headrace.__version__,
        cited["version"],
        RECIPE["context"]["version"],
    }


def test_the_conda_recipe_asks_for_the_dependencies_of_the_package() -> None:
    wanted = [
        re.fullmatch(r"(\w+)(>=[\d.]+)", each)
        for each in PROJECT["dependencies"]
        if ";" not in each
    ]
    bounds = {f"{CONDA_NAMES.get(each[1], each[1])} {each[2]}" for each in wanted if each}

    assert len(wanted) == len(bounds)
    assert bounds == {
        each for each in RECIPE["requirements"]["run"] if not each.startswith(("python ", "__"))
    }


def test_the_badges_say_what_the_project_says() -> None:
    names = runpy.run_path(str(ROOT / "docs/site/badges.py"))
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))

    assert names["drawn"](names["badges"](settings)) == names["PICTURE"].read_text("utf-8")
