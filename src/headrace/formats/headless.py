"""A first line that was taken for the names of columns and is data: a text file without a header. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|[-+]?(nan|inf)", re.IGNORECASE)
_TIME = re.compile(r"\d{4}[-/.]\d\d?[-/.]\d\d?([ T]\d\d?:\d\d.*)?|\d\d?[-/.]\d\d?[-/.]\d{4}( .*)?|\d\d?:\d\d(:\d\d.*)?")

REMEDY = "write a line of names before it"


def hint(names: Sequence[str], remedy: str = REMEDY) -> str:
    """What to add to a message about columns of these names: nothing, unless one of them looks like data."""
    found = next((name for name in names if _NUMBER.fullmatch(name) or _TIME.fullmatch(name)), None)
    return "" if found is None else f"; if {found!r} is data, the file has no header: {remedy}"


def is_headless(names: Sequence[str]) -> bool:
    """Whether no name looks like one: all are numbers or times, and not just counted (0, 1, 2, …) or years."""
    return (
        bool(names)
        and all(_NUMBER.fullmatch(name) or _TIME.fullmatch(name) for name in names)
        and not all(name.isdigit() for name in names)
    )
