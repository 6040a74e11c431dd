"""Describe the state of a stream: which epoch, which order, and which rows nobody has received yet.

It is one small JSON object with a digest, the same on every rank. It names positions in the global
order, not files or ranks, so it resumes on any number of ranks and with any batch size. Rows that
were read ahead but not handed out do not count.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import Any, NamedTuple

from headrace.dataset.index import SplitIndex
from headrace.errors import StreamError, setting, setting_name
from headrace.sealed import MOST_EPOCHS, MOST_LANES, MOST_POSITIONS, seal, short_repr, unseal
from headrace.stream.order.balance import MOST_EVEN_TOKENS
from headrace.stream.order.epoch import OrderSettings, first_window_rows, settings_of
from headrace.stream.order.mixed import Leg
from headrace.stream.order.remaining import Remainder, Remaining, advance, count_steps
from headrace.stream.order.schedule import Schedule, StageWeights
from headrace.stream.order.shard_partition import ShardPartition

FORMAT_VERSION = 7
COUNTED = "counted stream"
MOST_CHANGES = 64  # every question to an order is put to each of its parts
_KIND = "stream"
_CHANGED_BLEND = (
    'pass the saved blend, or go on from there with load_state_dict(state, changed="weights"), or'
    ' "datasets" if some were added or removed'
)
_FRACTION = re.compile(r"[0-9]{1,999}(/[1-9][0-9]{0,999})?")
_REMEDY = "pass what state_dict() gave, unchanged"
_OTHER_ORDER = (
    "pass the saved setting, or start the epoch again; rows would repeat and be missed otherwise"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of the order from `position` on; see `layout`.

    ranks: the rest, or the rest of the round, is dealt to this many ranks. Else lanes, window_rows
    and groups describe how the rest is cut again.
    """

    position: int
    ranks: int | None = None
    lanes: int | None = None
    window_rows: int | None = None
    groups: int | None = None


