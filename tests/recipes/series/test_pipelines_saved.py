"""Fitted pipelines on disk: the same bytes for the same fits, plain numbers by default, pickles on request only."""

import hashlib
import os
import pickle
import subprocess
import sys
from pathlib import Path

import joblib
import numpy as np
import polars as pl
import pytest
from series_sources import frame_of, run_of, write_source

import headrace
from headrace.errors import CorruptShard, InputError, SettingsError
from headrace.series.pipelines.save import PIPELINES, TIME_SERIES_JOBLIB, TIME_SERIES_SKOPS
from raised import raised

ENTITIES = ["a", "b", "c", "d", "e"]
MIXED = {
    "features": [
        {"strategy": "unified", "pipeline": [{"step": "Log", "offset": 0.5}, "RobustScaler"], "columns": ["rain"], "fit_on_n_entities": 3},
        {"strategy": "per_group", "pipeline": {"step": "QuantileTransformer", "n_quantiles": 30}, "columns": ["warm"]},
    ],
    "target": {"strategy": "per_group", "pipeline": [{"step": "FunctionTransformer", "func": "log1p"}, "StandardScaler"]},
}  # fmt: skip


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_source(tmp_path_factory.mktemp("series") / "raw", ENTITIES, days=500)


@pytest.fixture(scope="module")
def made(source: Path, tmp_path_factory: pytest.TempPathFactory):
    return run_of(source, tmp_path_factory.mktemp("made") / "out", preprocessing_configs=MIXED)


def files_of(run: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(run.glob("fitted_*"))
    }


@pytest.mark.slow
def test_the_same_bytes_for_any_workers_batches_and_hash_seed(
    source: Path, made, tmp_path: Path
) -> None:
    script = (
        "import sys, json; sys.path[:0] = sys.argv[1].split(':')\n"
        "from series_sources import run_of; from test_pipelines_saved import MIXED; from pathlib import Path\n"
        "print(run_of(Path(sys.argv[2]), Path(sys.argv[3]), workers=3, batch_size=1, preprocessing_configs=MIXED).run)"
    )
    command = [
        sys.executable,
        "-c",
        script,
        f"{Path(__file__).parent}:{Path(__file__).parents[2]}",
        str(source),
        str(tmp_path / "out"),
    ]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "77"},
    )

    expected = files_of(made.run)

    assert len(expected) == 3  # no static features
    assert files_of(Path(done.stdout.strip())) == expected
    assert expected == made.manifest.metadata["pipelines"]


@pytest.mark.smoke("safe")
@pytest.mark.parametrize("trust", ["safe", "joblib"])
def test_predictions_come_back_in_the_targets_unit(made, trust: str) -> None:
    pipelines = headrace.load_pipelines(made.out, trust=trust)
    for entity in ("a", "d"):
        stored = pl.read_parquet(made.run / f"processed_time_series/test/{entity}.parquet")
        raw = frame_of(entity, days=500).with_columns(
            pl.col("date").str.to_datetime(time_unit="us")
        )
        truth = stored.join(raw, on="date", how="left", suffix="_raw")

        back = pipelines.inverse_transform(stored["q"].to_numpy(), entity=entity)
        rain = pipelines.inverse_transform(stored["rain"].to_numpy(), entity=entity, column="rain")
        warm = pipelines.inverse_transform(stored["warm"].to_numpy(), entity=entity, column="warm")

        np.testing.assert_allclose(back, truth["q_raw"].to_numpy(), rtol=1e-5)
        np.testing.assert_allclose(rain, truth["rain_raw"].to_numpy(), rtol=1e-5, atol=1e-6)
        inside = truth["warm"].is_between(0.001, 0.999).to_numpy()
        kept = inside & truth["warm_raw"].is_not_null().to_numpy()
        np.testing.assert_allclose(
            warm[kept], truth["warm_raw"].to_numpy()[kept], rtol=1e-3, atol=1e-3
        )


