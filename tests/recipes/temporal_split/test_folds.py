"""Folds on disk: each row is written once, and each fold delivers exactly the rows that its rule says."""

import datetime as dt
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import headrace
from headrace.cli import app
from headrace.dataset.open import FinishedRun, find_run
from headrace.dataset.verify import certify, verify
from headrace.errors import InputError, SettingsError
from headrace.report.write import write_report
from headrace.run.prepare import Prepared, prepare
from headrace.split.verify import checks_of
from laws import examples
from raised import raised
from resealed import reseal
from tables import digests, fresh, split, split_rows, write_rows

HEADER = ("id", "date", "row", "kind")
CUT = dt.datetime(2025, 1, 1)
HOUR = dt.timedelta(hours=1)
Table = list[list[tuple[str, int]]]

tables = st.lists(
    st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(-90, 60)), min_size=1, max_size=14),
    min_size=1,
    max_size=3,
)


def write(directory: Path, table: Table, extension: str = ".csv", zone: str = "") -> Path:
    """Shards of (id, hours from the cut, row number)."""
    number = 0
    for place, rows in enumerate(table):
        written = [
            (id_, f"{CUT + hours * HOUR}{zone}", str(number + at), "ab"[hours % 2])
            for at, (id_, hours) in enumerate(rows)
        ]
        number += len(rows)
        write_rows(directory / f"part-{place:05d}{extension}", HEADER, written)
    return directory


def fold(source: Path, out: Path, *, workers: int = 2, **asked: Any) -> Prepared:
    names = {"source": source, "time": "date"}
    return prepare(headrace.TemporalSplit(**names, **asked), out, workers=workers)


def delivered(out: Path) -> list[dict[str, list[int]]]:
    """The numbers of the rows of each split of each fold, as they are read."""
    dataset = headrace.open(out)
    assert dataset.manifest is not None
    found = []
    for number in range(len(dataset.manifest.folds)):
        each = dataset.fold(number)
        found.append(
            {
                name: sorted(int(row) for row in each[name].to_arrow()["row"].to_pylist())
                for name in each.splits
            }
        )
        assert dict(each.split_rows) == {name: len(rows) for name, rows in found[-1].items()}
    return found


def rows_of(table: Table) -> list[tuple[str, int]]:
    return [row for part in table for row in part]


@pytest.mark.slow
@given(
    tables, st.integers(1, 4), st.integers(1, 30), st.none() | st.integers(5, 60), st.integers(0, 12),
    st.sampled_from([".csv", ".parquet", ".jsonl"]), st.sampled_from(["sharded", "single"]), st.sampled_from(["", "Z"]),
)  # fmt: skip
@settings(max_examples=examples(60))
def test_rolling_folds_hold_the_rows_that_the_rule_says(
    tmp_path: Path,
    table: Table,
    n: int,
    step: int,
    window: int | None,
    gap: int,
    extension: str,
    layout: str,
    zone: str,
) -> None:
    directory = fresh(tmp_path)
    source = write(directory / "in", table, extension, zone)
    expected: list[dict[str, list[int]]] = []
    for number in range(n):
        cut = number * step
        spans = {
            "train": (-1000 if window is None else cut - gap - window, cut - gap),
            "test": (cut, cut + step),
        }
        expected.append(
            {
                name: [row for row, (_, hours) in enumerate(rows_of(table)) if first <= hours < end]
                for name, (first, end) in spans.items()
            }
        )
    asked: dict[str, Any] = {
        "split_date": "2025-01-01",
        "folds": headrace.Rolling(
            n=n, step=f"{step}h", window="expanding" if window is None else f"{window}h"
        ),
        "label_horizon": f"{gap}h" if gap else None,
        "layout": layout,
    }
    if not all(each["train"] for each in expected):
        with raised(InputError, remedy="choose a later split_date"):
            fold(source, directory / "out", **asked)
        return
    made = fold(source, directory / "out", **asked)
    held = {row for each in expected for rows in each.values() for row in rows}

    assert expected == delivered(directory / "out")
    assert len(held) == sum(each.rows for each in made.manifest.splits.values())
    assert made.manifest.dropped["in_no_fold"] == len(rows_of(table)) - len(held)
    assert not verify(directory / "out").problems


