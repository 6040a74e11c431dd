"""Record boundaries are those of Python's csv module, whatever the chunk size."""

import csv
import io
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.formats import delimited, records
from headrace.formats.source import copied_records, survey
from laws import examples
from tables import csv_bytes, fresh, write_bytes

fields = st.text(alphabet=st.sampled_from('ab,"\n\t é0'), max_size=6)
rows_of_three = st.lists(st.tuples(fields, fields, fields), min_size=1, max_size=12)
newlines = st.sampled_from(["\n", "\r\n"])


def ends_of(data: bytes) -> list[int]:
    array = records.as_bytes(data)
    return records.record_ends(array, records.quote_positions(array)).tolist()


@given(rows_of_three, newlines)
def test_records_end_where_the_csv_module_ends_them(
    rows: list[tuple[str, str, str]], newline: str
) -> None:
    expected, at = [], 0
    for row in rows:
        at += len(csv_bytes(None, [row], newline=newline))
        expected.append(at)

    assert expected == ends_of(csv_bytes(None, rows, newline=newline))


@given(
    rows_of_three, newlines, st.integers(1, 80), st.sampled_from([".csv", ".csv.gz", ".csv.zst"])
)
@settings(max_examples=examples(150))
def test_any_chunk_size_gives_the_rows_of_one_chunk(
    tmp_path: Path, rows: list[tuple[str, str, str]], newline: str, chunk_bytes: int, extension: str
) -> None:
    path = write_bytes(
        fresh(tmp_path) / f"part-0{extension}", csv_bytes(("x", "y", "z"), rows, newline=newline)
    )
    shard = survey(path, path.name)
    wanted = [
        tuple(row)
        for row in csv.reader(
            io.StringIO(csv_bytes(None, rows, newline=newline).decode(), newline="")
        )
    ]

    found, firsts, sizes = [], [], []
    for chunk in delimited.chunks(shard, chunk_bytes):
        firsts.append(chunk.first_row)
        table = chunk.table()
        found += [tuple(value or "" for value in row.values()) for row in table.to_pylist()]
        sizes.append(chunk.sizes())

    assert wanted == found
    assert firsts == sorted(set(firsts))
    if all(size is not None for size in sizes):
        copied = [
            part.to_pylist() for part in copied_records(shard, np.concatenate(sizes), chunk_bytes)
        ]
        assert csv_bytes(None, rows, newline=newline) == b"".join(
            record for part in copied for record in part
        )


@given(rows_of_three)
def test_the_last_sure_end_is_the_last_end_of_whole_records(
    rows: list[tuple[str, str, str]],
) -> None:
    data = csv_bytes(None, rows)
    for cut in range(len(data)):
        part = data[:cut]
        whole = [end for end in ends_of(data) if end <= cut]

        found = records.last_record_end(
            records.as_bytes(part), records.quote_positions(records.as_bytes(part))
        )
        assert (whole[-1] if whole else 0) == found


@given(rows_of_three, newlines)
def test_separators_are_those_outside_quotes(
    rows: list[tuple[str, str, str]], newline: str
) -> None:
    data = records.as_bytes(csv_bytes(None, rows, newline=newline))
    quotes = records.quote_positions(data)

    ends = records.record_ends(data, quotes)
    at = records.outside_quotes(data, quotes, ord(","))

    assert [3] * len(rows) == records.fields_per_record(at, ends).tolist()
    stops = records.field_stops(
        data, quotes, rows=len(rows), separator=ord(","), width=3, columns=[0, 1]
    )
    assert at.reshape(-1, 2).tolist() == np.column_stack([stops[0], stops[1]]).tolist()


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_rows_of_other_widths_do_not_make_up_for_each_other(widths: list[int]) -> None:
    data = records.as_bytes(b"".join(b",".join([b"x"] * width) + b"\n" for width in widths))
    none = records.quote_positions(data)
    at, ends = records.outside_quotes(data, none, ord(",")), records.record_ends(data, none)

    assert widths == records.fields_per_record(at, ends).tolist()
    stops = records.field_stops(
        data, none, rows=len(widths), separator=ord(","), width=3, columns=[0, 2]
    )
    assert all(width == 3 for width in widths) == (stops is not None)


@given(
    st.lists(st.lists(st.text("ab", max_size=3), min_size=3, max_size=3), min_size=1, max_size=8),
    st.booleans(),
)
def test_fields_stop_where_they_end_also_across_windows(
    rows: list[list[str]], ends_with_newline: bool
) -> None:
    text = "".join(",".join(row) + "\n" for row in rows)
    data = records.as_bytes((text if ends_with_newline else text.removesuffix("\n")).encode())
    starts = np.cumsum([0, *(len(",".join(row)) + 1 for row in rows[:-1])])
    expected = {
        place: [
            start + len(",".join(row[: place + 1])) for start, row in zip(starts, rows, strict=True)
        ]
        for place in range(3)
    }
    for window in (1, 2, 3, 7, 1 << 20):
        with mock.patch.object(records, "_WINDOW", window):
            stops = records.field_stops(
                data,
                np.empty(0, np.int64),
                rows=len(rows),
                separator=ord(","),
                width=3,
                columns=[0, 1, 2],
            )

        assert expected == {place: column.tolist() for place, column in stops.items()}


@pytest.mark.parametrize("data", [b"\n\na\n\r\n\nb\n", b"\r\na\n\nb\n", b"a\nb\n\n", b"a\nb\n\r\n"])
def test_blank_lines_are_left_out(data: bytes) -> None:
    assert b"a\nb\n" == records.without_blank(data, np.array(ends_of(data)))


def test_a_last_record_without_newline_ends_at_the_end() -> None:
    assert [2, 3] == ends_of(b"a\nb")


@given(
    st.lists(st.lists(fields, min_size=6, max_size=6), min_size=1, max_size=12),
    newlines,
    st.sets(st.integers(0, 5), min_size=1, max_size=4),
)
@settings(max_examples=examples(200))
def test_columns_cut_from_the_bytes_are_those_of_the_parser(
    tmp_path: Path, rows: list[list[str]], newline: str, places: set[int]
) -> None:
    header = ("a", "b", "c", "d", "e", "f")
    path = write_bytes(fresh(tmp_path) / "part-0.csv", csv_bytes(header, rows, newline=newline))
    shard = survey(path, path.name)
    names = [header[place] for place in sorted(places)]

    parsed = [chunk.table().select(names).to_pylist() for chunk in delimited.chunks(shard)]
    cut = [chunk.table(names).to_pylist() for chunk in delimited.chunks(shard)]

    assert parsed == cut


@given(
    st.lists(
        st.tuples(
            st.text(alphabet="ab\x80\xff", max_size=90), st.text(alphabet=",\na", max_size=1)
        ),
        max_size=6,
    )
)
@settings(max_examples=examples(200))
def test_quotes_are_loose_where_no_separator_and_no_newline_stands_between_them(
    parts: list[tuple[str, str]],
) -> None:
    data, expected = bytearray(), []
    for text, special in parts:
        field = (text + special + text[:5]).encode("latin-1")
        expected += [] if {*b",\n"} & {*field} else [len(data)]
        data += b'"' + field + b'"\n'
    array = records.as_bytes(bytes(data))

    assert (
        expected == records.loose_quotes(array, records.quote_positions(array), ord(",")).tolist()
    )
