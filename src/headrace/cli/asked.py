"""What a configuration file and --set ask for, sorted into the recipe's settings and what is about the run itself."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.errors import SettingsError

OF_THE_RUN = ("recipe", "out", "workers", "fingerprint_by", "engine", "address")


def with_settings(record: Mapping[str, Any], texts: Sequence[str]) -> dict[str, Any]:
    """The record with each NAME=VALUE put in; the value is YAML, a name with dots goes into nested settings.

    Raises `SettingsError`.
    """
    changed = dict(record)
    for text in texts:
        name, value = one_setting(text)
        *path, last = name.split(".")
        inner = changed
        for step in path:
            below = inner.get(step, {})
            if not isinstance(below, Mapping):
                raise SettingsError(f"--set {text!r}: {step} is {below!r} and has no {last}; set {step} as a whole")
            inner[step] = dict(below)
            inner = inner[step]
        inner[last] = value
    return changed


def one_setting(text: str) -> tuple[str, Any]:
    """(name, value) of NAME=VALUE. Raises `SettingsError`."""
    import yaml

    from headrace.settings import load_yaml

    name, found, value = text.partition("=")
    if not found or not name.strip():
        raise SettingsError(f"--set is {text!r}; give NAME=VALUE, e.g. --set seed=7")
    try:
        return name.strip(), load_yaml(value)
    except yaml.YAMLError as error:
        raise SettingsError(f"--set {text!r}: the value is no YAML ({error}); quote it") from error


def nearest(name: object, known: Sequence[str]) -> str:
    """A hint: the known name that is nearest, else all of them."""
    near = difflib.get_close_matches(name, known, n=1) if isinstance(name, str) else []
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"


def check_names(where: object, record: Mapping[str, Any], known: Sequence[str]) -> None:
    """Raise `SettingsError` naming every key that is no setting, each with the nearest one."""
    allowed = [*known, *OF_THE_RUN]
    strange: list[str] = []
    for name in (each for each in record if each not in allowed):
        hint = nearest(name, allowed)
        told = any(line.endswith(hint) for line in strange)  # all of them once is enough
        strange.append(f"{where}: {name!r} is no setting" + ("" if told else f"; {hint}"))
    if strange:
        raise SettingsError(*strange)
