"""Rows with the same content go where `duplicates` says, and the output alone proves it."""

import random
from collections import Counter, defaultdict
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace.dataset.open import FinishedRun
from headrace.errors import InputError, SettingsError
from headrace.run.events import Note
from headrace.run.prepare import Prepared
from headrace.split.verify import verify_split
from laws import examples
from raised import raised
from resealed import change_settings
from tables import HEADER, digests, fresh, small_source, split, split_column, split_rows, write_rows

SPLITS = ("train", "val", "test")
BIRDS = (
    Path(__file__).parents[3].parent / "shared" / "data" / "job2-faa-bird-remarks" / "birds.csv.gz"
)
NAMES = ("id", "date", "row", "text", "more")
CONTENT = ["text", "more"]
WORDS = ("group", "drop", "count", "allow")

ids = st.sampled_from("abcdefgh")
dates = st.sampled_from(["2024-06-01", "2024-12-31", "2025-01-01", "2025-03-01"])
texts = st.sampled_from(["", "x", "y", "x,y", 'q"q', "n\nl", "0"])
tables = st.lists(
    st.lists(st.tuples(ids, dates, texts, texts), max_size=10), min_size=1, max_size=3
)


def write(directory: Path, table: list[list[tuple[str, ...]]], extension: str = ".csv") -> Path:
    number = 0
    for place, rows in enumerate(table):
        numbered = [
            (id_, date, str(number + at), *rest) for at, (id_, date, *rest) in enumerate(rows)
        ]
        number += len(rows)
        write_rows(directory / f"part-{place:05d}{extension}", NAMES, numbered)
    return directory


def attempt(source: Path, out: Path, **asked: Any) -> Prepared | None:
    try:
        return split(source, out, **({"content": CONTENT} | asked))
    except InputError as error:
        if "has no rows" not in str(error):
            raise
        return None


def rows_by_split(prepared: Prepared) -> dict[str, list[tuple[str, ...]]]:
    return {
        name: [tuple(value or "" for value in row) for row in split_rows(prepared.run, name)]
        for name in SPLITS
    }


def content(row: tuple[str, ...]) -> tuple[str, ...] | None:
    return row[3:] if any(row[3:]) else None


def in_earlier_split(found: dict[str, list[tuple[str, ...]]]) -> dict[str, int]:
    seen: set[Any] = set()
    counts = {}
    for name in SPLITS:
        own = [each for each in map(content, found[name]) if each is not None]
        counts[name] = sum(each in seen for each in own)
        seen |= set(own)
    assert 0 == counts.pop("train")
    return counts


def repeated(found: dict[str, list[tuple[str, ...]]]) -> dict[str, int]:
    held = {
        name: [each for each in map(content, rows) if each is not None]
        for name, rows in found.items()
    }
    return {name: len(each) - len(set(each)) for name, each in held.items()}


@pytest.mark.slow
@given(
    tables, st.sampled_from([0.2, 0.5, 0.9]), st.sampled_from(["keep", "drop"]), st.integers(0, 3)
)
@settings(max_examples=examples(100))
def test_rows_go_where_a_plain_implementation_sends_them(
    tmp_path: Path, table: list[Any], ratio: float, val_in_test: str, seed: int
) -> None:
    directory = fresh(tmp_path)
    source = write(directory / "in", table)
    asked = {"train_ratio": ratio, "val_in_test": val_in_test, "seed": seed}
    made = {word: attempt(source, directory / word, duplicates=word, **asked) for word in WORDS}
    total = sum(map(len, table))
    for word, prepared in made.items():
        if prepared is None:
            continue
        found, metadata, dropped = (
            rows_by_split(prepared),
            prepared.manifest.metadata,
            prepared.manifest.dropped,
        )
        numbers = [int(row[2]) for name in SPLITS for row in found[name]]

        assert len(set(numbers)) == len(numbers) == total - sum(dropped.values())  # law 1
        assert headrace.verify(directory / word).problems == []
        if word == "allow":
            assert metadata["duplicates"] is None
            continue
        assert in_earlier_split(found) == metadata["duplicates"]["in_earlier_split"]
        assert repeated(found) == metadata["duplicates"]["repeated"]
        if word in ("group", "drop"):
            assert not any(in_earlier_split(found).values())
    if (count := made["count"]) is None or (allow := made["allow"]) is None:
        return
    kept = rows_by_split(count)
    assert kept == rows_by_split(allow)
    if (drop := made["drop"]) is not None:
        assert_only_the_earliest_stays(
            kept, rows_by_split(drop), drop.manifest.dropped["duplicate"]
        )
    if (group := made["group"]) is not None:
        assert_grouped(kept, group, ratio)


