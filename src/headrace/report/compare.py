"""Two runs side by side: what differs in settings, source, counts, columns and libraries. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from headrace.report.facts import RunFacts

Kind = Literal["recipe", "settings", "source", "counts", "schema", "libraries"]
KINDS: tuple[Kind, ...] = ("recipe", "settings", "source", "counts", "schema", "libraries")
ABSENT = "–"


@dataclass(frozen=True)
class Difference:
    """One thing that is not the same. first, second: as text; "–" where a run has no such thing."""

    kind: Kind
    name: str
    first: str
    second: str


def differences(first: RunFacts, second: RunFacts) -> list[Difference]:
    """Everything that differs, in the order of `KINDS`; empty for the same run twice."""
    one, two = first.manifest, second.manifest
    found = list(_differing("recipe", {"recipe": one.recipe}, {"recipe": two.recipe}))
    found += _differing("settings", first.config, second.config)
    found += _differing("source", _source(first), _source(second))
    found += _differing("counts", _counts(first), _counts(second))
    found += _differing("schema", _columns(first), _columns(second))
    if [each["name"] for each in one.schema] != [each["name"] for each in two.schema] and _columns(first) == _columns(
        second
    ):
        order = [", ".join(each["name"] for each in manifest.schema) for manifest in (one, two)]
        found.append(Difference("schema", "order of columns", *order))
    found += _differing("libraries", one.libraries, two.libraries)
    return found


def _differing(kind: Kind, first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[Difference]:
    for name in sorted({*first, *second}):
        if name not in first or name not in second or first[name] != second[name]:
            yield Difference(kind, name, _text(first, name), _text(second, name))


def _text(values: Mapping[str, Any], name: str) -> str:
    if name not in values:
        return ABSENT
    value = values[name]
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)


def _source(facts: RunFacts) -> dict[str, Any]:
    return {name.replace("_", " "): value for name, value in facts.manifest.source.items()}


def _counts(facts: RunFacts) -> dict[str, Any]:
    manifest = facts.manifest
    found: dict[str, Any] = {}
    for split, totals in manifest.splits.items():
        found |= {f"{split} rows": totals.rows, f"{split} shards": totals.shards, f"{split} bytes": totals.bytes}
    found |= {f"dropped: {reason}": rows for reason, rows in manifest.dropped.items() if rows}
    numbers = {
        name: value
        for name, value in manifest.facts.items()
        if isinstance(value, int | float) and not name.endswith("_us")  # times follow from the settings
    }
    return found | {name.replace("_", " "): value for name, value in numbers.items()}


def _columns(facts: RunFacts) -> dict[str, str]:
    return {each["name"]: f"{each['type']}{'' if each['nullable'] else ', no nulls'}" for each in facts.manifest.schema}
