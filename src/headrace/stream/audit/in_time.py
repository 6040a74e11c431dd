"""Compare splits in calendar time, labels with the cutoff, and other columns of dates with it.

Rows of different entities at one time share what happened then: weather, a holiday, a market. A
label that is derived from the days after its row contains information of the test period if the row
is close to the cutoff. A row before the cutoff that holds a date behind it was written, or changed,
after the cutoff: the column that the splits were cut by may be the wrong one. A row that holds a
date not before its own time may hold values that came after it: a total of a day is known when the
day is over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import I64
from headrace.checks import duration_us
from headrace.errors import SettingsError
from headrace.formats.dates import DAY_US, MISSING, parse_dates
from headrace.formats.text_columns import as_text, joined_time, nulled
from headrace.formats.types import is_text
from headrace.stream.audit.near import SplitBlocks

_FIRST = 256
_DATED = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9]{2}:[0-9]{2}.*)?$"
_DATES = 0.9  # share of a column's values that makes it one of dates
_YEARS_US = 5 * 366 * DAY_US  # around the times of rows, beyond which a number is no date


@dataclass(frozen=True, kw_only=True)
class Period:
    """The first and last time of a split, in microseconds since 1970; None if it has none.

    unread: rows whose time cannot be read.
    """

    split: str
    first_us: int | None
    last_us: int | None
    unread: int


@dataclass(frozen=True, kw_only=True)
class Together:
    """Rows of `split` at times between the first and last row of other entities in an earlier
    split.

    fraction: of the rows of `split`, 0 to 1. first_us, last_us: the first and last time of these
    rows; None if there are none.
    """

    earlier: str
    split: str
    rows: int
    fraction: float
    first_us: int | None
    last_us: int | None


@dataclass(frozen=True, kw_only=True)
class PastCut:
    """Rows of `split` whose time plus horizon reaches the cutoff.

    fraction: of the rows of `split`, 0 to 1.
    """

    split: str
    rows: int
    fraction: float


@dataclass(frozen=True, kw_only=True)
class LaterDates:
    """Rows of `split` whose date in `column` is not before the cutoff, or not before the row.

    fraction: of the rows of `split`, 0 to 1.
    """

    split: str
    column: str
    rows: int
    fraction: float


def columns_of(role: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """Return the columns of a role: one, several of a time, or none."""
    if role is None:
        return ()
    if isinstance(role, str):
        return (role,)
    return role


def dated(splits: Sequence[SplitBlocks], roles: Mapping[str, Any]) -> dict[str, pl.DataFrame]:
    """Read when the rows of each split begin and end, and a hash of their entities, which is null
    without a column.
    """
    columns = {role: roles[role] for role in ("time", "until", "entity") if roles.get(role)}
    null_values = roles.get("null_values", ())

    def read(table: pa.Table) -> pl.DataFrame:
        def micros(role: str) -> I64:
            nulls = ("", *null_values)
            values = joined_time([nulled(table[name], nulls) for name in columns_of(columns[role])])
            return parse_dates(values, roles.get("time_format", "auto")).micros

        begin = micros("time")
        if "until" in columns:
            end = micros("until")
        else:
            end = begin
        entity = pl.Series([None] * len(begin), dtype=pl.UInt64)  # null: equal to no entity
        if "entity" in columns:
            texts = as_text(table[columns["entity"]], null_values, columns["entity"])
            entity = pl.Series(pl.from_arrow(texts)).hash(seed=0)
        return pl.DataFrame({"entity": entity, "begin": begin, "end": end})

    empty = pl.DataFrame(schema={"entity": pl.UInt64, "begin": pl.Int64, "end": pl.Int64})
    names = [name for role in columns.values() for name in columns_of(role)]
    return {split.name: pl.concat([empty, *split.map(names, read)]) for split in splits}


def periods(splits: Mapping[str, pl.DataFrame]) -> tuple[Period, ...]:
    """Return the first and last time of each split."""
    overlaps = []
    for name, rows in splits.items():
        read = _read(rows)
        first, last = read.select(pl.col("begin").min(), pl.col("end").max()).row(0)
        overlaps.append(
            Period(split=name, first_us=first, last_us=last, unread=len(rows) - len(read))
        )
    return tuple(overlaps)


def concurrent(splits: Mapping[str, pl.DataFrame]) -> tuple[Together, ...]:
    """Count, for each pair of splits, the rows that share calendar time with other entities of the
    earlier one.
    """
    concurrences = []
    for earlier, later in combinations(splits, 2):
        spans = (
            _read(splits[earlier])
            .group_by("entity")
            .agg(pl.col("begin").min(), pl.col("end").max())
        )
        first = _of_others(spans, "begin", descending=False)
        last = _of_others(spans, "end", descending=True)
        same = _read(splits[later]).filter((pl.col("end") >= first) & (pl.col("begin") <= last))
        first_us, last_us = same.select(pl.col("begin").min(), pl.col("end").max()).row(0)
        fraction = len(same) / max(1, len(splits[later]))
        concurrences.append(
            Together(
                earlier=earlier,
                split=later,
                rows=len(same),
                fraction=fraction,
                first_us=first_us,
                last_us=last_us,
            )
        )
    return tuple(concurrences)


def past_cut(
    splits: Mapping[str, pl.DataFrame], horizon: str, cutoff_us: int | None
) -> tuple[PastCut, ...]:
    """Count the rows of each split but the last whose time plus horizon reaches the cutoff.

    cutoff_us: None: the first time of the row's entity in the last split or, if it has no rows
    there, of any entity. Raises `SettingsError` for a horizon that is not a duration, and for a
    single split.
    """
    reach = duration_us("label_horizon", horizon)
    *names, last = splits
    if not names:
        raise SettingsError(
            f"the dataset has one split, {last}, and no cutoff",
            setting="label_horizon",
            remedy="give a dataset with a test split",
        )
    tested = _read(splits[last])
    first_test = (
        tested.drop_nulls("entity").group_by("entity").agg(pl.col("begin").min().alias("own"))
    )
    any_first = pl.lit(tested["begin"].min(), pl.Int64)
    if cutoff_us is not None:
        cut = pl.lit(cutoff_us)
    else:
        cut = pl.col("own").fill_null(any_first)
    past = []
    for name in names:
        rows = _read(splits[name]).join(first_test, on="entity", how="left")
        count = rows.select((pl.col("end") + reach >= cut).sum()).item()
        past.append(PastCut(split=name, rows=count, fraction=count / max(1, len(splits[name]))))
    return tuple(past)


def _read(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows whose time could be read."""
    return rows.filter((pl.col("begin") != MISSING) & (pl.col("end") != MISSING))


