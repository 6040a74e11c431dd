"""Record boundaries are those of Python's csv module, whatever the chunk size."""

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.formats import delimited, records
from headrace.formats.source import survey
from tables import csv_bytes, fresh, write_bytes

fields = st.text(alphabet=st.sampled_from('ab,"\n\t é0'), max_size=6)
rows_of_three = st.lists(st.tuples(fields, fields, fields), min_size=1, max_size=12)
newlines = st.sampled_from(["\n", "\r\n"])


def ends_of(data: bytes) -> list[int]:
    array = records.as_bytes(data)
    return records.record_ends(array, records.quote_positions(array)).tolist()


@given(rows_of_three, newlines)
def test_records_end_where_the_csv_module_ends_them(rows: list[tuple[str, str, str]], newline: str) -> None:
    expected, at = [], 0
    for row in rows:
        at += len(csv_bytes(None, [row], newline=newline))
        expected.append(at)

    assert expected == ends_of(csv_bytes(None, rows, newline=newline))


@given(rows_of_three, newlines, st.integers(1, 80), st.sampled_from([".csv", ".csv.gz", ".csv.zst"]))
@settings(max_examples=150)
def test_any_chunk_size_gives_the_rows_of_one_chunk(
    tmp_path: Path, rows: list[tuple[str, str, str]], newline: str, chunk_bytes: int, extension: str
) -> None:
    path = write_bytes(fresh(tmp_path) / f"part-0{extension}", csv_bytes(("x", "y", "z"), rows, newline=newline))
    shard = survey(path, path.name)
    wanted = [
        tuple(row) for row in csv.reader(io.StringIO(csv_bytes(None, rows, newline=newline).decode(), newline=""))
    ]

    found, firsts, copied = [], [], b""
    for chunk in delimited.chunks(shard, chunk_bytes):
        firsts.append(chunk.first_row)
        table = chunk.table()
        found += [tuple(value or "" for value in row.values()) for row in table.to_pylist()]
        copied += b"".join(chunk.records().to_pylist())

    assert wanted == found
    assert firsts == sorted(set(firsts))
    assert csv_bytes(None, rows, newline=newline) == copied


@given(rows_of_three)
def test_the_last_sure_end_is_the_last_end_of_whole_records(rows: list[tuple[str, str, str]]) -> None:
    data = csv_bytes(None, rows)
    for cut in range(len(data)):
        part = data[:cut]
        whole = [end for end in ends_of(data) if end <= cut]

        assert (whole[-1] if whole else 0) == records.last_record_end(
            part, records.quote_positions(records.as_bytes(part))
        )


@given(rows_of_three, newlines)
def test_separators_are_counted_outside_quotes_only(rows: list[tuple[str, str, str]], newline: str) -> None:
    data = records.as_bytes(csv_bytes(None, rows, newline=newline))
    quotes = records.quote_positions(data)

    assert 2 * len(rows) == records.separators_outside_quotes(data, quotes, ord(","))
    assert [3] * len(rows) == records.fields_per_record(data, quotes, ord(",")).tolist()


@pytest.mark.parametrize("data", [b"\n\na\n\r\n\nb\n", b"\r\na\n\nb\n", b"a\nb\n\n", b"a\nb\n\r\n"])
def test_blank_lines_are_left_out(data: bytes) -> None:
    assert b"a\nb\n" == records.without_blank(data, np.array(ends_of(data)))


def test_a_last_record_without_newline_ends_at_the_end() -> None:
    assert [2, 3] == ends_of(b"a\nb")