def assert_only_the_earliest_stays(
    kept: dict[str, Any], found: dict[str, Any], dropped: int
) -> None:
    ordered = sorted((row[1], int(row[2]), name, row) for name in SPLITS for row in kept[name])
    seen: set[Any] = set()
    expected: dict[str, list[Any]] = {name: [] for name in SPLITS}
    for _, _, name, row in ordered:
        if content(row) not in seen:
            expected[name].append(row)
        seen |= {content(row)} - {None}

    assert {name: Counter(rows) for name, rows in expected.items()} == {
        n: Counter(rows) for n, rows in found.items()
    }
    assert sum(map(len, kept.values())) - sum(map(len, found.values())) == dropped


def assert_grouped(kept: dict[str, Any], group: Prepared, ratio: float) -> None:
    """Units found by merging sets; their number, the sides, and what goes are what these say."""
    before = kept["train"] + kept["val"]
    units = [{row[0]} for row in before]
    by_content = defaultdict(set)
    for row in before:
        if content(row) is not None:
            by_content[content(row)].add(row[0])
    for joined in by_content.values():
        units = [each for each in units if not each & joined] + [
            set().union(joined, *(each for each in units if each & joined))
        ]
    units = [set(each) for each in {frozenset(each) for each in units}]
    found = rows_by_split(group)
    trains = {row[0] for row in found["train"]}
    wanted = int(Fraction(str(ratio)) * len({row[0] for row in before}))
    metadata = group.manifest.metadata

    assert {"units": len(units), "largest_unit": max(map(len, units))} == {
        name: metadata["duplicates"][name] for name in ("units", "largest_unit")
    }
    assert all(each <= trains or not each & trains for each in units)
    assert metadata["train_entities"] == len(trains)
    if (
        0 < len([each for each in units if each <= trains]) < len(units) - 1
    ):  # no side was filled by force
        assert abs(len(trains) - wanted) <= max(map(len, units))
    if all(len(each) == 1 for each in units):
        assert kept["train"] == found["train"]
        assert kept["val"] == found["val"]
    assert Counter(row for row in before) == Counter(found["train"] + found["val"])


@pytest.mark.slow
@given(tables)
@settings(max_examples=examples(15))  # each makes 21 runs
def test_all_formats_compare_alike(tmp_path: Path, table: list[Any]) -> None:
    table = [part for part in table if part]
    if not table:
        return
    directory = fresh(tmp_path)
    for word in ("count", "group", "drop"):
        runs = [
            attempt(write(directory / extension, table, extension), directory / f"{word}{extension}{more}", duplicates=word, **more)
            for extension, more in ((".csv", {}), (".csv", {"types": {"row": "int64"}}), (".csv", {"format": "parquet"}), (".jsonl", {}), (".parquet", {}), (".parquet", {"format": "csv"}), (".csv", {"layout": "single"}))
        ]  # fmt: skip
        first = runs[0]
        if first is None:
            assert all(each is None for each in runs)
            continue
        for each in runs[1:]:
            assert each is not None
            assert headrace.verify(each.out).problems == []
            assert first.manifest.metadata["duplicates"] == each.manifest.metadata["duplicates"]
            assert first.manifest.dropped == each.manifest.dropped


@pytest.mark.slow
@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("extension", [".csv", ".jsonl", ".parquet"])
def test_any_number_of_workers_makes_the_same_files(
    tmp_path: Path, word: str, extension: str
) -> None:
    source = reviews(tmp_path / "in", extension)
    found = [
        digests(
            split(
                source, tmp_path / f"out{workers}", workers=workers, duplicates=word, content="text"
            ).run
        )
        for workers in (1, 2, 8)
    ]

    assert found[0] == found[1] == found[2]


def reviews(directory: Path, extension: str = ".csv", shards: int = 4) -> Path:
    """2,000 reviews before the cutoff, and 500 behind it by new customers: 400 with the text of an earlier one."""
    draw = random.Random(3)
    rows = [(f"c{n % 700}", f"2024-{1 + n % 12:02d}-11", str(n), f"The parcel, no. {n}, came late\nand wet.") for n in range(2_000)]  # fmt: skip
    rows += [(f"new{n}", "2025-02-01", str(2_000 + n), rows[draw.randrange(2_000)][3] if n < 400 else f"fine {n}") for n in range(500)]  # fmt: skip
    draw.shuffle(rows)
    for shard in range(shards):
        write_rows(directory / f"part-{shard}{extension}", NAMES[:4], rows[shard::shards])
    return directory


