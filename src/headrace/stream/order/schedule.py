"""Lay a schedule of weights along the epochs of a run, source by source. Pure.

A schedule is a list of stages, each with a row of the run at which it begins and a weight for every
source. An epoch of S rows takes rows E*S .. (E+1)*S - 1 of the run. It is cut where a stage begins
and where a source reaches its limit. In each segment, every source has exactly its quota of rows. A
source that reaches its limit has what it has left, and its share goes to the others from then on,
so all of it is known before the run. Epochs in which nothing changes are alike and laid once.

Draws of a source are numbered through the run. Draws in a column, the positions d (mod D) from
where D begins to hold, are numbered too. Both counts are sums over segments of closed forms.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

import numpy as np

from headrace.arrays import I64, offsets_from_lengths
from headrace.stream.order.interleave import MOST_ROWS, Interleave, quotas


class StageWeights(NamedTuple):
    """The weights from row `begin` of the run on; one weight, 0 or more, per source."""

    begin: int
    weights: tuple[Fraction, ...]


class EpochSegment(NamedTuple):
    """Positions [begin, end) of an epoch, in the proportions of its interleave."""

    begin: int
    end: int
    interleave: Interleave


class LikeEpochs(NamedTuple):
    """Epochs `first` .. `stop` - 1, which have the same segments; stop is None for all that follow.

    drawn: rows of each source before them. counts: rows of each source in one of them; int64.
    """

    first: int
    stop: int | None
    segments: tuple[EpochSegment, ...]
    drawn: I64
    counts: I64


@dataclass(frozen=True, kw_only=True, eq=False)
class Schedule:
    """The sources of all positions of a run.

    sizes: rows of each source. stages: by ascending begin, the first at 0. most: rows that may be
    drawn of each source in the run; None for any number. epoch_rows: S.
    """

    sizes: tuple[int, ...]
    stages: tuple[StageWeights, ...]
    most: tuple[int | None, ...]
    epoch_rows: int

    @cached_property
    def runs(self) -> tuple[LikeEpochs, ...]:
        """All epochs, in runs of alike ones. An epoch that all limits leave incomplete is not among
        them.
        """
        return tuple(self._lay_runs())

    @property
    def epochs(self) -> int | None:
        """The number of epochs until every source reached its limit; None if that never happens."""
        if self.runs:
            return self.runs[-1].stop
        return 0

    @property
    def most_rows(self) -> int | None:
        """The rows of the run until all sources of a stage reached their limits; None if that never
        happens.
        """
        epochs = self.epochs
        if epochs is None:
            return None
        drawn = np.zeros(len(self.sizes), np.int64)
        if self.runs:
            last = self.runs[-1]
            drawn = last.drawn + (epochs - last.first) * last.counts
        begin = epochs * self.epoch_rows
        remainder = tuple(self._lay_epoch(begin, drawn.tolist()))
        return begin + (remainder[-1].end if remainder else 0)

    def segments(self, epoch: int) -> tuple[EpochSegment, ...]:
        """Return the segments of an epoch."""
        return self._like(epoch).segments

    def counts(self, epoch: int) -> I64:
        """Return the rows of each source in an epoch: int64."""
        return self._like(epoch).counts

    def drawn(self, epoch: int) -> I64:
        """Return the rows of each source before an epoch: int64."""
        like = self._like(epoch)
        return like.drawn + (epoch - like.first) * like.counts

    def drawn_before(self, epoch: int, position: int) -> I64:
        """Return the draws of each source before a position of an epoch, from the run's begin:
        int64.
        """
        total = self.drawn(epoch)
        sources = np.arange(len(self.sizes), dtype=np.int64)
        first = np.zeros_like(sources)
        for begin, end, interleave in self.segments(epoch):
            if begin < position:
                stop = np.full_like(sources, min(position, end) - begin)
                total = total + interleave.draws(sources, first, stop, 1)
        return total

    def find_draws(self, source: int, draws: I64) -> tuple[I64, I64]:
        """Return (epoch, position) of draws of a source; (-1, -1) for those that never come.

        draws: ascending, int64.
        """
        epochs = np.full_like(draws, -1)
        positions = np.full_like(draws, -1)
        for like in self.runs:
            first = int(like.drawn[source])
            count = int(like.counts[source])
            if not count:
                continue
            last = None if like.stop is None else first + count * (like.stop - like.first)
            inside = draws >= first
            if last is not None:
                inside &= draws < last
            if not inside.any():
                continue
            epoch, draw = np.divmod(draws[inside] - first, count)
            epochs[inside] = like.first + epoch
            positions[inside] = self._find_in(like, source, draw)
        return epochs, positions

    def _find_in(self, like: LikeEpochs, source: int, draws: I64) -> I64:
        counts = [segment.interleave.counts[source] for segment in like.segments]
        before = offsets_from_lengths(counts)
        which = np.searchsorted(before, draws, side="right") - 1
        positions = np.empty_like(draws)
        for number in np.unique(which).tolist():
            segment = like.segments[number]
            members = which == number
            inside = draws[members] - before[number]
            first = np.zeros_like(inside)
            positions_in = segment.interleave.find_draws(source, inside, first, 1)
            positions[members] = segment.begin + positions_in
        return positions

    def _like(self, epoch: int) -> LikeEpochs:
        return next(like for like in self.runs if like.stop is None or epoch < like.stop)

    def _lay_runs(self) -> Iterator[LikeEpochs]:
        epoch = 0
        drawn = np.zeros(len(self.sizes), np.int64)
        while True:
            begin = epoch * self.epoch_rows
            segments = tuple(self._lay_epoch(begin, drawn.tolist()))
            if not segments or segments[-1].end < self.epoch_rows:
                return
            counts = sum(
                (np.array(segment.interleave.counts, np.int64) for segment in segments),
                np.zeros_like(drawn),
            )
            stop = self._alike_until(epoch, drawn + counts, counts)
            yield LikeEpochs(epoch, stop, segments, drawn, counts)
            if stop is None:
                return
            drawn = drawn + (stop - epoch) * counts
            epoch = stop

    def _alike_until(self, epoch: int, drawn: I64, counts: I64) -> int | None:
        """Return how far the epochs from one on are laid alike, if `drawn` rows came by its end."""
        stops = []
        number = self._stage_of(epoch * self.epoch_rows)
        if number + 1 < len(self.stages):
            following = self.stages[number + 1].begin // self.epoch_rows
            stops.append(max(epoch + 1, following))
        for most, rows, count in zip(self.most, drawn.tolist(), counts.tolist(), strict=True):
            if most is not None and count:
                stops.append(epoch + 1 + max(0, (most - rows) // count))
        last = self._stage_of((epoch + 1) * self.epoch_rows - 1)
        if last != number:
            return epoch + 1
        return min(stops, default=None)

    def _stage_of(self, row: int) -> int:
        starts = [stage.begin for stage in self.stages]
        return int(np.searchsorted(starts, row, side="right")) - 1

    def _lay_epoch(self, begin: int, drawn: list[int]) -> Iterator[EpochSegment]:
        """Lay the epoch that starts at a row of the run, as far as the limits allow."""
        position = 0
        while position < self.epoch_rows:
            number = self._stage_of(begin + position)
            end = self.epoch_rows
            if number + 1 < len(self.stages):
                end = min(end, self.stages[number + 1].begin - begin)
            left: list[int | None] = []
            for most, rows in zip(self.most, drawn, strict=True):
                left.append(None if most is None else most - rows)
            counts = share_rows(end - position, self.stages[number].weights, left)
            if not sum(counts):
                return
            for part in _short_enough(counts):
                interleave = Interleave(part)
                yield EpochSegment(position, position + interleave.rows, interleave)
                position += interleave.rows
            drawn = [rows + count for rows, count in zip(drawn, counts, strict=True)]


@dataclass(frozen=True, kw_only=True, eq=False)
class ColumnDraws:
    """Counts of draws by column, from a position of an epoch on.

    columns: D. Column d has the positions d (mod D), counted from there, and in later epochs from
    their first position.
    """

    schedule: Schedule
    columns: int
    epoch: int
    position: int
    _of_epochs: dict[tuple[int, int], I64] = field(default_factory=dict, repr=False)

    def drawn(self, epoch: int, source: int, positions: I64) -> I64:
        """Count the draws of a source in each column before positions of an epoch: int64 [K, D]."""
        total = np.tile(self._before(epoch, source), (len(positions), 1))
        origin = self.position if epoch == self.epoch else 0
        for segment in self.schedule.segments(epoch):
            total += self._in_segment(segment, source, origin, positions)
        return total

    def drawn_before(self, source: int, draws: I64) -> I64:
        """Count the draws of each column before draws of a source: int64 [K, D].

        Before draws that never come, all draws of the run are counted.
        """
        epochs, positions = self.schedule.find_draws(source, draws)
        never = epochs < 0
        last = self.schedule.runs[-1]
        epochs[never] = max(last.first, self.epoch) if last.stop is None else last.stop - 1
        positions[never] = self.schedule.epoch_rows
        columns = np.empty((len(draws), self.columns), np.int64)
        for epoch in np.unique(epochs).tolist():
            of_epoch = epochs == epoch
            columns[of_epoch] = self.drawn(epoch, source, positions[of_epoch])
        return columns

    def _before(self, epoch: int, source: int) -> I64:
        """Count the draws of a source in each column before an epoch: int64 [D]."""
        total = np.zeros(self.columns, np.int64)
        if epoch > self.epoch:
            total += self._in_epoch(self.epoch, source, self.position)
        for like in self.schedule.runs:
            first = max(like.first, self.epoch + 1)
            stop = epoch if like.stop is None else min(epoch, like.stop)
            if stop > first:
                total += (stop - first) * self._in_epoch(first, source, 0)
        return total

    def _in_epoch(self, epoch: int, source: int, origin: int) -> I64:
        """Count the draws of a source in each column of an epoch from a position on: int64 [D]."""
        if (epoch, source) not in self._of_epochs:
            counts = np.zeros(self.columns, np.int64)
            for segment in self.schedule.segments(epoch):
                end = np.array([segment.end], np.int64)
                counts += self._in_segment(segment, source, origin, end)[0]
            self._of_epochs[epoch, source] = counts
        return self._of_epochs[epoch, source]

    def _in_segment(self, segment: EpochSegment, source: int, origin: int, stops: I64) -> I64:
        """Count the draws of a source in each column of a segment before positions: int64 [K,
        D].
        """
        begin = max(segment.begin, origin)
        column = np.arange(self.columns, dtype=np.int64)
        first = begin - segment.begin + (column - (begin - origin)) % self.columns
        stop = np.repeat(np.clip(stops, segment.begin, segment.end) - segment.begin, self.columns)
        counts = segment.interleave.draws(
            np.full_like(stop, source), np.tile(first, len(stops)), stop, self.columns
        )
        return counts.reshape(-1, self.columns)


def share_rows(
    rows: int, weights: Sequence[Fraction], left: Sequence[int | None]
) -> tuple[int, ...]:
    """Return the rows of each source until the first of them is used up, at most `rows` in all.

    left: rows that each source may still give; None for any number.
    """
    active = [
        Fraction(0) if remainder is not None and remainder <= 0 else weight
        for weight, remainder in zip(weights, left, strict=True)
    ]
    total = sum(active, Fraction(0))
    if not total:
        return (0,) * len(active)
    # A source with the share w gives its remainder in remainder / w rows.
    for weight, remainder in zip(active, left, strict=True):
        if remainder is not None and weight:
            rows = min(rows, max(remainder, -int(-remainder * total // weight)))
    counts = quotas(rows, active)
    while True:  # rounding may ask for a row too many; the others take it
        over: list[int] = []
        for source, (count, remainder) in enumerate(zip(counts, left, strict=True)):
            if remainder is not None and count > remainder:
                over.append(source)
        if not over:
            return tuple(counts)
        for source in over:
            active[source] = Fraction(0)
            counts[source] = left[source] or 0
        fixed = sum(count for count, weight in zip(counts, active, strict=True) if not weight)
        if not any(active):
            return tuple(counts)
        others = quotas(max(0, rows - fixed), active)
        counts = [
            other if weight else count
            for other, count, weight in zip(others, counts, active, strict=True)
        ]


def _short_enough(counts: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Divide counts into parts that can be interleaved."""
    parts = -(-sum(counts) // (MOST_ROWS - len(counts)))
    for part in range(parts):
        yield tuple(count * (part + 1) // parts - count * part // parts for count in counts)
