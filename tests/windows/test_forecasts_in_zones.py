"""Live forecasts of local times around clock changes, against a derivation by `datetime`."""

import datetime as dt
from functools import cache
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import headrace
import headrace.windows
from laws import examples

HOUR = dt.timedelta(hours=1)
L, H = 5, 3
# Clocks of Santiago skip and repeat midnight.
CHANGES = [
    ("Europe/Berlin", dt.datetime(2024, 3, 31, 1, tzinfo=dt.UTC)),
    ("Europe/Berlin", dt.datetime(2024, 10, 27, 1, tzinfo=dt.UTC)),
    ("America/Santiago", dt.datetime(2024, 4, 7, 3, tzinfo=dt.UTC)),
    ("America/Santiago", dt.datetime(2024, 9, 8, 4, tzinfo=dt.UTC)),
    ("America/New_York", dt.datetime(2024, 11, 3, 6, tzinfo=dt.UTC)),
]
AS_IS = {"strategy": "unified", "pipeline": []}


def hours(first: dt.datetime, count: int) -> list[dt.datetime]:
    return [first + number * HOUR for number in range(count)]


def table_of(zone: str, instants: list[dt.datetime], measured: int) -> pl.DataFrame:
    """Rows at local times without an offset; only plans are known after the measured ones."""
    number = np.arange(len(instants), dtype=float)
    measures = np.where(number < measured, number, np.nan)
    local = [each.astimezone(ZoneInfo(zone)).replace(tzinfo=None) for each in instants]
    columns = {"sold": measures % 37, "visits": measures % 11, "promo": number % 5}
    return pl.DataFrame({"time": local, "shop": ["a"] * len(local), **columns})


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Any:
    @cache
    def prepared(zone: str, step: str) -> Path:
        directory = tmp_path_factory.mktemp("zone")
        first = dt.datetime(2023, 5, 2, tzinfo=dt.UTC)
        table_of(zone, hours(first, 1500), 1500).write_parquet(directory / "shop.parquet")
        series = headrace.Series(
            source=directory / "shop.parquet",
            entity="shop",
            time="time",
            time_zone=zone,
            frequency=step,
            resample="sum" if step == "1d" else {},
            target="sold",
            past_features=["visits"],
            future_features=["promo"],
            calendar=["hour_of_day", "day_of_week"],
            preprocessing_configs={"features": AS_IS, "target": AS_IS},
        )
        return headrace.prepare(series, directory / "out").out

    return prepared


def by_hand(
    zone: str, step: str, instants: list[dt.datetime], table: pl.DataFrame
) -> tuple[list[dt.datetime], np.ndarray]:
    """Return the time that each step has in the output, and its visits, promo and calendar."""
    names = ["sold", "visits", "promo"]
    rows = table.select(names).to_numpy()
    local = [each.astimezone(ZoneInfo(zone)).replace(tzinfo=None) for each in instants]
    times = [each.replace(tzinfo=None) for each in instants]
    if step == "1d":
        days = [each.replace(hour=0) for each in local]
        times = local = sorted(set(days))
        # A day without a value that was measured has none; others sum what was.
        sums = []
        for day in local:
            inside = rows[[each == day for each in days]]
            total = np.nansum(inside, axis=0)
            sums.append(np.where(np.isnan(inside).all(axis=0), np.nan, total))
        rows = np.array(sums)
    angles = [(2 * np.pi * t.hour / 24, 2 * np.pi * t.weekday() / 7) for t in local]
    waves = [[f(angle) for angle in pair for f in (np.sin, np.cos)] for pair in angles]
    return times, np.hstack([rows, np.array(waves)])


@settings(max_examples=examples(60), deadline=None)
@given(
    change=st.sampled_from(CHANGES),
    step=st.sampled_from(["1h", "1d"]),
    after=st.integers(-30, 80),
    named=st.sampled_from(["no", "here", "with offset"]),
)
def test_the_window_around_a_clock_change_is_the_one_derived_by_hand(
    run_of: Any, change: tuple[str, dt.datetime], step: str, after: int, named: str
) -> None:
    zone, moment = change
    ahead = H if step == "1h" else 24 * (H + 1)
    measured = 10 * 24 + after
    instants = hours(moment - 10 * 24 * HOUR, measured + ahead)
    table = table_of(zone, instants, measured)
    times, rows = by_hand(zone, step, instants, table)
    last = int(np.flatnonzero(~np.isnan(rows[:, 0]))[-1])
    origin = None
    if named != "no":
        clock = dt.UTC if step == "1h" else ZoneInfo(zone)
        last -= 1
        origin = times[last].isoformat()
        if named == "with offset":
            shown = times[last].replace(tzinfo=clock)
            assume(shown.astimezone(dt.UTC).astimezone(clock) == shown)  # clocks may skip midnight
            origin = shown.isoformat()

    found = headrace.windows.forecast(
        run_of(zone, step), table, input_length=L, output_length=H, origin=origin
    )
    batch = found.batch()
    said = found.table(np.zeros((1, H)))

    assert ("visits", "promo") == found.windows.input_names[:2]
    assert [times[last]] == found.origins.astype(object).tolist()
    np.testing.assert_allclose(rows[last + 1 - L : last + 1, 1:], batch["X"][0], atol=1e-6)
    np.testing.assert_allclose(rows[last + 1 : last + 1 + H, 2:], batch["future"][0], atol=1e-6)
    assert times[last + 1 : last + 1 + H] == said["time"].to_list()
