"""Name the types and time formats that settings may have.

Loads no data library, so that shell completion is fast.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator

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
INFER = "infer"
ALL_COLUMNS = "*"  # types={"*": "infer", "zip": "text"}


def asks_to_infer(types: object) -> bool:
    """Return whether types are inferred from the source: the word itself, or a mapping with it for
    all others.
    """
    return types == INFER or (isinstance(types, Mapping) and types.get(ALL_COLUMNS) == INFER)


def _known(types: Mapping[str, str]) -> Mapping[str, str]:
    from headrace.formats.types import type_named  # settings load no data libraries

    if asks_to_infer(types):
        raise ValueError(
            "types of joined features are not inferred; name them, e.g. balance=float64"
        )
    for word in types.values():
        type_named(word)
    return dict(sorted(types.items()))


TypeWords = Annotated[Mapping[str, str], AfterValidator(_known)]
