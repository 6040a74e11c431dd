"""The state of a stream: which epoch, which order, and what of it nobody has received yet.

One small JSON object with a digest, the same on every rank. It names positions in the global order, not files or ranks,
so it resumes on any world size, number of workers and batch size. Rows that were read ahead but not handed out are not
counted. States of format version 1 had no digest and are refused: damage to them cannot be seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from headrace.dataset.index import SplitIndex
from headrace.errors import StreamError
from headrace.sealed import MOST_EPOCHS, MOST_LANES, MOST_POSITIONS, seal, shown, unseal
from headrace.stream.order.lanes import Lanes
from headrace.stream.order.regions import Regions
from headrace.stream.order.remaining import Remaining

FORMAT_VERSION = 2
MOST_RELANED = 64  # every question to an order of new lanes asks the lanes below it
_KIND = "stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamState:
    """A place in one epoch of one split.

    index: identity of the split's index; rows: N. seed, epoch, lanes, window_rows, groups, shuffle: the order.
    position: everything from here on is left; holes: [start, stop) ranges below it that are left too.
    samples_per_epoch: where an epoch is no whole pass of all rows, how many it has.
    regions: which consumer has which whole shards; None where all stride over all rows.
    base: the state whose rows left were cut into these lanes; `rows` are those then. None: an epoch as it began.
    """

    split: str
    index: str
    rows: int
    seed: int
    epoch: int
    lanes: int
    window_rows: int
    groups: int
    shuffle: bool
    position: int = 0
    holes: tuple[tuple[int, int], ...] = ()
    samples_per_epoch: int | None = None
    base: StreamState | None = None
    regions: Regions | None = None

    @property
    def epoch_rows(self) -> int:
        """The rows of the whole epoch."""
        return self.rows if self.base is None else self.base.epoch_rows

    @property
    def of_whole_shards(self) -> bool:
        """Whether the epoch began with whole shards for each consumer."""
        return self.regions is not None if self.base is None else self.base.of_whole_shards

    @property
    def times_relaned(self) -> int:
        """How many states lie below this one."""
        count, below = 0, self.base
        while below is not None:
            count, below = count + 1, below.base
        return count

    @property
    def remaining(self) -> Remaining:
        """What nobody has received yet."""
        return Remaining.of(self.rows, position=self.position, holes=self.holes)

    def at(self, remaining: Remaining) -> StreamState:
        """The same order with this much left."""
        return replace(self, position=remaining.position, holes=remaining.holes)

    def fresh(self, epoch: int) -> StreamState:
        """The beginning of an epoch, in the same lanes and windows."""
        if self.base is not None and self.samples_per_epoch is not None:
            return self.base.fresh(epoch).relaned(Lanes(self.lanes, self.window_rows, self.groups))
        return replace(self, epoch=epoch, rows=self.epoch_rows, position=0, holes=(), base=None)

    def relaned(self, lanes: Lanes) -> StreamState:
        """The beginning of what is left here, in other lanes and windows.

        An epoch that is no whole pass keeps its lanes below the new ones, even at its beginning: which rows it has, and
        which are left to the next epoch, they decide.
        """
        begun = self.position or self.holes or self.base is not None
        if not begun and self.samples_per_epoch is None:
            return replace(self, **lanes._asdict())
        return replace(
            self,
            rows=self.remaining.total,
            position=0,
            holes=(),
            base=self,
            regions=None,
            **lanes._asdict(),
        )

    def to_dict(self, kind: str = _KIND) -> dict[str, Any]:
        """A JSON object; `from_dict` gives an equal state back. kind: of the loader whose positions these are."""
        return seal(kind, FORMAT_VERSION, self._values())

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], kind: str = _KIND) -> StreamState:
        """Read a state back. Raises `StreamError` if it is not one, was changed, or is of another format version."""
        return cls._of(unseal(values, kind=kind, version=FORMAT_VERSION))

    def _values(self) -> dict[str, Any]:
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        values["holes"] = [list(hole) for hole in self.holes]
        values["base"] = None if self.base is None else self.base._values()
        values["regions"] = None if self.regions is None else self.regions.to_dict()
        return {name: value for name, value in values.items() if name in _KINDS or value is not None}

    @classmethod
    def _of(cls, values: Mapping[str, Any], depth: int = 0) -> StreamState:
        if depth > MOST_RELANED:
            raise _bad("base", "a state", f"expected at most {MOST_RELANED} states below one another")
        missing = sorted(_KINDS.keys() - values.keys())
        unknown = sorted(values.keys() - _KINDS.keys() - _LATER_KINDS.keys())
        if missing or unknown:
            raise StreamError(
                f"stream state: keys missing {shown(missing)}, keys unknown {shown(unknown)};"
                " pass what state_dict() gave, unchanged"
            )
        later = {name: kind for name, kind in _LATER_KINDS.items() if name in values}
        for name, kind in (_KINDS | later).items():
            value = values[name]
            if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
                raise _bad(name, value, f"expected {_EXPECTED[kind]}")
        holes = tuple(_hole(hole) for hole in values["holes"])
        plain = {name: values[name] for name in (*_KINDS, *later) if name not in ("holes", "base", "regions")}
        base = cls._of(values["base"], depth + 1) if "base" in values else None
        regions = Regions.from_dict(values["regions"]) if "regions" in values else None
        state = cls(**plain, holes=holes, base=base, regions=regions)
        _check_numbers(state)
        return state

    def check_order(self, *, seed: int, shuffle: bool, samples_per_epoch: int | None = None) -> None:
        """Raise `StreamError` if the stream was set up for another order than the one saved."""
        if self.samples_per_epoch != samples_per_epoch:
            raise StreamError(
                f"stream state: it was saved with samples_per_epoch={self.samples_per_epoch}, this stream has"
                f" {samples_per_epoch}; epochs would overlap: pass the saved setting, or begin the epoch anew"
            )
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
                f"stream state: it is of split {shown(self.split)}, this stream reads {shown(index.split)};"
                " load each state into the stream of its own split"
            )
        whole = index.total_rows if self.samples_per_epoch is None else self.samples_per_epoch
        if self.index != index.identity or self.epoch_rows != whole:
            raise StreamError(
                f"stream state: split {shown(self.split)} had index {shown(self.index[:12])} with {self.epoch_rows:,}"
                f" rows when saved, now it has {shown(index.identity[:12])} with {whole:,}; shards were added, removed"
                " or rewritten, or another filter or blend was set up: open the dataset as it was when the state was"
                " saved, or begin the epoch anew"
            )


_KINDS: dict[str, Any] = {
    "split": str,
    "index": str,
    "rows": int,
    "seed": int,
    "epoch": int,
    "lanes": int,
    "window_rows": int,
    "groups": int,
    "shuffle": bool,
    "position": int,
    "holes": list | tuple,
}


# What is written only where it is not None: a state without them is that of a split, one epoch a pass.
_LATER_KINDS: dict[str, Any] = {"samples_per_epoch": int, "base": Mapping, "regions": Mapping}

_EXPECTED: dict[Any, str] = {
    str: "text",
    int: "an integer",
    bool: "true or false",
    list | tuple: "a list",
    Mapping: "a mapping",
}

# Of every number but the seed: the least and the most that it may be.
_BOUNDS = {
    "rows": (0, MOST_POSITIONS),
    "epoch": (0, MOST_EPOCHS),
    "lanes": (1, MOST_LANES),
    "window_rows": (1, MOST_POSITIONS),
    "groups": (1, MOST_LANES),
    "samples_per_epoch": (1, MOST_POSITIONS),
}


def _hole(hole: Any) -> tuple[int, int]:
    whole = isinstance(hole, list | tuple) and len(hole) == 2
    if not whole or not all(isinstance(end, int) and not isinstance(end, bool) for end in hole):
        raise _bad("holes", hole, "expected [start, stop] pairs of integers")
    return hole[0], hole[1]


def _check_numbers(state: StreamState) -> None:
    for name, (least, most) in _BOUNDS.items():
        value = getattr(state, name)
        if value is not None and not least <= value <= most:
            raise _bad(name, value, f"expected {least} to {most}")
    if state.lanes % state.groups:
        raise _bad("groups", state.groups, f"expected a divisor of {state.lanes} lanes")
    if not 0 <= state.position <= state.rows:
        raise _bad("position", state.position, f"expected 0..{state.rows}, the rows of the epoch")
    if state.base is not None:
        left, same = state.base.remaining.total, ("split", "index", "seed", "epoch", "shuffle", "samples_per_epoch")
        if state.rows != left or any(getattr(state, name) != getattr(state.base, name) for name in same):
            raise _bad("base", f"{left} rows left of epoch {state.base.epoch}", f"expected {state.rows} of this epoch")
    if state.regions is not None and (state.base is not None or sum(state.regions.rows) != state.rows):
        raise _bad("regions", f"of {sum(state.regions.rows)} rows", f"expected all {state.rows} rows of an epoch")
    below = 0
    for start, stop in state.holes:
        if not below <= start < stop <= state.position:
            raise _bad("holes", [start, stop], f"expected sorted, disjoint ranges below position {state.position}")
        below = stop


def _bad(name: str, value: Any, expected: str) -> StreamError:
    return StreamError(f"stream state: {name} is {shown(value)}; {expected}; pass what state_dict() gave, unchanged")
