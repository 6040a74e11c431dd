"""Define the settings of folds: cuts that roll through time, or entities that take turns to
test.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from headrace.checks import duration_us
from headrace.errors import SettingsError, setting_name
from headrace.settings import Settings, known_duration

MOST_FOLDS = 1000
_FORMS = "rolling:n=5,step=30d or group-kfold:k=5"


class Rolling(Settings):
    """Folds that cut later and later: train ends at each cut, test is the `step` after it.

    The split date is the cut of fold 0. Raises `SettingsError` when built with values that cannot
    work.
    """

    kind: Literal["rolling"] = "rolling"
    n: int = Field(ge=1, le=MOST_FOLDS, description="How many folds.")
    step: str = Field(
        description="Time from one cut to the next, which is also the length of test, such as 30d."
    )
    window: str = Field(
        "expanding",
        description="How far back train reaches, such as 180d; expanding: to the first row.",
    )

    @field_validator("step", "window")
    @classmethod
    def _known_duration(cls, value: str, field: ValidationInfo) -> str:
        name = str(field.field_name)
        if name == "window" and value == "expanding":
            return value
        other = ""
        if name == "window":
            other = ", or expanding"
        return known_duration(name, value, remedy="give one such as 30d", other=other)

    @property
    def step_us(self) -> int:
        """The step in microseconds."""
        return duration_us("step", self.step)

    @property
    def window_us(self) -> int | None:
        """The window in microseconds; None if it expands."""
        if self.window == "expanding":
            return None
        return duration_us("window", self.window)


class GroupKFold(Settings):
    """Folds of entities: each entity is in test of one fold and in train of all others, whatever
    the time of its rows.

    Raises `SettingsError` when built with values that cannot work.
    """

    kind: Literal["group-kfold"] = "group-kfold"
    k: int = Field(ge=2, le=MOST_FOLDS, description="How many folds.")
    stratify: str | None = Field(
        None,
        min_length=1,
        description="Column of classes, of which each fold gets an equal share as far as can be.",
    )

    def __init__(self, k: int | None = None, **values: Any) -> None:
        super().__init__(**values if k is None else {"k": k, **values})


_KINDS: dict[str, type[Rolling] | type[GroupKFold]] = {
    "rolling": Rolling,
    "group-kfold": GroupKFold,
}


def _parse(text: str) -> dict[str, Any]:
    """Read a text such as rolling:n=5,step=30d as a mapping with `kind`."""
    word, _, arguments = text.partition(":")
    values: dict[str, Any] = {"kind": word.strip()}
    for pair in arguments.split(","):
        if pair.strip():
            name, _, argument = pair.partition("=")
            is_number = re.fullmatch(r"\d{1,9}", argument.strip())
            values[name.strip()] = int(argument) if is_number else argument.strip()
    return values


def _read(value: object) -> object:
    """Build the folds that a text such as rolling:n=5,step=30d or a mapping with `kind`
    describes.
    """
    text = None
    if isinstance(value, str):
        text = value
        value = _parse(text)
    if not isinstance(value, Mapping):
        if value is None or isinstance(value, Rolling | GroupKFold):
            return value
        raise ValueError(
            f"{setting_name('folds')} is {value!r}, which is not a kind of folds; give {_FORMS}"
        )
    if value.get("kind") not in _KINDS:
        raise ValueError(
            f"{setting_name('folds')} of kind {value.get('kind')!r} are not known; give {_FORMS}"
        )
    try:
        return _KINDS[str(value["kind"])](**value)
    except SettingsError as error:
        if text is None:
            raise
        wrong = ", ".join(line.removesuffix("; give it") for line in error.marked_lines())
        raise ValueError(f"{setting_name('folds')} is {text!r}: {wrong}; give {_FORMS}") from None


Folds = Annotated[Rolling | GroupKFold | None, BeforeValidator(_read)]
