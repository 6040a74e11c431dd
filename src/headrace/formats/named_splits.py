"""Splits and columns told by names: directories called train or year=2024, files such as train-00000-of-00002.parquet.

The rules are those of the Hugging Face Hub: a word of `WORDS` names a split where it is a whole directory name, or
stands in a file's name between separators. Directories come before file names. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

WORDS = ("train", "training", "val", "valid", "validation", "dev", "test", "testing", "eval", "evaluation", "oot")
_STEMS = ("train", "val", "dev", "test", "oot")  # each word holds one of them
_IN_FILE = re.compile(rf"(?:^|[-_. 0-9])({'|'.join(WORDS)})(?=$|[-_. 0-9])", re.IGNORECASE)


class Mixed(Exception):
    """Some names tell a split and others do not. belongs: a name that does, without: one that does not."""

    def __init__(self, belongs: str, without: str) -> None:
        super().__init__(belongs, without)
        self.belongs, self.without = belongs, without


def splits_of(names: Sequence[str]) -> list[str]:
    """The split of each file, in lower case; an empty list where the names tell none.

    names: with forward slashes, only those parts that the user left open.
    Raises `Mixed` if directories name splits but not for every file, or if file names tell two splits or more but not
    for every file.
    """
    text = "\n".join(names).lower()
    if not any(stem in text for stem in _STEMS):  # a hundred thousand names in a moment
        return []
    found = [_of_directories(name) for name in names]
    if not any(found):
        found = [_of_file(name) for name in names]
        if not all(found) and len({*found} - {None}) < 2:
            return []
    if not all(found):
        raise Mixed(names[_first(found, wanted=True)], names[_first(found, wanted=False)])
    return [word for word in found if word is not None]


def _first(found: Sequence[str | None], *, wanted: bool) -> int:
    return next(place for place, word in enumerate(found) if (word is not None) is wanted)


def _of_directories(name: str) -> str | None:
    return next((part.lower() for part in name.split("/")[:-1] if is_split_name(part)), None)


def _of_file(name: str) -> str | None:
    """The one word in a file's name; None where there is none or several."""
    words = {word.lower() for word in _IN_FILE.findall(name.rpartition("/")[2])}
    return words.pop() if len(words) == 1 else None


def is_split_name(directory: str) -> bool:
    """Whether a directory of this name holds a split."""
    return directory.lower() in WORDS


def in_order(splits: Iterable[str]) -> list[str]:
    """Splits, each once, in the order in which people think of them."""
    return sorted(set(splits), key=WORDS.index)


def partition_columns(names: Iterable[str]) -> list[str]:
    """Columns that directories such as `year=2024` name, each once, sorted. names: with forward slashes."""
    parts = {part for name in names if "=" in name for part in name.split("/")[:-1]}
    return sorted({part.partition("=")[0] for part in parts if "=" in part} - {""})
