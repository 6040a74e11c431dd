"""Arrow files whose metadata or offsets lie, for every kind of file that is mapped, and what is done with each.

A forged file has one integer of a true one changed. Digests beside it are put right again, or are not asked for.
"""

from __future__ import annotations

import json
import random
import struct
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from forks import limit_memory
from prepared_histories import prepared
from series_cases import write_run

import headrace
from headrace.contexts import open_contexts
from headrace.dataset.stored_index import map_index
from headrace.errors import HeadraceError
from headrace.formats.source import read_chunks, survey
from headrace.histories.dictionary import SCHEMA, Dictionary
from headrace.run.context import read_arrow
from headrace.windows import open_windows

GIB = 1 << 30
CONTEXTS: dict[str, Any] = {"context_tokens": 128, "measurements_per_context": 5, "seed": 3}


@dataclass(frozen=True)
class Kind:
    """make: makes a true file in a directory, and returns its path. read: uses all that is in it. sealed: bytes of an
    XXH3 digest behind the Arrow data."""

    make: Callable[[Path], Path]
    read: Callable[[Path], object]
    sealed: int = 0


def forgeries(data: bytes) -> Iterator[bytes]:
    """Every file that has one other integer in its footer, in the metadata of a message, or in the first bytes of a
    body, where offsets are."""
    for at, form in places(data):
        (old,) = struct.unpack_from(form, data, at)
        bits = 31 if form == "<i" else 63
        for value in {0, -1, 1, 2**31, 2**62, 2**bits - 1, -(2**bits), len(data), old + 1, old - 1, old + 8, old * 2, -old}:  # fmt: skip
            if value != old and -(2**bits) <= value < 2**bits:
                forged = bytearray(data)
                struct.pack_into(form, forged, at, value)
                yield bytes(forged)


def places(data: bytes) -> Iterator[tuple[int, str]]:
    """The places of such integers, and their forms."""
    at, regions = 0, []
    if data.startswith(b"ARROW1"):
        at = 8
        (footer,) = struct.unpack_from("<i", data, len(data) - 10)
        regions.append((len(data) - 10 - footer, len(data) - 6))
    while data[at : at + 4] == b"\xff" * 4 and (length := _int(data, at + 4)):
        table = at + 8 + _int(data, at + 8)
        fields = table - _int(data, table)
        body = 0
        if _int(data, fields) & 0xFFFF > 10 and (field := _int(data, fields + 10) & 0xFFFF):
            (body,) = struct.unpack_from("<q", data, table + field)
        regions.append((at + 4, at + 8 + length + min(body, 64)))
        at += 8 + length + body
    for first, last in regions:
        for place in range(first, last - 3, 4):
            yield place, "<i"
            if place % 8 == 0 and place + 8 <= last:
                yield place, "<q"


def _int(data: bytes, at: int) -> int:
    return int(struct.unpack_from("<i", data, at)[0])


def child(name: str, directory: str, most: int) -> None:
    """Read at most so many of the forged files of a kind, and print how often each end was met, and ends that should not be."""
    kind = KINDS[name]
    place = Path(directory)
    place.mkdir()
    path = kind.make(place)
    kind.read(path)
    data = path.read_bytes()
    data = data[: len(data) - kind.sealed]
    limit_memory(2 * GIB)
    forged = list(forgeries(data))
    random.Random(7).shuffle(forged)
    ends: Counter[str] = Counter()
    wrong = []
    for number, other in enumerate(forged[:most]):
        print(f"forged file {number}", flush=True)  # the last line of a child that crashed
        path.unlink()
        path.write_bytes(other + xxhash.xxh3_128_digest(other)[: kind.sealed])
        try:
            kind.read(path)
            ends["read"] += 1
        except HeadraceError as error:
            ends["refused"] += 1
            if path.name not in str(error):
                wrong.append(f"{number}: {error}")
        except Exception:  # noqa: BLE001 - any other end is the failure that is looked for
            wrong.append(f"{number}: {traceback.format_exc()[-1500:]}")
    print(json.dumps({"ends": ends, "wrong": wrong[:10]}), flush=True)


