"""Clean one entity: find its axis, trim and cut it, and fill short gaps, or give the reason why it fails. Pure.

Apart from the axis, the trimming and the cut, what happens to a row depends only on rows before the next cut. Gaps are
judged as they look from there. A value after a cut that a pipeline cannot take is made missing; failing the entity
would change the training set.

Of n observed targets the first floor(n × train) train, the next floor(n × val) validate, and the rest tests. A part
ends with the row of its last target, so rows without a target keep their place in time and every part is one run of
steps. With train_end and val_end the parts of all entities begin at these times instead.

A gap is a run of missing values between two observed values of a column; runs at the ends of a column are not gaps. A
gap is filled entirely or not at all, because filling the first steps of a long outage would invent a plateau. Before a
cut the length of a gap that crosses it is unknown, so such a gap is left. Values are only carried forward.

If the pipelines of another run are reused, nothing trains: no step is trimmed, all rows are in test, and a column may
be missing altogether.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.arrays import F64, I64, Bools
from headrace.errors import InputError
from headrace.formats.dates import MISSING
from headrace.report.words import many, verb
from headrace.series.arrays.axis import DAY_US, Axis, place
from headrace.series.config import Series
from headrace.series.parts import NO_SPLIT, PLAIN, SPLITS, Parts
from headrace.series.pipelines.fitted import reasons, without_result
from headrace.series.times import Observed


@dataclass(frozen=True)
class Gaps:
    """Runs of missing values between observed ones, [G], ordered by column and start."""

    column: I64
    start: I64
    length: I64

    def take(self, places: Bools) -> Gaps:
        """Return the selected gaps."""
        return Gaps(self.column[places], self.start[places], self.length[places])

    def inside(self, cuts: Sequence[int]) -> Bools:
        """Find the gaps that, with the value that ends them, lie on one side of every cut; cuts: ascending rows."""
        sides = [np.searchsorted(cuts, rows, side="right") for rows in (self.start, self.start + self.length)]
        return np.asarray(sides[0] == sides[1], np.bool_)

    def per_column(self, columns: int) -> tuple[I64, I64, I64]:
        """Return, for each column, the number of gaps and of values missing in them, and the longest gap: int64 [C]."""
        count = np.bincount(self.column, minlength=columns).astype(np.int64)
        values = np.zeros(columns, np.int64)
        np.add.at(values, self.column, self.length)
        longest = np.zeros(columns, np.int64)
        np.maximum.at(longest, self.column, self.length)
        return count, values, longest


def trimmed(observed: Bools, *, least: int = 0) -> tuple[int, int]:
    """Return the rows [start, stop) of observed [T, C] that remain after trimming both ends.

    They begin where every column has had a value, and end where the first column has its last one, but not before
    `least` rows. start == stop if nothing remains, for example if a column is never observed.
    """
    steps, columns = observed.shape
    if not steps or not columns or not observed.any(axis=0).all():
        return 0, 0
    start = int(observed.argmax(axis=0).max())
    stop = max(steps - int(observed[::-1].argmax(axis=0).max()), start + least)
    return (start, stop) if start < stop else (0, 0)


def find_gaps(missing: Bools) -> Gaps:
    """Find the gaps of each column of missing [T, C]."""
    steps, columns = missing.shape
    wide = np.zeros((columns, steps + 2), np.int8)
    wide[:, 1:-1] = missing.T
    edges = np.flatnonzero(np.diff(wide.reshape(-1)))  # in the flattened columns: starts and ends alternate
    starts, stops = edges[::2], edges[1::2]
    column, start = np.divmod(starts, steps + 2)
    length = stops - starts
    inside = (start > 0) & (start + length < steps)
    return Gaps(column[inside], start[inside], length[inside])


def fill_gaps(values: F64, gaps: Gaps) -> Bools:
    """Fill these gaps of `values` in place with the value before each; return which were filled: bool [T, C]."""
    filled = np.zeros(values.shape, np.bool_)
    begins = np.cumsum(gaps.length) - gaps.length
    rows = np.arange(int(gaps.length.sum())) + np.repeat(gaps.start - begins, gaps.length)
    columns = np.repeat(gaps.column, gaps.length)
    values[rows, columns] = np.repeat(values[gaps.start - 1, gaps.column], gaps.length)
    filled[rows, columns] = True
    return filled


_ROUNDING = 1e-9  # 10 × 0.7 is 7.000000000000001, 0.29 × 100 is 28.999999999999996


@dataclass(frozen=True)
class Cut:
    """The rows where an entity's stretches begin, and the targets of each split (in folds, of the first fold).

    edges: the row where each stretch but the first begins.
    val_row, test_row: the rows where val and test begin.
    train_row, train_stop: rows [train_row, train_stop) train.
    """

    val_row: int
    test_row: int
    train_targets: int
    val_targets: int
    test_targets: int
    edges: tuple[int, ...]
    train_row: int
    train_stop: int


def cut(observed: Bools, train: float, val: float) -> tuple[int, int]:
    """Return the rows of one entity where val and test begin, for these shares of its targets.

    observed: whether the target was observed, bool [T].
    """
    rows = np.flatnonzero(observed)
    n = len(rows)
    train_targets = share_of(n, train)
    last = train_targets + min(share_of(n, val), n - train_targets)
    val_row = int(rows[train_targets - 1]) + 1 if train_targets else 0
    test_row = int(rows[last - 1]) + 1 if last else 0
    return val_row, max(test_row, val_row)


def cut_at(observed: Bools, edges: Sequence[int], parts: Parts = PLAIN) -> Cut:
    """Return the cut whose stretches begin at these rows. observed: as in `cut`."""
    borders = [0, *edges, len(observed)]
    train, val, test = (parts.rows(borders, split) for split in SPLITS)
    targets = [int(observed[start:stop].sum()) for start, stop in (train, val, test)]
    val_row = val[0] if "val" in parts.ranges[0] else test[0]
    return Cut(val_row, test[0], targets[0], targets[1], targets[2], tuple(edges), *train)


def edges_of(settings: Series, entity: str, axis: Axis, observed: Bools) -> list[int]:
    """Return the rows where the stretches of an entity begin, except the first. Raises `LeftOut` without dates."""
    division = settings.division
    side, dates = division.side_of(entity), division.dates.get(entity, division.cuts)
    if division.rolling is not None and dates is not None:
        return division.rolling.edges(axis.times(), side, dates[0])
    if dates is not None:
        val_row, test_row = np.searchsorted(axis.times(), dates).tolist()
    elif division.by_dates:
        raise LeftOut(f"has no row in cut_dates {str(settings.cut_dates)!r}, and there is no train_end for the others")
    elif side == "train":
        val_row, test_row = cut(observed, settings.train_ratio, settings.val_ratio)
    else:
        val_row, test_row = 0, axis.rows if side == "val" else 0
    if division.parts is PLAIN:
        return [val_row, test_row]
    # One step more, because a cut may be after the last row.
    times = Axis(axis.frequency, axis.first, axis.rows + 1, axis.anchor).times()
    val_time, test_time = times[[val_row, test_row]].tolist() if dates is None else dates
    train_stop, val_stop = np.searchsorted(times[:-1], np.array([val_time, test_time]) - division.reach_us).tolist()
    val_stop = max(val_stop, val_row)
    held = set(division.held_out.values())  # splits that only held-out entities have rows in
    if side != "train":
        train_stop = 0
    if side == "test" or (side == "train" and "val" in held):
        val_stop = val_row
    if side == "val" or (side == "train" and "test" in held):
        test_row = axis.rows
    return [train_stop, val_row, val_stop, test_row]


def share_of(count: int, share: float) -> int:
    """Return floor(count × share), correcting products that rounding puts just below a whole number."""
    return int(np.floor(count * share + _ROUNDING))


DROPPED = ("entity_failed", "bad_time", "off_grid", "duplicate_time", "trimmed")
_MOST_CELLS = 1 << 29  # 4 GiB for one entity's axis
_HOUR_US = 3_600_000_000


class LeftOut(InputError):
    """An entity does not pass; the message is the reason."""


@dataclass(frozen=True)
class Cleaned:
    """An entity that passes.

    axis: axis of the kept rows.
    values: float64 [T, C], NaN if missing.
    filled: bool [T, C].
    rows: number of source rows by split, or by the reason why they are in none.
    imputation: counts about missing values by their names in the quality report, int64 [C] each.
    first_last: for each column, the rows of its first and last observed value: int64 [C, 2].
    """

    rows: Counter[str]
    axis: Axis
    values: F64
    filled: Bools
    cut: Cut
    imputation: dict[str, I64]
    first_last: I64
    added_rows: int
    trimmed_steps: tuple[int, int]


def clean(settings: Series, observed: Observed, entity: str, *, at: Sequence[int] | None = None) -> Cleaned:
    """Clean the rows of one entity. O(steps of its axis) of memory. Raises `LeftOut`.

    at: the rows where its stretches but the first begin; dates and shares are then ignored.
    """
    columns, pipelines, stretches = settings.columns(), settings.resolved.time_series, settings.division.parts
    trains = settings.pipelines_from is None
    fits = trains and settings.division.trains(entity)
    rows = Counter(observed.dropped)
    axis, values, source_rows, positions = _on_axis(settings, observed, rows)
    missing = np.isnan(values)
    never = missing.all(axis=0)
    if fits and never.any():
        raise LeftOut(f"{columns[int(np.argmax(never))]} is never observed")
    start, stop = 0, axis.rows
    if trains and settings.trim != "none":
        some = slice(None) if settings.trim == "all" else slice(len(settings.targets))
        start, stop = trimmed(~missing[:, some], least=0 if at is None else at[-1])
    if start == stop:
        raise LeftOut("no time lies between the first and the last value of all columns; see trim")
    seen, own_axis = ~missing[start:stop], axis.tail(start, stop)
    if not trains:
        at = (0, 0)
    edges = edges_of(settings, entity, own_axis, seen[:, 0]) if at is None else at
    parts = cut_at(seen[:, 0], edges, stretches)
    required = max(1, required_targets(settings)) if fits else 0
    if parts.train_targets < required:
        before = "" if settings.train_end is None else f" before train_end {settings.train_end}"
        before = " before its train_end in cut_dates" if entity in settings.division.dates else before
        least = f" by min_train_years {settings.min_train_years:g}" if required_targets(settings) else ""
        raise LeftOut(
            f"{many(parts.train_targets, 'observed target')} would train{before} (of {int(seen[:, 0].sum()):,}), "
            f"{required:,} {verb(required, 'is', 'are')} required{least}"
        )
    found = find_gaps(missing)
    may = np.isin(columns, settings.filled_columns())
    long = found.length > settings.max_imputation_gap_size
    short = ~long & may[found.column]
    whole = found.inside([start + edge for edge in edges])
    filled = fill_gaps(values, found.take(short & whole))[start:stop]
    kept = values[start:stop]
    why = reasons(pipelines, columns, kept[parts.train_row : parts.train_stop]) if fits else None
    if why is not None:
        raise LeftOut(why)
    unusable = without_result(pipelines, columns, kept)
    if unusable.any():
        kept[unusable] = np.nan
        filled &= ~unusable
        parts = cut_at(seen[:, 0] & ~unusable[:, 0], edges, stretches)
    borders = np.searchsorted(positions, [start, *(start + edge for edge in edges), stop])
    _count_rows(rows, observed.counts, source_rows, borders, stretches.names)
    inside = (found.start < stop) & (found.start + found.length > start)
    kept_rows = int(borders[-1] - borders[0])

    def count(places: Bools) -> I64:
        return found.take(inside & places).per_column(len(columns))[0]

    return Cleaned(
        rows=rows,
        axis=own_axis,
        values=kept,
        filled=filled,
        cut=parts,
        imputation={
            "short_gaps_count": count(short & whole),
            "imputed_values_count": filled.sum(axis=0, dtype=np.int64),
            "long_gaps_count": count(long),
            "unfilled_gaps_count": count(~long & ~may[found.column]),
            "cut_gaps_count": count(short & ~whole),
            "unusable_values_count": unusable.sum(axis=0, dtype=np.int64),
            "missing_values_count": np.isnan(kept).sum(axis=0, dtype=np.int64),
            "longest_gap": found.take(inside).per_column(len(columns))[2],
        },
        first_last=np.stack([seen.argmax(axis=0), stop - start - 1 - seen[::-1].argmax(axis=0)], axis=1),
        added_rows=stop - start - kept_rows,
        trimmed_steps=(start, axis.rows - stop),
    )


def _count_rows(
    rows: Counter[str], counts: I64 | None, source_rows: I64, borders: I64, names: Sequence[str | None]
) -> None:
    """Add the source rows of each stretch, and those outside of all, to `rows`.

    counts: source rows that each row was made of; None: one. borders: places in `source_rows`, ascending.
    """
    made_of = np.ones(len(source_rows), np.int64) if counts is None else counts[source_rows]
    below = np.append(0, np.cumsum(made_of))
    for name, count in zip(names, np.diff(below[borders]).tolist(), strict=True):
        rows[name or NO_SPLIT] += count
    rows["trimmed"] = int(below[-1] - below[borders[-1]] + below[borders[0]])


def _on_axis(settings: Series, observed: Observed, dropped: Counter[str]) -> tuple[Axis, F64, I64, I64]:
    """Return an entity's axis, its values [steps, C], its rows that are on the axis, and their ascending positions.

    Values are in column order, for the work that follows. Raises `LeftOut`.
    """
    if not len(observed.times):
        raise LeftOut("has no rows")
    known = np.flatnonzero(observed.times != MISSING)
    if len(known) < len(observed.times):
        if settings.bad_rows == "error":
            raise LeftOut(str(observed.bad_time))
        dropped["bad_time"] = len(observed.times) - len(known)
        if not len(known):
            raise LeftOut("no row has a time that can be read")
    times, step = observed.times[known], settings.step
    placed = place(times, step)
    axis, rows, positions = placed.axis, placed.rows, placed.positions
    if len(placed.off_grid):
        if settings.off_grid == "error":
            wrong, advice = times[placed.off_grid], ""
            if len(rows) and not step.months and step.micros % DAY_US == 0:
                off = (wrong - times[rows[0]]) % DAY_US
                # In UTC, local days shift by an hour with daylight saving time.
                if int(np.minimum(off, DAY_US - off).max()) <= _HOUR_US:
                    advice = (
                        "; days of a zone whose clocks change are not equal steps in UTC: write them without an "
                        "offset, as dates"
                    )
            raise LeftOut(
                f"{many(len(wrong), 'time is', 'times are')} between steps of {step.word}, first {_iso(wrong.min())}; "
                f"give another frequency, or snap or resample to move them to steps, or off_grid='drop'{advice}"
            )
        dropped["off_grid"] = len(placed.off_grid)
    if not len(rows):
        raise LeftOut(f"no time is on a step of {step.word}")
    repeated = positions[1:] == positions[:-1]
    if repeated.any():
        if settings.duplicate_times == "error":
            clocks = settings.time_zone is None and not step.months and step.micros < DAY_US
            advice = "; if they are of clocks that change, give time_zone, e.g. Europe/Berlin" if clocks else ""
            raise LeftOut(
                f"{many(repeated.sum(), 'time comes', 'times come')} twice, first "
                f"{_iso(times[rows[int(np.argmax(repeated))]])}; correct it, or give duplicate_times='first'{advice}"
            )
        stays = np.append(True, ~repeated) if settings.duplicate_times == "first" else np.append(~repeated, True)
        dropped["duplicate_time"] += int((~stays).sum())
        rows, positions = rows[stays], positions[stays]
    if axis.rows * observed.values.shape[1] > _MOST_CELLS:
        raise LeftOut(f"its axis has {axis.rows:,} steps of {step.word}; give the frequency of its rows")
    rows = known[rows]
    in_order = len(rows) == len(observed.values) and (rows == np.arange(len(rows))).all()
    own = observed.values if in_order else observed.values[rows]
    if len(positions) == axis.rows:
        return axis, own.copy(order="F"), rows, positions
    values = np.empty((axis.rows, own.shape[1]), order="F")
    values[:] = settings.empty_step()
    for column in range(values.shape[1]):
        values[positions, column] = own[:, column]
    return axis, values, rows, positions


def required_targets(settings: Series) -> int:
    """Return the number of observed targets that an entity needs to train; 0 if nothing trains."""
    if settings.pipelines_from is not None:
        return 0
    return int(settings.min_train_years * settings.step.steps_per_year)


def _iso(micros: np.int64) -> str:
    return str(np.datetime64(int(micros), "us").astype("datetime64[s]"))


def quality_report(
    settings: Series, entity: str, source: str, rows: Mapping[str, int], cleaned: Cleaned | str
) -> dict[str, Any]:
    """Make the `BasinQualityReport` of an entity, as JSON. cleaned: the reason if it does not pass.

    Counts are of the kept steps. imputation_info has for each column: gaps that were filled, that are too long, that
    are not filled in this column, and that were left because a cut crosses them; values that were filled, that were
    made missing because no step can take them, and that are still missing; and the longest gap. targets.observed counts
    before anything is filled.
    """
    reason = cleaned if isinstance(cleaned, str) else None
    report: dict[str, Any] = {
        "entity": entity,
        "source": source,
        "passed_quality_check": reason is None,
        "failure_reason": reason,
        "frequency": settings.step.word,
        "source_rows": dict(sorted(rows.items())),
        "required_train_targets": required_targets(settings),
    }
    if isinstance(cleaned, str):
        return report
    times, parts, columns = cleaned.axis.times(), cleaned.cut, settings.columns()
    lacking = (cleaned.imputation["missing_values_count"] == len(times)).tolist()  # columns without a value
    start, end = cleaned.trimmed_steps
    targets = {"train": parts.train_targets, "val": parts.val_targets, "test": parts.test_targets}
    starts = {"train": 0, "val": parts.val_row, "test": parts.test_row}

    def period(first: int, last: int) -> dict[str, str]:
        return {"start": _told(int(times[first])), "end": _told(int(times[last]))}

    return report | {
        "period": {**period(0, -1), "steps": len(times)},
        "valid_period": {
            name: None if none else period(*ends)
            for name, ends, none in zip(columns, cleaned.first_last.tolist(), lacking, strict=True)
        },
        "processing_steps": [
            f"placed on steps of {settings.step.word}, {cleaned.added_rows} missing rows added",
            *(f"dropped {rows[word]} rows: {word}" for word in DROPPED[1:4] if word in rows),
            f"trimmed {start} steps at the start and {end} at the end",
            f"carried {int(cleaned.imputation['imputed_values_count'].sum())} values into gaps of at most "
            f"{settings.max_imputation_gap_size}",
        ],
        "added_rows": cleaned.added_rows,
        "trimmed_steps": {"start": start, "end": end},
        "imputation_info": {
            name: {word: int(counts[at]) for word, counts in cleaned.imputation.items()}
            for at, name in enumerate(columns)
        },
        "targets": {"observed": sum(targets.values()), **targets},
        "split_starts": {name: _told(int(times[row])) if row < len(times) else None for name, row in starts.items()},
    }


def left_out_report(report: Mapping[str, Any], reason: str, rows_are: str) -> dict[str, Any]:
    """Turn the report of an entity that passed into the report of one that is left out.

    rows_are: the word under which its rows are counted.
    """
    common = ("entity", "source", "frequency", "required_train_targets")
    return {name: report[name] for name in common} | {
        "passed_quality_check": False,
        "failure_reason": reason,
        "source_rows": {rows_are: sum(report["source_rows"].values())},
    }


def _told(micros: int) -> str:
    moment = np.datetime64(micros, "us")
    if micros % DAY_US == 0:
        return str(moment.astype("datetime64[D]"))
    return str(moment.astype("datetime64[s]") if micros % 1_000_000 == 0 else moment)
