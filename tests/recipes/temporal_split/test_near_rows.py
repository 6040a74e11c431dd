"""Rows whose texts are nearly equal go where `duplicates` says if `near` is given, and the output alone proves it."""

from __future__ import annotations

import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from fault_recipes import make
from forks import server

import headrace
from headrace.dataset.open import FinishedRun
from headrace.errors import SettingsError
from headrace.run.events import Event, Note, Step, TaskDone
from headrace.split.settings import TemporalSplit
from headrace.split.verify import checks_of, verify_split
from raised import raised
from resealed import change_settings
from tables import digests, small_source, split, split_rows, write_rows

SPLITS = ("train", "val", "test")
NAMES = ("id", "date", "row", "text")
NEAR = 0.8
BIRDS = (
    Path(__file__).parents[3].parent / "shared" / "data" / "job2-faa-bird-remarks" / "birds.csv.gz"
)
Row = tuple[str, ...]


def reviews(directory: Path, seed: int, extension: str = ".csv", shards: int = 3) -> Path:
    """Texts of 40 words, with versions in which one or two words at an end are others; some are equal."""
    draw = random.Random(seed)
    rows: list[Row] = []
    for _ in range(120):
        words = [f"w{draw.randrange(800)}" for _ in range(40)]
        for _ in range(draw.choice([1, 1, 2, 4])):
            day = draw.choice(["2024-06-01", "2024-11-30", "2025-01-01", "2025-03-01"])
            own = [*words[draw.randrange(2) :], *(["again"] * draw.randrange(2))]
            rows.append((f"e{draw.randrange(200)}", day, str(len(rows)), " ".join(own)))
    for shard in range(shards):
        write_rows(directory / f"part-{shard}{extension}", NAMES, rows[shard::shards])
    return directory


def shingles(text: str) -> set[tuple[str, ...]]:
    words = text.split()
    return {tuple(words[at : at + 3]) for at in range(len(words) - 2)}


def near_groups(rows: list[Row]) -> dict[str, int]:
    """The group of each row, by its number: merged until nothing changes."""
    sets = [shingles(row[3]) for row in rows]
    group = list(range(len(rows)))
    for one in range(len(rows)):
        for other in range(one):
            if group[one] != group[other] and len(sets[one] & sets[other]) >= NEAR * len(
                sets[one] | sets[other]
            ):
                old, new = group[one], group[other]
                group = [new if each == old else each for each in group]
    return {row[2]: own for row, own in zip(rows, group, strict=True)}


def rows_by_split(run: Any) -> dict[str, list[Row]]:
    return {name: [tuple(map(str, row)) for row in split_rows(run, name)] for name in SPLITS}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_rows_go_where_a_plain_implementation_sends_them(tmp_path: Path, seed: int) -> None:
    source = reviews(tmp_path / "in", seed)
    made = {
        word: split(
            source, tmp_path / word, duplicates=word, content="text", near=NEAR, train_ratio=0.5
        )
        for word in ("count", "group", "drop")
    }
    found = {word: rows_by_split(each.run) for word, each in made.items()}
    plain = rows_by_split(split(source, tmp_path / "plain", content="text", train_ratio=0.5).run)
    trained_later = made["count"].manifest.dropped["train_entity_after_cutoff"]
    every = [
        line for path in sorted(source.iterdir()) for line in path.read_text().splitlines()[1:]
    ]
    group = near_groups([tuple(line.split(",")) for line in every])

    assert plain == found["count"]
    metadata = made["count"].manifest.metadata["duplicates"]["near"]
    seen: set[int] = set()
    for name in SPLITS:
        assert metadata["in_earlier_split"].get(name, 0) == sum(
            group[row[2]] in seen for row in plain[name]
        )
        seen |= {group[row[2]] for row in plain[name]}
    assert metadata["in_earlier_split"]["test"] > 5 < metadata["pairs"]

    sides = {name: {group[row[2]] for row in found["group"][name]} for name in SPLITS}
    assert (
        not sides["train"] & sides["val"]
        | sides["train"] & sides["test"]
        | sides["val"] & sides["test"]
    )
    assert {row[0] for row in found["group"]["train"]}.isdisjoint(
        row[0] for row in found["group"]["val"]
    )
    before = Counter(row for name in ("train", "val") for row in plain[name])
    assert before == Counter(row for name in ("train", "val") for row in found["group"][name])

    ordered = sorted((row[1], row[2], name) for name in SPLITS for row in plain[name])
    place = {line.split(",")[2]: at for at, line in enumerate(every)}
    ordered.sort(key=lambda each: (each[0], place[each[1]]))
    first: dict[int, str] = {}
    for _, number, _ in ordered:
        first.setdefault(group[number], number)
    assert set(first.values()) == {row[2] for name in SPLITS for row in found["drop"][name]}
    assert made["drop"].manifest.dropped["duplicate"] == len(ordered) - len(first)
    assert made["drop"].manifest.dropped["train_entity_after_cutoff"] == trained_later

    for word in ("group", "drop"):
        verdict = headrace.verify(tmp_path / word)
        assert verdict.problems == []
        assert [each.category for each in verdict.checks if each.name == "near content apart"] == [
            "law"
        ]
        assert (
            headrace.find_leaks(headrace.open(tmp_path / word), content=["text"], near=NEAR).worst
            == 0
        )
    assert (
        headrace.find_leaks(headrace.open(tmp_path / "count"), content=["text"], near=NEAR).worst
        > 0
    )


