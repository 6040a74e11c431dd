"""Gathering, joining and cutting columns is what Arrow's take, concat and slice say, whatever lists they are cut from."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.stream.read.buffers import Buffers
from headrace.stream.read.columns import cut, from_table, gather, join
from headrace.stream.read.ragged import AppendedRows, ListSource, Ragged
from raised import raised

KINDS = st.sampled_from([pa.int8(), pa.uint64(), pa.float16(), pa.float32(), pa.float64()])


@st.composite
def list_arrays(draw, kind, *, least=0):
    """Lists of numbers as Arrow might hold them: nulls, empty lists, a slice of more, values before the first offset."""
    values = st.integers(0, 9) | st.none() if pa.types.is_floating(kind) else st.integers(0, 9)
    rows = draw(st.lists(st.none() | st.lists(values, max_size=4), min_size=least, max_size=12))
    wide = draw(st.booleans())
    number = np.dtype(kind.to_pandas_dtype()).type
    rows = [
        row if row is None else [None if value is None else number(value) for value in row]
        for row in rows
    ]
    array = pa.array(rows, pa.large_list(kind) if wide else pa.list_(kind))
    start = draw(st.integers(0, len(rows) - least))
    stop = draw(st.integers(start + least, len(rows)))
    return array.slice(start, stop - start)


@st.composite
def piece_lists(draw):
    """Pieces of one kind, as Arrow arrays and as ragged columns; at least one row among them, and an index or None."""
    kind = draw(KINDS)
    arrays = [draw(list_arrays(kind, least=1)), *draw(st.lists(list_arrays(kind), max_size=3))]
    wide = pa.large_list(kind)
    laid = pa.concat_arrays([array.cast(wide) for array in arrays])
    index = draw(
        st.none()
        | st.lists(st.integers(0, len(laid) - 1), max_size=20).map(lambda i: np.array(i, np.int64))
    )
    return arrays, laid, index


def ragged(array):
    column = from_table(pa.table({"c": array}), arrow=False, where="here")["c"]
    assert isinstance(column, Ragged)
    return column


def numbers(column):
    """Rows as lists, None for a null list; NaN as None."""
    return [
        row if row is None else [None if value != value else value for value in row.tolist()]
        for row in column
    ]


def picked(laid, index):
    return (laid if index is None else laid.take(pa.array(index))).to_pylist()


@given(piece_lists())
def test_gathered_lists_are_those_arrow_takes(case):
    arrays, laid, index = case
    pieces = [ragged(array) for array in arrays]

    got = Ragged.gather(pieces, index, Buffers())

    assert numbers(got) == picked(laid, index)
    assert got.values.dtype == np.dtype(laid.type.value_type.to_pandas_dtype())
    assert not any(np.shares_memory(got.values, piece.values) for piece in pieces)
    assert len(got.values) <= max(
        2 * int(got.lengths.sum()), sum(int(piece.lengths.sum()) for piece in pieces) * 2 + 60
    )


@given(piece_lists())
def test_compacting_and_concatenating_change_no_row(case):
    arrays, laid, index = case
    pieces = [ragged(array) for array in arrays]
    got = Ragged.gather(pieces, index, Buffers())

    compact, together = got.compact(), Ragged.concatenate([got, *pieces])

    assert numbers(compact) == picked(laid, index)
    assert len(compact.values) == int(got.lengths.sum())
    assert numbers(together) == picked(laid, index) + laid.to_pylist()
    assert len(together.values) == int(together.lengths.sum())


@given(piece_lists(), st.integers(0, 20), st.integers(0, 20))
def test_a_cut_of_lists_is_a_slice(case, start, stop):
    arrays, laid, index = case
    got = Ragged.gather([ragged(array) for array in arrays], index, Buffers())

    assert numbers(got[start:stop]) == picked(laid, index)[start:stop]
    assert (
        numbers(Ragged.gather([got[start:stop]], None, Buffers()))
        == picked(laid, index)[start:stop]
    )


def test_a_few_rows_of_a_large_block_are_gathered_without_its_other_values():
    block = ragged(pa.array([[row] * 100 for row in range(1000)]))

    got = Ragged.gather([block[990:995]], None, Buffers())

    assert numbers(got) == [[row] * 100 for row in range(990, 995)]
    assert len(got.values) == 500


ODD = {
    "empty lists": pa.array([[]] * 6, pa.list_(pa.int32())),
    "only null lists": pa.array([None] * 6, pa.list_(pa.int32())),
    "floats with nulls": pa.array(
        [[1.0, None], [], None, [2.0], [None], [3.0]], pa.list_(pa.float32())
    ),
    "halves": pa.array(
        [np.float16(1.5), None, np.float16(2), None, None, np.float16(0)], pa.float16()
    ),
    "unsigned": pa.array([2**64 - 1, 0, 1, 2, 3, 4], pa.uint64()),
    "unsigned lists": pa.array([[2**64 - 1], None, [], [1], None, [2]], pa.list_(pa.uint64())),
    "matrices without columns": pa.array([[]] * 6, pa.list_(pa.int32(), 0)),
    "words": pa.array(["a", None, "b", "a", "b", None]).dictionary_encode(),
    "lists by number": pa.DictionaryArray.from_arrays(
        pa.array([0, 1, 0, None, 1, 0]), pa.array([[1], [2, 3]])
    ),
    "words in structs": pa.StructArray.from_arrays(
        [pa.array(list("abcabc")).dictionary_encode()], ["word"]
    ),
    "runs": pa.RunEndEncodedArray.from_arrays(pa.array([2, 3, 6], pa.int32()), pa.array([7, 8, 9])),
    "large text": pa.array(["a", None, "", "ü", "b", "c"], pa.large_string()),
    "bytes": pa.array([b"\xff", None, b"", b"\x00", b"1", b"2"]),
    "two bytes": pa.array([b"ab", None, b"cd", b"ef", b"gh", b"ij"], pa.binary(2)),
    "amounts": pa.array([1, None, 3, 4, 5, 6], pa.decimal256(50, 2)),
    "records": pa.array(
        [{"a": 1, "b": ["x"]}, None, {"a": None, "b": None}, {"a": 2, "b": []}] + [None] * 2
    ),
    "lists of lists": pa.array([[[1], [2, 3]], None, [], [[]], [None], [[4]]]),
    "flags in lists": pa.array([[True], [None], None, [], [False], [True]]),
    "maps": pa.array(
        [[("a", 1)], None, [], [("b", None)], [("c", 3)], []], pa.map_(pa.string(), pa.int32())
    ),
    "list views": pa.array([[1], [2], None, [], [3], [4]], pa.list_view(pa.int32())),
    "nothing": pa.nulls(6),
    "times of day": pa.array([1, None, 2, 3, 4, 5], pa.time64("us")),
}


def plain(value):
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list):
        return [plain(item) for item in value]
    return None if isinstance(value, float | np.floating) and value != value else value


@pytest.mark.parametrize("arrow", [False, True])
@pytest.mark.parametrize("name", ODD)
def test_odd_columns_keep_their_values(name, arrow):
    array = ODD[name]
    chunks = pa.chunked_array([array.slice(1, 3), array.slice(6, 0), array.slice(4, 2)])
    column = from_table(pa.table({"c": chunks}), arrow=arrow, where="here")
    expected = [array.to_pylist()[row] for row in (5, 1, 3, 3)]

    got = gather([cut(column, 0, 3), cut(column, 2, 5)], np.array([5, 0, 2, 3]))
    got = join([cut(got, 0, 1), cut(got, 1, 4)])["c"]

    assert [
        plain(row) for row in (got.to_pylist() if isinstance(got, pa.Array) else got)
    ] == expected
    empty = from_table(pa.table({"c": chunks.slice(0, 0)}), arrow=arrow, where="here")["c"]
    assert len(empty) == 0


def test_a_type_that_cannot_be_picked_by_row_is_named_when_its_block_is_decoded():
    from headrace.errors import InputError

    views = pa.array([["a"]], pa.list_(pa.string_view()))

    with raised(InputError, path="part-0 block 3", column="c", remedy="with columns="):
        from_table(pa.table({"c": views}), arrow=True, where="part-0 block 3")


@given(st.data())
def test_appended_rows_are_the_rows_of_all_sources(data):
    """However short or long the first ones are, of which the reserved memory is estimated."""
    kind = data.draw(KINDS)
    scales = data.draw(st.lists(st.sampled_from([0, 1, 300]), min_size=1, max_size=4))
    appended = AppendedRows(rows=10)
    expected = []
    for scale in scales:
        arrays = data.draw(st.lists(list_arrays(kind, least=1), min_size=1, max_size=3))
        parts = [ragged(pa.array(long_rows(array, scale), array.type)) for array in arrays]
        rows = [row for part in parts for row in numbers(part)]
        index = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=8))
        appended.append(ListSource(parts), np.array(index, np.int64))
        expected.extend(rows[row] for row in index)
    found = appended.rows()
    appended.clear()
    assert numbers(found) == expected


def long_rows(array, scale):
    return [row if row is None else row * scale for row in array.to_pylist()]
