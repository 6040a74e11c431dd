"""A run that reuses the pipelines of another: every row, nothing fitted, the numbers of a pipeline by hand."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from series_sources import frame_of, run_of, write_source

import headrace
from commands import headrace as run_command
from headrace.dataset.open import FinishedRun
from headrace.errors import SettingsError
from headrace.run.prepare import Prepared
from headrace.series.store import stored_entities, stored_settings
from headrace.series.verify import _check_pipelines, _check_scaling
from headrace.series.windows.store import map_store
from headrace.windows import open_windows, write_forecasts
from raised import raised

UNIFIED = {
    "features": {"strategy": "unified", "fit_on_n_entities": 3, "pipeline": ["StandardScaler"]},
    "target": {"strategy": "unified", "fit_on_n_entities": 3, "pipeline": ["StandardScaler"]},
}
GROUPED = {"target": {"strategy": "per_group", "pipeline": ["RobustScaler"]}}


def served(source: Path, named: Path, out: Path, **more) -> Prepared:
    return headrace.prepare(
        headrace.Series(source=source, pipelines_from=named, **more), out, workers=1
    )


def store_of(prepared: Prepared) -> dict[str, np.ndarray]:
    found = {}
    for shard, entities in stored_entities(prepared.run).items():
        rows = map_store(prepared.run / shard)[0]
        found |= {
            each.entity: rows[each.first_row : each.first_row + each.rows] for each in entities
        }
    return found


@pytest.fixture
def trained(tmp_path: Path) -> Prepared:
    source = write_source(tmp_path / "past", ["a", "b", "c"])
    return run_of(source, tmp_path / "trained", preprocessing_configs=UNIFIED)


@pytest.fixture
def next_month(tmp_path: Path) -> Path:
    """Files whose target ends before the forcing does; u is ungauged."""
    source = write_source(tmp_path / "next", ["a", "b", "u"], days=90, seed=1, first="2003-06-01")
    pl.read_csv(source / "u.csv").drop("q").write_csv(source / "u.csv")
    return source


def by_hand(
    past: Path, source: Path, *, entities: list[str]
) -> tuple[dict[str, pd.DataFrame], pd.Series, pd.Series]:
    """The next month's rows scaled by pandas, and the means and deviations of all train rows; short gaps filled."""
    parts = []
    for path in sorted(past.glob("*.csv")):
        rows = pd.read_csv(path)
        rows = rows.loc[rows.q.first_valid_index() : rows.q.last_valid_index()].reset_index(
            drop=True
        )
        observed = rows.index[rows.q.notna()]
        cuts = [observed[int(len(observed) * share + 1e-9) - 1] + 1 for share in (0.6, 0.8)]
        parts.append(filled(rows, cuts).loc[: cuts[0] - 1])
    train = pd.concat(parts)[["q", "rain", "warm"]]
    means, widths = train.mean(), train.std(ddof=0)
    scaled = {}
    for name in entities:
        rows = filled(
            pd.read_csv(source / f"{name}.csv").reindex(columns=["date", "q", "rain", "warm"]), []
        )
        scaled[name] = (rows[["q", "rain", "warm"]] - means) / widths
    return scaled, means, widths


def filled(rows: pd.DataFrame, cuts: list[int]) -> pd.DataFrame:
    """Carry values into gaps of features of at most five steps that no cut runs through, and that end."""
    made = rows.copy()
    for name in ("rain", "warm"):
        run = rows[name].notna().cumsum()
        for _, gap in rows[name][rows[name].isna()].groupby(run):
            first, end = gap.index[0], gap.index[-1] + 1
            if (
                0 < first
                and end < len(rows)
                and len(gap) <= 5
                and not any(first < cut <= end for cut in cuts)
            ):
                made.loc[first : end - 1, name] = rows[name][first - 1]
    return made


