"""Tells rows that compare or judge answers from rows that only show good ones. Pure.

Such data trains a model by preference. Packed as plain rows it would teach the answers that somebody rejected. A row is
taken for it by its columns:

- a name with the word "rejected" or "dispreferred" in it, such as `rejected` or `rejected_input_ids`, with any value;
- `label` or `kto_tag` with a truth value, also written as the text true or false;
- `score`, `reward`, `rank` or their plurals with a list, which is a value for each of several answers.

A `label` that is a number or another word is a class of the row, and one `score` is its quality: both are harmless.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any

import pyarrow as pa

_REJECTED = re.compile(r"(?:^|[^a-z])(?:rejected|dispreferred)(?:[^a-z]|$)", re.IGNORECASE)
_JUDGED = frozenset(("label", "kto_tag"))
_RANKED = frozenset(("score", "scores", "reward", "rewards", "rank", "ranks", "ranking", "rankings"))
_TRUTH = frozenset(("true", "false"))


@lru_cache(maxsize=1024)
def _telling(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in names if name in _JUDGED or name in _RANKED or _REJECTED.search(name))


def preference_column(row: Mapping[str, Any]) -> str | None:
    """Find the column that makes a row preference data; None for other rows."""
    for name in _telling(tuple(row)):
        value = row[name]
        if name in _JUDGED:
            if isinstance(value, bool) or (isinstance(value, str) and value.strip().lower() in _TRUTH):
                return name
        elif name in _RANKED:
            if isinstance(value, list | tuple):
                return name
        elif value is not None:
            return name
    return None


def preference_field(schema: pa.Schema, *, but: Collection[str] = ()) -> str | None:
    """Find it in a table, by the types of its columns; those of `but` are no sign."""
    for name in _telling(tuple(schema.names)):
        kind = schema.field(name).type
        judged = name in _JUDGED and pa.types.is_boolean(kind)
        ranked = name in _RANKED and (pa.types.is_list(kind) or pa.types.is_large_list(kind))
        if name not in but and (judged or ranked or _REJECTED.search(name)):
            return name
    return None
