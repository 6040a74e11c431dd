"""One entity cleaned: on its regular axis, trimmed, cut into splits, short gaps filled – or why it fails. Pure.

Everything behind the axis, the trimming and the cut is decided for a row by rows before the next cut alone: gaps are
judged as they are seen there, and a value behind a cut that a pipeline cannot take is made missing there, instead of
failing the entity and so changing what trains.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.arrays import F64, I64, Bools
from headrace.errors import InputError
from headrace.formats.dates import MISSING
from headrace.series.arrays import gaps
from headrace.series.arrays.axis import DAY_US, Axis, Placed, place
from headrace.series.arrays.cuts import Cut, cut, cut_at
from headrace.series.config import SPLITS, Series
from headrace.series.pipelines.fitted import reasons, without_result
from headrace.series.sources import Observed

DROPPED = ("entity_failed", "bad_time", "off_grid", "duplicate_time", "trimmed")
_MOST_CELLS = 1 << 29  # 4 GiB of one entity's axis
_HOUR_US = 3_600_000_000


class LeftOut(InputError):
    """The reason why an entity does not pass."""


@dataclass(frozen=True)
class Cleaned:
    """An entity that passes.

    axis: of the rows that are kept; values: float64 [T, C], NaN where missing; filled: bool [T, C]. rows: source rows
    by split, or by the reason why they are in none. imputation: what became of missing values, int64 [C] each, as the
    quality report calls it. first_last: of each column, the rows of its first and last observed value: int64 [C, 2].
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


def clean(settings: Series, observed: Observed, *, at: tuple[int, int] | None = None) -> Cleaned:
    """Clean the rows of one entity. O(steps of its axis) of memory. Raises `LeftOut`.

    at: the rows where val and test begin, which are then not computed from the ratios.
    """
    columns, pipelines = settings.columns(), settings.resolved.time_series
    rows: Counter[str] = Counter()
    axis, source_rows, positions = _placed_rows(settings, observed, rows)
    in_order = len(source_rows) == len(observed.values) and (source_rows == np.arange(len(source_rows))).all()
    own = observed.values if in_order else observed.values[source_rows]
    if len(positions) == axis.rows:
        values = own.copy(order="F")  # worked on column by column
    else:
        values = np.full((axis.rows, len(columns)), np.nan, order="F")
        for column in range(len(columns)):
            values[positions, column] = own[:, column]
    missing = np.isnan(values)
    never = missing.all(axis=0)
    if never.any():
        raise LeftOut(f"{columns[int(np.argmax(never))]} is never observed")
    start, stop = gaps.span(~missing, least=0 if at is None else at[1])
    if start == stop:
        raise LeftOut("no time lies between the first and the last value of all columns")
    seen = ~missing[start:stop]
    parts = cut(seen[:, 0], settings.train_ratio, settings.val_ratio) if at is None else cut_at(seen[:, 0], *at)
    required = max(1, required_targets(settings))
    if parts.train_targets < required:
        raise LeftOut(
            f"{parts.train_targets:,} observed targets would train (of {int(seen[:, 0].sum()):,}), {required:,} "
            f"are required by min_train_years {settings.min_train_years:g}"
        )
    found = gaps.find(missing)
    may = np.isin(columns, settings.filled_columns())
    short = (found.length <= settings.max_imputation_gap_size) & may[found.column]
    whole = found.inside([start + parts.val_row, start + parts.test_row])
    filled = gaps.fill(values, found.take(short & whole))[start:stop]
    kept = values[start:stop]
    why = reasons(pipelines, columns, kept[: parts.val_row])
    if why is not None:
        raise LeftOut(why)
    unusable = without_result(pipelines, columns, kept)
    if unusable.any():
        kept[unusable] = np.nan
        filled &= ~unusable
        parts = cut_at(seen[:, 0] & ~unusable[:, 0], parts.val_row, parts.test_row)
    # Source rows by where they are: positions ascend.
    edges = np.searchsorted(positions, [start, start + parts.val_row, start + parts.test_row, stop])
    rows.update(dict(zip(SPLITS, np.diff(edges).tolist(), strict=True)))
    inside = (found.start < stop) & (found.start + found.length > start)
    kept_rows = int(edges[-1] - edges[0])
    rows["trimmed"] = len(positions) - kept_rows

    def count(places: Bools) -> I64:
        return found.take(inside & places).per_column(len(columns))[0]

    return Cleaned(
        rows=rows,
        axis=axis.tail(start, stop),
        values=kept,
        filled=filled,
        cut=parts,
        imputation={
            "short_gaps_count": count(short & whole),
            "imputed_values_count": filled.sum(axis=0, dtype=np.int64),
            "long_gaps_count": count(~short),
            "cut_gaps_count": count(short & ~whole),
            "unusable_values_count": unusable.sum(axis=0, dtype=np.int64),
            "missing_values_count": np.isnan(kept).sum(axis=0, dtype=np.int64),
            "longest_gap": found.take(inside).per_column(len(columns))[2],
        },
        first_last=np.stack([seen.argmax(axis=0), stop - start - 1 - seen[::-1].argmax(axis=0)], axis=1),
        added_rows=stop - start - kept_rows,
        trimmed_steps=(start, axis.rows - stop),
    )


