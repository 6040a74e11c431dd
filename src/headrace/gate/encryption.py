"""Find encryption in the footer of a Parquet file, before its column metadata is touched.

pyarrow reads the footer of a file with encrypted columns, and has no question for them. Where the
metadata of a column is encrypted itself, asking for it ends the process. So the Thrift of the
footer is read here – only if its signature follows it, or if it has bytes in which a column names
its key: a scan, as reading a footer in Python takes a few times as long as in Arrow.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from headrace.gate.pages import CutError, PageError, fields_of

# The header of field 8, in either of its forms, is followed by that of a union's field 2, and that
# by a path or a key: `crypto_metadata` of a column.
_COLUMN_KEY = re.compile(
    rb"(?:[\x1c\x2c\x3c\x4c\x5c\x6c\x7c\x8c]|\x0c\x10)(?:\x2c|\x0c\x04)[^\x00]"
)
_ROW_GROUPS, _ALGORITHM = 4, 8  # fields of a footer
_COLUMNS = 1  # of a row group
_CRYPTO_METADATA = 8  # of a column
_COLUMN_HAS_KEY = 2  # of that: else it is encrypted with the key of the footer
_PATH = 1  # of that


class Encryption(NamedTuple):
    """What a footer says. columns: those that name a key of their own, with dots in the paths of
    nested ones.
    """

    columns: list[str]


def encryption_of(footer: bytes, parsed_bytes: int) -> Encryption | None:
    """Return which columns of a file are encrypted; None if none is.

    footer: without its length and the magic. parsed_bytes: what Arrow has read of it; a signature
    is behind that.
    """
    if parsed_bytes == len(footer) and not _COLUMN_KEY.search(footer):
        return None
    is_encrypted = False
    columns: dict[str, None] = {}
    try:
        for number, value in fields_of(footer):
            if number == _ALGORITHM:
                is_encrypted = True
            elif number == _ROW_GROUPS:
                for crypto in _crypto_metadata(value):
                    is_encrypted = True
                    columns.update(dict.fromkeys(_path(crypto)))
    except (CutError, PageError):
        return None  # Arrow has read it otherwise
    return Encryption(list(columns)) if is_encrypted else None


def _crypto_metadata(row_groups: object) -> Iterator[dict[int, object]]:
    for group in _structs(row_groups):
        for column in _structs(group.get(_COLUMNS)):
            crypto = column.get(_CRYPTO_METADATA)
            if isinstance(crypto, dict):
                yield crypto


def _path(crypto: dict[int, object]) -> Iterator[str]:
    key = crypto.get(_COLUMN_HAS_KEY)
    if isinstance(key, dict):
        path = key.get(_PATH)
        if isinstance(path, list):
            names = [part for part in path if isinstance(part, bytes)]
            yield b".".join(names).decode(errors="replace")


def _structs(value: object) -> list[dict[int, object]]:
    items = value if isinstance(value, list) else []
    return [item for item in items if isinstance(item, dict)]
