"""Derive flags from fields: of settings models, and of dataclasses that group the flags of
commands.

A setting is written once, as a field with its type, words and description. Here it becomes a flag;
in `settings_file` it becomes a key of configuration files and of their schema. A command declares
parameters of three forms:

    path: Source                a parameter annotated for typer, as usual
    about: RunOptions           a dataclass: each field is a flag, the command receives the object
    flags: FlagValues           the fields of a recipe's settings: each is a flag

The settings model is imported when the command is used, not when the commands are listed.
"""

from __future__ import annotations

import functools
import inspect
import os
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from datetime import date
from functools import cached_property, partial
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import typer
from typer.core import TyperCommand

from headrace.errors import SettingsError, setting_name

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

unless_given = partial(typer.Option, show_default=False)
_machines = partial(unless_given, rich_help_panel="More than one machine")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Out = Annotated[Path, unless_given(help="Output directory.")]
WorkDir = Annotated[
    Path | None,
    _machines(
        help=(
            "Local directory with free space where a run for an object store is built; "
            "~/.cache/headrace unless given."
        )
    ),
]
Report = Annotated[
    Literal["auto", "never"],
    typer.Option(
        envvar="HEADRACE_REPORT",
        help="auto: write report.html, a page about the run.",
        show_envvar=True,
    ),
]


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Run options of every preparing command. None of them changes a byte of the output."""

    workers: Annotated[
        int | None, unless_given(min=1, help="Tasks at a time; default: one per core.")
    ] = None
    fingerprint_by: Annotated[
        Literal["stat", "content"] | None,
        unless_given(
            help=(
                "How source files are identified: by size and time (stat, the default), or by "
                "their bytes, which are read once more (content)."
            )
        ),
    ] = None
    engine: Annotated[
        Literal["local", "ray"] | None,
        _machines(
            help=(
                "Where tasks run: here (local, the default), or on a Ray cluster over shared "
                "storage."
            )
        ),
    ] = None
    address: Annotated[
        str | None,
        _machines(
            help=(
                "Address of the Ray cluster; auto: the one this machine belongs to. Unless given, "
                "Ray is started here."
            )
        ),
    ] = None
    work_dir: WorkDir = None
    max_dropped: Annotated[
        float | None,
        unless_given(
            min=0,
            max=1,
            help=(
                "Exit with 1 if more than this share of the rows or entities is left out; 0.5"
                " unless given."
            ),
        ),
    ] = None
    report: Report = "auto"
    as_json: Json = False

    def options(self) -> dict[str, Any]:
        """Return keyword arguments of `prepare`."""
        return {
            "workers": self.workers,
            "fingerprint_by": self.fingerprint_by or "stat",
            "engine": self.engine or "local",
            "address": self.address,
            "work_dir": self.work_dir,
        }


@dataclass(frozen=True)
class FlagValues:
    """The settings given as flags.

    A parameter of this type becomes one flag per field of the model.

    A field with the name of another parameter of the command gets no flag: the command reads it in
    its own way.
    """

    model: Any
    values: dict[str, Any]

    def recipe(self, **settings: Any) -> Any:
        """Build the recipe; `settings` take precedence over flags."""
        return self.model(**{**self.values, **settings})


class PartialFlagValues(FlagValues):
    """Settings of which no flag is required: the command finds them elsewhere, as in
    `environment`.
    """

    environment: ClassVar[Mapping[str, str]] = os.environ


def with_groups(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return the command with the fields of its groups as keyword parameters, required without a
    default.

    Raises `ValueError` if two flags have the same name.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {}
    flags: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if not is_dataclass(hints[name]):
            annotated = parameter.replace(annotation=hints[name])
            flags.append(annotated.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        group = groups[name] = hints[name]
        annotations = get_type_hints(group, include_extras=True)
        for field in fields(group):
            flags.append(_parameter(field.name, annotations[field.name], field.default))

    @functools.wraps(command)
    def call(**values: Any) -> Any:
        arguments = {}
        for name, group in groups.items():
            arguments[name] = group(
                **{field.name: values.pop(field.name) for field in fields(group)}
            )
        return command(**values, **arguments)

    return _with_parameters(call, flags)


def add_derived(
    app: typer.Typer,
    word: str,
    settings: Callable[[], Any],
    command: Callable[..., Any],
    help_text: str | None = None,
) -> None:
    """Add a command whose parameter of type `FlagValues` is replaced by the fields of a settings
    model.

    settings: returns the model. help_text: instead of the command's docstring.
    """

    class Derived(TyperCommand):
        """A placeholder that reads the settings only when its parameters are read or it is
        called.
        """

        @cached_property
        def derived(self) -> Any:
            app = typer.Typer(add_completion=False)
            app.command(self.name)(_with_flags(settings(), command))
            return typer.main.get_command(app)

        @property
        def params(self) -> Any:
            return self.derived.params

        @params.setter
        def params(self, value: Any) -> None:
            """Ignore the placeholder's own parameters."""

        @property
        def callback(self) -> Any:
            return self.derived.callback

        @callback.setter
        def callback(self, value: Any) -> None:
            """Ignore the placeholder's own callback."""

    if help_text is None:
        text = inspect.getdoc(command)
    else:
        text = inspect.cleandoc(help_text)
    app.command(word, cls=Derived, help=text)(lambda: None)


