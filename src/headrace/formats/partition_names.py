"""Parse the names of Hive directories, `key=value`. Listing files needs this and no data library."""

from __future__ import annotations

from urllib.parse import unquote

from headrace.errors import InputError

_MISSING = "__HIVE_DEFAULT_PARTITION__"


def is_partition(directory: str) -> bool:
    """Check whether a directory name is a column's name and value."""
    return "=" in directory[1:] and directory[0] not in "._"


def partition_of(name: str) -> dict[str, str | None]:
    """Parse the columns in a shard's name, outermost first; None is a missing value.

    Raises `InputError` if a column is repeated, or the name is not percent-encoded UTF-8.
    """
    found: dict[str, str | None] = {}
    for part in filter(is_partition, name.split("/")[:-1] if "=" in name else ()):
        key, _, text = part.partition("=")
        try:
            key, value = unquote(key, errors="strict"), unquote(text, errors="strict")
        except UnicodeDecodeError:
            raise InputError(f"{name}: {part} is not percent-encoded UTF-8; rename the directory") from None
        if key in found:
            raise InputError(f"{name}: two directories say what {key} is; rename one of them")
        found[key] = None if text == _MISSING else value
    return found
