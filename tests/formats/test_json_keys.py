"""A key stands once in an object, in whatever way it is written; else the row is refused with its line and key."""

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace.digest import RepeatedKey, loads
from headrace.errors import HeadraceError, InputError
from headrace.formats.jsonl import render
from headrace.formats.source import read_chunks, survey
from laws import examples
from raised import raised
from tables import fresh, split, write_bytes

GOOD = b'{"id": "1", "date": "2024-01-01", "x": {"a": 1, "b": [{"c": 2}]}}\n'
REPEATED = {
    "next to each other": (b'{"id": "1", "id": "2", "date": "2024-01-01"}', "id"),
    "far apart": (b'{"id": "1", "date": "2024-01-01", "x": {"a": 1}, "id": "2"}', "id"),
    "equal values": (b'{"id": "1", "date": "2024-01-01", "id": "1"}', "id"),
    "escaped": (b'{"id": "1", "date": "2024-01-01", "\\u0069d": "2"}', "id"),
    "escaped in another way": (b'{"date": "2024-01-01", "a\\/b": 1, "a/b": 2, "id": "2"}', "a/b"),
    "null behind": (b'{"id": "1", "date": "2024-01-01", "id": null}', "id"),
    "null before": (b'{"id": null, "date": "2024-01-01", "id": "1"}', "id"),
    "three nulls": (b'{"id": "1", "date": "2024-01-01", "y": null, "y": null, "y": null}', "y"),
    "white space before the colon": (b'{"id" : "1", "date": "2024-01-01", "id"\t: "2"}', "id"),
    "no white space": (b'{"id":"1","date":"2024-01-01","id":"2"}', "id"),
    "in an object": (b'{"id": "1", "date": "2024-01-01", "x": {"a": 1, "b": [], "a": 2}}', "x.a"),
    "in an object of a list": (b'{"id": "1", "date": "2024-01-01", "x": {"a": 1, "b": [{"c": 1}, {"c": 1, "c": 2}]}}', "x.b.c"),
    "behind text that looks like keys": (b'{"z": "{\\"id\\": 1, \\"id\\": 2}", "id": "1", "date": "2024-01-01", "id": ":"}', "id"),
    "empty": (b'{"": 1, "id": "1", "date": "2024-01-01", "": 2}', ""),
    "beyond ASCII": ('{"é": 1, "id": "1", "date": "2024-01-01", "\\u00e9": 2}'.encode(), "é"),
}  # fmt: skip


@pytest.mark.parametrize("name", REPEATED)
@pytest.mark.parametrize("form", ["jsonl", "jsonl.gz", "json"])
def test_a_key_that_stands_twice_is_refused_with_line_and_key(
    tmp_path: Path, name: str, form: str
) -> None:
    row, key = REPEATED[name]
    lines = [GOOD, b"  \n", GOOD, row + b"\n", GOOD]
    data = (
        b"".join(lines)
        if form != "json"
        else b"[" + b",".join(each for each in lines if each.strip()) + b"]"
    )
    path = write_bytes(tmp_path / "in" / f"part-0.{form}", data)
    where = "row 3" if form == "json" else "line 4"

    for read in (
        lambda: survey(path, path.name),
        lambda: split(path.parent, tmp_path / "out"),
        lambda: headrace.open(path.parent),
        lambda: headrace.prepare(headrace.Rewrite(source=path.parent), tmp_path / "rewritten"),
    ):
        with pytest.raises(
            InputError, match=rf"part-0\.{form}: {where}, column '{key}': the key appears twice"
        ):
            read()


def test_equal_keys_of_different_objects_are_no_repeats(tmp_path: Path) -> None:
    data = (
        b'{"id":"1","x":{"id":1,"y":{"id":2}},"l":[{"id":1},{"id":2}],"t":"\\"id\\":1,\\"id\\":2"}\n'
        * 3
    )
    path = write_bytes(tmp_path / "part-0.jsonl", data)

    assert ["id", "x", "l", "t"] == survey(path, path.name).schema.names


