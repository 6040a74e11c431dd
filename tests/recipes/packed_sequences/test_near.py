"""Chats that are nearly equal share a split where that is asked for; the bins alone prove it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recipe_cases import packed, sequences_in, token_rows, write_jsonl

import headrace
from headrace.errors import SettingsError
from headrace.packing.config import PackedSequences
from headrace.packing.verify import verify_packed
from headrace.run.events import Event, Note, TaskDone
from resealed import change_settings
from tables import digests

SPLITS = ("train", "valid", "test")
HALVES = {"train_ratio": 0.4, "val_ratio": 0.3, "test_ratio": 0.3}
Row = dict[str, Any]


def nearly(rows: list[Row], changes: int = 1) -> list[Row]:
    """The same rows with a few other tokens."""
    random = np.random.default_rng(9)
    made = []
    for row in rows:
        ids = list(row["input_ids"])
        for at in random.integers(0, len(ids), changes).tolist():
            ids[at] = 4999
        made.append({**row, "input_ids": ids})
    return made


def long_rows(count: int, seed: int = 0) -> list[Row]:
    return [row for row in token_rows(3 * count, seed, longest=200) if len(row["input_ids"]) >= 60][
        :count
    ]


def plain(ids: tuple[int, ...]) -> set[tuple[int, ...]]:
    return {ids[at : at + 5] for at in range(max(1, len(ids) - 4))}


def near_across(out: Path, near: float) -> int:
    """Pairs of sequences in different splits that are near, by sets."""
    sets = [[plain(ids) for ids, _ in sequences_in(out, split)] for split in SPLITS]
    pairs = (
        (a, b) for one in range(3) for other in range(one) for a in sets[one] for b in sets[other]
    )
    return sum(len(a & b) / len(a | b) >= near for a, b in pairs)


def near_check(out: Path) -> Any:
    return next(
        check for check in headrace.verify(out).checks if check.name == "near content apart"
    )


@pytest.mark.slow
def test_near_chats_are_in_one_split(tmp_path: Path) -> None:
    rows = long_rows(60)
    source = write_jsonl(tmp_path / "in.jsonl", [*rows, *nearly(rows)])
    packed(source, tmp_path / "alone", **HALVES)
    events: list[Event] = []
    run = packed(source, tmp_path / "out", near=0.8, on_event=events.append, **HALVES)

    assert near_across(tmp_path / "alone", 0.8) > 20
    assert near_across(tmp_path / "out", 0.8) == 0
    found = run.manifest.metadata["duplicates"]
    assert 55 <= found["near_pairs"] <= 60
    assert (found["near_not_compared"], found["copies"], found["seen_in_earlier_splits"]) == (
        0,
        0,
        0,
    )
    assert any(
        "pairs of sequences are near" in each.text for each in events if isinstance(each, Note)
    )
    assert near_check(tmp_path / "out").problem is None
    assert (
        "no sequence of a split has a Jaccard index of 0.8 or more"
        in near_check(tmp_path / "out").detail
    )
    assert headrace.find_leaks(headrace.open(tmp_path / "out"), near=0.8).worst == 0


@pytest.mark.slow
def test_parts_and_workers_and_attempts_change_no_byte(tmp_path: Path) -> None:
    rows = long_rows(40)
    source = write_jsonl(tmp_path / "in.jsonl", [*rows, *nearly(rows)])

    def stop(event: Event) -> None:
        if isinstance(event, TaskDone) and event.stage == "near_propose":
            raise KeyboardInterrupt

    asked = {"near": 0.7, "num_shards": 3, **HALVES}
    expected = digests(packed(source, tmp_path / "one", **asked).run)
    assert expected == digests(packed(source, tmp_path / "two", workers=3, **asked).run)
    with pytest.raises(KeyboardInterrupt):
        packed(source, tmp_path / "again", on_event=stop, **asked)
    assert expected == digests(packed(source, tmp_path / "again", workers=2, **asked).run)


@pytest.mark.slow
def test_a_blend_per_split_leaves_out_what_is_near_a_later_split(tmp_path: Path) -> None:
    rows, others = long_rows(30), long_rows(20, 5)
    paths = {
        "train": write_jsonl(tmp_path / "train.jsonl", [*rows, *others]),
        "test": write_jsonl(tmp_path / "test.jsonl", nearly(rows[:10])),
    }
    blend = {split: [{"name": split, "path": path}] for split, path in paths.items()}
    asked = {"train_ratio": 0.98, "val_ratio": 0.01, "test_ratio": 0.01}
    group = packed(blend, tmp_path / "group", near=0.8, duplicates="group", **asked)
    count = packed(blend, tmp_path / "count", near=0.8, **asked)

    assert group.manifest.dropped["content_in_test"] == 10
    assert count.manifest.dropped["content_in_test"] == 0
    assert count.manifest.metadata["duplicates"]["seen_in_earlier_splits"] == 10
    assert near_check(tmp_path / "group").problem is None
    assert (
        "not asked for: 10 pairs of sequences in different splits"
        in near_check(tmp_path / "count").detail
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "more", [{"pad_multiple": 8, "reader": "headrace", "pad_id": 4998}, {"too_long": "split"}]
)
def test_padding_and_pieces_are_compared_as_before_packing(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    rows = long_rows(50)
    source = write_jsonl(tmp_path / "in.jsonl", [*rows, *nearly(rows)])
    packed(
        source,
        tmp_path / "out",
        near=0.8,
        **{"pack_size": 256 if "too_long" not in more else 64} | more,
        **HALVES,
    )

    assert near_check(tmp_path / "out").problem is None
    assert headrace.verify(tmp_path / "out").problems == []


@pytest.mark.slow
def test_verify_finds_near_sequences_that_are_in_two_splits(tmp_path: Path) -> None:
    rows = long_rows(40)
    source = write_jsonl(tmp_path / "in.jsonl", [*rows, *nearly(rows)])
    run = packed(source, tmp_path / "out", near=0.8, duplicates="count", **HALVES)
    checks = verify_packed(change_settings(run.run, duplicates="group"))

    (check,) = (each for each in checks if each.name == "near content apart")
    assert "pairs of sequences in different splits have one of 0.8 or more" in str(check.problem)


@pytest.mark.parametrize(
    ("asked", "what"), [({"near": 0.4}, "near"), ({"near": 0.8, "duplicates": "allow"}, "allow")]
)
def test_what_cannot_work_is_refused(asked: dict[str, Any], what: str) -> None:
    with pytest.raises(SettingsError, match=what):
        PackedSequences(blend="x.jsonl", **asked)
