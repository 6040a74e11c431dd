"""Small tables on disk, written and read back by code that headrace has no part in."""

import csv
import gzip
import io
import itertools
import json
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.formats.registry import FileType, file_type_of_name
from headrace.run.events import OnEvent, silent
from headrace.run.prepare import Prepared, prepare
from headrace.split.settings import TemporalSplit

Row = Sequence[Any]

_fresh = itertools.count()


def fresh(directory: Path) -> Path:
    """A new empty directory: hypothesis runs many examples in one test's `tmp_path`."""
    path = directory / f"case-{next(_fresh):05d}"
    path.mkdir()
    return path


def compressed(data: bytes, kind: FileType) -> bytes:
    if kind.compression == "gz":
        return gzip.compress(data, mtime=0)
    if kind.compression == "zst":
        return pa.Codec("zstd").compress(data).to_pybytes()
    return data


def decompressed(data: bytes, kind: FileType) -> bytes:
    if kind.compression == "gz":
        return gzip.decompress(data)
    if kind.compression == "zst":
        return pa.input_stream(pa.BufferReader(data), compression="zstd").read()
    return data


def kind(name: str) -> FileType:
    found = file_type_of_name(name)
    assert found is not None
    return found


def csv_bytes(
    header: Row | None, rows: Iterable[Row], *, separator: str = ",", newline: str = "\n"
) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, delimiter=separator, lineterminator=newline)
    if header is not None:
        writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue().encode()


def write_bytes(path: Path, data: bytes) -> Path:
    """A file of these bytes, compressed as its name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(compressed(data, kind(path.name)))
    return path


def write_rows(path: Path, header: Sequence[str], rows: Sequence[Row]) -> Path:
    """A table in the format that the name says. None is an empty field, a JSON null or a Parquet null."""
    what = kind(path.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    if what.format.name == "parquet":
        columns = [pa.array([row[place] for row in rows]) for place in range(len(header))]
        pq.write_table(pa.table(columns, list(header)), path)
        return path
    if what.format.name in ("jsonl", "json"):
        objects = [dict(zip(header, row, strict=True)) for row in rows]
        if what.format.name == "json":
            return write_bytes(path, json.dumps(objects).encode())
        return write_bytes(path, "".join(json.dumps(each) + "\n" for each in objects).encode())
    separator = "\t" if what.format.name == "tsv" else ","
    return write_bytes(path, csv_bytes(header, rows, separator=separator))


def read_rows(path: Path) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Header and rows of a shard; text formats give text, with null as ""."""
    what = kind(path.name)
    if what.format.name == "parquet":
        table = pq.read_table(path, page_checksum_verification=True)
        return table.column_names, list(
            zip(*(column.to_pylist() for column in table.columns), strict=True)
        )
    text = decompressed(path.read_bytes(), what).decode("utf-8-sig")
    if what.format.name == "jsonl":
        objects = [json.loads(line) for line in text.splitlines()]
        names = list(objects[0]) if objects else []
        return names, [tuple(each.get(name) for name in names) for each in objects]
    lines = csv.reader(
        io.StringIO(text, newline=""), delimiter="\t" if what.format.name == "tsv" else ","
    )
    header, *rows = [tuple(line) for line in lines]
    return list(header), rows


def shards(run: Path, split: str) -> list[Path]:
    """The data files of a split, in name order."""
    directory = run / ("oot_data" if split == "oot" else f"training_data/{split}")
    return sorted(path for path in directory.iterdir() if not path.name.startswith("."))


def split_rows(run: Path, split: str) -> list[tuple[Any, ...]]:
    """All rows of a split, in shard order."""
    return [row for path in shards(run, split) for row in read_rows(path)[1]]


def split_column(run: Path, split: str, column: str) -> list[Any]:
    """One column of a split."""
    values: list[Any] = []
    for path in shards(run, split):
        header, rows = read_rows(path)
        values += [row[header.index(column)] for row in rows]
    return values


def split(
    source: Any,
    out: Path,
    *,
    workers: int = 2,
    on_event: OnEvent = silent,
    fingerprint_by: Any = "stat",
    **settings: Any,
) -> Prepared:
    """`prepare` of a temporal split with the columns these tests use: id, date."""
    asked = {
        "time": "date",
        "entity": "id",
        "split_date": "2025-01-01",
        "train_ratio": 0.5,
    } | settings
    recipe = TemporalSplit(source=source, **asked)
    return prepare(recipe, out, workers=workers, on_event=on_event, fingerprint_by=fingerprint_by)


def digests(run: Path) -> dict[str, str]:
    """Digest of every visible file of a run."""
    files = sorted(
        each for each in run.rglob("*") if each.is_file() and not each.name.startswith(".")
    )
    return {
        path.relative_to(run).as_posix(): sha256(path.read_bytes()).hexdigest() for path in files
    }


HEADER = ("id", "date", "row")


def small_rows(count: int, *, entities: int = 40, first: int = 0) -> list[tuple[str, str, str]]:
    """Rows of (id, date, row number): ids like 007, dates over 2024 and the first days of 2025. Deterministic."""
    rows = []
    for number in range(first, first + count):
        month = 1 + (number * 7) % 13
        year, month = (2025, 1) if month == 13 else (2024, month)
        rows.append(
            (
                f"{(number * 31 + number // 11) % entities:03d}",
                f"{year}-{month:02d}-{1 + number % 28:02d}",
                str(number),
            )
        )
    return rows


def small_source(
    directory: Path, *, count: int = 3, rows: int = 200, extension: str = ".csv", entities: int = 40
) -> Path:
    """A directory of `count` shards part-00000 and on."""
    for number in range(count):
        part = small_rows(rows, entities=entities, first=number * rows)
        write_rows(directory / f"part-{number:05d}{extension}", HEADER, part)
    return directory