values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text('ab":{}[],\\ \u00e9', max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(st.tuples(st.text("ab:\"\\", max_size=2), inner), max_size=4).map(tuple)
    ),
    max_leaves=12,
)  # fmt: skip


def written(value: Any, random_: random.Random) -> str:
    """JSON text of a value, where tuples of pairs are objects; keys are escaped and spaced at random."""
    space = random_.choice(["", " ", "\t"])
    if isinstance(value, tuple):
        pairs = (
            f"{key(name, random_)}{space}:{space}{written(inner, random_)}" for name, inner in value
        )
        return "{" + ",".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + f",{space}".join(written(each, random_) for each in value) + "]"
    return json.dumps(value, ensure_ascii=random_.random() < 0.5)


def key(name: str, random_: random.Random) -> str:
    if random_.random() < 0.3:
        return '"' + "".join(f"\\u{ord(letter):04x}" for letter in name) + '"'
    return json.dumps(name)


@settings(max_examples=examples(200))
@given(st.lists(values, min_size=1, max_size=4), st.integers(0, 99))
def test_repeats_are_those_that_json_sees(tmp_path: Path, documents: list[Any], seed: int) -> None:
    random_ = random.Random(seed)
    lines = [f'{{"k{n}": {written(each, random_)}}}' for n, each in enumerate(documents)]
    expected: list[str] = []
    for line in lines:
        try:
            loads(line)
        except RepeatedKey as error:
            expected.append(error.key)
    path = write_bytes(fresh(tmp_path) / "part-0.jsonl", "\n".join(lines).encode())

    problem = ""
    try:
        survey(path, path.name)
    except InputError as error:
        problem = str(error)
    assert ("appears twice" in problem) == bool(expected) or "write one type" in problem


@pytest.mark.parametrize("text", ['{"a": NaN}', '{"a": 1, "a": 1}', '{"a": [-Infinity]}', '{"b": {"a": 1, "\\u0061": 2}}'])  # fmt: skip
def test_a_document_is_read_strictly(text: str) -> None:
    with pytest.raises(ValueError, match=r"appears twice|not a JSON number"):
        loads(text)


ODD_NAMES = {
    "zero byte": b'{"\\u0000": 1, "id": "1", "date": "2024-01-01"}\n',
    "zero byte inside": b'{"a\\u0000b": 1, "id": "1", "date": "2024-01-01"}\n',
    "zero byte in an object": b'{"x": {"a\\u0000": 1}, "id": "1", "date": "2024-01-01"}\n',
    "half a surrogate": b'{"\\ud800": 1, "id": "1", "date": "2024-01-01"}\n',
    "the other half": b'{"x\\udc00": 1, "id": "1", "date": "2024-01-01"}\n',
    "half a surrogate in a value": b'{"x": ["\\ud800"], "id": "1", "date": "2024-01-01"}\n',
}


@pytest.mark.parametrize("name", ODD_NAMES)
def test_names_that_no_column_can_have_are_refused(tmp_path: Path, name: str) -> None:
    path = write_bytes(tmp_path / "in" / "part-0.jsonl", ODD_NAMES[name])

    for read in (lambda: survey(path, path.name), lambda: split(path.parent, tmp_path / "out"), lambda: headrace.open(path.parent)):  # fmt: skip
        with pytest.raises(HeadraceError, match=r"part-0\.jsonl"):
            read()


NUMBERS = {
    "a list": b'{"x": [12345678901234567, 0.5]}\n',
    "lists of different rows": b'{"x": [12345678901234567]}\n{"x": [0.5]}\n',
    "an object": b'{"x": {"y": 12345678901234567}}\n{"x": {"y": 0.5}}\n',
    "a list of objects": b'{"x": [{"y": 12345678901234567}, {"y": 1e0}]}\n',
    "a list of lists": b'{"x": [[1], [0.5, 12345678901234567]]}\n',
    "a key that is escaped": b'{"\\u0078": 12345678901234567}\n{"x": 0.5}\n',
    "beyond 64 bits in a list": b'{"x": [18446744073709551616]}\n',
    "beyond 64 bits in an object": b'{"x": {"y": 9223372036854775808}}\n',
}


