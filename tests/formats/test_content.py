"""Equal rows have equal digests, whatever holds them; rows without content repeat nothing."""

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.dataset.contents import StoredDigests
from headrace.formats import content
from headrace.formats.content import (
    NOTHING,
    content_columns,
    count_repeats,
    count_sorted,
    row_digests,
    tagged,
)
from headrace.formats.source import read_chunks, survey
from laws import examples
from tables import csv_bytes, fresh

NAN = float("nan")
KINDS = {
    pa.int8(): st.integers(-3, 3),
    pa.uint64(): st.sampled_from([0, 1, 2**64 - 1]),
    pa.float32(): st.sampled_from([0.0, -0.0, 1.0, NAN]),
    pa.float64(): st.sampled_from([0.0, -0.0, 1.0, 0.1, NAN]),
    pa.bool_(): st.booleans(),
    pa.string(): st.sampled_from(["", "a", "b", "a" * 8, "a" * 12, "a" * 13, "a" * 14, "a\0", "é"]),
    pa.binary(2): st.sampled_from([b"ab", b"ba"]),
    pa.date32(): st.sampled_from([0, 1]),
    pa.timestamp("ns", "UTC"): st.sampled_from([0, 1]),
    pa.decimal128(5, 2): st.sampled_from([0, 1]),
    pa.list_(pa.int64()): st.lists(st.sampled_from([0, 1, None]), max_size=3),
    pa.list_(pa.float32(), 2): st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=2),
    pa.struct([("x", pa.int64()), ("y", pa.list_(pa.string()))]): st.fixed_dictionaries(
        {"x": st.sampled_from([None, 1]), "y": st.sampled_from([None, [], ["a"], ["", "a"]])}
    ),
    pa.map_(pa.string(), pa.int64()): st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(0, 1)), max_size=2
    ),
}


@st.composite
def tables(draw: Any) -> pa.Table:
    count = draw(st.integers(0, 12))
    kinds = draw(st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=3))
    columns = [
        pa.array(draw(st.lists(st.none() | KINDS[kind], min_size=count, max_size=count)), kind)
        for kind in kinds
    ]
    return pa.table(columns, [f"c{number}" for number in range(len(kinds))])


def plain(value: Any) -> Any:
    """A value as something that is equal where values are the same, None where it is missing."""
    if isinstance(value, float):
        return None if value != value else value + 0.0
    if isinstance(value, str | list):
        return (
            tuple(plain(each) for each in value) or None
            if isinstance(value, list)
            else value or None
        )
    if isinstance(value, tuple):
        return tuple(plain(each) for each in value)
    if isinstance(value, dict):
        items = tuple(plain(each) for each in value.values())
        return items if any(each is not None for each in items) else None
    return value


@given(tables())
@settings(max_examples=examples(300))
def test_rows_have_one_digest_if_and_only_if_they_are_equal(table: pa.Table) -> None:
    digests = row_digests(table).tolist()
    rows = [tuple(plain(value) for value in row.values()) for row in table.to_pylist()]
    nothing = [all(value is None for value in row) for row in rows]

    assert nothing == [digest == NOTHING for digest in digests]
    for one in range(len(rows)):
        for other in range(one):
            assert (rows[one] == rows[other]) == (digests[one] == digests[other])


@given(tables(), st.lists(st.integers(0, 12), max_size=3))
@settings(max_examples=examples(100))
def test_digests_do_not_depend_on_how_rows_are_cut(table: pa.Table, cuts: list[int]) -> None:
    bounds = sorted({0, table.num_rows, *(min(cut, table.num_rows) for cut in cuts)})
    parts = [table.slice(low, high - low) for low, high in pairwise(bounds)]
    whole = row_digests(table).tolist()

    assert whole == [digest for part in parts for digest in row_digests(part).tolist()]
    if parts:
        assert whole == row_digests(pa.concat_tables(parts)).tolist()


@pytest.mark.parametrize(("narrow", "wide"), [(pa.int32(), pa.int64()), (pa.float32(), pa.float64()), (pa.string(), pa.large_string()), (pa.string(), pa.string_view())])  # fmt: skip
def test_widened_values_are_the_same(narrow: pa.DataType, wide: pa.DataType) -> None:
    values = ["1", "2" * 20, None] if narrow == pa.string() else [1, 2]

    assert (
        row_digests(pa.table({"x": pa.array(values, narrow)})).tolist()
        == row_digests(pa.table({"x": pa.array(values, wide)})).tolist()
    )