@pytest.mark.slow
@pytest.mark.parametrize("word", ["group", "drop", "count"])
def test_workers_formats_and_attempts_change_no_row(tmp_path: Path, word: str) -> None:
    asked = {"duplicates": word, "content": "text", "near": NEAR, "train_ratio": 0.5}
    source = reviews(tmp_path / "in", 4)
    runs = [
        split(source, tmp_path / f"out{workers}", workers=workers, **asked).run
        for workers in (1, 2, 8)
    ]
    other = split(reviews(tmp_path / "parquet", 4, ".parquet"), tmp_path / "other", **asked).run

    def stop(event: Event) -> None:
        if isinstance(event, TaskDone) and event.stage == "near_rows":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        split(source, tmp_path / "twice", on_event=stop, workers=1, **asked)
    again = split(source, tmp_path / "twice", workers=1, **asked).run

    assert digests(runs[0]) == digests(runs[1]) == digests(runs[2]) == digests(again)
    assert rows_by_split(runs[0]) == rows_by_split(other)


def folds_of(
    source: Path, out: Path, **asked: Any
) -> tuple[list[Row], list[list[str]], dict[str, Any]]:
    """The rows of the source in its order, the numbers of the rows that test in each fold, and facts of the run."""
    settings = TemporalSplit(source=source, time="date", content="text", near=NEAR, **asked)
    made = headrace.prepare(settings, out)
    every = [
        line for path in sorted(source.iterdir()) for line in path.read_text().splitlines()[1:]
    ]
    dataset = headrace.open(out)
    tested = [
        dataset.fold(fold)["test"].to_arrow()["row"].to_pylist()
        for fold in range(len(made.manifest.folds))
    ]
    return (
        [tuple(line.split(",")) for line in every],
        [[str(row) for row in own] for own in tested],
        made.manifest.metadata,
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_entities_with_near_rows_take_turns_together(tmp_path: Path, seed: int) -> None:
    asked = {"entity": "id", "folds": headrace.GroupKFold(4), "duplicates": "group"}
    rows, tested, metadata = folds_of(reviews(tmp_path / "in", seed), tmp_path / "out", **asked)
    group, fold = (
        near_groups(rows),
        {row: number for number, own in enumerate(tested) for row in own},
    )

    assert sorted(row[2] for row in rows) == sorted(row for own in tested for row in own)
    for key in (lambda row: row[0], lambda row: group[row[2]]):
        assert len({(key(row), fold[row[2]]) for row in rows}) == len({key(row) for row in rows})
    assert 5 < metadata["fold_content"]["near"]["pairs"]
    assert headrace.verify(tmp_path / "out").problems == []


@pytest.mark.slow
@pytest.mark.parametrize("folds", [headrace.GroupKFold(3), headrace.Rolling(n=2, step="60d")])
def test_the_earliest_of_near_rows_stays_in_folds(tmp_path: Path, folds: Any) -> None:
    rolls = isinstance(folds, headrace.Rolling)
    asked = {"split_date": "2024-11-30", "entity": None} if rolls else {"entity": "id"}
    source = reviews(tmp_path / "in", 3)
    rows, tested, _ = folds_of(source, tmp_path / "out", folds=folds, duplicates="drop", **asked)
    group, first = near_groups(rows), dict[int, Row]()
    for row in sorted(rows, key=lambda each: each[1]):  # equal times in the order of the source
        first.setdefault(group[row[2]], row)
    expected = {
        row[2] for row in first.values() if not rolls or "2024-11-30" <= row[1] < "2025-03-30"
    }

    assert expected == {row for own in tested for row in own}
    assert headrace.verify(tmp_path / "out").problems == []


def test_verify_finds_near_rows_in_two_folds(tmp_path: Path) -> None:
    settings = TemporalSplit(
        source=reviews(tmp_path / "in", 4), time="date", entity="id", folds=headrace.GroupKFold(3)
    )
    made = headrace.prepare(settings, tmp_path / "out")
    run = FinishedRun(made.run, made.manifest)
    run.manifest.metadata["fold_content"] = {"content": ["text"], "near": {"not_compared": 0}}
    asked = settings.model_copy(update={"near": NEAR, "duplicates": "group", "content": ("text",)})
    check = checks_of(run, asked, 1)[-1]

    assert check.name == "near content apart"
    assert "have a Jaccard index of 0.8 or more, such as" in str(check.problem)


@pytest.mark.slow
def test_a_kill_in_any_near_stage_goes_on_by_receipts(tmp_path: Path) -> None:
    settings = {
        "source": str(reviews(tmp_path / "in", 6)),
        "time": "date",
        "entity": "id",
        "split_date": "2025-01-01",
    }
    settings |= {"duplicates": "group", "content": ["text"], "near": NEAR}
    done: list[str] = []

    def hear(event: Event) -> None:
        done.extend([event.stage] if isinstance(event, TaskDone) else [])

    whole = make("split csv.gz", settings, tmp_path / "whole", workers=1, on_event=hear)
    kills = [
        done.index(f"near_{stage}") + 1
        for stage in ("sign", "propose", "shingles", "compare", "rows")
    ]
    for count in kills:
        out = tmp_path / str(count)
        arguments = ("split csv.gz", settings, str(out), "receipt.linked", count, 1)
        child = server().start("killed_runs:child", *arguments, output=tmp_path / f"{count}.out")
        assert -signal.SIGKILL == child.wait().code
        events: list[Event] = []
        again = make("split csv.gz", settings, out, workers=1, on_event=events.append)
        steps = [event.name for event in events if isinstance(event, Step)]

        assert len(done) - count == steps.count("receipt.linked")
        assert digests(whole.run) == digests(again.run)


@pytest.mark.slow
def test_verify_finds_near_rows_that_should_not_be_there(tmp_path: Path) -> None:
    made = split(
        reviews(tmp_path / "in", 5), tmp_path / "out", content="text", near=NEAR, train_ratio=0.5
    )
    run = change_settings(made.run, duplicates="group")
    problems = {each.name: each.problem for each in verify_split(run) if each.problem}

    assert "have a Jaccard index of 0.8 or more, such as" in problems["near content apart"]


def test_counted_near_rows_are_told(tmp_path: Path) -> None:
    notes: list[Event] = []
    source = reviews(tmp_path / "in", 6)
    split(
        source, tmp_path / "out", content="text", near=NEAR, train_ratio=0.5, on_event=notes.append
    )
    told = [each.text for each in notes if isinstance(each, Note)]

    assert any("pairs of rows are near" in each for each in told)
    assert any(
        "are near, or joined through near ones to, rows of an earlier split" in each
        for each in told
    )


def test_settings_that_cannot_work_are_refused(tmp_path: Path) -> None:
    source = small_source(tmp_path / "in", extension=".parquet")
    with raised(SettingsError, setting="near"):
        split(source, tmp_path / "out", near=NEAR, duplicates="allow")
    with pytest.raises(SettingsError, match="near"):
        split(source, tmp_path / "out", near=0.2)
    write_rows(
        tmp_path / "numbers" / "part-0.csv",
        NAMES[:3],
        [(f"e{n}", "2024-01-01", str(n)) for n in range(9)],
    )
    with raised(SettingsError, setting="near", remedy="leave it out"):
        split(tmp_path / "numbers", tmp_path / "out", near=NEAR, types={"row": "int64"})


@pytest.mark.slow
@pytest.mark.skipif(
    not BIRDS.is_file(), reason=f"{BIRDS} is not there: the data set is not in the repository"
)
def test_remarks_of_pilots_that_are_nearly_the_same_are_in_one_split(tmp_path: Path) -> None:
    asked = {
        "time": "date",
        "entity": "opid",
        "split_date": "1997-01-01",
        "dialect": {"time_format": "%m/%d/%Y %H:%M:%S"},
    }
    made = split(
        BIRDS,
        tmp_path / "out",
        duplicates="drop",
        content="remarks",
        near=NEAR,
        train_ratio=0.9,
        **asked,
    )

    assert made.manifest.metadata["duplicates"]["near"]["pairs"] > 40
    assert headrace.verify(tmp_path / "out").problems == []
