"""The state of a stream: which epoch, which order, and what of it nobody has received yet.

One small JSON object, the same on every rank. It names positions in the global order, not files or ranks, so it resumes
on any world size, number of workers and batch size. Rows that were read ahead but not handed out are not counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from headrace.dataset.index import SplitIndex
from headrace.errors import StreamError
from headrace.stream.remaining import Remaining

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamState:
    """A place in one epoch of one split.

    index: identity of the split's index; rows: N. seed, epoch, lanes, window_rows, shuffle: the order.
    position: everything from here on is left; holes: [start, stop) ranges below it that are left too.
    """

    split: str
    index: str
    rows: int
    seed: int
    epoch: int
    lanes: int
    window_rows: int
    shuffle: bool
    position: int = 0
    holes: tuple[tuple[int, int], ...] = ()

    @property
    def remaining(self) -> Remaining:
        """What nobody has received yet."""
        return Remaining.of(self.rows, position=self.position, holes=self.holes)

    def at(self, remaining: Remaining) -> StreamState:
        """The same order with this much left."""
        return replace(self, position=remaining.position, holes=remaining.holes)

    def fresh(self, epoch: int) -> StreamState:
        """The beginning of an epoch, in the same lanes and windows."""
        return replace(self, epoch=epoch, position=0, holes=())

    def to_dict(self) -> dict[str, Any]:
        """A JSON object; `from_dict` gives an equal state back."""
        values = asdict(self)
        values["holes"] = [list(hole) for hole in self.holes]
        return {"format_version": FORMAT_VERSION, **values}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> StreamState:
        """Read a state back. Raises `StreamError` if it is not one, or of a format this version does not know."""
        if not isinstance(values, Mapping):
            raise StreamError(
                f"stream state: expected a mapping, got {type(values).__name__}; pass what state_dict() gave"
            )
        version = values.get("format_version")
        if version != FORMAT_VERSION:
            raise StreamError(
                f"stream state: format_version is {version!r}, this headrace reads {FORMAT_VERSION};"
                " resume with the version that saved it, or begin the epoch anew"
            )
        missing = sorted(_KINDS.keys() - values.keys())
        unknown = sorted(values.keys() - _KINDS.keys() - {"format_version"})
        if missing or unknown:
            raise StreamError(
                f"stream state: keys missing {missing}, keys unknown {unknown}; pass what state_dict() gave, unchanged"
            )
        for name, kind in _KINDS.items():
            value = values[name]
            if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
                raise _bad(name, value, f"expected {kind.__name__}")
        holes = tuple(_hole(hole) for hole in values["holes"])
        state = cls(**{name: values[name] for name in _KINDS if name != "holes"}, holes=holes)
        _check_numbers(state)
        return state

    def check_order(self, *, seed: int, shuffle: bool) -> None:
        """Raise `StreamError` if the stream was set up for another order than the one saved."""
        if (self.seed, self.shuffle) != (seed, shuffle):
            raise StreamError(
                f"stream state: it was saved with seed={self.seed}, shuffle={self.shuffle}; this stream has"
                f" seed={seed}, shuffle={shuffle}; rows would repeat and be missed: pass the saved settings, or begin"
                " the epoch anew"
            )

    def check_index(self, index: SplitIndex) -> None:
        """Raise `StreamError` unless this state belongs to exactly this split of this dataset."""
        if self.split != index.split:
            raise StreamError(
                f'stream state: it is of split "{self.split}", this stream reads "{index.split}";'
                " load each state into the stream of its own split"
            )
        if self.index != index.identity or self.rows != index.total_rows:
            raise StreamError(
                f'stream state: split "{self.split}" had index {self.index[:12]}… with {self.rows} rows when saved, now'
                f" it has {index.identity[:12]}… with {index.total_rows}; shards were added, removed or rewritten:"
                " open the dataset the state was saved from, or begin the epoch anew"
            )


_KINDS: dict[str, type] = {
    "split": str,
    "index": str,
    "rows": int,
    "seed": int,
    "epoch": int,
    "lanes": int,
    "window_rows": int,
    "shuffle": bool,
    "position": int,
    "holes": list,
}


def _hole(hole: Any) -> tuple[int, int]:
    whole = isinstance(hole, list | tuple) and len(hole) == 2
    if not whole or not all(isinstance(end, int) and not isinstance(end, bool) for end in hole):
        raise _bad("holes", hole, "expected [start, stop] pairs of integers")
    return hole[0], hole[1]


def _check_numbers(state: StreamState) -> None:
    for name, least in (("rows", 0), ("epoch", 0), ("lanes", 1), ("window_rows", 1)):
        value = getattr(state, name)
        if value < least:
            raise _bad(name, value, f"expected {least} or more")
    if not 0 <= state.position <= state.rows:
        raise _bad("position", state.position, f"expected 0..{state.rows}, the rows of the epoch")
    below = 0
    for start, stop in state.holes:
        if not below <= start < stop <= state.position:
            raise _bad("holes", [start, stop], f"expected sorted, disjoint ranges below position {state.position}")
        below = stop


def _bad(name: str, value: Any, expected: str) -> StreamError:
    return StreamError(f"stream state: {name} is {value!r}; {expected}; pass what state_dict() gave, unchanged")
