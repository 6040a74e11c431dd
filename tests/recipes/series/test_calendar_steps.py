"""Days, weeks and months of a zone are those that pandas finds; times that cannot be told are refused."""

from datetime import date, datetime
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from basins import readable_rows
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace.formats.dates import MISSING, parse_dates
from headrace.formats.zones import utc_to_wall, zone_version
from headrace.run.events import Event, Note
from headrace.run.prepare import Prepared
from headrace.series.arrays.axis import Frequency, infer, place_rows
from headrace.series.settings import Series
from headrace.series.times import Observed, put_on_clock
from raised import raised

pandas = pytest.importorskip("pandas")

# Their clocks change at midnight, at 01:00 back to midnight, by half an hour, by a whole day, never.
ZONES = [
    "America/Sao_Paulo",
    "America/Havana",
    "Asia/Beirut",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "Europe/Berlin",
    "America/New_York",
    "Asia/Tokyo",
]
PERIODS = {
    "1d": "D",
    "1mo": "M",
    "1q": "Q",
    "1y": "Y",
    "1w": "W-SUN",
    "1w-mon": "W-SUN",
    "1w-thu": "W-WED",
    "1w-sun": "W-SAT",
}


def series(**more: object) -> Series:
    return Series(**{"source": "nowhere", "target": "load", "frequency": "1h", **more})


def micros(times: object) -> np.ndarray:
    return np.array(pandas.DatetimeIndex(times).as_unit("us").asi8, np.int64)


def observed(times: object, values: object | None = None) -> Observed:
    count = len(times)
    rows = np.arange(float(count)) if values is None else np.asarray(values, np.float64)
    return Observed(micros(times), rows.reshape(count, 1))


def prepare(
    frame: pl.DataFrame | Path, out: Path, heard: list[Event] | None = None, **more: object
) -> Prepared:
    asked = {"source": frame, "target": "load", "entity": "id", "min_train_years": 0, **more}
    return headrace.prepare(
        Series(**asked), out, on_event=(heard if heard is not None else []).append
    )


def table(times: object, load: object) -> pl.DataFrame:
    return pl.DataFrame({"id": "a", "date": times, "load": load})


def rows_of(prepared: Prepared) -> dict[datetime, float | None]:
    rows = {}
    for split in readable_rows(prepared).values():
        if "a" in split:
            rows |= dict(zip(split["a"].times, (row[0] for row in split["a"].values), strict=True))
    return rows


def warnings(heard: list[Event]) -> list[str]:
    return [event.text for event in heard if isinstance(event, Note) and event.level == "warning"]


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(ZONES),
    st.sampled_from(sorted(PERIODS)),
    st.dates(date(1990, 1, 1), date(2019, 1, 1)),
    st.sampled_from([3600, 900, 7 * 3600]),
    st.sampled_from(["sum", "first", "last"]),
    st.sampled_from(["wall", "instant"]),
)
def test_steps_of_a_zone_are_those_of_pandas(
    zone: str, step: str, start: date, seconds: int, rule: str, written: str
) -> None:
    count = (40 if step in ("1d", "1w") else 500) * 86_400 // seconds
    truth = pandas.date_range(start, periods=count, freq=f"{seconds}s", tz="UTC")
    local = truth.tz_convert(zone).tz_localize(None)
    values = np.arange(float(count)) % 101
    asked = series(frequency=step, time_zone=zone, resample=rule)
    times = micros(local)
    if written == "instant":
        times = utc_to_wall(micros(truth.tz_localize(None)), zone)
    if zone == "Australia/Lord_Howe" and seconds == 3600 and rule != "sum":
        return  # an hour of which half comes twice has one stamp
    made = put_on_clock(asked, Observed(times, values.reshape(-1, 1)))
    groups = pandas.Series(values, local.to_period(PERIODS[step]).start_time).groupby(level=0)
    expected = getattr(groups, rule)()

    assert np.array_equal(micros(expected.index), made.times)
    assert np.array_equal(expected.to_numpy(), made.values[:, 0])
    assert not len(place_rows(made.times, asked.step).off_grid)