@pytest.mark.slow
def test_a_model_serves_next_month_with_the_numbers_of_a_pipeline_by_hand(
    tmp_path: Path, trained: Prepared, next_month: Path
) -> None:
    torch.manual_seed(0)
    lstm, head = torch.nn.LSTM(2, 4, batch_first=True), torch.nn.Linear(4, 3)
    torch.save({"lstm": lstm.state_dict(), "head": head.state_dict()}, tmp_path / "model.pt")
    made = served(next_month, tmp_path / "trained", tmp_path / "now")
    saved = torch.load(tmp_path / "model.pt", weights_only=True)
    lstm.load_state_dict(saved["lstm"])
    head.load_state_dict(saved["head"])

    windows = open_windows(made.out, "test", input_length=20, output_length=3, targets="none")
    batch = windows.batch(range(len(windows)))
    with torch.no_grad():
        said = head(lstm(torch.from_numpy(batch["X"].copy()))[0][:, -1])
    count = write_forecasts(tmp_path / "forecasts.parquet", windows, [(batch, said)])

    scaled, means, widths = by_hand(tmp_path / "past", next_month, entities=["a", "b", "u"])
    found = pl.read_parquet(tmp_path / "forecasts.parquet")
    expected = []
    for name, rows in scaled.items():
        for end in range(20, 90 - 3 + 1):
            inputs = rows[["rain", "warm"]].to_numpy()[end - 20 : end]
            if not np.isnan(rows[["rain", "warm"]].to_numpy()[end - 20 : end + 3]).any():
                with torch.no_grad():
                    own = (
                        head(lstm(torch.from_numpy(inputs[None].astype(np.float32)))[0][:, -1])
                        .double()
                        .numpy()[0]
                    )
                issued = pd.Timestamp("2003-06-01") + pd.Timedelta(days=end - 1)
                expected += [
                    (name, issued, step + 1, own[step] * widths.q + means.q) for step in range(3)
                ]
    assert count == len(found) == len(expected)
    assert "2003-08-26" == str(found["issue_time"].max().date())  # the target ended on 2003-08-24
    assert [each[:3] for each in expected] == found.select("entity", "issue_time", "horizon").rows()
    np.testing.assert_allclose([each[3] for each in expected], found["value"], rtol=0, atol=1e-6)


