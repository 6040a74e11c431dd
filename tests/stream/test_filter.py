"""A filtered stream is the matching rows, exactly once, in every format; what statistics rule out is never read."""

import datetime as dt
import json
import os
import pickle
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prepared import prepare_dataset
from stream_cases import ranks

import headrace
from headrace.dataset.condition import Range, condition_of
from headrace.errors import SettingsError, StreamError
from laws import examples
from raised import raised

ROWS = 1000
FIELDS = {"row": pa.int64(), "x": pa.int64(), "f": pa.float32(), "s": pa.string()}
TYPES = {"row": "int64", "x": "int64", "f": "float32"}


def values():
    """Columns as Python lists: x rises with the row, with nulls; f has nulls; s has few values and nulls."""
    r = np.random.default_rng(3)
    return {
        "row": list(range(ROWS)),
        "x": [None if n % 11 == 5 else n // 10 for n in range(ROWS)],
        "f": [None if n % 7 == 2 else float(v) for n, v in enumerate(r.integers(-8, 8, ROWS) / 4)],
        "s": [None if n % 5 == 4 else "abc"[n % 3] for n in range(ROWS)],
    }


def write(folder: Path, kind: str) -> Path:
    folder.mkdir()
    columns = values()
    borders = [0, 310, 311, 700, ROWS]
    for shard, (start, stop) in enumerate(pairwise(borders)):
        part = {name: column[start:stop] for name, column in columns.items()}
        path = folder / f"part-{shard}.{kind}"
        if kind == "parquet":
            fields = [pa.field(name, kind, name != "row") for name, kind in FIELDS.items()]
            pq.write_table(pa.table(part, schema=pa.schema(fields)), path, row_group_size=50)
            continue
        rows = [dict(zip(part, row, strict=True)) for row in zip(*part.values(), strict=True)]
        if kind == "jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        else:
            lines = [
                ",".join(part),
                *(",".join("" if v is None else str(v) for v in row.values()) for row in rows),
            ]
            path.write_text("\n".join(lines) + "\n")
    return folder


def opened(folder: Path, kind: str) -> headrace.Dataset:
    text = {"types": TYPES, "dialect": {"null_values": [""]}} if kind == "csv" else {}
    return headrace.open(folder, cache_dir=folder.parent / "cache", **text)


@pytest.fixture(scope="module", params=["parquet", "csv", "jsonl"])
def dataset(request, tmp_path_factory):
    root = tmp_path_factory.mktemp(request.param)
    return opened(write(root / "data", request.param), request.param)


def rows_of(stream):
    return [
        row
        for batch in stream
        for row in (batch["row"][batch["valid"]] if "valid" in batch else batch["row"]).tolist()
    ]


TRUE = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    ">": lambda a, b: a > b,
    "<=": lambda a, b: a <= b,
    ">=": lambda a, b: a >= b,
    "in": lambda a, b: a in b,
    "not in": lambda a, b: a not in b,
}
ONE = {
    "x": st.integers(-5, 105),
    "f": st.integers(-9, 9).map(lambda n: n / 4),
    "s": st.sampled_from("abcd"),
}
COLUMN = st.sampled_from(sorted(ONE))
TERM = COLUMN.flatmap(
    lambda name: st.one_of(
        st.tuples(st.just(name), st.sampled_from(["==", "!=", "<", ">", "<=", ">="]), ONE[name]),
        st.tuples(
            st.just(name),
            st.sampled_from(["in", "not in"]),
            st.lists(ONE[name], min_size=1, max_size=3),
        ),
    )
)
TERMS = st.lists(st.lists(TERM, min_size=1, max_size=3), min_size=1, max_size=2)


def matching(terms):
    """The rows that match, by plain Python: a comparison with null does not."""
    columns = values()

    def holds(row, term):
        name, comparison, value = term
        return columns[name][row] is not None and TRUE[comparison](columns[name][row], value)

    return [
        row for row in range(ROWS) if any(all(holds(row, term) for term in each) for each in terms)
    ]


@settings(max_examples=examples(40))
@given(terms=TERMS)
def test_the_rows_are_those_that_match(dataset, terms):
    stream = dataset.stream(batch_size=64, filter=terms, columns=["row"])

    expected = matching(terms)
    assert stream.index.total_rows == len(expected)
    assert rows_of(stream) == expected


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("remainder", ["pad", "drop"])
def test_ranks_share_the_matching_rows_in_equal_steps(dataset, world_size, remainder):
    streams = [
        dataset.stream(
            batch_size=16,
            filter=[("x", ">", 42)],
            shuffle=True,
            lanes=6,
            topology=each,
            remainder=remainder,
        )
        for each in ranks(world_size)
    ]

    received = [row for stream in streams for row in rows_of(stream)]

    expected = matching([[("x", ">", 42)]])
    assert len({len(stream) for stream in streams}) == 1
    assert len(received) == len(set(received)) == len(expected) - streams[0].dropped_rows
    assert set(received) <= set(expected)


