"""Damage to saved states: every flip of one bit of their JSON, and changes of their structure."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from headrace.errors import StreamError
from headrace.sealed import seal

HUGE = 10**40
NUMBERS = (True, False, -1, 0, 1, HUGE, -HUGE, 1 << 20_000, 1.0, 1e300, float("nan"), float("inf"))
_OTHERS: tuple[Any, ...] = (None, *NUMBERS, "1", "", "x" * 5_000_000, [], {}, [[]])


def flips(text: str, bits: Iterator[int] | range | None = None) -> Iterator[Any]:
    """What is still JSON after one bit of its bytes was flipped. bits: which; None: every one."""
    data = bytearray(text.encode())
    for bit in range(8 * len(data)) if bits is None else bits:
        data[bit // 8] ^= 1 << bit % 8
        with suppress(ValueError, RecursionError):
            yield json.loads(bytes(data))
        data[bit // 8] ^= 1 << bit % 8


def mutations(state: dict[str, Any]) -> Iterator[Any]:
    """The state with a key removed, added or moved, or a value replaced by another kind of value, at every depth."""
    yield from (None, 3, "state", [], [state], {}, {"state": state})
    for path in _paths(state):
        for other in _OTHERS:
            yield _with(state, path, lambda at, key, other=other: at.__setitem__(key, other))
        yield _with(state, path, lambda at, key: at.__delitem__(key))
        if isinstance(path[-1], str):
            yield _with(state, path, lambda at, key: at.__setitem__(f"{key}_", at[key]))
            yield _with(state, path, lambda at, key: at.__setitem__(f"{key}_", at.pop(key)))
        else:
            yield _with(state, path, lambda at, key: at.insert(key, at[key]))


def resealed(state: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """The state with these values and a digest that fits them: damage that only the bounds can find."""
    values = {**state, **changes}
    own = values.pop("kind"), values.pop("format_version")
    values.pop("digest")
    return seal(*own, values)


def verdicts(states: Iterator[Any], load: Callable[[Any], Any], expected: Any) -> dict[str, int]:
    """How many of these were refused in words, and how many loaded as `expected`. Anything else is an error."""
    found = {"tried": 0, "refused": 0, "the same": 0, "longest message": 0}
    for each in states:
        found["tried"] += 1
        try:
            loaded = load(each)
        except StreamError as error:
            found["refused"] += 1
            found["longest message"] = max(found["longest message"], len(str(error)))
        else:
            assert loaded == expected, each
            found["the same"] += 1
    return found


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inside = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, each in inside:
        yield (*path, key)
        yield from _paths(each, (*path, key))


def _with(state: Any, path: tuple[Any, ...], change: Callable[[Any, Any], Any]) -> Any:
    changed = copy.deepcopy(state)
    at = changed
    for key in path[:-1]:
        at = at[key]
    change(at, path[-1])
    return changed
