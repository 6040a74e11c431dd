"""Reports and certificates say which numbers and which times were not looked at."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import headrace
from commands import headrace as command

CUTOFF = "2024-07-01"


def prepare(root: Path, day: pl.Expr, **settings: object) -> Path:
    """Split rows at ten o'clock that hold a daily total of this day."""
    rng = np.random.default_rng(0)
    when = [datetime(2024, 1, 1, 10) + timedelta(days=n % 360) for n in range(1_440)]
    rows = pl.DataFrame({"when": when, "who": [f"c{n % 97}" for n in range(1_440)]}).with_columns(
        day.alias("day"),
        total=pl.Series(rng.normal(100, 20, 1_440)),
        visits=pl.Series(rng.integers(0, 500, 1_440)),
        remark=pl.Series([f"remark {n % 700} of a visit" for n in range(1_440)]),
    )
    rows.write_parquet(root / "rows.parquet")
    split = headrace.TemporalSplit(
        source=root / "rows.parquet", time="when", entity="who", split_date=CUTOFF, **settings
    )
    headrace.prepare(split, root / "out")
    return root / "out"


TODAY = pl.col("when").dt.date()
MIDNIGHT = pl.col("when").dt.truncate("1d")
NUMBER = pl.col("when").dt.strftime("%Y%m%d").cast(pl.Int64)
TEXT = pl.col("when").dt.strftime("%Y-%m-%d")


@pytest.mark.parametrize("day", [TODAY, MIDNIGHT, NUMBER, TEXT], ids=["date", "us", "int", "text"])
def test_totals_of_the_same_day_that_nobody_declared_are_named(
    tmp_path: Path, day: pl.Expr
) -> None:
    out = prepare(tmp_path, day)
    report = headrace.find_leaks(headrace.open(out))
    ended = command("leaks", out)

    late = {value.split: (value.column, value.fraction) for value in report.late_values}
    assert dict.fromkeys(report.rows, ("day", 1.0)) == late
    assert "hold a day that is not before the row" in ended.stdout.replace("\n", " ")
    assert any("known_at" in sentence for sentence in headrace.certify(out)["not_proved"])


def test_totals_of_the_day_before_are_not_named(tmp_path: Path) -> None:
    out = prepare(tmp_path, TODAY - pl.duration(days=1))

    assert () == headrace.find_leaks(headrace.open(out)).late_values


def test_what_known_at_proved_is_not_named(tmp_path: Path) -> None:
    """A total that is known from midnight on is a midnight of the row's day."""
    out = prepare(tmp_path, MIDNIGHT, known_at=["day"])

    assert () == headrace.find_leaks(headrace.open(out)).late_values


def test_numbers_whose_units_were_not_looked_at_are_named(tmp_path: Path) -> None:
    out = prepare(tmp_path, TODAY)
    report = headrace.find_leaks(headrace.open(out))
    ended = command("leaks", out)

    assert ("day", "total", "visits") == report.numbers
    assert None is report.other_units
    assert "other units not looked at: day, total, visits" in ended.stdout
    (sentence,) = [
        each for each in headrace.certify(out)["not_proved"] if "other units were not" in each
    ]
    assert "total, visits" in sentence


def test_a_split_in_other_units_fails_the_command(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    rows = pl.DataFrame(
        {
            "place": [f"place {n}" for n in range(900)],
            "degrees": rng.normal(12, 8, 900).round(1),
            "price": rng.lognormal(3, 1, 900),
        }
    )
    for split in ("train", "test"):
        (tmp_path / split).mkdir()
    rows.write_parquet(tmp_path / "train" / "a.parquet")
    rows[300:600].with_columns(
        degrees=(1.8 * pl.col("degrees") + 32).round(1), price=100 * pl.col("price")
    ).write_parquet(tmp_path / "test" / "a.parquet")

    ended = command("leaks", tmp_path)
    units = headrace.find_leaks(headrace.open(tmp_path)).other_units

    assert units is not None
    assert 300 == units.rows
    scales = {one.column: (one.scale, one.offset) for one in units.conversions}
    assert (1.8, 32) == pytest.approx(scales["degrees"], rel=0.01)
    assert (100, 0) == pytest.approx(scales["price"], rel=1e-6, abs=1e-3)
    assert 1 == ended.returncode
    assert "300 rows of test are in train in other units" in ended.stdout


def test_a_table_whose_values_drift_is_not_in_other_units(tmp_path: Path) -> None:
    """Prices rise by half in the test years, and rows of the same shops and weekdays pair up."""
    rng = np.random.default_rng(2)
    for split, factor in (("train", 1.0), ("test", 1.5)):
        (tmp_path / split).mkdir()
        pl.DataFrame(
            {
                "shop": [n // 7 for n in range(700)],
                "weekday": [n % 7 for n in range(700)],
                "sales": factor * rng.lognormal(5, 1, 700),
            }
        ).write_parquet(tmp_path / split / "a.parquet")
    report = headrace.find_leaks(headrace.open(tmp_path))

    assert (None, 0) == (report.other_units, report.worst)