def test_a_state_resumes_under_its_filter_and_is_refused_under_another(dataset):
    asked = {"batch_size": 16, "shuffle": True, "columns": ["row"]}
    whole = rows_of(dataset.stream(**asked, filter=[("x", "<", 50)]))
    stream = dataset.stream(**asked, filter=[("x", "<", 50)])
    batches = iter(stream)
    begun = [row for _ in range(7) for row in next(batches)["row"].tolist()]
    state = stream.state_dict()

    rest = dataset.stream(**asked, filter=[("x", "<", 50)])
    rest.load_state_dict(state)
    same_rows = dataset.stream(**asked, filter=[("x", "<=", 49)])

    assert begun + rows_of(rest) == whole
    for other in (same_rows, dataset.stream(**asked)):
        with pytest.raises(StreamError, match=r"index|rows"):
            other.load_state_dict(state)


def test_statistics_spare_blocks_and_count_the_rest_exactly(tmp_path):
    opened_ = opened(write(tmp_path / "data", "parquet"), "parquet")
    view = opened_.filter([("row", ">=", 120), ("row", "<", 330)])

    report = view.filter_report()

    assert report.rows == len(rows_of(view.stream(batch_size=32, columns=["row"]))) == 210
    assert (report.blocks, report.ruled_out, report.ruled_in, report.counted) == (22, 15, 5, 2)
    assert "15 of 22 blocks ruled out by statistics" in repr(view)
    assert len(view.stream(batch_size=32, columns=["row"]).index.rows) == 7


def test_blocks_that_statistics_rule_out_are_never_read(tmp_path):
    folder = write(tmp_path / "data", "parquet")
    opened_ = opened(folder, "parquet")
    opened_.split_index()
    first = folder / "part-0.parquet"  # rows 0..309; its footer stays whole
    data = bytearray(first.read_bytes())
    place = pq.ParquetFile(first).metadata.row_group(0).column(0).data_page_offset
    data[place : place + 40] = bytes(40)
    first.write_bytes(data)

    assert rows_of(
        opened_.stream(batch_size=32, columns=["row"], filter=[("row", ">", 900)])
    ) == list(range(901, ROWS))
    with pytest.raises(headrace.HeadraceError):
        rows_of(opened_.stream(batch_size=32, columns=["row"], filter=[("row", "<", 10)]))


def test_counts_are_kept_and_a_torn_file_is_made_again(tmp_path):
    folder = write(tmp_path / "data", "jsonl")
    expected = matching([[("x", ">", 42)]])

    assert (
        rows_of(
            opened(folder, "jsonl").stream(batch_size=32, columns=["row"], filter=[("x", ">", 42)])
        )
        == expected
    )
    (kept,) = (tmp_path / "cache").glob("filter-*.json")
    written = kept.stat().st_mtime_ns
    assert (
        rows_of(
            opened(folder, "jsonl").stream(batch_size=32, columns=["row"], filter=[("x", ">", 42)])
        )
        == expected
    )
    assert kept.stat().st_mtime_ns == written
    kept.write_bytes(kept.read_bytes()[:-9])
    assert (
        rows_of(
            opened(folder, "jsonl").stream(batch_size=32, columns=["row"], filter=[("x", ">", 42)])
        )
        == expected
    )
    assert kept.stat().st_mtime_ns != written


def test_expressions_count_as_terms_do(dataset):
    expression = (pc.field("x") > 42) & ~(pc.field("s") == "a")

    assert rows_of(dataset.stream(batch_size=64, filter=expression, columns=["row"])) == matching(
        [[("x", ">", 42), ("s", "!=", "a")]]
    )


def test_random_access_sees_the_matching_rows(dataset):
    rows = dataset.map_dataset(columns=["row"], filter=[("x", ">", 42)])

    expected = matching([[("x", ">", 42)]])
    assert len(rows) == len(expected)
    assert rows.batch([0, -1, 100])["row"].tolist() == [expected[0], expected[-1], expected[100]]


@pytest.mark.slow
def test_spawned_workers_filter(tmp_path):
    opened_ = opened(write(tmp_path / "data", "csv"), "csv")
    streaming = opened_.torch_dataset(
        batch_size=32, num_workers=2, filter=[("x", ">", 42)], columns=["row"]
    )

    assert sorted(rows_of(streaming.data_loader(method="spawn"))) == matching([[("x", ">", 42)]])