@pytest.mark.parametrize(
    ("step", "theirs"), [("1d", "D"), ("1mo", "MS"), ("1q", "QS"), ("1b", "B")]
)
@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York"])
def test_sums_of_local_steps_are_those_of_resample(step: str, theirs: str, zone: str) -> None:
    truth = pandas.date_range("2018-10-01", periods=9000, freq="h", tz=zone)
    values = np.arange(9000.0) % 37
    found = put_on_clock(
        series(frequency=step, time_zone=zone, resample="sum"),
        observed(truth.tz_localize(None), values),
    )
    expected = pandas.Series(values, truth).resample(theirs).sum()

    assert np.array_equal(micros(expected.index.tz_localize(None)), found.times)
    assert np.array_equal(expected.to_numpy(), found.values[:, 0])


@pytest.mark.parametrize("offsets", ["none", "written"])
def test_daily_totals_are_of_local_days(tmp_path: Path, offsets: str) -> None:
    """Sales until late on Friday are Friday's, in their sum, label, weekday and split."""
    truth = pandas.date_range("2024-01-01", "2024-12-30 23:00", freq="h", tz="America/New_York")
    sales = np.where(truth.hour >= 20, 3.0, 0.5) + truth.day_of_week
    texts = truth.strftime("%Y-%m-%d %H:%M")
    if offsets == "written":
        texts = truth.map(lambda moment: moment.isoformat())
    made = prepare(
        table(texts.to_list(), sales),
        tmp_path / "out",
        time_zone="America/New_York",
        frequency="1d",
        resample="total",
        calendar=["day_of_week"],
        train_end="2024-09-01",
        val_end="2024-11-01T00:00:00-04:00",
        preprocessing_configs={"target": {"pipeline": [], "strategy": "per_group"}},
    )
    expected = pandas.Series(sales, truth).resample("D").sum()
    rows = rows_of(made)

    assert list(expected.index.tz_localize(None)) == list(rows)
    assert np.allclose(list(rows.values()), expected.to_numpy())
    splits = readable_rows(made)
    assert datetime(2024, 8, 31) == splits["train"]["a"].times[-1]
    assert datetime(2024, 10, 31) == splits["val"]["a"].times[-1]
    weekday = [row[1] for row in splits["train"]["a"].values]
    assert np.allclose(np.sin(2 * np.pi * (np.arange(len(weekday)) % 7) / 7), weekday, atol=1e-6)
    assert {"1d", "America/New_York"} == {made.manifest.metadata[name] for name in ("frequency", "clock")}  # fmt: skip
    assert headrace.verify(tmp_path / "out").problems == []


def test_days_without_a_midnight_are_days(tmp_path: Path) -> None:
    """In Sao Paulo clocks skip the first hour of a day in October, and dates name that day too."""
    days = pandas.date_range("2016-01-01", "2018-12-31", freq="D")
    made = prepare(
        table(days, np.arange(float(len(days)))),
        tmp_path / "out",
        time_zone="America/Sao_Paulo",
        frequency="1d",
    )

    assert list(days) == list(rows_of(made))
    assert headrace.verify(tmp_path / "out").problems == []
    hours = series(frequency="1d", time_zone="America/Sao_Paulo", resample="sum")
    with raised(headrace.InputError):
        put_on_clock(hours, observed(pandas.DatetimeIndex(["2017-10-15 00:30"])))


def hours_of_a_year() -> object:
    truth = pandas.date_range("2021-01-01", "2021-12-31", freq="30min", tz="UTC")
    return truth.tz_convert("Europe/Berlin").tz_localize(None)


def test_repeated_hours_in_no_order_are_refused() -> None:
    wall = hours_of_a_year()
    shuffled = wall[np.random.default_rng(1).permutation(len(wall))]
    with raised(headrace.InputError) as refused:
        put_on_clock(series(frequency="30m", time_zone="Europe/Berlin"), observed(shuffled))

    assert "4 times come twice in Europe/Berlin" in str(refused.value)
    assert "ambiguous_times" in str(refused.value)
    for rule, moved in (("earlier", 0), ("later", 1)):
        asked = series(frequency="30m", time_zone="Europe/Berlin", ambiguous_times=rule)
        found = put_on_clock(asked, observed(shuffled)).times
        theirs = shuffled.tz_localize("Europe/Berlin", ambiguous=np.full(len(wall), not moved))
        assert np.array_equal(micros(theirs.tz_convert("UTC").tz_localize(None)), found)


