"""A rewrite drops later copies and rows that hold benchmark items where that is asked for, and counts them else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace.dataset.open import find_run
from headrace.errors import InputError, SettingsError
from headrace.run.events import Note
from laws import examples
from raised import raised
from tables import digests, fresh, split, write_rows

SPLITS = ("train", "val", "test")
NAMES = ("id", "date", "text", "more")
Row = tuple[Any, ...]

texts = st.sampled_from(["", "x", "y", "x,y", "0"])
dates = st.sampled_from(["2024-06-01", "2025-03-01"])
tables = st.lists(
    st.lists(st.tuples(st.sampled_from("abcdefgh"), dates, texts, texts), max_size=10),
    min_size=1,
    max_size=3,
)


def rows_of(out: Path, split: str) -> list[Row]:
    run, manifest = find_run(out)
    directory = run / manifest.metadata["directories"][split]
    return [
        tuple(row.values())
        for path in sorted(directory.rglob("*.parquet"))
        for row in pq.read_table(path).to_pylist()
    ]


def content(row: Row) -> tuple[Any, ...] | None:
    own = tuple(each or "" for each in row[2:4])
    return own if any(own) else None


def without_later_copies(found: dict[str, list[Row]]) -> dict[str, list[Row]]:
    seen: set[Any] = set()
    left: dict[str, list[Row]] = {}
    for name, rows in found.items():
        left[name] = []
        for row in rows:
            if content(row) is None or content(row) not in seen:
                left[name].append(row)
            seen.add(content(row))
    return left


@pytest.mark.slow
@given(tables, st.sampled_from([None, 1, 1 << 20]))
@settings(max_examples=examples(30))
def test_the_first_row_of_each_content_stays(
    tmp_path: Path, table: list[list[Row]], shard_bytes: int | None
) -> None:
    directory = fresh(tmp_path)
    for place, rows in enumerate(table):
        write_rows(directory / "in" / f"part-{place}.parquet", NAMES, rows)
    if not any(table):
        return
    asked = {"shard_bytes": shard_bytes, "content": ["text", "more"]}
    headrace.rewrite(directory / "in", directory / "all", **asked)
    made = headrace.rewrite(directory / "in", directory / "drop", duplicates="drop", **asked)
    everything = {"all": rows_of(directory / "all", "all")}
    expected = without_later_copies(everything)

    assert expected == {"all": rows_of(directory / "drop", "all")}
    assert made.manifest.dropped["duplicate"] == len(everything["all"]) - len(expected["all"])
    assert made.manifest.source["rows"] == len(everything["all"])
    assert (
        headrace.verify(directory / "all").problems
        == headrace.verify(directory / "drop").problems
        == []
    )


def prepared(directory: Path) -> Path:
    """A split in which 50 of 60 test texts are of train or val rows."""
    rows = [(f"e{n}", "2024-03-01", f"A text of number {n % 200}.", "") for n in range(300)]
    rows += [
        (f"new{n}", "2025-03-01", f"A text of number {n}." if n < 50 else f"No. {n}", "")
        for n in range(60)
    ]
    for shard in range(3):
        write_rows(directory / "in" / f"part-{shard}.parquet", NAMES, rows[shard::3])
    split(directory / "in", directory / "split", content="text")
    return directory / "split"


def test_copies_between_the_splits_of_a_prepared_source(tmp_path: Path) -> None:
    source = prepared(tmp_path)
    before = {name: rows_of(source, name) for name in SPLITS}
    notes: list[Any] = []
    counted = headrace.rewrite(source, tmp_path / "count", on_event=notes.append)
    dropped = headrace.rewrite(source, tmp_path / "drop", duplicates="drop")
    (told,) = [each.text for each in notes if isinstance(each, Note) and each.level == "warning"]
    metadata = counted.manifest.metadata["duplicates"]

    assert metadata["content"] == ["text"]  # what the source's own run compares
    assert metadata["in_earlier_split"]["test"] == 50
    assert (
        "of the test rows (50 of 60) repeat the content of an earlier split, compared by text"
        in told
    )
    assert before == {name: rows_of(tmp_path / "count", name) for name in SPLITS}
    assert without_later_copies(before) == {
        name: rows_of(tmp_path / "drop", name) for name in SPLITS
    }
    assert set(dropped.manifest.metadata["duplicates"]["in_earlier_split"].values()) == {0}
    assert (
        headrace.verify(tmp_path / "count").problems
        == headrace.verify(tmp_path / "drop").problems
        == []
    )
    assert headrace.find_leaks(headrace.open(tmp_path / "drop"), content=["text"]).worst == 0
    proved = headrace.certify(tmp_path / "drop")["proved"]
    (apart,) = [entry["found"] for entry in proved if entry["check"] == "content apart"]
    assert apart.startswith("no content appears twice, of ")
    assert apart.endswith(" rows, compared by text")


def test_counts_of_a_prepared_source_are_taken_over(tmp_path: Path) -> None:
    source = prepared(tmp_path)
    taken = headrace.rewrite(source, tmp_path / "taken")
    other = headrace.rewrite(
        source, tmp_path / "other", content=["id", "text"]
    )  # not what the source compares
    said = find_run(source)[1].metadata["duplicates"]
    receipts = [
        [each.read_text() for each in made.run.rglob("rewrite-*.json")] for made in (taken, other)
    ]

    assert [False, True] == [any("content.arrow" in text for text in texts) for texts in receipts]
    assert {
        "are": "count",
        **{key: said[key] for key in ("content", "in_earlier_split", "repeated")},
    } == (taken.manifest.metadata["duplicates"])
    assert {"val": 0, "test": 0} == other.manifest.metadata["duplicates"]["in_earlier_split"]
    assert (
        headrace.verify(tmp_path / "taken").problems
        == headrace.verify(tmp_path / "other").problems
        == []
    )


def test_texts_of_one_number_are_one_content_once_they_are_numbers(tmp_path: Path) -> None:
    rows = [(f"e{n}", "2024-05-05", f"{n}.5{'0' * copy}") for n in range(40) for copy in range(2)]
    write_rows(tmp_path / "in" / "part-0.csv", ("id", "date", "x"), rows)
    made = split(tmp_path / "in", tmp_path / "split", content="x", format="parquet")
    source = tmp_path / "split"
    rewritten = headrace.rewrite(source, tmp_path / "out")
    before, after = (each.manifest.metadata["duplicates"]["repeated"] for each in (made, rewritten))

    assert [0, 40] == [sum(before.values()), sum(after.values())]
    assert headrace.open(source).schema.types == headrace.open(tmp_path / "out").schema.types
    assert [] == headrace.verify(tmp_path / "out").problems


@pytest.mark.slow
def test_any_number_of_workers_makes_the_same_files(tmp_path: Path) -> None:
    source = prepared(tmp_path)
    items = tmp_path / "items.txt"
    items.write_text("A text of number 7.\n")
    asked = {"duplicates": "drop", "exclude": [items]}
    made = [
        headrace.rewrite(source, tmp_path / f"out{count}", workers=count, **asked).run
        for count in (1, 2, 4)
    ]

    assert digests(made[0]) == digests(made[1]) == digests(made[2])


def test_rows_that_hold_benchmark_items_go(tmp_path: Path) -> None:
    source, items = prepared(tmp_path), tmp_path / "items.txt"
    items.write_text("A text of number 7.\nNothing that any row would hold at all.\n")
    made = headrace.rewrite(source, tmp_path / "out", exclude=[items])
    found = [row for name in SPLITS for row in rows_of(tmp_path / "out", name)]
    report = headrace.find_leaks(headrace.open(tmp_path / "out"), against=[items])

    assert made.manifest.dropped == {"in_benchmark": 3, "duplicate": 0}
    assert 357 == len(found)
    assert "A text of number 7." not in {row[2] for row in found}
    assert report.overlaps == ()
    (metadata,) = made.manifest.metadata["benchmarks"].values()
    assert (metadata["items"], metadata["rows"]) == (2, 3)
    assert headrace.verify(tmp_path / "out").problems == []


def test_a_shard_of_copies_alone_gets_no_file(tmp_path: Path) -> None:
    for number in range(2):
        write_rows(
            tmp_path / "in" / f"part-{number}.parquet",
            NAMES,
            [("a", "2024-01-01", f"t{n}", "") for n in range(5)],
        )
    made = headrace.rewrite(tmp_path / "in", tmp_path / "out", duplicates="drop", content="text")

    assert 1 == made.manifest.splits["all"].shards
    assert 5 == made.manifest.dropped["duplicate"]
    assert headrace.verify(tmp_path / "out").problems == []


def test_what_cannot_work_is_refused(tmp_path: Path) -> None:
    source, items = prepared(tmp_path), tmp_path / "items.txt"
    with raised(SettingsError, setting="duplicates", value="group"):
        headrace.rewrite(source, tmp_path / "out", duplicates="group")
    with raised(SettingsError, setting="content", value=["nope"]):
        headrace.rewrite(source, tmp_path / "out", content="nope")
    with raised(
        SettingsError, setting="duplicates", remedy="name the columns to compare in content="
    ):
        headrace.rewrite(source, tmp_path / "out", duplicates="drop", columns=["id", "date"])
    items.write_text("A text of number 7.\n")
    write_rows(
        tmp_path / "one" / "part-0.parquet", NAMES, [("a", "2024-01-01", "A text of number 7.", "")]
    )
    with raised(InputError, setting="exclude"):
        headrace.rewrite(tmp_path / "one", tmp_path / "out", exclude=[items])


def test_counting_is_no_part_of_the_identity_of_a_run(tmp_path: Path) -> None:
    source = prepared(tmp_path)
    words = {None: {}, **{word: {"duplicates": word} for word in ("count", "drop", "allow")}}
    found = {
        word: headrace.rewrite(source, tmp_path / str(word), **asked)
        for word, asked in words.items()
    }

    assert found[None].manifest.run_id == found["count"].manifest.run_id
    assert 3 == len({each.manifest.run_id for each in found.values()})
    assert found["allow"].manifest.metadata["duplicates"] is None
    assert headrace.verify(tmp_path / "allow").problems == []


def test_verify_names_a_copy_that_should_not_be_there(tmp_path: Path) -> None:
    source = prepared(tmp_path)
    made = headrace.rewrite(source, tmp_path / "out")
    from headrace.dataset.open import FinishedRun
    from headrace.rewriting.verify import verify_rewrite

    path = made.run / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"duplicates": "drop"}))
    (check,) = verify_rewrite(FinishedRun(made.run, made.manifest))

    assert ": its content is that of " in str(check.problem)


def test_erasing_an_entity_counts_again(tmp_path: Path) -> None:
    source = prepared(tmp_path)
    headrace.rewrite(source, tmp_path / "out")
    headrace.forget(tmp_path / "out", entities=["new1"])

    assert headrace.verify(tmp_path / "out").problems == []
    assert 49 == find_run(tmp_path / "out")[1].metadata["duplicates"]["in_earlier_split"]["test"]
