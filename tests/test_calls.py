"""Calls with arguments that are missing, misspelled or of another type end in a message that says what to give."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace
from headrace.checks import explains_calls
from headrace.errors import SettingsError

SPLIT: dict[str, Any] = {"source": "in", "time": "when", "split_date": "2024-01-01"}


@pytest.fixture
def dataset(tmp_path: Path) -> headrace.Dataset:
    pq.write_table(pa.table({"x": range(8)}), tmp_path / "a.parquet")
    return headrace.open(tmp_path / "a.parquet", cache_dir=tmp_path / "cache")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: headrace.prepare(), "prepare: recipe and out are missing; give recipe=, out="),
        (lambda: headrace.prepare(headrace.TemporalSplit(**SPLIT)), "prepare: out is missing; give out="),
        (lambda: headrace.prepare("in", "out"), "recipe is 'in'; give the settings of one"),
        (lambda: headrace.prepare({"source": "in"}, out="out"), "recipe is .*; give the settings of one"),
        (lambda: headrace.prepare(headrace.TemporalSplit(**SPLIT), out=5), "5 is not a path; give a text"),
        (lambda: headrace.prepare(headrace.TemporalSplit(**SPLIT), out="o", worker=2), "'worker' .* 'workers'?"),
        (lambda: headrace.prepare(headrace.TemporalSplit(**SPLIT), out="o", workers="2"), "workers is '2'; expected"),
        (lambda: headrace.TemporalSplit("in"), "TemporalSplit: 'in' is given without a name"),
        (lambda: headrace.verify(), "verify: path is missing; give path="),
        (lambda: headrace.verify(5), "5 is not a path"),
        (lambda: headrace.verify("run", workers="2"), "workers is '2'; expected an integer of 1 or more"),
        (lambda: headrace.open(), "headrace.open: path is missing"),
        (lambda: headrace.open(5), "path is 5; give a path, a list of paths, or a table"),
        (lambda: headrace.open("in", "train"), "headrace.open: only path can be given without a name"),
    ],
)
def test_a_call_that_does_not_fit_says_what_to_give(call: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        call()


@pytest.mark.parametrize(
    ("method", "given", "options", "message"),
    [
        ("stream", (), {}, "stream: batch_size is missing; give batch_size="),
        ("torch_dataset", (), {}, "torch_dataset: batch_size is missing; give batch_size="),
        ("stream", ("all", 4), {}, "stream: only split can be given without a name; give the others by name"),
        ("stream", (), {"batch_size": 4, "columns": 5}, "columns is 5; expected at least one column name"),
        ("map_dataset", (), {"batch_size": 4}, "map_dataset: 'batch_size' is not an argument; "),
        ("map_dataset", (), {"column": ["x"]}, "map_dataset: 'column' is not an argument; did you mean 'columns'?"),
    ],
)
def test_a_method_of_a_dataset_says_what_to_give(
    dataset: headrace.Dataset, method: str, given: tuple, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError) as raised:
        getattr(dataset, method)(*given, **options)

    assert str(raised.value).startswith(message)


def test_a_type_error_from_within_a_call_that_fits_is_not_explained_away() -> None:
    @explains_calls("add")
    def add(left: Any, right: Any) -> Any:
        return left + right

    with pytest.raises(TypeError, match="unsupported operand"):
        add(1, "a")
