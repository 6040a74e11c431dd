"""Times as they come: local clocks, jitter and several frequencies give what pandas gives of the same rows."""

import json
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from basins import readable_rows

import headrace
from headrace.run.events import Event, Note
from headrace.run.prepare import Prepared
from headrace.series.arrays.axis import Frequency, place_rows
from headrace.series.settings import Series
from headrace.series.times import Observed, put_on_clock
from headrace.windows import open_windows
from raised import raised

pandas = pytest.importorskip("pandas")
RNG = np.random.default_rng(0)


def settings(**more: object) -> Series:
    return Series(
        **{
            "source": "nowhere",
            "target": "load",
            "future_features": ["rain"],
            "frequency": "1h",
            **more,
        }
    )


def observed(times: object, values: object = None) -> Observed:
    micros = pandas.DatetimeIndex(times).as_unit("us").asi8
    rows = (
        np.arange(2.0 * len(micros)).reshape(-1, 2)
        if values is None
        else np.asarray(values, np.float64)
    )
    return Observed(np.array(micros, np.int64), rows)


def instants(found: Observed) -> object:
    return pandas.DatetimeIndex(found.times.astype("datetime64[us]"))


def run(
    frame: pl.DataFrame | Path, out: Path, heard: list[Event] | None = None, **more: object
) -> Prepared:
    asked = {
        "source": frame,
        "target": "load",
        "future_features": ["rain"],
        "min_train_years": 0,
        "frequency": "1h",
    }
    return headrace.prepare(
        Series(**{**asked, **more}), out, on_event=(heard if heard is not None else []).append
    )


def report(prepared: Prepared, name: str) -> dict:
    return json.loads((prepared.run / "quality_reports" / f"{name}.json").read_bytes())


def times_of(prepared: Prepared, name: str) -> list[datetime]:
    return [
        time
        for split in readable_rows(prepared).values()
        if name in split
        for time in split[name].times
    ]


@pytest.mark.parametrize(
    "zone",
    [
        "Europe/Berlin",
        "America/New_York",
        "Australia/Lord_Howe",
        "America/Sao_Paulo",
        "Africa/Casablanca",
        "UTC",
    ],
)
@pytest.mark.parametrize("step", ["15min", "30min", "1h"])
@pytest.mark.parametrize("order", [1, -1])
def test_local_stamps_are_the_instants_that_were(zone: str, step: str, order: int) -> None:
    """Every instant of years, written by its clock: the way back finds it, and agrees with pandas."""
    if (zone, step) == ("Australia/Lord_Howe", "1h"):
        pytest.skip("an hour that half comes twice has one stamp, which may be either")
    truth = pandas.date_range("2014-01-01", "2019-12-31", freq=step, tz="UTC")
    wall = truth.tz_convert(zone).tz_localize(None)
    found = instants(put_on_clock(settings(time_zone=zone), observed(wall[::order])))

    assert found.equals(truth.tz_localize(None).as_unit("us")[::order])
    if (
        order == 1 and zone != "Australia/Lord_Howe"
    ):  # pandas infers hours that come twice, not halves of them
        theirs = (
            wall.tz_localize(zone, ambiguous="infer", nonexistent="NaT")
            .tz_convert("UTC")
            .tz_localize(None)
        )
        assert found.equals(theirs.as_unit("us"))


@pytest.mark.parametrize(("rule", "dst"), [("earlier", True), ("later", False)])
def test_times_that_come_once_are_placed_by_rule(rule: str, dst: bool) -> None:
    wall = pandas.date_range("2020-01-01", "2022-12-31", freq="1h")
    wall = wall[RNG.random(len(wall)) < 0.9]
    asked = {"time_zone": "Europe/Berlin", "bad_rows": "drop"}
    found = put_on_clock(settings(**asked, ambiguous_times=rule), observed(wall))
    theirs = wall.tz_localize(
        "Europe/Berlin", ambiguous=np.full(len(wall), dst), nonexistent="NaT"
    ).dropna()

    assert instants(found).equals(theirs.tz_convert("UTC").tz_localize(None).as_unit("us"))
    if dst:
        assert np.array_equal(found.times, put_on_clock(settings(**asked), observed(wall)).times)


@pytest.mark.parametrize(
    ("stamps", "minutes"),
    [
        ("01:30 02:00 02:30 02:00 02:30 03:00", "30 60 90 120 150 180"),  # from 23:00 UTC on
        (
            "01:30 02:00 02:00 02:30 02:00 02:30 03:00",
            "30 60 60 90 120 150 180",
        ),  # a row twice, as a meter sent it
        ("01:00 02:30 02:00 03:00", "0 90 120 180"),
        ("01:00 02:00 02:00 03:00", "0 60 120 180"),
        ("01:00 02:00 03:00", "0 60 180"),
        ("03:00 02:30 02:00 02:30 02:00 01:30", "180 150 120 90 60 30"),
    ],
)
def test_repeated_hours_are_told_by_their_order(stamps: str, minutes: str) -> None:
    wall = [pandas.Timestamp(f"2021-10-31 {each}") for each in stamps.split()]
    found = put_on_clock(settings(time_zone="Europe/Berlin"), observed(wall))
    first = pandas.Timestamp("2021-10-30 23:00")

    assert [first + pandas.Timedelta(int(each), "min") for each in minutes.split()] == list(
        instants(found)
    )


