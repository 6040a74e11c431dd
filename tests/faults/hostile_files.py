"""Files whose writer means harm, and what is done with each.

A case makes its files in a directory and says which action meets them. Every one must be refused: with an error that
names the file and says what to do, in seconds, in little memory, and with nothing outside the directory touched.
"""

from __future__ import annotations

import functools
import gzip
import json
import pickle
import shutil
import struct
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from forks import limit_memory
from hostile_actions import ACTIONS, WHOLE

from headrace.dataset.index import INDEX_SCHEMA, table_bytes
from headrace.dataset.open import read_index
from headrace.digest import sha256_hex
from headrace.errors import HeadraceError
from resealed import reseal

GIB = 1 << 30
SECRET = "outside.csv"


@dataclass(frozen=True)
class Hostile:
    """write: makes the files; returns what the action is given. says: a word that the error must have."""

    action: str
    write: Callable[[Path], Any]
    says: str = ""


CASES: dict[str, Hostile] = {}


def case(
    name: str, action: str, says: str = ""
) -> Callable[[Callable[[Path], Any]], Callable[[Path], Any]]:
    def add(write: Callable[[Path], Any]) -> Callable[[Path], Any]:
        assert name not in CASES
        CASES[name] = Hostile(action, write, says)
        return write

    return add


def child(name: str, directory: str, whole: dict[str, str]) -> None:
    """Write the case, meet it with less than 2 GiB more of address space, and print what came of it."""
    place = Path(directory)
    WHOLE.update(whole)
    hostile = CASES[name]
    place.mkdir()
    given = hostile.write(place)
    before = sorted(path for path in place.parent.rglob("*"))
    limit_memory(2 * GIB)
    try:
        ACTIONS[hostile.action](given)
        told = {"ended": "ACCEPTED", "message": ""}
    except HeadraceError as error:
        told = {"ended": type(error).__name__, "message": str(error)}
    new = [
        str(path)
        for path in sorted(place.parent.rglob("*"))
        if path not in before and place not in path.parents
    ]
    print(json.dumps({**told, "outside": new}), flush=True)


# --- runs whose manifest or index says what it should not; every digest is put right again ---


def copy_of_run(place: Path, name: str = "split csv.gz") -> Path:
    out = place / "out"
    shutil.copytree(WHOLE[name], out, symlinks=True)
    (place.parent / SECRET).write_text("id,date,row\n1,2024-01-01,1\n")
    return next((out / "runs").iterdir())


def sealed(run: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    reseal(run, change)
    return run.parents[1]


def reindexed(run: Path, column: str, value: Any) -> Path:
    index = read_index(run / "index.parquet")
    table = index.table
    values = [value, *table[column].to_pylist()[1:]]
    place = table.schema.get_field_index(column)
    field = INDEX_SCHEMA.field(column)
    table = table.set_column(place, field, pa.array(values, field.type))
    data = table_bytes(table, index.schema, index.dialect)
    (run / "index.parquet").write_bytes(data)
    return sealed(run, lambda record: record.update(index_digest=sha256_hex(data)))


UNSOUND = {
    "up": f"../../../../{SECRET}",
    "absolute": "/etc/passwd",
    "up inside": "training_data/../../../../outside.csv",
    "zero byte": "training_data/a\x00b",
    "drive": "C:\\x.csv",
    "backslashes": "..\\..\\x.csv",
    "dot": "./x.csv",
    "empty": "",
    "empty part": "training_data//x.csv",
    "a directory": "training_data/",
}
for _word, _name in UNSOUND.items():
    CASES[f"index: shard {_word}"] = Hostile(
        "stream",
        functools.partial(
            lambda value, place: reindexed(copy_of_run(place), "shard", value), _name
        ),
        "shard",
    )
for _column, _value in {
    "rows": -1,
    "offset": -5,
    "length": 1 << 62,
    "first_row": 1 << 50,
    "block": -3,
    "checksum": "",
    "digest": "none",
}.items():
    CASES[f"index: {_column} {_value!r}"] = Hostile(
        "stream",
        functools.partial(lambda c, v, place: reindexed(copy_of_run(place), c, v), _column, _value),
        _column,
    )
for _column, _value in {
    "rows": 1 << 40,
    "length": 1 << 40,
    "offset": 1 << 40,
    "block": 1 << 30,
    "format": "pickle",
}.items():
    if _column in ("rows", "block", "format"):  # where a row group lies is in the file itself
        CASES[f"index: {_column} of {_value!r}"] = Hostile(
            "stream",
            functools.partial(
                lambda c, v, place: reindexed(copy_of_run(place, "split single parquet"), c, v),
                _column,
                _value,
            ),
        )
    if _column != "block":  # where a block of text lies is said by offset and length
        CASES[f"index of text: {_column} of {_value!r}"] = Hostile(
            "stream",
            functools.partial(
                lambda c, v, place: reindexed(copy_of_run(place), c, v), _column, _value
            ),
        )


def of_manifest(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], Path]:
    return lambda place: sealed(copy_of_run(place), change)


