"""The recipe keeps what every recipe promises, and its own law."""

import polars as pl
from every_nth.settings import EveryNth

from headrace.testing import check_recipe


def test_it_keeps_the_promises_of_recipes(tmp_path):
    (tmp_path / "raw").mkdir()
    for shard in range(3):
        frame = pl.DataFrame({"n": range(100), "t": [f"{shard}-{n}" for n in range(100)]})
        frame.write_csv(tmp_path / f"raw/part-{shard}.csv")

    check_recipe(EveryNth(source=tmp_path / "raw", step=7), tmp_path / "runs")
