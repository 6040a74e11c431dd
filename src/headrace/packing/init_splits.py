"""What chats say of their splits: files or a column named after splits, and a field that rows must not share."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.formats.listing import list_files
from headrace.packing.assign import SPLITS, Split
from headrace.packing.init_chats import Chats

_WORDS: Mapping[str, Split] = {
    "train": "train",
    "training": "train",
    "valid": "valid",
    "validation": "valid",
    "val": "valid",
    "dev": "valid",
    "test": "test",
    "eval": "test",
    "testing": "test",
}
_COLUMNS = ("split", "subset", "partition")
_KEYS = ("conversation", "dialog", "thread", "session", "task", "group", "problem", "question_id", "document", "topic")
_ASKED = ("question", "problem", "prompt", "instruction", "query")
_MOST_FILES = 50


@dataclass(frozen=True)
class Splits:
    """blend: of the configuration; words: why; key: a field for split_key, "" for none, with `certain` to set it."""

    blend: dict[str, Any]
    words: str
    key: str = ""
    key_words: str = ""
    certain: bool = False

    @property
    def by_ratio(self) -> bool:
        """Whether rows are split by ratios."""
        return "datasets" in self.blend


def splits_of(chats: Chats, dataset: Mapping[str, Any]) -> Splits:
    """dataset: name, path and mapping of the one dataset that was looked at.

    Raises `InputError` where files are named after splits that cannot be kept apart here.
    """
    key, key_words, certain = _key(chats)
    by_file = _files_by_split(chats)
    if by_file:
        blend: dict[str, Any] = {
            split: [{**dataset, "path": [str(chats.root / name) for name in by_file[split]]}]
            for split in SPLITS
            if split in by_file
        }
        told = "; ".join(f"{split}: {', '.join(names)}" for split, names in by_file.items())
        return Splits(blend, f"Files are named after splits, and stay in them: {told}.", key, key_words, certain)
    list_files(dataset["path"])  # refuses names that tell several splits, as the run would
    column, words = _split_column(chats)
    if column:
        blend = {split: [{**dataset, "filters": {column: words[split]}}] for split in SPLITS if split in words}
        listed = ", ".join(word for split in words for word in words[split])
        told = f"Column {column} names the split of a row ({listed}). Rows with other words are left out, and counted."
        return Splits(blend, told, key, key_words, certain)
    return Splits({"datasets": [dict(dataset)]}, "", key, key_words, certain)


def _files_by_split(chats: Chats) -> dict[Split, list[str]]:
    """The files of each split, where every file is named after one and there are several, train among them."""
    found: dict[Split, list[str]] = {}
    if not 1 < len(chats.names) <= _MOST_FILES:
        return {}
    for name in chats.names:
        words = [_WORDS[word] for word in re.split(r"[^a-z]+", name.rsplit("/", 1)[-1].lower()) if word in _WORDS]
        if len(set(words)) != 1:
            return {}
        found.setdefault(words[0], []).append(name)
    return {split: found[split] for split in SPLITS if split in found} if len(found) > 1 and "train" in found else {}


def _split_column(chats: Chats) -> tuple[str, dict[Split, list[str]]]:
    for name in chats.columns:
        if name.lower() not in _COLUMNS:
            continue
        values = chats.values(name)
        words = sorted({each for each in values if isinstance(each, str)})
        if len(words) > 1 and all(isinstance(each, str) and each.lower() in _WORDS for each in values):
            found: dict[Split, list[str]] = {}
            for word in words:
                found.setdefault(_WORDS[word.lower()], []).append(word)
            if len(found) > 1 and "train" in found:
                return name, found
    return "", {}


def _key(chats: Chats) -> tuple[str, str, bool]:
    """A field whose values come several times: one named like a group of rows, or what was asked."""
    for name in chats.columns:
        low = name.lower()
        if any(word in low for word in _KEYS):
            distinct, rows = _counts(chats, name)
            if 20 <= distinct < 0.9 * rows:
                return name, f"{name} has {distinct:,} values in {rows:,} rows; each is in one split only.", True
    for name in chats.columns:
        if name.lower() in _ASKED or name == chats.mapping.get("user"):
            distinct, rows = _counts(chats, name)
            if distinct < rows:
                words = (
                    f"{rows - distinct:,} of the rows looked at repeat a {name}: split_key keeps such rows together."
                )
                return name, words, distinct >= 20
    return "", "Rows that belong together, e.g. by a task, stay in one split if split_key names their field.", False


def _counts(chats: Chats, name: str) -> tuple[int, int]:
    """(distinct values, rows); (0, 0) unless all are texts or whole numbers."""
    values = chats.values(name)
    if not all(isinstance(each, str | int) and not isinstance(each, bool) for each in values):
        return 0, 0
    return len(set(values)), len(values)
