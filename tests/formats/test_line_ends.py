"""No reader of ours takes for a line end what another takes for text: files with such bytes are refused, by line."""

from pathlib import Path

import pyarrow as pa
import pytest

import headrace
from headrace.errors import HeadraceError, InputError
from headrace.formats import delimited
from headrace.formats.delimited_rows import parse, parse_numbers
from headrace.formats.source import read_chunks, survey
from headrace.series.statics import static_table
from raised import raised
from tables import split, split_rows, write_bytes

CR = {
    "old Mac": (b"id,date,row\r1,2024-01-01,1\r2,2024-02-02,2\r", 1),
    "old Mac without a last line end": (b"id,date,row\r1,2024-01-01,1", 1),
    "header ends in CR": (b"id,date,row\r1,2024-01-01,1\n2,2024-02-02,2\n", 1),
    "rows end in CR": (b"id,date,row\n1,2024-01-01,1\r2,2024-02-02,2\r", 2),
    "CR CR LF": (b"id,date,row\r\r\n1,2024-01-01,1\r\r\n", 1),
    "CR CR LF in the last row": (b"id,date,row\n1,2024-01-01,1\n2,2024-02-02,2\r\r\n", 3),
    "CR in a field": (b"id,date,row\n1,2024-01-01,1\n2,2024\r-02-02,2\n", 3),
    "CR at the end of the file": (b"id,date,row\n1,2024-01-01,1\n\r", 3),
    "a row that ends in CR, the last": (b"id,date,row\n1,2024-01-01,1\r", 2),
    "CR alone on a line": (b"id,date,row\r\n\r1,2024-01-01,1\r\n", 2),
    "mark, then CR": (b"\xef\xbb\xbfid,date,row\r1,2024-01-01,1\r", 1),
    "mark, CR first": (b"\xef\xbb\xbf\rid,date,row\n1,2024-01-01,1\n", 1),
    "CR behind a quoted field": (b'"id","date","row"\r"1","2024-01-01","1"\n', 1),
    "far behind": (b"id,date,row\n" + b"1,2024-01-01,1\n" * 900_000 + b"2,2024-01-01,1\r", 900_002),
}  # fmt: skip


def read(path: Path) -> list[dict[str, object]]:
    shard = survey(path, path.name)
    return [row for chunk in read_chunks(shard) for row in chunk.table().to_pylist()]


@pytest.mark.slow
@pytest.mark.parametrize("name", CR)
def test_a_lone_carriage_return_is_refused_with_its_line(tmp_path: Path, name: str) -> None:
    data, line = CR[name]
    path = write_bytes(tmp_path / "in" / "part-0.csv", data)

    with raised(InputError, row=f"line {line}", remedy="end lines with LF or CRLF"):
        read(path)
    with raised(InputError, row=f"line {line}", remedy="end lines with LF or CRLF"):
        split(path.parent, tmp_path / "out")
    with raised(InputError, row=f"line {line}", remedy="end lines with LF or CRLF"):
        headrace.open(path.parent)
    with raised(InputError, row=f"line {line}", remedy="end lines with LF or CRLF"):
        headrace.prepare(headrace.Rewrite(source=path.parent), tmp_path / "rewritten")


@pytest.mark.parametrize("name", [name for name in CR if name != "far behind"])
def test_a_lone_carriage_return_is_refused_under_a_signature(tmp_path: Path, name: str) -> None:
    path = write_bytes(tmp_path / "part-0.csv", CR[name][0])
    shard = None

    with raised(InputError, remedy="end lines with LF or CRLF"):
        shard = survey(path, path.name, ["id", "date", "row"])
        list(read_chunks(shard))


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_a_carriage_return_in_quotes_is_text(tmp_path: Path, newline: bytes) -> None:
    texts = ["a\rb", "\r", "\r\n\r", "\r\r\n"]
    rows = [
        f'{n},{date},"{text}"'.encode()
        for n, text in enumerate(texts)
        for date in ("2024-01-01", "2025-02-01")
    ]
    path = write_bytes(
        tmp_path / "in" / "part-0.csv", newline.join([b'"i\rd",date,"x\r\ny"', *rows]) + newline
    )

    assert ["i\rd", "date", "x\r\ny"] == survey(path, "x").schema.names
    assert [text for text in texts for _ in range(2)] == [row["x\r\ny"] for row in read(path)]
    run = split(path.parent, tmp_path / "out", entity="i\rd").run
    found = [row[2] for name in ("train", "val") for row in split_rows(run, name)]
    assert sorted(texts) == sorted(found)


def test_line_ends_may_change_between_header_and_rows(tmp_path: Path) -> None:
    data = b"id,date,row\n1,2024-01-01,1\r\n2,2024-02-02,2\n3,2024-02-02,3\r\n4,2024-02-02,4"
    path = write_bytes(tmp_path / "part-0.csv", data)

    assert ["1", "2", "3", "4"] == [row["row"] for row in read(path)]


OTHER_BREAKS = {"VT": "\x0b", "FF": "\x0c", "FS": "\x1c", "GS": "\x1d", "RS": "\x1e", "NEL": "\x85", "LS": "\u2028", "PS": "\u2029"}  # fmt: skip


@pytest.mark.parametrize("name", OTHER_BREAKS)
@pytest.mark.parametrize("extension", ["csv", "tsv", "jsonl"])
def test_what_unicode_calls_a_line_break_is_text(tmp_path: Path, name: str, extension: str) -> None:
    mark = OTHER_BREAKS[name]
    if extension == "jsonl":
        data = f'{{"id{mark}": "a{mark}b", "x": 1}}\n'.replace(
            mark, f"\\u{ord(mark):04x}" if mark < " " else mark
        )
    else:
        data = f"id{mark},x\na{mark}b,1\n".replace(",", "," if extension == "csv" else "\t")
    path = write_bytes(tmp_path / f"part-0.{extension}", data.encode())

    assert [f"a{mark}b"] == [row[f"id{mark}"] for row in read(path)]


