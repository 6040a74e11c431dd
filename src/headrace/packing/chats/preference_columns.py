"""Find the columns that make rows preference data: those that compare or judge answers. Pure.

Packed as plain rows, they would teach rejected answers. These columns identify them: a name with
the word "rejected" or "dispreferred" in it, with any value; `label` or `kto_tag` with a truth
value; `score`, `reward`, `rank` or their plurals with a list, a value for each of several answers.
A `label` that is a number or another word is a class of the row, and a single `score` is its
quality; both are harmless.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any

import pyarrow as pa

from headrace.packing.chats.rejections import RowRejected, preview

_REJECTED = re.compile(r"(?:^|[^a-z])(?:rejected|dispreferred)(?:[^a-z]|$)", re.IGNORECASE)
_JUDGED = frozenset(("label", "kto_tag"))
_RANKED = frozenset(
    ("score", "scores", "reward", "rewards", "rank", "ranks", "ranking", "rankings")
)
_TRUTH = frozenset(("true", "false"))


def refuse_preference(row: Mapping[str, Any], name: str) -> None:
    """Raise `RowRejected`, because rejected answers must not be trained on, unless the column is
    the class of a text.

    The message names the settings that say which column or which rows are good.
    """
    if name in ("label", "kto_tag"):
        if "text" in row and not ("messages" in row or "prompt" in row):
            return  # the class of a text: there is no answer
        cure = (
            "prepare it with `headrace preferences`, or keep the good rows with"
            f' filters={{"{name}": ["True"]}}'
        )
    else:
        cure = (
            "prepare it with `headrace preferences`, or name the columns to train on with mapping,"
            ' e.g. "messages=chosen" or "user=prompt,assistant=chosen"'
        )
    raise RowRejected(
        "preference_data", f"column {name} is {preview(row[name])}, which judges answers; {cure}"
    )


@lru_cache(maxsize=1024)
def _telling(names: tuple[str, ...]) -> tuple[str, ...]:
    telling = []
    for name in names:
        if name in _JUDGED or name in _RANKED or _REJECTED.search(name):
            telling.append(name)
    return tuple(telling)


def preference_column(row: Mapping[str, Any]) -> str | None:
    """Return the column that makes a row preference data; None for other rows."""
    for name in _telling(tuple(row)):
        value = row[name]
        if name in _JUDGED:
            if isinstance(value, bool) or (
                isinstance(value, str) and value.strip().lower() in _TRUTH
            ):
                return name
        elif name in _RANKED:
            if isinstance(value, list | tuple):
                return name
        elif value is not None:
            return name
    return None


def preference_field(schema: pa.Schema, *, but: Collection[str] = ()) -> str | None:
    """Return the column that makes a table preference data, by the columns' types.

    but: columns to ignore.
    """
    for name in _telling(tuple(schema.names)):
        data_type = schema.field(name).type
        judged = name in _JUDGED and pa.types.is_boolean(data_type)
        ranked = name in _RANKED and (
            pa.types.is_list(data_type) or pa.types.is_large_list(data_type)
        )
        if name not in but and (judged or ranked or _REJECTED.search(name)):
            return name
    return None
