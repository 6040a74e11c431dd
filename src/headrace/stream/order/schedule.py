"""Lay a schedule of weights along the rows of a run, source by source. Pure.

A schedule is a list of stages, each with a row of the run at which it begins and a weight for every
source. An epoch of S rows takes rows E*S .. (E+1)*S - 1 of the run. The run is cut where a stage
begins and where a source reaches its limit, and in between into periods of whole epochs, which are
alike and laid once. A period has as many epochs as make every source's share a whole number, or
about 2^30 rows. In each, every source has exactly its quota of rows, so its share does not depend
on the length of an epoch. A source that reaches its limit has what it has left, and its share goes
to the others from then on, so all of it is known before the run.

Draws of a source are numbered through the run. Draws in a column, the rows d (mod D) from where D
begins to hold, are numbered too. Both counts are sums over segments of closed forms.
"""

from __future__ import annotations

import math
import operator
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

import numpy as np

from headrace.arrays import I64, offsets_from_lengths
from headrace.sealed import MOST_POSITIONS
from headrace.stream.order.interleave import MOST_ROWS, Interleave, quotas

_PERIOD_ROWS = 1 << 30  # of weights that no fewer rows have exactly


class StageWeights(NamedTuple):
    """The weights from row `begin` of the run on; one weight, 0 or more, per source."""

    begin: int
    weights: tuple[Fraction, ...]


class RunSegment(NamedTuple):
    """Rows [begin, end) in the proportions of an interleave."""

    begin: int
    end: int
    interleave: Interleave


class LikePeriods(NamedTuple):
    """Rows `begin` .. `stop` - 1 of the run, in alike periods; stop is None for all that follow.

    rows: of one period. segments: of one period, from its first row. drawn: rows of each source
    before them. counts: rows of each source in one of them; int64.
    """

    begin: int
    stop: int | None
    rows: int
    segments: tuple[RunSegment, ...]
    drawn: I64
    counts: I64

    def clip(self, rows: I64) -> I64:
        """Return rows of the run, or the nearest of these and the one behind them."""
        return np.asarray(np.clip(rows, self.begin, self.stop), np.int64)