class SavedSource(NamedTuple):
    """One source of a mixture; identity: the first digits of that of its split's index."""

    name: str
    rows: int
    identity: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LaidMixture:
    """The proportions from a row of the run on.

    begin: that row. blend: the proportions in words. sources: numbers of those that it has.
    stages: the row of the run at which each stage begins. weights: of each stage, one per source.
    most: the rows of each source that the run may have; None for any number.
    """

    begin: int
    blend: str
    sources: tuple[int, ...]
    stages: tuple[int, ...]
    weights: tuple[tuple[Fraction, ...], ...]
    most: tuple[int | None, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON object that `from_dict` restores."""
        return {
            "begin": self.begin,
            "blend": self.blend,
            "sources": list(self.sources),
            "stages": list(self.stages),
            "weights": [[str(weight) for weight in stage] for stage in self.weights],
            "most": list(self.most),
        }

    @classmethod
    def from_dict(cls, values: Any, *, sources: int) -> LaidMixture:
        """Restore it, beside so many sources. Raises `StreamError` if it was changed."""
        names = tuple(field.name for field in fields(cls))
        if not isinstance(values, Mapping) or set(values) != set(names):
            raise _bad("mixture", values, f"expected {', '.join(names)}")
        lists = [values[name] for name in ("sources", "stages", "weights", "most")]
        known = isinstance(values["blend"], str) and _is_number(values["begin"])
        if not known or not all(isinstance(values, list | tuple) for values in lists):
            raise _bad("mixture", values, "expected a row, words and lists")
        numbers, stages, weights, most = map(tuple, lists)
        if not all(_is_number(number) and number < sources for number in numbers):
            raise _bad("mixture", numbers, f"expected numbers of {sources} sources")
        if not all(map(_is_number, stages)) or stages[:1] != (0,) or not _ascending(stages):
            raise _bad("mixture", stages, "expected ascending rows from 0 on")
        limits = [rows for rows in most if rows is not None]
        is_parallel = len(most) == len(numbers) == len(set(numbers)) and len(weights) == len(stages)
        if not is_parallel or not all(map(_is_number, limits)):
            raise _bad("mixture", most, "expected a number of rows, or none, of each source")
        return cls(
            begin=values["begin"],
            blend=values["blend"],
            sources=numbers,
            stages=stages,
            weights=tuple(_fractions(stage, len(numbers)) for stage in weights),
            most=most,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureState:
    """The mixture of a run whose epochs are not single passes; see `schedule`.

    sources: all that it ever had. mixtures: by ascending begin, the first at 0; another one begins
    where the mixture was changed on purpose. legs: the lanes from some rows on, as other numbers of
    ranks and other mixtures changed them.
    """

    sources: tuple[SavedSource, ...]
    mixtures: tuple[LaidMixture, ...]
    legs: tuple[Leg, ...] = ()

    @property
    def blend(self) -> str:
        """The proportions in words."""
        return self.mixtures[-1].blend

    @property
    def names(self) -> list[str]:
        """The names of the sources that it has now."""
        return [self.sources[number].name for number in self.mixtures[-1].sources]

    def check_source(self, current: SavedSource) -> None:
        """Raise `StreamError` if it has other rows of a source that is read now."""
        for saved in self.sources:
            if saved.name == current.name and saved != current:
                raise StreamError(
                    f"stream state: dataset {current.name} had {saved.rows:,} rows with index"
                    f" {short_repr(saved.identity)} when saved, now it has {current.rows:,} with"
                    f" {short_repr(current.identity)}",
                    setting="datasets",
                    value=current.name,
                    remedy="open it as it was when saved, or give its rows another name",
                )

    @property
    def stages(self) -> tuple[int, ...]:
        """The row of the run at which each stage begins."""
        return self.mixtures[-1].stages

    def schedules(self, epoch_rows: int) -> tuple[Schedule, ...]:
        """Return the schedule of each mixture, for all sources."""
        schedules: list[Schedule] = []
        numbers = range(len(self.sources))
        drawn = None
        for mixture in self.mixtures:
            if schedules:
                drawn = schedules[-1].drawn_before(mixture.begin)
            stages = []
            for begin, weights in zip(mixture.stages, mixture.weights, strict=True):
                of_source = dict(zip(mixture.sources, weights, strict=True))
                shares = [of_source.get(number, Fraction(0)) for number in numbers]
                stages.append(StageWeights(begin, tuple(shares)))
            most = dict(zip(mixture.sources, mixture.most, strict=True))
            schedule = Schedule(
                sizes=tuple(source.rows for source in self.sources),
                stages=tuple(stages),
                most=tuple(most.get(number) for number in numbers),
                epoch_rows=epoch_rows,
                begin=mixture.begin,
                drawn_earlier=drawn,
            )
            schedules.append(schedule)
        return tuple(schedules)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON object that `from_dict` restores."""
        return {
            "sources": [list(source) for source in self.sources],
            "mixtures": [mixture.to_dict() for mixture in self.mixtures],
            "legs": [list(leg) for leg in self.legs],
        }

    def before(self, row: int) -> MixtureState:
        """Return it without the legs from a row of the run on."""
        return replace(self, legs=tuple(leg for leg in self.legs if leg.begin < row))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> MixtureState:
        """Restore it. Raises `StreamError` if it was changed."""
        if set(values) != {"sources", "mixtures", "legs"}:
            raise _bad("mixture", values, "expected sources, mixtures and legs")
        legs = _legs(values["legs"])
        sources = _sources(values["sources"])
        if not isinstance(values["mixtures"], list | tuple):
            raise _bad("mixtures", values["mixtures"], "expected a list")
        mixtures = []
        for mixture in values["mixtures"]:
            mixtures.append(LaidMixture.from_dict(mixture, sources=len(sources)))
        rows = [mixture.begin for mixture in mixtures]
        changed = set(rows[1:]) <= {leg.begin for leg in legs}
        if rows[:1] != [0] or not _ascending(rows) or not changed:
            raise _bad("mixtures", rows, "expected ascending rows from 0 on, where legs begin")
        return cls(sources=sources, mixtures=tuple(mixtures), legs=legs)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamState:
    """A position in one epoch of one split.

    index: identity of the split's index; rows: N. seed, epoch, lanes, window_rows, groups, shuffle:
    the order. position: everything from here on remains. holes: [start, stop) ranges below it that
    remain too, where ranks take whole shards, claim blocks, or pack rows.
    changes: how other numbers of ranks changed the order since the epoch began, by position.
    samples_per_epoch: rows of an epoch that is not one pass over all rows. mixture: of such an
    epoch, or of a blend.
    shard_partition: which rank has which whole shards; None if all ranks stride over all rows.
    pass_number, chunk: if an epoch is a chunk of the rows, which chunk of which pass over all of
    them. balance: if rows of like cost share steps, the rows of a global batch, and the number of
    tokens at which a sequence's attention costs as much as everything else, see `balance`.
    batches_done: batches that each rank took of the epoch, which the position does not tell once
    ranks or batch sizes changed.
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
    mixture: MixtureState | None = None
    shard_partition: ShardPartition | None = None
    pass_number: int | None = None
    chunk: int | None = None
    balance: tuple[int, int] | None = None
    batches_done: int = 0

    @property
    def order_settings(self) -> OrderSettings:
        """Everything that the order of the epoch depends on, except its blocks."""
        return settings_of(self)

    @property
    def remaining(self) -> Remaining:
        """The positions that nobody has received yet."""
        return Remaining.of(self.rows, position=self.position, holes=self.holes)

    def at(self, remaining: Remaining, *, batches: int) -> StreamState:
        """Return a state of the same order with these positions remaining, after so many more
        batches.
        """
        return replace(
            self,
            position=remaining.position,
            holes=remaining.holes,
            batches_done=self.batches_done + batches,
        )

    def epoch_start(self) -> StreamState:
        """Return the beginning of this epoch, in the order that its ranks have made."""
        return replace(self, position=0, holes=(), batches_done=0)

    def steps(self, *, ranks: int, batch_size: int, remainder: Remainder) -> int:
        """Return how many batches every rank gets from the remaining rows."""
        if self.shard_partition is not None:
            return self.shard_partition.steps(
                self.remaining, ranks=ranks, batch_size=batch_size, remainder=remainder
            )
        return count_steps(
            self.remaining.total, ranks=ranks, batch_size=batch_size, remainder=remainder
        )

    def after(
        self, batches: int, *, ranks: int, batch_size: int, remainder: Remainder
    ) -> StreamState:
        """Return the state after `batches` batches on every rank.

        Raises `StreamError` if there are fewer.
        """
        if self.shard_partition is None:
            go_on = advance
        else:
            go_on = self.shard_partition.advance
        left = go_on(
            self.remaining, batches, ranks=ranks, batch_size=batch_size, remainder=remainder
        )
        return self.at(left, batches=batches)

    def fresh(self, epoch: int) -> StreamState:
        """Return the start of an epoch, with the lanes and windows that this one began with, or
        those of a blend's last leg.
        """
        mixture = self.mixture and self.mixture.before(epoch * self.rows + 1)
        return replace(
            self,
            epoch=epoch,
            position=0,
            holes=(),
            changes=(),
            mixture=mixture,
            batches_done=0,
        )

    def check_epoch(self, epoch: int) -> None:
        """Raise `StreamError` if an epoch begins before the last change of the mixture."""
        changed = self.mixture.mixtures[-1].begin if self.mixture is not None else 0
        if epoch * self.rows < changed:
            raise StreamError(
                f"epoch {epoch} begins before row {changed:,} of the run, where the blend changed",
                setting="epoch",
                value=epoch,
                remedy="open the blend as it was before, and load a state of it",
            )

    @property
    def changed_at(self) -> list[int]:
        """The positions of this epoch at which other ranks changed its order."""
        positions = [change.position for change in self.changes]
        if self.mixture is not None:
            begin = self.epoch * self.rows
            for leg in self.mixture.legs:
                if begin <= leg.begin < begin + max(1, self.rows):
                    positions.append(leg.begin - begin)
        return positions

    def to_dict(self, sealed_as: str = _KIND) -> dict[str, Any]:
        """Return a JSON object that `from_dict` restores.

        sealed_as: the kind of loader that the positions belong to.
        """
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["holes"] = [list(hole) for hole in self.holes]
        values["changes"] = [
            {name: value for name in _CHANGE if (value := getattr(change, name)) is not None}
            for change in self.changes
        ]
        if self.shard_partition is not None:
            values["shard_partition"] = self.shard_partition.to_dict()
        if self.mixture is not None:
            values["mixture"] = self.mixture.to_dict()
        if self.balance is not None:
            values["balance"] = list(self.balance)
        for name in _OPTIONAL:
            if values[name] is None:
                del values[name]
        return seal(sealed_as, FORMAT_VERSION, values)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], sealed_as: str = _KIND) -> StreamState:
        """Restore a state.

        Raises `StreamError` if it is not a state, was changed, or has another format version.
        """
        values = unseal(values, subject=sealed_as, version=FORMAT_VERSION)
        missing = sorted(set(_ALWAYS) - values.keys())
        unknown = sorted(values.keys() - {*_ALWAYS, *_OPTIONAL})
        if missing or unknown:
            raise StreamError(
                f"stream state: keys missing {short_repr(missing)}, keys unknown"
                f" {short_repr(unknown)}",
                remedy=_REMEDY,
            )
        names = [name for name in (*_ALWAYS, *_OPTIONAL) if name in values]
        for name in names:
            value = values[name]
            expected, described = _KINDS.get(name, (int, "an integer"))
            if not isinstance(value, expected) or (expected is int and isinstance(value, bool)):
                raise _bad(name, value, f"expected {described}")
        fields_of_state = {name: values[name] for name in names}
        fields_of_state["holes"] = tuple(map(_hole, values["holes"]))
        fields_of_state["changes"] = tuple(map(_change, values["changes"]))
        if "shard_partition" in values:
            partition = ShardPartition.from_dict(values["shard_partition"])
            fields_of_state["shard_partition"] = partition
        if "mixture" in values:
            fields_of_state["mixture"] = MixtureState.from_dict(values["mixture"])
        if "balance" in values:
            fields_of_state["balance"] = _balance(values["balance"])
        state = cls(**fields_of_state)
        _check_numbers(state)
        _check_changes(state)
        _check_holes(state)
        return state

    def check_order(
        self,
        *,
        seed: int,
        shuffle: bool,
        samples_per_epoch: int | None = None,
        even_tokens: int | None = None,
    ) -> None:
        """Raise `StreamError` if the stream is set up for another order than the saved one."""
        saved_tokens = self.balance[1] if self.balance else None
        if saved_tokens != even_tokens:
            raise StreamError(
                f"stream state: it was saved {_describe_balance(saved_tokens)}, this stream is"
                f" {_describe_balance(even_tokens)}",
                remedy=_OTHER_ORDER,
            )
        settings = (
            ("samples_per_epoch", self.samples_per_epoch, samples_per_epoch),
            ("seed", self.seed, seed),
            ("shuffle", self.shuffle, shuffle),
        )
        for name, saved, current in settings:
            if saved != current:
                raise StreamError(
                    f"stream state: it was saved with {setting(name, saved)}, this stream has"
                    f" {setting(name, current)}",
                    remedy=_OTHER_ORDER,
                )

    def check_blend(self, mixture: MixtureState | None) -> None:
        """Raise `StreamError` if the state is of a blend with other proportions."""
        saved = "none" if self.mixture is None else self.mixture.blend
        current = "none" if mixture is None else mixture.blend
        if saved != current:
            remedy = _OTHER_ORDER
            if self.mixture is not None and mixture is not None:
                remedy = _CHANGED_BLEND
            raise StreamError(
                f"stream state: it was saved with the blend {short_repr(saved)}, this stream has"
                f" {short_repr(current)}",
                setting="blend",
                value=saved,
                remedy=remedy,
            )
        names = [] if self.mixture is None else self.mixture.names
        current_names = [] if mixture is None else mixture.names
        if sorted(names) != sorted(current_names):
            raise StreamError(
                f"stream state: it was saved with the datasets {short_repr(sorted(names))}, this"
                f" stream has {short_repr(sorted(current_names))}",
                setting="datasets",
                value=names,
                remedy=_CHANGED_BLEND,
            )
        if self.mixture is None or mixture is None:
            return
        if len(self.mixture.stages) != len(mixture.stages):
            expected = f"expected {len(mixture.stages)} stages"
            raise _bad("mixture", list(self.mixture.stages), expected)

    def check_index(self, index: SplitIndex) -> None:
        """Raise `StreamError` unless this state belongs to exactly this split of this dataset."""
        if self.split != index.split:
            raise StreamError(
                f"stream state: it is of {setting_name('split')} {short_repr(self.split)}, this"
                f" stream reads {short_repr(index.split)}",
                remedy="load each state into the stream of its own split",
            )
        if self.samples_per_epoch is None:
            epoch_rows = index.total_rows
        else:
            epoch_rows = self.samples_per_epoch
        if self.index != index.identity or self.rows != epoch_rows:
            raise StreamError(
                f"stream state: split {short_repr(self.split)} had index"
                f" {short_repr(self.index[:12])} with {self.rows:,} rows when saved, now it has"
                f" {short_repr(index.identity[:12])} with {epoch_rows:,}",
                remedy=(
                    "open the dataset as it was when the state was saved, or start the epoch again;"
                    " shards were added, removed or rewritten, or another filter or blend was set"
                    " up"
                ),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedState:
    """A position in a pass of a row source: `batches` on each of `world_size` ranks since `start`.

    For sources whose batches are not a fixed number of rows. identity: that of the settings of the
    source.
    """

    start: StreamState
    batches: int
    world_size: int
    batch_size: int
    identity: str

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON object that `from_dict` restores."""
        numbers = {name: getattr(self, name) for name in _COUNTS}
        return seal(
            COUNTED,
            FORMAT_VERSION,
            {"start": self.start.to_dict(), **numbers, "source": self.identity},
        )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> CountedState:
        """Restore a state. Raises `StreamError` if it is not a state, or was changed."""
        values = unseal(values, subject=COUNTED, version=FORMAT_VERSION)
        check_keys("stream state", values, _COUNTS, others=("start", "source"))
        start = StreamState.from_dict(values["start"])
        return cls(
            start=start, identity=values["source"], **{name: values[name] for name in _COUNTS}
        )


def check_keys(
    what: str, values: Mapping[str, Any], least: Mapping[str, int], *, others: Sequence[str]
) -> None:
    """Raise `StreamError` unless a state has exactly these keys, and its integers are in bounds."""
    numbers = [values.get(name) for name in least]
    bounds = zip(numbers, least.values(), strict=True)
    if set(values) != {*least, *others} or not all(
        type(number) is int and lowest <= number <= MOST_POSITIONS for number, lowest in bounds
    ):
        raise StreamError(
            f"{what}: {short_repr(values)} is not what state_dict() gave",
            remedy="pass it on unchanged",
        )


# its numbers, and the least that each may be
_COUNTS = {"batches": 0, "world_size": 1, "batch_size": 1}

# What is not an integer, and what is expected in its place.
_KINDS: dict[str, tuple[Any, str]] = {
    "split": (str, "text"),
    "index": (str, "text"),
    "shuffle": (bool, "true or false"),
    "holes": (list | tuple, "a list"),
    "changes": (list | tuple, "a list"),
    "shard_partition": (Mapping, "a mapping"),
    "mixture": (Mapping, "a mapping"),
    "balance": (list | tuple, "a list"),
}

# Written only where they are not None.
_OPTIONAL = (
    "samples_per_epoch",
    "mixture",
    "shard_partition",
    "pass_number",
    "chunk",
    "balance",
)
_ALWAYS = tuple(field.name for field in fields(StreamState) if field.name not in _OPTIONAL)

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
    "batches_done": (0, MOST_POSITIONS),
    "ranks": (1, MOST_LANES),
}
_CHANGE = tuple(field.name for field in fields(Change))


