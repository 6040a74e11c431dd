"""Encode texts as numbers: one column (`OrdinalEncoder`), or one column per category
(`OneHotEncoder`).

The order of categories, column names and results equal scikit-learn's, without needing it. A fit
consists only of its lists of categories. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.arrays import F64
from headrace.digest import canonical_json
from headrace.errors import InputError, SettingsError
from headrace.series.arrays.steps import ENCODERS, StepData, complete

Texts = Mapping[str, Sequence[str | None]]


@dataclass(frozen=True)
class Encoder:
    """A fitted encoder.

    step: the step as data. columns: columns of texts. categories: of each column, in the order of
    their numbers.
    """

    step: StepData
    columns: tuple[str, ...]
    categories: tuple[tuple[str, ...], ...]

    def names_of(self, column: str) -> list[str]:
        """Return the names of the columns that one text column becomes."""
        every, dropped = self._categories(column)
        if self.step["step"] == "OrdinalEncoder":
            return [column]
        return [f"{column}_{category}" for category in every[dropped:]]

    @property
    def names(self) -> list[str]:
        """The names of the columns that `transform` makes."""
        return [name for column in self.columns for name in self.names_of(column)]

    def transform(self, texts: Texts) -> F64:
        """Return numbers [N, len(names)] for the texts of each column.

        Raises `InputError` for a missing text, and for a text that no fitted entity has unless
        `handle_unknown` covers it.
        """
        blocks = []
        for column in self.columns:
            column_texts = texts[column]
            every, dropped = self._categories(column)
            code_of: dict[str | None, int] = {text: at for at, text in enumerate(every)}
            codes = np.array(
                [code_of.get(text, -1 if text is not None else -2) for text in column_texts],
                np.int64,
            )
            if (codes == -2).any():
                row = int(np.argmax(codes == -2)) + 1
                raise InputError("missing", row=row, column=column, remedy="name a category")
            if (codes < 0).any() and self.step["handle_unknown"] == "error":
                row = int(np.argmax(codes < 0))
                raise InputError(
                    f"none of the {len(every)} categories that were fitted",
                    row=row + 1,
                    column=column,
                    value=column_texts[row],
                    remedy="give one of them, or the encoder handle_unknown",
                )
            if self.step["step"] == "OrdinalEncoder":
                blocks.append(
                    np.where(
                        codes < 0, self.step["unknown_value"] or 0.0, codes.astype(np.float64)
                    )[:, None]
                )
            else:
                blocks.append((codes[:, None] == np.arange(dropped, len(every))).astype(np.float64))
        return np.concatenate(blocks, axis=1)

    def inverse_transform(self, numbers: F64) -> dict[str, list[str | None]]:
        """Return the texts of each column; None for an unknown category."""
        texts: dict[str, list[str | None]] = {}
        boundaries = np.cumsum([len(self.names_of(column)) for column in self.columns])[:-1]
        for column, part in zip(self.columns, np.split(numbers, boundaries, axis=1), strict=True):
            every, dropped = self._categories(column)
            if self.step["step"] == "OrdinalEncoder":
                codes = np.where(np.isin(part[:, 0], np.arange(len(every))), part[:, 0], -1).astype(
                    np.int64
                )
            else:
                hot = np.insert(part > 0.5, 0, False, axis=1)  # argmax needs at least one column
                codes = np.where(
                    hot.any(axis=1), hot.argmax(axis=1) - 1 + dropped, 0 if dropped else -1
                )
            texts[column] = [every[code] if code >= 0 else None for code in codes.tolist()]
        return texts

    def _categories(self, column: str) -> tuple[tuple[str, ...], int]:
        """Return the categories of a column, and the number of leading ones that get no column of
        their own.
        """
        every = self.categories[self.columns.index(column)]
        drop = self.step.get("drop")
        return every, int(drop == "first" or (drop == "if_binary" and len(every) == 2))

    def to_json(self) -> dict[str, Any]:
        """Return the encoder as JSON."""
        return {
            "encoder": dict(self.step),
            "columns": list(self.columns),
            "categories": [list(column_categories) for column_categories in self.categories],
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Encoder:
        """Read an encoder from `to_json`.

        Raises `ValueError`, `KeyError` or `TypeError` for anything else.
        """
        step = dict(record["encoder"])
        word = step.pop("step")
        if word not in ENCODERS or len(record["columns"]) != len(record["categories"]):
            raise ValueError(f"{word!r} is not an encoder of {len(record['columns'])} columns")
        categories = tuple(
            tuple(map(str, column_categories)) for column_categories in record["categories"]
        )
        return cls(complete(word, step), tuple(map(str, record["columns"])), categories)

    def __reduce__(self) -> Any:
        return (_from_bytes, (canonical_json(self.to_json()),))


def fit_encoder(step: StepData, columns: Sequence[str], texts: Texts) -> Encoder:
    """Fit the categories of these texts, or take the given ones.

    Raises `InputError` as `transform`, and `SettingsError` for categories of other columns.
    """
    listed = step["categories"]
    if listed != "auto" and len(listed) != len(columns):
        raise SettingsError(
            f"{step['step']} has categories of {len(listed)} columns, and there are"
            f" {len(columns)}: {', '.join(columns)}",
            setting="preprocessing_configs",
            remedy="give one list each",
        )
    categories = listed
    if listed == "auto":
        categories = []
        for column in columns:
            categories.append(sorted({text for text in texts[column] if text is not None}))
    encoder = Encoder(dict(step), tuple(columns), tuple(map(tuple, categories)))
    encoder.transform(texts)
    return encoder


def _from_bytes(data: bytes) -> Encoder:
    return Encoder.from_json(json.loads(data))