@pytest.mark.slow
def test_times_that_never_were_fail_or_are_dropped_and_counted(tmp_path: Path) -> None:
    wall = [
        datetime(2021, 3, 1) + at * timedelta(hours=1) for at in range(2000)
    ]  # 2021-03-28T02:00 is not in Berlin
    frame = pl.DataFrame(
        {"id": "a", "date": wall, "load": RNG.random(2000), "rain": RNG.random(2000)}
    )
    asked = {"entity": "id", "time_zone": "Europe/Berlin"}
    with pytest.raises(
        headrace.InputError,
        match=r"1 time does not exist in Europe/Berlin, .* first 2021-03-28 02:00:00",
    ):
        run(frame, tmp_path / "out", **asked)
    prepared = run(frame, tmp_path / "out", bad_rows="drop", **asked)

    assert 1 == prepared.manifest.dropped["nonexistent_time"]
    assert 2000 == sum(prepared.manifest.dropped.values()) + sum(
        prepared.manifest.metadata["source_rows"].values()
    )
    assert [datetime(2021, 2, 28, 23) + at * timedelta(hours=1) for at in range(1999)] == times_of(
        prepared, "a"
    )
    assert headrace.verify(tmp_path / "out").problems == []


def test_an_instant_has_no_other_zone(tmp_path: Path) -> None:
    frame = pl.DataFrame(
        {"id": "a", "date": ["2021-03-01T00:00:00+01:00"] * 3, "load": 1.0, "rain": 2.0}
    )
    with raised(headrace.InputError, column="date", row=1, value="2021-03-01T00:00:00+01:00"):
        run(frame, tmp_path / "out", entity="id", time_zone="Europe/Berlin")
    for wrong, told in (
        ({"time_zone": "Europe/Berlim"}, "time_zone is 'Europe/Berlim', which is not an IANA"),
        (
            {"time_zone": "UTC", "dialect": {"time_format": "epoch_s"}},
            "an epoch, which counts instants",
        ),
        ({"resample": {"*": "nearest", "rain": "sum"}}, "give it for all"),
        ({"resample": "mean", "frequency": "infer"}, "resample needs a frequency"),
        ({"resample": {"load": "mean"}}, "resample has no rule for rain"),
        ({"resample": {"*": "mean", "snow": "sum"}}, "names snow, which is not a column"),
        ({"frequency": "coarsest"}, "give resample"),
    ):
        with pytest.raises(headrace.SettingsError, match=told):
            settings(**wrong)


def test_jittered_stamps_are_at_the_steps_that_pandas_finds_nearest(tmp_path: Path) -> None:
    """Steps take the nearest row, as `merge_asof` does."""
    slots = pandas.date_range("2022-01-01", periods=600, freq="1h")
    jitter = pandas.to_timedelta(RNG.integers(-900, 900, 600), unit="s")
    extra = slots[::50] + pandas.to_timedelta(
        RNG.integers(-900, 900, 12), unit="s"
    )  # two rows for one slot
    frame = pandas.DataFrame(
        {"date": (slots + jitter).append(extra), "load": RNG.random(612), "rain": RNG.random(612)}
    )
    asked = {"resample": "nearest", "frequency": "1h", "max_imputation_gap_size": 0}
    made = put_on_clock(settings(**asked), observed(frame["date"], frame[["load", "rain"]]))
    ours = pandas.DataFrame(made.values, instants(made), ["load", "rain"]).sort_index()
    theirs = pandas.merge_asof(
        pandas.DataFrame({"slot": slots}),
        frame.sort_values("date", kind="stable").rename(columns={"date": "slot"}),
        on="slot",
        direction="nearest",
        tolerance=pandas.Timedelta("30min"),
    )
    theirs = theirs.dropna().set_index("slot")

    assert ours.index.equals(theirs.index.as_unit("us"))
    np.testing.assert_allclose(ours.to_numpy(), theirs.to_numpy(), rtol=1e-9)
    prepared = run(
        pl.from_pandas(frame).with_columns(id=pl.lit("a")), tmp_path / "out", entity="id", **asked
    )
    rows = prepared.manifest.metadata["source_rows"]
    assert 612 == sum(prepared.manifest.dropped.values()) + sum(rows.values())
    assert {"joined_rows"} == report(prepared, "a")["times"].keys()


