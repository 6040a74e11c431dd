"""Windows of months and business days with finer ones: against one window at a time, by dates."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

import headrace
from headrace.windows import aligned, open_windows
from raised import raised

DAY, HOUR = np.timedelta64(1, "D"), np.timedelta64(1, "h")
HOLIDAYS = {"2021-04-02", "2021-04-05", "2021-05-31"}
ASKED = {
    "target": "flow",
    "min_train_years": 0,
    "train_end": "2022-01-01",
    "max_imputation_gap_size": 0,
}


def is_business(day: np.datetime64) -> bool:
    return (
        bool(np.is_busday(day.astype("datetime64[D]")))
        and str(day.astype("datetime64[D]")) not in HOLIDAYS
    )


def hourly() -> pl.DataFrame:
    """Two series by the hour; b begins on a Wednesday in the middle of a month, a day after a first business day."""
    tables = []
    for name, first in (("a", "2021-01-01"), ("b", "2021-02-17")):
        times = np.arange(np.datetime64(first, "h"), np.datetime64("2021-12-01"))
        flow = np.random.default_rng(len(tables)).random(len(times))
        tables.append(
            pl.DataFrame({"gauge": name, "date": times.astype("datetime64[us]"), "flow": flow})
        )
    return pl.concat(tables)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same series by the hour, day, business day with and without weekends, month and quarter."""
    folder, table = tmp_path_factory.mktemp("runs"), hourly()
    days = table.group_by("gauge", pl.col("date").dt.truncate("1d"), maintain_order=True).agg(
        pl.col("flow").sum()
    )
    open_days = [
        str(each)
        for each in np.arange("2021-01-01", "2021-12-01", dtype="datetime64[D]")
        if is_business(each)
    ]
    weekdays = days.filter(pl.col("date").dt.strftime("%Y-%m-%d").is_in(open_days))
    months = days.group_by("gauge", pl.col("date").dt.truncate("1mo"), maintain_order=True).agg(
        pl.col("flow").sum()
    )
    ends = months.with_columns(pl.col("date").dt.month_end())
    business = {"frequency": "1b", "business_days": open_days}
    for name, source, asked in (
        ("hours", table, {"frequency": "1h"}),
        ("days", days, {"frequency": "1d"}),
        ("weekdays", weekdays, business),
        ("joined_weekdays", days, {**business, "resample": "sum"}),
        ("months", months, {"frequency": "1mo"}),
        ("month_ends", ends, {"frequency": "1mo"}),
        ("quarters", days, {"frequency": "3mo", "resample": "sum"}),
        ("weeks", days, {"frequency": "7d", "resample": "sum"}),
    ):
        headrace.prepare(
            headrace.Series(source=source, entity="gauge", **ASKED, **asked), folder / name
        )
    return folder


def next_month(moment: np.datetime64, months: int = 1) -> np.datetime64:
    return (moment.astype("datetime64[M]") + months).astype("datetime64[us]")


def next_business(moment: np.datetime64) -> np.datetime64:
    return next(day for day in (moment + at * DAY for at in range(1, 9)) if is_business(day))


def rows_of(out: Path) -> dict[tuple[str, np.datetime64], float]:
    """The scaled flow of each entity and moment."""
    tables = [
        pl.read_parquet(path)
        for path in next((out / "runs").iterdir()).glob("processed_time_series/train/*")
    ]
    return {(e, np.datetime64(t, "us")): y for e, t, y in pl.concat(tables).iter_rows()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("coarse", "end_of", "fine", "last_of", "step"),
    [
        ("months", next_month, "days", lambda end: end - DAY, lambda t: t + DAY),
        ("months", next_month, "hours", lambda end: end - HOUR, lambda t: t + HOUR),
        ("month_ends", next_month, "days", lambda end: end - DAY, lambda t: t + DAY),
        ("quarters", lambda t: next_month(t, 3), "months", lambda end: next_month(end, -1), next_month),
        ("quarters", lambda t: next_month(t, 3), "month_ends", lambda end: end - DAY, lambda t: next_month(t, 2) - DAY),
        ("months", next_month, "weekdays", lambda end: next(d for d in (end - at * DAY for at in range(1, 9)) if is_business(d)), next_business),
        ("weekdays", next_business, "hours", lambda end: end - HOUR, lambda t: t + HOUR),
        ("joined_weekdays", next_business, "days", lambda end: end - DAY, lambda t: t + DAY),
        ("weeks", lambda t: t + 7 * DAY, "weekdays", lambda end: next(d for d in (end - at * DAY for at in range(1, 9)) if is_business(d)), next_business),
    ],
)  # fmt: skip
def test_they_are_all_windows_that_end_together(runs, coarse, end_of, fine, last_of, step) -> None:
    shape = {"input_length": 2, "output_length": 1, "is_autoregressive": True, "future": "none"}
    finer = {"input_length": 3, "output_length": 2, "is_autoregressive": True, "future": "none"}
    both = aligned(open_windows(runs / coarse, **shape), fine=open_windows(runs / fine, **finer))
    batch = both.batch(range(len(both)))
    whole, parts = rows_of(runs / coarse), rows_of(runs / fine)

    def before(moment: np.datetime64, entity: str, count: int) -> list[np.datetime64]:
        earlier = sorted(t for e, t in parts if e == entity and t <= moment)
        return earlier[-count:]

    expected = []
    for entity in ("a", "b"):
        own = sorted(t for e, t in whole if e == entity)
        for first, second, third in zip(own, own[1:], own[2:], strict=False):
            last = last_of(end_of(second))
            inputs = before(last, entity, 3)
            horizon = [step(last), step(step(last))]
            if (
                len(inputs) == 3
                and inputs[-1] == last
                and all((entity, each) in parts for each in horizon)
            ):
                values = [whole[entity, t] for t in (first, second, third)]
                expected.append(
                    (entity, second, last, values, [parts[entity, t] for t in (*inputs, *horizon)])
                )

    assert len(expected) >= 2
    assert [each[0] for each in expected] == both.entity_names(batch["entity"])
    np.testing.assert_array_equal([each[1] for each in expected], batch["input_end_date"])
    np.testing.assert_array_equal([each[2] for each in expected], batch["input_end_date_fine"])
    np.testing.assert_array_equal(
        np.float32([each[3][:2] for each in expected]), batch["X"][:, :, 0]
    )
    np.testing.assert_array_equal(np.float32([each[3][2:] for each in expected]), batch["y"])
    np.testing.assert_array_equal(
        np.float32([each[4][:3] for each in expected]), batch["X_fine"][:, :, 0]
    )
    np.testing.assert_array_equal(np.float32([each[4][3:] for each in expected]), batch["y_fine"])


