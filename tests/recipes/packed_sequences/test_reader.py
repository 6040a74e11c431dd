"""Rows of files: all of them, in order, in bounded batches, with the place of what is broken."""

import gzip
import json
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chats import DEMOS, GSM8K, needs_data

from headrace.errors import InputError
from headrace.formats.dialect import TextDialect
from headrace.packing.chats import reader
from headrace.packing.chats.reader import BrokenRow, read_rows
from raised import raised

ROWS = [
    {"n": n, "messages": [{"role": "user", "content": f"é\u2028{n}" * (n % 4)}]} for n in range(50)
]


def all_of(path: Path, **asked):
    """Numbers and rows of a file, end to end."""
    batches = list(read_rows(path, **asked))
    return [n for batch in batches for n in batch.numbers], [
        row for batch in batches for row in batch.rows
    ]


def write_stream(rows: list, path: Path, batch_rows: int) -> None:
    table = pa.Table.from_pylist(rows)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, batch_rows)


def as_file(path: Path, name: str) -> Path:
    path = path / name
    if ".parquet" in name:
        pq.write_table(pa.Table.from_pylist(ROWS), path, row_group_size=17)
        return path
    if ".arrow" in name:
        write_stream(ROWS, path, 17)
        return path
    lines = [json.dumps(row, ensure_ascii=False) for row in ROWS]
    text = (
        "\n".join(lines)
        if "l" in name.split(".")[1] or "nd" in name
        else "[" + ",\n".join(lines) + "]\n"
    )
    data = text.encode()
    if name.endswith(".gz"):
        data = gzip.compress(data)
    if name.endswith(".zst"):
        data = bytes(pa.Codec("zstd").compress(data))
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    "name",
    [
        "a.jsonl",
        "a.jsonl.gz",
        "a.jsonl.zst",
        "a.ndjson",
        "a.json",
        "a.json.gz",
        "a.parquet",
        "a.arrow",
    ],
)
@pytest.mark.parametrize("asked", [{}, {"batch_rows": 7}, {"batch_bytes": 100}])
def test_every_row_comes_once_in_order(name, asked, tmp_path):
    numbers, rows = all_of(as_file(tmp_path, name), **asked)

    assert ROWS == rows
    assert list(range(1, 51)) == numbers


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.parquet", "a.arrow"])
@pytest.mark.parametrize("parts", [1, 3, 60])
def test_the_parts_of_a_file_are_its_rows(name, parts, tmp_path):
    path = as_file(tmp_path, name)
    found = [
        pair
        for k in range(parts)
        for pair in zip(*all_of(path, part=(k, parts), batch_rows=4), strict=True)
    ]

    assert list(enumerate(ROWS, 1)) == sorted(found, key=lambda pair: pair[0])


