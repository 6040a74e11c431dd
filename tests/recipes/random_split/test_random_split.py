"""Rows and groups are drawn by their own values: equal ones together, whatever lies beside them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from math import sqrt
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from commands import headrace as command
from headrace.errors import InputError, SettingsError
from headrace.run.events import silent
from headrace.split.allocate import hash_entities
from headrace.split.drawing import draw
from headrace.split.features.cells import deal_stratified
from laws import examples
from raised import raised
from resealed import reseal_files
from tables import fresh, read_rows, shards, write_rows

HEADER = ("who", "kind", "value")
Row = tuple[Any, ...]


def rows_of(seed: int, count: int) -> list[Row]:
    draws = random.Random(seed)
    return [
        (f"w{draws.randrange(max(2, count // 6))}", draws.choice("aabc"), str(draws.randrange(40)))
        for _ in range(count)
    ]


def write(root: Path, parts: Sequence[Sequence[Row]], kind: str = "csv") -> Path:
    for number, rows in enumerate(parts):
        write_rows(root / f"part-{number:05d}.{kind}", HEADER, rows)
    return root


def prepared(source: Path, out: Path, **config: Any) -> headrace.types.Prepared:
    workers = config.pop("workers", None)
    return headrace.prepare(
        headrace.RandomSplit(source=source, **config), out, workers=workers, on_event=silent
    )


def splits(source: Path, out: Path, **config: Any) -> dict[str, Counter[Row]]:
    """The rows of each split, which `verify` finds to be as they should be."""
    run = prepared(source, out, **config)
    names = list(run.manifest.splits)
    rows = {
        name: Counter(row for path in shards(run.run, name) for row in read_rows(path)[1])
        for name in names
    }

    assert headrace.verify(out).problems == []
    return rows


def split_of(rows: dict[str, Counter[Row]]) -> dict[Row, str]:
    """The one split of each row."""
    result: dict[Row, str] = {}
    for name, counter in rows.items():
        for row in counter:
            assert result.setdefault(row, name) == name, row
    return result


KEYS = {"rows": lambda row: row, "who": lambda row: row[0], "content": lambda row: row[2]}
DRAWN = [{"by": "rows"}, {"by": "who"}, {"by": "content", "content": "value"}]


@pytest.mark.parametrize("config", DRAWN, ids=lambda config: config["by"])
@given(st.integers(0, 10**6), st.integers(30, 200), st.integers(1, 4))
@settings(max_examples=examples(20), deadline=None)
def test_what_is_drawn_has_one_split_whatever_is_added_and_however_rows_lie(
    tmp_path_factory: pytest.TempPathFactory,
    config: dict[str, Any],
    seed: int,
    count: int,
    parts: int,
) -> None:
    tmp_path = fresh(tmp_path_factory.getbasetemp())
    rows = rows_of(seed, count)
    more = rows_of(seed + 1, count)
    shuffled = random.Random(seed).sample(rows + more, len(rows) + len(more))
    key = KEYS[config["by"]]
    first = splits(write(tmp_path / "one", [rows]), tmp_path / "out", **config)
    source = write(tmp_path / "more", [shuffled[number::parts] for number in range(parts)])
    grown = splits(source, tmp_path / "grown", workers=2, **config)

    assert Counter(rows) == sum(first.values(), Counter())
    assert Counter(rows + more) == sum(grown.values(), Counter())
    then = split_of({name: Counter(map(key, rows)) for name, rows in first.items()})
    now = split_of({name: Counter(map(key, rows)) for name, rows in grown.items()})
    assert then == {value: now[value] for value in then}


def test_shares_are_those_of_a_fair_draw() -> None:
    import pyarrow as pa

    count = 100_000
    asked = headrace.RandomSplit(source="raw", val_ratio=0.05, test_ratio=0.2)
    hashes = hash_entities(pa.array([f"g{number}" for number in range(count)]), asked.seed)
    drawn = Counter(draw(asked, hashes).tolist())

    for code, ratio in ((0, 0.75), (1, 0.05), (2, 0.2)):
        assert abs(drawn[code] - ratio * count) < 5 * sqrt(ratio * (1 - ratio) * count)


def test_a_larger_test_moves_no_row_out_of_test() -> None:
    import pyarrow as pa

    texts = pa.array([f"g{number}" for number in range(5000)])
    tested = []
    for ratio in (0.1, 0.3):
        asked = headrace.RandomSplit(source="raw", test_ratio=ratio)
        tested.append(set((draw(asked, hash_entities(texts, 42)) == 2).nonzero()[0].tolist()))

    assert tested[0] < tested[1]


def test_the_formats_of_the_source_do_not_matter(tmp_path: Path) -> None:
    rows = rows_of(3, 300)
    assert split_of(splits(write(tmp_path / "csv", [rows]), tmp_path / "a")) == split_of(
        splits(write(tmp_path / "jsonl", [rows], "jsonl"), tmp_path / "b")
    )


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=6),
    st.sampled_from([(80, 10, 10), (1, 1, 1), (7, 0, 3), (98, 1, 1)]),
)
@settings(max_examples=examples(200), deadline=None)
def test_each_class_gets_its_exact_share_of_single_rows(
    classes: list[int], weights: tuple[int, ...]
) -> None:
    import numpy as np

    labels = np.repeat(np.arange(len(classes)), classes)
    rows = np.zeros((len(labels), len(classes)), np.int64)
    rows[np.arange(len(labels)), labels] = 1
    dealt = deal_stratified(rows, 3, weights)

    for label, count in enumerate(classes):
        for split, weight in enumerate(weights):
            part = int(((labels == label) & (dealt == split)).sum())
            assert abs(part - count * weight / sum(weights)) < 2
            assert weight or not part


def test_classes_are_in_all_splits_in_their_shares(tmp_path: Path) -> None:
    rows = [(f"w{n}", "rare" if n % 50 == 0 else "usual", str(n)) for n in range(2000)]
    found = splits(write(tmp_path / "in", [rows]), tmp_path / "out", stratify="kind")

    counts = {name: Counter(row[1] for row in part) for name, part in found.items()}
    assert {"usual": 1568, "rare": 32} == counts["train"]
    assert {"usual": 196, "rare": 4} == counts["val"] == counts["test"]


def test_groups_share_classes_as_stratified_groups_of_scikit_learn_do(tmp_path: Path) -> None:
    rows = rows_of(5, 3000)
    config = {"by": "who", "stratify": "kind", "val_ratio": 0.2, "test_ratio": 0.2}
    found = splits(write(tmp_path / "in", [rows]), tmp_path / "out", **config)
    total = Counter(row[1] for row in rows)

    split_of({name: Counter(row[0] for row in part) for name, part in found.items()})
    for name, ratio in (("train", 0.6), ("val", 0.2), ("test", 0.2)):
        counts: Counter[str] = Counter()
        for row, count in found[name].items():
            counts[row[1]] += count
        for label, count in total.items():
            assert abs(counts[label] / count - ratio) < 0.02


def test_groups_that_share_content_are_drawn_as_one(tmp_path: Path) -> None:
    rows = [(f"w{n}", "a", str(n // 2)) for n in range(400)]
    found = splits(
        write(tmp_path / "in", [rows]), tmp_path / "out", by="who", duplicates="group",
        content="value", val_ratio=0.3, test_ratio=0.3,
    )  # fmt: skip

    split_of({name: Counter(row[2] for row in part) for name, part in found.items()})
    assert 200 == sum(len({row[2] for row in part}) for part in found.values())


def test_the_first_row_of_each_content_stays(tmp_path: Path) -> None:
    rows = [("a", "x", "1"), ("b", "x", "2"), ("a", "x", "1")] * 20
    source = write(tmp_path / "in", [rows, rows])
    run = prepared(source, tmp_path / "out", duplicates="drop", val_ratio=0.0, test_ratio=0.01)

    assert 118 == run.manifest.dropped["duplicate"]


def test_folds_of_rows_take_turns(tmp_path: Path) -> None:
    rows = rows_of(7, 500)
    run = prepared(write(tmp_path / "in", [rows]), tmp_path / "out", folds="group-kfold:k=4")
    dataset = headrace.open(tmp_path / "out")
    tested: Counter[Row] = Counter()
    for fold in range(4):
        test, train = (
            [(row["who"], row["kind"], str(row["value"])) for row in part.to_arrow().to_pylist()]
            for part in (dataset.fold(fold)["test"], dataset.fold(fold)["train"])
        )
        assert not set(test) & set(train)
        assert len(test) + len(train) == len(rows)
        tested.update(test)

    assert Counter(rows) == tested
    assert "train and test are apart" in [check.name for check in headrace.verify(run.run).checks]


def test_verify_names_a_group_that_is_on_both_sides(tmp_path: Path) -> None:
    prepared(write(tmp_path / "in", [rows_of(1, 300)]), tmp_path / "out", by="who")
    _copy_a_row(tmp_path / "out")
    problems = headrace.verify(tmp_path / "out").problems

    assert any("is in another split too" in problem for problem in problems)


@pytest.mark.parametrize("config", [DRAWN[0], DRAWN[2]], ids=lambda config: config["by"])
def test_verify_names_a_row_that_is_on_both_sides(config: dict[str, Any], tmp_path: Path) -> None:
    prepared(write(tmp_path / "in", [rows_of(1, 300)]), tmp_path / "out", **config)
    _copy_a_row(tmp_path / "out")
    problems = headrace.verify(tmp_path / "out").problems

    assert any("its content is that of" in problem for problem in problems)


def _copy_a_row(out: Path) -> None:
    """Let the last row of test be one of train, of the same size, and make all digests fit."""
    run = (out / "splits").resolve().parent
    train = shards(run, "train")[0].read_bytes().splitlines(keepends=True)
    for path in shards(run, "test"):
        lines = path.read_bytes().splitlines(keepends=True)
        row = next(line for line in train[1:] if len(line) == len(lines[-1]))
        path.write_bytes(b"".join([*lines[:-1], row]))
    reseal_files(run)


@pytest.mark.parametrize(
    ("config", "setting"),
    [
        ({"val_ratio": 0.5, "test_ratio": 0.5}, "val_ratio"),
        ({"val_ratio": 0.0, "test_ratio": 0.0}, "val_ratio"),
        ({"val_ratio": -0.1}, "val_ratio"),
        ({"by": "content"}, "by"),
        ({"null_entity": "drop"}, "null_entity"),
        ({"by": "who", "stratify": "kind", "null_entity": "own"}, "null_entity"),
        ({"by": "who", "stratify": "who"}, "stratify"),
        ({"folds": "rolling:n=2,step=30d"}, "folds"),
        ({"folds": "group-kfold:k=3", "test_ratio": 0.3}, "test_ratio"),
        ({"folds": "group-kfold:k=3", "stratify": "kind"}, "stratify"),
        ({"by": "who", "label": "who"}, "label"),
        ({"split_date": "2025-01-01"}, "split_date"),
    ],
    ids=str,
)
def test_what_cannot_work_is_refused(config: dict[str, Any], setting: str) -> None:
    with raised(SettingsError, setting=setting):
        headrace.RandomSplit(source="raw", **config)


@pytest.mark.parametrize("config", [{"by": "nobody"}, {"stratify": "nothing"}], ids=str)
def test_a_column_that_is_not_there_is_refused_by_name(
    config: dict[str, str], tmp_path: Path
) -> None:
    with raised(InputError, value=next(iter(config.values()))):
        prepared(write(tmp_path / "in", [rows_of(1, 20)]), tmp_path / "out", **config)


def test_rows_without_a_group_are_an_error_or_dropped(tmp_path: Path) -> None:
    rows = [*rows_of(2, 100), (None, "a", "1")]
    source = write(tmp_path / "in", [rows])
    with raised(InputError, row=101, column="who"):
        prepared(source, tmp_path / "out", by="who")
    run = prepared(source, tmp_path / "out", by="who", null_entity="drop")

    assert 1 == run.manifest.dropped["null_entity"]


def test_the_command_without_a_time_draws_rows(tmp_path: Path) -> None:
    write(tmp_path / "raw", [rows_of(4, 400)])
    done = command(
        "split", "raw", "--out", "out", "--by", "who", "--test-ratio", "0.3", cwd=tmp_path
    )
    both = command("split", "raw", "--out", "o", "--by", "who", "--time", "value", "--split-date",
                   "2025-01-01", cwd=tmp_path)  # fmt: skip
    half = command("split", "raw", "--out", "o", "--split-date", "2025-01-01", cwd=tmp_path)

    assert 0 == done.returncode, done.stderr
    assert "random_split" == headrace.open(tmp_path / "out").manifest.recipe
    assert 2 == both.returncode
    assert "--by is 'who'" in both.stderr
    assert 2 == half.returncode
    assert "--time" in half.stderr


@pytest.mark.parametrize("drawn", ["who", "rows"])
def test_init_without_a_date_writes_a_random_split_that_runs(drawn: str, tmp_path: Path) -> None:
    header = ("customer" if drawn == "who" else "height", "kind", "value")
    rows = [(f"{n % 50}" if drawn == "who" else f"{n}.5", "ab"[n % 2], str(n)) for n in range(300)]
    write_rows(tmp_path / "raw" / "part-0.csv", header, rows)
    asked = command("init", "split", "raw", "--out", "out", "--config", "split.yaml", cwd=tmp_path)
    done = command("run", "split.yaml", cwd=tmp_path)

    assert 0 == asked.returncode == done.returncode, asked.stderr + done.stderr
    config = yaml.safe_load((tmp_path / "split.yaml").read_text())
    assert ("random_split", "customer" if drawn == "who" else "rows") == (
        config["recipe"],
        config["by"],
    )


def test_a_group_can_be_forgotten(tmp_path: Path) -> None:
    prepared(write(tmp_path / "in", [rows_of(6, 200)]), tmp_path / "out", by="who")
    headrace.forget(tmp_path / "out", ["w1"])

    assert headrace.verify(tmp_path / "out").problems == []
    assert "w1" not in {row[0] for row in _all_rows(tmp_path / "out")}


def _all_rows(out: Path) -> Iterable[Row]:
    run = (out / "splits").resolve().parent
    for name in ("train", "val", "test"):
        for path in shards(run, name):
            yield from read_rows(path)[1]


@pytest.mark.parametrize(("written", "said"), [("same", 1), ("parquet", 0)])
def test_a_run_says_that_it_writes_another_encoding(
    written: str, said: int, tmp_path: Path
) -> None:
    (tmp_path / "source").mkdir()
    text = "who,city\n" + "".join(f"w{n},Köln\n" for n in range(40))
    (tmp_path / "source" / "a.csv").write_text(text, encoding="latin-1")
    notes: list[str] = []

    headrace.prepare(
        headrace.RandomSplit(
            source=tmp_path / "source", dialect={"encoding": "latin-1"}, format=written
        ),
        tmp_path / "out",
        on_event=lambda event: notes.append(getattr(event, "text", "")),
    )

    assert said == sum("UTF-8" in note for note in notes)