def test_predictions_of_many_entities_and_steps_come_back_at_once(made) -> None:
    pipelines = headrace.load_pipelines(made.out)
    scaled = np.random.default_rng(0).normal(0, 1, (4, 7)).astype(np.float32)
    names = ["c", "a", "e", "a"]

    back = pipelines.inverse_transform(scaled, entity=names)

    for row, name in enumerate(names):
        np.testing.assert_array_equal(
            back[row], pipelines.inverse_transform(scaled[row], entity=name)
        )
    with raised(InputError, value="x"):
        pipelines.inverse_transform(scaled, entity=["c", "a", "x", "a"])
    with raised(SettingsError, setting="entity", remedy="give one name, or one a value"):
        pipelines.inverse_transform(scaled, entity=["c", "a", "e"])


def test_predictions_of_entities_that_are_numbers_come_back(tmp_path: Path) -> None:
    table = pl.concat(
        [frame_of(str(number), days=500).with_columns(id=pl.lit(number)) for number in (4001, 4003)]
    )
    pipelines = headrace.load_pipelines(run_of(table, tmp_path / "out", entity="id").out)
    scaled = np.array([[-1.0, 1.0], [0.5, 0.0]])
    by_text = pipelines.inverse_transform(scaled, entity=["4001", "4003"])

    assert np.array_equal(by_text, pipelines.inverse_transform(scaled, entity=[4001, 4003]))
    assert np.array_equal(by_text[:1], pipelines.inverse_transform(scaled[:1], entity=4001))
    assert np.array_equal(
        by_text[:1], pipelines.inverse_transform(scaled[:1], entity=np.array([4001])[0])
    )
    with raised(InputError, value="4002"):
        pipelines.inverse_transform(scaled, entity=4002)


def test_joblib_reads_what_people_expect(made) -> None:
    bundle = joblib.load(made.run / TIME_SERIES_JOBLIB)
    raw = frame_of("b", days=500).with_columns(gauge_id=pl.lit("b"))

    scaled = bundle["target"].transform(raw)
    theirs = bundle["target"].sklearn("b").transform(raw.select("q").to_numpy())

    assert set(bundle) == {"features", "target"}
    assert bundle["target"].entities == ("a", "b", "c", "d", "e")
    np.testing.assert_allclose(scaled["q"].to_numpy(), theirs[:, 0], rtol=1e-12)


def damaged_copy(made, tmp_path: Path, name: str) -> Path:
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in made.run.iterdir():
        if path.is_file():
            (copy / path.name).write_bytes(path.read_bytes())
    data = bytearray((copy / name).read_bytes())
    data[len(data) // 2] ^= 1
    (copy / name).write_bytes(data)
    return copy


@pytest.mark.parametrize(
    ("name", "trust"),
    [(PIPELINES, "safe"), (TIME_SERIES_SKOPS, "safe"), (TIME_SERIES_JOBLIB, "joblib")],
)
def test_other_bytes_than_the_manifest_names_are_never_read(
    made, tmp_path: Path, name: str, trust: str
) -> None:
    copy = damaged_copy(made, tmp_path, name)

    with pytest.raises(CorruptShard, match=f"{name}: does not have the digest"):
        headrace.load_pipelines(copy, trust=trust)
    (copy / name).unlink()
    with pytest.raises(CorruptShard, match=f"{name}: is missing"):
        headrace.load_pipelines(copy, trust=trust)


def test_the_safe_form_runs_nothing_of_a_hostile_pickle(made, tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "exploded",))

    copy = tmp_path / "copy"
    copy.mkdir()
    for path in made.run.iterdir():
        if path.is_file():
            (copy / path.name).write_bytes(path.read_bytes())
    (copy / TIME_SERIES_JOBLIB).write_bytes(pickle.dumps(Bomb()))

    headrace.load_pipelines(copy)
    with pytest.raises(CorruptShard):
        headrace.load_pipelines(copy, trust="joblib")
    assert not (tmp_path / "exploded").exists()


def test_no_joblib_is_written_unless_wanted(source: Path, tmp_path: Path) -> None:
    made = run_of(source, tmp_path / "out", preprocessing_configs={"joblib": "never"})

    assert set(files_of(made.run)) == {PIPELINES}
    with raised(InputError, setting="joblib", remedy="load the safe form"):
        headrace.load_pipelines(made.out, trust="joblib")
    with raised(SettingsError, setting="trust", value="yes"):
        headrace.load_pipelines(made.out, trust="yes")
