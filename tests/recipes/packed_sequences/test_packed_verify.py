"""`verify` finds every broken law in the output, and says where."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from recipe_cases import packed, sources

from headrace.dataset.open import FinishedRun, find_run
from headrace.packing.storage.packed_parquet import SCHEMA
from headrace.packing.verify import verify_packed
from resealed import change_settings

Bin = dict[str, list[int]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("whole")
    packed(
        sources(directory / "in", files=2),
        directory / "out",
        num_shards=2,
        max_sequences_per_bin=12,
    )
    return directory / "out"


@pytest.fixture
def run(tmp_path: Path, whole: Path) -> FinishedRun:
    shutil.copytree(whole, tmp_path / "out", symlinks=True)
    return FinishedRun(*find_run(tmp_path / "out"))


def problems(run: FinishedRun) -> list[str]:
    return [check.problem for check in verify_packed(run, 1) if check.problem]


def change(run: FinishedRun, how: Callable[[list[Bin]], None]) -> str:
    """Change the bins of one shard of train."""
    (name, *_) = next(
        group["shards"] for group in run.manifest.metadata["groups"] if group["split"] == "train"
    )
    path = run.root / name
    bins = pq.read_table(path).to_pylist()
    how(bins)
    pq.write_table(pa.Table.from_pylist(bins, schema=SCHEMA), path, row_group_size=32)
    return name


def test_an_untouched_run_has_no_problem(run: FinishedRun) -> None:
    assert [] == problems(run)


def bin_with(bins: list[Bin], sequences: int) -> Bin:
    return next(each for each in bins if len(each["seq_start_id"]) >= sequences)


def grow(bins: list[Bin]) -> None:
    bins[0]["input_ids"] += [1] * 512
    bins[0]["loss_mask"] += [0] * 512


def cut_mask(bins: list[Bin]) -> None:
    bins[0]["loss_mask"].pop()


def first_start(bins: list[Bin]) -> None:
    bins[0]["seq_start_id"][0] = 1


def equal_starts(bins: list[Bin]) -> None:
    starts = bin_with(bins, 2)["seq_start_id"]
    starts[1] = starts[0]


def start_behind(bins: list[Bin]) -> None:
    bins[0]["seq_start_id"].append(len(bins[0]["input_ids"]))


def mask_of_two(bins: list[Bin]) -> None:
    bins[0]["loss_mask"][0] = 2


def last_label(bins: list[Bin]) -> None:
    bins[0]["loss_mask"][-1] = 1


def negative_id(bins: list[Bin]) -> None:
    bins[0]["input_ids"][3] = -1


def no_label(bins: list[Bin]) -> None:
    bins[0]["loss_mask"] = [0] * len(bins[0]["loss_mask"])


def other_token(bins: list[Bin]) -> None:
    bins[0]["input_ids"][0] += 1


def moved_label(bins: list[Bin]) -> None:
    mask = bins[0]["loss_mask"]
    place = next(at for at in range(len(mask) - 2) if mask[at] != mask[at + 1])
    mask[place], mask[place + 1] = mask[place + 1], mask[place]


def lost_border(bins: list[Bin]) -> None:
    chosen = bin_with(bins, 3)
    del chosen["seq_start_id"][1]


def double_bin(bins: list[Bin]) -> None:
    bins[0] = bins[1]


def lost_bin(bins: list[Bin]) -> None:
    bins.pop()


def swapped_bins(bins: list[Bin]) -> None:
    bins.reverse()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (grow, "bin 0: takes .*, more than pack_size 512"),
        (cut_mask, "row 1: .* input_ids and .* values of loss_mask"),
        (first_start, r"bin 0: seq_start_id is \[1, .*; it begins with 0, rises"),
        (equal_starts, r"seq_start_id is \[0, 0.*; it begins with 0, rises"),
        (start_behind, "bin 0: seq_start_id is .*stays below the number of tokens"),
        (mask_of_two, "bin 0: loss_mask holds 2"),
        (last_label, "bin 0: the last position of a sequence has a label"),
        (negative_id, "bin 0: token id -1 is not in the vocabulary"),
        (no_label, "bin 0: has no token in the loss"),
        (other_token, "are not the .* that were packed"),
        (moved_label, "are not the .* that were packed"),
        (lost_border, "are not the .* that were packed"),
        (double_bin, "are not the .* that were packed"),
        (lost_bin, "bins, the manifest says"),
    ],
)
def test_every_broken_law_is_found(run: FinishedRun, how: Callable, message: str) -> None:
    name = change(run, how)

    found = problems(run)
    assert found
    assert re.search(message, found[0]), found
    assert name in found[0] or "are not the" in found[0] or "the manifest says" in found[0]


def test_the_order_of_bins_is_no_law(run: FinishedRun) -> None:
    change(run, swapped_bins)

    assert [] == problems(run)


def test_a_link_to_another_splits_shard_is_found(run: FinishedRun) -> None:
    shards = {group["split"]: group["shards"] for group in run.manifest.metadata["groups"]}
    link = sorted((run.root / "splits" / "valid").iterdir())[0]
    link.unlink()
    link.symlink_to(os.path.relpath(run.root / shards["train"][0], link.parent))

    (problem,) = problems(run)
    assert f"{link}: " in problem


def test_a_link_that_leads_nowhere_is_found(run: FinishedRun) -> None:
    (run.root / "splits" / "train" / "000009__gone__shard_000000.parquet").symlink_to(
        "../../gone.parquet"
    )

    (problem,) = problems(run)
    assert "leads nowhere" in problem


def test_a_changed_blend_is_found(run: FinishedRun) -> None:
    path = run.root / "blend.json"
    record = json.loads(path.read_text())
    record["train"], record["valid"] = record["valid"], record["train"]
    path.write_text(json.dumps(record))

    assert "is not the blend of these shards" in problems(run)[0]


@pytest.mark.parametrize("name", ["rejected.jsonl", "packing_metadata.json"])
def test_a_changed_file_beside_the_shards_is_found(run: FinishedRun, name: str) -> None:
    with (run.root / name).open("a") as file:
        file.write("{}\n")

    (problem,) = problems(run)
    assert f"{name}: is missing, or not the file that was published" in problem


def test_a_run_of_a_packer_that_is_gone_still_verifies(run: FinishedRun) -> None:
    assert [] == problems(change_settings(run.root, algorithm="first_fit_shuffle"))
