"""A scaler that saw other rows than train's is found, and so is the target among the features."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from series_sources import frame_of, run_of, series, write_source

from headrace.dataset.open import FinishedRun, find_run
from headrace.run.prepare import prepare
from headrace.series import batches, statics
from headrace.series.clean import Gaps
from headrace.series.leaks import leak_checks

ENTITIES = ["a", "b", "c", "d", "e"]
UNIFIED = {"strategy": "unified", "pipeline": ["RobustScaler"], "fit_on_n_entities": 3}
LOGGED = {"strategy": "per_group", "pipeline": [{"step": "Log", "offset": 0.1}, "StandardScaler"]}
RANKS = {"strategy": "per_group", "pipeline": [{"step": "QuantileTransformer", "n_quantiles": 50}]}


def checks_of(out: Path):
    return {check.name: check for check in leak_checks(FinishedRun(*find_run(out)))}


@pytest.mark.parametrize(
    "configs",
    [
        {},
        {"features": UNIFIED, "target": LOGGED},
        {
            "features": [
                {**UNIFIED, "columns": ["rain"]},
                {**LOGGED, "pipeline": [], "columns": ["warm"]},
            ]
        },
        {"features": {**RANKS}, "target": {**UNIFIED, "pipeline": [{"step": "PowerTransformer"}]}},
    ],
)
def test_an_honest_run_has_no_leak(tmp_path: Path, configs: dict) -> None:
    run_of(
        write_source(tmp_path / "raw", ENTITIES), tmp_path / "out", preprocessing_configs=configs
    )

    checks = checks_of(tmp_path / "out")

    assert [check.problem for check in checks.values()] == [None] * 3
    assert "5 entities prepared again" in checks["later rows change nothing"].detail
    assert checks["no feature is the target"].detail == "none is"


@pytest.mark.parametrize(
    "settings",
    [
        {"layout": "packed"},
        {"train_ratio": 0.8, "val_ratio": 0.0},
        {"train_ratio": 1.0, "val_ratio": 0.0},
        {"future_features": ["rain"], "preprocessing_configs": {"features": {"strategy": "per_group", "pipeline": [{"step": "FunctionTransformer", "func": "square"}]}}},
    ],
)  # fmt: skip
def test_an_honest_run_of_another_shape_has_no_leak(tmp_path: Path, settings: dict) -> None:
    run_of(write_source(tmp_path / "raw", ENTITIES[:3]), tmp_path / "out", **settings)

    assert [check.problem for check in checks_of(tmp_path / "out").values()] == [None] * 3


def test_scalers_fitted_on_all_rows_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def all_rows(entities, values):
        parts = [values[each.first_row : each.first_row + each.rows] for each in entities]
        return np.concatenate(parts), np.cumsum([0, *map(len, parts)], dtype=np.int64)

    monkeypatch.setattr(batches, "train_rows", all_rows)
    run_of(write_source(tmp_path / "raw", ENTITIES), tmp_path / "out")

    checks = checks_of(tmp_path / "out")

    assert "other rows reached its fit" in checks["scalers are of train rows"].problem
    assert "changed with later rows" in checks["later rows change nothing"].problem


def test_a_unified_scaler_fitted_on_all_rows_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.series import recipe

    def all_rows(entities, values):
        parts = [values[each.first_row : each.first_row + each.rows] for each in entities]
        return np.concatenate(parts), np.cumsum([0, *map(len, parts)], dtype=np.int64)

    monkeypatch.setattr(recipe, "train_rows", all_rows)
    run_of(
        write_source(tmp_path / "raw", ENTITIES),
        tmp_path / "out",
        preprocessing_configs={"target": {**UNIFIED, "pipeline": ["StandardScaler"]}},
    )

    checks = checks_of(tmp_path / "out")

    assert "column 'q'" in checks["scalers are of train rows"].problem
    assert "the scaler for all entities changed" in checks["later rows change nothing"].problem


def test_t11_static_features_of_entities_that_left_do_not_reach_the_scaler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_source(tmp_path / "raw", ["a", "b", "c"])
    write_source(tmp_path / "short", ["z"], days=40)
    (tmp_path / "short/z.csv").rename(source / "z.csv")
    pl.DataFrame({"id": ["a", "b", "c", "z"], "area": [1.0, 2.0, 6.0, 1e6]}).write_csv(
        tmp_path / "static.csv"
    )
    settings = {"static": tmp_path / "static.csv", "static_entity": "id", "static_features": "area"}

    honest = run_of(source, tmp_path / "out", **settings)
    (part,) = json.loads((honest.run / "fitted_pipelines.json").read_bytes())["static_features"]

    assert part["steps"][0]["fitted"]["mean"] == [[3.0]]
    assert checks_of(tmp_path / "out")["scalers are of train rows"].problem is None

    real = statics.fit

    def fit_with_stranger(pipelines, columns, matrix, offsets, entities, *, strategy):
        if list(columns) == ["area"]:
            matrix = np.append(matrix, [[1e6]], axis=0)
        return real(pipelines, columns, matrix, offsets, entities, strategy=strategy)

    monkeypatch.setattr(statics, "fit", fit_with_stranger)
    run_of(source, tmp_path / "leaky", **settings)

    assert "column 'area'" in checks_of(tmp_path / "leaky")["scalers are of train rows"].problem


def test_a_feature_that_is_the_target_in_another_unit_is_told(tmp_path: Path) -> None:
    source = tmp_path / "raw"
    source.mkdir()
    for number, entity in enumerate(["a", "b", "c"]):  # another area in every basin
        frame_of(entity).with_columns(q_cfs=pl.col("q") * (number + 2) * 35.3 + 1).write_csv(
            source / f"{entity}.csv"
        )
    heard = []
    prepared = prepare(
        series(source, future_features=["rain", "warm", "q_cfs"]),
        tmp_path / "out",
        workers=1,
        on_event=heard.append,
    )

    told = [event.text for event in heard if type(event).__name__ == "Note"]
    summary = json.loads((prepared.run / "quality_summary.json").read_bytes())

    assert any("looks like q in another unit: q_cfs in 3 of 3 entities" in text for text in told)
    assert summary["features_like_the_target"] == {"q_cfs": [3, 3]}
    assert prepared.manifest.metadata["near_target"] == {"q_cfs": [3, 3]}
    assert (
        "warning: looks like q in another unit"
        in checks_of(tmp_path / "out")["no feature is the target"].detail
    )


def test_a_source_that_is_gone_or_another_is_said(tmp_path: Path) -> None:
    source = write_source(tmp_path / "raw", ["a", "b"])
    run_of(source, tmp_path / "out")
    frame_of("a", seed=9).write_csv(source / "a.csv")

    assert (
        checks_of(tmp_path / "out")["later rows change nothing"].detail
        == "not checked, the source has changed"
    )
    for path in source.iterdir():
        path.unlink()
    assert (
        "the source cannot be read"
        in checks_of(tmp_path / "out")["later rows change nothing"].detail
    )


def test_long_tables_are_checked_alike(tmp_path: Path) -> None:
    table = pl.concat([frame_of(entity).with_columns(id=pl.lit(entity)) for entity in ENTITIES])
    (tmp_path / "raw").mkdir()
    table.sample(fraction=1.0, shuffle=True, seed=1).write_csv(tmp_path / "raw/all.csv")
    run_of(tmp_path / "raw", tmp_path / "out", entity="id")

    checks = checks_of(tmp_path / "out")

    assert [check.problem for check in checks.values()] == [None] * 3
    assert "5 entities prepared again" in checks["later rows change nothing"].detail


def test_gaps_that_are_judged_by_later_rows_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "raw"
    source.mkdir()
    for entity in ENTITIES[:2]:
        values = frame_of(entity).with_row_index("row")
        observed = values.filter(pl.col("q").is_not_null())["row"].to_list()
        cut = observed[int(len(observed) * 0.6 + 1e-9) - 1] + 1
        short = values.with_columns(
            warm=pl.when(pl.col("row").is_between(cut - 2, cut)).then(None).otherwise(20.0)
        )
        short.drop("row").write_csv(source / f"{entity}.csv")
    run_of(source, tmp_path / "honest")
    honest = checks_of(tmp_path / "honest")
    monkeypatch.setattr(Gaps, "on_one_side", lambda gaps, _: np.ones(len(gaps.start), bool))
    run_of(source, tmp_path / "out")

    assert [None] * 3 == [check.problem for check in honest.values()]
    assert "has other rows before a cut with the rows from its step" in checks_of(tmp_path / "out")["later rows change nothing"].problem  # fmt: skip


def test_rows_between_steps_and_without_a_time_are_no_leak(tmp_path: Path) -> None:
    """Later rows may decide the axis: half of the rows before the cut are beside it, and none behind."""
    source = tmp_path / "raw"
    source.mkdir()
    row = pl.int_range(pl.len())
    noon = pl.when((row < 400) & (row % 2 == 0)).then(pl.col("date") + "T12:00:00").otherwise(pl.col("date") + "T00:00:00")  # fmt: skip
    for entity in ENTITIES[:2]:
        frame_of(entity).with_columns(date=pl.when(row == 5).then(pl.lit("")).otherwise(noon)).write_csv(source / f"{entity}.csv")  # fmt: skip
    run_of(
        source,
        tmp_path / "out",
        bad_rows="drop",
        frequency="1d",
        min_train_years=0.1,
    )

    assert [None] * 3 == [check.problem for check in checks_of(tmp_path / "out").values()]
