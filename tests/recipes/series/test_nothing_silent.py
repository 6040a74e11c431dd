"""What a run leaves out, fills or cannot hold is an error, or counted and told."""

from pathlib import Path

import polars as pl
import pytest
from series_sources import frame_of, run_of, series, write_source

from headrace.errors import InputError
from headrace.run.prepare import Prepared, prepare

AS_IS = {"features": {"strategy": "per_group", "pipeline": []}}


def heard(source: Path, out: Path, **settings) -> tuple[Prepared, list[str]]:
    events: list = []
    prepared = prepare(series(source, **settings), out, workers=1, on_event=events.append)
    return prepared, [each.text for each in events if type(each).__name__ == "Note"]


@pytest.mark.parametrize(("row", "configs"), [(500, AS_IS), (850, AS_IS), (850, {})])
def test_a_value_that_float32_cannot_hold_is_an_error_and_never_infinite(tmp_path: Path, row: int, configs) -> None:
    (tmp_path / "raw").mkdir()
    huge = pl.when(pl.int_range(pl.len()) == row).then(1e39).otherwise(pl.col("rain"))
    frame_of("a").with_columns(rain=huge).write_csv(tmp_path / "raw/a.csv")

    with pytest.raises(
        InputError, match=r"entity 'a', column 'rain': 1e\+39 has no finite value behind .* as float32; .*name it"
    ):
        run_of(tmp_path / "raw", tmp_path / "out", preprocessing_configs=configs)


def test_an_entity_may_be_called_na(tmp_path: Path) -> None:
    """Namibia has floods too."""
    write_source(tmp_path / "raw", ["NA", "b"])
    (tmp_path / "static.csv").write_text("id,area\nNA,1\nb,2\n,3\n")
    static = {"static": tmp_path / "static.csv", "static_entity": "id", "static_features": "area"}
    assert 2 == run_of(tmp_path / "raw", tmp_path / "out", **static).manifest.facts["entities"]["passed"]

    (tmp_path / "long").mkdir()
    pl.concat([frame_of(each).with_columns(id=pl.lit(each)) for each in ("b", "NA")]).write_csv(tmp_path / "long/a.csv")
    with pytest.raises(InputError, match="row 901: id is 'NA', which null_values names: leave it out there, or"):
        run_of(tmp_path / "long", tmp_path / "out", entity="id")
    told = run_of(tmp_path / "long", tmp_path / "out", entity="id", null_values=()).manifest
    assert 2 == told.facts["entities"]["passed"]


def test_files_that_are_not_read_are_named(tmp_path: Path) -> None:
    source = write_source(tmp_path / "raw", ["a", "b"])
    frame_of("c").write_csv(source / "c.txt")
    frame_of("d").write_csv(source / "README.md")
    write_source(source / "more", ["e"])

    prepared, notes = heard(source, tmp_path / "out")

    assert 2 == prepared.manifest.facts["entities"]["original"]
    assert [f"2 files or directories of the source are not read: {source}/c.txt, {source}/more"] == notes


def test_static_features_that_are_made_up_are_counted(tmp_path: Path) -> None:
    source = write_source(tmp_path / "raw", ["a", "b", "c"])
    (tmp_path / "static.csv").write_text("id,area,slope\na,NaN,1\nb,2,2\nc,4,NA\n")
    static = {"static": tmp_path / "static.csv", "static_entity": "id", "static_features": ["area", "slope"]}

    prepared, notes = heard(source, tmp_path / "out", **static, missing_static="mean")

    assert {"area": 1, "slope": 1} == prepared.manifest.facts["filled_statics"]
    assert "static feature area: 1 entities lack it and get the mean" in notes
