"""Read splits and columns from the names of directories and files. Needs no data library. Pure.

Splits are named by directories called train, or files such as train-00000-of-00002.parquet. The
rules are those of the Hugging Face Hub: a word of `WORDS` names a split if it is a whole directory
name, or is delimited by separators in a file's name. Directories take precedence over file names.
Columns are named by Hive directories, `key=value`.

Endings such as .crdownload name files that are not whole yet.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from urllib.parse import unquote

from headrace.errors import InputError
from headrace.formats.registry import is_data_name

WORDS = (
    "train",
    "training",
    "val",
    "valid",
    "validation",
    "dev",
    "test",
    "testing",
    "eval",
    "evaluation",
    "oot",
)
_STEMS = ("train", "val", "dev", "test", "oot")  # each word contains one of them
_IN_FILE = re.compile(rf"(?:^|[-_. 0-9])({'|'.join(WORDS)})(?=$|[-_. 0-9])", re.IGNORECASE)

_DOWNLOADS = (
    "crdownload",
    "part",
    "partial",
    "incomplete",
    "download",
    "opdownload",
    "aria2",
    "filepart",
)
_PACKED = ("bz2", "xz", "zip", "lz4", "7z", "rar", "br", "lzma", "sz")
_UNFINISHED = re.compile(rf"(.*)\.({'|'.join([*_DOWNLOADS, *_PACKED])})", re.IGNORECASE | re.DOTALL)
_MISSING = "__HIVE_DEFAULT_PARTITION__"


class Mixed(Exception):
    """Some names tell a split and others do not.

    belongs: a name that does, without: one that does not.
    """

    def __init__(self, belongs: str, without: str) -> None:
        super().__init__(belongs, without)
        self.belongs = belongs
        self.without = without


def splits_of(names: Sequence[str]) -> list[str]:
    """Return the split of each file, in lower case; an empty list if the names tell none.

    names: with forward slashes, only the parts that the user left open.
    Raises `Mixed` if directories name splits but not for every file, or if file names tell two
    splits or more but not for every file.
    """
    text = "\n".join(names).lower()
    if not any(stem in text for stem in _STEMS):  # a fast check for very many names
        return []
    splits = [next(filter(is_split_name, name.lower().split("/")[:-1]), None) for name in names]
    if not any(splits):
        words = [
            {word.lower() for word in _IN_FILE.findall(name.rpartition("/")[2])} for name in names
        ]
        # none of a name with several words
        splits = [candidates.pop() if len(candidates) == 1 else None for candidates in words]
        if not all(splits) and len({*splits} - {None}) < 2:
            return []
    if not all(splits):
        has_split = [word is not None for word in splits]
        raise Mixed(names[has_split.index(True)], names[has_split.index(False)])
    return [word for word in splits if word is not None]


def is_split_name(directory: str) -> bool:
    """Check whether a directory name is that of a split."""
    return directory.lower() in WORDS


def in_order(splits: Iterable[str]) -> list[str]:
    """Return the distinct splits in their customary order; names that are not in `WORDS` come last,
    sorted.
    """
    return sorted(
        set(splits), key=lambda split: (WORDS.index(split) if split in WORDS else len(WORDS), split)
    )


def is_partition(directory: str) -> bool:
    """Check whether a directory name is a column's name and value."""
    return "=" in directory[1:] and directory[0] not in "._"


def partition_of(name: str) -> dict[str, str | None]:
    """Parse the columns in a shard's name, outermost first; None is a missing value.

    Raises `InputError` if a column is repeated, or the name is not percent-encoded UTF-8.
    """
    columns: dict[str, str | None] = {}
    for part in filter(is_partition, name.split("/")[:-1] if "=" in name else ()):
        key, _, text = part.partition("=")
        try:
            key = unquote(key, errors="strict")
            value = unquote(text, errors="strict")
        except UnicodeDecodeError:
            raise InputError(
                f"{part} is not percent-encoded UTF-8", path=name, remedy="rename the directory"
            ) from None
        if key in columns:
            raise InputError(
                "two directories have it", path=name, column=key, remedy="rename one of them"
            )
        if text == _MISSING:
            columns[key] = None
        else:
            columns[key] = value
    return columns


def refuse_unfinished(names: Iterable[str]) -> None:
    """Raise `InputError` for an unfinished or packed data file, because its rows would be
    missing.
    """
    for name in names:
        match = _UNFINISHED.fullmatch(name)
        if match is None or not is_data_name(os.path.basename(match[1])):
            continue
        remedy = "decompress it or delete it"
        if match[2].lower() in _DOWNLOADS:
            remedy = "finish the download or delete it"
        raise InputError(
            "is not read, and its rows would be missing",
            path=name,
            remedy=f"{remedy}, or give files by pattern",
        )