MANIFESTS: dict[str, Callable[[dict[str, Any]], object]] = {
    "directory up": lambda r: r["metadata"]["directories"].update(train="../../../.."),
    "directory absolute": lambda r: r["metadata"]["directories"].update(train="/tmp"),
    "split named up": lambda r: r["metadata"]["directories"].update(
        {"../../x": "training_data/train"}
    ),
    "published up": lambda r: r["metadata"].update(published={"../link": "training_data"}),
    "published absolute": lambda r: r["metadata"].update(published={"link": "/etc"}),
    "no directories": lambda r: r["metadata"].update(directories={}),
    "run_id a number": lambda r: r.update(run_id=5),
    "splits a list": lambda r: r.update(splits=[]),
    "rows below 0": lambda r: r["splits"]["train"].update(rows=-1),
    "rows beyond all": lambda r: r["splits"]["train"].update(rows=1 << 70),
    "rows true": lambda r: r["splits"]["train"].update(rows=True),
    "rows text": lambda r: r["splits"]["train"].update(rows="7"),
    "rows missing": lambda r: r["splits"]["train"].pop("rows"),
    "facts a list": lambda r: r.update(metadata=[1]),
    "digest a path": lambda r: r.update(index_digest="../../x"),
    "schema text": lambda r: r.update(schema="x"),
    "a key more": lambda r: r.update(run_this="rm"),
    "no dropped": lambda r: r.pop("dropped"),
    "version 99": lambda r: r.update(format_version=99),
    "version a list": lambda r: r.update(format_version=[2]),
}
for _word, _change in MANIFESTS.items():
    CASES[f"manifest: {_word}"] = Hostile(
        "stream" if "published" not in _word else "prepare_again",
        of_manifest(_change),
        "manifest.json",
    )

RAW = {
    "deep": b"[" * 200_000,
    "deep objects": b'{"a":' * 100_000,
    "a key twice": b'{"format_version": 2, "format_version": 2}',
    "NaN": b'{"format_version": NaN}',
    "infinity": b'{"format_version": -Infinity}',
    "long number": b'{"format_version": ' + b"9" * 100_000 + b"}",
    "half a surrogate": b'{"format_version": 2, "digest": "x", "run_id": "\\ud800"}',
    "a list": b"[]",
    "a number": b"7",
    "nothing": b"",
    "not UTF-8": b'{"format_version": "\xff\xfe"}',
    "zero bytes": b"\x00" * 100,
    "other text": b"PK\x03\x04",
}
for _word, _data in RAW.items():
    CASES[f"manifest: {_word}"] = Hostile(
        "stream",
        functools.partial(lambda data, place: _raw_manifest(place, data), _data),
        "manifest.json",
    )


def _raw_manifest(place: Path, data: bytes) -> Path:
    run = copy_of_run(place)
    (run / "manifest.json").write_bytes(data)
    return run.parents[1]


@case("manifest: larger than any", "stream", "manifest.json")
def _(place: Path) -> Path:
    run = copy_of_run(place)
    with (run / "manifest.json").open("wb") as file:
        file.truncate(100 << 30)  # sparse
    return run.parents[1]


@case("receipt: deep", "verify", "receipt")
def _(place: Path) -> Path:
    run = copy_of_run(place)
    sorted((run / "receipts").glob("*.json"))[0].write_bytes(b"[" * 200_000)
    return run.parents[1]


