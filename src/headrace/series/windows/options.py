"""The settings of windows, checked when built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypedDict, get_args

from headrace.checks import check_boolean, check_integer, check_word
from headrace.errors import SettingsError
from headrace.series.arrays.windows import Targets

History = Literal["within", "preceding"]
Future = Literal["known", "none"]
Static = Literal["included", "none"]
Masks = Literal["inputs", "none"]
Incomplete = Literal["skip", "keep"]
Layout = Literal["views", "contiguous"]


class WindowArguments(TypedDict, total=False):
    """The options of windows, for functions that pass them on; see `WindowOptions`."""

    horizons: tuple[int, ...] | None
    stride: int
    is_autoregressive: bool
    history: History
    targets: Targets
    future: Future
    static: Static
    masks: Masks
    incomplete: Incomplete
    layout: Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowOptions:
    """What a window is and which ones there are.

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

    input_length: int
    output_length: int
    horizons: tuple[int, ...] | None = None
    stride: int = 1
    is_autoregressive: bool = False
    history: History = "within"
    targets: Targets = "all"
    future: Future = "known"
    static: Static = "included"
    masks: Masks = "none"
    incomplete: Incomplete = "skip"
    layout: Layout = "views"

    def __post_init__(self) -> None:
        needs_horizon = self.targets != "none" or self.future != "none"
        for name, least in (("input_length", 1), ("output_length", int(needs_horizon)), ("stride", 1)):
            check_integer(f"windows: {name}", getattr(self, name), least=least)
        for name, words in _WORDS.items():
            check_word(f"windows: {name}", getattr(self, name), words)
        check_boolean("windows: is_autoregressive", self.is_autoregressive)
        if self.horizons is not None:
            object.__setattr__(self, "horizons", tuple(self.horizons))
            steps = list(self.horizons)
            whole = all(isinstance(each, int) and not isinstance(each, bool) for each in steps)
            if not steps or not whole or steps != sorted(set(steps)) or steps[0] < 1 or steps[-1] > self.output_length:
                raise SettingsError(
                    f"windows: horizons is {self.horizons!r}; expected ascending steps from 1 to output_length,"
                    f" {self.output_length}"
                )

    @property
    def window_rows(self) -> int:
        """Rows of a window: L + H, or L where nothing of the horizon is wanted."""
        return self.input_length + self.horizon_rows

    @property
    def horizon_rows(self) -> int:
        """H, or 0 where nothing of the horizon is wanted."""
        return self.output_length if self.targets != "none" or self.future != "none" else 0


_WORDS: dict[str, tuple[Any, ...]] = {
    "history": get_args(History),
    "targets": get_args(Targets),
    "future": get_args(Future),
    "static": get_args(Static),
    "masks": get_args(Masks),
    "incomplete": get_args(Incomplete),
    "layout": get_args(Layout),
}
