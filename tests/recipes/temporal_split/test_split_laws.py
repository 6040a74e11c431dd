"""The laws of a temporal split, on small random tables: partition, no leak, dates on their side, round trip."""

import datetime as dt
from collections import Counter
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import InputError
from headrace.run.prepare import Prepared
from laws import examples
from tables import (
    csv_bytes,
    decompressed,
    fresh,
    kind,
    read_rows,
    shards,
    split,
    split_rows,
    write_bytes,
    write_rows,
)

HEADER = ("id", "date", "row", "text")
CUTOFF = dt.date(2025, 1, 1)
SPLITS = ("train", "val", "test")

ids = st.sampled_from(
    [
        "007",
        "7",
        "17850.0",
        "1234567890123456789",
        "NA",
        "null",
        "a b",
        'q"q',
        "x,y",
        "é",
        "n\nl",
        " 7",
    ]
)
dates = st.dates(dt.date(2024, 12, 25), dt.date(2025, 1, 7)).map(str)
texts = st.text(alphabet=st.sampled_from('ab,"\n\té0 '), max_size=5)
tables = st.lists(st.lists(st.tuples(ids, dates, texts), max_size=12), min_size=1, max_size=4)


def write(
    directory: Path,
    table: list[list[tuple[str, ...]]],
    extension: str = ".csv",
    newline: str = "\n",
) -> Path:
    number = 0
    for place, rows in enumerate(table):
        numbered = [
            (id_, date, str(number + at), text) for at, (id_, date, text) in enumerate(rows)
        ]
        number += len(rows)
        path = directory / f"part-{place:05d}{extension}"
        if newline == "\n":
            write_rows(path, HEADER, numbered)
        else:
            write_bytes(path, csv_bytes(HEADER, numbered, newline=newline))
    return directory


def attempt(source: Path, out: Path, **asked: Any) -> Prepared | None:
    """The run, or None where train or val would be empty, which is an error."""
    try:
        return split(source, out, **asked)
    except InputError as error:
        if "has no rows" not in str(error):
            raise
        return None


def all_rows(run: Path) -> dict[str, list[tuple[Any, ...]]]:
    return {
        name: [tuple(value or "" for value in row) for row in split_rows(run, name)]
        for name in SPLITS
    }


@pytest.mark.slow
@given(
    tables,
    st.sampled_from(["keep", "drop"]),
    st.integers(0, 5),
    st.sampled_from([0.2, 0.5, 0.9]),
    st.integers(1, 3),
)
@settings(max_examples=examples(120))
def test_every_row_is_in_one_split_or_one_reason_and_no_entity_leaks(
    tmp_path: Path, table: list[Any], val_in_test: str, seed: int, ratio: float, workers: int
) -> None:
    directory = fresh(tmp_path)
    source = write(directory / "in", table)
    asked = {"val_in_test": val_in_test, "seed": seed, "train_ratio": ratio, "workers": workers}
    prepared = attempt(source, directory / "out", **asked)
    if prepared is None:
        return
    rows = [row for part in table for row in part]
    found, dropped = all_rows(prepared.run), prepared.manifest.dropped
    entities = {name: {row[0] for row in each} for name, each in found.items()}
    seen = {row[0] for row in rows if row[1] < str(CUTOFF)}

    numbers = [int(row[2]) for name in SPLITS for row in found[name]]
    assert len(numbers) == len(set(numbers))
    assert len(rows) == len(numbers) + sum(dropped.values())
    assert all(
        (rows[int(row[2])][0], rows[int(row[2])][1]) == row[:2]
        for name in SPLITS
        for row in found[name]
    )
    assert not entities["train"] & (entities["test"] | entities["val"])
    assert val_in_test == "keep" or not entities["val"] & entities["test"]
    assert all((row[1] < str(CUTOFF)) == (name != "test") for name in SPLITS for row in found[name])
    assert int(Fraction(str(ratio)) * len(seen)) == len(entities["train"])
    assert seen == entities["train"] | entities["val"]
    left = [row for row in rows if row[1] >= str(CUTOFF)]
    assert sum(row[0] in entities["train"] for row in left) == dropped["train_entity_after_cutoff"]
    assert {name: len(found[name]) for name in SPLITS} == {
        name: t.rows for name, t in prepared.manifest.splits.items()
    }


@given(
    tables,
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from([".csv", ".csv.gz", ".csv.zst", ".tsv"]),
)
@settings(max_examples=examples(80))
def test_copied_rows_keep_their_bytes(
    tmp_path: Path, table: list[Any], newline: str, extension: str
) -> None:
    directory = fresh(tmp_path)
    newline = "\n" if extension == ".tsv" else newline
    source = write(directory / "in", table, extension, newline)
    prepared = attempt(source, directory / "out")
    if prepared is None:
        return
    separator = "\t" if extension == ".tsv" else ","
    lines = set()
    for path in sorted(source.iterdir()):
        _, rows = read_rows(path)
        lines |= {csv_bytes(None, [row], separator=separator, newline=newline) for row in rows}
    header = csv_bytes(HEADER, [], separator=separator, newline=newline)

    for name in SPLITS:
        for path in shards(prepared.run, name):
            _, rows = read_rows(path)
            kept = [csv_bytes(None, [row], separator=separator, newline=newline) for row in rows]
            assert header + b"".join(kept) == decompressed(path.read_bytes(), kind(path.name))
            assert set(kept) <= lines


FORMATS = [("csv", "none"), ("csv", "gz"), ("csv", "zst"), ("tsv", "none"), ("jsonl", "none"), ("jsonl", "gz"), ("parquet", None), ("parquet", "zstd")]  # fmt: skip


