"""Finished runs of every recipe with one file changed by somebody who means harm and seals every digest again.

What is changed is found on disk, one file of each kind; what meets it is every reader of a run. A recipe that is
registered later comes in with its row in `fault_recipes`.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import time
import traceback
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fault_recipes import OTHERS, RECIPES
from forks import limit_memory
from hostile_actions import command

import headrace
from headrace.contexts import open_contexts, read_measurements
from headrace.dataset.index import table_bytes
from headrace.dataset.open import read_index
from headrace.dataset.receipts import digest_of_receipts, parse_receipt
from headrace.digest import checksum_file, sha256_file, sha256_hex
from headrace.errors import CorruptShard, HeadraceError
from headrace.windows import open_windows
from resealed import reseal

KIT = RECIPES | OTHERS
GIB = 1 << 30
LIMIT_S = 5  # of processor time for each reader


def kind_of(name: str) -> str:
    """A file's name with its numbers, entities and digests taken out: one file stands for all of a kind."""
    name = re.sub(r"[0-9a-f]{8,}", "H", name)
    name = re.sub(r"(%\w\w|\d)+", "N", name)
    name = re.sub(r"/(train|val|test)/(\1_)?", "/SPLIT/", name)
    parts = name.split("/")
    if parts[0] in ("processed_time_series", "quality_reports") and len(parts) > 1:
        parts[-1] = "*" + Path(parts[-1]).suffix
    return "/".join(parts)


def kinds(run: Path) -> dict[str, str]:
    """One file of each kind of a run, relative to it."""
    found: dict[str, str] = {}
    for path in sorted(run.rglob("*")):
        if path.is_file() and not path.is_symlink() and path.suffix in HARMS:
            name = path.relative_to(run).as_posix()
            found.setdefault(kind_of(name), name)
    return found


# --- harms ---

Harm = Callable[[Path, Path], object]  # of the file, given another recipe's of its suffix


def _truncated(path: Path, other: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])


def _empty(path: Path, other: Path) -> None:
    path.write_bytes(b"")


def _of_another_recipe(path: Path, other: Path) -> None:
    shutil.copyfile(other, path)


def _noise(path: Path, other: Path) -> None:
    data = bytearray(path.read_bytes())
    random = np.random.default_rng(len(data))
    for at in random.integers(0, len(data), 20):
        data[at] ^= 1 << int(random.integers(8))
    path.write_bytes(data)


TableHarm = Callable[[pa.Table], pa.Table]


def _parquet(change: TableHarm) -> Harm:
    """Write a Parquet file again as one row group, with a changed table and the same metadata."""

    def harm(path: Path, other: Path) -> None:
        table = pq.read_table(path)
        metadata = table.schema.metadata
        pq.write_table(change(table).replace_schema_metadata(metadata), path, compression="zstd")

    return harm


def _arrow(change: TableHarm) -> Harm:
    def harm(path: Path, other: Path) -> None:
        with path.open("rb") as file, pa.ipc.open_file(file) as reader:
            table = reader.read_all()
        metadata = table.schema.metadata
        table = change(table).replace_schema_metadata(metadata)
        with pa.ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table)

    return harm


def _renamed(table: pa.Table) -> pa.Table:
    return table.rename_columns([f"{name}_" for name in table.column_names])


def _reversed(table: pa.Table) -> pa.Table:
    return table.select(table.column_names[::-1])


def _without_first(table: pa.Table) -> pa.Table:
    return table.select(table.column_names[1:])


def _other_types(table: pa.Table) -> pa.Table:
    columns = {}
    for field in table.schema:
        column = table[field.name]
        if pa.types.is_string(field.type):
            columns[field.name] = pa.array(range(len(column)), pa.int64())
        else:
            columns[field.name] = pa.array([str(value) for value in column.to_pylist()])
    return pa.table(columns)


def _nested(table: pa.Table) -> pa.Table:
    return pa.table(
        {
            field.name: pa.array(
                [[[value]] for value in table[field.name].to_pylist()],
                pa.list_(pa.list_(field.type)),
            )
            for field in table.schema
        }
    )


def _nulls(table: pa.Table) -> pa.Table:
    return pa.table({field.name: pa.nulls(len(table), field.type) for field in table.schema})


def _huge(table: pa.Table) -> pa.Table:
    """Every integer is the largest of its type."""
    columns = []
    for field in table.schema:
        column = table[field.name]
        if pa.types.is_integer(field.type):
            largest = np.iinfo(field.type.to_pandas_dtype()).max
            column = pa.chunked_array([pa.array([largest] * len(table), field.type)])
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=table.schema)


def _below_zero(table: pa.Table) -> pa.Table:
    columns = []
    for field in table.schema:
        column = table[field.name]
        if pa.types.is_signed_integer(field.type):
            column = pa.chunked_array([pa.array([-1] * len(table), field.type)])
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=table.schema)


def _no_rows(table: pa.Table) -> pa.Table:
    return table.slice(0, 0)


