"""Nested JSON is read as a strict parser reads it, or refused with the line, the key and the value."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.errors import InputError
from raised import raised
from tables import write_bytes

CHATS = [
    {"messages": [{"role": "user"}, {"role": "assistant", "tool_calls": None}], "date": "2024-01-01"},
    {"messages": [{"role": "user", "tool_calls": None}], "date": "2025-01-01"},
]  # fmt: skip


def written(tmp_path: Path, *rows: Any, name: str = "in/part-0.jsonl") -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    return write_bytes(tmp_path / name, "".join(line + "\n" for line in lines).encode())


def read(path: Path) -> list[dict[str, Any]]:
    table = headrace.open(path)["all"].to_arrow()
    table.validate(full=True)
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def test_a_key_inside_a_list_may_be_absent_or_null_everywhere(tmp_path: Path) -> None:
    path = written(tmp_path, *CHATS)
    messages = [
        [{"role": "user", "tool_calls": None}, {"role": "assistant", "tool_calls": None}],
        [{"role": "user", "tool_calls": None}],
    ]

    assert messages == [row["messages"] for row in read(path)]
    headrace.rewrite(path, tmp_path / "rewritten")
    rewritten = headrace.open(tmp_path / "rewritten")
    assert messages == [
        row["messages"] for row in rewritten[rewritten.splits[0]].to_arrow().to_pylist()
    ]
    settings = headrace.TemporalSplit(source=path.parent, time="date", split_date="2024-06-01")
    headrace.prepare(settings, tmp_path / "out")
    run = headrace.open(tmp_path / "out")
    assert [messages[0]] == [row["messages"] for row in run["train"].to_arrow().to_pylist()]


@pytest.mark.parametrize(
    ("values", "read_as"),
    [
        (["[null, 1]", "[]"], [[None, 1], []]),
        (['[null, "x"]', "null"], [[None, "x"], None]),
        (["[[null, null]]", "[[], null]"], [[[None, None]], [[], None]]),
        (["[null, null, null]", "null"], [[None, None, None], None]),
        (["[{}, null]", '[{"b": null}]'], [[{"b": None}, None], [{"b": None}]]),
        (["[]", "[]"], [[], []]),
        (["{}", "null"], ["{}", None]),
        (["-0", "1e5"], [0.0, 100000.0]),
        (["1e-400", "-0.0"], [0.0, 0.0]),
    ],
)
def test_nulls_and_empty_values_are_kept(
    tmp_path: Path, values: list[str], read_as: list[Any]
) -> None:
    path = written(tmp_path, *(f'{{"id": 1, "a": {value}}}' for value in values))

    assert read_as == [row["a"] for row in read(path)]


FAULTS = {
    "text beside numbers": ('{"a": {"b": [1]}}', '{"a": {"b": ["x"]}}', "a.b", "x"),
    "overflow": ('{"a": 1}', '{"a": 1e400}', "a", "1e400"),
    "64 bits": ('{"a": 1}', '{"a": 9223372036854775808}', "a", "9223372036854775808"),
    "digits": ('{"a": [0.5]}', '{"a": [1, 9007199254740993]}', "a", 9007199254740993),
    "NaN": ('{"a": 1}', '{"a": NaN}', "a", "NaN"),
    "Infinity": ('{"a": {"b": 1}}', '{"a": {"b": -Infinity}}', "a.b", "-Infinity"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_value_that_has_no_place_is_named(tmp_path: Path, name: str) -> None:
    good, bad, column, value = FAULTS[name]
    path = written(tmp_path, good, "  ", bad, good)

    with raised(InputError, path=path, row="line 3", column=column, value=value):
        headrace.open(path)


@pytest.mark.parametrize(
    ("data", "row", "problem"),
    [
        (b'{"a": 1}\n{"a": "caf\xe9"}\n', "line 2", "UTF-8"),
        (b'{"b": 1}\n{"a": "\\ud800"}\n', "line 2", "surrogate"),
        (b'{"b": 1}\n{"\\udc00": 1}\n', "line 2", "surrogate"),
        (b"{a: 1}\n", "line 1", "not valid JSON"),
        (b'{"a": 1}\n{"a": 1,}\n', "line 2", "not valid JSON"),
        (b'{"b": 1}\n{"a": ' + b"[" * 500 + b"]" * 500 + b"}\n", "line 2", "levels"),
        (b'{"b": 1}\n{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n", "line 2", "levels"),
        (b'{"b": 1}\n' + b'{"a": ' * 70 + b"1" + b"}" * 70 + b"\n", "line 2", "levels"),
        (b'{\n  "a": 1,\n  "b": [\n    2\n  ]\n}\n', "line 1", "6 lines"),
        (b'{"a": 1}\n[1]\n', "line 2", "a list, not an object"),
        (b'{"a": 1}\nnull\n', "line 2", "null, not an object"),
        (b'{"a": 1} null {"a": 2}\n', "line 1", "follows the value"),
    ],
)
def test_damaged_lines_are_named(tmp_path: Path, data: bytes, row: str, problem: str) -> None:
    for name in ("part-0.jsonl", "part-0.json"):
        path = write_bytes(tmp_path / name, data)
        with raised(InputError, path=path, row=row) as caught:
            headrace.open(path)
        assert problem in str(caught.value)


def test_whole_numbers_before_fractions_of_a_later_block_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.formats.jsonl.CHUNK_BYTES", 32)
    path = written(tmp_path, {"a": 1}, {"a": 2**53 + 1}, {"a": 3}, {"a": 4}, {"a": 0.5})

    with raised(InputError, row="line 2", column="a", value=2**53 + 1):
        headrace.open(path)


def seconds_to_open(path: Path, keys: int) -> float:
    rows = [{"ids": {f"{row}-{key}": key for key in range(keys)}} for row in range(2)]
    written(path.parent, *rows, name=path.name)
    start = time.process_time()
    table = headrace.open(path)["all"].to_arrow()
    took = time.process_time() - start
    assert table.num_rows == 2
    return took


def test_ids_as_keys_take_a_time_in_proportion_to_their_number(tmp_path: Path) -> None:
    seconds_to_open(tmp_path / "warm.jsonl", 10)
    few = seconds_to_open(tmp_path / "few.jsonl", 2_000)
    many = seconds_to_open(tmp_path / "many.jsonl", 20_000)

    assert many < 40 * max(few, 0.1)
    assert few < 2.0


@pytest.mark.parametrize(
    ("first", "second", "values"),
    [
        ("[]", '[{"x": 1}]', [[], [{"x": 1}]]),
        ("1", "2.5", [1.0, 2.5]),
        ("{}", '{"x": [null]}', [{"x": None}, {"x": [None]}]),
        ("null", "[[]]", [None, [[]]]),
    ],
)
def test_files_fit_whose_values_of_a_key_differ(
    tmp_path: Path, first: str, second: str, values: list[Any]
) -> None:
    written(tmp_path, f'{{"a": {first}}}', name="in/1.jsonl")
    path = written(tmp_path, f'{{"a": {second}}}', name="in/2.jsonl")

    assert values == [row["a"] for row in read(path.parent)]
