"""Groups of flags: what the command line sees of them, and what the command gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from headrace.cli.settings_flags import with_groups


@dataclass(frozen=True, kw_only=True)
class Shape:
    width: Annotated[int, typer.Option()]
    height: int = 2
    name: Annotated[str | None, typer.Option("--called")] = None


@dataclass(frozen=True, kw_only=True)
class Paint:
    colour: str | None = None


def heard(*arguments: str) -> tuple[int, list[Any]]:
    """The exit code, and what a command with two groups was called with."""
    got: list[Any] = []
    app = typer.Typer()

    @app.command()
    @with_groups
    def draw(path: str, *, shape: Shape, often: int = 1, paint: Paint) -> None:
        got.extend((path, often, shape, paint))

    return CliRunner().invoke(app, arguments).exit_code, got


def test_a_command_gets_its_groups_filled_from_flags() -> None:
    assert heard("a", "--width", "7", "--called", "x", "--colour", "red", "--often", "3") == (
        0,
        ["a", 3, Shape(width=7, name="x"), Paint(colour="red")],
    )


def test_what_a_group_has_no_default_for_is_required() -> None:
    assert heard("a") == (2, [])
    assert heard("a", "--width", "7") == (0, ["a", 1, Shape(width=7, height=2), Paint()])


def test_two_flags_of_one_name_are_refused_when_the_command_is_made() -> None:
    def twice(height: int, shape: Shape) -> None: ...

    with pytest.raises(ValueError, match="height"):
        with_groups(twice)
