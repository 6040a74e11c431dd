"""Tables at 80 columns: one that is too wide is turned, and nothing is lost or folded to slivers."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.text import Text
from typer.testing import CliRunner

from headrace.cli import app
from headrace.cli.output import fitting_tables, in_words


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    columns = {
        f"measured_value_{n}": pa.array([n / 10, n + 0.3, None], pa.float32()) for n in range(12)
    }
    pq.write_table(
        pa.table({**columns, "list": pa.array([[0.1], [], None], pa.list_(pa.float32()))}),
        tmp_path / "a.parquet",
    )
    return tmp_path / "a.parquet"


def test_a_wide_table_is_turned_and_floats_are_short(wide: Path, tmp_path: Path) -> None:
    asked = ["peek", str(wide), "--cache-dir", str(tmp_path / "cache")]
    shown = CliRunner().invoke(app, asked, env={"COLUMNS": "80"})
    record = CliRunner().invoke(app, [*asked, "--json"]).stdout

    assert all(len(line) <= 80 for line in shown.stdout.splitlines())
    assert all(f"measured_value_{n} " in shown.stdout for n in range(12))
    assert "0.1 " in shown.stdout
    assert '"measured_value_1": 0.1,' in record
    assert '"list": [0.1]' in record


def test_turned_or_not_every_value_is_in_the_tables() -> None:
    heads = [(f"name_{n}", "text") for n in range(9)]
    columns = [[Text(f"v{n}.{row}") for row in range(7)] for n in range(9)]
    for width in (40, 80, 200):
        made = list(fitting_tables("title", heads, columns, width))
        cells = [str(each) for table in made for column in table.columns for each in column.cells]

        assert {str(value) for column in columns for value in column} <= {*cells}
        assert (1 == len(made)) == (width == 200)


def test_a_list_of_many_numbers_is_cut(tmp_path: Path) -> None:
    tokens = pa.array([list(range(4096))], pa.list_(pa.int32()))
    pq.write_table(pa.table({"tokens": tokens}), tmp_path / "a.parquet")
    asked = ["peek", str(tmp_path / "a.parquet"), "--cache-dir", str(tmp_path / "cache")]
    record = CliRunner().invoke(app, [*asked, "--json"]).stdout

    assert "11, … 4,084 more]" in CliRunner().invoke(
        app, asked, env={"COLUMNS": "80"}
    ).stdout.replace("\n", " ")
    assert "4095]" in record


def test_facts_are_told_in_words() -> None:
    assert "none" == in_words({}) == in_words([])
    assert "a, b" == in_words(["a", "b"])
    assert "test 1,000, val None" == in_words({"test": 1000, "val": None})
    assert "content a, b; in_earlier_split test 0; are count" == in_words(
        {"content": ["a", "b"], "in_earlier_split": {"test": 0}, "are": "count"}
    )
