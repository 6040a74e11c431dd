"""Values that mean something else to other readers keep their text, and the user is told how many there are."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import headrace
from headrace.errors import InputError
from headrace.run.events import Note
from raised import raised
from tables import HEADER, Row, split, split_rows, write_rows

DATES = ("2024-01-01", "2024-06-01", "2025-02-01")


def rows_of(ids: list[Any], dates: tuple[str, ...] = DATES) -> list[Row]:
    return [(each, date, "x") for each in ids for date in dates]


def warnings_of(tmp_path: Path, **settings: Any) -> list[str]:
    events: list[Any] = []
    split(tmp_path / "in", tmp_path / "out", on_event=events.append, **settings)
    return [event.text for event in events if isinstance(event, Note) and event.level == "warning"]


@pytest.mark.parametrize("extension", [".parquet", ".jsonl"])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("layout", ["sharded", "single"])
@pytest.mark.parametrize("format_", ["same", "csv", "parquet", "jsonl"])
def test_whole_numbers_and_texts_widen_to_text(
    tmp_path: Path, extension: str, order: tuple[int, int], layout: str, format_: str
) -> None:
    numbers, texts = (
        list(range(30)),
        [*(f"{n:03d}" for n in range(30)), *(str(n) for n in range(30)), "a"],
    )
    for number, ids in zip(order, (numbers, texts), strict=True):
        write_rows(tmp_path / "in" / f"part-{number}{extension}", HEADER, rows_of(ids))
    path = tmp_path / "in" / f"part-1{extension}"
    with raised(InputError, path=path, column="id", remedy='schema_drift="widen"'):
        split(tmp_path / "in", tmp_path / "out")
    prepared = split(
        tmp_path / "in", tmp_path / "out", schema_drift="widen", layout=layout, format=format_
    )

    kept = [row for name in ("train", "val", "test") for row in split_rows(prepared.run, name)]
    counted = len(kept) + sum(prepared.manifest.dropped.values())
    assert counted == 3 * (len(numbers) + len(texts)) == prepared.manifest.source["rows"]
    read = headrace.open(tmp_path / "out")
    ids = set()
    for name in ("train", "val", "test"):
        index = read.split_index(name)
        for block in range(len(index.rows)):
            column = read.block_reader(name)(block, ["id"])["id"]
            assert str(column.type) in ("string", "large_string")
            ids |= set(column.to_pylist())
    assert {*texts, *map(str, numbers)} == ids
    assert headrace.verify(tmp_path / "out").problems == []


def test_a_number_and_its_text_are_one_entity_and_a_padded_text_is_another(tmp_path: Path) -> None:
    write_rows(tmp_path / "in" / "part-0.parquet", HEADER, rows_of(list(range(40)), DATES[:1]))
    write_rows(
        tmp_path / "in" / "part-1.parquet", HEADER, rows_of([f"{n}" for n in range(40)], DATES[2:])
    )
    prepared = split(tmp_path / "in", tmp_path / "out", schema_drift="widen")

    assert 40 == prepared.manifest.metadata["entities_before_cutoff"]
    assert 20 == prepared.manifest.dropped["train_entity_after_cutoff"]


def test_fractions_and_texts_do_not_widen(tmp_path: Path) -> None:
    write_rows(tmp_path / "in" / "part-0.parquet", HEADER, rows_of([1.5]))
    write_rows(tmp_path / "in" / "part-1.parquet", HEADER, rows_of(["a"]))

    with raised(InputError, column="id", value="string"):
        split(tmp_path / "in", tmp_path / "out", schema_drift="widen")


LABELLED = ("id", "date", "label")


@pytest.mark.parametrize("text", ["NA", "null", "NaN", "N/A", "None"])
def test_a_label_that_means_missing_elsewhere_is_a_class_and_is_counted(
    tmp_path: Path, text: str
) -> None:
    for number in range(2):
        rows = [(f"{n}", date, text if n % 4 == 0 else "dog") for n in range(40) for date in DATES]
        write_rows(tmp_path / "in" / f"part-{number}.csv", LABELLED, rows)
    told = warnings_of(tmp_path, label="label")
    manifest = headrace.open(tmp_path / "out").manifest

    assert any(f"label: 60 rows hold the text '{text}', which is a class" in each for each in told)
    assert any(f'dialect={{"null_values": ["{text}"]}}' in each for each in told)
    assert {"label": {text: 60}} == manifest.metadata["missing_like"]
    assert {text, "dog"} == set(manifest.metadata["label_map"])
    dropped = split(
        tmp_path / "in", tmp_path / "out", label="label", dialect={"null_values": [text]}
    ).manifest
    assert ({"dog": 0}, {}) == (dropped.metadata["label_map"], dropped.metadata["missing_like"])
    assert dropped.dropped["missing_label"] > 0


def test_an_entity_that_means_missing_elsewhere_is_counted(tmp_path: Path) -> None:
    write_rows(
        tmp_path / "in" / "part-0.csv", HEADER, rows_of([*(f"{n}" for n in range(40)), "nan"])
    )
    told = warnings_of(tmp_path)

    assert any("id: 3 rows hold the text 'nan', which is one entity" in each for each in told)


@pytest.mark.parametrize("spelled", [" 7", "7 ", "   ", "7\u00a0", "e\u0301", "\u2007x"])
def test_entities_that_look_alike_stay_apart_and_are_told(tmp_path: Path, spelled: str) -> None:
    write_rows(
        tmp_path / "in" / "part-0.parquet",
        HEADER,
        rows_of([*(f"{n}" for n in range(40)), "é", spelled]),
    )
    told = warnings_of(tmp_path)

    assert any(f"first {spelled!r} in part-0.parquet" in each for each in told)
    assert 42 == headrace.open(tmp_path / "out").manifest.metadata["entities_before_cutoff"]


def test_entities_in_their_usual_unicode_form_are_not_told(tmp_path: Path) -> None:
    write_rows(
        tmp_path / "in" / "part-0.parquet",
        HEADER,
        rows_of([*(f"{n}" for n in range(40)), "é", "Zoë", "한국"]),
    )

    assert [] == [each for each in warnings_of(tmp_path) if "Unicode form" in each]


@pytest.mark.slow
@pytest.mark.parametrize("extension", [".csv", ".jsonl", ".parquet"])
def test_every_row_of_odd_entities_and_dates_is_in_one_split_or_one_reason(
    tmp_path: Path, extension: str
) -> None:
    odd = [
        "a\x00b",
        "a\x00c",
        "a",
        "",
        None,
        " ",
        "NaN",
        "é",
        "e\u0301",
        "x" * 10_000,
        "0",
        "00",
        "-0",
        "null",
    ]
    if extension == ".csv":
        odd = [each for each in odd if not (each and "\x00" in each)]
    dates = ["2024-01-01", None, "0000-00-00", "2025-02-01", "NaT", "99999-01-01", "2024-13-01"]
    rows = [
        (each, date, str(number))
        for number, (each, date) in enumerate((e, d) for e in odd for d in dates)
    ]
    full = rows_of([f"e{n}" for n in range(40)])
    write_rows(tmp_path / "in" / f"part-0{extension}", HEADER, rows + full)
    for null_entity in ("own", "drop"):
        manifest = split(
            tmp_path / "in", tmp_path / null_entity, bad_rows="drop", null_entity=null_entity
        ).manifest
        counted = sum(totals.rows for totals in manifest.splits.values()) + sum(
            manifest.dropped.values()
        )

        assert len(rows) + len(full) == manifest.source["rows"] == counted
        assert headrace.verify(tmp_path / null_entity).problems == []


@pytest.mark.parametrize("tests", [0, 1, 9])
def test_a_test_of_few_rows_is_told_with_numbers(tmp_path: Path, tests: int) -> None:
    rows = [(f"{n}", "2024-01-01", f"{n}") for n in range(40)] + [
        (f"t{n}", "2025-02-01", f"t{n}") for n in range(tests)
    ]
    write_rows(tmp_path / "in" / "part-0.csv", HEADER, rows)
    (told,) = warnings_of(tmp_path)

    few = (
        "test is empty"
        if not tests
        else f"test has {tests} row{'s' if tests > 1 else ''} of {40 + tests}"
    )
    assert told.startswith(few)
    assert "2025-01-01" in told
    assert "give an earlier split_date=" in told


def test_a_test_below_one_percent_is_told_with_what_dropped_its_rows(tmp_path: Path) -> None:
    rows = [(f"{n}", "2024-01-01", f"{n}") for n in range(4_000)] + [
        (f"{n}", "2025-02-01", f"t{n}") for n in range(60)
    ]
    write_rows(tmp_path / "in" / "part-0.csv", HEADER, rows)
    (told,) = warnings_of(tmp_path, train_ratio=0.9)

    assert told.startswith("test has ")
    assert "of 60 rows from 2025-01-01 on" in told
    assert "belong to entities in train" in told
    assert "smaller train_ratio=" in told


def test_a_test_of_a_usual_size_is_not_talked_of(tmp_path: Path) -> None:
    rows = [(f"{n}", "2024-01-01", f"{n}") for n in range(80)] + [
        (f"t{n}", "2025-02-01", f"t{n}") for n in range(20)
    ]
    write_rows(tmp_path / "in" / "part-0.csv", HEADER, rows)

    assert [] == warnings_of(tmp_path)


def test_what_was_noticed_is_in_the_manifest_as_json(tmp_path: Path) -> None:
    write_rows(tmp_path / "in" / "part-0.csv", HEADER, rows_of([f"{n}" for n in range(40)]))
    run = split(tmp_path / "in", tmp_path / "out").run

    assert {} == json.loads((run / "manifest.json").read_text())["metadata"]["missing_like"]
    assert pq.read_table(run / "index.parquet").num_rows