def _hole(hole: Any) -> tuple[int, int]:
    valid = isinstance(hole, list | tuple) and len(hole) == 2
    if not valid or not all(isinstance(end, int) and not isinstance(end, bool) for end in hole):
        raise _bad("holes", hole, "expected [start, stop] pairs of integers")
    return hole[0], hole[1]


def _change(change: Any) -> Change:
    keys = set(change) if isinstance(change, Mapping) else set()
    valid = keys in ({"position", "ranks"}, {"position", "lanes", "window_rows", "groups"})
    if not valid or any(type(value) is not int for value in change.values()):
        raise _bad(
            "changes", change, "expected a position, and ranks or lanes, window_rows and groups"
        )
    return Change(**change)


def _is_number(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MOST_POSITIONS


def _ascending(numbers: Sequence[int]) -> bool:
    return list(numbers) == sorted(set(numbers))


def _sources(values: Any) -> tuple[SavedSource, ...]:
    if not isinstance(values, list | tuple) or not values:
        raise _bad("sources", values, "expected a list")
    sources = []
    for source in values:
        known = isinstance(source, list | tuple) and len(source) == len(SavedSource._fields)
        if not known or not isinstance(source[0], str) or not isinstance(source[2], str):
            raise _bad("sources", source, f"expected {', '.join(SavedSource._fields)}")
        if not _is_number(source[1]):
            raise _bad("sources", source[1], "expected a number of rows")
        sources.append(SavedSource(*source))
    names = [source.name for source in sources]
    if len(names) != len(set(names)):
        raise _bad("sources", names, "expected each name once")
    return tuple(sources)


def _fractions(texts: Any, sources: int) -> tuple[Fraction, ...]:
    known = isinstance(texts, list | tuple) and len(texts) == sources
    if not known or not all(isinstance(text, str) and _FRACTION.fullmatch(text) for text in texts):
        raise _bad("mixture", texts, "expected a fraction of each source")
    return tuple(map(Fraction, texts))


def _legs(values: Any) -> tuple[Leg, ...]:
    legs: list[Leg] = []
    if not isinstance(values, list | tuple) or len(values) > MOST_CHANGES:
        raise _bad("legs", values, f"expected at most {MOST_CHANGES}")
    for numbers in values:
        known = isinstance(numbers, list | tuple) and len(numbers) == len(Leg._fields)
        if not known or any(type(number) is not int for number in numbers):
            raise _bad("legs", numbers, f"expected {', '.join(Leg._fields)}")
        leg = Leg(*numbers)
        for name, value in leg._asdict().items():
            least, most = _BOUNDS.get(name, (0, MOST_POSITIONS))
            if not least <= value <= most:
                raise _bad("legs", value, f"expected {name} of {least} to {most}")
        ascending = not legs or legs[-1].begin < leg.begin
        small = leg.lanes * leg.window_rows <= MOST_POSITIONS
        if not ascending or leg.lanes % leg.groups or not small:
            raise _bad("legs", numbers, "expected ascending rows, and groups of lanes")
        legs.append(leg)
    return tuple(legs)


def _balance(values: Any) -> tuple[int, int]:
    known = len(values) == 2 and all(type(value) is int for value in values)
    if not known or not 1 <= values[0] <= MOST_POSITIONS or not 1 <= values[1] <= MOST_EVEN_TOKENS:
        raise _bad("balance", values, "expected the rows of a global batch, and tokens")
    return values[0], values[1]


def _check_numbers(state: StreamState) -> None:
    records: list[StreamState | Change] = [state, *state.changes]
    for record in records:
        for name, (least, most) in _BOUNDS.items():
            value = getattr(record, name, None)
            if value is not None and not least <= value <= most:
                raise _bad(name, value, f"expected {least} to {most}")
        lanes = record.lanes or 0
        if record.groups and lanes % record.groups:
            raise _bad("groups", record.groups, f"expected a divisor of {lanes} lanes")
        if lanes * (record.window_rows or 0) > MOST_POSITIONS:
            expected = f"expected at most {MOST_POSITIONS} rows in a round"
            raise _bad("window_rows", record.window_rows, expected)
    if not 0 <= state.position <= state.rows:
        raise _bad("position", state.position, f"expected 0..{state.rows}, the rows of the epoch")
    if state.shard_partition is not None:
        rows = sum(state.shard_partition.rows)
        if state.changes or rows != state.rows:
            expected = f"expected all {state.rows} rows of an epoch"
            raise _bad("shard_partition", f"of {rows} rows", expected)


def _check_changes(state: StreamState) -> None:
    if state.mixture is not None and state.changes:
        raise _bad("changes", len(state.changes), "expected none beside a mixture, which has legs")
    if state.mixture is not None and state.mixture.legs:
        last = state.mixture.legs[-1].begin
        end = (state.epoch + 1) * state.rows
        if last > end:
            raise _bad("legs", last, f"expected rows of the run up to {end}, the end of the epoch")
    positions = [change.position for change in state.changes]
    ascending = positions == sorted(set(positions)) and min(positions, default=0) >= 0
    if len(positions) > MOST_CHANGES or not ascending:
        raise _bad("changes", positions, f"expected at most {MOST_CHANGES} ascending positions")
    if positions and positions[-1] >= state.rows:
        expected = f"expected positions below {state.rows}, the rows of the epoch"
        raise _bad("changes", positions, expected)
    if sum(change.lanes or change.ranks or 0 for change in state.changes) > MOST_LANES:
        expected = f"expected lanes and ranks of together at most {MOST_LANES}"
        raise _bad("changes", positions, expected)
    cut: Change | None = None
    # Lanes are cut again at round borders; the remaining rows may be dealt to ranks anywhere.
    for change in state.changes:
        if change.ranks is not None:
            continue
        if change.position != next_border(state, cut, change.position):
            expected = f"expected lanes to be cut at borders of rounds, not at {change.position}"
            raise _bad("changes", positions, expected)
        cut = change


def _check_holes(state: StreamState) -> None:
    below = 0
    for start, stop in state.holes:
        if not below <= start < stop <= state.position:
            expected = f"expected sorted, disjoint ranges below position {state.position}"
            raise _bad("holes", [start, stop], expected)
        below = stop


def _describe_balance(even_tokens: int | None) -> str:
    if even_tokens is None:
        return f"without {setting_name('balance')}"
    return f"with {setting_name('balance')} for {even_tokens:,} tokens (linear / quadratic)"


def next_border(state: StreamState, cut: Change | None, position: int) -> int:
    """Return the first position from `position` on at which every lane stands at the border of a
    window, or the end.

    cut: the last change of lanes; None for the lanes that the epoch began with.
    """
    base: StreamState | Change = state
    begin = 0
    if cut is not None:
        base = cut
        begin = cut.position
    lanes = base.lanes or 1
    window = 1
    first = 0
    if state.shuffle:
        window = base.window_rows or 1
        first = first_window_rows(lanes=lanes, window_rows=window, rows=state.rows - begin)
    since = position - begin
    if since > 0:  # the first round, then whole rounds
        since = lanes * (first + max(0, -((lanes * first - since) // (lanes * window))) * window)
    return min(begin + since, state.rows)


def _bad(name: str, value: Any, expected: str) -> StreamError:
    return StreamError(
        f"stream state: {name} is {short_repr(value)}: {expected}", value=value, remedy=_REMEDY
    )