def table(rows: int = 60) -> pa.Table:
    numbers = range(rows)
    return pa.table(
        {
            "i": pa.array(numbers, pa.int64()),
            "s": [None if n % 7 == 0 else f"é{n}" * (n % 20) for n in numbers],
            "l": [[n] * (n % 5) for n in numbers],
            "ls": pa.array([[str(n)] * (n % 4) for n in numbers], pa.large_list(pa.large_string())),
            "sv": pa.array([str(n) * (n % 20) for n in numbers], pa.string_view()),
            "f": pa.array([[n, n] for n in numbers], pa.list_(pa.float32(), 2)),
            "d": pa.array([str(n % 4) for n in numbers]).dictionary_encode(),
            "st": [{"a": n, "b": str(n)} for n in numbers],
            "b": [n % 3 == 0 for n in numbers],
        }
    )


def written(place: Path, rows: pa.Table, *, stream: bool = False, compression: Any = None) -> Path:
    path = place / "forged.arrow"
    options = pa.ipc.IpcWriteOptions(compression=compression)
    make = pa.ipc.new_stream if stream else pa.ipc.new_file
    with make(str(path), rows.schema, options=options) as writer:
        for batch in rows.to_batches(max_chunksize=30):
            writer.write_batch(batch)
    return path


def read_source(path: Path) -> None:
    for chunk in read_chunks(survey(path, path.name)):
        rows = chunk.table()
        rows.validate(full=True)
        rows.to_pylist()


def _series(place: Path) -> Path:
    write_run(place, (40, 45, 50), shards=1)
    return next(place.glob("runs/*/store/part-00000.arrow"))


def _read_series(path: Path) -> None:
    windows = open_windows(
        path.parents[3], "train", input_length=5, output_length=2, verify="never"
    )
    windows.batch(range(len(windows)))


def _histories(place: Path) -> Path:
    prepared(place, format_="arrow", small=20, large=1, large_n=150)
    return max(place.glob("out/runs/*/*/train/*.arrow"), key=lambda path: path.stat().st_size)


def _read_histories(path: Path) -> None:
    contexts = open_contexts(next(path.parents[3].parent.glob("runs")).parent, verify="never", **CONTEXTS)  # fmt: skip
    contexts.batch(range(len(contexts)))


def _read_dictionary(path: Path) -> None:
    dictionary = Dictionary(path)
    dictionary.is_sorted()
    dictionary.take(np.arange(-1, len(dictionary) + 1)).to_pylist()
    dictionary.hashes(1)


def _read_table(path: Path) -> None:
    rows = read_arrow(path)
    rows.validate(full=True)
    rows.to_pylist()


def _opened(place: Path) -> Any:
    (place / "in").mkdir()
    (place / "in" / "a.csv").write_text("id,x\n" + "".join(f"e{n % 5},{n}\n" for n in range(40)))
    return headrace.open(place / "in", cache_dir=place / "cache")


def _index(place: Path) -> Path:
    _opened(place)
    (path,) = place.glob("cache/index-*")
    return path


def _read_index(path: Path) -> None:
    for split in map_index(path).splits.values():
        split.rows.tolist()
        list(split.shards)


KINDS = {
    "source file": Kind(lambda place: written(place, table()), read_source),
    "source file, lz4": Kind(lambda place: written(place, table(), compression="lz4"), read_source),
    "source stream": Kind(
        lambda place: written(place, table().drop_columns("d"), stream=True), read_source
    ),
    "source stream, zstd": Kind(
        lambda place: written(place, table().drop_columns("d"), stream=True, compression="zstd"),
        read_source,
    ),
    "store of series": Kind(_series, _read_series),
    "rows of histories": Kind(_histories, _read_histories),
    "dictionary of histories": Kind(
        lambda place: written(
            place, pa.table({"text": [f"{n:03d}" for n in range(60)]}, schema=SCHEMA)
        ),
        _read_dictionary,
    ),
    "intermediate file": Kind(lambda place: written(place, table()), _read_table),
    "index of plain shards": Kind(_index, _read_index, sealed=16),
}
