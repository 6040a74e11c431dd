"""Near duplicates across splits are those that sets of words say; places and Jaccard indexes are told with them."""

from __future__ import annotations

import json
import random
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from commands import headrace as command
from headrace.bins.rows import PackedRows
from headrace.errors import SettingsError
from headrace.packing.storage.packed_parquet import ParquetShardWriter
from headrace.stream.loader.dataset import Dataset
from laws import examples
from raised import raised

BASE = [f"w{number}" for number in range(12)]


def write(root: Path, rows: int = 7, **splits: list[dict[str, Any]]) -> Dataset:
    """A shard for each split, in small row groups."""
    for name, held in splits.items():
        (root / name).mkdir(parents=True)
        pq.write_table(
            pa.Table.from_pylist(held), root / name / "part.parquet", row_group_size=rows
        )
    return headrace.open(root)


def plain(text: str | None) -> set[tuple[str, ...]]:
    words = (text or "").lower().split()
    return {tuple(words[at : at + 3]) for at in range(max(1, len(words) - 2))} if words else set()


def near(a: set[Any], b: set[Any], threshold: float) -> bool:
    return bool(a | b) and len(a & b) / len(a | b) >= threshold


@st.composite
def texts(draw: st.DrawFn) -> str | None:
    """One of a few texts, with a few words changed: many are near each other, or equal."""
    words = list(BASE[: draw(st.integers(0, 12))])
    for at in draw(st.lists(st.integers(0, 11), max_size=2)):
        if at < len(words):
            words[at] = draw(st.sampled_from(["X", "y"]))
    return draw(st.sampled_from([" ".join(words), " ".join(words).upper(), None]))


@pytest.mark.slow
@settings(max_examples=examples(25), deadline=None)
@given(
    st.lists(st.lists(texts(), min_size=1, max_size=12), min_size=2, max_size=3),
    st.sampled_from([0.5, 0.7, 0.9]),
)
def test_counts_are_those_of_sets_of_words(
    tmp_path_factory: pytest.TempPathFactory, splits: list[list[str | None]], threshold: float
) -> None:
    names = ("train", "val", "test")[: len(splits)]
    rows = {
        name: [{"t": text, "n": 1} for text in own] for name, own in zip(names, splits, strict=True)
    }
    rows[names[0]] += [{"t": "no such text", "n": 1}]  # a column of nulls is no texts
    found = headrace.find_leaks(
        write(tmp_path_factory.mktemp("d"), **rows), content=["t"], near=threshold, workers=1
    ).near
    sets = {name: [plain(row["t"]) for row in own] for name, own in rows.items()}

    assert found is not None
    for name, own in sets.items():
        again = [any(near(a, b, threshold) for b in own[:at]) for at, a in enumerate(own)]
        assert found.repeated[name] == sum(again)
    for shared, (early, late) in zip(found.shared, combinations(names, 2), strict=True):
        expected = [any(near(a, b, threshold) for b in sets[early]) for a in sets[late]]
        assert (shared.earlier, shared.split, shared.rows) == (early, late, sum(expected))
        assert shared.fraction == sum(expected) / len(sets[late])
        assert bool(shared.examples) == any(expected)
        for a, b, jaccard in shared.examples:
            one, other = (
                sets[place.split("/")[0]][int(place.rpartition(":")[2])] for place in (a, b)
            )
            assert (a.split("/")[0], b.split("/")[0]) == (early, late)
            assert jaccard == len(one & other) / len(one | other) >= threshold
    assert found.not_compared == 0


def test_chats_are_compared_whole(tmp_path: Path) -> None:
    draw = random.Random(1)
    chats = [
        [" ".join(f"w{draw.randrange(10**6)}" for _ in range(30)) for _ in range(4)]
        for _ in range(40)
    ]

    def row(turns: list[str]) -> dict[str, Any]:
        roles = ("user", "assistant") * 2
        return {"messages": [{"role": a, "content": b} for a, b in zip(roles, turns, strict=True)]}

    changed = [[*chats[5][:3], f"well {chats[5][3]}"], [*chats[30][:2], *chats[6][2:]]]
    dataset = write(
        tmp_path, train=[row(each) for each in chats], test=[row(each) for each in changed]
    )
    report = headrace.find_leaks(dataset, near=0.8)

    assert report.near is not None
    (shared,) = report.near.shared
    assert shared.rows == 1
    assert [pair[:2] for pair in shared.examples] == [
        ("train/part.parquet:5", "test/part.parquet:0")
    ]
    assert 0.9 < shared.examples[0][2] < 1
    assert (report.shared[0].rows, report.worst, report.near.groups, report.near.largest) == (
        0,
        0.5,
        1,
        2,
    )


