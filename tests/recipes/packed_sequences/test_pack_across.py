"""Bins over all datasets of a split: the same sequences, fewer bins, and each leads back to its row."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from recipe_cases import all_sequences, packed, sequence_of, sources, token_rows, write_jsonl

import headrace
from headrace.errors import SettingsError
from raised import raised
from tables import digests


@pytest.fixture(scope="module")
def blend(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    directory = tmp_path_factory.mktemp("source")
    small = [
        {
            "name": f"small-{number}",
            "path": str(write_jsonl(directory / f"small-{number}.jsonl", token_rows(12, number))),
        }
        for number in range(20, 26)
    ]
    return {
        "datasets": [
            {"name": "large", "path": [str(path) for path in sources(directory / "large")]},
            *small,
        ]
    }


@pytest.mark.slow
@pytest.mark.parametrize("reader", ["megatron", "headrace"])
@pytest.mark.parametrize("too_long", ["error", "split"])
def test_every_sequence_of_a_bin_leads_to_its_row(
    tmp_path: Path, blend: dict, reader: str, too_long: str
) -> None:
    longest = 512 if too_long == "error" else 128
    packed(blend, tmp_path / "out", reader=reader, too_long=too_long, pack_size=longest)

    paths = {}
    for dataset in blend["datasets"]:
        given = dataset["path"] if isinstance(dataset["path"], list) else [dataset["path"]]
        paths |= {f"{dataset['name']}/{Path(path).name}": Path(path) for path in given}
    rows = {name: path.read_text().splitlines() for name, path in paths.items()}
    seen = set()
    for link in (tmp_path / "out" / "splits").glob("*/*"):
        for each in pq.read_table(link).to_pylist():
            ends = [*each["seq_start_id"][1:], len(each["input_ids"])]
            assert len(ends) == len(each["source"]) == len(each["source_row"])
            for begin, end, name, row in zip(
                each["seq_start_id"], ends, each["source"], each["source_row"], strict=True
            ):
                ids, mask = sequence_of(json.loads(rows[name][row - 1]))
                pieces = [
                    (ids[at : at + longest], mask[at : at + longest])
                    for at in range(0, len(ids), longest)
                ]
                pieces = [(one, (*other[:-1], 0)) for one, other in pieces]
                assert (
                    tuple(each["input_ids"][begin:end]),
                    tuple(each["loss_mask"][begin:end]),
                ) in pieces
                seen.add((name, row))
    assert len(seen) > 500
    assert headrace.verify(tmp_path / "out").problems == []


@pytest.mark.slow
def test_the_sequences_are_those_of_bins_per_dataset_in_fewer_bins(
    tmp_path: Path, blend: dict
) -> None:
    split, dataset = (
        packed(blend, tmp_path / how, pack_across=how) for how in ("split", "dataset")
    )

    assert all_sequences(tmp_path / "split") == all_sequences(tmp_path / "dataset")
    for name, totals in split.manifest.splits.items():
        assert totals.rows < dataset.manifest.splits[name].rows
    (train,) = [group for group in split.manifest.metadata["groups"] if group["split"] == "train"]
    per = {
        group["dataset"]: group
        for group in dataset.manifest.metadata["groups"]
        if group["split"] == "train"
    }
    assert train["metrics"]["fill"] > 0.98
    assert train["sources"] == {
        name: {key: group[key] for key in ("rows", "sequences", "tokens", "labels")}
        for name, group in per.items()
    }
    assert split.manifest.metadata["source_rows"] == dataset.manifest.metadata["source_rows"]
    names = {
        name
        for link in (tmp_path / "dataset" / "splits").glob("*/*")
        for name in pq.read_schema(link).names
    }
    assert names == {"input_ids", "loss_mask", "seq_start_id"}


@pytest.mark.slow
def test_workers_and_shards_do_not_change_what_leads_where(tmp_path: Path, blend: dict) -> None:
    first, second = (
        packed(blend, tmp_path / str(workers), workers=workers, num_shards=5) for workers in (1, 3)
    )

    assert digests(first.run) == digests(second.run)


@pytest.mark.slow
def test_one_dataset_has_the_run_it_had_before(tmp_path: Path, blend: dict) -> None:
    alone = {"datasets": blend["datasets"][:1]}
    per_split = {
        "train": blend["datasets"][:1],
        "val": blend["datasets"][1:2],
        "test": blend["datasets"][2:3],
    }
    for name, given in (("alone", alone), ("per_split", per_split)):
        first = packed(given, tmp_path / name)
        again = packed(given, tmp_path / name, pack_across="dataset")
        assert ("computed", "reused") == (first.how, again.how)
        assert len(first.manifest.metadata["groups"]) == 3


@pytest.mark.slow
def test_a_blend_per_split_packs_the_datasets_of_each_split(tmp_path: Path, blend: dict) -> None:
    several = {
        "train": blend["datasets"][:3],
        "val": blend["datasets"][3:4],
        "test": blend["datasets"][3:6],
    }
    run = packed(several, tmp_path / "out", duplicates="allow")

    sources = {group["split"]: set(group["sources"]) for group in run.manifest.metadata["groups"]}
    assert sources["train"] == {"large", "small-20", "small-21"}
    assert sources["valid"] == {"small-22"}
    assert sources["test"] == {"small-22", "small-23", "small-24"}
    assert headrace.verify(tmp_path / "out").problems == []


def test_batches_hold_no_traces_unless_they_are_asked_for(tmp_path: Path, blend: dict) -> None:
    packed(blend, tmp_path / "out")
    dataset = headrace.open(tmp_path / "out")

    plain = next(iter(dataset.stream("valid", batch_size=2, batch_format="numpy")))
    names = ["input_ids", "loss_mask", "seq_start_id", "source_row"]
    traced = next(iter(dataset.stream("valid", batch_size=2, batch_format="numpy", columns=names)))

    assert not {"source", "source_row"} & set(plain)
    assert set(plain) | {"source_row"} == set(traced)
    assert "source" in dataset.schema.names


@pytest.mark.slow
@pytest.mark.parametrize("how", ["split", "dataset"])
def test_epochs_repeat_whole_rows_in_train_alone_and_everything_adds_up(
    tmp_path: Path, blend: dict, how: str
) -> None:
    plain = packed(blend, tmp_path / "plain", pack_across=how).manifest.metadata
    names = [dataset["name"] for dataset in blend["datasets"]]
    epochs = dict(zip(names, [0.5, 3, 2.5, 1, 1, 1, 1], strict=True))
    datasets = [{**dataset, "epochs": epochs[dataset["name"]]} for dataset in blend["datasets"]]
    run, again = (
        packed({"datasets": datasets}, tmp_path / str(n), pack_across=how, workers=n)
        for n in (1, 3)
    )

    assert digests(run.run) == digests(again.run)
    metadata = run.manifest.metadata

    def tokens(metadata: dict[str, Any], split: str) -> dict[str, int]:
        groups = [group for group in metadata["groups"] if group["split"] == split]
        alone = {group["dataset"]: group for group in groups}
        return {
            name: own["tokens"]
            for group in groups
            for name, own in group.get("sources", alone).items()
        }

    for name, before in tokens(plain, "train").items():
        assert abs(tokens(metadata, "train")[name] - epochs[name] * before) <= 151
    assert tokens(metadata, "valid") == tokens(plain, "valid")
    once = all_sequences(tmp_path / "plain")
    assert set(all_sequences(tmp_path / "1")) < set(once)
    assert max(all_sequences(tmp_path / "1").values()) == 3
    assert metadata["repeated"]["repeat"]["tokens"] > 0
    assert headrace.verify(tmp_path / "1").problems == []


def test_weights_may_repeat_the_scarce_dataset(tmp_path: Path, blend: dict) -> None:
    large, small = blend["datasets"][:2]
    datasets = [large, {**small, "weight": 1, "repeat": 10}]
    metadata = packed(
        {"datasets": [{**datasets[0], "weight": 9}, datasets[1]]}, tmp_path / "out"
    ).manifest.metadata

    (train,) = [group for group in metadata["groups"] if group["split"] == "train"]
    shares = {name: own["tokens"] / train["tokens"] for name, own in train["sources"].items()}
    assert shares["small-20"] == pytest.approx(0.1, abs=0.01)
    assert train["sources"]["small-20"]["sequences"] > 5 * train["sources"]["small-20"]["rows"]


def test_epochs_beside_weights_are_refused(blend: dict) -> None:
    datasets = [{**blend["datasets"][0], "epochs": 2}, {**blend["datasets"][1], "weight": 2}]
    with raised(SettingsError, setting="datasets"):
        headrace.PackedSequences(blend={"datasets": datasets})