@pytest.mark.slow
def test_reviews_that_return_behind_the_cutoff_are_counted_and_with_group_or_drop_gone(
    tmp_path: Path,
) -> None:
    source, found = reviews(tmp_path / "in"), {}
    for word in WORDS:
        prepared = split(source, tmp_path / word, duplicates=word, content="text", train_ratio=0.9)
        before = set(split_column(prepared.run, "train", "text")) | set(
            split_column(prepared.run, "val", "text")
        )
        found[word] = sum(text in before for text in split_column(prepared.run, "test", "text"))

        assert headrace.verify(tmp_path / word).problems == []
        assert {"group": 400}.get(word, 0) == prepared.manifest.dropped["content_before_cutoff"]
        assert {"drop": 400}.get(word, 0) == prepared.manifest.dropped["duplicate"]
    leaks = {
        word: headrace.find_leaks(headrace.open(tmp_path / word), content=["text"]).worst
        for word in WORDS
    }

    assert {"group": 0, "drop": 0, "count": 400, "allow": 400} == found
    assert leaks["group"] == leaks["drop"] == 0 < 0.5 < leaks["count"] == leaks["allow"]


@pytest.mark.slow
@pytest.mark.skipif(
    not BIRDS.is_file(), reason=f"{BIRDS} is not there: the data set is not in the repository"
)
def test_remarks_of_pilots_that_airlines_share_are_in_one_split(tmp_path: Path) -> None:
    asked = {
        "time": "date",
        "entity": "opid",
        "split_date": "1997-01-01",
        "dialect": {"time_format": "%m/%d/%Y %H:%M:%S"},
    }
    shared = {}
    for word in ("count", "group", "drop"):
        run = split(
            BIRDS, tmp_path / word, duplicates=word, content="remarks", train_ratio=0.9, **asked
        ).run
        remarks = {name: split_column(run, name, "remarks") for name in SPLITS}
        before = {*remarks["train"], *remarks["val"]} - {""}
        shared[word] = sum(each in before for each in remarks["test"])

        assert headrace.verify(tmp_path / word).problems == []

    assert {"count": 24, "group": 0, "drop": 0} == shared


def test_the_default_warns_with_share_columns_and_cures(tmp_path: Path) -> None:
    notes: list[Any] = []
    split(
        reviews(tmp_path / "in"),
        tmp_path / "out",
        content="text",
        train_ratio=0.9,
        on_event=notes.append,
    )
    (told,) = [each.text for each in notes if isinstance(each, Note) and each.level == "warning"]

    assert (
        "80.0 % of the test rows (400 of 500) repeat the content of an earlier split, compared by text; headrace "
        'leaks says how many chance gives. If they are copies, choose duplicates="group" or "drop", '
        "else set content= to the columns that count" == told
    )


def test_entities_that_share_too_much_are_told(tmp_path: Path) -> None:
    rows = [(f"e{n}", "2024-01-01", str(n), "hello" if n < 50 else f"text {n}") for n in range(200)]
    write_rows(tmp_path / "in" / "part-0.csv", NAMES[:4], rows)
    notes: list[Any] = []
    made = split(
        tmp_path / "in", tmp_path / "out", duplicates="group", content="text", on_event=notes.append
    )
    told = [each.text for each in notes if isinstance(each, Note) and each.level == "warning"]

    assert any(
        each.startswith("50 of 200 entities are joined by rows with the same content")
        for each in told
    )
    assert 50 == made.manifest.metadata["duplicates"]["largest_unit"]
    assert abs(made.manifest.metadata["train_entities"] - 100) <= 25


def test_one_unit_of_all_entities_is_an_error_that_says_so(tmp_path: Path) -> None:
    write_rows(
        tmp_path / "in" / "part-0.csv",
        NAMES[:4],
        [(f"e{n}", "2024-01-01", str(n), "hello") for n in range(20)],
    )

    with pytest.raises(
        InputError, match="has no rows: 20 entities .* content joins them to 1 units"
    ):
        split(tmp_path / "in", tmp_path / "out", duplicates="group", content="text")


