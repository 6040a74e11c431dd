"""Messages name only options that their reader has: settings of the recipe that complains, flags that exist."""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

import headrace
from headrace.cli import app
from headrace.recipe import recipes
from headrace.stream.loader.options import StreamArguments

SOURCE = Path(headrace.__file__).parent
RECIPES = sorted(recipes())
SHARED = ("bins", "dataset", "engine", "formats", "run", "storage")
READERS = (
    "contexts",
    "windows",
    "read",
    "on_the_fly",
)  # of what a capability prepares; their options are not its settings
# What is advised to be set where data is prepared, by readers of data that was prepared otherwise.
OF_DATASETS = {"layout"}  # a key of each dataset of a blend
FOR_PREPARING = {"format", "packed_storage", "dialect", "types"}
RUN = set(inspect.signature(headrace.prepare).parameters)
OPEN = set(inspect.signature(headrace.open).parameters)


def settings_of(recipe: str) -> set[str]:
    return set(recipes()[recipe].settings().model_fields)


def folder_of(recipe: str) -> str:
    """Where its settings are, below the package."""
    return "/".join(type(recipes()[recipe]).__module__.split(".")[1:-1])


def sentences(file: Path) -> Iterator[str]:
    """The texts of a module that people are told: all that are no docstring, joined where values stand between."""
    nodes = list(ast.walk(ast.parse(file.read_text("utf-8"))))
    told_of = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    inside = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                part.value if isinstance(part, ast.Constant) else "…" for part in node.values
            )
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in told_of | inside
        ):
            yield node.value


def options_in(text: str) -> set[str]:
    """Names that a text says can be given, as `name=value` or by their underscore."""
    words = re.sub(r"<[a-z]+ [^<>]*", "", text)  # attributes of HTML are none
    return set(re.findall(r"(?<![\w.-])([a-z][a-z_]*)=", words))


def named_in(file: Path) -> set[str]:
    """Names that the messages of a module say can be given: marked, or as `name=`."""
    names = {name for text in sentences(file) for name in options_in(text)}
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("setting", "setting_name")
            and isinstance(node.args[0], ast.Constant)
        ):
            names.add(str(node.args[0].value))
    return names


def modules(*parts: str) -> list[Path]:
    return sorted(file for part in parts for file in (SOURCE / part).rglob("*.py"))


def flags_of(command: Any) -> set[str]:
    """Of a command and those below it."""
    own = {word for each in command.params for word in (*each.opts, *each.secondary_opts)}
    return own.union(*map(flags_of, getattr(command, "commands", {}).values()))


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_names_settings_of_its_own(recipe: str) -> None:
    same_folder = [name for name in RECIPES if folder_of(name) == folder_of(recipe)]
    known = set().union(*map(settings_of, same_folder))
    others = set().union(*map(settings_of, RECIPES)) - known - RUN - OF_DATASETS
    inner = {
        SOURCE / folder_of(each)
        for each in RECIPES
        if folder_of(each).startswith(f"{folder_of(recipe)}/")
    }
    files = [
        file
        for file in modules(folder_of(recipe))
        if file.parent.name not in READERS and file.parent not in inner
    ]
    said = {(file.name, name) for file in files for name in named_in(file)}

    assert [] == sorted((file, name) for file, name in said if name in others)
    assert said


@pytest.mark.slow
def test_what_recipes_share_names_no_setting_of_one_of_them() -> None:
    of_recipes = {name for recipe in RECIPES for name in settings_of(recipe)}
    of_streams = set(StreamArguments.__annotations__)  # `columns` is a setting of any reader
    own = of_recipes - of_streams - FOR_PREPARING - RUN - OPEN
    said = {(file.name, name) for file in modules(*SHARED) for name in named_in(file)}

    assert {name for _, name in said} >= {"cache", "engine", "multiprocessing_context"}
    assert [] == sorted((file, name) for file, name in said if name in own)


def test_flags_in_texts_exist() -> None:
    known = flags_of(typer.main.get_command(app)) | {"--help"}
    others = {
        "--head",
        "--standalone",
        "--nproc-per-node",
        "--shm-size",
        "--revision",
        "--exclude",
    }  # of `ray start`, torchrun, docker, `hf download`
    proof = set(
        re.findall(r'"(--[a-z][a-z-]*)"', (SOURCE / "validate_sharding.py").read_text("utf-8"))
    )
    said = {
        (file.name, flag)
        for file in modules(".")
        for text in sentences(file)
        for flag in re.findall(r"(?<![\w(-])--[a-z][a-z-]*", text)
    }

    assert len(said) > 50
    assert [] == sorted((file, flag) for file, flag in said if flag not in known | others | proof)
