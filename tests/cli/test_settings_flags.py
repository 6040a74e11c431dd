"""Flags are the fields of the settings: every setting has one, with its description, and its value arrives."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest
import typer
from all_commands import COMMANDS
from pydantic import BeforeValidator, Field
from typer.testing import CliRunner

from headrace.cli import commands, settings_flags
from headrace.recipe import find_recipe
from headrace.run.settings import RecipeSettings
from headrace.settings import Names, Settings

FLAGS = {("split",): "temporal_split", ("pack",): "packed_sequences", ("preferences",): "preferences", ("histories", "prepare"): "histories", ("series",): "series", ("rewrite",): "rewrite"}  # fmt: skip


@pytest.mark.parametrize("words", FLAGS)
def test_every_setting_is_a_parameter_and_says_what_it_is(words: tuple[str, ...]) -> None:
    fields = find_recipe(FLAGS[words]).settings().model_fields
    told = {str(each.name): getattr(each, "help", None) for each in COMMANDS[words].params}

    assert [] == [name for name in fields if not told.get(name)]
    assert [] == [
        name for name, field in fields.items() if not (field.description or "").endswith(".")
    ]


class Every(RecipeSettings):
    """A setting of every kind."""

    recipe_name: ClassVar[str] = "every"

    source: Names = Field(description="Files.")
    number: int = Field(3, ge=1, description="A number.")
    share: float | None = Field(None, description="A share.")
    word: Literal["one", "two"] = Field("two", description="A word.")
    names: Names = Field((), description="Names.")
    forms: Names = Field(("a",), json_schema_extra={"flag": "repeated"}, description="Forms.")
    pairs: dict[str, str] = Field(default_factory=dict, description="Pairs.")
    values: dict[str, Any] = Field(default_factory=dict, description="Values.")
    day: datetime.date | None = Field(None, description="A day.")
    size: Annotated[int, BeforeValidator(lambda value: int(str(value).removesuffix("MiB")))] = Field(8 << 20, description="Size.")  # fmt: skip
    place: Path | None = Field(None, description="A place.")


def invoke(monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[Settings | None, str]:
    """The settings that a derived command builds from the words, and what it prints."""
    made: list[Settings] = []
    monkeypatch.setattr(commands, "execute", lambda recipe, out, about: made.append(recipe))
    app = typer.Typer()
    settings_flags.add_derived(app, "every", lambda: Every, commands.prepare_run, "Do every.")
    done = CliRunner().invoke(app, list(words), env={"COLUMNS": "200"})
    return (made[0] if made else None), done.output


def test_values_arrive_as_the_settings_take_them(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["raw", "more", "--out", "o", "--number", "5", "--share", "0.5", "--word", "one", "--names", "a,b", "--names", "c", "--forms", "%d,%m", "--forms", "iso", "--pairs", "x=int8,y=text", "--day", "2026-01-31", "--size", "9MiB", "--place", "p"]  # fmt: skip
    made, _ = invoke(monkeypatch, *words, "--values", "{a: [1]}")

    assert isinstance(made, Every)
    assert (("raw", "more"), 5, 0.5, "one", ("a", "b", "c"), ("%d,%m", "iso")) == (made.source, made.number, made.share, made.word, made.names, made.forms)  # fmt: skip
    assert ({"x": "int8", "y": "text"}, {"a": [1]}, datetime.date(2026, 1, 31), 9, Path("p")) == (made.pairs, made.values, made.day, made.size, made.place)  # fmt: skip


def test_what_is_not_given_is_the_default_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = invoke(monkeypatch, "raw", "--out", "o")

    assert Every(source="raw") == made


def test_help_is_the_description_the_words_and_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    _, told = invoke(monkeypatch, "--help")

    for text in ("A number. 3 unless given.", "A word. one | two (default).", "Forms. a unless given.", "Size. 8MiB unless given.", "A share."):  # fmt: skip
        assert text in told