def is_derived(command: Callable[..., Any]) -> bool:
    """Return True if the command has a parameter of type `FlagValues`."""
    return any(hint in (FlagValues, PartialFlagValues) for hint in get_type_hints(command).values())


def _with_flags(model: Any, command: Callable[..., Any]) -> Callable[..., Any]:
    """Return the command with one parameter per setting instead of its parameter of type
    `FlagValues`.
    """
    hints = get_type_hints(command, include_extras=True)
    parameters = inspect.signature(command).parameters
    settings: dict[str, FieldInfo] = {}
    for name, field in model.model_fields.items():
        if name not in parameters:
            settings[name] = field
    flags: list[inspect.Parameter] = []
    for name, parameter in parameters.items():
        hint = hints[name]
        if hint in (FlagValues, PartialFlagValues):
            group = name
            values_type = hint
            for field_name, field in settings.items():
                required = field.is_required() and values_type is FlagValues
                flags.append(_parameter_of(field_name, field, required=required))
        else:
            annotated = parameter.replace(annotation=hint)
            flags.append(annotated.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    def call(**values: Any) -> Any:
        provided = {}
        for name, field in settings.items():
            value = values.pop(name)
            if value is not None:
                if name == "source":
                    provided[name] = value
                else:
                    provided[name] = _settings_value(field, value)
        return command(**values, **{group: values_type(model, provided)})

    return with_groups(_with_parameters(call, flags))


def _parameter_of(name: str, field: FieldInfo, *, required: bool) -> inspect.Parameter:
    """Make the parameter of a setting, annotated for typer."""
    default = None
    if required:
        default = MISSING
    if name == "source":
        argument = Annotated[list[str], typer.Argument(help=describe(field))]
        return _parameter(name, argument, default)
    form = flag_form(field)
    metavar = _METAVARS.get(form.name)
    if form.words:
        metavar = "TEXT"
    elif _extra(field, "flag") == "repeated":
        metavar = None
    option = typer.Option(
        f"--{name.replace('_', '-')}",
        help=describe(field),
        show_default=False,
        metavar=metavar,
        rich_help_panel=_extra(field, "panel"),
    )
    value_type: Any = _FLAG_TYPES.get(form.name, str)
    if form.words:
        value_type = Literal[form.words]
    if not required:
        value_type = value_type | None
    return _parameter(name, Annotated[value_type, option], default)


def _parameter(name: str, annotation: Any, default: Any = MISSING) -> inspect.Parameter:
    """Make a keyword parameter, which is required if it has no default."""
    if default is MISSING:
        default = inspect.Parameter.empty
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def _with_parameters(
    command: Callable[..., Any], parameters: Sequence[inspect.Parameter]
) -> Callable[..., Any]:
    """Give a command that takes any keywords a signature for the command line."""
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # inspect looks for it first
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


@dataclass(frozen=True)
class FlagForm:
    """How a setting is written as one flag. words: the allowed ones; empty if it takes others."""

    name: Literal["text", "int", "float", "names", "pairs", "yaml"]
    words: tuple[str, ...] = ()


_METAVARS = {"names": "TEXT,...", "pairs": "NAME=TYPE", "yaml": "YAML"}
_FLAG_TYPES: Mapping[str, Any] = {
    "int": int,
    "float": float,
    "names": list[str],
    "pairs": list[str],
}
_FORMS = {
    int: FlagForm("int"),
    float: FlagForm("float"),
    str: FlagForm("text"),
    Path: FlagForm("text"),
    date: FlagForm("text"),
}


def flag_form(field: FieldInfo) -> FlagForm:
    """Return how a setting is written as a flag."""
    annotation: Any = field.annotation
    while True:
        origin = get_origin(annotation)
        inner = []
        for part in get_args(annotation):
            if part is not type(None):
                inner.append(part)
        optional = origin in (Union, types.UnionType) and len(inner) == 1
        if origin is not Annotated and not optional:
            break
        annotation = inner[0]
    if origin is Literal:
        return FlagForm("text", tuple(map(str, inner)))
    if origin in (Union, types.UnionType) and any(get_origin(part) is tuple for part in inner):
        return FlagForm("names")  # one, or several
    if origin is tuple:  # lists of models are written as YAML
        return FlagForm("yaml" if hasattr(inner[0], "model_fields") else "names")
    if origin is not None and issubclass(origin, Mapping):
        return FlagForm("pairs" if inner == [str, str] else "yaml")
    if any(type(rule).__name__ == "BeforeValidator" for rule in field.metadata):
        return FlagForm("text")  # it accepts more than its type, such as 8MiB
    return _FORMS.get(annotation, FlagForm("yaml"))


def describe(field: FieldInfo) -> str:
    """Return the description of a setting, followed by the words it takes or by its default."""
    text = field.description or ""
    words = flag_form(field).words
    if words:
        marked = [f"{word} (default)" if word == field.default else word for word in words]
        return f"{text} {' | '.join(marked)}."
    default = field.default
    if field.is_required() or default in (None, ()) or field.default_factory is not None:
        return text
    if isinstance(default, tuple):
        default = ", ".join(map(str, default))
    elif isinstance(default, int) and default and default % (1 << 20) == 0:  # as one would write it
        if default % (1 << 30):
            default = f"{default >> 20}MiB"
        else:
            default = f"{default >> 30}GiB"
    return f"{text} {default} unless given."


def _extra(field: FieldInfo, name: str) -> Any:
    """Return a field's metadata about its flag; None if it has none.

    "panel": in the help. "flag": "repeated" if commas are part of the value.
    """
    extra = field.json_schema_extra
    if isinstance(extra, Mapping):
        return extra.get(name)
    return None


def _settings_value(field: FieldInfo, value: Any) -> Any:
    """Convert a flag's value to the form that the settings model takes."""
    form = flag_form(field).name
    if form == "pairs":
        return types_of(value)
    if form == "yaml":
        # with pydantic, which listing commands does not need
        from headrace.settings import load_yaml

        return load_yaml(value)
    if form == "names" and _extra(field, "flag") != "repeated":
        return null_values_of(value)
    return value


def types_of(texts: Sequence[str] | None) -> dict[str, str]:
    """Parse NAME=TYPE pairs; the word text becomes {"*": "text"}.

    Raises `SettingsError` for invalid words and for names with two types.
    """
    declared: dict[str, str] = {}
    for text in filter(None, null_values_of(texts)):
        if text == "text":
            declared["*"] = text
            continue
        name, equals, type_word = (part.strip() for part in text.rpartition("="))
        if not equals or not name:
            raise SettingsError(
                "expected NAME=TYPE or text",
                setting="types",
                value=text,
                remedy=f"write e.g. {setting_name('types')} distance=int32",
            )
        earlier = declared.setdefault(name, type_word)
        if earlier != type_word:
            raise SettingsError(
                f"{name!r} is given as {earlier} and as {type_word}",
                setting="types",
                remedy="give one type",
            )
    return declared


def pairs_of(
    option: str,
    texts: Iterable[str],
    form: str,
    example: str,
    *,
    empty: Literal["refuse", "take"] = "refuse",
) -> dict[str, str]:
    """Parse texts of a form such as NAME=COLUMN, split at the first "="; blank texts are skipped.

    empty: whether to refuse or take empty values. Raises `SettingsError` for an invalid text.
    """
    pairs: dict[str, str] = {}
    for text in filter(str.strip, texts):
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not name or (not value and empty == "refuse"):
            raise SettingsError(
                f"expected {form}", setting=option, value=text, remedy=f"write e.g. {example}"
            )
        pairs[name] = value
    return pairs


def null_values_of(texts: Sequence[str] | None) -> tuple[str, ...]:
    """Return the distinct texts; each argument may contain several, separated by commas."""
    return tuple(dict.fromkeys(part.strip() for text in texts or () for part in text.split(",")))
