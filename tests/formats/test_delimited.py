"""CSV and TSV: text stays text, and damaged files are errors that say where."""

import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace.errors import InputError
from headrace.formats import delimited
from headrace.formats.shard import Dialect
from headrace.formats.source import copied_records, read_chunks, survey
from laws import examples
from raised import raised
from tables import csv_bytes, fresh, write_bytes


def written(tmp_path: Path, data: bytes, name: str = "part-0.csv") -> Path:
    return write_bytes(tmp_path / name, data)


def rows(path: Path, signature: list[str] | None = None) -> list[dict[str, str | None]]:
    shard = survey(path, path.name, signature)
    return [row for chunk in read_chunks(shard) for row in chunk.table().to_pylist()]


def test_values_that_look_like_numbers_or_nulls_stay_text(tmp_path: Path) -> None:
    values = [
        "007",
        "17850.0",
        "1234567890123456789",
        "NA",
        "null",
        "None",
        "nan",
        "1e5",
        "TRUE",
        " a ",
        "é",
        "\x00b",
    ]
    path = written(tmp_path, csv_bytes(("id", "x"), [(value, "1") for value in values]))

    assert values == [row["id"] for row in rows(path)]


def test_an_empty_field_is_null_and_a_quoted_one_is_empty_text(tmp_path: Path) -> None:
    path = written(tmp_path, b'a,b\n,x\n"",y\n"",""\n,\n')

    assert [(None, "x"), ("", "y"), ("", ""), (None, None)] == [
        (row["a"], row["b"]) for row in rows(path)
    ]


def test_a_quoted_newline_and_doubled_quotes_are_part_of_a_value(tmp_path: Path) -> None:
    path = written(tmp_path, b'a,b\n"x\ny, ""z""",1\n')

    assert [{"a": 'x\ny, "z"', "b": "1"}] == rows(path)


def test_crlf_ends_lines_and_is_no_part_of_values(tmp_path: Path) -> None:
    path = written(tmp_path, b'a,b\r\n1,2\r\n3,"x\r\ny"\r\n')

    assert "\r\n" == survey(path, "x").dialect.newline
    assert [{"a": "1", "b": "2"}, {"a": "3", "b": "x\r\ny"}] == rows(path)


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path: Path) -> None:
    path = written(tmp_path, b"\xef\xbb\xbfa,b\n1,2\n")

    assert ["a", "b"] == survey(path, "x").schema.names
    assert [{"a": "1", "b": "2"}] == rows(path)


def test_a_byte_order_mark_of_a_headerless_file_is_no_part_of_the_first_value(
    tmp_path: Path,
) -> None:
    path = written(tmp_path, b"\xef\xbb\xbf1,2\n")

    assert [{"a": "1", "b": "2"}] == rows(path, ["a", "b"])


@pytest.mark.parametrize("row", [b"1", b"1,2", b"1,2,3,4", b"1,2,3,4,5,6"])
def test_a_short_or_long_row_is_an_error_with_its_number(tmp_path: Path, row: bytes) -> None:
    path = written(tmp_path, b"a,b,c\n1,2,3\n4,5,6\n" + row + b"\n7,8,9\n")

    with pytest.raises(
        InputError,
        match=rf"part-0\.csv: row 3: it has {row.count(b',') + 1} fields on line 4, the header 3: '{row.decode()}'",
    ):
        rows(path)


def test_a_short_and_a_long_row_do_not_make_up_for_each_other(tmp_path: Path) -> None:
    path = written(tmp_path, b"a,b,c\n1,2,3\n1,2\n1,2,3,4\n")

    with raised(InputError, row=2, remedy="complete or remove that row"):
        rows(path)


def test_a_row_is_also_measured_when_only_some_columns_are_read(tmp_path: Path) -> None:
    path = written(tmp_path, b"a,b,c\n1,2,3\n1,2,3,4\n")
    shard = survey(path, path.name)

    with raised(InputError, row=2, remedy="complete or remove that row"):
        [chunk.table(["a"]) for chunk in read_chunks(shard)]


def test_a_quote_that_is_never_closed_is_an_error(tmp_path: Path) -> None:
    path = written(tmp_path, b'a,b\n1,2\n3,"oops\n5,6\n')

    with pytest.raises(
        InputError, match=r"part-0\.csv: a quote opened near .*oops.* is never closed"
    ):
        rows(path)


@pytest.mark.parametrize(
    "line", [b'a,5" x, 3",b', b'"a"b,c,d', b'a,"b"c,d', b'a,b"\nc",d', b'"a" ,b,c']
)
def test_a_stray_quote_that_could_move_a_boundary_is_an_error_with_its_row(
    tmp_path: Path, line: bytes
) -> None:
    path = written(tmp_path, b"a,b,c\n1,2,3\n" + line + b"\n")

    with raised(InputError, row=2, remedy="double the quotes inside"):
        rows(path)


