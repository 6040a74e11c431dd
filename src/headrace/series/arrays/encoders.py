"""Texts as numbers: a column each (`OrdinalEncoder`), or a column for each of its categories (`OneHotEncoder`).

Words, parameters, order of categories, names of columns and results are scikit-learn's, without it: a fit is its lists
of categories, and nothing else. Pure.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.arrays import F64
from headrace.digest import canonical_json
from headrace.errors import InputError, SettingsError

Texts = Mapping[str, Sequence[str | None]]

_CHOICES: dict[str, dict[str, tuple[Any, ...]]] = {  # the first is the default
    "OneHotEncoder": {"drop": (None, "first", "if_binary"), "handle_unknown": ("error", "ignore")},
    "OrdinalEncoder": {"handle_unknown": ("error", "use_encoded_value")},
}
# Of scikit-learn's: what changes no number here, and what may only be left at its default.
_NO_EFFECT = {"dtype", "sparse_output", "encoded_missing_value"}
_LEFT = {"min_frequency": None, "max_categories": None, "feature_name_combiner": "concat"}

ENCODERS = tuple(_CHOICES)


def complete_encoder(word: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """The step as data with all its parameters. Raises `SettingsError` for what it does not know."""
    choices = _CHOICES[word]
    known = ["categories", *choices, *(["unknown_value"] if word == "OrdinalEncoder" else [])]
    for name, value in params.items():
        if name in _NO_EFFECT or (name in _LEFT and value == _LEFT[name]):
            continue
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise SettingsError(
                f"{word}: {name!r} is no parameter here; "
                + (f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known)}")
            )
    step: dict[str, Any] = {"step": word, "categories": _categories(word, params.get("categories", "auto"))}
    for name, words in choices.items():
        step[name] = params.get(name, words[0])
        if step[name] not in words:
            raise SettingsError(f"{word}: {name} is {step[name]!r}; give one of {', '.join(map(str, words))}")
    if word == "OrdinalEncoder":
        step["unknown_value"] = value = params.get("unknown_value")
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number != (step["handle_unknown"] == "use_encoded_value"):
            raise SettingsError(
                f"{word}: unknown_value is {value!r} and handle_unknown {step['handle_unknown']!r}; give a number, "
                f"e.g. -1, with handle_unknown: use_encoded_value, and none otherwise"
            )
    return step


def _categories(word: str, value: Any) -> Any:
    if value == "auto":
        return value
    lists = isinstance(value, list | tuple) and all(
        isinstance(each, list | tuple) and each and all(isinstance(text, str) for text in each) for each in value
    )
    if not lists or any(len(set(each)) < len(each) for each in value):
        raise SettingsError(f"{word}: categories is {value!r}; give auto, or for each column a list of different texts")
    return [list(each) for each in value]


@dataclass(frozen=True)
class Encoder:
    """A fit. step: as data; columns: of texts; categories: of each column, in the order of their numbers."""

    step: Mapping[str, Any]
    columns: tuple[str, ...]
    categories: tuple[tuple[str, ...], ...]

    def names_of(self, column: str) -> list[str]:
        """The columns that one of texts becomes."""
        if self.step["step"] == "OrdinalEncoder":
            return [column]
        return [f"{column}_{each}" for each in self._shown(column)]

    @property
    def names(self) -> list[str]:
        """The columns that `transform` makes."""
        return [name for column in self.columns for name in self.names_of(column)]

    def transform(self, texts: Texts) -> F64:
        """Numbers [N, len(names)] of the texts of each column.

        Raises `InputError` for a text that is missing, and for one that no fitted entity has unless `handle_unknown`
        says what then.
        """
        return np.concatenate([self._numbers(column, list(texts[column])) for column in self.columns], axis=1)

    def inverse_transform(self, numbers: F64) -> dict[str, list[str | None]]:
        """The texts of each column; None where no category was known."""
        found: dict[str, list[str | None]] = {}
        first = 0
        for column in self.columns:
            width = len(self.names_of(column))
            found[column] = self._texts(column, numbers[:, first : first + width])
            first += width
        return found

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON."""
        return {
            "encoder": dict(self.step),
            "columns": list(self.columns),
            "categories": [list(each) for each in self.categories],
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Encoder:
        """What `to_json` gave. Raises `ValueError`, `KeyError` or `TypeError` for anything else."""
        step = dict(record["encoder"])
        word = step.pop("step")
        if word not in ENCODERS or len(record["columns"]) != len(record["categories"]):
            raise ValueError(f"{word!r} is no encoder of {len(record['columns'])} columns")
        categories = tuple(tuple(map(str, each)) for each in record["categories"])
        return cls(complete_encoder(word, step), tuple(map(str, record["columns"])), categories)

    def __reduce__(self) -> Any:
        return (_from_bytes, (canonical_json(self.to_json()),))

    def _dropped(self, column: str) -> int:
        """How many of the first categories of a column have none of their own."""
        count, drop = len(self._all(column)), self.step.get("drop")
        return int(drop == "first" or (drop == "if_binary" and count == 2))

    def _all(self, column: str) -> tuple[str, ...]:
        return self.categories[self.columns.index(column)]

    def _shown(self, column: str) -> tuple[str, ...]:
        return self._all(column)[self._dropped(column) :]

    def _numbers(self, column: str, texts: list[str | None]) -> F64:
        place = {text: at for at, text in enumerate(self._all(column))}
        codes = np.array([place.get(each, -1) if each is not None else -2 for each in texts], np.int64)
        if (codes == -2).any():
            raise InputError(f"static feature {column!r} is missing at row {int(np.argmax(codes == -2)) + 1}; name it")
        if (codes < 0).any() and self.step["handle_unknown"] == "error":
            strange = texts[int(np.argmax(codes < 0))]
            raise InputError(
                f"static feature {column!r} is {strange!r}, which is none of the {len(place)} categories that were "
                f"fitted; give one of them, or the encoder handle_unknown"
            )
        if self.step["step"] == "OrdinalEncoder":
            known = np.where(codes < 0, 0, codes).astype(np.float64)
            return np.where(codes < 0, self.step["unknown_value"] or 0.0, known)[:, None]
        shown = np.arange(self._dropped(column), len(place))
        return np.asarray(codes[:, None] == shown[None], np.float64)

    def _texts(self, column: str, numbers: F64) -> list[str | None]:
        every, dropped = self._all(column), self._dropped(column)
        if self.step["step"] == "OrdinalEncoder":
            known = np.isin(numbers[:, 0], np.arange(len(every)))
            codes = np.where(known, numbers[:, 0], -1).astype(np.int64)
        else:
            hot = np.insert(numbers > 0.5, 0, False, axis=1)  # argmax needs a column
            none = 0 if dropped else -1
            codes = np.where(hot.any(axis=1), hot.argmax(axis=1) - 1 + dropped, none)
        return [every[code] if code >= 0 else None for code in codes.tolist()]


def fit_encoder(step: Mapping[str, Any], columns: Sequence[str], texts: Texts) -> Encoder:
    """The categories of these texts, or those that were given. Raises as `transform` for what it could not take."""
    given = step["categories"]
    if given != "auto" and len(given) != len(columns):
        raise SettingsError(
            f"{step['step']}: categories are of {len(given)} columns, and there are {len(columns)}: "
            f"{', '.join(columns)}; give one list each"
        )
    for column in columns:
        if any(each is None for each in texts[column]):
            raise InputError(f"static feature {column!r} is missing for some entity; complete it, or drop the entity")
    found = [sorted({each for each in texts[column] if each is not None}) for column in columns]
    categories = found if given == "auto" else given
    made = Encoder(dict(step), tuple(columns), tuple(tuple(each) for each in categories))
    made.transform(texts)
    return made


def _from_bytes(data: bytes) -> Encoder:
    return Encoder.from_json(json.loads(data))
