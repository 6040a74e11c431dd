"""Which character separates the fields of a delimited file: the header says it, and the rows where it says two.

Comma, semicolon, pipe and tab are known. One of them in the header, outside quotes, is the separator whatever the name
of the file. Of several, it is the one that gives all rows of the file's first bytes as many fields as the header; where
that does not tell, nothing is guessed. The word of a shard's format in an index keeps what was found.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np

from headrace.errors import InputError
from headrace.formats import records
from headrace.formats.detect import Kind

SEPARATOR = {"csv": ",", "tsv": "\t"}
NAMES = {",": "comma", ";": "semicolon", "|": "pipe", "\t": "tab"}
_MARK = "-"


def word_of(kind: Kind, separator: str | None) -> str:
    """The word of a format in an index: "csv.gz", "parquet"; "csv-semicolon.gz" where the name does not tell."""
    word = kind.extension.removeprefix(".")
    if separator is None or SEPARATOR.get(kind.format) == separator:
        return word
    format_, dot, compression = word.partition(".")
    return f"{format_}{_MARK}{NAMES[separator]}{dot}{compression}"


def separator_of(word: str) -> tuple[str, str | None]:
    """A word of an index without what it says of separators, and the separator; None if the format has none.

    Raises `KeyError` on a name that is none of a separator.
    """
    format_, dot, compression = word.partition(".")
    plain, mark, name = format_.partition(_MARK)
    separator = {name: each for each, name in NAMES.items()}[name] if mark else SEPARATOR.get(plain)
    return f"{plain}{dot}{compression}", separator


def find_separator(path: Path, text: bytes, *, format_: str, width: int | None, reads: Literal["all", "part"]) -> str:
    """The separator of the text at a file's beginning, which holds the first record.

    width: number of columns where the first record need not be a header. reads: whether the text is all of the file;
    a part may end inside a record. Raises `InputError` where two separators would do.
    """
    data = records.as_bytes(text)
    quotes = records.quote_positions(data)
    ends = records.record_ends(data, quotes)
    own = SEPARATOR[format_]
    if not len(ends) or width == 1:
        return own
    at = {each: records.outside_quotes(data, quotes, ord(each)) for each in NAMES}
    held = [each for each in NAMES if len(at[each]) and at[each][0] < ends[0]]
    if len(held) < 2:
        return held[0] if held else own
    whole = ends if reads == "all" or len(ends) == 1 else ends[:-1]
    row = ~records.blank(data, whole)
    if width is None and np.count_nonzero(row) == 1:  # a header and no rows, so nothing that could be read wrongly
        return own if own in held else held[0]
    fitting = []
    for each in held:
        fields = records.fields_per_record(at[each], whole)[row]
        if (fields == (fields[0] if width is None else width)).all():
            fitting.append(each)
    if len(fitting) == 1:
        return fitting[0]
    if not fitting and own in held:
        return own  # a damaged file of its own kind; reading says which row
    first = bytes(text[: int(ends[0])])[:80].decode("utf-8", "replace").strip()
    names = " and ".join(f"{NAMES[each]}s" for each in fitting or held)
    raise InputError(
        f"{path}: line 1 can be separated by {names}, and the rows do not tell which: {first!r}; put quotes around the "
        f"fields that hold the other character"
    )