def test_disorder_elsewhere_says_nothing_of_a_repeated_hour() -> None:
    """Files of months in any order are in order around a change."""
    wall = hours_of_a_year()
    moved = wall[9000:].append(wall[:9000])
    found = put_on_clock(series(frequency="30m", time_zone="Europe/Berlin"), observed(moved))

    truth = pandas.date_range("2021-01-01", "2021-12-31", freq="30min")
    assert np.array_equal(micros(truth[9000:].append(truth[:9000])), found.times)


def test_sums_of_days_need_no_order() -> None:
    wall = hours_of_a_year()
    shuffled = wall[np.random.default_rng(1).permutation(len(wall))]
    asked = {"frequency": "1d", "time_zone": "Europe/Berlin"}

    assert 365 == len(put_on_clock(series(**asked, resample="sum"), observed(shuffled)).times)
    with raised(headrace.InputError):
        put_on_clock(series(**asked, resample="last"), observed(shuffled))


def test_the_rules_of_a_zone_are_part_of_the_run() -> None:
    berlin = series(time_zone="Europe/Berlin").identity_settings()
    tokyo = series(time_zone="Asia/Tokyo").identity_settings()

    assert zone_version("Europe/Berlin") == berlin["time_zone_version"]
    assert berlin["time_zone_version"] != tokyo["time_zone_version"]
    assert "time_zone_version" not in series().identity_settings()


@pytest.mark.parametrize("mistyped", ["2202-01-01", "9999-12-31", "1900-01-01"])
def test_a_mistyped_date_is_told(tmp_path: Path, mistyped: str) -> None:
    days = pandas.date_range("2020-01-01", periods=730).strftime("%Y-%m-%d").to_list()
    heard: list[Event] = []
    made = prepare(table([*days, mistyped], np.arange(731.0)), tmp_path / "out", heard)

    (told,) = made.manifest.metadata["long_axes"]
    assert told in warnings(heard)
    assert mistyped in told
    assert "for 731 rows" in told


@pytest.mark.parametrize("pipeline", [[], ["MaxAbsScaler"]])
def test_a_target_that_float32_rounds_is_told(tmp_path: Path, pipeline: list[str]) -> None:
    days = pandas.date_range("2020-01-01", periods=900)
    load = 1.2e8 + np.arange(900) % 300 - 150.0
    heard: list[Event] = []
    asked = {"target": {"pipeline": pipeline, "strategy": "per_group"}}
    made = prepare(table(days, load), tmp_path / "out", heard, preprocessing_configs=asked)

    (told,) = made.manifest.metadata["rounded_targets"]
    assert told in warnings(heard)
    assert "of 300 values of load of 'a'" in told
    heard.clear()
    scaled = prepare(table(days, load), tmp_path / "scaled", heard)
    assert "rounded_targets" not in scaled.manifest.metadata
    assert [] == warnings(heard)


@pytest.mark.parametrize("weekday", ["mon", "wed", "sun"])
def test_weeks_begin_on_the_weekday_that_is_named(weekday: str) -> None:
    step = Frequency.parse(f"1w-{weekday}")
    days = pandas.date_range("1968-01-01", periods=1200)
    begins = days[days.strftime("%a").str.lower() == weekday]

    assert f"1w-{weekday}" == step.word
    placed = place_rows(micros(days), step)
    assert np.array_equal(micros(begins), micros(days)[placed.rows])
    assert np.array_equal(micros(begins), placed.axis.times())
    with pytest.raises(headrace.SettingsError, match="weeks from a weekday"):
        series(frequency="1d-mon")


@pytest.mark.parametrize(
    ("texts", "frequency"),
    [
        (["2000Q1", "2000Q2", "2000Q3", "2001Q1"], "QS"),
        (["2019-W01", "2019-W02", "2019-W03", "2019-W05"], "W-MON"),
        (["Jan 2019", "Feb 2019", "March 2019", "May 2019"], "MS"),
        (["2019-01", "2019-02", "2019-03", "2019-05"], "MS"),
        (["1935", "1936", "1937", "1939"], "YS"),
    ],
)
def test_periods_are_read_as_their_first_day(
    tmp_path: Path, texts: list[str], frequency: str
) -> None:
    expected = {
        "QS": pandas.PeriodIndex(["2000Q1", "2000Q2", "2000Q3", "2000Q4", "2001Q1"], freq="Q"),
        "W-MON": pandas.date_range("2018-12-31", periods=5, freq="7D"),
        "MS": pandas.date_range("2019-01-01", periods=5, freq="MS"),
        "YS": pandas.date_range("1935-01-01", periods=5, freq="YS"),
    }[frequency]
    if frequency == "QS":
        expected = expected.start_time
    made = prepare(table(texts, [1.0, 2.0, 3.0, 5.0]), tmp_path / "out")

    assert list(expected) == list(rows_of(made))


