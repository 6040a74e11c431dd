"""Parse one JSON document strictly: no repeated keys, no NaN or Infinity. Pure."""

from __future__ import annotations

import json
from typing import Any


class RepeatedKey(ValueError):
    """An object repeats a key."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the key {key!r} appears twice in an object")
        self.key = key


def no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object from pairs, as an `object_pairs_hook` of `json`. Raises `RepeatedKey`."""
    record = dict(pairs)
    if len(record) != len(pairs):
        names = [key for key, _ in pairs]
        raise RepeatedKey(next(key for index, key in enumerate(names) if key in names[:index]))
    return record


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a JSON number")


DECODER = json.JSONDecoder(object_pairs_hook=no_repeats, parse_constant=_refuse)


def loads(text: str | bytes) -> Any:
    """Parse JSON without repeated keys, NaN and Infinity. Raises `ValueError`."""
    return json.loads(text, object_pairs_hook=no_repeats, parse_constant=_refuse)