@pytest.mark.parametrize("line", [b'a,b"\nc",d', b'"a" ,b,c', b'a,"b"c,d'])
def test_a_stray_quote_is_an_error_also_in_a_column_that_is_not_read(
    tmp_path: Path, line: bytes
) -> None:
    path = written(tmp_path, b"z,a,b,c\n0,1,2,3\n0," + line + b"\n")
    shard = survey(path, path.name)

    with raised(InputError, row=2, remedy="double the quotes inside"):
        [chunk.table(["z"]) for chunk in read_chunks(shard)]


def test_quotes_inside_an_unquoted_field_are_plain_text_where_they_move_no_boundary(
    tmp_path: Path,
) -> None:
    path = written(tmp_path, b'a,b\n5" x 3",1\n')

    assert [{"a": '5" x 3"', "b": "1"}] == rows(path)


@pytest.mark.parametrize("width", [3, 6])
@pytest.mark.parametrize("column", [0, 1, 2])
def test_bytes_that_are_not_utf8_are_an_error_with_row_and_byte(
    tmp_path: Path, column: int, width: int
) -> None:
    fields = [b"x"] * width
    fields[column] = b"caf\xe9"
    header = b",".join(b"abcdef"[place : place + 1] for place in range(width))
    path = written(
        tmp_path, header + b"\n" + b",".join([b"1"] * width) + b"\n" + b",".join(fields) + b"\n"
    )
    shard = survey(path, path.name)

    with raised(InputError, row=2, remedy="give the encoding of the file"):
        [chunk.table(["a"]) for chunk in read_chunks(shard)]


def test_a_header_that_is_not_utf8_is_an_error(tmp_path: Path) -> None:
    path = written(tmp_path, b"caf\xe9,b\n1,2\n")

    with raised(InputError, row="line 1", remedy="give the encoding of the file"):
        survey(path, path.name)


@pytest.mark.parametrize("header", [b"a,b,a", b"a__DOT__b,a.b", b","])
def test_a_name_that_stands_twice_in_the_header_is_an_error(tmp_path: Path, header: bytes) -> None:
    path = written(tmp_path, header + b"\n1,2,3\n")

    with raised(InputError, remedy="rename one of them"):
        survey(path, path.name)


def test_dot_words_in_names_are_dots(tmp_path: Path) -> None:
    path = written(tmp_path, b"order__DOT__date,b\n1,2\n")

    assert ["order.date", "b"] == survey(path, "x").schema.names


@pytest.mark.parametrize("data", [b"a,b\n", b"a,b", b"\xef\xbb\xbfa,b\r\n"])
def test_a_file_of_a_header_only_has_no_rows(tmp_path: Path, data: bytes) -> None:
    path = written(tmp_path, data)

    assert ["a", "b"] == survey(path, "x").schema.names
    assert [] == rows(path)


@pytest.mark.parametrize("name", ["part-0.csv", "part-0.csv.gz", "part-0.csv.zst"])
@pytest.mark.parametrize("data", [b"", b"\xef\xbb\xbf"])
def test_an_empty_file_is_an_empty_shard_whose_columns_a_signature_may_name(
    tmp_path: Path, name: str, data: bytes
) -> None:
    path = written(tmp_path, data, name)

    assert ("nothing", [], []) == (
        survey(path, "x").content,
        survey(path, "x").schema.names,
        rows(path),
    )
    assert ("table", ["a", "b"]) == (
        survey(path, "x", ["a", "b"]).content,
        survey(path, "x", ["a", "b"]).schema.names,
    )
    assert [] == rows(path, ["a", "b"])


def test_a_compressed_name_over_0_bytes_is_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "part-0.csv.gz"
    path.write_bytes(b"")

    assert "nothing" == survey(path, path.name).content


def test_a_signature_names_the_columns_of_a_headerless_file(tmp_path: Path) -> None:
    path = written(tmp_path, b"1,2\n3,4\n")

    assert [{"a": "1", "b": "2"}, {"a": "3", "b": "4"}] == rows(path, ["a", "b"])


def test_a_first_line_equal_to_the_signature_is_a_header(tmp_path: Path) -> None:
    path = written(tmp_path, b"a,b\n3,4\n")

    assert [{"a": "3", "b": "4"}] == rows(path, ["a", "b"])


def test_a_signature_of_another_width_is_an_error(tmp_path: Path) -> None:
    path = written(tmp_path, b"1,2\n")

    with raised(InputError, row="line 1", remedy="correct the signature file"):
        survey(path, path.name, ["a", "b", "c"])


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_blank_lines_are_no_rows(tmp_path: Path, newline: bytes) -> None:
    path = written(tmp_path, newline.join([b"a,b", b"", b"1,2", b"", b"", b"3,4", b"", b""]))

    assert [{"a": "1", "b": "2"}, {"a": "3", "b": "4"}] == rows(path)


