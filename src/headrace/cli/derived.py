"""Derive a recipe's command from its settings: a flag for each field, with the field's type, default and description.

The settings model is imported when the command is used, not when all commands are listed.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import typer
from typer.core import TyperCommand

from headrace.cli.about_run import AboutRun
from headrace.cli.commands import execute
from headrace.cli.flags import with_groups
from headrace.cli.text_columns import null_values_of, types_of
from headrace.recipe import Registration, load

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo


def derived_command(recipe: Registration) -> type[TyperCommand]:
    """Make the class of a command whose parameters are those of the recipe's settings."""

    class Derived(TyperCommand):
        @cached_property
        def made(self) -> Any:
            app = typer.Typer(add_completion=False)
            app.command(self.name)(_callback(recipe))
            return typer.main.get_command(app)

        @property
        def params(self) -> Any:
            return self.made.params

        @params.setter
        def params(self, value: Any) -> None:
            """Ignore the parameters of the placeholder."""

        @property
        def callback(self) -> Any:
            return self.made.callback

        @callback.setter
        def callback(self, value: Any) -> None:
            """Ignore the placeholder."""

    return Derived


def _callback(recipe: Registration) -> Callable[..., Any]:
    model = load(recipe.settings)
    fields: Mapping[str, FieldInfo] = model.model_fields

    def command(*, out: Path, about: AboutRun, **given: Any) -> None:
        values = {name: _value(fields[name], value) for name, value in given.items() if value is not None}
        execute(model(**values), out, about)

    hints: dict[str, Any] = {name: _parameter(name, field) for name, field in fields.items()}
    hints["out"] = Annotated[Path, typer.Option(help="Output directory.", show_default=False)]
    hints["about"] = AboutRun
    required = {name for name, field in fields.items() if field.is_required()} | {"out", "about"}
    command.__annotations__ = hints
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # what inspect looks for first
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=_EMPTY if name in required else None)
            for name in hints
        ]
    )
    return with_groups(command)


_EMPTY = inspect.Parameter.empty


def _parameter(name: str, field: FieldInfo) -> Any:
    """The annotation of a parameter, for typer."""
    kind, words = kind_of(field)
    told = field.description or ""
    if name == "source":
        return Annotated[list[str], typer.Argument(help=told)]
    default = "" if field.is_required() or field.default in (None, ()) or field.default_factory else str(field.default)
    if words:
        told += f" {' | '.join(f'{word} (default)' if word == default else word for word in words)}."
    elif default:
        told += f" {default} unless given."
    option = typer.Option(
        f"--{name.replace('_', '-')}",
        help=told,
        show_default=False,
        metavar={"names": "NAME,...", "pairs": "NAME=TYPE", "yaml": "YAML"}.get(kind),
        autocompletion=(lambda: list(words)) if words else None,
    )
    of = {"int": int, "float": float, "path": Path, "names": list[str], "pairs": list[str]}.get(kind, str)
    return Annotated[of if field.is_required() else of | None, option]


Kind = Literal["text", "int", "float", "path", "names", "pairs", "yaml"]


def kind_of(field: FieldInfo) -> tuple[Kind, tuple[str, ...]]:
    """How a setting is written as one flag, and the words it is one of, if it is."""
    annotation = field.annotation
    while True:
        origin, inner = get_origin(annotation), [each for each in get_args(annotation) if each is not type(None)]
        if origin is Annotated or (origin in (Union, types.UnionType) and len(inner) == 1):
            annotation = inner[0]
        else:
            break
    if origin is Literal:
        return "text", tuple(map(str, inner))
    if origin is tuple:
        return "names", ()
    if origin is not None and issubclass(origin, Mapping):
        return ("pairs" if inner == [str, str] else "yaml"), ()
    kinds: dict[Any, Kind] = {int: "int", float: "float", str: "text", Path: "path"}
    return kinds.get(annotation, "yaml"), ()


def _value(field: FieldInfo, given: Any) -> Any:
    """A flag's value as the settings model takes it."""
    kind, _ = kind_of(field)
    if kind == "pairs":
        return types_of(given)
    if kind == "yaml":
        from headrace.settings import load_yaml

        return load_yaml(given)
    return null_values_of(given) if kind == "names" and isinstance(given, list) else given