@pytest.mark.parametrize(
    ("frequency", "theirs"),
    [("1d", "1D"), ("3h", "3h"), ("1mo", "MS"), ("1q", "QS"), ("15m", "15min"), ("90m", "90min")],
)
@pytest.mark.parametrize("rule", ["mean", "sum", "total", "min", "max", "first", "last"])
def test_resampled_steps_are_those_of_pandas(frequency: str, theirs: str, rule: str) -> None:
    times = pandas.to_datetime(RNG.integers(0, 400 * 86_400, 4000), unit="s") + pandas.Timedelta(
        days=10_000
    )
    values = RNG.gamma(1, 5, (4000, 2))
    values[RNG.random(values.shape) < 0.3] = np.nan
    made = put_on_clock(settings(frequency=frequency, resample=rule), observed(times, values))
    frame = pandas.DataFrame(values, times).sort_index(kind="stable")
    resampler = frame.resample(
        theirs, **({} if theirs in ("1D", "MS", "QS") else {"origin": "epoch"})
    )
    expected = (
        resampler.sum(min_count=int(rule == "sum"))
        if rule in ("sum", "total")
        else getattr(resampler, rule)()
    )
    empty = 0.0 if rule == "total" else np.nan
    ours = pandas.DataFrame(made.values, instants(made)).reindex(expected.index, fill_value=empty)

    np.testing.assert_allclose(ours.to_numpy(), expected.to_numpy(), rtol=1e-9)
    assert 4000 == made.source_rows
    assert 4000 - len(made.times) == made.notes["joined_rows"]