def _half(table: pa.Table) -> pa.Table:
    return table.slice(0, len(table) // 2)


def _equal_rows(path: Path, other: Path) -> None:
    """30 million rows that equal the first, in a few hundred kilobytes."""
    table = pq.read_table(path)
    if not len(table):
        return
    row = table.slice(0, 1)
    columns = []
    for column in row.columns:
        coded = column.combine_chunks().dictionary_encode()
        columns.append(
            pa.DictionaryArray.from_arrays(np.zeros(1 << 20, np.int32), coded.dictionary)
        )
    schema = pa.schema(
        [
            pa.field(field.name, column.type)
            for field, column in zip(table.schema, columns, strict=True)
        ],
        table.schema.metadata,
    )
    group = pa.Table.from_arrays(columns, schema=schema)
    with pq.ParquetWriter(path, schema, compression="zstd", store_schema=False) as writer:
        for _ in range(30):
            writer.write_table(group)


def _long_text(path: Path, other: Path) -> None:
    """A text of 100 KB in each of 100,000 rows."""
    table = pq.read_table(path)
    columns = {}
    for field in table.schema:
        if pa.types.is_string(field.type):
            codes = pa.array(np.zeros(100_000, np.int32))
            columns[field.name] = pa.DictionaryArray.from_arrays(codes, ["é" * 50_000])
        else:
            columns[field.name] = pa.nulls(100_000, field.type)
    schema = pa.table(columns).schema.with_metadata(table.schema.metadata)
    pq.write_table(pa.table(columns, schema=schema), path, store_schema=False)


def _json(change: Callable[[Any], Any]) -> Harm:
    def harm(path: Path, other: Path) -> None:
        record = change(json.loads(path.read_bytes()))
        path.write_text(json.dumps(record, sort_keys=True, indent=1, ensure_ascii=False) + "\n")

    return harm


def _swapped_types(value: Any) -> Any:
    """Numbers are texts and texts numbers, lists objects and objects lists, below the top."""
    if isinstance(value, dict):
        return {name: _swapped(inner) for name, inner in value.items()}
    return value


def _swapped(value: Any) -> Any:
    if isinstance(value, dict):
        return list(value)
    if isinstance(value, list):
        return {str(number): inner for number, inner in enumerate(value)}
    if isinstance(value, str):
        return len(value)
    return str(value)


def _deeply(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def changed(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: changed(inner) for name, inner in value.items()}
        if isinstance(value, list):
            return [changed(inner) for inner in value]
        return change(value)

    return changed


def _largest(value: Any) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return 1 << 70
    return value


def _negative(value: Any) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return -1
    return value


def _decompresses(path: Path, other: Path) -> None:
    """The schema ends in 400 MiB of spaces."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, member in members.items():
            with archive.open(name, "w") as file:
                file.write(member)
                for _ in range(400 if name == "schema.json" else 0):
                    file.write(b" " * (1 << 20))


def _bytes(data: bytes) -> Harm:
    return lambda path, other: path.write_bytes(data)


BYTES: dict[str, Harm] = {
    "truncated": _truncated,
    "empty": _empty,
    "of another recipe": _of_another_recipe,
    "noise": _noise,
}
TABLES: dict[str, TableHarm] = {
    "renamed": _renamed,
    "reversed": _reversed,
    "without the first column": _without_first,
    "other types": _other_types,
    "nested": _nested,
    "nulls": _nulls,
    "huge counts": _huge,
    "counts below zero": _below_zero,
    "no rows": _no_rows,
    "half": _half,
}
HARMS: dict[str, dict[str, Harm]] = {
    ".skops": BYTES | {"a bomb": _decompresses},
    ".parquet": BYTES
    | {name: _parquet(change) for name, change in TABLES.items()}
    | {"equal rows": _equal_rows, "a long text": _long_text},
    ".arrow": BYTES | {name: _arrow(change) for name, change in TABLES.items()},
    ".json": BYTES
    | {
        "deep": _bytes(b'{"a":' * 100_000),
        "deep within": _bytes(b'{"a":' + b"[" * 900 + b"]" * 900 + b"}"),
        "a list": _bytes(b"[]"),
        "an empty object": _bytes(b"{}"),
        "not UTF-8": _bytes(b'{"a": "\xff"}'),
        "many objects": _bytes(b'{"a": [' + b"{}," * 200_000 + b"{}]}"),
        "other types": _json(_swapped_types),
        "null values": _json(lambda value: dict.fromkeys(value)),
        "huge counts": _json(_deeply(_largest)),
        "counts below zero": _json(_deeply(_negative)),
    },
}


# --- digests ---


def seal(run: Path, name: str, before: tuple[str, str]) -> None:
    """Make every digest of a run fit the file again. before: SHA-256 and XXH3-128 of the file as it was."""
    path = run / name
    after = sha256_file(path), checksum_file(path)
    stages: dict[str, list[str]] = {}
    for receipt_path in sorted((run / "receipts").glob("*.json")):
        with contextlib.suppress(*UNREADABLE):
            receipt = parse_receipt(receipt_path.read_bytes())
            files = []
            for record in receipt.files:
                if record.path == name:
                    record = replace(
                        record, bytes=path.stat().st_size, digest=after[0], checksum=after[1]
                    )
                files.append(record)
            receipt_path.write_bytes(replace(receipt, files=tuple(files)).to_json())
            stages.setdefault(receipt.stage, []).append(sha256_hex(receipt_path.read_bytes()))
    if name != "index.parquet":
        index = read_index(run / "index.parquet")
        table = index.table
        for column, old, new in zip(("digest", "checksum"), before, after, strict=True):
            values = [new if value == old else value for value in table[column].to_pylist()]
            place = table.schema.get_field_index(column)
            field = table.schema.field(column)
            table = table.set_column(place, field, pa.array(values, field.type))
        (run / "index.parquet").write_bytes(table_bytes(table, index.schema, index.dialect))
    if name == "manifest.json":
        with contextlib.suppress(*UNREADABLE):
            reseal(run, lambda record: None)
        return
    manifest = run / "manifest.json"
    text = manifest.read_text()
    for old, new in zip(before, after, strict=True):
        text = text.replace(old, new)
    manifest.write_text(text)
    receipts = {
        stage: {"tasks": len(values), "digest": digest_of_receipts(values)}
        for stage, values in stages.items()
    }
    fields = {
        "index_digest": sha256_file(run / "index.parquet"),
        "config_digest": sha256_file(run / "config.json"),
        "receipts": receipts,
    }
    reseal(run, lambda record: record.update(fields))


UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


# --- readers ---


def _stream(out: Path) -> None:
    dataset = headrace.open(out)
    for split in dataset.splits:
        for _ in dataset.stream(split, batch_size=512, batch_format="arrow", read_threads=1):
            pass


def _verify(out: Path) -> None:
    problems = headrace.verify(out, workers=1).problems
    if problems:
        raise CorruptShard(problems[0])


def _contexts(out: Path) -> None:
    for split in headrace.open(out).splits:
        contexts = open_contexts(out, split, context_tokens=64)
        contexts.batch(range(min(256, len(contexts))))
        for _ in islice(read_measurements(out, split), 20):
            pass


def _windows(out: Path) -> None:
    for split in headrace.open(out).splits:
        windows = open_windows(out, split, input_length=20, output_length=3)
        for _ in islice(iter(range(0, len(windows), 64)), 5):
            windows.batch(range(min(64, len(windows))))


def _pipelines(out: Path) -> None:
    headrace.load_pipelines(out)


def _command(*arguments: str) -> Callable[[Path], None]:
    return lambda out: command([arguments[0], str(out), *arguments[1:]])


def _forget(out: Path) -> None:
    entity = next(iter(_entities(out)), "1")
    headrace.forget(out, [entity], workers=1)


def _entities(out: Path) -> Iterator[str]:
    dataset = headrace.open(out)
    names = [
        name for name in dataset.schema.names if name in ("id", "user", "src_addr", "gauge_id")
    ]
    if names:
        split = dataset.splits[0]
        for batch in dataset.stream(split, batch_size=8, batch_format="arrow", read_threads=1):
            yield from map(str, batch[names[0]].to_pylist())
            return


READERS: dict[str, Callable[[Path], None]] = {
    "stream": _stream,
    "verify": _verify,
    "contexts": _contexts,
    "windows": _windows,
    "pipelines": _pipelines,
    "inspect": _command("inspect"),
    "where": _command("where", "--row", "part-00000:1", "--ranks", "2", "--batch-size", "2"),
    "peek": _command("peek"),
    "leaks": _command("leaks"),
    "forget": _forget,
}


def child(whole: str, copy: str, kind: str, harm: str, other: str) -> None:
    """Change a file of a copy of a run, and let every reader meet it. Prints a line of JSON for each."""
    out = Path(copy)
    shutil.copytree(whole, out, symlinks=True)
    (run,) = (path for path in (out / "runs").iterdir() if path.is_dir())
    path = run / kinds(run)[kind]
    before = sha256_file(path), checksum_file(path)
    try:
        HARMS[path.suffix][harm](path, Path(other))
        seal(run, path.relative_to(run).as_posix(), before)
    except (pa.ArrowException, *UNREADABLE) as error:
        print(json.dumps({"reader": "", "ended": "NOT MADE", "message": repr(error)}), flush=True)
        return
    limit_memory(2 * GIB)
    for reader, read in READERS.items():
        start = time.process_time()
        trace = ""
        try:
            read(out)
            ended = {"ended": "ACCEPTED", "message": ""}
        except HeadraceError as error:
            raw = "bug in headrace" in str(error)  # of a command, which catches everything
            ended = {"ended": "RAW" if raw else type(error).__name__, "message": str(error)}
        except BaseException as error:  # noqa: BLE001 - which the test refuses
            trace = traceback.format_exc()[-1500:]
            ended = {"ended": "RAW", "message": repr(error)[:300]}
        cpu_s = time.process_time() - start
        print(json.dumps({"reader": reader, "cpu_s": cpu_s, "trace": trace, **ended}), flush=True)