def test_an_empty_line_of_a_one_column_file_is_a_null(tmp_path: Path) -> None:
    path = written(tmp_path, b'a\n1\n\n2\n""\n\n')

    assert ["1", None, "2", "", None] == [row["a"] for row in rows(path)]


def test_a_last_line_without_newline_is_a_row_and_its_record_gets_one(tmp_path: Path) -> None:
    path = written(tmp_path, b"a,b\r\n1,2\r\n3,4")
    shard = survey(path, path.name)
    chunks = list(read_chunks(shard))
    sizes = np.concatenate([chunk.sizes() for chunk in chunks])

    assert [[b"1,2\r\n", b"3,4\r\n"]] == [part.to_pylist() for part in copied_records(shard, sizes)]
    assert [{"a": "1", "b": "2"}, {"a": "3", "b": "4"}] == [
        row for chunk in chunks for row in chunk.table().to_pylist()
    ]


@pytest.mark.parametrize("name", ["part-0.csv.gz", "part-0.csv.zst"])
@pytest.mark.parametrize("cut", [1, 9, 300, 0.5])
def test_a_truncated_file_is_an_error_and_never_a_short_table(
    tmp_path: Path, name: str, cut: float
) -> None:
    path = written(
        tmp_path, csv_bytes(("a", "b"), [(n * 7919 % 10007, n) for n in range(20_000)]), name
    )
    data = path.read_bytes()
    path.write_bytes(data[: -int(cut)] if cut >= 1 else data[: len(data) // 2])

    with raised(InputError, remedy="fetch it again"):
        rows(path)


def test_a_gzip_file_of_several_members_is_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "part-0.csv.gz"
    path.write_bytes(
        b"".join(gzip.compress(part) for part in (b"", b"a,b\n", b"1,", b"2\n3,4\n", b"", b"5,6"))
    )

    assert [("1", "2"), ("3", "4"), ("5", "6")] == [tuple(row.values()) for row in rows(path)]


def test_bytes_after_a_gzip_member_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "part-0.csv.gz"
    path.write_bytes(gzip.compress(b"a,b\n1,2\n") + b"3,4\n" * 20)

    with raised(InputError, remedy="fetch it again"):
        rows(path)


texts = st.none() | st.text(alphabet=st.sampled_from('ab,"\n\r\t é0#'), max_size=6)


@pytest.mark.slow
@given(
    st.lists(st.tuples(texts, texts), min_size=1, max_size=10),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from([".csv", ".tsv"]),
)
@settings(max_examples=examples(200))
def test_what_is_rendered_is_read_back(
    tmp_path: Path, values: list[tuple[str | None, str | None]], newline: str, extension: str
) -> None:
    dialect = Dialect("," if extension == ".csv" else "\t", newline)
    table = pa.table(
        {
            "a": pa.array([a for a, _ in values], pa.string()),
            "b": pa.array([b for _, b in values], pa.string()),
        }
    )
    data = delimited.header_bytes(["a", "b"], dialect) + delimited.render(table, dialect)
    path = written(fresh(tmp_path), data, f"p{extension}")

    assert values == [tuple(row.values()) for row in rows(path)]


@given(st.lists(texts, min_size=1, max_size=10))
def test_one_column_that_is_rendered_is_read_back(tmp_path: Path, values: list[str | None]) -> None:
    dialect = Dialect(",", "\n")
    table = pa.table({"a": pa.array(values, pa.string())})
    path = written(fresh(tmp_path), b"a\n" + delimited.render(table, dialect))

    assert values == [row["a"] for row in rows(path)]


@pytest.mark.parametrize(
    "header",
    [
        b"a,b\n",
        b"a," + b"b" * 65_531 + b"\r\n",
        b'"a\n",' + b"b" * 70_000 + b"\n",
        b'"' + b"\n" * 300_000,
    ],
)
@pytest.mark.parametrize("rest", [b"", b"1,2\n", b'1,"2\n3"\n' * 20_000])
def test_what_stands_behind_a_header_of_any_length_is_found(header: bytes, rest: bytes) -> None:
    if header.count(b'"') % 2:
        header += b'"\n'

    assert rest == delimited.without_header(header + rest)


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "marked"])
def test_the_separator_that_excel_is_told_is_no_line_of_names(tmp_path: Path, mark: bytes) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(mark + b"sep=;\r\nid;t\r\n1;x\r\n")

    with raised(InputError, path=path, row="line 1", remedy='dialect={"skip_rows": 1}'):
        headrace.open(path, cache_dir=tmp_path / "cache")
    table = headrace.open(path, dialect={"skip_rows": 1}, cache_dir=tmp_path / "cache")
    assert [{"id": 1, "t": "x"}] == table["all"].to_arrow().to_pylist()
