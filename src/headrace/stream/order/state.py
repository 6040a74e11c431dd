"""Describe the state of a stream: which epoch, which order, and which rows nobody has received yet.

It is one small JSON object with a digest, the same on every rank. It names positions in the global order, not files or
ranks, so it resumes on any number of ranks and with any batch size. Rows that were read ahead but not handed out do not
count. States of format versions 1 and 2 belong to older orders and are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from headrace.dataset.index import SplitIndex
from headrace.errors import StreamError
from headrace.sealed import MOST_EPOCHS, MOST_LANES, MOST_POSITIONS, seal, shown, unseal
from headrace.stream.order.balance import MOST_EVEN_TOKENS
from headrace.stream.order.epoch import OrderSettings, settings_of
from headrace.stream.order.regions import Regions
from headrace.stream.order.remaining import Remainder, Remaining, advance, count_steps

FORMAT_VERSION = 3
COUNTED = "counted stream"
MOST_CHANGES = 64  # every question to an order is put to each of its parts
_KIND = "stream"
_REMEDY = "pass what state_dict() gave, unchanged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of the order from `position` on; see `layout`.

    ranks: the rest, or the rest of the round, is dealt to this many ranks. Else lanes, window_rows and groups describe
    how the rest is cut again.
    """

    position: int
    ranks: int | None = None
    lanes: int | None = None
    window_rows: int | None = None
    groups: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamState:
    """A position in one epoch of one split.

    index: identity of the split's index; rows: N. seed, epoch, lanes, window_rows, groups, shuffle: the order.
    position: everything from here on remains. holes: [start, stop) ranges below it that remain too, where ranks take
    whole shards, claim blocks, or pack rows.
    changes: how other numbers of ranks changed the order since the epoch began, by position.
    samples_per_epoch: rows of an epoch that is not one pass over all rows.
    regions: which rank has which whole shards; None if all ranks stride over all rows.
    pass_number, chunk: if an epoch is a chunk of the rows, which chunk of which pass over all of them.
    balance: if rows of like cost share steps, the rows of a global batch, and the number of tokens at which a
    sequence's attention costs as much as everything else, see `balance`.
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
    changes: tuple[Change, ...] = ()
    samples_per_epoch: int | None = None
    regions: Regions | None = None
    pass_number: int | None = None
    chunk: int | None = None
    balance: tuple[int, int] | None = None

    @property
    def order_settings(self) -> OrderSettings:
        """Everything that the order of the epoch depends on, except its blocks."""
        return settings_of(self)

    @property
    def remaining(self) -> Remaining:
        """The positions that nobody has received yet."""
        return Remaining.of(self.rows, position=self.position, holes=self.holes)

    def at(self, remaining: Remaining) -> StreamState:
        """Return a state of the same order with these positions remaining."""
        return replace(self, position=remaining.position, holes=remaining.holes)

    def steps(self, *, ranks: int, batch_size: int, remainder: Remainder) -> int:
        """Return how many batches every rank gets from the remaining rows."""
        if self.regions is not None:
            return self.regions.steps(self.remaining, ranks=ranks, batch_size=batch_size, remainder=remainder)
        return count_steps(self.remaining.total, ranks=ranks, batch_size=batch_size, remainder=remainder)

    def after(self, batches: int, *, ranks: int, batch_size: int, remainder: Remainder) -> StreamState:
        """Return the state after `batches` batches on every rank. Raises `StreamError` if there are fewer."""
        go_on = advance if self.regions is None else self.regions.advance
        return self.at(go_on(self.remaining, batches, ranks=ranks, batch_size=batch_size, remainder=remainder))

    def fresh(self, epoch: int) -> StreamState:
        """Return the start of an epoch, with the lanes and windows that this one began with."""
        return replace(self, epoch=epoch, position=0, holes=(), changes=())

    def to_dict(self, kind: str = _KIND) -> dict[str, Any]:
        """Return a JSON object that `from_dict` restores. kind: the kind of loader that the positions belong to."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        values["holes"] = [list(hole) for hole in self.holes]
        values["changes"] = [
            {name: value for name in _CHANGE if (value := getattr(change, name)) is not None} for change in self.changes
        ]
        values["regions"] = None if self.regions is None else self.regions.to_dict()
        values["balance"] = None if self.balance is None else list(self.balance)
        return seal(kind, FORMAT_VERSION, {k: v for k, v in values.items() if k not in _LATER or v is not None})

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], kind: str = _KIND) -> StreamState:
        """Restore a state. Raises `StreamError` if it is not a state, was changed, or has another format version."""
        values = unseal(values, kind=kind, version=FORMAT_VERSION)
        missing = sorted(set(_ALWAYS) - values.keys())
        unknown = sorted(values.keys() - {*_ALWAYS, *_LATER})
        if missing or unknown:
            raise StreamError(f"stream state: keys missing {shown(missing)}, keys unknown {shown(unknown)}; {_REMEDY}")
        names = [name for name in (*_ALWAYS, *_LATER) if name in values]
        for name in names:
            value, (expected, said) = values[name], _KINDS.get(name, (int, "an integer"))
            if not isinstance(value, expected) or (expected is int and isinstance(value, bool)):
                raise _bad(name, value, f"expected {said}")
        plain = {name: values[name] for name in names if name not in ("holes", "changes", "regions", "balance")}
        state = cls(
            **plain,
            holes=tuple(_hole(hole) for hole in values["holes"]),
            changes=tuple(_change(change) for change in values["changes"]),
            regions=Regions.from_dict(values["regions"]) if "regions" in values else None,
            balance=_balance(values["balance"]) if "balance" in values else None,
        )
        _check_numbers(state)
        return state

    def check_order(
        self, *, seed: int, shuffle: bool, samples_per_epoch: int | None = None, even_tokens: int | None = None
    ) -> None:
        """Raise `StreamError` if the stream is set up for another order than the saved one."""
        saved = None if self.balance is None else self.balance[1]
        if saved != even_tokens:
            models = [
                "without balance" if each is None else f"balanced for {each:,} tokens (linear / quadratic)"
                for each in (saved, even_tokens)
            ]
            raise StreamError(
                f"stream state: it was saved {models[0]}, this stream is {models[1]}; rows would repeat and be missed:"
                " pass the saved balance=, or start the epoch again"
            )
        if self.samples_per_epoch != samples_per_epoch:
            raise StreamError(
                f"stream state: it was saved with samples_per_epoch={self.samples_per_epoch}, this stream has"
                f" {samples_per_epoch}; epochs would overlap: pass the saved setting, or start the epoch again"
            )
        if (self.seed, self.shuffle) != (seed, shuffle):
            raise StreamError(
                f"stream state: it was saved with seed={self.seed}, shuffle={self.shuffle}; this stream has"
                f" seed={seed}, shuffle={shuffle}; rows would repeat and be missed: pass the saved settings, or start"
                " the epoch again"
            )

    def check_index(self, index: SplitIndex) -> None:
        """Raise `StreamError` unless this state belongs to exactly this split of this dataset."""
        if self.split != index.split:
            raise StreamError(
                f"stream state: it is of split {shown(self.split)}, this stream reads {shown(index.split)};"
                " load each state into the stream of its own split"
            )
        whole = index.total_rows if self.samples_per_epoch is None else self.samples_per_epoch
        if self.index != index.identity or self.rows != whole:
            raise StreamError(
                f"stream state: split {shown(self.split)} had index {shown(self.index[:12])} with {self.rows:,}"
                f" rows when saved, now it has {shown(index.identity[:12])} with {whole:,}; shards were added, removed"
                " or rewritten, or another filter or blend was set up: open the dataset as it was when the state was"
                " saved, or start the epoch again"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedState:
    """A position in a pass of a row source: `batches` on each of `world_size` ranks since `start`.

    For sources whose batches are not a fixed number of rows. identity: that of the settings of the source.
    """

    start: StreamState
    batches: int
    world_size: int
    batch_size: int
    identity: str

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON object that `from_dict` restores."""
        numbers = {name: getattr(self, name) for name in _COUNTS}
        return seal(COUNTED, FORMAT_VERSION, {"start": self.start.to_dict(), **numbers, "source": self.identity})

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> CountedState:
        """Restore a state. Raises `StreamError` if it is not a state, or was changed."""
        values = unseal(values, kind=COUNTED, version=FORMAT_VERSION)
        check_keys("stream state", values, _COUNTS, others=("start", "source"))
        start = StreamState.from_dict(values["start"])
        return cls(start=start, identity=values["source"], **{name: values[name] for name in _COUNTS})


def check_keys(what: str, values: Mapping[str, Any], least: Mapping[str, int], *, others: Sequence[str]) -> None:
    """Raise `StreamError` unless a state has exactly these keys, and its integers are in bounds."""
    numbers = [values.get(name) for name in least]
    bounds = zip(numbers, least.values(), strict=True)
    if set(values) != {*least, *others} or not all(
        type(number) is int and lowest <= number <= MOST_POSITIONS for number, lowest in bounds
    ):
        raise StreamError(f"{what}: {shown(values)} is not what state_dict() gave; pass it on unchanged")


_COUNTS = {"batches": 0, "world_size": 1, "batch_size": 1}  # its numbers, and the least that each may be

# What is not an integer, and what is expected in its place.
_KINDS: dict[str, tuple[Any, str]] = {
    "split": (str, "text"),
    "index": (str, "text"),
    "shuffle": (bool, "true or false"),
    "holes": (list | tuple, "a list"),
    "changes": (list | tuple, "a list"),
    "regions": (Mapping, "a mapping"),
    "balance": (list | tuple, "a list"),
}

# What is written only where it is not None: a state without them is that of a split, one epoch a pass.
_LATER = ("samples_per_epoch", "regions", "pass_number", "chunk", "balance")
_ALWAYS = tuple(each.name for each in fields(StreamState) if each.name not in _LATER)

# Of every number but the seed: the least and the most that it may be.
_BOUNDS = {
    "rows": (0, MOST_POSITIONS),
    "epoch": (0, MOST_EPOCHS),
    "lanes": (1, MOST_LANES),
    "window_rows": (1, MOST_POSITIONS),
    "groups": (1, MOST_LANES),
    "samples_per_epoch": (1, MOST_POSITIONS),
    "pass_number": (0, MOST_EPOCHS),
    "chunk": (0, MOST_POSITIONS),
    "ranks": (1, MOST_LANES),
}
_CHANGE = tuple(each.name for each in fields(Change))


def _hole(hole: Any) -> tuple[int, int]:
    whole = isinstance(hole, list | tuple) and len(hole) == 2
    if not whole or not all(isinstance(end, int) and not isinstance(end, bool) for end in hole):
        raise _bad("holes", hole, "expected [start, stop] pairs of integers")
    return hole[0], hole[1]


def _change(change: Any) -> Change:
    names = set(change) if isinstance(change, Mapping) else set()
    whole = names in ({"position", "ranks"}, {"position", "lanes", "window_rows", "groups"})
    if not whole or any(type(value) is not int for value in change.values()):
        raise _bad("changes", change, "expected a position, and ranks or lanes, window_rows and groups")
    return Change(**change)


def _balance(values: Any) -> tuple[int, int]:
    known = len(values) == 2 and all(type(value) is int for value in values)
    if not known or not 1 <= values[0] <= MOST_POSITIONS or not 1 <= values[1] <= MOST_EVEN_TOKENS:
        raise _bad("balance", values, "expected the rows of a global batch, and tokens")
    return values[0], values[1]


def _check_numbers(state: StreamState) -> None:
    numbered: list[StreamState | Change] = [state, *state.changes]
    for each in numbered:
        for name, (least, most) in _BOUNDS.items():
            value = getattr(each, name, None)
            if value is not None and not least <= value <= most:
                raise _bad(name, value, f"expected {least} to {most}")
        if each.lanes is not None and each.groups is not None and each.lanes % each.groups:
            raise _bad("groups", each.groups, f"expected a divisor of {each.lanes} lanes")
        if each.lanes and each.window_rows and each.lanes * each.window_rows > MOST_POSITIONS:
            raise _bad("window_rows", each.window_rows, f"expected at most {MOST_POSITIONS} rows in a round")
    if not 0 <= state.position <= state.rows:
        raise _bad("position", state.position, f"expected 0..{state.rows}, the rows of the epoch")
    if state.regions is not None and (state.changes or sum(state.regions.rows) != state.rows):
        raise _bad("regions", f"of {sum(state.regions.rows)} rows", f"expected all {state.rows} rows of an epoch")
    positions = [change.position for change in state.changes]
    if len(positions) > MOST_CHANGES or positions != sorted(set(positions)) or (positions and positions[0] < 0):
        raise _bad("changes", positions, f"expected at most {MOST_CHANGES} ascending positions")
    if positions and positions[-1] >= state.rows:
        raise _bad("changes", positions, f"expected positions below {state.rows}, the rows of the epoch")
    if sum(change.lanes or change.ranks or 0 for change in state.changes) > MOST_LANES:
        raise _bad("changes", positions, f"expected lanes and ranks of together at most {MOST_LANES}")
    cut: Change | None = None
    for change in state.changes:  # lanes are cut again at round borders; the rest may be dealt to ranks anywhere
        if change.ranks is not None:
            continue
        if change.position != next_border(state, cut, change.position):
            raise _bad("changes", positions, f"expected lanes to be cut at borders of rounds, not at {change.position}")
        cut = change
    below = 0
    for start, stop in state.holes:
        if not below <= start < stop <= state.position:
            raise _bad("holes", [start, stop], f"expected sorted, disjoint ranges below position {state.position}")
        below = stop


def next_border(state: StreamState, cut: Change | None, position: int) -> int:
    """Return the first position from `position` on at which every lane stands at the border of a window, or the end.

    cut: the last change of lanes; None for the lanes that the epoch began with.
    """
    base: StreamState | Change = state if cut is None else cut
    begin = 0 if cut is None else cut.position
    round_rows = (base.lanes or 1) * ((base.window_rows or 1) if state.shuffle else 1)
    return min(begin - (begin - position) // round_rows * round_rows, state.rows)


def _bad(name: str, value: Any, expected: str) -> StreamError:
    return StreamError(f"stream state: {name} is {shown(value)}; {expected}; {_REMEDY}")