def test_scaled_rows_are_those_of_pandas(
    tmp_path: Path, trained: Prepared, next_month: Path
) -> None:
    rows = store_of(served(next_month, tmp_path / "trained", tmp_path / "now"))
    scaled, _, _ = by_hand(tmp_path / "past", next_month, entities=["a", "b", "u"])

    for name, expected in scaled.items():
        np.testing.assert_allclose(expected.to_numpy(), rows[name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("pipelines", [UNIFIED, GROUPED, {"features": {"strategy": "per_group", "pipeline": ["QuantileTransformer"]}}])  # fmt: skip
def test_what_was_prepared_before_comes_out_the_same(tmp_path: Path, pipelines: dict) -> None:
    source = tmp_path / "past"
    source.mkdir()
    for name in ("a", "b", "c"):
        frame_of(name).slice(7, 888).fill_null(strategy="forward").write_csv(source / f"{name}.csv")
    trained = run_of(source, tmp_path / "trained", preprocessing_configs=pipelines)
    again = served(source, tmp_path / "trained", tmp_path / "again", layout="packed")

    assert {name: rows.tobytes() for name, rows in store_of(trained).items()} == {
        name: rows.tobytes() for name, rows in store_of(again).items()
    }
    assert trained.manifest.metadata["pipelines"] == again.manifest.metadata["pipelines"]
    assert headrace.verify(again.out).problems == []


def test_every_row_is_in_test_and_no_file_of_pipelines_changes(
    tmp_path: Path, trained: Prepared, next_month: Path
) -> None:
    made = served(next_month, tmp_path / "trained", tmp_path / "now")

    assert {"train": 0, "val": 0, "test": 270} == {
        name: each.rows for name, each in made.manifest.splits.items()
    }
    assert 0 == sum(made.manifest.dropped.values())
    for name in trained.manifest.metadata["pipelines"]:
        assert (trained.run / name).read_bytes() == (made.run / name).read_bytes()
    fitted = {"run": trained.manifest.run_id, "pipelines": trained.manifest.metadata["pipelines"]}
    assert fitted == made.manifest.metadata["pipelines_from"]


@pytest.mark.parametrize("workers", [2])
def test_long_tables_and_workers_make_the_same_rows(
    tmp_path: Path, trained: Prepared, next_month: Path, workers: int
) -> None:
    frames = [
        pl.read_csv(path).with_columns(id=pl.lit(path.stem))
        for path in sorted(next_month.glob("*.csv"))
    ]
    (tmp_path / "long").mkdir()
    for number, frame in enumerate(frames):  # a shard has no column of the target
        frame.write_csv(tmp_path / "long" / f"part-{number}.csv")
    asked = headrace.Series(
        source=tmp_path / "long", entity="id", pipelines_from=trained.run, batch_size=1
    )
    made = headrace.prepare(asked, tmp_path / "now", workers=workers)
    files = served(next_month, trained.run, tmp_path / "files")

    assert {name: rows.tobytes() for name, rows in store_of(files).items()} == {
        name: rows.tobytes() for name, rows in store_of(made).items()
    }


def test_the_identity_is_of_the_named_run_and_not_of_its_place(
    tmp_path: Path, trained: Prepared, next_month: Path
) -> None:
    asked = headrace.Series(source=next_month, pipelines_from=tmp_path / "trained")
    chained = served(next_month, tmp_path / "trained", tmp_path / "now")
    shutil.copytree(trained.run, tmp_path / "copied")
    moved = headrace.Series(source=next_month, pipelines_from=tmp_path / "copied")
    through = headrace.Series(source=next_month, pipelines_from=chained.run)
    run_of(
        tmp_path / "past",
        tmp_path / "other",
        preprocessing_configs=UNIFIED,
        train_ratio=0.5,
        val_ratio=0.3,
    )
    other = headrace.Series(source=next_month, pipelines_from=tmp_path / "other")

    assert asked.identity_settings() == moved.identity_settings() == through.identity_settings()
    assert (
        asked.identity_settings()["pipelines_from"] != other.identity_settings()["pipelines_from"]
    )


def test_an_entity_without_a_fit_is_left_out_with_its_reason(tmp_path: Path) -> None:
    source = write_source(tmp_path / "past", ["a", "b"])
    run_of(source, tmp_path / "trained", preprocessing_configs=GROUPED)
    shutil.copy(source / "b.csv", source / "c.csv")
    made = served(source, tmp_path / "trained", tmp_path / "now")

    excluded = json.loads((made.run / "quality_summary.json").read_bytes())["excluded_entities"]
    assert ["c"] == list(excluded)
    assert "no pipeline was fitted for it" in excluded["c"]
    assert 900 == made.manifest.dropped["entity_failed"]


def test_static_features_are_scaled_by_the_named_run(tmp_path: Path) -> None:
    source = write_source(tmp_path / "past", ["a", "b", "c"])
    (tmp_path / "static.csv").write_text("id,area,rock\na,1,lime\nb,2,clay\nc,6,lime\n")
    static = {
        "static": tmp_path / "static.csv",
        "static_entity": "id",
        "static_features": ["area", "rock"],
        "preprocessing_configs": {
            **UNIFIED,
            "static_features": [
                {"strategy": "unified", "columns": ["area"], "pipeline": ["MinMaxScaler"]},
                {"strategy": "unified", "columns": ["rock"], "pipeline": ["OrdinalEncoder"]},
            ],
        },
    }
    run_of(source, tmp_path / "trained", **static)
    new = write_source(tmp_path / "new", ["u"], days=60)
    (tmp_path / "new.csv").write_text("id,area,rock\nu,11,lime\n")
    made = served(new, tmp_path / "trained", tmp_path / "now", static=tmp_path / "new.csv")

    assert [{"id": "u", "area": 2.0, "rock": 1.0}] == pl.read_parquet(
        made.run / "processed_static_features.parquet"
    ).to_dicts()
    (tmp_path / "new.csv").write_text("id,area,rock\nu,11,lime\nv,3,basalt\nw,3,\n")
    for name in ("v", "w"):
        frame_of(name, days=60).write_csv(new / f"{name}.csv")
    few = served(new, tmp_path / "trained", tmp_path / "few", static=tmp_path / "new.csv")
    assert {
        "v": "its static rock is 'basalt', which no entity had that the encoder was fitted on",
        "w": "has no static rock",
    } == json.loads((few.run / "quality_summary.json").read_text())["excluded_entities"]
    assert ["u"] == pl.read_parquet(few.run / "processed_static_features.parquet")["id"].to_list()


def test_settings_that_contradict_the_named_run_are_refused(
    tmp_path: Path, trained: Prepared, next_month: Path
) -> None:
    for wrong in (
        {"future_features": ["rain"]},
        {"frequency": "1h"},
        {"preprocessing_configs": GROUPED},
    ):
        asked = headrace.Series(source=next_month, pipelines_from=trained.run, **wrong)
        with raised(SettingsError, setting="pipelines_from", value=str(trained.run)) as caught:
            headrace.prepare(asked, tmp_path / "now")
        assert next(iter(wrong)).removeprefix("future_") in str(caught.value)
    with raised(SettingsError, setting="pipelines_from"):
        headrace.Series(source=next_month, pipelines_from=tmp_path / "nowhere")
    with raised(SettingsError, setting="train_end"):
        headrace.Series(
            source=next_month,
            pipelines_from=trained.run,
            train_end="2001-01-01",
            val_end="2001-02-01",
        )


def test_three_lines_of_configuration_are_enough(
    tmp_path: Path, trained: Prepared, next_month: Path
) -> None:
    config = tmp_path / "serve.yaml"
    config.write_text(f"recipe: series\nsource: {next_month}\npipelines_from: {trained.out}\n")
    done = run_command("run", config, "--out", tmp_path / "now", "--json")
    verdict = json.loads(run_command("verify", tmp_path / "now", "--json").stdout)

    assert 0 == done.returncode, done.stderr
    assert verdict["ok"]
    told = {each["name"]: each for each in verdict["checks"]}
    assert trained.manifest.run_id in told["pipelines are of the named run"]["detail"]
    assert "3 entities" in told["pipelines scaled the rows"]["detail"]


def test_verify_finds_pipelines_of_another_run(
    tmp_path: Path, trained: Prepared, next_month: Path
) -> None:
    made = served(next_month, tmp_path / "trained", tmp_path / "now")
    other = run_of(
        tmp_path / "past",
        tmp_path / "other",
        preprocessing_configs=UNIFIED,
        train_ratio=0.5,
        val_ratio=0.3,
    )
    names = other.manifest.metadata["pipelines"]
    run = FinishedRun(
        made.run, replace(made.manifest, metadata={**made.manifest.metadata, "pipelines": names})
    )
    settings = stored_settings(run)
    for name in names:
        shutil.copy(other.run / name, made.run / name)

    assert "not those that it says run" in (_check_pipelines(run, settings).problem or "")
    assert "are not those of the source, scaled" in (_check_scaling(run, settings).problem or "")


def test_verify_says_what_it_cannot_compare(
    tmp_path: Path, trained: Prepared, next_month: Path
) -> None:
    made = served(next_month, tmp_path / "trained", tmp_path / "now")
    shutil.rmtree(tmp_path / "trained")
    kinds = {each.name: each.category for each in headrace.verify(made.out).checks}

    assert "unchecked" == kinds["pipelines are of the named run"]
    assert "law" == kinds["pipelines scaled the rows"]
    assert headrace.load_pipelines(made.out).target == "q"