def test_a_business_day_that_holds_the_weekend_ends_no_month_within_it(runs: Path) -> None:
    """31 July and 31 October 2021 are no business days, so the last ones of these months hold rows of the next."""
    own = {
        "input_length": 1,
        "output_length": 1,
        "targets": "none",
        "is_autoregressive": True,
        "future": "none",
    }
    months = open_windows(runs / "months", **own)
    apart = aligned(months, days=open_windows(runs / "weekdays", **own))
    joined = aligned(months, days=open_windows(runs / "joined_weekdays", **own))
    begins = {
        str(next_month(each)[()].astype("datetime64[D]"))
        for each in joined.batch(range(len(joined)))["input_end_date"]
    }

    assert len(joined) < len(apart)
    assert begins == {day for day in begins if is_business(np.datetime64(day))}


@pytest.mark.parametrize(
    ("coarse", "fine"),
    [("months", "weeks"), ("weekdays", "months"), ("days", "weekdays"), ("months", "quarters")],
)
def test_steps_that_make_up_no_other_are_refused(runs: Path, coarse: str, fine: str) -> None:
    own = {
        "input_length": 1,
        "output_length": 1,
        "targets": "none",
        "is_autoregressive": True,
        "future": "none",
    }

    with raised(headrace.SettingsError, setting="fine", remedy="give finer ones"):
        aligned(open_windows(runs / coarse, **own), fine=open_windows(runs / fine, **own))


FINER = {"input_length": 48, "output_length": 24, "is_autoregressive": True, "future": "none"}


def module_of(runs: Path, **more):
    pytest.importorskip("lightning", reason="needs lightning")
    from headrace.lightning import SeriesDataModule

    own = {"future": "none"}
    return SeriesDataModule(
        runs / "weekdays", input_length=5, output_length=1, batch_size=16, is_autoregressive=True, options=own,
        validation="none", **more,
    )  # fmt: skip


def test_a_data_module_serves_them_in_training_in_chunks_and_in_prediction(runs: Path) -> None:
    own = {"input_length": 5, "output_length": 1, "is_autoregressive": True, "future": "none"}
    expected = aligned(
        open_windows(runs / "weekdays", **own), hourly=open_windows(runs / "hours", **FINER)
    )
    module = module_of(runs, finer={"hourly": {"source": runs / "hours", **FINER}}, chunk_size=1)
    module.prepare_data()
    module.setup("fit")
    loader, found = module.train_dataloader(), []
    for epoch in range(2):
        loader.stream.set_epoch(epoch)
        found += [
            (*map(bytes, each),)
            for batch in loader
            for each in zip(
                *(
                    batch[n].numpy()[batch["valid"].numpy()]
                    for n in ("X", "y", "X_hourly", "y_hourly")
                ),
                strict=True,
            )
        ]
    whole = expected.batch(range(len(expected)))
    unscaled = module.inverse_transform(whole["y_hourly"], whole["entity_hourly"], finer="hourly")
    raw = hourly().filter(pl.col("gauge") == "a")["flow"].to_numpy()
    first = int((whole["input_end_date_hourly"][0] - np.datetime64("2021-01-01")) / HOUR)

    assert module.windows("train").counts.windows == len(expected)
    assert sorted(
        (*map(bytes, each),)
        for each in zip(*(whole[n] for n in ("X", "y", "X_hourly", "y_hourly")), strict=True)
    ) == sorted(found)
    np.testing.assert_allclose(raw[first + 1 : first + 25], unscaled[0], atol=1e-6)


def test_a_finer_run_without_a_source_is_refused(runs: Path) -> None:
    with raised(
        headrace.SettingsError,
        setting="finer",
        remedy="give a mapping with source, input_length and",
    ):
        module_of(runs, finer={"hourly": {"input_length": 2, "output_length": 1}})
    with pytest.raises(headrace.SettingsError, match="input_lenght"):
        module_of(
            runs,
            finer={"hourly": {"source": runs / "hours", "input_lenght": 2, "output_length": 1}},
        )
