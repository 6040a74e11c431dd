"""Compare the splits of a dataset in calendar time: shared periods, and labels that look past the cutoff. Pure.

Rows of different entities at one time share what happened then: weather, a holiday, a market. A label that is derived
from the days after its row contains information of the test period if the row is close to the cutoff.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import polars as pl
import pyarrow as pa

from headrace.arrays import I64
from headrace.checks import duration_us
from headrace.errors import SettingsError
from headrace.formats.dates import MISSING, parse_dates
from headrace.formats.text_columns import as_text, nulled


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
    """Rows of `split` at times between the first and last row of other entities in an earlier split.

    share: of the rows of `split`, 0 to 1. first_us, last_us: the first and last time of these rows; None if there are
    none.
    """

    earlier: str
    split: str
    rows: int
    share: float
    first_us: int | None
    last_us: int | None


@dataclass(frozen=True, kw_only=True)
class PastCut:
    """Rows of `split` whose time plus horizon reaches the cutoff. share: of the rows of `split`, 0 to 1."""

    split: str
    rows: int
    share: float


def timed(columns: Mapping[str, str], time_format: str, null_values: Sequence[str], table: pa.Table) -> pl.DataFrame:
    """Return when the rows of a table begin and end, and a hash of their entities.

    columns: column names by role: "time" and, if they exist, "until" and "entity".
    """

    def micros(name: str) -> I64:
        return parse_dates(nulled(table[name], ("", *null_values)), time_format).micros

    begin = micros(columns["time"])
    end = micros(columns["until"]) if "until" in columns else begin
    entity = pl.Series("entity", [None] * len(begin), pl.UInt64)  # null: equal to no entity
    if "entity" in columns:
        texts = as_text(table[columns["entity"]], null_values, f"entity {columns['entity']!r}")
        entity = pl.Series("entity", pl.from_arrow(texts)).hash(seed=0)
    return pl.DataFrame({"entity": entity, "begin": begin, "end": end})


def periods(splits: Mapping[str, pl.DataFrame]) -> tuple[Period, ...]:
    """Return the first and last time of each split."""
    found = []
    for name, rows in splits.items():
        read = _read(rows)
        first, last = read.select(pl.col("begin").min(), pl.col("end").max()).row(0)
        found.append(Period(split=name, first_us=first, last_us=last, unread=len(rows) - len(read)))
    return tuple(found)


def concurrent(splits: Mapping[str, pl.DataFrame]) -> tuple[Together, ...]:
    """Count, for each pair of splits, the rows that share calendar time with other entities of the earlier one."""
    found = []
    for earlier, later in combinations(splits, 2):
        spans = _read(splits[earlier]).group_by("entity").agg(pl.col("begin").min(), pl.col("end").max())
        first, last = _of_others(spans, "begin", descending=False), _of_others(spans, "end", descending=True)
        same = _read(splits[later]).filter((pl.col("end") >= first) & (pl.col("begin") <= last))
        first_us, last_us = same.select(pl.col("begin").min(), pl.col("end").max()).row(0)
        share = len(same) / max(1, len(splits[later]))
        found.append(
            Together(earlier=earlier, split=later, rows=len(same), share=share, first_us=first_us, last_us=last_us)
        )
    return tuple(found)


def past_cut(splits: Mapping[str, pl.DataFrame], horizon: str, cutoff_us: int | None) -> tuple[PastCut, ...]:
    """Count the rows of each split but the last whose time plus horizon reaches the cutoff.

    cutoff_us: None: the first time of the row's entity in the last split or, if it has no rows there, of any entity.
    Raises `SettingsError` for a horizon that is not a duration, and for a single split.
    """
    reach = duration_us("label_horizon", horizon)
    *names, last = splits
    if not names:
        raise SettingsError(
            f"label_horizon: the dataset has one split, {last}, and no cutoff; give one with a test split"
        )
    tested = _read(splits[last])
    own = tested.drop_nulls("entity").group_by("entity").agg(pl.col("begin").min().alias("own"))
    any_first = pl.lit(tested["begin"].min(), pl.Int64)
    cut = pl.lit(cutoff_us) if cutoff_us is not None else pl.col("own").fill_null(any_first)
    found = []
    for name in names:
        rows = _read(splits[name]).join(own, on="entity", how="left")
        count = rows.select((pl.col("end") + reach >= cut).sum()).item()
        found.append(PastCut(split=name, rows=count, share=count / max(1, len(splits[name]))))
    return tuple(found)


def _read(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows whose time could be read."""
    return rows.filter((pl.col("begin") != MISSING) & (pl.col("end") != MISSING))


def _of_others(spans: pl.DataFrame, column: str, *, descending: bool) -> pl.Expr:
    """Return the first time, or the last, of an entity other than the row's. spans: one row for each entity."""
    best = spans.sort(column, "entity", descending=descending).head(2)
    first, second = [*best[column].to_list(), None, None][:2]
    of_first = pl.col("entity") == pl.lit(best["entity"][0] if len(best) else None, pl.UInt64)
    return pl.when(of_first).then(pl.lit(second, pl.Int64)).otherwise(pl.lit(first, pl.Int64))
