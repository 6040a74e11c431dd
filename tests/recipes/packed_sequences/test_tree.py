"""The output tree: links, blend and metadata say what is there, and nothing of an earlier run is left in them."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from recipe_cases import packed, sequences_in, sources, token_rows, write_jsonl

import headrace
from headrace.errors import StoreError
from headrace.run.events import RunBegan
from raised import raised
from tables import split, write_rows


@pytest.fixture(scope="module")
def blend(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    directory = tmp_path_factory.mktemp("source")
    return {
        "datasets": [
            {"name": "math", "path": [str(path) for path in sources(directory / "math", files=2)]},
            {
                "name": "code",
                "path": str(write_jsonl(directory / "code.jsonl.gz", token_rows(200, 9))),
            },
        ]
    }


def test_links_lead_to_every_shard_once_and_datasets_do_not_collide(
    tmp_path: Path, blend: dict
) -> None:
    out = tmp_path / "out"
    run = packed(blend, out, num_shards=4).run

    links = sorted(
        path for name in ("train", "valid", "test") for path in (out / "splits" / name).iterdir()
    )
    shards = sorted(run.glob("datasets/*/*/shard_*.parquet"))
    assert shards == sorted(link.resolve() for link in links)
    assert all(link.is_symlink() and not os.path.isabs(os.readlink(link)) for link in links)
    for name in ("train", "valid", "test"):
        names = sorted(path.name for path in (out / "splits" / name).iterdir())
        assert list(range(len(names))) == [int(each[:6]) for each in names]
        for each in names:
            _, dataset, shard = each.split("__")
            (target,) = [link for link in links if link.name == each and link.parent.name == name]
            assert f"/datasets/{dataset}/" in str(target.resolve())
            assert shard == target.resolve().name
    assert {"shard_000000.parquet", "shard_000001.parquet"} <= {path.name for path in shards}


def test_the_tree_can_be_moved(tmp_path: Path, blend: dict) -> None:
    packed(blend, tmp_path / "out")
    before = sequences_in(tmp_path / "out", "valid")

    shutil.move(tmp_path / "out", tmp_path / "elsewhere")

    assert before == sequences_in(tmp_path / "elsewhere", "valid")
    assert headrace.verify(tmp_path / "elsewhere").problems == []


def test_the_blend_names_every_shard_of_its_split_with_its_share_of_tokens(
    tmp_path: Path, blend: dict
) -> None:
    out = tmp_path / "out"
    packed(blend, out, num_shards=3)

    record = json.loads((out / "blend.json").read_text())
    assert ["train", "valid", "test"] == list(record)
    for name, pairs in record.items():
        assert all(isinstance(text, str) for text in pairs)
        weights, prefixes = pairs[::2], pairs[1::2]
        shards = [out / f"{prefix}.parquet" for prefix in prefixes]
        assert sorted(shard.resolve() for shard in shards) == sorted(
            link.resolve() for link in (out / "splits" / name).iterdir()
        )
        tokens = [sum(map(len, pq.read_table(shard)["input_ids"].to_pylist())) for shard in shards]
        for weight, count in zip(weights, tokens, strict=True):
            assert float(weight) == pytest.approx(count / sum(tokens), abs=1e-8)


def test_metadata_is_what_readers_with_fixed_boundary_lists_need(
    tmp_path: Path, blend: dict
) -> None:
    out = tmp_path / "out"
    packed(blend, out, num_shards=3)

    records = json.loads((out / "packing_metadata.json").read_text())
    assert isinstance(records, list)
    for record in records:
        shards = [
            link
            for link in (out / "splits" / record["split"]).iterdir()
            if link.name.split("__")[1] == record["dataset"]
        ]
        rows = [row for shard in shards for row in pq.read_table(shard).to_pylist()]
        lengths = [
            [end - start - 1 for start, end in zip(row["seq_start_id"], [*row["seq_start_id"][1:], len(row["input_ids"])], strict=True)]
            for row in rows
        ]  # fmt: skip
        assert record["max_samples_per_bin"] == max(map(len, lengths))
        assert record["dataset_max_seqlen"] == max(max(each) for each in lengths)
        assert record["min_packed_seqlen"] == min(sum(each) for each in lengths)
        assert record["pack_size"] == 512
        assert record["packing_factor"] == pytest.approx(
            sum(map(len, lengths)) / len(lengths), abs=1e-6
        )
        assert 0 < record["packing_efficiency"] <= 100


@pytest.mark.slow
def test_nothing_of_an_earlier_run_is_left_in_the_splits(tmp_path: Path, blend: dict) -> None:
    out = tmp_path / "out"
    packed(blend, out, num_shards=6)
    first = {name: os.listdir(out / "splits" / name) for name in ("train", "valid", "test")}

    second = packed(blend, out, num_shards=1, train_ratio=0.9, val_ratio=0, test_ratio=0.1)

    assert ["test", "train"] == sorted(os.listdir(out / "splits"))
    assert len(os.listdir(out / "splits" / "train")) < len(first["train"])
    for name in ("train", "test"):
        for link in (out / "splits" / name).iterdir():
            assert link.resolve().is_relative_to(second.run.resolve())
    assert ["train", "test"] == list(json.loads((out / "blend.json").read_text()))


@pytest.mark.slow
def test_going_back_to_an_earlier_run_brings_all_its_splits_back(
    tmp_path: Path, blend: dict
) -> None:
    out = tmp_path / "out"
    first = packed(blend, out)
    packed(blend, out, val_ratio=0, test_ratio=0.2)

    again = packed(blend, out)

    assert "reused" == again.how
    assert ["test", "train", "valid"] == sorted(os.listdir(out / "splits"))
    assert all(
        link.resolve().is_relative_to(first.run.resolve())
        for link in (out / "splits" / "valid").iterdir()
    )
    assert headrace.verify(out).run_id == first.manifest.run_id


@pytest.mark.slow
def test_another_recipe_in_the_same_directory_takes_the_links_away(
    tmp_path: Path, blend: dict
) -> None:
    out = tmp_path / "out"
    packed(blend, out)
    rows = [(str(number % 9), f"2024-01-{number % 28 + 1:02d}", number) for number in range(200)]
    write_rows(tmp_path / "in.csv", ("id", "date", "row"), rows)

    split(tmp_path / "in.csv", out, split_date="2024-01-20")

    assert ["oot", "test", "train", "val"] == sorted(os.listdir(out / "splits"))
    assert not (out / "blend.json").is_symlink()


@pytest.mark.parametrize("name", ["blend.json", "splits"])
def test_what_is_in_the_way_of_a_link_is_refused_before_the_work(
    tmp_path: Path, blend: dict, name: str
) -> None:
    out = tmp_path / "out"
    (out / name).mkdir(parents=True)
    events: list[Any] = []

    with raised(StoreError, path=out / name, remedy="move it, or choose another"):
        packed(blend, out, on_event=events.append)

    assert all(isinstance(event, RunBegan) for event in events)  # no stage of it


def test_more_tasks_than_rows_is_fine(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "in.jsonl", token_rows(5))

    packed(path, tmp_path / "out", num_shards=20)

    assert 5 == sum(
        len(sequences_in(tmp_path / "out", name)) for name in ("train", "valid", "test")
    )
    assert headrace.verify(tmp_path / "out").problems == []


@pytest.mark.slow
def test_gc_removes_a_link_that_was_not_finished_and_nothing_else(
    tmp_path: Path, blend: dict
) -> None:
    out = tmp_path / "out"
    packed(blend, out)
    (out / ".tmp-blend.json-0123456789abcdef").symlink_to("runs")
    before = sequences_in(out, "train")

    swept = headrace.collect(out)

    assert [out / ".tmp-blend.json-0123456789abcdef"] == list(swept.removed)
    assert before == sequences_in(out, "train")
    assert headrace.verify(out).problems == []


def test_files_of_users_beside_the_links_are_left_alone(tmp_path: Path, blend: dict) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    (out / "latest").symlink_to("/nowhere")

    packed(blend, out)

    assert "mine" == (out / "notes.txt").read_text()
    assert (out / "latest").is_symlink()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["valid", "val"])
def test_the_stream_opens_the_splits(tmp_path: Path, blend: dict, name: str) -> None:
    run = packed(blend, tmp_path / "out")

    dataset = headrace.open(tmp_path / "out")

    assert run.manifest.splits["valid"].rows == dataset.split_index(name).total_rows


def test_two_data_sets_may_name_one_file(tmp_path: Path) -> None:
    path = str(write_jsonl(tmp_path / "in.jsonl", token_rows(50)))

    run = packed(
        {"datasets": [{"name": name, "path": path} for name in ("one", "two")]}, tmp_path / "out"
    )

    assert 100 == run.manifest.source["rows"]
    assert headrace.verify(tmp_path / "out").problems == []
