"""Groups of flags: a frozen dataclass whose fields are flags, for commands that share them or have many.

`@with_groups` stands on a command whose parameters may be such dataclasses. The command line sees their fields, each
as a flag of its own in the place of the group; the command gets the group.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from typing import Annotated, Any, get_type_hints

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


def with_groups(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with the fields of its groups as keyword parameters; a field without a default is required.

    Raises `ValueError` if two flags have one name.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {}
    flags: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if is_dataclass(hints[name]):
            groups[name] = hints[name]
            flags += _fields_of(hints[name])
        else:
            flags.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name]))

    @functools.wraps(command)
    def called(**values: Any) -> Any:
        made = {
            name: group(**{field.name: values.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        return command(**values, **made)

    called.__signature__ = inspect.Signature(flags)  # type: ignore[attr-defined]  # what inspect looks for first
    called.__annotations__ = {each.name: each.annotation for each in flags}
    return called


def _fields_of(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(group)
    ]


def given_in(*groups: Any) -> dict[str, Any]:
    """What was given of the flags of these groups, by name: all that is not None."""
    found = {field.name: getattr(group, field.name) for group in groups for field in fields(group)}
    return {name: value for name, value in found.items() if value is not None}
