"""Derive a recipe's command from its settings: a flag for each field, with its type, default and description.

The settings model is imported when the command is used, not when the commands are listed.
"""

from __future__ import annotations

import inspect
import os
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

from headrace.cli.commands import execute
from headrace.cli.flags import RunOptions, flag, null_values_of, types_of, with_groups, with_parameters

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

Out = Annotated[Path, typer.Option(help="Output directory.", show_default=False)]


@dataclass(frozen=True)
class Given:
    """The settings given as flags. A parameter of this type becomes one flag per field of the model.

    A field with the name of another parameter of the command gets no flag: the command reads it in its own way.
    """

    model: Any
    values: dict[str, Any]

    def recipe(self, **settings: Any) -> Any:
        """Build the recipe; `settings` take precedence over flags."""
        return self.model(**{**self.values, **settings})


class PartlyGiven(Given):
    """Settings of which no flag is required, because the command finds missing ones elsewhere, as in `environment`."""

    environment: ClassVar[Mapping[str, str]] = os.environ


def prepare_run(*, given: Given, out: Out, about: RunOptions) -> None:
    """Prepare the run of the recipe that the flags describe."""
    execute(given.recipe(), out, about)


def add_derived(
    app: typer.Typer,
    word: str,
    settings: Callable[[], Any],
    command: Callable[..., Any] = prepare_run,
    told: str | None = None,
) -> None:
    """Add a command whose parameter of type `Given` is replaced by the fields of a settings model.

    settings: imports the model.
    """

    class Derived(TyperCommand):
        """A placeholder that reads the settings only when its parameters are read or it is called."""

        @cached_property
        def made(self) -> Any:
            app = typer.Typer(add_completion=False)
            app.command(self.name)(_with_flags(settings, command))
            return typer.main.get_command(app)

        @property
        def params(self) -> Any:
            return self.made.params

        @params.setter
        def params(self, value: Any) -> None:
            """Ignore the placeholder's own parameters."""

        @property
        def callback(self) -> Any:
            return self.made.callback

        @callback.setter
        def callback(self, value: Any) -> None:
            """Ignore the placeholder's own callback."""

    text = inspect.getdoc(command) if told is None else inspect.cleandoc(told)
    app.command(word, cls=Derived, help=text)(lambda: None)


def is_derived(command: Callable[..., Any]) -> bool:
    """Return True if the command has a parameter of type `Given`."""
    return any(hint in (Given, PartlyGiven) for hint in get_type_hints(command).values())


def _with_flags(settings: Callable[[], Any], command: Callable[..., Any]) -> Callable[..., Any]:
    """Return the command with one parameter per setting instead of its parameter of type `Given`."""
    from headrace.settings import former_names, renamed  # imports pydantic, which listing commands does not need

    model = settings()
    hints = get_type_hints(command, include_extras=True)
    own = inspect.signature(command).parameters
    fields: Mapping[str, FieldInfo] = {name: each for name, each in model.model_fields.items() if name not in own}
    former = {old: name for old, name in former_names(model).items() if name in fields}
    group, kind = next((name, hint) for name, hint in hints.items() if hint in (Given, PartlyGiven))

    def called(**values: Any) -> Any:
        flags = {name: values.pop(name) for name in (*fields, *former)}
        flags = {
            name: value if name == "source" else _value(fields[former.get(name, name)], value)
            for name, value in flags.items()
            if value is not None
        }
        return command(**values, **{group: kind(model, renamed(model, flags))})

    parameters: list[inspect.Parameter] = []
    for name, parameter in own.items():
        if name != group:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name]))
            continue
        for setting, field in fields.items():
            # A setting with a former name may be given under either name, so the model checks that it is present.
            required = field.is_required() and kind is Given and setting not in former.values()
            parameters.append(_parameter(setting, field, "required" if required else "optional"))
        parameters += (_parameter(old, fields[name], "optional", hidden=True) for old, name in former.items())
    return with_groups(with_parameters(called, parameters))


def _parameter(
    name: str, field: FieldInfo, need: Literal["required", "optional"], *, hidden: bool = False
) -> inspect.Parameter:
    """Make the parameter of a setting, annotated for typer."""
    kind, words = kind_of(field)
    default = MISSING if need == "required" else None
    if name == "source":
        return flag(name, Annotated[list[str], typer.Argument(help=described(field))], default)
    metavars = {"names": "TEXT,...", "pairs": "NAME=TYPE", "yaml": "YAML"}
    option = typer.Option(
        f"--{name.replace('_', '-')}",
        help=described(field),
        show_default=False,
        metavar="TEXT" if words else None if _extra(field, "flag") == "repeated" else metavars.get(kind),
        hidden=hidden,
        rich_help_panel=_extra(field, "panel"),
    )
    of: Any = {"int": int, "float": float, "names": list[str], "pairs": list[str]}.get(kind, str)
    of = Literal[words] if words else of
    of = of if need == "required" else of | None
    return flag(name, Annotated[of, option], default)


def described(field: FieldInfo) -> str:
    """Return the description of a setting, followed by the words it takes or by its default."""
    _, words = kind_of(field)
    told = field.description or ""
    if words:
        return f"{told} {' | '.join(f'{word} (default)' if word == field.default else word for word in words)}."
    if field.is_required() or field.default in (None, ()) or field.default_factory is not None:
        return told
    default = ", ".join(map(str, field.default)) if isinstance(field.default, tuple) else field.default
    if isinstance(default, int) and default and default % (1 << 20) == 0:  # as one would write it
        default = f"{default >> 30}GiB" if default % (1 << 30) == 0 else f"{default >> 20}MiB"
    return f"{told} {default} unless given."


def _extra(field: FieldInfo, name: str) -> Any:
    """Return a field's metadata about its flag.

    "panel": in the help. "flag": "repeated" if commas are part of the value. None if it is not set.
    """
    return field.json_schema_extra.get(name) if isinstance(field.json_schema_extra, Mapping) else None


Kind = Literal["text", "int", "float", "names", "pairs", "yaml"]


def kind_of(field: FieldInfo) -> tuple[Kind, tuple[str, ...]]:
    """Return how a setting is written as one flag, and its allowed words; () if it takes others."""
    annotation = field.annotation
    while True:
        origin, inner = get_origin(annotation), [each for each in get_args(annotation) if each is not type(None)]
        if origin is not Annotated and (origin not in (Union, types.UnionType) or len(inner) != 1):
            break
        annotation = inner[0]
    if origin is Literal:
        return "text", tuple(map(str, inner))
    if origin is tuple:
        return ("yaml" if hasattr(inner[0], "model_fields") else "names"), ()  # lists of models are written as YAML
    if origin is not None and issubclass(origin, Mapping):
        return ("pairs" if inner == [str, str] else "yaml"), ()
    if any(type(each).__name__ == "BeforeValidator" for each in field.metadata):
        return "text", ()  # it accepts more than its type, such as 8MiB
    kinds: dict[Any, Kind] = {int: "int", float: "float", str: "text", Path: "text", date: "text"}
    return kinds.get(annotation, "yaml"), ()


def _value(field: FieldInfo, given: Any) -> Any:
    """Convert a flag's value to the form that the settings model takes."""
    kind, _ = kind_of(field)
    if kind == "pairs":
        return types_of(given)
    if kind == "yaml":
        from headrace.settings import load_yaml

        return load_yaml(given)
    if kind == "names":
        return given if _extra(field, "flag") == "repeated" else null_values_of(given)
    return given