def test_several_frequencies_become_the_coarsest(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    for name, step in (("hours", 1), ("days", 24), ("sixes", 6)):
        count = 24 * 60 // step
        times = [datetime(2022, 1, 1) + at * timedelta(hours=step) for at in range(count)]
        frame = pl.DataFrame({"date": times, "load": RNG.random(count), "rain": RNG.random(count)})
        frame.write_csv(source / f"{name}.csv", datetime_format="%Y-%m-%d %H:%M")
    heard: list[Event] = []
    asked = {"frequency": "coarsest", "resample": {"*": "mean", "rain": "sum"}}
    prepared = run(source, tmp_path / "out", heard, **asked)

    assert "1d" == prepared.manifest.metadata["frequency"]
    assert any(
        isinstance(each, Note) and "1d (1), 1h (1), 6h (1); 1d is taken" in each.text
        for each in heard
    )
    assert [60] * 3 == [len(times_of(prepared, name)) for name in ("hours", "days", "sixes")]
    assert 60 * (24 + 1 + 4) == sum(prepared.manifest.metadata["source_rows"].values())
    assert {"joined_rows": 60 * 23} == report(prepared, "hours")["times"]
    assert headrace.verify(tmp_path / "out").problems == []
    named = run(source, tmp_path / "out", **{**asked, "frequency": "1d"})
    assert readable_rows(named) == readable_rows(prepared)


def test_business_days_are_those_of_pandas() -> None:
    """Places and times, also before 1970."""
    days = pandas.bdate_range("1960-01-01", "2030-12-31")
    step = Frequency.parse("1b")
    times = np.array((days + pandas.Timedelta(hours=17)).as_unit("us").asi8, np.int64)
    placed = place_rows(times[::-1], step)

    assert np.array_equal(np.arange(len(days)), placed.positions)
    assert np.array_equal(times, placed.axis.times())
    assert np.array_equal(times[900:], placed.axis.tail(900, len(times)).times())
    between = pandas.date_range("1960-01-01", "2019-12-31").difference(days) + pandas.Timedelta(
        hours=17
    )
    off = place_rows(np.append(times, between.as_unit("us").asi8), step).off_grid
    assert np.array_equal(off, np.arange(len(times), len(times) + len(between)))
    assert step.steps_per_year == pytest.approx(365.25 * 5 / 7)


def test_business_days_are_neighbours(tmp_path: Path) -> None:
    """Windows lead over weekends, and rows on other days are off the grid."""
    days = pandas.bdate_range("2019-01-01", periods=500)
    frame = pl.DataFrame(
        {"id": "a", "date": days, "load": RNG.random(500), "rain": RNG.random(500)}
    )
    extra = frame[:1].with_columns(
        date=pl.lit(datetime(2019, 6, 1)).cast(frame["date"].dtype)
    )  # a Saturday
    asked = {"entity": "id", "frequency": "1b"}
    prepared = run(frame, tmp_path / "out", **asked)

    assert [0, list(days)] == [report(prepared, "a")["added_rows"], times_of(prepared, "a")]
    assert "1b" == prepared.manifest.metadata["frequency"]
    assert headrace.verify(tmp_path / "out").problems == []
    holidays = frame.filter(~pl.int_range(pl.len()).is_in([50, 51, 120, 300]))
    assert 4 == report(run(holidays, tmp_path / "holidays", **asked), "a")["added_rows"]
    with pytest.raises(
        headrace.InputError, match="1 time is between steps of 1b, first 2019-06-01"
    ):
        run(pl.concat([frame, extra]), tmp_path / "other", **asked)
    windows = pytest.importorskip("headrace.windows").open(
        tmp_path / "out", "train", input_length=30, output_length=5
    )
    assert 300 - 34 == len(windows)
    assert days[29] == pandas.Timestamp(int(windows[0]["input_end_date"]), unit="us")


def test_rows_of_weekends_join_the_day_before(tmp_path: Path) -> None:
    times = pandas.to_datetime(RNG.integers(0, 400 * 86_400, 3000), unit="s") + pandas.Timedelta(
        days=9_000
    )
    values = RNG.random((3000, 2))
    made = put_on_clock(settings(frequency="1b", resample="sum"), observed(times, values))
    theirs = pandas.DataFrame(values, times).resample("B").sum(min_count=1).dropna()

    np.testing.assert_allclose(
        pandas.DataFrame(made.values, instants(made)).to_numpy(), theirs.to_numpy(), rtol=1e-9
    )
    assert instants(made).equals(theirs.index.as_unit("us"))


def test_an_integer_index_counts_seconds(tmp_path: Path) -> None:
    frame = pl.DataFrame(
        {
            "id": "a",
            "date": np.arange(3, 303) * 10,
            "load": RNG.random(300),
            "rain": RNG.random(300),
        }
    )
    prepared = run(
        frame.sample(fraction=1, shuffle=True, seed=1),
        tmp_path / "out",
        entity="id",
        dialect={"time_format": "epoch_s"},
        frequency="infer",
    )

    assert "10s" == prepared.manifest.metadata["frequency"]
    assert [datetime(1970, 1, 1) + timedelta(seconds=10 * at) for at in range(3, 303)] == times_of(
        prepared, "a"
    )


@pytest.mark.slow
def test_the_calendar_is_that_of_the_clocks_and_windows_count_hours(tmp_path: Path) -> None:
    """On both days on which the clocks change, every step is an hour, and each hour of the day is the one they show."""
    local = pandas.date_range("2024-01-01", "2024-12-31", freq="1h", tz="Europe/Berlin")
    load = np.arange(float(len(local)))
    frame = pl.DataFrame(
        {"date": local.strftime("%Y-%m-%d %H:%M").to_list(), "load": load, "rain": load}
    )
    made = run(
        frame, tmp_path / "out", time_zone="Europe/Berlin", calendar=["hour_of_day", "day_of_week"]
    )
    windows = open_windows(made.run.parents[1], "all", input_length=24, output_length=24)
    batch = windows.batch(range(len(windows)))
    named = dict(zip(windows.future_names, np.moveaxis(batch["future"], 2, 0), strict=True))
    first = (
        pandas.DatetimeIndex(batch["input_end_date"]).tz_localize("UTC").tz_convert("Europe/Berlin")
    )
    hours = np.array([(first + pandas.Timedelta(hours=step)).hour for step in range(1, 25)]).T
    days = np.array([(first + pandas.Timedelta(hours=step)).day_of_week for step in range(1, 25)]).T

    assert len(windows) == len(local) - 47
    np.testing.assert_allclose(np.sin(2 * np.pi * hours / 24), named["hour_of_day_sin"], atol=1e-6)
    np.testing.assert_allclose(np.cos(2 * np.pi * days / 7), named["day_of_week_cos"], atol=1e-6)
    assert all(each.problem is None for each in headrace.verify(made.run.parents[1]).checks)


def test_times_in_parts_are_those_of_one_column(tmp_path: Path) -> None:
    hours = pl.datetime_range(datetime(2021, 12, 1), datetime(2022, 1, 31, 23), "1h", eager=True)
    values = pl.DataFrame({"date": hours, "load": RNG.random(len(hours))})
    values = values.with_columns(rain=pl.col("load") / 3)
    names = ("year", "month", "day", "hour")
    parts = values.select(
        *(getattr(pl.col("date").dt, name)().alias(name) for name in names), "load", "rain"
    )
    parts.write_csv(tmp_path / "parts.csv")
    one = run(values, tmp_path / "one")
    dialect = {"time_format": "%Y %m %d %H"}
    joined = run(tmp_path / "parts.csv", tmp_path / "joined", time=names, dialect=dialect)

    whole, other = (
        open_windows(run.out, "all", input_length=9, output_length=2).batch([0, 700])
        for run in (one, joined)
    )
    for name in ("X", "y", "input_end_date"):
        assert (whole[name] == other[name]).all()
