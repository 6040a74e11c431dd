"""A missing time is a mask: no arithmetic sees it, whatever the form and the zone of the others."""

from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from math import floor
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import headrace
from headrace.dataset.manifest import Manifest
from headrace.formats.dates import MISSING, parse_dates
from headrace.formats.zones import wall_to_utc
from headrace.split.cutoff import DateBins, in_utc
from laws import examples

ZONES = ["UTC", "America/Phoenix", "Europe/Berlin", "Pacific/Apia", "Asia/Kathmandu"]
FIVE = [
    "2024-01-05T10:00:00",
    "2024-01-06T10:00:00+02:00",
    "",
    "2024-03-05T10:00:00",
    "2024-03-06T10:00:00",
]


def prepared(tmp_path: Path, times: list[str], **options: Any) -> Manifest:
    rows = [f"{time},{number},{time}" for number, time in enumerate(times)]
    (tmp_path / "a.csv").write_text("day,x,known\n" + "\n".join(rows) + "\n")
    split = headrace.TemporalSplit(
        source=tmp_path / "a.csv", time="day", split_date="2024-02-01", bad_rows="drop", **options
    )
    manifest = headrace.prepare(split, tmp_path / "out").manifest
    assert not headrace.verify(tmp_path / "out").problems
    return manifest


@pytest.mark.parametrize("zone", ZONES)
def test_rows_without_a_time_beside_times_of_two_clocks_are_dropped(
    tmp_path: Path, zone: str
) -> None:
    manifest = prepared(tmp_path, FIVE, time_zone=zone, dialect={"time_format": ["iso"]})

    assert 1 == manifest.dropped["null_time"] == sum(manifest.dropped.values())
    assert {"train": 2, "test": 2} == {name: each.rows for name, each in manifest.splits.items()}


@pytest.mark.parametrize("zone", ZONES)
def test_values_without_a_known_time_are_late(tmp_path: Path, zone: str) -> None:
    manifest = prepared(
        tmp_path,
        FIVE,
        time_zone=zone,
        dialect={"time_format": ["iso"]},
        known_at=["known"],
        known_equal="keep",
        known_late="drop",
    )

    assert 1 == manifest.dropped["null_time"]


TIMES = st.datetimes(datetime(1950, 1, 1), datetime(2035, 1, 1))
WRITTEN = st.one_of(
    st.none(),
    TIMES.map(datetime.isoformat),
    TIMES.map(lambda time: time.replace(tzinfo=UTC).isoformat()),
)


@settings(max_examples=examples(100))
@given(st.lists(WRITTEN, max_size=8), st.sampled_from(ZONES))
def test_a_missing_time_changes_no_other(texts: list[str | None], zone: str) -> None:
    dates = parse_dates(pa.chunked_array([texts], pa.string()), "iso")
    instants = in_utc(dates.micros, ~dates.instant, zone)
    present = [text for text in texts if text is not None]
    alone = parse_dates(pa.chunked_array([present], pa.string()), "iso")

    assert [text is None for text in texts] == (instants == MISSING).tolist()
    known = instants[instants != MISSING].tolist()
    assert in_utc(alone.micros, ~alone.instant, zone).tolist() == known
    for text, instant in zip(present, known, strict=True):
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=ZoneInfo(zone))
            if moment.astimezone(UTC).astimezone(ZoneInfo(zone)) != moment:
                continue  # a time that clocks skip
        assert moment.timestamp() == pytest.approx(instant / 1e6)


def test_counts_and_zones_leave_missing_times_out() -> None:
    times = np.array([MISSING, 0, 5, MISSING])

    assert [1, 1] == DateBins(0, 3, 2).counts(times).tolist()
    assert [True, False, False, True] == (
        wall_to_utc(times, "Europe/Berlin", "latest") == MISSING
    ).tolist()


CUT = 1_704_067_200  # 2024-01-01


@pytest.mark.parametrize("below_us", [0.2, 0.3, 0.4, 0.5, 0.9])
@pytest.mark.parametrize(("word", "per_second"), [("epoch_s", 1), ("auto", 1), ("epoch_ms", 1e3)])
def test_epochs_just_before_a_cutoff_are_before_it(
    below_us: float, word: str, per_second: float
) -> None:
    value = (CUT - below_us * 1e-6) * per_second
    assert value < CUT * per_second
    for column in ([value], [repr(value)]):
        micros = parse_dates(pa.chunked_array([column]), word).micros
        assert [CUT * 1_000_000 - 1] == micros.tolist()


@settings(max_examples=examples(200))
@given(
    st.sampled_from(["", "-", "+"]),
    st.integers(0, 10**10),
    st.text("0123456789", max_size=20),
    st.sampled_from(
        [("epoch_s", 10**6), ("epoch_ms", 10**3), ("epoch_us", 1), ("epoch_ns", Fraction(1, 1000))]
    ),
)
@example("", CUT - 1, "9999999", ("epoch_s", 10**6))  # a float of it is the cutoff itself
@example("", CUT - 1, "9" * 20, ("auto", 10**6))
@example("-", 0, "0000001", ("epoch_s", 10**6))
@example("", CUT * 10**9 - 1, "5", ("epoch_ns", Fraction(1, 1000)))
def test_a_written_epoch_is_rounded_down_to_its_microsecond(
    sign: str, whole: int, fraction: str, form: tuple[str, Fraction]
) -> None:
    word, unit_us = form
    text = f"{sign}{whole}.{fraction}"

    micros = parse_dates(pa.chunked_array([[text]]), word).micros

    assert [floor(Fraction(text) * unit_us)] == micros.tolist()


def test_an_epoch_that_is_a_decimal_is_rounded_down() -> None:
    column = pa.chunked_array([[Decimal(CUT) - Decimal("1e-7"), None]])

    assert [CUT * 1_000_000 - 1, MISSING] == parse_dates(column, "epoch_s").micros.tolist()


@settings(max_examples=examples(200))
@given(
    st.integers(-(10**15), 4 * 10**15), st.sampled_from([("epoch_s", 10**6), ("epoch_ms", 10**3)])
)
def test_the_float_of_a_whole_microsecond_is_that_microsecond(
    micros: int, form: tuple[str, int]
) -> None:
    word, unit_us = form
    value = micros / unit_us

    assert [micros] == parse_dates(pa.chunked_array([[value]]), word).micros.tolist()


def test_a_day_of_a_spreadsheet_keeps_its_time() -> None:
    hours = [hour / 24 + 45_292 for hour in range(24)]
    micros = parse_dates(pa.chunked_array([hours]), "excel_days").micros

    assert [CUT * 10**6 + hour * 3_600 * 10**6 for hour in range(24)] == micros.tolist()
