"""Read the settings in configuration files, and describe such files to editors: `headrace run
--schema`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Annotated, Any, get_args, get_type_hints

from headrace.checks import nearest
from headrace.cli.settings_flags import RunOptions
from headrace.errors import SettingsError, setting_name
from headrace.printable import short_repr

# What a configuration may have besides the settings of its recipe.
RUN_KEYS = ("out", "workers", "fingerprint_by", "engine", "address", "max_dropped")
_ANYTHING = {"type": ["string", "number", "array", "object"]}


def read_config(path: Path) -> dict[str, Any]:
    """Read the settings in a YAML or JSON file. Raises `SettingsError`."""
    import yaml

    from headrace.settings import load_yaml

    if path.is_dir():
        remedy = f"write one with `headrace init {path} --out DIRECTORY --config FILE`"
        raise SettingsError("is a directory, not a file of settings", path=path, remedy=remedy)
    try:
        record = load_yaml(path.read_text("utf-8"))
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
        raise SettingsError(problem, path=path, remedy="check the path") from error
    except UnicodeDecodeError as error:
        problem = f"is not UTF-8 (byte {error.start})"
        raise SettingsError(problem, path=path, remedy="convert it to UTF-8") from error
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        problem = f"is not valid YAML ({error})"
        raise SettingsError(problem, path=path, remedy="fix the file") from error
    if not isinstance(record, dict):
        remedy = f"if it is data, `headrace init {path} --out DIRECTORY --config FILE` writes one"
        raise SettingsError("contains no settings", path=path, remedy=remedy)
    for key in record:
        if not isinstance(key, str):
            problem = f"{short_repr(key)} is not a valid name of a setting"
            raise SettingsError(problem, path=path, remedy="write names as text")
    return record


def with_settings(record: Mapping[str, Any], texts: Sequence[str]) -> dict[str, Any]:
    """Return the record with each NAME=VALUE set; values are YAML, and dotted names go into nested
    settings.

    Raises `SettingsError`.
    """
    changed = dict(record)
    for text in texts:
        name, value = one_setting(text)
        *parents, last = name.split(".")
        mapping = changed
        for parent in parents:
            below = mapping.get(parent, {})
            if not isinstance(below, Mapping):
                raise SettingsError(
                    f"{parent} is {short_repr(below)}, which has no {last}",
                    setting="settings",
                    value=text,
                    remedy=f"set all of {parent}",
                )
            mapping[parent] = dict(below)
            mapping = mapping[parent]
        mapping[last] = value
    return changed


def one_setting(text: str) -> tuple[str, Any]:
    """Read NAME=VALUE as (name, value). Raises `SettingsError`."""
    import yaml

    from headrace.settings import load_yaml

    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        remedy = f"write e.g. {setting_name('settings')} seed=7"
        raise SettingsError("expected NAME=VALUE", setting="settings", value=text, remedy=remedy)
    try:
        return name.strip(), load_yaml(value)
    except yaml.YAMLError as error:
        problem = f"the value is not valid YAML ({error})"
        raise SettingsError(problem, setting="settings", value=text, remedy="quote it") from error


def check_names(path: Path | str, names: Iterable[str], known: Sequence[str]) -> None:
    """Raise `SettingsError` that lists every unknown setting with the most similar known one."""
    allowed = [*known, "recipe", *RUN_KEYS]
    list_of_known = f"known: {', '.join(allowed)}"
    problems: list[str] = []
    for name in names:
        if name in allowed:
            continue
        hint = nearest(name, allowed, list_of_known)
        problem = f"{name!r} is not a setting"
        if not any(line.endswith(hint) for line in problems):  # list the known names once
            problem += f"; {hint}"
        problems.append(problem)
    if problems:
        raise SettingsError(*problems, path=path)


def take_run_options(
    config: Path, record: dict[str, Any], *, out: Path | None, flags: RunOptions
) -> tuple[Path, RunOptions]:
    """Remove the options of the run itself from a configuration; return the output and the options.

    Flags take precedence over the file. Raises `SettingsError`.
    """
    from headrace.storage.places import path_of

    in_file = {name: record.pop(name, None) for name in RUN_KEYS}
    target = out or in_file.pop("out")
    if target is None:
        remedy = f"add it or give {setting_name('out')} DIRECTORY"
        raise SettingsError("has no `out`", path=config, remedy=remedy)
    if not isinstance(target, str | PurePath):
        raise SettingsError(setting="out", path=config, value=target, remedy="give a directory")
    merged = {}
    for name, annotation in _run_annotations().items():
        merged[name] = getattr(flags, name)
        if merged[name] is None and in_file[name] is not None:
            merged[name] = _checked(config, name, in_file[name], annotation)
    return path_of(target), replace(flags, **merged)


def _run_annotations() -> dict[str, Any]:
    """Return the types of the options that configurations may have too, with their bounds."""
    from pydantic import Field

    hints = get_type_hints(RunOptions, include_extras=True)
    annotations = {}
    for name in RUN_KEYS:
        if name in hints:
            value_type, option = get_args(hints[name])[:2]
            field = Field(ge=option.min, le=option.max, description=option.help)
            annotations[name] = Annotated[value_type, field]
    return annotations


def _checked(config: Path, name: str, value: object, annotation: Any) -> object:
    """Return an option's value if it has the option's type. Raises `SettingsError`."""
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(annotation).validate_python(value, strict=True)
    except ValidationError as error:
        rule = error.errors()[0]["msg"].replace("Input should", "it should")
        raise SettingsError(setting=name, path=config, value=value, remedy=rule) from None


def schema_of(recipes: list[str]) -> dict[str, Any]:
    """Return the schema of the configuration files of these recipes."""
    definitions: dict[str, Any] = {}
    for recipe in recipes:
        definitions |= _definitions_of(recipe)
    alternatives = []
    for recipe in recipes:
        condition = {"properties": {"recipe": {"const": recipe}}}
        alternatives.append({"if": condition, "then": {"$ref": f"#/$defs/{recipe}"}})
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "headrace run",
        "type": "object",
        "required": ["recipe"],
        "properties": {"recipe": {"enum": recipes}},
        "allOf": alternatives,
        "$defs": definitions,
    }


def _definitions_of(recipe: str) -> dict[str, Any]:
    """Return the schema of a recipe's settings and of the models they refer to, by names of its
    own.
    """
    from pydantic import BeforeValidator

    from headrace.recipe import find_recipe

    model = find_recipe(recipe).settings()
    schema = model.model_json_schema(ref_template=f"#/$defs/{recipe}.{{model}}")
    inner = {f"{recipe}.{name}": loosened(part) for name, part in schema.pop("$defs", {}).items()}
    schema = loosened(schema)
    properties = schema["properties"]
    for name, field in model.model_fields.items():
        for key in ("panel", "flag"):  # used only by the command line
            properties[name].pop(key, None)
        # Such settings accept more than their type. The schema then only helps completion; the run
        # validates.
        converts = any(isinstance(rule, BeforeValidator) for rule in field.metadata)
        if converts or "$ref" in json.dumps(properties[name]):
            properties[name] = {"anyOf": [properties[name], _ANYTHING]}
        if field.description:  # editors show the top-level description
            properties[name] |= {"description": field.description}
    schema["properties"] = {"recipe": {"const": recipe}, **_run_properties(), **properties}
    schema["description"] = (model.__doc__ or "").strip()
    return {recipe: schema, **inner}


def _run_properties() -> dict[str, Any]:
    """Return the schema of what a configuration may have besides the settings of its recipe."""
    from pydantic import TypeAdapter

    out = {"type": "string", "description": "Output directory; --out overrides it."}
    properties: dict[str, Any] = {"out": out}
    for name, annotation in _run_annotations().items():
        properties[name] = TypeAdapter(annotation).json_schema()
    return properties


def loosened(schema: Any) -> Any:
    """Allow a single value wherever the schema requires a list, as headrace's settings do."""
    if isinstance(schema, list):
        return [loosened(part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    inner = {key: loosened(part) for key, part in schema.items()}
    items = inner.get("items")
    if inner.get("type") == "array" and isinstance(items, Mapping):
        return {"anyOf": [inner, items]}
    return inner
