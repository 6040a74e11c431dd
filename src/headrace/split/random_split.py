"""Settings of the random split."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from headrace.errors import setting, setting_name
from headrace.folds.settings import Folds, Rolling
from headrace.split.settings import COLUMNS, SplitSettings

OWN_VALUES = ("rows", "content")  # what rows are drawn by, if not by a column


class RandomSplit(SplitSettings):
    """Rows are drawn into train, val and test by a keyed hash of their values, equal rows together.

    A row's split follows from its own values, the seed and the ratios alone, so added rows move
    none. With `stratify` or folds, shares are exact instead, and an added row may move another.

    Raises `SettingsError` when built with values that cannot work.
    """

    recipe_name: ClassVar[str] = "random_split"

    by: str = Field(
        "rows",
        min_length=1,
        json_schema_extra=COLUMNS,
        description=(
            "What is drawn: rows, by the values of all their columns but the label; content, by "
            "those of the columns of content; or a column, whose groups stay together."
        ),
    )
    val_ratio: float = Field(
        0.1, ge=0, lt=1, description="Share of what is drawn that goes to val; 0: there is no val."
    )
    test_ratio: float = Field(
        0.1,
        ge=0,
        lt=1,
        description="Share of what is drawn that goes to test; 0: there is no test.",
    )
    stratify: str | None = Field(
        None,
        min_length=1,
        json_schema_extra=COLUMNS,
        description="Column of classes that every split has in nearly equal shares.",
    )
    folds: Folds = Field(
        None,
        json_schema_extra={"panel": "Folds"},
        examples=["group-kfold:k=5"],
        description=(
            "Prepare folds instead of one split; each group is in test of one fold, such as "
            "group-kfold:k=5,stratify=COLUMN."
        ),
    )

    @model_validator(mode="after")
    def _consistent(self) -> RandomSplit:
        if self.val_ratio + self.test_ratio >= 1:
            raise ValueError(
                f"{setting_name('val_ratio')} and {setting_name('test_ratio')} are"
                f" {self.val_ratio:g} and {self.test_ratio:g}, which leaves no row for train; give"
                " smaller ones"
            )
        if self.folds is not None:
            self._check_folds()
        elif not self.val_ratio and not self.test_ratio:
            raise ValueError(
                f"{setting_name('val_ratio')} and {setting_name('test_ratio')} are 0, so nothing"
                " is split; give one of them"
            )
        if self.by == "content" and not self.content:
            raise ValueError(
                f"{setting_name('by')} is 'content', and {setting_name('content')} names no"
                f" column; give {setting('content')}, or draw by rows"
            )
        if self.entity_column is None and self.null_entity != "error":
            raise ValueError(
                f"{setting_name('null_entity')} is {self.null_entity!r}, and"
                f" {setting_name('by')} names no column; leave it out"
            )
        if self.null_entity == "own" and (self.stratify or self.folds):
            raise ValueError(
                f"{setting_name('null_entity')} is 'own', and {setting_name('stratify')} and"
                f" {setting_name('folds')} need the group of every row; choose 'drop', or fill the"
                " column"
            )
        if self.strata is not None and self.strata == self.entity_column:
            raise ValueError(
                f"{setting_name('stratify')} is {self.strata!r}, whose groups are drawn; name a"
                " column of classes"
            )
        self._check_output()
        return self

    def _check_folds(self) -> None:
        if isinstance(self.folds, Rolling):
            raise ValueError(
                f"{setting_name('folds')} roll in time, and a random split has none; choose"
                " group-kfold, or a split in time"
            )
        name = self._not_default({"val_ratio": 0.1, "test_ratio": 0.1, "stratify": None})
        if name is not None:
            raise ValueError(
                f"{setting_name(name)} is {getattr(self, name)!r}, which folds do not have; leave"
                " it out, or give the classes of folds as group-kfold:k=5,stratify=COLUMN"
            )
        self._check_comparison_in_folds()

    @property
    def entity_column(self) -> str | None:
        """The column whose groups are drawn, if rows are not drawn by their own values."""
        if self.by in OWN_VALUES:
            return None
        return self.by

    @property
    def drawn_by(self) -> Literal["entity", "rows", "content"]:
        """What is drawn."""
        if self.by == "rows":
            return "rows"
        if self.by == "content":
            return "content"
        return "entity"

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits with a share."""
        shares = {"train": 1.0, "val": self.val_ratio, "test": self.test_ratio}
        if self.folds is not None:
            shares["val"] = 0.0
        return tuple(split for split, fraction in shares.items() if fraction)

    @property
    def train_share(self) -> float:
        """The share of train."""
        return 1 - self.val_ratio - self.test_ratio

    @property
    def strata(self) -> str | None:
        """The column of classes, if there is one."""
        return self.stratify or super().strata

    def assigns_by_hash(self, earlier: SplitSettings) -> bool:
        """Return whether neither deals classes, and the ratios are the same."""
        return isinstance(earlier, RandomSplit) and (
            None,
            None,
            self.val_ratio,
            self.test_ratio,
        ) == (
            self.stratify,
            earlier.stratify,
            earlier.val_ratio,
            earlier.test_ratio,
        )

    def roles(self) -> dict[str, Sequence[str]]:
        """Return the column whose groups are drawn, by its role."""
        if self.entity_column is None:
            return {}
        return {"by": (self.entity_column,)}
