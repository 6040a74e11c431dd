"""Print the JSON Schema of what `headrace run` takes, for editors that complete and check YAML."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from headrace.cli.output import emit

_RUN: dict[str, Any] = {
    "out": {"type": "string", "description": "Output directory; --out stands before it."},
    "workers": {"type": ["integer", "null"], "minimum": 1, "description": "Tasks at a time; default one per core."},
    "fingerprint_by": {"enum": ["stat", "content", None], "description": "What tells source files apart."},
    "engine": {"enum": ["local", "ray", None], "description": "Where the tasks are done."},
    "address": {"type": ["string", "null"], "description": "Of the Ray cluster."},
}
_ANYTHING = {"type": ["string", "number", "array", "object"]}


def schema(
    recipe: Annotated[str | None, typer.Argument(help="Of this recipe only; all unless given.")] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="The same on one line.")] = False,
) -> None:
    """Print the JSON Schema of configuration files. It is never stricter than `headrace run`, which has the last word.

    In an editor with a YAML language server, the first line of a file names the schema:
    `# yaml-language-server: $schema=headrace.schema.json`.

    Example:  headrace schema > headrace.schema.json
    """
    from headrace.recipe import registration, registrations

    names = sorted(registrations()) if recipe is None else [registration(recipe).name]
    emit(schema_of(names), indent=None if as_json else 1)


def schema_of(recipes: list[str]) -> dict[str, Any]:
    """Return the schema of the configuration files of these recipes."""
    from headrace.recipe import load, registration

    definitions: dict[str, Any] = {}
    for name in recipes:
        definitions |= _definitions(name, load(registration(name).settings))
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


def _definitions(name: str, model: Any) -> dict[str, Any]:
    """The recipe and what it refers to, by names of its own."""
    from pydantic import BeforeValidator

    made = model.model_json_schema(ref_template=f"#/$defs/{name}.{{model}}")
    inner = {f"{name}.{key}": loosened(value) for key, value in made.pop("$defs", {}).items()}
    own = loosened(made)
    for field, about in model.model_fields.items():
        shown = own["properties"][field]
        for key in ("panel", "flag", "former", "former_words"):  # for the command line
            shown.pop(key, None)
        # Such settings take more than their type says; the schema is for completion there, the run has the last word.
        if any(isinstance(each, BeforeValidator) for each in about.metadata) or "$ref" in json.dumps(shown):
            own["properties"][field] = {"anyOf": [shown, _ANYTHING]}
        if about.description:  # editors show what stands at the top
            own["properties"][field] |= {"description": about.description}
    own["properties"] = {"recipe": {"const": name}, **_RUN, **own["properties"]}
    own["description"] = (model.__doc__ or "").strip()
    return {name: own, **inner}


def loosened(schema: Any) -> Any:
    """Allow one value alone where the schema wants a list, as everywhere in headrace's settings."""
    if isinstance(schema, list):
        return [loosened(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    inner = {key: loosened(value) for key, value in schema.items()}
    items = inner.get("items")
    if inner.get("type") == "array" and isinstance(items, Mapping):
        return {"anyOf": [inner, items]}
    return inner
