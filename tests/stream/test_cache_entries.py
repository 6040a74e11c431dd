"""What headrace keeps in its caches says what it is: an entry in the place of another one is never believed."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace
from headrace.dataset.counts import count_rows, lengths_of
from headrace.gate.cache_entry import TRAILER_BYTES, content_bytes, identity_of, trailer_of

ROWS = 40


def sources(directory: Path) -> None:
    """Two datasets of one shape, and a CSV file whose types may be given."""
    for name, first in {"a": 0, "b": 1000}.items():
        (directory / name).mkdir(parents=True)
        numbers = np.arange(first, first + ROWS, dtype=np.int64)
        table = pa.table(
            {
                "n": numbers,
                "m": numbers + 5,
                "e": [f"e{number % 7}" for number in numbers],
                "list": [[1] * int(number % 3 + first // 1000) for number in numbers],
            }
        )
        pq.write_table(table, directory / name / "part-0.parquet", row_group_size=20)
    lines = "".join(f"{number},{number}\n" for number in range(ROWS))
    (directory / "c").mkdir()
    (directory / "c" / "part-0.csv").write_text(f"n,m\n{lines}")


def cases(directory: Path, cache: Path) -> dict[str, Callable[[], object]]:
    """What reads the cache, by name; each opens its data anew."""

    def stream(name: str, **options: object) -> list[object]:
        types = options.pop("types", None)
        dataset = headrace.open(directory / name, cache_dir=cache, types=types)
        loader = dataset.stream(
            batch_size=ROWS, batch_format="arrow", remainder="exact", **options,
        )  # fmt: skip
        return [batch.to_pydict() for batch in loader]

    def filtered(name: str, value: int) -> object:
        dataset = headrace.open(directory / name, cache_dir=cache)
        return [
            batch.to_pydict()
            for batch in dataset.filter([("m", "in", list(range(value, 2000, 3)))]).stream(
                batch_size=ROWS, batch_format="arrow"
            )
        ]

    def counts(name: str) -> object:
        dataset = headrace.open(directory / name, cache_dir=cache)
        split = dataset.split_index(None)
        counted = count_rows(
            split, dataset.block_reader(None), ["list"], lambda table: lengths_of(table["list"])[None],
            counts=["tokens"], contents=dataset.contents, cache_dir=cache,
        )  # fmt: skip
        return counted.tolist()

    made: dict[str, Callable[[], object]] = {}
    for name in ("a", "b"):
        made |= {
            f"{name} whole": lambda name=name: stream(name),
            f"{name} n": lambda name=name: stream(name, columns=["n"]),
            f"{name} m": lambda name=name: stream(name, columns=["m"]),
            f"{name} counts": lambda name=name: counts(name),
            f"{name} filter 0": lambda name=name: filtered(name, 0),
            f"{name} filter 1": lambda name=name: filtered(name, 1),
        }
    made |= {
        "c": lambda: stream("c"),
        "c texts": lambda: stream("c", types={"n": "text"}),
        "c times": lambda: stream("c", types={"n": "float64"}),
    }
    return made


def put(path: Path, data: bytes) -> None:
    """Put a file in the place of another one, which may be mapped and stays as it is."""
    path.with_name("between").write_bytes(data)
    os.replace(path.with_name("between"), path)


@pytest.mark.slow
def test_no_entry_is_believed_in_the_place_of_another(tmp_path: Path) -> None:
    sources(tmp_path / "raw")
    cache = tmp_path / "cache"
    read = cases(tmp_path / "raw", cache)
    expected = {name: case() for name, case in read.items()}
    kept = {path: path.read_bytes() for path in cache.rglob("*") if path.is_file()}
    kept = {path: data for path, data in kept.items() if not path.name.startswith(".")}
    kinds = {path.name.partition("-")[0] for path in kept}
    suffixes = {path.suffix for path in kept}
    of_suffix = {suffix: [path for path in kept if path.suffix == suffix] for suffix in suffixes}
    silent = []
    for shift in range(1, len(kept)):  # every entry in the place of every other of its suffix
        for others in of_suffix.values():
            for number, one in enumerate(others):
                put(one, kept[others[(number + shift) % len(others)]])
        found = {name: case() for name, case in read.items()}
        silent += [(shift, name) for name in read if found[name] != expected[name]]
        for one, data in kept.items():
            put(one, data)

    assert {"index", "counts", "filter"} == kinds
    assert [] == silent


def test_an_entry_proves_what_it_is_and_every_byte_of_it() -> None:
    identity = identity_of("block", 1)
    data = b"content" + trailer_of(b"content", identity)

    assert (len(b"content"), TRAILER_BYTES) == (content_bytes(data, identity), len(data) - 7)
    for at in range(len(data)):
        with pytest.raises(ValueError, match="not those that were written"):
            content_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], identity)
    for size in range(len(data)):
        with pytest.raises(ValueError, match="it"):
            content_bytes(data[:size], identity)
    with pytest.raises(ValueError, match="another entry"):
        content_bytes(data, identity_of("block", 2))