@case("facts: of another recipe", "verify", "blend is required")
def _(place: Path) -> Path:
    return sealed(copy_of_run(place), lambda r: r.update(recipe="packed_sequences"))


# --- sources ---


def source(place: Path, name: str, data: bytes) -> Path:
    (place / "in").mkdir(exist_ok=True)
    (place / "in" / name).write_bytes(data)
    return place / "in"


def bomb(opening: bytes, filling: bytes, size: int = 3 * GIB) -> bytes:
    """A gzip stream of `opening` and so many bytes of filling: members repeat, so it is made in no time."""
    block = gzip.compress(filling * ((16 << 20) // len(filling)), 9, mtime=0)
    return gzip.compress(opening, mtime=0) + block * (size // (16 << 20))


TEXT_HEADER = b"id,date,row\n"
BOMBS: dict[str, tuple[str, bytes]] = {
    "one endless value": ("part-0.csv.gz", TEXT_HEADER + b"1,2024-01-01,"),
    "one endless header": ("part-0.csv.gz", b""),
    "one endless quoted value": ("part-0.csv.gz", TEXT_HEADER + b'1,2024-01-01,"'),
    "one endless line of JSON": ("part-0.jsonl.gz", b'{"id": "1", "date": "2024-01-01", "x": "'),
    "an array of JSON": ("part-0.json.gz", b'[{"id": "1", "date": "2024-01-01", "x": "'),
    "a Parquet file inside": ("part-0.parquet.gz", b"PAR1"),
}
for _word, (_name, _opening) in BOMBS.items():
    CASES[f"bomb: {_word}"] = Hostile(
        "split",
        functools.partial(
            lambda name, opening, place: source(place, name, bomb(opening, b"a")), _name, _opening
        ),
        "part-0",
    )


@case("bomb: a zip named csv", "split", "zip archive")
def _(place: Path) -> Path:
    (place / "in").mkdir()
    with zipfile.ZipFile(place / "in" / "part-0.csv", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a", b"\x00" * (64 << 20))
    return place / "in"


def varint(number: int) -> bytes:
    """A Thrift compact number: zigzag, 7 bits a byte."""
    number, out = (number << 1) ^ (number >> 63), b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def claiming(place: Path, old: int, new: int, *, rows: int = 12_345) -> Path:
    """A Parquet file whose footer has a number where another was."""
    table = pa.table(
        {
            "id": [f"{n % 50:03d}" for n in range(rows)],
            "date": ["2024-01-01"] * rows,
            "row": range(rows),
        }
    )
    (place / "in").mkdir()
    path = place / "in" / "part-0.parquet"
    pq.write_table(table, path, compression="none", use_dictionary=False)
    data = path.read_bytes()
    (size,) = struct.unpack("<I", data[-8:-4])
    footer = data[-8 - size : -8]
    assert varint(old) in footer
    footer = footer.replace(varint(old), varint(new))
    path.write_bytes(data[: -8 - size] + footer + struct.pack("<I", len(footer)) + b"PAR1")
    return place / "in"


@case("footer: a billion rows", "split", "part-0.parquet")
def _(place: Path) -> Path:
    return claiming(place, 12_345, 10**9)


@case("footer: 2**60 rows", "split", "part-0.parquet")
def _(place: Path) -> Path:
    return claiming(place, 12_345, 1 << 60)


@case("footer: rows below 0", "split", "part-0.parquet")
def _(place: Path) -> Path:
    return claiming(place, 12_345, -12_345)


@case("footer: longer than the file", "split", "part-0.parquet")
def _(place: Path) -> Path:
    return source(
        place, "part-0.parquet", b"PAR1" + b"\x15\x02" * 50 + struct.pack("<I", 2**31 - 1) + b"PAR1"
    )


@case("footer: noise", "split", "part-0.parquet")
def _(place: Path) -> Path:
    noise = np.random.default_rng(1).bytes(4000)
    return source(place, "part-0.parquet", b"PAR1" + noise + struct.pack("<I", 4000) + b"PAR1")


@case("arrow: a message longer than the file", "split", "part-0.arrow")
def _(place: Path) -> Path:
    return source(
        place, "part-0.arrow", b"\xff\xff\xff\xff" + struct.pack("<i", 2**31 - 1) + b"\x00" * 64
    )


@case("arrow: a footer longer than the file", "split", "part-0.arrow")
def _(place: Path) -> Path:
    return source(
        place,
        "part-0.arrow",
        b"ARROW1\x00\x00" + b"\x00" * 64 + struct.pack("<i", 2**31 - 1) + b"ARROW1",
    )


@case("arrow: a batch of more rows than bytes", "split", "part-0.arrow")
def _(place: Path) -> Path:
    rows = 12_345
    table = pa.table({"id": ["7"] * rows, "date": ["2024-01-01"] * rows})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    data = sink.getvalue().to_pybytes()
    return source(
        place, "part-0.arrow", data.replace(struct.pack("<q", rows), struct.pack("<q", 1 << 60))
    )


@case("csv: 300,000 columns, then one", "split", "part-0.csv")
def _(place: Path) -> Path:
    return source(
        place, "part-0.csv", ",".join(f"c{n}" for n in range(300_000)).encode() + b"\n1\n"
    )


@case("csv: a quote that never ends", "split", "part-0.csv")
def _(place: Path) -> Path:
    return source(
        place, "part-0.csv", TEXT_HEADER + b'1,2024-01-01,"x\n' + b"1,2024-01-01,2\n" * 1000
    )


@case("csv: a row with fewer fields", "split", "part-0.csv")
def _(place: Path) -> Path:
    return source(place, "part-0.csv", TEXT_HEADER + b"1,2024-01-01,2\n1,2024-01-01\n")


@case("csv: zero bytes", "split", "part-0.csv")
def _(place: Path) -> Path:
    return source(place, "part-0.csv", b"\x00" * 10_000)


@case("json: deep", "split", "part-0.jsonl")
def _(place: Path) -> Path:
    return source(
        place,
        "part-0.jsonl",
        b'{"id": "1", "date": "2024-01-01", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n",
    )


@case("json: deep objects", "split", "part-0.jsonl")
def _(place: Path) -> Path:
    return source(
        place,
        "part-0.jsonl",
        b'{"id": "1", "date": "2024-01-01", "x": '
        + b'{"a":' * 50_000
        + b"1"
        + b"}" * 50_000
        + b"}\n",
    )


@case("json: never closed", "split", "part-0.jsonl")
def _(place: Path) -> Path:
    return source(place, "part-0.jsonl", b'{"id": "1", "date": "2024-01-01", "x": [[[[\n')


@case("json: a number of 100,000 digits", "split", "part-0.jsonl")
def _(place: Path) -> Path:
    return source(
        place, "part-0.jsonl", b'{"id": "1", "date": "2024-01-01", "x": ' + b"9" * 100_000 + b"}\n"
    )


UTF8 = {
    "csv value": ("part-0.csv", TEXT_HEADER + b"1,2024-01-01,\xff\xfe\n"),
    "csv header": ("part-0.csv", b"id,date,\xc3\x28\n1,2024-01-01,2\n"),
    "overlong": ("part-0.csv", TEXT_HEADER + b"1,2024-01-01,\xc0\xaf\n"),
    "half a surrogate": ("part-0.csv", TEXT_HEADER + b"1,2024-01-01,\xed\xa0\x80\n"),
    "cut": ("part-0.csv", TEXT_HEADER + b"1,2024-01-01,\xe2\x82\n"),
    "UTF-16": ("part-0.csv", "id,date,row\n1,2024-01-01,2\n".encode("utf-16")),
    "json value": ("part-0.jsonl", b'{"id": "1", "date": "2024-01-01", "x": "\xff"}\n'),
    "json half a surrogate": ("part-0.jsonl", b'{"id": "\\ud800", "date": "2024-01-01"}\n'),
}
for _word, (_name, _data) in UTF8.items():
    CASES[f"utf-8: {_word}"] = Hostile(
        "split", functools.partial(lambda n, d, place: source(place, n, d), _name, _data), "part-0"
    )


def drifting(
    change: Callable[[dict[str, pa.Array]], dict[str, pa.Array]],
) -> Callable[[Path], Path]:
    """Two Parquet files, the second changed."""

    def write(place: Path) -> Path:
        (place / "in").mkdir()
        columns = {
            "id": pa.array(["1", "2"]),
            "date": pa.array(["2024-01-01", "2025-02-02"]),
            "n": pa.array([1, 2], pa.int32()),
            "t": pa.array([1, 2], pa.timestamp("us", "UTC")),
            "d": pa.array([1, 2], pa.int32()).cast(pa.decimal128(12, 2)),
            "l": pa.array([[1], [2]], pa.list_(pa.int32())),
            "s": pa.array([{"a": 1}, {"a": 2}]),
            "b": pa.array([True, False]),
        }
        pq.write_table(pa.table(columns), place / "in" / "part-0.parquet")
        pq.write_table(pa.table(change(dict(columns))), place / "in" / "part-1.parquet")
        return place / "in"

    return write


def _with(**columns: pa.Array) -> Callable[[dict[str, pa.Array]], dict[str, pa.Array]]:
    return lambda old: {**old, **columns}


DRIFTS: dict[str, Callable[[dict[str, pa.Array]], dict[str, pa.Array]]] = {
    "a column less": lambda old: {name: old[name] for name in old if name != "n"},
    "a column more": _with(z=pa.array([1, 2])),
    "another order": lambda old: {name: old[name] for name in reversed(old)},
    "another name": lambda old: {"N" if name == "n" else name: old[name] for name in old},
    "wider integers": _with(n=pa.array([1, 2], pa.int64())),
    "integers as text": _with(n=pa.array(["1", "2"])),
    "integers as floats": _with(n=pa.array([1.0, 2.0])),
    "no time zone": _with(t=pa.array([1, 2], pa.timestamp("us"))),
    "another scale": _with(d=pa.array([1, 2], pa.int32()).cast(pa.decimal128(14, 4))),
    "lists as values": _with(l=pa.array([1, 2], pa.int32())),
    "other fields": _with(s=pa.array([{"b": "x"}, {"b": "y"}])),
    "booleans as integers": _with(b=pa.array([1, 0], pa.int8())),
    "entities as numbers": _with(id=pa.array([1, 2])),
    "dates as times": _with(date=pa.array([1, 2], pa.timestamp("us"))),
}
for _word, _change in DRIFTS.items():
    CASES[f"drift: {_word}"] = Hostile("split", drifting(_change), "part-1.parquet")


@case("drift: csv with another header", "split", "part-1.csv")
def _(place: Path) -> Path:
    source(place, "part-0.csv", TEXT_HEADER + b"1,2024-01-01,2\n")
    return source(place, "part-1.csv", b"id,when,row\n1,2024-01-01,2\n")


@case("drift: json with another type", "split", "part-1.jsonl")
def _(place: Path) -> Path:
    source(place, "part-0.jsonl", b'{"id": "1", "date": "2024-01-01", "x": 5}\n')
    return source(place, "part-1.jsonl", b'{"id": "1", "date": "2024-01-01", "x": "five"}\n')


# --- blends, configurations, pickles ---


BLENDS: dict[str, Any] = {
    "name up": {"datasets": [{"name": "../../x", "path": "a.jsonl"}]},
    "name with a slash": {"datasets": [{"name": "a/b", "path": "a.jsonl"}]},
    "name of dots": {"datasets": [{"name": "..", "path": "a.jsonl"}]},
    "name with a zero byte": {"datasets": [{"name": "a\x00b", "path": "a.jsonl"}]},
    "weight not a number": {"datasets": [{"name": "a", "path": "a.jsonl", "weight": float("nan")}]},
    "weight without end": {"datasets": [{"name": "a", "path": "a.jsonl", "weight": float("inf")}]},
    "weight below 0": {"datasets": [{"name": "a", "path": "a.jsonl", "weight": -1}]},
    "paths of numbers": {"datasets": [{"name": "a", "path": [5]}]},
    "a path of a number": {"datasets": [{"name": "a", "path": 5}]},
    "mapping of a list": {"datasets": [{"name": "a", "path": "a.jsonl", "mapping": [1]}]},
    "a mapping without end": {
        "datasets": [{"name": "a", "path": "a.jsonl", "text_field": [1], "mapping": 7}]
    },
    "datasets a text": {"datasets": "a.jsonl"},
    "a zero byte in the path": {"datasets": [{"name": "a", "path": "a\x00.jsonl"}]},
}
for _word, _record in BLENDS.items():
    CASES[f"blend: {_word}"] = Hostile(
        "pack", functools.partial(lambda r, place: _blend(place, json.dumps(r).encode()), _record)
    )
for _word, _data in {
    "deep": b'{"datasets":' + b"[" * 100_000,
    "not UTF-8": b'{"datasets": "\xff"}',
}.items():
    CASES[f"blend: {_word}"] = Hostile(
        "pack", functools.partial(lambda d, place: _blend(place, d), _data), "blend.json"
    )


def _blend(place: Path, data: bytes) -> Path:
    place.mkdir(exist_ok=True)
    (place / "a.jsonl").write_text('{"input_ids": [1, 2], "loss_mask": [0, 1]}\n')
    (place / "blend.json").write_bytes(data)
    return place / "blend.json"


LAUGHS = "\n".join(
    [
        "l0: &l0 [ha, ha, ha, ha, ha, ha, ha, ha, ha]",
        *(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 11)),
    ]
)
CONFIGS = {
    "an object of Python": "!!python/object/apply:os.system ['touch ../pwned']\n",
    "laughs": f"{LAUGHS}\nrecipe: temporal_split\nout: x\nsource: *l10\n",
    "laughs for a recipe": f"{LAUGHS}\nrecipe: *l10\nout: x\n",
    "laughs in a setting": f"x: &x 1\n{LAUGHS}\n".replace(
        "l0:", "recipe: temporal_split\nout: x\nsource: a\ntime: d\nentity: g\nl0:"
    ),
    "deep": "recipe: " + "[" * 20_000,
    "a list": "- 1\n",
    "not UTF-8": b"\xff\xfe\x00recipe",
    "itself": "recipe: temporal_split\nout: x\nsource: &s [*s]\n",
    "keys that are lists": "recipe: temporal_split\n? [1, 2]\n: 3\n",
    "keys that are numbers": "recipe: temporal_split\nout: x\n5: 3\n",
    "out a list": "recipe: temporal_split\nout: [1]\nsource: a\n",
    "workers text": "recipe: temporal_split\nout: x\nworkers: many\nsource: a\ntime: d\nentity: g\nsplit_date: 2025-01-01\n",
}
for _word, _text in CONFIGS.items():
    CASES[f"config: {_word}"] = Hostile(
        "command", functools.partial(lambda t, place: _config(place, t), _text)
    )


def _config(place: Path, text: str | bytes) -> list[str]:
    place.mkdir(exist_ok=True)
    (place / "config.yaml").write_bytes(text.encode() if isinstance(text, str) else text)
    return ["run", str(place / "config.yaml")]


class _Runs:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def _npy(place: Path, payload: bytes) -> list[str]:
    place.mkdir(exist_ok=True)
    header = b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"
    header += b" " * (64 - (10 + len(header) + 1) % 64) + b"\n"
    (place / "legacy.npy").write_bytes(
        b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + payload
    )
    return ["pack", str(place / "legacy.npy"), "--pack-size", "8", "--out", str(place / "bins")]


@case("pickle: runs a function", "command", "legacy.npy")
def _(place: Path) -> list[str]:
    return _npy(place, pickle.dumps(_Runs(place.parent / "pwned")))


@case("pickle: imports os", "command", "legacy.npy")
def _(place: Path) -> list[str]:
    return _npy(place, b"cos\nsystem\n(S'touch pwned'\ntR.")


@case("pickle: a list without end", "command", "legacy.npy")
def _(place: Path) -> list[str]:
    return _npy(place, b"\x80\x04" + b"(" * 1_000_000 + b".")


@case("pickle: bytes of 2**62", "command", "legacy.npy")
def _(place: Path) -> list[str]:
    return _npy(place, b"\x80\x04\x8e" + struct.pack("<Q", 1 << 62) + b"x.")


@case("pickle: cut", "command", "legacy.npy")
def _(place: Path) -> list[str]:
    return _npy(place, pickle.dumps([{"input_ids": [1, 2, 3]}])[:-3])


@case("pickle: named Parquet", "split", "part-0.parquet")
def _(place: Path) -> Path:
    return source(place, "part-0.parquet", pickle.dumps(_Runs(place.parent / "pwned")))


def names() -> Iterator[str]:
    """Every case."""
    yield from CASES