def _placed_rows(settings: Series, observed: Observed, dropped: Counter[str]) -> tuple[Axis, I64, I64]:
    """The axis of an entity, its rows that have a place on it, and these places, ascending. Raises `LeftOut`."""
    if not len(observed.times):
        raise LeftOut("has no rows")
    known = np.flatnonzero(observed.times != MISSING)
    if len(known) < len(observed.times):
        if settings.bad_rows == "error":
            raise LeftOut(str(observed.bad_time))
        dropped["bad_time"] = len(observed.times) - len(known)
        if not len(known):
            raise LeftOut("no row has a time that can be read")
    times = observed.times[known]
    placed = place(times, settings.step)
    if len(placed.off_grid):
        if settings.off_grid == "error":
            raise LeftOut(
                f"{len(placed.off_grid):,} times are between steps of {settings.step.word}, first "
                f"{_iso(times[placed.off_grid].min())}; give another frequency, or off_grid='drop'"
                f"{_local_days(times, placed)}"
            )
        dropped["off_grid"] = len(placed.off_grid)
    rows, positions = placed.rows, placed.positions
    repeated = positions[1:] == positions[:-1]
    if repeated.any():
        if settings.duplicate_times == "error":
            raise LeftOut(
                f"{int(repeated.sum()):,} times come twice, first {_iso(times[rows[int(np.argmax(repeated))]])}; "
                f"correct it, or give duplicate_times='first'"
            )
        stays = np.append(True, ~repeated) if settings.duplicate_times == "first" else np.append(~repeated, True)
        dropped["duplicate_time"] = int((~stays).sum())
        rows, positions = rows[stays], positions[stays]
    if placed.axis.rows * observed.values.shape[1] > _MOST_CELLS:
        steps = f"{placed.axis.rows:,} steps of {settings.step.word}"
        raise LeftOut(f"its axis has {steps}; give the frequency of its rows")
    return placed.axis, known[rows], positions


def _local_days(times: I64, placed: Placed) -> str:
    """Advice for days that are off by an hour at most: in UTC, local days change their hour with the clocks."""
    frequency = placed.axis.frequency
    if frequency.months or frequency.micros % DAY_US or not len(placed.rows):
        return ""
    off = (times[placed.off_grid] - times[placed.rows[0]]) % DAY_US
    if int(np.minimum(off, DAY_US - off).max()) > _HOUR_US:
        return ""
    return "; days of a zone whose clocks change are no equal steps in UTC: write them without an offset, as dates"


def required_targets(settings: Series) -> int:
    """Observed targets that an entity needs to train on."""
    return int(settings.min_train_years * settings.step.steps_per_year)


def _iso(micros: np.int64) -> str:
    return str(np.datetime64(int(micros), "us").astype("datetime64[s]"))


def quality_report(
    settings: Series, entity: str, source: str, rows: Mapping[str, int], cleaned: Cleaned | str
) -> dict[str, Any]:
    """Make the `BasinQualityReport` of an entity, as JSON. cleaned: a reason if it does not pass.

    Counts are of the steps that were kept; imputation_info has, for each column, gaps that were filled, that were left
    as too long, and that were left because a cut runs through them; values filled, made missing because no step can
    take them, and still missing; and the longest gap. targets.observed counts before anything is filled.
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
    start, end = cleaned.trimmed_steps
    targets = {"train": parts.train_targets, "val": parts.val_targets, "test": parts.test_targets}
    starts = {"train": 0, "val": parts.val_row, "test": parts.test_row}

    def period(first: int, last: int) -> dict[str, str]:
        return {"start": _told(int(times[first])), "end": _told(int(times[last]))}

    return report | {
        "period": {**period(0, -1), "steps": len(times)},
        "valid_period": {name: period(*ends) for name, ends in zip(columns, cleaned.first_last.tolist(), strict=True)},
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


def _told(micros: int) -> str:
    moment = np.datetime64(micros, "us")
    if micros % DAY_US == 0:
        return str(moment.astype("datetime64[D]"))
    return str(moment.astype("datetime64[s]") if micros % 1_000_000 == 0 else moment)