def test_a_year_of_a_number_is_read_and_a_truncated_day_is_not(tmp_path: Path) -> None:
    made = prepare(table([1935, 1936, 1937], [1.0, 2.0, 4.0]), tmp_path / "out")

    assert "12mo" == made.manifest.metadata["frequency"]
    with pytest.raises(headrace.InputError, match="is '2019-01': not a time"):
        prepare(table(["2019-01-01", "2019-01", "2019-01-03"], [1.0, 2.0, 3.0]), tmp_path / "no")
    unread = parse_dates(pl.Series(["2019-W53", "2019Q5", "0935"]).to_arrow(), "period")
    assert [MISSING] * 3 == unread.micros.tolist()


def test_the_week_that_a_year_lacks_is_named(tmp_path: Path) -> None:
    rows = table([f"2016-W{week:02}" for week in range(50, 54)], [1.0, 2.0, 3.0, 4.0])

    with pytest.raises(headrace.InputError, match="row 4, column 'date' is '2016-W53'"):
        prepare(rows, tmp_path / "out")
    rows.write_csv(tmp_path / "a.csv")
    with pytest.raises(headrace.InputError, match="row 4, column 'date' is '2016-W53'"):
        prepare(tmp_path / "a.csv", tmp_path / "out", entity="file_name")


def test_a_year_before_the_first_is_shown(tmp_path: Path) -> None:
    early = pl.Series([-62_300_000_000_000_000]).cast(pl.Datetime("us"))

    with pytest.raises(headrace.InputError, match="is '-0005-10-17 04:26:40"):
        prepare(table(early, [1.0]), tmp_path / "out")


@pytest.mark.parametrize("name", ["BME", "BMS", "ME", "30th", "29th"])
@pytest.mark.parametrize("months", [1, 3])
def test_months_are_known_by_what_their_days_have_in_common(name: str, months: int) -> None:
    if name.endswith("th"):
        starts = pandas.date_range("2010-01-01", periods=60, freq="MS")
        days = pandas.to_timedelta(np.minimum(starts.days_in_month, int(name[:2])) - 1, unit="D")
        every = starts + days
    else:
        every = pandas.date_range("2010-01-01", periods=60, freq=name)
    every = every[::months] + pandas.Timedelta(hours=16)
    lost = np.delete(np.arange(len(every)), [4, 7])
    placed = place_rows(micros(every[lost]), Frequency.parse(f"{months}mo"))

    assert Frequency.parse(f"{months}mo") == infer(micros(every[lost]))
    assert not len(placed.off_grid)
    assert np.array_equal(micros(every), placed.axis.times())
    for start in (1, 5):  # February and others begin an axis too
        tail = placed.axis.tail(start, len(every))
        assert np.array_equal(micros(every[start:]), tail.times())


@pytest.mark.parametrize(
    ("calendar", "days"),
    [("noleap", "no 29 February"), ("360_day", "30 days"), ("julian", "leap years")],
)
def test_other_calendars_are_named(tmp_path: Path, calendar: str, days: str) -> None:
    xarray = pytest.importorskip("xarray")
    times = xarray.date_range("2000-01-01", periods=400, calendar=calendar, use_cftime=True)
    data = xarray.Dataset({"load": ("date", np.arange(400.0))}, {"date": times})
    data.to_netcdf(tmp_path / "a.nc")
    asked = {"target": "load", "min_train_years": 0}
    with raised(headrace.InputError) as refused:
        headrace.prepare(Series(source=tmp_path / "a.nc", **asked), tmp_path / "out")

    assert calendar in str(refused.value)
    assert days in str(refused.value)
    assert "convert_calendar('standard'" in str(refused.value)