def test_digests_are_pinned() -> None:
    table = pa.table(
        {"n": [1, 2, None], "x": [0.5, NAN, None], "t": ["a text of some length", "", None]}
    )

    assert ["844780352931bcb3", "dc4845e014ad17fb", "0000000000000000"] == [
        f"{digest:016x}" for digest in row_digests(table).tolist()
    ]


@pytest.mark.slow
def test_many_rows_and_long_texts_have_digests_of_their_own() -> None:
    texts = [f"{'x' * (n % 800)}{n}" for n in range(40_000)] + ["y" * 2_000_000, "y" * 2_000_001]
    table = pa.table({"text": texts, "same": [1] * len(texts)})

    assert len(texts) == len(np.unique(row_digests(table)))
    assert (
        row_digests(table).tolist()[::-1]
        == row_digests(table.take(np.arange(len(texts))[::-1])).tolist()
    )
    assert row_digests(table.slice(7, 3)).tolist() == row_digests(table).tolist()[7:10]
    assert 100_000 == len(
        np.unique(row_digests(pa.table({"x": np.arange(100_000) / 4, "y": np.arange(100_000) % 7})))
    )


def test_texts_of_more_bytes_than_views_reach_have_the_same_digests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = pa.table(
        {"text": pa.array(["", None, *("x" * n for n in range(700))], pa.large_string())}
    )
    digests = row_digests(table).tolist()
    monkeypatch.setattr(content, "_VIEWED", 1 << 15)  # what is short of these texts is less

    assert digests == row_digests(table).tolist()


@given(st.lists(st.lists(st.integers(0, 6), max_size=12), min_size=3, max_size=3))
@settings(max_examples=examples(100))
def test_repeats_are_counted_as_sets_count_them(splits: list[list[int]]) -> None:
    names = ("train", "val", "test")
    hashed = [
        row_digests(pa.table({"x": pa.array([value or None for value in rows], pa.int64())}))
        for rows in splits
    ]
    found = count_repeats(
        np.concatenate([tagged(own, number) for number, own in enumerate(hashed)]), names
    )
    held = [
        [value for value in rows if value] for rows in splits
    ]  # 0 stands for a row without content

    assert {
        "val": sum(v in held[0] for v in held[1]),
        "test": sum(v in held[0] + held[1] for v in held[2]),
    } == dict(found.earlier)
    assert {
        name: sum(n - 1 for n in Counter(rows).values())
        for name, rows in zip(names, held, strict=True)
    } == dict(found.same_split)
    parts = [np.sort(tagged(own, number)) for number, own in enumerate(hashed)]
    assert all(found == count_sorted(parts, names, most) for most in (1, 3, 1000))
    with StoredDigests(names) as kept:
        for name, own in zip(names, hashed, strict=True):
            for part in np.array_split(own, 3):
                kept.keep(name, part)
        assert found == kept.count()


FIELDS = st.sampled_from(["", "a", "b", "a,b", ",", "n\nl", 'q"q', '""', "\nn", "\ns", " a", "é"])


@pytest.mark.slow
@given(
    st.lists(st.tuples(*4 * [FIELDS]), min_size=1, max_size=12),
    st.sets(st.integers(0, 3), min_size=1),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
)
@settings(max_examples=examples(200))
def test_fields_that_are_not_parsed_are_compared_as_their_texts_are(
    tmp_path: Path, rows: list[tuple[str, ...]], chosen: set[int], newline: str, quoted: bool
) -> None:
    header = ("w", "x", "y", "z")
    data = csv_bytes(header, rows, newline=newline)
    if quoted:  # the same fields once more, all in quotes
        data += "".join(
            ",".join('"' + each.replace('"', '""') + '"' for each in row) + newline for row in rows
        ).encode()
    path = fresh(tmp_path) / "part-0.csv"
    path.write_bytes(data)
    columns = [name for place, name in enumerate(header) if place in chosen]
    for chunk in read_chunks(survey(path, path.name)):
        found = chunk.digests(columns)  # type: ignore[attr-defined]  # a chunk of delimited text
        texts = chunk.table(columns)
    values = row_digests(texts)

    assert (found == NOTHING).tolist() == (values == NOTHING).tolist()
    for one in range(len(found)):
        assert ((found == found[one]) == (values == values[one])).all()


def test_columns_with_a_role_are_no_content() -> None:
    names = ["when", "who", "a", "label", "source_shard", "source_row", "b"]

    schema = pa.schema([(name, pa.string()) for name in names])

    assert ("a", "b") == content_columns(schema, {"when", "who", "label", None})