def test_broken_lines_are_rows_with_a_reason_and_their_line(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": \n\n[1]\n{"a": "\xff"}\r\n{"a": "' + b"x" * 200 + b'"}\n{"a": 2}\r\nnull\n{"a":' + b"[" * 100000 + b"\n{}")  # fmt: skip
    (batch,) = read_rows(path, line_bytes=150_000)
    (cut,) = read_rows(path, line_bytes=100)

    assert [1, 2, 4, 5, 6, 7, 8, 9, 10] == batch.numbers
    assert [None, "broken_json", "not_an_object", "broken_utf8", None, None, "not_an_object", "broken_json", None] == [getattr(row, "reason", None) for row in batch.rows]  # fmt: skip
    assert f"{path}: line 5" == batch.where(3)
    assert "too_long_line" == cut.rows[4].reason
    assert {"a": 2} == cut.rows[5]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
def test_values_and_characters_may_be_cut_anywhere_by_the_buffer(size, tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "_READ_BYTES", size)
    for name in ("a.json", "a.jsonl"):
        assert ROWS == all_of(as_file(tmp_path, name))[1]


def test_objects_end_to_end_and_one_object(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{"a": 1}\n{"a": 2} {"a": 3}')
    one = tmp_path / "b.json"
    one.write_text('\ufeff{\n  "a": [1, {"b": 2}]\n}\n', "utf-8")

    assert [{"a": 1}, {"a": 2}, {"a": 3}] == all_of(path)[1]
    assert [{"a": [1, {"b": 2}]}] == all_of(one)[1]


def test_odd_values_of_an_array_are_rows_with_a_reason(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b'[{"a": 1}, 12, null, {"a": "\xff"}, [], "x", {"a": 2}]')
    numbers, rows = all_of(path)

    assert [1, 2, 3, 4, 5, 6, 7] == numbers
    assert [{"a": 1}, "not_an_object", "not_an_object", {"a": "\udcff"}, "not_an_object", "not_an_object", {"a": 2}] == [row.reason if isinstance(row, BrokenRow) else row for row in rows]  # fmt: skip


@pytest.mark.parametrize(
    "text", ['[{"a": 1}, {"a": ', '[{"a": 1}', '[{"a": 1}] {"a": 2}', '[{"a": 1}, {a: 2}]', "[{]"]
)
def test_an_array_that_cannot_be_told_apart_is_an_error(text, tmp_path):
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"a\.json"):
        all_of(path)


def test_what_is_null_in_a_struct_is_an_absent_key(tmp_path):
    rows = [{"messages": [{"role": "user", "content": "q", "weight": 1}, {"role": "tool", "content": None}], "x": None}, {"messages": [], "x": 3}]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")

    assert [{"messages": [{"role": "user", "content": "q", "weight": 1}, {"role": "tool"}], "x": None}, {"messages": [], "x": 3}] == all_of(tmp_path / "a.parquet")[1]  # fmt: skip


def test_empty_files_have_no_rows(tmp_path):
    (tmp_path / "a.jsonl").write_text("\n \n")
    (tmp_path / "b.json").write_text("[]")
    (tmp_path / "c.jsonl").write_text("")
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "d.parquet")
    for name in ("a.jsonl", "b.json", "c.jsonl", "d.parquet"):
        assert [] == list(read_rows(tmp_path / name))


def test_delimited_text_is_rows_of_texts(tmp_path):
    text = 'question;answer;kind\n"how many; apples";forty two;k.A.\nKöln?;;a\n'
    (tmp_path / "a.csv").write_text(text, encoding="latin-1")
    dialect = TextDialect(encoding="latin-1", null_values=["k.A."])

    (batch,) = read_rows(tmp_path / "a.csv", dialect=dialect)
    (part,) = read_rows(tmp_path / "a.csv", dialect=dialect, part=(1, 2))

    assert batch.rows == [
        {"question": "how many; apples", "answer": "forty two", "kind": None},
        {"question": "Köln?", "answer": None, "kind": "a"},
    ]
    assert (batch.unit, batch.numbers, part.numbers) == ("row", [1, 2], [2])
    with raised(InputError, path=tmp_path / "a.csv", remedy="encoding"):
        all_of(tmp_path / "a.csv")


def test_damaged_and_foreign_files_are_errors(tmp_path):
    whole = as_file(tmp_path, "a.jsonl.gz").read_bytes()
    (tmp_path / "cut.jsonl.gz").write_bytes(whole[:-20])
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    (tmp_path / "plain.jsonl").write_bytes(whole)
    with raised(InputError, remedy="fetch it again"):
        all_of(tmp_path / "cut.jsonl.gz")
    with pytest.raises(InputError, match="the bytes say gzip"):
        all_of(tmp_path / "plain.jsonl")


@needs_data
def test_real_files_have_their_rows():
    expected = {GSM8K / "train.jsonl.gz": 7473, DEMOS / "alpaca_en_demo.json.gz": 999, DEMOS / "v1_sft_demo.jsonl.gz": 500, DEMOS / "glaive_toolcall_zh_demo.json.gz": 300}  # fmt: skip
    assert expected == {
        path: sum(len(batch.rows) for batch in read_rows(path)) for path in expected
    }


def test_a_first_line_that_is_broken_is_a_row_like_any_other(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'not json\n{"a": 1}\n')
    numbers, rows = all_of(path)

    assert [1, 2] == numbers
    assert ["broken_json", None] == [getattr(row, "reason", None) for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.json", "a.parquet", "a.arrow"])
def test_memory_is_bounded_by_the_batch(name, tmp_path):
    """Twenty megabytes of rows, a megabyte at a time."""
    rows = [{"text": f"{n} " * 500} for n in range(8000)]
    path = tmp_path / name
    if name == "a.parquet":
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=500)
    elif name == "a.arrow":
        write_stream(rows, path, 500)
    else:
        text = "\n".join(map(json.dumps, rows)) if "jsonl" in name else json.dumps(rows)
        path.write_bytes(gzip.compress(text.encode(), 1) if name.endswith(".gz") else text.encode())
    del rows
    tracemalloc.start()
    count = sum(len(batch.rows) for batch in read_rows(path, batch_bytes=1 << 20))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert 8000 == count
    assert peak < 16 << 20
