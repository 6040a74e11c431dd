"""The corpora of JSON: files of other parsers' tests, and generated ones. Python is the reference.

The reference reads with `json`, refuses what JSON does not allow, and gives values the types that
headrace shows.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from corpus import SHARED, Corpus, Refused

from headrace.digest import no_repeats

SEEDS = 2000
_ALPHABET = ["", "a", "é", "\U0001f600", '"', "\\", "\n", "2024-01-01", "{[,:]}", "null", "__DOT__"]


def _suite() -> Mapping[str, Path]:
    files = sorted((SHARED / "json" / "test_parsing").glob("*.json"))
    return {path.stem: path for path in files}


def _wrap_as_value(path: Path, copy: Path) -> None:
    """Write a file as a value of a line, after another line."""
    copy.write_bytes(b'{"row": 1}\n{"row": 2, "value": ' + path.read_bytes() + b"}\n")


def _whole() -> Mapping[str, Path]:
    return {id_: path for id_, path in _suite().items() if path.read_bytes()[:1] in b"[{"}


def _read_lines(path: Path, schema: pa.Schema) -> pa.Table:
    data = path.read_bytes()
    lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    return _table([_strict(line) for line in lines if line.strip(b" \t\r")], schema)


def _read_whole(path: Path, schema: pa.Schema) -> pa.Table:
    data = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    if not data.lstrip(b" \t\r\n").startswith(b"["):
        return _read_lines(path, schema)
    return _table(_strict(data), schema)


def _strict(text: bytes) -> Any:
    def refuse(word: str) -> None:
        raise Refused(f"{word} is not a number of JSON")

    try:
        return json.loads(
            text.decode(),
            object_pairs_hook=no_repeats,
            parse_constant=refuse,
        )
    except (ValueError, RecursionError) as error:
        raise Refused(str(error)) from error


def _table(rows: list[Any], schema: pa.Schema) -> pa.Table:
    """Give rows the types of a schema, if each value keeps what it is."""
    if not all(isinstance(row, dict) for row in rows):
        raise Refused("a row is not an object")
    columns = []
    for name, type_ in zip(schema.names, schema.types, strict=True):
        values = [_value(row.get(name), type_) for row in rows]
        columns.append(pa.array(values, type_))
    keys = {key for row in rows for key in row}
    if keys - set(schema.names) and schema.names:
        raise AssertionError(f"the keys {keys} are columns {schema.names}")
    return pa.Table.from_arrays(columns, names=schema.names)


def _value(value: Any, type_: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_list(type_) and isinstance(value, list):
        return [_value(item, type_.value_type) for item in value]
    if pa.types.is_struct(type_) and isinstance(value, dict):
        assert value.keys() <= {field.name for field in type_}, f"{value} as {type_}"
        return {field.name: _value(value.get(field.name), field.type) for field in type_}
    if value == {} and type_ == pa.string():
        return "{}"  # no object of the column has a key
    python = {pa.int64(): int, pa.float64(): float, pa.bool_(): bool, pa.string(): str}[type_]
    if python is float and type(value) is int:
        assert int(float(value)) == value, f"{value} as {type_}"
        return float(value)
    assert type(value) is python, f"{value!r} as {type_}"
    assert python is not float or math.isfinite(value), f"{value} as {type_}"
    return value


def _generated() -> Mapping[str, Path]:
    return {f"seed-{seed}": Path(f"seed-{seed}") for seed in range(SEEDS)}


def _write_generated(path: Path, copy: Path) -> None:
    copy.write_bytes(generated(int(path.name.partition("-")[2])))


@cache
def generated(seed: int) -> bytes:
    """Return lines of random objects: nulls, missing keys, lists of objects, empty lists, whole
    numbers beside fractions. In one of ten files, a key has values of two types somewhere.
    """
    source = random.Random(seed)
    plan = {f"k{number}": _plan(source, 0) for number in range(source.randint(1, 4))}
    if source.random() < 0.2:
        plan[source.choice(["", "ключ", "a.b", 'q"'])] = _plan(source, 0)
    odd = source.random() < 0.1
    rows = []
    for _ in range(source.randint(1, 12)):
        rows.append(_random_object(plan, source, odd))
    ascii_ = source.random() < 0.5
    return "".join(json.dumps(row, ensure_ascii=ascii_) + "\n" for row in rows).encode()


def _plan(source: random.Random, depth: int) -> Any:
    """Choose what a key holds: a dictionary, a list of one plan, or a word."""
    choice = source.random()
    if depth < 3 and choice < 0.25:
        return {f"k{number}": _plan(source, depth + 1) for number in range(source.randint(0, 3))}
    if depth < 3 and choice < 0.5:
        return [_plan(source, depth + 1)]
    return source.choice(["whole", "fraction", "mixed", "text", "bool", "null"])


def _random_object(plan: Mapping[str, Any], source: random.Random, odd: bool) -> dict[str, Any]:
    return {
        key: _random_value(inner, source, odd)
        for key, inner in plan.items()
        if source.random() < 0.85
    }


def _random_value(plan: Any, source: random.Random, odd: bool) -> Any:
    if source.random() < 0.2:
        return None
    if odd and source.random() < 0.1:
        plan = source.choice(["text", "whole", ["text"]])
    if isinstance(plan, dict):
        return _random_object(plan, source, odd)
    if isinstance(plan, list):
        return [_random_value(plan[0], source, odd) for _ in range(source.randint(0, 3))]
    if plan == "mixed":
        plan = source.choice(["whole", "fraction"])
    if plan == "whole":
        return source.choice([0, -1, source.randint(-(2**40), 2**40)])
    if plan == "fraction":
        return source.choice([0.5, -0.0, 1e300, 5e-324, source.random()])
    if plan == "text":
        return "".join(source.choices(_ALPHABET, k=source.randint(0, 3)))
    if plan == "bool":
        return source.random() < 0.5
    return None


VALUES = Corpus(
    address="json_corpora:VALUES",
    files=_suite,
    extension=lambda path: ".jsonl",
    wrap=_wrap_as_value,
    truth=_read_lines,
)
WHOLE = Corpus(
    address="json_corpora:WHOLE",
    files=_whole,
    extension=lambda path: ".json",
    truth=_read_whole,
)
GENERATED = Corpus(
    address="json_corpora:GENERATED",
    files=_generated,
    extension=lambda path: ".jsonl",
    wrap=_write_generated,
    truth=_read_lines,
)
