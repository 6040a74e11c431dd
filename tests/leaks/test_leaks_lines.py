"""Lines of `headrace leaks` name settings as flags."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from commands import headrace


def test_columns_that_are_not_compared_are_named_with_the_flag(tmp_path: Path) -> None:
    rows = pl.DataFrame(
        {"address": [f"https://shop.example/{n}" for n in range(3000)], "x": list(range(3000))}
    ).with_columns(x=pl.col("x") * 7919 % 2999 / 7, group=pl.col("x") % 50)
    rows.write_parquet(tmp_path / "rows.parquet")
    headrace("split", tmp_path / "rows.parquet", "--by", "group", "--out", tmp_path / "out")

    ended = headrace("leaks", tmp_path / "out")

    assert "not compared, as no two rows have the same value: address" in ended.stdout
    assert "--content" in ended.stdout
    assert "ufdee" not in ended.stdout
