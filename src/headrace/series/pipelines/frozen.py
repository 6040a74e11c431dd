"""Fitted pipelines as JSON and objects apart, and a single one as bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.digest import canonical_json
from headrace.errors import CorruptShard
from headrace.series.arrays.scalers import Scalers
from headrace.series.pipelines.fitted import Fitted, Part
from headrace.series.pipelines.objects import ObjectScalers, describe, from_skops, to_skops


def split(fitted: Fitted) -> tuple[list[dict[str, Any]], list[list[Any]]]:
    """JSON of every part, and scikit-learn's objects of those that have some."""
    records: list[dict[str, Any]] = []
    objects: list[list[Any]] = []
    for part in fitted.parts:
        if isinstance(part, Scalers):
            records.append(part.to_json())
        else:
            records.append({**describe(part), "place": len(objects)})
            objects.append(list(part.objects))
    return records, objects


def needs_objects(records: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a part of these has objects beside its JSON."""
    return any("objects" in each for each in records)


def together(records: Sequence[Mapping[str, Any]], objects: Any, where: str) -> Fitted:
    """What `split` took apart. Raises `CorruptShard` where it does not fit together."""
    parts: list[Part] = []
    try:
        for each in records:
            if "objects" not in each:
                parts.append(Scalers.from_json(each))
                continue
            entities = None if each["entities"] is None else tuple(map(str, each["entities"]))
            made = tuple(objects[each["place"]])
            if len(made) != (1 if entities is None else len(entities)):
                raise ValueError("there are not as many objects as entities")
            parts.append(ObjectScalers(tuple(map(str, each["columns"])), entities, tuple(each["objects"]), made))
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise CorruptShard(f"{where}: is damaged ({error}); restore it or prepare the run again") from error
    return Fitted(tuple(parts))


def to_bytes(part: Part) -> bytes:
    """One fitted pipeline; the same fit is the same bytes."""
    records, objects = split(Fitted((part,)))
    return canonical_json(records) + b"\n" + (to_skops(objects) if objects else b"")


def from_bytes(data: bytes) -> Part:
    """What `to_bytes` gave."""
    head, _, tail = data.partition(b"\n")
    return together(json.loads(head), from_skops(tail, "pipeline") if tail else None, "pipeline").parts[0]
