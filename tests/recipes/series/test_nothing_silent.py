"""What a run leaves out, fills or cannot hold is an error, or counted and told."""

from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
import pytest
from series_sources import frame_of, run_of, series, write_source

import headrace
from headrace.errors import InputError
from headrace.run.prepare import Prepared, prepare
from headrace.windows import open_windows
from raised import raised

AS_IS = {"features": {"strategy": "per_group", "pipeline": []}}


def heard(source: Path, out: Path, **settings) -> tuple[Prepared, list[str]]:
    events: list = []
    prepared = prepare(series(source, **settings), out, workers=1, on_event=events.append)
    return prepared, [each.text for each in events if type(each).__name__ == "Note"]


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize(
    ("row", "value", "configs"),
    [(500, 1e39, AS_IS), (850, 1e39, AS_IS), (850, 1e39, {}), (100, 1e160, {}), (100, 1e300, {})],
)
def test_a_value_that_float32_cannot_hold_is_an_error_and_never_infinite(
    tmp_path: Path, row: int, value: float, configs
) -> None:
    (tmp_path / "raw").mkdir()
    huge = pl.when(pl.int_range(pl.len()) == row).then(value).otherwise(pl.col("rain"))
    frame_of("a").with_columns(rain=huge).write_csv(tmp_path / "raw/a.csv")

    names_it = "correct the data or name it in null_values"
    with raised(InputError, column="rain", value=value, remedy=names_it):
        run_of(tmp_path / "raw", tmp_path / "out", preprocessing_configs=configs)


def test_an_entity_may_be_called_na(tmp_path: Path) -> None:
    """Namibia has floods too."""
    write_source(tmp_path / "raw", ["NA", "b"])
    (tmp_path / "static.csv").write_text("id,area\nNA,1\nb,2\n,3\n")
    static = {"static": tmp_path / "static.csv", "static_entity": "id", "static_features": "area"}
    assert (
        2
        == run_of(tmp_path / "raw", tmp_path / "out", **static).manifest.metadata["entities"][
            "passed"
        ]
    )

    (tmp_path / "long").mkdir()
    pl.concat([frame_of(each).with_columns(id=pl.lit(each)) for each in ("b", "NA")]).write_csv(
        tmp_path / "long/a.csv"
    )
    assert (
        2
        == run_of(tmp_path / "long", tmp_path / "out", entity="id").manifest.metadata["entities"][
            "passed"
        ]
    )


def test_a_row_without_an_entity_is_told(tmp_path: Path) -> None:
    (tmp_path / "long").mkdir()
    pl.concat([frame_of(each).with_columns(id=pl.lit(each)) for each in ("b", "")]).write_csv(
        tmp_path / "long/a.csv"
    )

    with raised(InputError, column="id", row=901):
        run_of(tmp_path / "long", tmp_path / "out", entity="id")


@pytest.mark.parametrize("of", [pl.String, pl.Int64])
def test_entities_may_be_categories(tmp_path: Path, of: type[pl.DataType]) -> None:
    plain = pl.concat([frame_of(each).with_columns(id=pl.lit(each)) for each in ("7", "12")])
    (tmp_path / "plain").mkdir()
    (tmp_path / "coded").mkdir()
    plain.write_parquet(tmp_path / "plain/a.parquet")
    table = plain.with_columns(pl.col("id").cast(of)).to_arrow()
    coded = table.set_column(
        table.schema.get_field_index("id"), "id", table["id"].dictionary_encode()
    )
    pq.write_table(coded, tmp_path / "coded/a.parquet")

    texts, categories = (
        run_of(tmp_path / each, tmp_path / f"out_{each}", entity="id").run / "entities.parquet"
        for each in ("plain", "coded")
    )
    assert texts.read_bytes() == categories.read_bytes()


def test_columns_are_in_the_order_given_and_a_trained_model_is_not_given_another(
    tmp_path: Path,
) -> None:
    """Sorted by name, the first output of a model for two targets was the second target."""
    source = write_source(tmp_path / "raw", ["a"])
    asked = {"target": ["warm", "rain"], "future_features": ["q"]}
    first = run_of(source, tmp_path / "out", target="q", future_features=["warm", "rain"])
    both = run_of(source, tmp_path / "both", **asked)
    windows = open_windows(both.out, "train", input_length=9, output_length=2)

    assert ["q", "warm", "rain"] == first.manifest.metadata["columns"]
    assert ("warm", "rain") == windows.target_names
    with raised(headrace.SettingsError, setting="pipelines_from"):
        _ = headrace.Series(
            source=source, pipelines_from=first.run, future_features=["rain", "warm"]
        ).reused


def test_the_manifest_says_on_how_many_entities_a_pipeline_was_fitted(tmp_path: Path) -> None:
    source = write_source(tmp_path / "raw", ["a", "b", "c"])
    unified = {"strategy": "unified", "pipeline": ["StandardScaler"]}
    asked = {
        "features": [
            {**unified, "columns": ["rain"], "fit_on_n_entities": 2},
            {**unified, "columns": ["warm"], "fit_on_n_entities": 100},
        ]
    }
    metadata = run_of(source, tmp_path / "out", preprocessing_configs=asked).manifest.metadata
    expected = [{"columns": ["rain"], "entities": 2}, {"columns": ["warm"], "entities": 3}]

    assert expected == metadata["fit_on_n_entities"]
    assert "fit_on_n_entities" not in run_of(source, tmp_path / "grouped").manifest.metadata


def test_files_that_are_not_read_are_named(tmp_path: Path) -> None:
    source = write_source(tmp_path / "raw", ["a", "b"])
    frame_of("c").write_csv(source / "c.txt")
    frame_of("d").write_csv(source / "README.md")
    write_source(source / "more", ["e"])

    prepared, notes = heard(source, tmp_path / "out")

    assert 2 == prepared.manifest.metadata["entities"]["original"]
    assert [
        f"2 files or directories of the source are not read: {source}/c.txt, {source}/more"
    ] == notes
