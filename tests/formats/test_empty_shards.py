"""A shard that holds nothing is skipped, counted and named, whatever its format; a source of nothing else is an error."""

import gzip
import io
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

import headrace
from headrace.dataset.plain import open_plain
from headrace.errors import InputError
from headrace.run.events import Note
from raised import raised
from tables import HEADER, small_rows, split, write_bytes, write_rows

BOM = b"\xef\xbb\xbf"


def parquet_bytes(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def arrow_bytes(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    feather.write_feather(table, sink)
    return sink.getvalue()


TYPED = pa.table(dict.fromkeys(HEADER, pa.array([], pa.string())))
# (extension, bytes of a shard without rows once compressed)
EMPTY: list[tuple[str, bytes]] = [
    (".csv", b""),
    (".csv", BOM),
    (".csv", b"\r\n\n"),
    (".csv", b"id,date,row\n"),
    (".csv.gz", b""),
    (".csv.gz", gzip.compress(b"", mtime=0)),
    (".csv.gz", gzip.compress(b"id,date,row\n", mtime=0)),
    (".csv.zst", pa.Codec("zstd").compress(b"").to_pybytes()),
    (".tsv", b""),
    (".jsonl", b""),
    (".jsonl", b"\n \n"),
    (".jsonl.gz", gzip.compress(b"", mtime=0)),
    (".json", b""),
    (".json", b"[]"),
    (".parquet", b""),
    (".parquet", parquet_bytes(pa.table({}))),
    (".parquet", parquet_bytes(TYPED)),
    (".arrow", b""),
    (".arrow", arrow_bytes(pa.table({}))),
    (".arrow", arrow_bytes(TYPED)),
]
NAMES = [f"{number}{extension}" for number, (extension, _) in enumerate(EMPTY)]
cases = pytest.mark.parametrize(("extension", "data"), EMPTY, ids=NAMES)
places = pytest.mark.parametrize("number", [0, 5, 9], ids=["first", "middle", "last"])


def full(path: Path, first: int) -> None:
    rows = small_rows(60, first=first)
    if path.name.endswith((".arrow",)):
        table = pa.table({name: [row[at] for row in rows] for at, name in enumerate(HEADER)})
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(arrow_bytes(table))
        return
    write_rows(path, HEADER, rows)


def source(directory: Path, extension: str, data: bytes, number: int) -> str:
    """Two shards with rows and the one without; the name of that."""
    for other in (1, 7):
        full(directory / f"part-{other}{extension}", 60 * other)
    name = f"part-{number}{extension}"
    (directory / name).write_bytes(data)
    return name


def warnings_in(events: list[Any]) -> list[str]:
    """What was said of skipped files."""
    return [event.text for event in events if isinstance(event, Note) and "skipped" in event.text]


@pytest.mark.smoke(every=5)
@cases
@places
@pytest.mark.parametrize("settings", [{}, {"layout": "single"}, {"schema_drift": "widen"}], ids=str)
def test_a_split_skips_and_counts_it(
    tmp_path: Path, extension: str, data: bytes, number: int, settings: dict[str, Any]
) -> None:
    if settings and number != 0:
        pytest.skip("settings are tried where the shard is the first")
    name = source(tmp_path / "in", extension, data, number)
    events: list[Any] = []
    prepared = split(tmp_path / "in", tmp_path / "out", on_event=events.append, **settings)
    manifest = prepared.manifest

    assert [name] == manifest.source["empty_shards"]
    assert (3, 120) == (manifest.source["files"], manifest.source["rows"])
    assert 120 == sum(manifest.dropped.values()) + sum(
        totals.rows for totals in manifest.splits.values()
    )
    assert [f"1 of 3 source files has no rows and is skipped: {name}"] == warnings_in(events)
    assert headrace.verify(tmp_path / "out").problems == []


@cases
def test_a_stream_of_plain_shards_skips_and_names_it(
    tmp_path: Path, extension: str, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    name = source(tmp_path / "in", extension, data, 0)
    for _ in range(2):  # the second time from the cached index
        caplog.clear()
        dataset = open_plain(tmp_path / "in", cache_dir=tmp_path / "cache")

        assert [f"1 of 3 files has no rows and is skipped: {name}"] == caplog.messages
        assert ({"all": 120}, (name,)) == (dict(dataset.split_rows), dataset.empty_shards)
        assert list(HEADER) == dataset.schema.names


@cases
def test_a_rewrite_skips_and_counts_it(tmp_path: Path, extension: str, data: bytes) -> None:
    name = source(tmp_path / "in", extension, data, 9)
    recipe = headrace.Rewrite(source=tmp_path / "in", cache_dir=tmp_path / "cache")
    prepared = headrace.prepare(recipe, tmp_path / "out")

    assert ([name], 3, 120) == tuple(
        prepared.manifest.source[key] for key in ("empty_shards", "files", "rows")
    )


@pytest.mark.parametrize("case", range(len(EMPTY)), ids=NAMES)
@pytest.mark.parametrize("count", [1, 3])
def test_a_source_of_nothing_else_is_an_error(tmp_path: Path, case: int, count: int) -> None:
    extension, data = EMPTY[case]
    if data in (
        b"id,date,row\n",
        gzip.compress(b"id,date,row\n", mtime=0),
        parquet_bytes(TYPED),
        arrow_bytes(TYPED),
    ):
        pytest.skip("a table of no rows has columns")
    for number in range(count):
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / f"part-{number}{extension}").write_bytes(data)
    told = rf"part-0\{extension}: is empty, and no other file"

    with pytest.raises(InputError, match=told):
        split(tmp_path / "in", tmp_path / "out")
    with pytest.raises(InputError, match=told):
        headrace.open(tmp_path / "in", cache_dir=tmp_path / "cache")


def test_a_parquet_file_of_rows_without_columns_is_not_nothing(tmp_path: Path) -> None:
    full(tmp_path / "in" / "part-0.parquet", 0)
    table = pa.table({"x": [1, 2]})
    pq.write_table(table.select([]), tmp_path / "in" / "part-1.parquet")
    if pq.read_metadata(tmp_path / "in" / "part-1.parquet").num_rows == 0:
        pytest.skip("this pyarrow writes no rows without columns")

    with pytest.raises(InputError, match=r"part-1\.parquet: lacks id, date, row"):
        split(tmp_path / "in", tmp_path / "out")


def test_json_rows_without_keys_are_not_nothing(tmp_path: Path) -> None:
    full(tmp_path / "in" / "part-0.jsonl", 0)
    write_bytes(tmp_path / "in" / "part-1.jsonl", b"{}\n{}\n")

    with raised(InputError, remedy="write a key into a row"):
        split(tmp_path / "in", tmp_path / "out", bad_rows="drop", null_entity="drop")
    with raised(InputError, remedy="write a key into a row"):
        headrace.open(tmp_path / "in", cache_dir=tmp_path / "cache")


def test_many_empty_shards_are_counted_and_the_first_are_named(tmp_path: Path) -> None:
    full(tmp_path / "in" / "part-99.csv", 0)
    for number in range(12):
        (tmp_path / "in" / f"part-{number}.csv").touch()
    events: list[Any] = []
    prepared = split(tmp_path / "in", tmp_path / "out", on_event=events.append)
    (told,) = warnings_in(events)

    assert 12 == len(prepared.manifest.source["empty_shards"])
    assert told.startswith(
        "12 of 13 source files have no rows and are skipped: part-0.csv, part-1.csv, "
    )
    assert told.endswith(", … (12 in all)")


@pytest.mark.parametrize("extension", [".csv", ".jsonl", ".parquet", ".csv.gz"])
@pytest.mark.parametrize("partitions", [None, 2])
def test_histories_skip_and_count_it(
    tmp_path: Path, extension: str, partitions: int | None
) -> None:
    header = ("src_addr", "event_time", "rtt")
    for number in (1, 2):
        write_rows(
            tmp_path / "in" / f"a{number}{extension}",
            header,
            [("1.2.3.4", "2024-01-01T00:00:00", 1.5)],
        )
    (tmp_path / "in" / f"a0{extension}").touch()
    recipe = headrace.Histories(source=tmp_path / "in", format="arrow", partitions=partitions)
    events: list[Any] = []
    prepared = headrace.prepare(recipe, tmp_path / "out", on_event=events.append)

    assert ([f"a0{extension}"], 2) == (
        prepared.manifest.source["empty_shards"],
        prepared.manifest.source["rows"],
    )
    assert [f"1 of 3 source files has no rows and is skipped: a0{extension}"] == warnings_in(events)


def test_histories_of_nothing_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").touch()

    with raised(InputError, remedy="give the files that have rows"):
        headrace.prepare(
            headrace.Histories(source=tmp_path / "in", format="arrow"), tmp_path / "out"
        )


def series_frame(entity: str, days: int = 900) -> pl.DataFrame:
    dates = pl.date_range(
        pl.date(2000, 1, 1), pl.date(2000, 1, 1) + pl.duration(days=days - 1), eager=True
    )
    return pl.DataFrame(
        {"entity": [entity] * days, "date": dates, "flow": [float(day % 17) for day in range(days)]}
    )


@pytest.mark.parametrize("extension", [".csv", ".parquet", ".arrow", ".jsonl"])
@pytest.mark.parametrize("entity", ["file_name", "entity"])
def test_series_skip_and_count_it(tmp_path: Path, extension: str, entity: str) -> None:
    (tmp_path / "in").mkdir()
    writers = {
        ".csv": "write_csv",
        ".parquet": "write_parquet",
        ".arrow": "write_ipc",
        ".jsonl": "write_ndjson",
    }
    for name in ("b", "c"):
        getattr(series_frame(name), writers[extension])(tmp_path / "in" / f"{name}{extension}")
    (tmp_path / "in" / f"a{extension}").touch()
    recipe = headrace.Series(
        source=tmp_path / "in",
        entity=entity,
        time="date",
        target="flow",
        frequency="1d",
        min_train_years=0.5,
    )
    events: list[Any] = []
    prepared = headrace.prepare(recipe, tmp_path / "out", on_event=events.append)

    assert [f"a{extension}"] == prepared.manifest.source["empty_shards"]
    assert any(
        f"1 of 3 source files has no rows and is skipped: a{extension}" in text
        for text in warnings_in(events)
    )
    assert 2 == prepared.manifest.metadata["entities"]["passed"]


@pytest.mark.parametrize("extension", [".jsonl", ".jsonl.gz", ".json", ".parquet"])
def test_packing_skips_and_counts_it(tmp_path: Path, extension: str) -> None:
    from headrace.packing.chats.reader import read_rows

    (tmp_path / f"a{extension}").touch()

    assert [] == list(read_rows(tmp_path / f"a{extension}"))