@pytest.mark.slow
@given(tables, st.sampled_from(["keep", "drop"]), st.sampled_from([0, 7]), st.integers(0, 3))
@settings(max_examples=examples(40))
def test_one_fold_that_tests_all_the_rest_is_the_plain_split(
    tmp_path: Path, table: Table, val_in_test: str, gap: int, seed: int
) -> None:
    directory = fresh(tmp_path)
    source = write(directory / "in", table)
    asked: dict[str, Any] = {
        "val_in_test": val_in_test, "seed": seed, "gap": f"{gap}h" if gap else None, "duplicates": "allow"
    }  # fmt: skip
    try:
        plain = split(source, directory / "plain", **asked)
    except InputError:
        return
    expected = {
        name: sorted(int(row[2]) for row in split_rows(plain.run, name))
        for name in ("train", "val", "test")
    }
    split(source, directory / "out", folds=headrace.Rolling(n=1, step="9w"), **asked)

    assert {name: rows for name, rows in expected.items() if rows} == {
        name: rows for name, rows in delivered(directory / "out")[0].items() if rows
    }


@pytest.mark.slow
@given(
    tables,
    st.integers(1, 4),
    st.integers(4, 30),
    st.sampled_from(["keep", "drop"]),
    st.integers(0, 3),
)
@settings(max_examples=examples(40))
def test_no_entity_trains_and_tests_in_a_fold_that_rolls(
    tmp_path: Path, table: Table, n: int, step: int, val_in_test: str, seed: int
) -> None:
    directory = fresh(tmp_path)
    source = write(directory / "in", table)
    asked = {
        "folds": headrace.Rolling(n=n, step=f"{step}h"),
        "val_in_test": val_in_test,
        "seed": seed,
    }
    try:
        split(source, directory / "out", **asked)
    except InputError:  # a fold has no rows to train
        return
    tested: Counter[int] = Counter()
    for number, found in enumerate(delivered(directory / "out")):
        entities = {name: {rows_of(table)[row][0] for row in rows} for name, rows in found.items()}
        assert not entities["train"] & (entities["val"] | entities["test"])
        assert val_in_test == "keep" or not entities["val"] & entities["test"]
        assert all(rows_of(table)[row][1] < number * step for row in found["train"] + found["val"])
        tested.update(found["test"])

    assert max(tested.values(), default=1) == 1
    assert not verify(directory / "out").problems


@pytest.mark.slow
@given(tables, st.integers(2, 4), st.none() | st.just("kind"), st.integers(0, 3))
@settings(max_examples=examples(60))
def test_each_entity_tests_in_one_fold_and_trains_in_all_others(
    tmp_path: Path, table: Table, k: int, stratify: str | None, seed: int
) -> None:
    directory = fresh(tmp_path)
    source = write(directory / "in", table)
    counts = Counter(id_ for id_, _ in rows_of(table))
    asked: dict[str, Any] = {
        "entity": "id",
        "folds": headrace.GroupKFold(k, stratify=stratify),
        "seed": seed,
    }
    if len(counts) < k:
        with raised(InputError, column="id", setting="folds", remedy="choose fewer folds"):
            fold(source, directory / "out", **asked)
        return
    fold(source, directory / "out", **asked)
    found = delivered(directory / "out")

    every = list(range(len(rows_of(table))))
    assert every == sorted(row for each in found for row in each["test"])
    for each in found:
        assert every == sorted(each["train"] + each["test"])
        assert not {rows_of(table)[row][0] for row in each["train"]} & {
            rows_of(table)[row][0] for row in each["test"]
        }
    if stratify is None:
        load = [0] * k
        for count in sorted(counts.values(), reverse=True):
            load[load.index(min(load))] += count
        assert load == [len(each["test"]) for each in found]
    assert not verify(directory / "out").problems


def some(directory: Path, extension: str = ".csv") -> Path:
    """300 rows of 40 entities in three shards; entity n has about as many rows as n."""
    dice = np.random.default_rng(3)
    pool = [f"c{each:02d}" for each in range(40) for _ in range(each + 1)]
    table = [
        [(pool[dice.integers(len(pool))], int(dice.integers(-300, 96))) for _ in range(300)]
        for _ in range(3)
    ]
    return write(directory, table, extension)


@pytest.mark.slow
@pytest.mark.parametrize(
    "output", [{}, {"format": "parquet"}, {"layout": "single", "label": "kind"}]
)
@pytest.mark.parametrize(
    "folds", ["rolling:n=4,step=1d,window=7d", "group-kfold:k=4,stratify=kind"]
)
def test_workers_change_no_byte(tmp_path: Path, output: dict[str, Any], folds: str) -> None:
    source = some(tmp_path / "in")
    dated = {"split_date": "2025-01-01", "gap": "12h"} if folds.startswith("rolling") else {}
    for n in (1, 3):
        fold(source, tmp_path / f"out{n}", workers=n, entity="id", folds=folds, **dated, **output)
    one, three = (find_run(tmp_path / f"out{n}")[0] for n in (1, 3))

    assert digests(one) == digests(three)
    assert not verify(tmp_path / "out1").problems


