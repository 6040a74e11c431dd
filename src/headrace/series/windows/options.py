"""The settings of windows, checked when built."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StrictBool, model_validator

from headrace.series.arrays.windows import Targets
from headrace.settings import Settings

Layout = Literal["views", "contiguous"]

_Steps = Annotated[int, Field(strict=True)]


class WindowOptions(Settings):
    """Define a window, and which ones there are.

    input_length, output_length: L and H, steps of the inputs and of the horizon behind them.
    horizons: the steps of the horizon that y has, from 1 to H, ascending; None: all.
    stride: steps from one window of an entity to the next.
    is_autoregressive: whether the target's own past is the first column of X.
    history: whether inputs may reach back before the split, into the rows that come before ("preceding"), or not
        ("within"). Labels never cross: all of a window's horizon is in the split.
    targets: "all" of a window's horizons must be observed; "any" of them, the others being 0 in y and false in
        y_observed; "none": no y at all, which is how one predicts beyond the last row.
    future: the horizon's forcing as an input of its own; "none": not needed and not given.
    static: static attributes where the run has them; "none": not given.
    masks: whether X ends with the columns that say which values were filled in; "none": without.
    incomplete: "skip" windows that miss a value; "keep" all, with NaN in X and future where they are missing, and
        `complete` false for such windows, which is for predicting.
    layout: "views", X, y and future share one block of memory; "contiguous", each has its own.

    Raises `SettingsError` when built with values that cannot work.
    """

    input_length: _Steps = Field(ge=1)
    output_length: _Steps = Field(ge=0)
    horizons: tuple[_Steps, ...] | None = None
    stride: _Steps = Field(1, ge=1)
    is_autoregressive: StrictBool = False
    history: Literal["within", "preceding"] = "within"
    targets: Targets = "all"
    future: Literal["known", "none"] = "known"
    static: Literal["included", "none"] = "included"
    masks: Literal["inputs", "none"] = "none"
    incomplete: Literal["skip", "keep"] = "skip"
    layout: Layout = "views"

    @model_validator(mode="after")
    def _check_horizon(self) -> WindowOptions:
        if not self.output_length and (self.targets != "none" or self.future != "none"):
            raise ValueError('output_length is 0; give 1 or more, or pass targets="none" and future="none"')
        steps, last = self.horizons, self.output_length
        if steps is not None and (not steps or list(steps) != sorted(set(steps).intersection(range(1, last + 1)))):
            raise ValueError(f"horizons is {steps!r}; give ascending steps from 1 to output_length, {last}")
        return self

    @property
    def window_rows(self) -> int:
        """Rows of a window: L + H, or L where nothing of the horizon is wanted."""
        return self.input_length + self.horizon_rows

    @property
    def horizon_rows(self) -> int:
        """H, or 0 where nothing of the horizon is wanted."""
        return self.output_length if self.targets != "none" or self.future != "none" else 0