def test_a_prepared_split_is_filtered(tmp_path):
    out = prepare_dataset(tmp_path)
    everything = rows_of(headrace.open(out).stream("train", batch_size=64))

    view = headrace.open(out, cache_dir=tmp_path / "cache").filter([("row", "<", 100)])

    assert rows_of(view.stream("train", batch_size=64)) == [row for row in everything if row < 100]
    assert view.splits == headrace.open(out).splits


def test_a_filter_without_matching_rows_is_an_empty_stream(dataset):
    assert rows_of(dataset.stream(batch_size=64, filter=[("x", ">", 1000)])) == []


@pytest.mark.slow
def test_the_digest_is_the_same_in_every_process(tmp_path):
    schema = pa.schema(list(FIELDS.items()))
    forms = [
        [("s", "in", {"a", "b", "c", "d"}), ("x", ">", 3)],
        (pc.field("x") > 3) & pc.field("s").isin(["a", "b"]),
    ]
    here = [condition_of(form, schema).digest for form in forms]
    (tmp_path / "forms").write_bytes(pickle.dumps((forms, schema)))
    code = (
        "import pickle, sys; from headrace.dataset.condition import condition_of;"
        "forms, schema = pickle.load(open(sys.argv[1], 'rb'));"
        "print(*(condition_of(form, schema).digest for form in forms))"
    )

    for seed in ("1", "2"):
        there = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "forms")],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert there.stdout.split() == here


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        (
            [("nothing", ">", 3)],
            "column 'nothing', filter: the dataset has no such column; use one of row",
        ),
        (pc.field("nothing") > 3, "No match for FieldRef.Name.nothing.*row int64"),
        ([("s", ">", 3)], "does not fit the columns"),
        ([("x", "~", 3)], "filter is '~': not a comparison; use one of"),
        ([("x", "in", 3)], "pass a list of values"),
        ([("x", "in", ["a"])], "column 'x', filter is .*: the values are not of type int64"),
        ([("x", "==", None)], "is_null"),
        ([], "give a pyarrow.compute expression"),
        ("x > 3", "give a pyarrow.compute expression"),
        ([("x", ">")], "neither a term"),
    ],
)
def test_a_filter_that_does_not_fit_says_why(dataset, condition, message):
    with pytest.raises(SettingsError, match=message):
        dataset.filter(condition)


def test_a_filtered_view_is_not_filtered_again(dataset):
    with raised(SettingsError, setting="filter", remedy="pass both conditions together"):
        dataset.filter([("x", ">", 3)]).filter([("x", ">", 4)])


DAYS = [dt.date(2024, 1, day) for day in (3, 9)]


@pytest.mark.parametrize(
    ("kind", "low", "high", "nulls", "term", "expected"),
    [
        (pa.int64(), 3, 9, 0, (">", 9), "none"),
        (pa.int64(), 3, 9, 0, (">", 2), "all"),
        (pa.int64(), 3, 9, 1, (">", 2), "some"),
        (pa.int64(), 3, 9, 0, (">", 2.5), "all"),
        (pa.int64(), 3, 3, 0, ("!=", 3), "none"),
        (pa.int64(), 3, 9, 0, ("not in", [2, 10]), "all"),
        (pa.float64(), 3.0, 9.0, 0, (">", 2.0), "some"),  # there may be NaN
        (pa.float64(), 3.0, 3.0, 0, ("!=", 3.0), "some"),  # NaN differs
        (pa.float64(), 3.0, 9.0, 0, ("<", 3.0), "none"),
        (pa.float64(), float("nan"), float("nan"), 0, ("==", 3.0), "some"),
        (
            pa.float32(),
            float(np.float32(0.1)),
            1.0,
            0,
            ("==", 0.1),
            "some",
        ),  # compared as a float32 it is there
        (pa.string(), "b", "d", 0, ("in", ["a", "e"]), "none"),
        (pa.date32(), *DAYS, 0, ("<=", DAYS[1]), "all"),
        (pa.date32(), *DAYS, 0, ("<=", dt.datetime(2024, 1, 1)), "some"),
    ],
)
def test_statistics_tell_no_more_than_they_know(kind, low, high, nulls, term, expected):
    condition = condition_of([("c", *term)], pa.schema([("c", kind)]))

    assert (
        condition.holds_in({"c": Range(type=kind, low=low, high=high, nullable=nulls > 0)})
        == expected
    )
    assert condition.holds_in({}) == "some"


def test_nan_is_counted_as_arrow_compares_it(tmp_path):
    table = pa.table({"row": range(4), "f": pa.array([5.0, float("nan"), 5.0, None])})
    pq.write_table(table, tmp_path / "a.parquet")
    opened_ = headrace.open(tmp_path, cache_dir=tmp_path / "cache")

    assert rows_of(opened_.stream(batch_size=4, filter=[("f", "!=", 5.0)])) == [1]
    assert rows_of(opened_.stream(batch_size=4, filter=[("f", ">", 4.0)])) == [0, 2]