@dataclass(frozen=True, kw_only=True, eq=False)
class Schedule:
    """The sources of all rows of a run.

    sizes: rows of each source. stages: by ascending begin, the first at 0. most: rows that may be
    drawn of each source in the run; None for any number. epoch_rows: S. begin: the row of the run
    from which on it holds. drawn_earlier: the rows of each source before that, int64; None for 0.
    """

    sizes: tuple[int, ...]
    stages: tuple[StageWeights, ...]
    most: tuple[int | None, ...]
    epoch_rows: int
    begin: int = 0
    drawn_earlier: I64 | None = None

    @cached_property
    def runs(self) -> tuple[LikePeriods, ...]:
        """All rows, in runs of alike periods, until the sources of a stage reached their limits."""
        return tuple(self._lay_runs())

    @property
    def rows(self) -> int | None:
        """The rows of the run until all sources of a stage reached their limits; None if that never
        happens.
        """
        if self.runs:
            return self.runs[-1].stop
        return self.begin

    @property
    def epochs(self) -> int | None:
        """The number of whole epochs until then; None if that never happens."""
        rows = self.rows
        if rows is None:
            return None
        return rows // self.epoch_rows

    def segments(self, begin: int, end: int) -> tuple[RunSegment, ...]:
        """Return the segments, by rows of the run, that have some of the rows [begin, end)."""
        segments = []
        for run in self.runs:
            stop = end if run.stop is None else min(end, run.stop)
            first = max(0, begin - run.begin) // run.rows
            for period in range(first, -((run.begin - stop) // run.rows)):
                base = run.begin + period * run.rows
                for segment in run.segments:
                    if begin < base + segment.end and base + segment.begin < stop:
                        moved = RunSegment(
                            base + segment.begin, base + segment.end, segment.interleave
                        )
                        segments.append(moved)
        return tuple(segments)

    def drawn_before(self, row: int) -> I64:
        """Return the draws of each source before a row of the run: int64 [S]."""
        sources = np.arange(len(self.sizes), dtype=np.int64)
        first = np.zeros_like(sources)
        total = self._drawn_earlier
        for run in self.runs:
            if row > run.begin or run is self.runs[0]:
                end = row if run.stop is None else min(row, run.stop)
                periods, inside = divmod(max(0, end - run.begin), run.rows)
                total = run.drawn + periods * run.counts
                for begin, end, interleave in run.segments:
                    if begin < inside:
                        stop = np.full_like(sources, min(inside, end) - begin)
                        total = total + interleave.draws(sources, first, stop, 1)
        return total

    def find_draws(self, source: int, draws: I64) -> I64:
        """Return the row of the run of draws of a source; -1 for those that never come.

        draws: int64; so is what is returned.
        """
        rows = np.full_like(draws, -1)
        for run in self.runs:
            first = int(run.drawn[source])
            count = int(run.counts[source])
            inside = draws >= first
            if run.stop is not None:
                inside &= draws < first + count * ((run.stop - run.begin) // run.rows)
            if count and inside.any():
                period, draw = np.divmod(draws[inside] - first, count)
                rows[inside] = run.begin + period * run.rows + self._find_in(run, source, draw)
        return rows

    def row_of_sum(self, values: Sequence[Fraction], least: Fraction) -> int | None:
        """Return the first row of the run before which the draws are worth at least `least`; None
        if limits end the run earlier, and a row beyond `MOST_POSITIONS` for one that no run has.

        values: of a draw of each source.
        """

        def is_reached(row: int) -> bool:
            draws = self.drawn_before(row).tolist()
            return bool(sum(map(operator.mul, values, draws)) >= least)

        high = 1
        while not is_reached(high):
            if self.rows is not None and high >= self.rows:
                return None
            if high > MOST_POSITIONS:
                return high
            high *= 2
        return bisect_left(range(high), True, lo=self.begin, key=is_reached)

    @staticmethod
    def _find_in(run: LikePeriods, source: int, draws: I64) -> I64:
        before = offsets_from_lengths(
            [segment.interleave.counts[source] for segment in run.segments]
        )
        which = np.searchsorted(before, draws, side="right") - 1
        rows = np.empty_like(draws)
        for number in np.unique(which).tolist():
            segment = run.segments[number]
            members = which == number
            inside = draws[members] - before[number]
            first = np.zeros_like(inside)
            inside = segment.interleave.find_draws(source, inside, first, 1)
            rows[members] = segment.begin + inside
        return rows

    @property
    def _drawn_earlier(self) -> I64:
        if self.drawn_earlier is None:
            return np.zeros(len(self.sizes), np.int64)
        return self.drawn_earlier

    def _stage_of(self, row: int) -> int:
        starts = [stage.begin for stage in self.stages]
        return int(np.searchsorted(starts, row, side="right")) - 1

    def _lay_runs(self) -> Iterator[LikePeriods]:
        begin = self.begin
        drawn = self._drawn_earlier
        while True:
            run = self._lay_run(begin, drawn)
            if run is None:
                return
            yield run
            if run.stop is None:
                return
            drawn = drawn + (run.stop - begin) // run.rows * run.counts
            begin = run.stop

    def _lay_run(self, begin: int, drawn: I64) -> LikePeriods | None:
        """Lay what follows a row of the run; None if its stage has no source below its limit."""
        number = self._stage_of(begin)
        room = None
        if number + 1 < len(self.stages):
            room = self.stages[number + 1].begin - begin
        left: list[int | None] = []
        weights = []
        sources = zip(self.most, drawn.tolist(), self.stages[number].weights, strict=True)
        for most, rows, weight in sources:
            left.append(None if most is None else most - rows)
            weights.append(weight if most is None or rows < most else Fraction(0))
        if not any(weights):
            return None
        # Only whole epochs are alike: what comes before the first one is laid alone.
        rows = -begin % self.epoch_rows or period_rows(weights, self.epoch_rows)
        requested = rows if room is None else min(rows, room)
        counts = share_rows(requested, weights, left)
        repeats = _repeats(requested, counts, left, room)
        if begin % self.epoch_rows or sum(counts) < rows:
            repeats = 1
        segments = []
        position = 0
        for part in _short_enough(counts):
            interleave = Interleave(part)
            segments.append(RunSegment(position, position + interleave.rows, interleave))
            position += interleave.rows
        stop = None if repeats is None else begin + repeats * position
        return LikePeriods(
            begin, stop, position, tuple(segments), drawn, np.array(counts, np.int64)
        )


def period_rows(weights: Sequence[Fraction], epoch_rows: int) -> int:
    """Return the rows of the fewest whole epochs in which the share of every source is a whole
    number, or of about 2^30 rows.
    """
    total = sum(weights, Fraction(0))
    epochs = math.lcm(*[(weight / total * epoch_rows).denominator for weight in weights])
    if epochs * epoch_rows <= _PERIOD_ROWS:
        return epochs * epoch_rows
    return max(1, _PERIOD_ROWS // epoch_rows) * epoch_rows


def _repeats(
    rows: int, counts: Sequence[int], left: Sequence[int | None], room: int | None
) -> int | None:
    """Return how often counts that have `rows` rows may come, as far as a stage has room and limits
    are not reached; None for any number.
    """
    most = [] if room is None else [room // rows]
    for count, remainder in zip(counts, left, strict=True):
        if count and remainder is not None:
            most.append(remainder // count)
    return min(most, default=None)


@dataclass(frozen=True, kw_only=True, eq=False)
class ColumnDraws:
    """Counts of draws by column, from a row of the run on.

    columns: D. Column d has the rows begin + d (mod D).
    """

    schedule: Schedule
    columns: int
    begin: int
    _of_periods: dict[tuple[int, int], I64] = field(default_factory=dict, repr=False)

    def drawn(self, source: int, rows: I64) -> I64:
        """Count the draws of a source in each column before rows of the run: int64 [K, D]."""
        at = np.append(rows, self.begin)
        total = np.zeros((len(at), self.columns), np.int64)
        for number, run in enumerate(self.schedule.runs):
            if run.begin < at.max() and (run.stop is None or run.stop > self.begin):
                total += self._in_run(number, source, run.clip(at) - run.begin)
        counts: I64 = total[:-1] - total[-1]
        return counts

    def drawn_before(self, source: int, draws: I64) -> I64:
        """Count the draws of each column before draws of a source: int64 [K, D].

        Before draws that never come, all draws of the run are counted.
        """
        rows = self.schedule.find_draws(source, draws)
        last = self.schedule.runs[-1]
        end = max(last.begin, self.begin) if last.stop is None else last.stop
        return self.drawn(source, np.where(rows < 0, end, rows))

    def _in_run(self, number: int, source: int, rows: I64) -> I64:
        """Count the draws of a source in each column in the first rows of a run: int64 [K, D]."""
        run = self.schedule.runs[number]
        period, inside = np.divmod(rows, run.rows)
        origin = np.arange(self.columns, dtype=np.int64) - (run.begin - self.begin)
        # A column begins a period at another place than the one before, until places repeat.
        shared = math.gcd(run.rows, self.columns)
        cycle = self.columns // shared
        cycles, turn = np.divmod(period, cycle)
        total = np.zeros((len(rows), self.columns), np.int64)
        if period.any():
            of_period = self._in_period(number, source)
            of_cycle = of_period.reshape(cycle, shared).sum(axis=0)[origin % shared]
            turns = np.arange(turn.max() + 1)[:, None]
            of_turns = of_period[(origin - turns * (run.rows % self.columns)) % self.columns]
            before = np.concatenate([np.zeros_like(of_turns[:1]), np.cumsum(of_turns, axis=0)])
            total = cycles[:, None] * of_cycle + before[turn]
        first = (origin - (period * (run.rows % self.columns))[:, None]) % self.columns
        return total + self._in_segments(run, source, first, inside)

    def _in_period(self, number: int, source: int) -> I64:
        """Count the draws of a source at the places d (mod D) of a period: int64 [D]."""
        if (number, source) not in self._of_periods:
            run = self.schedule.runs[number]
            offsets = np.arange(self.columns, dtype=np.int64)[None]
            counts = self._in_segments(run, source, offsets, np.array([run.rows], np.int64))
            self._of_periods[number, source] = counts[0]
        return self._of_periods[number, source]

    def _in_segments(self, run: LikePeriods, source: int, first: I64, stops: I64) -> I64:
        """Count the draws of a source at the places first, first + D, … of a period below `stops`:
        int64 [K, D].
        """
        total = np.zeros(first.shape, np.int64)
        for begin, end, interleave in run.segments:
            some = np.flatnonzero(stops > begin)
            if not interleave.counts[source] or not len(some):
                continue
            at = ((first[some] - begin) % self.columns).ravel()
            stop = np.repeat(np.minimum(stops[some], end) - begin, self.columns)
            counts = interleave.draws(np.full_like(stop, source), at, stop, self.columns)
            total[some] += counts.reshape(-1, self.columns)
        return total


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
