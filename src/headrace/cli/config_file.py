"""Read the settings in configuration files, and describe them to editors: `headrace run --schema`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

from headrace.checks import nearest
from headrace.cli.flags import RunOptions
from headrace.errors import SettingsError
from headrace.printable import shown

OF_THE_RUN: dict[str, Any] = {  # allowed in a configuration besides the settings
    "out": {"type": "string", "description": "Output directory; --out overrides it."},
    "workers": {"type": ["integer", "null"], "minimum": 1, "description": "Tasks at a time; default: one per core."},
    "fingerprint_by": {"enum": ["stat", "content", None], "description": "How source files are identified."},
    "engine": {"enum": ["local", "ray", None], "description": "Where tasks run."},
    "address": {"type": ["string", "null"], "description": "Address of the Ray cluster."},
}
_ANYTHING = {"type": ["string", "number", "array", "object"]}


def read_config(path: Path) -> dict[str, Any]:
    """Read the settings in a YAML or JSON file. Raises `SettingsError`."""
    import yaml

    from headrace.settings import load_yaml

    if path.is_dir():
        raise SettingsError(
            f"{path}: is a directory, not a file of settings; write one with `headrace init RECIPE {path} … "
            "--config FILE`"
        )
    try:
        record = load_yaml(path.read_text("utf-8"))
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: is not UTF-8 (byte {error.start}); convert it to UTF-8") from error
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise SettingsError(f"{path}: is not valid YAML ({error}); fix the file") from error
    if not isinstance(record, dict):
        raise SettingsError(f"{path}: contains no settings; write `recipe: temporal_split` and its settings")
    for wrong in (key for key in record if not isinstance(key, str)):
        raise SettingsError(f"{path}: {shown(wrong)} is not a valid name of a setting; write names as text")
    return record


def with_settings(record: Mapping[str, Any], texts: Sequence[str]) -> dict[str, Any]:
    """Return the record with each NAME=VALUE set; values are YAML, and dotted names go into nested settings.

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
                raise SettingsError(f"--set {text!r}: {step} is {below!r}, which has no {last}; set all of {step}")
            inner[step] = dict(below)
            inner = inner[step]
        inner[last] = value
    return changed


def one_setting(text: str) -> tuple[str, Any]:
    """Read NAME=VALUE as (name, value). Raises `SettingsError`."""
    import yaml

    from headrace.settings import load_yaml

    name, found, value = text.partition("=")
    if not found or not name.strip():
        raise SettingsError(f"--set: expected NAME=VALUE, got {text!r}; write e.g. --set seed=7")
    try:
        return name.strip(), load_yaml(value)
    except yaml.YAMLError as error:
        raise SettingsError(f"--set {text!r}: the value is not valid YAML ({error}); quote it") from error


def check_names(where: object, names: Iterable[str], known: Sequence[str]) -> None:
    """Raise `SettingsError` that lists every unknown setting with the most similar known one."""
    allowed = [*known, "recipe", *OF_THE_RUN]
    strange: list[str] = []
    for name in (each for each in names if each not in allowed):
        hint = nearest(name, allowed, f"known: {', '.join(allowed)}")
        told = any(line.endswith(hint) for line in strange)  # print the list of known names once
        strange.append(f"{where}: {name!r} is not a setting" + ("" if told else f"; {hint}"))
    if strange:
        raise SettingsError(*strange)


def about_the_run(
    config: Path, record: dict[str, Any], *, out: Path | None, flags: RunOptions
) -> tuple[Path, RunOptions]:
    """Remove the options of the run itself from a configuration, and return (output, merged flags).

    Flags take precedence over the file. Raises `SettingsError`.
    """
    from headrace.storage.places import path_of

    found = {name: record.pop(name, None) for name in OF_THE_RUN}
    target = out or found["out"]
    count = found["workers"] if flags.workers is None else flags.workers
    if target is None:
        raise SettingsError(f"{config}: has no `out`; add it or give --out DIRECTORY")
    if not isinstance(target, str | PurePath):
        raise SettingsError(f"{config}: out is {shown(target)}; give a directory")
    if count is not None and (not isinstance(count, int) or isinstance(count, bool)):
        raise SettingsError(f"{config}: workers is {shown(count)}; give a whole number, 1 or more")
    words = {name: getattr(flags, name) or found[name] for name in ("fingerprint_by", "engine", "address")}
    return path_of(target), replace(flags, workers=count, **words)


def schema_of(recipes: list[str]) -> dict[str, Any]:
    """Return the schema of the configuration files of these recipes."""
    from pydantic import BeforeValidator

    from headrace.recipe import find_recipe

    definitions: dict[str, Any] = {}
    for name in recipes:  # the recipe and the models it refers to, under names that are its own
        model = find_recipe(name).settings()
        made = model.model_json_schema(ref_template=f"#/$defs/{name}.{{model}}")
        inner = {f"{name}.{key}": loosened(value) for key, value in made.pop("$defs", {}).items()}
        own = loosened(made)
        for field, about in model.model_fields.items():
            shown = own["properties"][field]
            for key in ("panel", "flag", "former", "former_words"):  # used only by the command line
                shown.pop(key, None)
            # Such settings accept more than their type. The schema then only helps completion; the run validates.
            if any(isinstance(each, BeforeValidator) for each in about.metadata) or "$ref" in json.dumps(shown):
                own["properties"][field] = {"anyOf": [shown, _ANYTHING]}
            if about.description:  # editors show the top-level description
                own["properties"][field] |= {"description": about.description}
        own["properties"] = {"recipe": {"const": name}, **OF_THE_RUN, **own["properties"]}
        own["description"] = (model.__doc__ or "").strip()
        definitions |= {name: own, **inner}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "headrace run",
        "type": "object",
        "required": ["recipe"],
        "properties": {"recipe": {"enum": recipes}},
        "allOf": [
            {"if": {"properties": {"recipe": {"const": name}}}, "then": {"$ref": f"#/$defs/{name}"}} for name in recipes
        ],
        "$defs": definitions,
    }


def loosened(schema: Any) -> Any:
    """Allow a single value wherever the schema requires a list, as headrace's settings do."""
    if isinstance(schema, list):
        return [loosened(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    inner = {key: loosened(value) for key, value in schema.items()}
    items = inner.get("items")
    if inner.get("type") == "array" and isinstance(items, Mapping):
        return {"anyOf": [inner, items]}
    return inner