def test_sequences_of_packed_rows_are_compared_by_tokens(tmp_path: Path) -> None:
    random_ = np.random.default_rng(2)
    sequences = [
        random_.integers(0, 10**5, int(size)).tolist() for size in random_.integers(40, 60, 60)
    ]
    changed = [list(each) for each in sequences[40:]]
    for each in changed[::2]:
        each[20] = 7
    for each in changed[1::2]:
        each[::4] = [7] * len(each[::4])

    for name, own in (("train", sequences), ("test", changed)):
        (tmp_path / name).mkdir()
        rows = [own[at : at + 4] for at in range(0, len(own), 4)]
        said = {"headrace.loss_mask_alignment": "shift_left"}
        with ParquetShardWriter(tmp_path / name / "part.parquet", 3, metadata=said) as writer:
            writer.write_bins(packed_rows(rows))
    report = headrace.find_leaks(headrace.open(tmp_path), near=0.7)

    assert report.near is not None
    (shared,) = report.near.shared
    assert (report.unit, shared.rows, shared.fraction) == ("sequence", 10, 0.5)
    assert shared.examples[1][:2] == ("train/part.parquet:10:2", "test/part.parquet:0:2")


def packed_rows(rows: list[list[list[int]]]) -> PackedRows:
    flat = [each for row in rows for each in row]
    ids = np.array([token for each in flat for token in each], np.int32)
    offsets = np.cumsum([0, *map(len, rows)])
    return PackedRows.of_sequences(
        ids, np.zeros(len(ids), np.uint8), np.array([len(each) for each in flat]), offsets
    )


def test_a_threshold_out_of_range_is_refused(tmp_path: Path) -> None:
    dataset = write(tmp_path, train=[{"t": "a"}])

    with pytest.raises(SettingsError, match="near is 0.3; give a Jaccard index from 0.5 to 1"):
        headrace.find_leaks(dataset, near=0.3)


def test_rows_without_texts_are_refused(tmp_path: Path) -> None:
    dataset = write(tmp_path, train=[{"n": 1, "parts": [0.5], "t": "a"}])
    (tmp_path / "numbers").mkdir()
    numbers = write(tmp_path / "numbers", train=[{"n": 1, "parts": [0.5]}])
    (tmp_path / "items.txt").write_text("one two three four five six\n")

    with raised(SettingsError, setting="near", remedy="leave it out"):
        headrace.find_leaks(dataset, content=["n", "parts"], near=0.8)
    with raised(SettingsError, setting="against", remedy="leave it out"):
        headrace.find_leaks(numbers, against=[tmp_path / "items.txt"])


@pytest.mark.slow
def test_the_command_tells_near_rows_and_counts_them_for_its_exit(tmp_path: Path) -> None:
    rows = [{"t": " ".join([*BASE, f"row {number} of all", *BASE[::-1]])} for number in range(3)]
    other = [
        {"t": rows[1]["t"].replace("of all", "of the").upper()},
        {"t": "nothing like it at all"},
    ]
    write(tmp_path, train=[rows[1]], test=other)

    assert command("leaks", tmp_path).returncode == 0
    done = command("leaks", tmp_path, "--near", "0.7")
    assert done.returncode == 1
    assert "50.00% of a split or benchmark was found elsewhere" in done.stderr
    assert "train/part.parquet:0 ~ test/part.parquet:0" in " ".join(done.stdout.split())
    assert command("leaks", tmp_path, "--near", "0.95").returncode == 0
    told = json.loads(
        command("leaks", tmp_path, "--near", "0.7", "--max-share", "0.6", "--json").stdout
    )
    assert told["near"]["shared"][0]["rows"] == 1
    assert command("leaks", tmp_path, "--near", "0.2").returncode == 2
