"""What is wrong with a source that cannot be read at all is told by its first entities: file, row and value."""

from pathlib import Path

import polars as pl
import pytest
from series_sources import run_of, write_source

import headrace


def test_a_wrong_time_column_shows_the_columns_that_there_are(tmp_path: Path) -> None:
    source = write_source(tmp_path / "in", ["a", "b", "c", "d"], days=40)
    with pytest.raises(headrace.InputError) as raised:
        run_of(source, tmp_path / "out", time="day")

    told = str(raised.value)
    assert "no time axis in any of 4 entities" in told
    assert all(
        f"{name}: {source / name}.csv: column 'day': not in the file; choose one of date" in told
        for name in "abc"
    )
    assert "d.csv" not in told


def test_a_wrong_format_shows_row_and_value(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.csv").write_text("date,q,rain,warm\n01.02.2020,1,1,1\n02.02.2020,1,1,1\n")
    with pytest.raises(
        headrace.InputError, match=r"a\.csv: row 1, column 'date' is '01\.02\.2020': .*%d\.%m\.%Y"
    ):
        run_of(tmp_path / "in", tmp_path / "out")


def test_too_few_times_are_told(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.csv").write_text("date,q,rain,warm\n2020-02-01,1,1,1\n2020-02-02,1,1,1\n")
    with pytest.raises(
        headrace.InputError, match=r"a: a\.csv: 2 times do not show a step; three would"
    ):
        run_of(tmp_path / "in", tmp_path / "out")


def test_entities_that_pass_are_no_reason_why_none_trains(tmp_path: Path) -> None:
    source = write_source(tmp_path / "in", ["a", "b"], days=400)
    (source / "b.csv").write_text("date,q\n2020-01-01,1\n")
    unified = {"strategy": "unified", "pipeline": "StandardScaler", "fit_on_n_entities": 9}
    asked = {
        "test_entities": ["a"],
        "preprocessing_configs": {"features": unified, "target": unified},
    }
    with pytest.raises(headrace.InputError) as raised:
        run_of(source, tmp_path / "out", **asked, frequency="1d")

    assert "no entity of 2 is in train: b: " in str(raised.value)
    assert "column 'rain': not in the file" in str(raised.value)
    assert "None" not in str(raised.value)


def test_a_table_without_rows_is_told(tmp_path: Path) -> None:
    table = pl.DataFrame(
        schema={
            "id": pl.String,
            "date": pl.Date,
            "q": pl.Float64,
            "rain": pl.Float64,
            "warm": pl.Float64,
        }
    )
    with pytest.raises(
        headrace.InputError, match="no entity of 0 passes: the source has no rows; correct"
    ):
        run_of(table, tmp_path / "out", entity="id", frequency="1d")


def test_counted_steps_are_told_their_time_format(tmp_path: Path) -> None:
    table = pl.DataFrame({"id": ["a"] * 5, "date": range(5), "q": 1.0, "rain": 1.0, "warm": 1.0})
    with pytest.raises(
        headrace.InputError, match='no time axis in any of 1 entity: .*is 0: a number; .*"epoch_s"'
    ):
        run_of(table, tmp_path / "out", entity="id")


def test_a_comment_in_place_of_the_header_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("# measured by hand\ndate,q,rain,warm\n2020-02-01,1,1,1\n")
    with pytest.raises(
        headrace.InputError,
        match="choose one of # measured by hand; if that is a comment, .* such as dialect=.*skip_rows",
    ):
        run_of(tmp_path / "a.csv", tmp_path / "out")


def test_stamps_that_jitter_are_told_of_resample(tmp_path: Path) -> None:
    table = pl.DataFrame(
        {"id": ["a"] * 9, "date": [f"2020-01-0{n + 1}T00:0{n}" for n in range(9)], "q": 1.0}
    )
    with pytest.raises(
        headrace.InputError,
        match="8 times are between steps of 1d, .* or resample, such as nearest, to move",
    ):
        run_of(table, tmp_path / "out", entity="id", future_features=[], frequency="1d")
