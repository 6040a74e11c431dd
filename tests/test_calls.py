"""Arguments of a type that cannot be meant end in an error that names the argument."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace
from headrace.errors import SettingsError

SPLIT: dict[str, Any] = {"source": "in", "time": "when", "split_date": "2024-01-01"}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: headrace.prepare("in", "out"), "recipe is 'in'; give the settings of one"),
        (
            lambda: headrace.prepare({"source": "in"}, out="out"),
            "recipe is .*; give the settings of one",
        ),
        (
            lambda: headrace.prepare(headrace.TemporalSplit(**SPLIT), out=5),
            "5 is not a path; give a text",
        ),
        (
            lambda: headrace.prepare(headrace.TemporalSplit(**SPLIT), out="o", workers="2"),
            "workers is '2'",
        ),
        (lambda: headrace.TemporalSplit("in"), "TemporalSplit: 'in' is given without a name"),
        (lambda: headrace.verify(5), "5 is not a path"),
        (lambda: headrace.verify("run", workers="2"), "workers is '2'"),
        (lambda: headrace.open(5), "path is 5; give a path, a list of paths, or a table"),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused(call: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        call()


def test_columns_of_a_stream_are_names(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": range(8)}), tmp_path / "a.parquet")
    dataset = headrace.open(tmp_path / "a.parquet", cache_dir=tmp_path / "cache")

    with pytest.raises(SettingsError, match="columns is 5"):
        dataset.stream("all", batch_size=4, columns=5)
