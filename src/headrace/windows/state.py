"""The state of a stream of windows: which epoch, which order, and how much of it has been handed out.

One small JSON object, the same on every rank, in windows and not in batches: it goes on with any ranks and batch size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from headrace.errors import StreamError
from headrace.sealed import MOST_EPOCHS, MOST_LANES, MOST_POSITIONS, seal, shown, unseal
from headrace.windows.order import SHUFFLES, Shuffle

FORMAT_VERSION = 2
_KIND = "window"
_MOST = {"epoch": MOST_EPOCHS, "lanes": MOST_LANES}


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowState:
    """A place in one epoch.

    windows: identity of all windows there are, and of how they are cut into chunks; count: those of this epoch.
    pass_number, chunk: where the epoch is among chunks; both are the epoch's number and 0 without chunks.
    lanes, stretch: of the order "nearby". position: windows that all ranks together have received.
    """

    windows: str
    count: int
    seed: int
    epoch: int
    shuffle: Shuffle
    lanes: int
    stretch: int
    pass_number: int
    chunk: int
    position: int = 0

    def at(self, position: int) -> WindowState:
        """The same epoch with so many windows received."""
        return replace(self, position=position)

    def to_dict(self) -> dict[str, Any]:
        """A JSON object; `from_dict` gives an equal state back."""
        return seal(_KIND, FORMAT_VERSION, asdict(self))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> WindowState:
        """Read a state back. Raises `StreamError` if it is not one, was changed, or is of another format version."""
        values = unseal(values, kind=_KIND, version=FORMAT_VERSION)
        kinds = {each.name: str if each.name in ("windows", "shuffle") else int for each in fields(cls)}
        if values.keys() != kinds.keys():
            raise StreamError(
                f"window state: its keys are {shown(sorted(values))}, expected {sorted(kinds)};"
                " pass what state_dict() gave, unchanged"
            )
        for name, kind in kinds.items():
            value = values[name]
            bad = not isinstance(value, kind) or isinstance(value, bool)
            bad = bad or (name == "shuffle" and value not in SHUFFLES)
            if bad or (kind is int and name != "seed" and not 0 <= value <= _MOST.get(name, MOST_POSITIONS)):
                raise StreamError(f"window state: {name} is {shown(value)}; pass what state_dict() gave, unchanged")
        state = cls(**{name: values[name] for name in kinds})
        if state.position > state.count or not (state.lanes and state.stretch):
            raise StreamError(
                f"window state: position {state.position} of {state.count} windows in {state.lanes} lanes of stretches"
                f" of {state.stretch}; pass what state_dict() gave, unchanged"
            )
        return state

    def check(self, other: WindowState) -> None:
        """Raise `StreamError` unless this is a state of the same windows in the same order as another one's."""
        for name, remedy in (
            ("windows", "the run, the split, the options of windows or the chunks are others than when it was saved"),
            ("seed", "windows would repeat and be missed: pass the saved seed"),
            ("shuffle", "windows would repeat and be missed: pass the saved shuffle"),
        ):
            if getattr(self, name) != getattr(other, name):
                raise StreamError(
                    f"window state: {name} was {shown(getattr(self, name))} when it was saved and is"
                    f" {shown(getattr(other, name))} here; {remedy}, or begin the epoch anew"
                )
