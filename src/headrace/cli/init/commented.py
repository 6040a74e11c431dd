"""Write a configuration as YAML with comments: sections of settings, each below an explanation."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

_WIDTH = 112


@dataclass
class Section:
    """An explanation and the settings below it.

    A setting whose value is `Aside` is written as a comment. doubt: of the words, what is printed
    as a warning too.
    """

    words: str
    settings: dict[str, Any] = field(default_factory=dict)
    doubt: str = ""


@dataclass(frozen=True)
class Aside:
    """A value that is proposed but not set.

    needed: whether the run requires the setting. stand_in: makes, in a new directory, settings to
    try the others with.
    """

    value: Any
    needed: bool = False
    stand_in: Callable[[Path], dict[str, Any]] | None = None


def with_dialect(sections: Sequence[Section]) -> list[Section]:
    """Join the parts of `dialect` of all sections in the first one that has any; a proposed part is
    shown with those that are set.
    """
    parts: dict[str, Any] = {}
    for section in sections:
        value = section.settings.get("dialect")
        if isinstance(value, dict):
            parts |= value
    result = []
    written = False
    for section in sections:
        settings = dict(section.settings)
        value = settings.get("dialect")
        if isinstance(value, Aside):
            settings["dialect"] = Aside(parts | value.value)
        elif value is not None:
            del settings["dialect"]
            if not written:
                settings["dialect"] = parts
            written = True
        result.append(Section(section.words, settings))
    return result


def needed_settings(sections: Sequence[Section]) -> dict[str, Any]:
    """Return the proposed settings that a run requires."""
    result = {}
    for section in sections:
        for name, value in section.settings.items():
            if isinstance(value, Aside) and value.needed:
                result[name] = value.value
    return result


def settings_of(sections: Sequence[Section]) -> dict[str, Any]:
    """Return the settings of the sections, without proposed ones."""
    result = {}
    for section in with_dialect(sections):
        for name, value in section.settings.items():
            if not isinstance(value, Aside):
                result[name] = value
    return result


def proposed_settings(sections: Sequence[Section]) -> dict[str, Any]:
    """Return the settings of a recipe that sections propose."""
    settings = settings_of(sections)
    del settings["recipe"], settings["out"]
    return settings


def commented_yaml(sections: Sequence[Section]) -> str:
    """Return the text of the configuration; reading it gives `settings_of(sections)`."""
    lines: list[str] = []
    for section in with_dialect(sections):
        for part in section.words.splitlines():
            lines += textwrap.wrap(part, _WIDTH, initial_indent="# ", subsequent_indent="# ") or [
                "#"
            ]
        for name, value in section.settings.items():
            aside = isinstance(value, Aside)
            entry = _setting(name, value.value if aside else value)
            if aside:
                lines += [f"# {line}" for line in entry]
            else:
                lines += entry
        lines.append("")
    return "\n".join(lines)


def _setting(name: str, value: Any) -> list[str]:
    if not isinstance(value, list | dict) or not value:
        return [f"{name}: {_flat(value)}"]
    flat = f"{name}: {_flat(value)}"
    if len(flat) <= _WIDTH and not isinstance(value, dict):
        return [flat]
    text = yaml.safe_dump(
        {name: value}, sort_keys=False, allow_unicode=True, width=_WIDTH, default_flow_style=None
    )
    return text.rstrip("\n").split("\n")


def _flat(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10**9)
    return text.removesuffix("\n").removesuffix("\n...")
