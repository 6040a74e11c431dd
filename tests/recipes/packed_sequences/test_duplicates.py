"""Rows with the same content share a split, whatever says that they are the same; the output alone proves it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chats import DEMOS, GSM8K, QWEN, needs_data, small_tokenizer
from hypothesis import given
from hypothesis import strategies as st
from recipe_cases import packed, sequences_in, token_rows, write_jsonl

import headrace
from headrace.arrays import least_of_component
from headrace.dataset.open import FinishedRun, find_run
from headrace.packing.chats.layouts import content_of, sample_of
from headrace.packing.verify import verify_packed
from headrace.run.events import Note
from resealed import change_settings

SPLITS = ("train", "valid", "test")
THIRDS = {"train_ratio": 0.6, "val_ratio": 0.2, "test_ratio": 0.2}


def chat(question: str, answer: str, *more: str) -> dict[str, Any]:
    roles = ("user", "assistant") * 9
    return {
        "messages": [
            {"role": role, "content": text}
            for role, text in zip(roles, (question, answer, *more), strict=False)
        ]
    }


def content(row: dict[str, Any]) -> bytes:
    return content_of(sample_of(row, "auto", {}, {}))


def seen_twice(out: Path) -> int:
    """Sequences of a split that are in another one, too."""
    found = [set(sequences_in(out, split)) for split in SPLITS]
    return len(found[0] & found[1]) + len(found[0] & found[2]) + len(found[1] & found[2])


def content_check(out: Path) -> Any:
    return next(check for check in headrace.verify(out).checks if check.name == "content apart")


@given(
    rows=st.integers(1, 40),
    edges=st.lists(
        st.lists(st.tuples(st.integers(0, 39), st.integers(0, 12)), max_size=40), max_size=3
    ),
)
def test_components_are_those_of_a_walk(rows: int, edges: list[list[tuple[int, int]]]) -> None:
    kept = [[(row % rows, number) for row, number in each] for each in edges]
    groups = [
        (np.array([row for row, _ in each], np.int64), np.array([n for _, n in each], np.int64))
        for each in kept
    ]
    near: dict[Any, set[Any]] = {row: set() for row in range(rows)}
    for kind, each in enumerate(kept):
        for row, number in each:
            near[row].add((kind, number))
            near.setdefault((kind, number), set()).add(row)
    expected = []
    for row in range(rows):
        reached, todo = {row}, [row]
        while todo:
            todo += [
                each for each in near[todo.pop()] if each not in reached and not reached.add(each)
            ]
        expected.append(min(each for each in reached if isinstance(each, int)))

    assert expected == least_of_component(rows, groups).tolist()


def test_case_white_space_and_widths_of_characters_make_no_other_question() -> None:
    assert content(chat("What is  2 + 2?\n", "4")) == content(chat("what is 2 + 2?", "four"))
    assert content(chat("\uff21\uff22", "x")) == content(chat("ab", "y"))
    assert content(chat("a", "1", "b", "2")) != content(chat("a b", "1"))
    assert content(chat("a", "1", "b", "2")) != content(chat("a", "1"))
    assert content({"prompt": "What?", "completion": "x"}) == content(chat("what?", "y"))


@pytest.mark.parametrize("how", [None, "group", "drop", "count", "allow"])
def test_each_chat_five_times_trains_in_one_split(tmp_path: Path, how: str | None) -> None:
    rows = [
        chat(f"question {n} of many", f"answer {n} number {again % 2}")
        for n in range(100)
        for again in range(5)
    ]
    source = write_jsonl(tmp_path / "in.jsonl", rows)
    events: list[Any] = []

    run = packed(
        source,
        tmp_path / "out",
        tokenizer=small_tokenizer(tmp_path / "t"),
        duplicates=how,
        on_event=events.append,
        **THIRDS,
    )

    found, told = (
        run.manifest.metadata["duplicates"],
        [each.text for each in events if isinstance(each, Note)],
    )
    check = content_check(tmp_path / "out")
    assert check.problem is None
    if how in (None, "group", "drop"):
        assert seen_twice(tmp_path / "out") == 0
        assert found["seen_in_earlier_splits"] == 0
        assert {"train": 60, "valid": 20, "test": 20} == {
            name: run.manifest.metadata["units"][0][name] for name in SPLITS
        }
        assert (300 if how == "drop" else 0) == run.manifest.dropped["duplicate"]
        assert "no sequence of a split is in another" in check.detail
    else:
        assert seen_twice(tmp_path / "out") > 50
        assert "not asked for" in check.detail
        assert (how == "count") == any('choose duplicates="group"' in text for text in told)
        assert (found is None) == (how == "allow")
    if found:
        assert (500, 400, 300, 5) == tuple(
            found[name] for name in ("rows", "same_content", "copies", "largest")
        )


def test_rows_that_repeat_nothing_are_split_as_if_nobody_had_looked(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", token_rows(200))
    packed(source, tmp_path / "alone", duplicates="allow")
    packed(source, tmp_path / "out")

    for split in SPLITS:
        assert sequences_in(tmp_path / "alone", split) == sequences_in(tmp_path / "out", split)


@pytest.mark.slow
def test_datasets_keep_their_shares_and_put_common_rows_where_the_first_did(tmp_path: Path) -> None:
    rows = token_rows(600, 5)
    datasets = [
        {"name": name, "path": write_jsonl(tmp_path / f"{name}.jsonl", part)}
        for name, part in (("one", rows[:400]), ("two", rows[200:]), ("three", rows[:400]))
    ]
    run = packed({"datasets": datasets}, tmp_path / "out", **THIRDS)

    assert seen_twice(tmp_path / "out") == 0
    units = {
        each["of"]: [each[split] for split in SPLITS] for each in run.manifest.metadata["units"]
    }
    assert units["one"] == units["three"] == [240, 80, 80]
    assert abs(units["two"][2] - 80) <= 20
    assert 400 == sum(units["two"])


def test_an_entity_and_content_join_each_other(tmp_path: Path) -> None:
    rows = token_rows(300, 6, keys=100)
    twins = [{**row, "task": f"twin of {row['task']}"} for row in rows[:50]]
    source = write_jsonl(tmp_path / "in.jsonl", [*rows, *twins])
    packed(source, tmp_path / "out", entity="task", **THIRDS)
    assert (
        headrace.find_leaks(headrace.open(tmp_path / "out")).unit == "sequence"
    )  # whose rows have no such column

    split_of = {ids: split for split in SPLITS for ids, _ in sequences_in(tmp_path / "out", split)}
    of_task: dict[str, set[str]] = {}
    for row in [*rows, *twins]:
        of_task.setdefault(row["task"], set()).add(split_of[tuple(row["input_ids"])])
    assert {1} == {len(each) for each in of_task.values()}
    assert seen_twice(tmp_path / "out") == 0


@pytest.mark.parametrize("how", [None, "group"])
def test_given_splits_lose_rows_only_if_that_is_asked_for(tmp_path: Path, how: str | None) -> None:
    rows = token_rows(100, 7)
    blend = {
        "train": [{"name": "d", "path": write_jsonl(tmp_path / "train.jsonl", rows[:60])}],
        "test": [{"name": "d", "path": write_jsonl(tmp_path / "test.jsonl", rows[50:])}],
    }
    run = packed(blend, tmp_path / "out", duplicates=how)

    lost = 10 if how == "group" else 0
    assert lost == run.manifest.dropped["content_in_test"]
    assert 10 - lost == run.manifest.metadata["duplicates"]["seen_in_earlier_splits"]
    assert Counter({"train": 60 - lost, "test": 50}) == Counter(
        run.manifest.metadata["source_rows"]
    )


def test_columns_may_be_named_in_place_of_user_turns(tmp_path: Path) -> None:
    rows = [{**row, "origin": number // 4} for number, row in enumerate(token_rows(200))]
    rows[0]["origin"] = None  # says nothing, so its tokens do
    run = packed(
        write_jsonl(tmp_path / "in.jsonl", rows), tmp_path / "out", content="origin", **THIRDS
    )

    split_of = {ids: split for split in SPLITS for ids, _ in sequences_in(tmp_path / "out", split)}
    for origin in range(1, 50):
        assert 1 == len(
            {split_of[tuple(row["input_ids"])] for row in rows if row["origin"] == origin}
        )
    assert 149 == run.manifest.metadata["duplicates"]["same_content"]


def test_verify_finds_sequences_in_two_splits(tmp_path: Path) -> None:
    rows = token_rows(60)
    run = packed(
        write_jsonl(tmp_path / "in.jsonl", rows * 2), tmp_path / "out", duplicates="allow", **THIRDS
    )
    finished = FinishedRun(*find_run(tmp_path / "out"))

    def found() -> Any:
        return next(check for check in verify_packed(finished, 1) if check.name == "content apart")

    assert run.manifest.metadata["duplicates"] is None
    assert found().problem is None
    finished = change_settings(finished.root, duplicates="group")
    assert "sequences are in test and train" in found().problem


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize("source", [GSM8K, DEMOS], ids=lambda path: path.name)
def test_real_chats_have_no_sequence_in_two_splits(tmp_path: Path, source: Path) -> None:
    files = sorted(each for each in source.rglob("*.json*") if "dataset_info" not in each.name)
    blend = {"datasets": [{"name": f"d{place}", "path": each} for place, each in enumerate(files)]}
    asked = {"tokenizer": QWEN, "pack_size": 8192, "too_long": "drop", "max_bad_share": 1.0}
    recipe = headrace.PackedSequences(blend=blend, **asked, **THIRDS)
    try:
        headrace.prepare(recipe, tmp_path / "out", workers=2)
    except headrace.InputError as error:
        pytest.skip(f"not all of these are chats: {error}")

    assert seen_twice(tmp_path / "out") == 0
    assert content_check(tmp_path / "out").problem is None