def test_another_seed_deals_entities_of_equal_size_anew(tmp_path: Path) -> None:
    source = write(tmp_path / "in", [[(f"e{each}", 0) for each in range(60)]])
    found = []
    for seed in (1, 1, 2):
        fold(source, tmp_path / "out", entity="id", folds="group-kfold:k=3", seed=seed)
        found.append([each["test"] for each in delivered(tmp_path / "out")])

    assert found[0] == found[1] != found[2]


@pytest.mark.slow
def test_a_fold_streams_each_of_its_rows_once_and_resumes(tmp_path: Path) -> None:
    fold(
        some(tmp_path / "in"),
        tmp_path / "out",
        entity="id",
        split_date="2025-01-01",
        folds="rolling:n=3,step=1d",
    )
    expected = delivered(tmp_path / "out")
    asked: dict[str, Any] = {"batch_size": 16, "shuffle": True, "seed": 5, "batch_format": "numpy"}
    for number in range(3):
        dataset = headrace.open(tmp_path / "out").fold(number)
        stream = dataset.stream("train", **asked)
        batches = [batch["row"].tolist() for batch in stream]
        halted = dataset.stream("train", **asked)
        early = [batch["row"].tolist() for _, batch in zip(range(4), halted, strict=False)]
        resumed = dataset.stream("train", **asked)
        resumed.load_state_dict(halted.state_dict())

        assert expected[number]["train"] == sorted(int(row) for batch in batches for row in batch)
        assert batches == early + [batch["row"].tolist() for batch in resumed]
        filtered = dataset.stream("train", filter=[("kind", "==", "a")], **asked)
        assert sum(len(batch["row"]) for batch in filtered) < len(expected[number]["train"])


def test_the_same_state_is_refused_by_another_fold(tmp_path: Path) -> None:
    fold(some(tmp_path / "in"), tmp_path / "out", entity="id", folds="group-kfold:k=3")
    dataset = headrace.open(tmp_path / "out")
    state = dataset.fold(0).stream("train", batch_size=8, batch_format="numpy").state_dict()

    with pytest.raises(headrace.errors.StreamError):
        dataset.fold(1).stream("train", batch_size=8, batch_format="numpy").load_state_dict(state)


def test_a_fold_has_to_be_chosen(tmp_path: Path) -> None:
    fold(some(tmp_path / "in"), tmp_path / "out", entity="id", folds="group-kfold:k=3")
    split(some(tmp_path / "in2"), tmp_path / "plain")
    dataset = headrace.open(tmp_path / "out")

    with raised(InputError, path=dataset.root, remedy="choose one, with --fold 0"):
        dataset.stream("train", batch_size=8)
    with pytest.raises(SettingsError, match="choose a fold"):
        headrace.find_leaks(dataset)
    with raised(SettingsError, setting="fold", value=3):
        dataset.fold(3)
    with raised(SettingsError, remedy="prepare it in folds"):
        headrace.open(tmp_path / "plain").fold(0)
    with pytest.raises(SettingsError, match="choose the fold first"):
        dataset.filter([("kind", "==", "a")]).fold(0)
    assert headrace.find_leaks(dataset.fold(2), content=["row"]).worst == 0


@pytest.mark.slow
def test_rows_that_a_wider_gap_reaches_are_found(tmp_path: Path) -> None:
    asked = {
        "split_date": "2025-01-01",
        "folds": "rolling:n=3,step=1d",
        "gap": "6h",
        "label_horizon": "3h",
    }
    made = fold(some(tmp_path / "in"), tmp_path / "out", entity="id", **asked)
    certificate = certify(tmp_path / "out")
    assert {
        "gap before the cutoff",
        "labels end before the cutoff",
        "train and test are apart",
        "folds",
    } <= {each["check"] for each in certificate["proved"]}

    config = {**json.loads((made.run / "config.json").read_bytes()), "gap": "20h"}
    config.pop("recipe")
    wider = checks_of(FinishedRun(*find_run(tmp_path / "out")), headrace.TemporalSplit(**config), 2)
    problems = {each.name: str(each.problem) for each in wider if each.problem}

    assert "fold 0: the last row of" in problems["gap before the cutoff"]
    assert "its date is missing or outside the time ranges of cell-" in problems["dates"]


