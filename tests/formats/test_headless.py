"""Text without a header is told: a line of data must not become the names of columns in silence."""

from pathlib import Path

import polars as pl
import pytest

import headrace
from headrace.errors import InputError
from headrace.formats.header import hint, value_among_names
from raised import raised

ROWS = "1,2024-01-01,3.5\n2,2024-02-01,4.5\n3,2025-02-01,5.5\n"


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/a.csv").write_text(ROWS)
    return tmp_path / "raw"


@pytest.mark.parametrize(("names", "value"), [(["1", "2024-01-01", "3.5"], "2024-01-01"), (["7", "id", "3.5"], "7"), (["1e5"], "1e5"), (["0", "1", "2"], None), (["2020", "2021"], None), (["0.5", "1.5", "2.5"], None), (["id", "x"], None), (["5.1", "3.5", "1.4", "0.2"], "5.1"), ([], None)])  # fmt: skip
def test_names_that_are_values_are_told_apart(names: list[str], value: str | None) -> None:
    contents = {name: "time" if "-" in name else "number" for name in names}

    assert value == value_among_names(contents)
    assert bool(hint(names)) == any(not name.isidentifier() for name in names)


def test_opening_such_a_file_warns(raw: Path, tmp_path: Path) -> None:
    for _ in ("built", "from the cache"):
        with pytest.warns(UserWarning, match=r"a\.csv: its first line was read as column names, but .* looks like data; write a line"):  # fmt: skip
            headrace.open(raw, cache_dir=tmp_path / "cache")
    (raw / "a.csv").write_text("id,at,x\n" + ROWS)

    assert 3 == headrace.open(raw, cache_dir=tmp_path / "cache").split_index().total_rows


def test_other_formats_name_their_columns_as_they_like(tmp_path: Path) -> None:
    pl.DataFrame({"1": [1], "2024-01-01": [2]}).write_parquet(tmp_path / "a.parquet")

    assert 1 == headrace.open(tmp_path, cache_dir=tmp_path / "cache").split_index().total_rows


def test_recipes_say_how_to_name_columns(raw: Path, tmp_path: Path) -> None:
    split = {"source": raw, "time": "time", "entity": "id", "split_date": "2025-01-01"}
    for recipe, advice in (
        (headrace.TemporalSplit(**split), "name its columns in a file, signature="),
        (headrace.Histories(source=raw), "write a line of names"),
        (
            headrace.Series(source=[raw], target="x", future_features=["y"], frequency="1d"),
            "write a line of names",
        ),
    ):
        with pytest.raises(
            InputError, match=f"(has no column|not in the file).* the file has no header: {advice}"
        ):
            headrace.prepare(recipe, tmp_path / "out")

    (tmp_path / "names").write_text("id,time,x\n")
    run = headrace.prepare(
        headrace.TemporalSplit(**split, signature=tmp_path / "names"), tmp_path / "out"
    )
    assert 3 == sum(each.rows for each in run.manifest.splits.values()) + sum(
        run.manifest.dropped.values()
    )


def test_files_that_differ_by_their_first_rows_are_told(raw: Path) -> None:
    (raw / "b.csv").write_text("9,2024-01-01,3.5\n")
    with pytest.raises(
        InputError, match=r"lacks 1; adds 9, .* if '1' is data, the file has no header"
    ):
        headrace.open(raw)
    (raw / "b.csv").unlink()
    (raw / "a.csv").write_text("1,1,2024-01-01\n")
    with raised(InputError, column="1", remedy="if '1' is data"):
        headrace.open(raw)


def test_a_random_split_warns(tmp_path: Path) -> None:
    rows = "".join(f"{n}.5,{n * 7 % 9}.25,virginica\n" for n in range(60))
    (tmp_path / "a.csv").write_text(f"5.1,3.5,setosa\n{rows}")
    told: list[str] = []
    headrace.prepare(
        headrace.RandomSplit(source=tmp_path / "a.csv"),
        tmp_path / "out",
        on_event=lambda event: told.append(getattr(event, "marked", "")),
    )

    assert any("'5.1' looks like data" in line for line in told)