def _of_others(spans: pl.DataFrame, column: str, *, descending: bool) -> pl.Expr:
    """Return the first time, or the last, of an entity other than the row's.

    spans: one row for each entity.
    """
    best = spans.sort(column, "entity", descending=descending).head(2)
    first, second = [*best[column].to_list(), None, None][:2]
    of_first = pl.col("entity") == pl.lit(best["entity"][0] if len(best) else None, pl.UInt64)
    return pl.when(of_first).then(pl.lit(second, pl.Int64)).otherwise(pl.lit(first, pl.Int64))


def date_columns(
    looked_at: pa.Table, columns: Sequence[str], span_us: tuple[int, int] | None
) -> dict[str, bool]:
    """Select the columns of dates: by their type, texts that nearly all begin as ISO dates, and
    numbers that nearly all are dates, as 20240131 or seconds since 1970 are, close to the rows'
    times. Returns whether each names days, as all its dates are midnights.

    span_us: the first and last time of the rows; None: no number is a date.
    """
    selected = {}
    for name in columns:
        column = looked_at[name]
        type_ = column.type
        some = pc.drop_null(column).slice(0, _FIRST)
        if is_text(type_):
            is_dates = _fraction(pc.match_substring_regex(some, _DATED)) >= _DATES
        elif pa.types.is_integer(type_) or pa.types.is_floating(type_):
            is_dates = span_us is not None and _are_near(some, span_us)
        else:
            is_dates = pa.types.is_date(type_) or pa.types.is_timestamp(type_)
        if is_dates:
            micros = parse_dates(column, "auto").micros
            selected[name] = bool((micros[micros != MISSING] % DAY_US == 0).all())
    return selected


def _fraction(matches: pa.ChunkedArray) -> float:
    return pc.mean(matches).as_py() or 0.0


def _are_near(numbers: pa.ChunkedArray, span_us: tuple[int, int]) -> bool:
    """Return whether nearly all numbers are dates within some years of a span."""
    micros = parse_dates(numbers, "auto").micros
    first_us, last_us = span_us
    near = (micros >= first_us - _YEARS_US) & (micros <= last_us + _YEARS_US)
    return len(numbers) > 0 and float(near.mean()) >= _DATES


def other_dates(
    splits: Sequence[SplitBlocks], columns: Mapping[str, bool], roles: Mapping[str, Any]
) -> tuple[tuple[LaterDates, ...], tuple[LaterDates, ...]]:
    """Count the rows of all splits but the last whose other dates are not before the cutoff, and
    those of any split whose other dates are not before the row; a day is over at its end.

    columns: as `date_columns`. Columns of `known_at` are not compared with the row: that is proved.
    """
    if not columns:
        return (), ()
    times = columns_of(roles["time"])
    nulls = ("", *roles.get("null_values", ()))
    cutoff_us = roles.get("cutoff_us")
    if cutoff_us is None:
        cutoff_us = np.iinfo(np.int64).max

    def count(table: pa.Table) -> I64:
        joined = joined_time([nulled(table[name], nulls) for name in times])
        begin = parse_dates(joined, roles.get("time_format", "auto")).micros
        counts = np.zeros((2, len(columns)), np.int64)
        for number, (name, is_day) in enumerate(columns.items()):
            micros = parse_dates(nulled(table[name], nulls), "auto").micros
            is_date = micros != MISSING
            counts[0, number] = (is_date & (micros >= cutoff_us)).sum()
            if name not in roles.get("known_at", ()):
                known_us = micros + is_day * (DAY_US - 1)
                counts[1, number] = (is_date & (begin != MISSING) & (known_us >= begin)).sum()
        return counts

    past_cutoff: list[LaterDates] = []
    past_row: list[LaterDates] = []
    for split in splits:
        blocks = split.map([*columns, *times], count)
        later, late = np.sum([np.zeros((2, len(columns)), np.int64), *blocks], axis=0)
        if split is not splits[-1]:
            past_cutoff += _counted(split, columns, later)
        past_row += _counted(split, columns, late)
    return tuple(past_cutoff), tuple(past_row)


def _counted(split: SplitBlocks, columns: Iterable[str], rows: I64) -> list[LaterDates]:
    """List the columns of a split in which rows were counted."""
    counted = []
    for name, count in zip(columns, rows.tolist(), strict=True):
        if count:
            fraction = count / split.index.total_rows
            counted.append(LaterDates(split=split.name, column=name, rows=count, fraction=fraction))
    return counted