def test_an_entity_that_trains_and_tests_is_found(tmp_path: Path) -> None:
    fold(some(tmp_path / "in"), tmp_path / "out", entity="id", folds="group-kfold:k=3")
    run = FinishedRun(*find_run(tmp_path / "out"))
    other = headrace.TemporalSplit(
        source=tmp_path, time="date", entity="kind", folds="group-kfold:k=3"
    )
    problems = {each.name: str(each.problem) for each in checks_of(run, other, 2) if each.problem}

    assert "fold 0: " in problems["train and test are apart"]
    assert "is in another split of the fold too" in problems["train and test are apart"]


def test_folds_without_an_erased_entity_are_still_proved(tmp_path: Path) -> None:
    fold(some(tmp_path / "in"), tmp_path / "out", entity="id", folds="group-kfold:k=3")
    before = sum(len(each["test"]) for each in delivered(tmp_path / "out"))
    done = headrace.forget(tmp_path / "out", ["c39"])

    assert before - done.rows == sum(len(each["test"]) for each in delivered(tmp_path / "out"))
    assert not verify(tmp_path / "out").problems


@pytest.mark.slow
def test_rewritten_folds_have_the_same_rows(tmp_path: Path) -> None:
    fold(
        some(tmp_path / "in"),
        tmp_path / "out",
        entity="id",
        split_date="2025-01-01",
        folds="rolling:n=3,step=1d",
    )
    headrace.rewrite(tmp_path / "out", tmp_path / "fast")

    assert delivered(tmp_path / "out") == delivered(tmp_path / "fast")
    assert not verify(tmp_path / "fast").problems


@pytest.mark.parametrize(
    "folds",
    [
        {},
        [1],
        [{}],
        [{"splits": {"train": ["cell-99"]}}],
        [{"splits": {"train": "cell-00"}}],
        [{"splits": [2]}],
    ],
)
def test_a_manifest_of_other_folds_is_refused(tmp_path: Path, folds: Any) -> None:
    made = fold(some(tmp_path / "in"), tmp_path / "out", entity="id", folds="group-kfold:k=3")
    reseal(made.run, lambda record: record["metadata"].update(folds=folds))

    with pytest.raises(
        headrace.errors.CorruptShard, match="folds has .*, which are not lists of its splits"
    ):
        headrace.open(tmp_path / "out")


@pytest.mark.slow
def test_the_commands_know_folds(tmp_path: Path) -> None:
    source, out = some(tmp_path / "in"), str(tmp_path / "out")
    words = [
        "split",
        str(source),
        "--out",
        out,
        "--time",
        "date",
        "--split-date",
        "2025-01-01",
        "--report",
        "never",
    ]
    done = CliRunner().invoke(
        app, [*words, "--folds", "rolling:n=2,step=1d", "--gap", "2h"], env={"COLUMNS": "120"}
    )
    assert done.exit_code == 0, done.output
    assert "2025-01-02 00:00:00" in done.output

    listed = json.loads(CliRunner().invoke(app, ["inspect", out, "--folds", "--json"]).output)[
        "folds"
    ]
    expected = [
        {name: len(rows) for name, rows in each.items()} for each in delivered(tmp_path / "out")
    ]
    assert expected == [each["rows"] for each in listed]
    plan = [
        "plan",
        out,
        "--fold",
        "1",
        "--split",
        "test",
        "--ranks",
        "2",
        "--batch-size",
        "8",
        "--json",
    ]
    assert expected[1]["test"] == json.loads(CliRunner().invoke(app, plan).output)["rows"]
    assert (
        "Which rows are in train and test of each fold?"
        in write_report(tmp_path / "out").read_text()
    )

    config = tmp_path / "folds.yaml"
    config.write_text(
        f"recipe: temporal_split\nsource: {source}\nout: {out}\ntime: date\nentity: id\n"
        "folds: {kind: group-kfold, k: 3, stratify: kind}\n"
    )
    done = CliRunner().invoke(app, ["run", str(config), "--report", "never", "--json"])
    assert done.exit_code == 0, done.output
    assert 3 == len(delivered(tmp_path / "out"))


def test_a_number_of_folds_is_refused_with_the_kinds_there_are():
    with pytest.raises(
        SettingsError, match=r"folds is 5, .*rolling:n=5,step=30d or group-kfold:k=5"
    ):
        headrace.TemporalSplit(source="raw", time="day", split_date="2025-01-01", folds=5)


