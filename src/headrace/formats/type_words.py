"""Name the types and time formats that settings may have.

Loads no data library, so that shell completion is fast.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator

from headrace.errors import SettingsError

DATE_WORDS = (
    "iso",
    "yyyymmdd",
    "epoch_s",
    "epoch_ms",
    "epoch_us",
    "epoch_ns",
    "epoch_days",
    "excel_days",
)
PERIOD = "period"  # a year, quarter, month or week, which begins with its first day
ALL_COLUMNS = "*"  # types={"*": "text", "price": "float32"}


def by_column(types: str | Mapping[str, str] | None) -> dict[str, str]:
    """Return the declared types by column; a word by itself is for all of them."""
    if types is None:
        return {}
    if isinstance(types, str):
        return {ALL_COLUMNS: types}
    return dict(types)


def keeps_text(types: Mapping[str, str]) -> bool:
    """Return whether columns of text files stay text unless they are declared.

    Raises `SettingsError` for another type of all columns.
    """
    word = types.get(ALL_COLUMNS)
    if word not in (None, "text"):
        raise SettingsError(
            "all columns can be text, and have no other type together",
            setting="types",
            value=word,
            remedy="leave it out for the types that every value fits, or name columns",
        )
    return word is not None


def _known(types: Mapping[str, str]) -> Mapping[str, str]:
    from headrace.formats.types import type_named  # settings load no data libraries

    keeps_text(types)
    for word in types.values():
        type_named(word)
    return dict(sorted(types.items()))


TypeWords = Annotated[Mapping[str, str], AfterValidator(_known)]