@given(
    tables,
    st.sampled_from([".csv", ".jsonl", ".parquet", ".tsv.gz", ".json"]),
    st.sampled_from(FORMATS),
    st.sampled_from(["sharded", "single"]),
)
@settings(max_examples=examples(120))
def test_every_format_compression_and_layout_holds_the_same_rows(
    tmp_path: Path, table: list[Any], extension: str, output: tuple[str, str | None], layout: str
) -> None:
    if not all(table):
        table = [part for part in table if part]  # JSON and Parquet of no rows have no columns
    if not table:
        return
    directory = fresh(tmp_path)
    text = attempt(write(directory / "text", table), directory / "out1")
    other = attempt(
        write(directory / "other", table, extension),
        directory / "out2",
        format=output[0],
        compression=output[1],
        layout=layout,
    )

    assert (text is None) == (other is None)
    if text is not None and other is not None:
        expected, found = all_rows(text.run), all_rows(other.run)
        assert expected == found
        assert text.manifest.dropped == other.manifest.dropped
        assert split_rows(other.run, "test") == split_rows(other.run, "oot")


@pytest.mark.slow
@given(tables, st.lists(st.integers(0, 40), max_size=3), st.randoms(use_true_random=False))
@settings(max_examples=examples(60))
def test_the_split_of_a_row_does_not_depend_on_the_sharding(
    tmp_path: Path, table: list[Any], cuts: list[int], shuffler: Any
) -> None:
    directory = fresh(tmp_path)
    rows = [
        (id_, date, str(number), "")
        for number, (id_, date, _) in enumerate(row for part in table for row in part)
    ]
    bounds = sorted({0, len(rows), *(min(cut, len(rows)) for cut in cuts)})
    parts = [rows[low:high] for low, high in pairwise(bounds)] or [[]]
    shuffler.shuffle(parts)
    write_rows(directory / "one" / "part-0.csv", HEADER, rows)
    for number, part in enumerate(parts):
        write_rows(directory / "many" / f"part-{number}.csv", HEADER, part)
    one, many = (
        attempt(directory / "one", directory / "out1"),
        attempt(directory / "many", directory / "out2"),
    )

    assert (one is None) == (many is None)
    if one is not None and many is not None:
        for name in SPLITS:
            assert Counter(split_rows(one.run, name)) == Counter(split_rows(many.run, name))


null_tables = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c", "d", "", "NA"]), st.sampled_from(["2024-12-31", "2025-01-01", "", "NA", "soon", "2025-02-30"])),
    min_size=1, max_size=40,
)  # fmt: skip


@pytest.mark.slow
@given(null_tables, st.sampled_from(["own", "drop"]), st.sampled_from([(), ("NA",)]))
@settings(max_examples=examples(100))
def test_rows_without_entity_or_date_are_counted_by_their_reason(
    tmp_path: Path, rows: list[tuple[str, str]], null_entity: str, null_values: tuple[str, ...]
) -> None:
    directory = fresh(tmp_path)
    write_rows(directory / "in" / "part-0.csv", ("id", "date", "row", "text", "more"), [(*row, str(at), "", "x") for at, row in enumerate(rows)])  # fmt: skip
    prepared = attempt(
        directory / "in",
        directory / "out",
        null_entity=null_entity,
        bad_rows="drop",
        dialect={"null_values": null_values},
    )
    if prepared is None:
        return
    absent = {"", *null_values}
    dropped = prepared.manifest.dropped
    dated = [row for row in rows if row[1] in ("2024-12-31", "2025-01-01")]
    nobody = [row for row in dated if row[0] in absent]
    sides = {name: {row[0] for row in found} for name, found in all_rows(prepared.run).items()}

    assert sum(row[1] in absent for row in rows) == dropped["null_time"]
    assert (
        sum(row[1] in {"soon", "2025-02-30", "NA"} - absent for row in rows)
        == dropped["unreadable_time"]
    )
    assert (len(nobody) if null_entity == "drop" else 0) == dropped["null_entity"]
    assert len(rows) == sum(dropped.values()) + sum(
        len(found) for found in all_rows(prepared.run).values()
    )
    if null_entity == "own":
        assert not sides["train"] & sides["val"]
        assert sum(bool(sides[name] & absent) for name in ("train", "val")) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata"])
@given(hours=st.lists(st.integers(-40, 40), min_size=8, max_size=30))
@settings(max_examples=examples(15))
def test_naive_dates_fall_on_the_side_that_the_zone_gives_them(
    tmp_path: Path, zone: str, hours: list[int]
) -> None:
    from zoneinfo import ZoneInfo

    directory = fresh(tmp_path)
    moments = [
        dt.datetime(2025, 1, 1, tzinfo=ZoneInfo(zone)) + dt.timedelta(hours=each) for each in hours
    ]
    local = [
        (str(at), moment.strftime("%Y-%m-%d %H:%M:%S"), str(at))
        for at, moment in enumerate(moments)
    ]
    zoned = [
        (str(at), moment.astimezone(dt.UTC).isoformat(), str(at))
        for at, moment in enumerate(moments)
    ]
    epoch = [(str(at), str(int(moment.timestamp())), str(at)) for at, moment in enumerate(moments)]
    sides = []
    for number, rows in enumerate((local, zoned, epoch)):
        write_rows(directory / f"in{number}" / "part-0.csv", HEADER[:3], rows)
        prepared = attempt(directory / f"in{number}", directory / f"out{number}", time_zone=zone)
        sides.append(
            None
            if prepared is None
            else {name: [row[2] for row in found] for name, found in all_rows(prepared.run).items()}
        )

    assert sides[0] == sides[1] == sides[2]
    if sides[0] is not None:
        assert [str(at) for at, each in enumerate(hours) if each >= 0] == sides[0]["test"]
