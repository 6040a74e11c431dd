"""The state of a stream of windows: which epoch, which order, and how much of it has been handed out.

One small JSON object, the same on every rank, in windows and not in batches: it goes on with any ranks and batch size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from headrace.errors import StreamError
from headrace.windows.order import SHUFFLES, Shuffle

FORMAT_VERSION = 1


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
        return {"format_version": FORMAT_VERSION, **asdict(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> WindowState:
        """Read a state back. Raises `StreamError` if it is not one, or of a format this version does not know."""
        version = values.get("format_version") if isinstance(values, Mapping) else None
        if version != FORMAT_VERSION:
            raise StreamError(
                f"window state: format_version is {version!r}, this headrace reads {FORMAT_VERSION};"
                " pass what state_dict() gave, unchanged"
            )
        kinds = {each.name: str if each.name in ("windows", "shuffle") else int for each in fields(cls)}
        if values.keys() - {"format_version"} != kinds.keys():
            raise StreamError(
                f"window state: its keys are {sorted(values)}, expected {sorted(kinds)} and format_version;"
                " pass what state_dict() gave, unchanged"
            )
        for name, kind in kinds.items():
            value = values[name]
            bad = not isinstance(value, kind) or isinstance(value, bool)
            if bad or (name == "shuffle" and value not in SHUFFLES) or (kind is int and name != "seed" and value < 0):
                raise StreamError(f"window state: {name} is {value!r}; pass what state_dict() gave, unchanged")
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
                    f"window state: {name} was {getattr(self, name)!r} when it was saved and is"
                    f" {getattr(other, name)!r} here; {remedy}, or begin the epoch anew"
                )