contents = st.lists(
    st.tuples(st.sampled_from("abcdefghij"), st.integers(-90, 60), st.sampled_from("tuvwxyz")),
    min_size=1,
    max_size=25,
)


def write_contents(directory: Path, rows: list[tuple[str, int, str]]) -> Path:
    written = [
        (id_, f"{CUT + hours * HOUR}", str(place), content)
        for place, (id_, hours, content) in enumerate(rows)
    ]
    for place in range(2):
        write_rows(
            directory / f"part-{place:05d}.parquet", HEADER, written[place::2] or written[:0]
        )
    return directory


def components(rows: list[tuple[str, int, str]]) -> dict[str, frozenset[str]]:
    """The entities that a chain of shared contents joins each one to, by looking at all pairs until nothing changes."""
    found = {id_: frozenset(id_) for id_, _, _ in rows}
    while True:
        joined = {
            one: frozenset().union(*(found[other] for other, _, theirs in rows if theirs in own))
            for one in found
            for own in [{content for id_, _, content in rows if id_ in found[one]}]
        }
        if joined == found:
            return found
        found = joined


@pytest.mark.slow
@given(contents, st.integers(2, 3))
@settings(max_examples=examples(60), deadline=None)
def test_entities_that_share_content_take_turns_together(
    tmp_path: Path, rows: list[tuple[str, int, str]], k: int
) -> None:
    rows = [*rows, ("p", 0, "0"), ("q", 0, "1"), ("r", 0, "2")]  # three units that nothing joins
    directory = fresh(tmp_path)
    source = write_contents(directory / "in", rows)
    asked: dict[str, Any] = {"entity": "id", "folds": headrace.GroupKFold(k), "content": ("kind",)}
    made = fold(source, directory / "out", duplicates="group", **asked)
    units = components(rows)
    tested = [sorted(each["test"]) for each in delivered(directory / "out")]
    sizes = sorted(Counter(units[id_] for id_, _, _ in rows).values(), reverse=True)

    assert list(range(len(rows))) == sorted(row for each in tested for row in each)
    for each in tested:
        own = {units[rows[row][0]] for row in each}
        assert own.isdisjoint(
            {units[id_] for place, (id_, _, _) in enumerate(rows) if place not in each}
        )
    load = [0] * k
    for size in sizes:
        load[load.index(min(load))] += size
    assert sorted(load) == sorted(map(len, tested))
    assert len(sizes) == made.manifest.metadata["fold_content"]["units"]
    assert verify(directory / "out").problems == []


@pytest.mark.slow
@given(contents, st.booleans())
@settings(max_examples=examples(60), deadline=None)
def test_the_earliest_row_of_each_content_stays_in_folds(
    tmp_path: Path, rows: list[tuple[str, int, str]], rolls: bool
) -> None:
    rows = [*rows, *((id_, -100, str(at)) for at, id_ in enumerate("pqrs"))]
    directory = fresh(tmp_path)
    source = write_contents(directory / "in", rows)
    cuts = {"split_date": "2025-01-01", "folds": headrace.Rolling(n=2, step="60h"), "entity": None}
    asked: dict[str, Any] = cuts if rolls else {"folds": headrace.GroupKFold(2), "entity": "id"}
    made = fold(source, directory / "out", duplicates="drop", content=("kind",), **asked)
    in_source = sorted(range(len(rows)), key=lambda place: (rows[place][1], place % 2, place))
    first = {rows[place][2]: place for place in reversed(in_source)}
    found = {row for each in delivered(directory / "out") for own in each.values() for row in own}

    assert set(first.values()) == found
    assert len(rows) - len(first) == made.manifest.dropped["duplicate"]
    assert verify(directory / "out").problems == []


def test_verify_finds_content_that_is_in_two_folds(tmp_path: Path) -> None:
    rows = [(id_, place, "0" if id_ in "ad" else id_) for place, id_ in enumerate("abcd")]
    made = fold(
        write_contents(tmp_path / "in", rows),
        tmp_path / "out",
        entity="id",
        folds=headrace.GroupKFold(4),
    )
    run = FinishedRun(*find_run(made.run))
    run.manifest.metadata["fold_content"] = {"content": ["kind"]}
    config = {
        "source": tmp_path / "in",
        "time": "date",
        "entity": "id",
        "folds": headrace.GroupKFold(4),
    }
    check = checks_of(
        run, headrace.TemporalSplit(**config, duplicates="group", content=("kind",)), 1
    )[-1]

    assert check.name == "content apart"
    assert check.problem is not None
    assert "its content is that of" in check.problem
