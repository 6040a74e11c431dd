"""The recipe keeps what every recipe promises, and its own law."""

import polars as pl
import pytest
from every_nth.settings import EveryNth

import headrace
from headrace.errors import SettingsError
from headrace.testing import check_recipe


def test_it_keeps_the_promises_of_recipes(tmp_path):
    (tmp_path / "raw").mkdir()
    for shard in range(3):
        frame = pl.DataFrame({"n": range(100), "t": [f"{shard}-{n}" for n in range(100)]})
        frame.write_csv(tmp_path / f"raw/part.{shard}.csv")
    (tmp_path / "raw/part.empty.csv").touch()

    check_recipe(EveryNth(source=tmp_path / "raw", step=7), tmp_path / "runs")


def test_a_column_that_is_not_there_is_a_wrong_setting(tmp_path):
    pl.DataFrame({"n": range(100)}).write_csv(tmp_path / "raw.csv")

    with pytest.raises(SettingsError) as caught:
        headrace.prepare(EveryNth(source=tmp_path / "raw.csv", columns=["m"]), tmp_path / "out")
    assert (caught.value.setting, caught.value.value) == ("columns", "m")