def test_rows_without_content_repeat_nothing(tmp_path: Path) -> None:
    rows = [(f"e{n}", f"202{4 + n % 2}-01-01", str(n), None) for n in range(40)]
    write_rows(tmp_path / "in" / "part-0.csv", NAMES[:4], rows)
    for word in ("count", "group", "drop"):
        made = split(tmp_path / "in", tmp_path / word, duplicates=word, content="text")

        assert {"val": 0, "test": 0} == made.manifest.metadata["duplicates"]["in_earlier_split"]
        assert (
            0
            == made.manifest.dropped["duplicate"]
            == made.manifest.dropped["content_before_cutoff"]
        )
        assert headrace.verify(tmp_path / word).problems == []


def test_rows_without_entity_and_labels_take_part_as_they_are_kept(tmp_path: Path) -> None:
    """Rows without a label are dropped first: they join no entities and are no earlier copy."""
    rows = [(f"e{n}", "2024-01-01", "", "same") for n in range(10)]
    rows += [(f"e{n}", "2024-02-01", "yn"[n % 2], f"text {n}") for n in range(10)]
    rows += [
        ("", "2024-03-01", "y", "text 3"),
        ("late", "2025-01-01", "y", "same"),
        ("late", "2025-01-02", "y", "text 4"),
    ]
    write_rows(tmp_path / "in" / "part-0.csv", NAMES[:4], rows)
    made = {
        word: split(
            tmp_path / "in",
            tmp_path / word,
            duplicates=word,
            label="row",
            content="text",
            null_entity="own",
        )
        for word in ("group", "drop")
    }

    assert {"units": 10, "largest_unit": 2} == {
        name: made["group"].manifest.metadata["duplicates"][name]
        for name in ("units", "largest_unit")
    }
    assert 1 == made["group"].manifest.dropped["content_before_cutoff"]
    assert 2 == made["drop"].manifest.dropped["duplicate"]
    for word in made:
        assert headrace.verify(tmp_path / word).problems == []


@pytest.mark.parametrize("word", ["group", "drop"])
def test_verify_names_the_first_row_that_should_not_be_there(tmp_path: Path, word: str) -> None:
    made = split(
        reviews(tmp_path / "in", ".parquet"), tmp_path / "out", content="text", train_ratio=0.9
    )
    run = change_settings(made.run, duplicates=word)
    (problem,) = [each.problem for each in verify_split(run) if each.problem]
    late, _, early = problem.partition(": its content is that of ")

    def text_at(place: str) -> str:
        shard, _, row = place.partition(": row ")
        return str(pq.read_table(shard)["text"][int(row) - 1].as_py())

    assert "training_data/test/part-00000.parquet" in late
    assert "training_data/test" not in early
    assert text_at(late) == text_at(early)


def test_verify_counts_again(tmp_path: Path) -> None:
    made = split(reviews(tmp_path / "in"), tmp_path / "out", content="text", train_ratio=0.9)
    made.manifest.metadata["duplicates"]["in_earlier_split"]["test"] = 399
    problems = [
        each.problem for each in verify_split(FinishedRun(made.run, made.manifest)) if each.problem
    ]

    assert ["400 rows have the content of an earlier split" in each for each in problems] == [True]


def test_settings_that_cannot_work_are_refused(tmp_path: Path) -> None:
    source = small_source(tmp_path / "in")
    with raised(SettingsError, setting="content"):
        split(source, tmp_path / "out", label="row", content="row")
    with raised(InputError, setting="content", value="nope"):
        split(source, tmp_path / "out", content="nope")
    with raised(SettingsError, setting="duplicates", value="drop", remedy="content="):
        split(source, tmp_path / "out", label="row", duplicates="drop")

    assert split(source, tmp_path / "out", label="row").manifest.metadata["duplicates"] is None
    assert HEADER == ("id", "date", "row")


@pytest.mark.slow
def test_counting_is_no_part_of_the_identity_of_a_run(tmp_path: Path) -> None:
    source = small_source(tmp_path / "in")
    plain, counted = (split(source, tmp_path / name) for name in ("a", "b"))
    others = {
        word: split(source, tmp_path / word, duplicates=word).manifest.run_id
        for word in ("group", "drop", "allow")
    }

    assert plain.manifest.run_id == counted.manifest.run_id
    assert len({plain.manifest.run_id, *others.values()}) == 4