HEADERS = {
    "a blank line": b"\nid,date,row\n1,2024-01-01,1\n",
    "a blank CRLF line": b"\r\nid,date,row\r\n1,2024-01-01,1\r\n",
    "a mark and a blank line": b"\xef\xbb\xbf\nid,date,row\n",
    "UTF-16 without a mark": "id,date,row\n1,2024-01-01,1\n".encode("utf-16-le"),
    "UTF-16, big end first": "id,date,row\n1,2024-01-01,1\n".encode("utf-16-be"),
    "a zero byte": b"id\x00,date,row\n1,2024-01-01,1\n",
    "a quote in a name": b'id,da"te,ro"w\n1,2024-01-01,1\n',
    "text behind a quoted name": b'"id"x,date,row\n1,2024-01-01,1\n',
    "a quote that is not closed": b'id,date,"row\n1,2024-01-01,1\n',
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_that_readers_read_differently_is_refused(tmp_path: Path, name: str) -> None:
    path = write_bytes(tmp_path / "part-0.csv", HEADERS[name])

    with pytest.raises(HeadraceError, match=r"part-0\.csv"):
        read(path)


def test_a_header_is_cut_into_names_like_a_row_into_fields(tmp_path: Path) -> None:
    names = b'"a,b","c""d","e\nf",g"h"i,"",k'
    path = write_bytes(tmp_path / "part-0.csv", names + b"\n" + names + b"\n")

    assert [
        {"a,b": "a,b", 'c"d': 'c"d', "e\nf": "e\nf", 'g"h"i': 'g"h"i', "": "", "k": "k"}
    ] == read(path)


def test_a_header_longer_than_what_is_read_first(tmp_path: Path) -> None:
    names = [f"column_{place:06d}" for place in range(9000)]
    path = write_bytes(
        tmp_path / "part-0.csv", (",".join(names) + "\n" + ",".join("1" * 9000) + "\n").encode()
    )

    assert [dict.fromkeys(names, "1")] == read(path)
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r"))
    with raised(InputError, row="line 1", remedy="end lines with LF or CRLF"):
        read(path)


def test_static_attributes_of_a_text_table_with_old_mac_line_ends_are_refused(
    tmp_path: Path,
) -> None:
    path = tmp_path / "attributes.txt"
    path.write_bytes(b"id;area\r1;2.5\r")
    settings = headrace.Series(source=tmp_path, target="flow", future_features=["rain"])

    with raised(InputError, row="line 1", remedy="end lines with LF or CRLF"):
        static_table(settings, path, path.name)
    path.write_bytes(b"id;area;slope\n1; 2.5 ;3\n2;4\n")
    with raised(InputError, row=2, remedy="complete or remove that row"):
        static_table(settings, path, path.name)
    path.write_bytes(b"id;area\n1; 2.5 \n")
    assert [{"id": "1", "area": "2.5"}] == static_table(settings, path, path.name).to_pylist()


def test_streamed_rows_of_crlf_files_without_a_last_line_end(tmp_path: Path) -> None:
    write_bytes(tmp_path / "in" / "part-0.csv", b"id,x\r\n1,a\r\n2,b")
    write_bytes(tmp_path / "in" / "part-1.csv", b"id;x\n3;c\n4;d")
    found = [pa.table(batch).to_pylist() for batch in headrace.open(tmp_path / "in").stream("all", batch_format="arrow", batch_size=4)]  # fmt: skip

    assert ["a", "b", "c", "d"] == sorted(row["x"] for rows in found for row in rows)


def test_a_byte_order_mark_in_a_value_is_kept_wherever_chunks_begin(tmp_path: Path) -> None:
    path = write_bytes(
        tmp_path / "part-0.csv", "a,b\n\ufeff,1\n\ufeff2,1\n".encode() + b'"\xef\xbb\xbf",3\n'
    )
    shard = survey(path, path.name)

    for chunk_bytes in (1, 5, 7, 1000):
        chunks = list(delimited.chunks(shard, chunk_bytes))
        assert ["\ufeff", "\ufeff2", "\ufeff"] == [
            row["a"] for chunk in chunks for row in chunk.table().to_pylist()
        ]


def test_a_carriage_return_between_quotes_inside_a_field_is_refused(tmp_path: Path) -> None:
    for number, data in enumerate([b'a,x"\r",b\n1,2,3\n', b'a,b\n1,x"\r"\n', b'a,b\n1,"\r"x\n']):
        path = write_bytes(tmp_path / f"part-{number}.csv", data)
        with pytest.raises(InputError, match=r"quotes do not pair up|a quote inside"):
            read(path)


def test_an_empty_field_behind_a_quoted_one_is_null_at_the_end_of_a_file_too(
    tmp_path: Path,
) -> None:
    table = parse(b'x,1,x\n2,"",', ",", 3, dict.fromkeys(range(3), pa.large_string()))
    schema = pa.schema([("a", pa.string()), ("n", pa.int64()), ("b", pa.string())])
    numbers = parse_numbers(
        b'"x",1,x\nb,"2",', separator=",", names=["a", "n", "b"], schema=schema, null_values=()
    )

    assert ["1", ""] == table["1"].to_pylist()
    assert ["x", None] == table["2"].to_pylist()
    assert numbers is not None
    assert ["x", None] == numbers["b"].to_pylist()
