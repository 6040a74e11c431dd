"""Datasets logged to the trackers themselves: MLflow with a file of its own, W&B offline."""

import json
from pathlib import Path

import pytest

import headrace
from headrace.dataset.split_rows import record_of
from headrace.errors import SettingsError


def prepared(root: Path, out: str = "out") -> headrace.Dataset:
    raw = root / "raw"
    raw.mkdir(exist_ok=True)
    rows = [f"{n % 7},2024-0{1 + n % 9}-01,{n}" for n in range(90)]
    (raw / "part-0.csv").write_text("\n".join(["who,when,what", *rows]) + "\n")
    split = headrace.TemporalSplit(
        source=raw, time="when", entity="who", split_date="2024-07-01", types={"what": "int32"}
    )
    headrace.prepare(split, root / out)
    return headrace.open(root / out)


def digest(dataset: headrace.Dataset, split: str | None = None) -> str:
    return record_of(dataset, dataset.manifest, split)["digest"]


def test_the_digest_is_that_of_the_rows(tmp_path: Path) -> None:
    first, second = prepared(tmp_path), prepared(tmp_path, "again")
    kept = first.filter([("what", ">", 3)])

    assert digest(first) == digest(second)
    assert 4 == len({digest(first), digest(first, "train"), digest(first, "test"), digest(kept)})
    assert digest(first, "test") == digest(first, "oot")


def test_plain_shards_are_logged_too(tmp_path: Path) -> None:
    prepared(tmp_path)
    before = record_of(headrace.open(tmp_path / "raw", cache_dir=tmp_path / "cache"), None)
    with (tmp_path / "raw/part-0.csv").open("a") as file:
        file.write("8,2024-01-01,1\n")
    after = record_of(headrace.open(tmp_path / "raw", cache_dir=tmp_path / "cache"), None)

    assert ({"all": 90}, {"all": 91}) == (before["rows"], after["rows"])
    assert before["digest"] != after["digest"]


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"wandb\.init"):
        prepared(tmp_path).log_to(object())


@pytest.mark.slow
def test_mlflow_finds_the_dataset_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="needs the extra mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri(f"file://{tmp_path}/mlruns")
    dataset = prepared(tmp_path)
    with mlflow.start_run() as run:
        dataset.log_to(run, "train")
        dataset.log_to(run, "oot")
    inputs = {each.tags[0].value: each.dataset for each in mlflow.get_run(run.info.run_id).inputs.dataset_inputs}
    train = inputs["training"]

    assert {"training", "testing"} == {*inputs}
    assert ("out", digest(dataset, "train")) == (train.name, train.digest)
    assert {"train": dataset.split_rows["train"]} == json.loads(train.profile)["rows"]
    assert str((tmp_path / "out/splits").resolve().parent) == mlflow.data.get_source(train).load()


def test_wandb_keeps_an_artifact_of_an_offline_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb", reason="needs the extra wandb")
    logged = []
    dataset = prepared(tmp_path)
    run = wandb.init(mode="offline", dir=tmp_path, project="test")
    log_artifact = run.log_artifact
    monkeypatch.setattr(run, "log_artifact", lambda artifact: logged.append(log_artifact(artifact)))
    dataset.log_to(run, "train")
    run.finish()
    entries = logged[0].manifest.entries

    assert ("out", "dataset") == (logged[0].name.partition(":")[0], logged[0].type)
    assert {"headrace.json", "manifest.json"} == {*entries}
    assert f"file://{(tmp_path / 'out/splits').resolve().parent}/manifest.json" == entries["manifest.json"].ref
    assert digest(dataset, "train") == logged[0].metadata["digest"]
    assert [file for file in tmp_path.rglob("*.wandb") if file.stat().st_size > 0]