@pytest.mark.parametrize("name", NUMBERS)
def test_whole_numbers_lose_no_digits_at_any_depth(tmp_path: Path, name: str) -> None:
    path = write_bytes(tmp_path / "part-0.jsonl", NUMBERS[name])

    with raised(InputError, row="line 1", remedy="as text"):
        survey(path, path.name)


def test_large_fractions_and_exact_whole_numbers_are_read(tmp_path: Path) -> None:
    data = b'{"x": [1e300, 450359962737049, 0.5], "y": 12345678901234567, "z": {"t": "9", "u": 1e16}}\n'
    path = write_bytes(tmp_path / "part-0.jsonl", data)

    assert ["x", "y", "z"] == survey(path, path.name).schema.names


@pytest.mark.parametrize(
    "data", [b'[{"a": "x\ny"}]', b'\x0b[{"a": 1}]', b'[{"a": 1}\x0c]', b'[{"a": "x\r"}]']
)
def test_an_array_that_json_refuses_is_refused(tmp_path: Path, data: bytes) -> None:
    path = write_bytes(tmp_path / "part-0.json", data)

    with pytest.raises(InputError, match=r"part-0\.json: "):
        survey(path, path.name)


@pytest.mark.parametrize("line", [b'{"a": 1} {"a": 2}', b'{"a": 1}\r{"a": 2}', b"\x0b", b"\x0c", "\u2028".encode(), b'{"a": 1}\x0c'])  # fmt: skip
def test_a_line_is_one_object(tmp_path: Path, line: bytes) -> None:
    path = write_bytes(tmp_path / "part-0.jsonl", b'{"a": 1}\n' + line + b'\n{"a": 3}\n')

    with raised(InputError, row="line 2"):
        survey(path, path.name)


def test_columns_of_parquet_and_arrow_files_have_whole_names(tmp_path: Path) -> None:
    for name, table in {
        "top": pa.table({"a\0b": [1]}),
        "inner": pa.table({"x": [[{"a\0": 1}]]}),
    }.items():
        path = tmp_path / f"{name}.parquet"
        pq.write_table(table, path)
        with pytest.raises(InputError, match=r"holds a zero byte|cannot be read"):
            survey(path, path.name)


def test_a_key_may_be_empty(tmp_path: Path) -> None:
    data = b'{"":{"":1},"column_0":"x","id":"1","date":"2024-01-01"}\n{"":null,"column_0":"y","id":"2","date":"2025-01-01"}\n'
    path = write_bytes(tmp_path / "in" / "part-0.jsonl", data)
    shard = survey(path, path.name)
    rows = [row for chunk in read_chunks(shard) for row in chunk.table().to_pylist()]

    assert [json.loads(line) for line in data.splitlines()] == rows
    assert rows == [json.loads(line) for line in render(pa.Table.from_pylist(rows)).splitlines()]


def test_a_mark_is_no_part_of_the_first_line_and_refused_in_others(tmp_path: Path) -> None:
    mark = b"\xef\xbb\xbf"
    path = write_bytes(tmp_path / "part-0.jsonl", mark + b'{"a": 1}\n{"a": 2}\n')

    assert [2] == [chunk.rows for chunk in read_chunks(survey(path, path.name))]
    path.write_bytes(b'{"a": 1}\n' + mark + b'{"a": 2}\n')
    with raised(InputError, row="line 2", remedy="correct the file"):
        survey(path, path.name)


def test_rows_without_any_key_are_refused(tmp_path: Path) -> None:
    path = write_bytes(tmp_path / "part-0.jsonl", b"{}\n{ }\n")

    with raised(InputError, remedy="write a key into a row"):
        survey(path, path.name)
