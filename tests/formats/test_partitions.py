"""Columns in names of directories are columns of every reader, as the libraries that write such directories read them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace.errors import InputError
from headrace.formats.listing import list_files
from headrace.formats.names import partition_of
from headrace.formats.partitions import partition_types
from headrace.formats.source import read_chunks, survey
from laws import examples
from raised import raised

KEYS = ["year", "month", "place"]
NAMES = ["who", "when", "amount", *KEYS]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def rows() -> pl.DataFrame:
    return pl.DataFrame(
        {
            "who": [f"customer {n % 90}" for n in range(600)],
            "when": [f"20{20 + n % 6}-03-01" for n in range(600)],
            "amount": [n * 0.25 for n in range(600)],
            "year": [2020 + n % 6 for n in range(600)],
            "month": [n % 4 - 1 for n in range(600)],
            "place": [["a b", "x/y", "50%", "ä=ö", None][n % 5] for n in range(600)],
        }
    )


def lake(root: Path, frame: pl.DataFrame, keys: list[str] = KEYS) -> Path:
    """Write a directory per value, by Arrow."""
    pyarrow.dataset.write_dataset(
        frame.to_arrow(),
        root,
        format="parquet",
        partitioning=keys,
        partitioning_flavor="hive",
        max_partitions=4096,
    )
    return root


def sorted_rows(frame: pl.DataFrame) -> list[tuple[Any, ...]]:
    return frame.select(NAMES).sort("amount").rows()


def whole(given: Any) -> pl.DataFrame:
    (split,) = headrace.open(given).splits
    return headrace.open(given)[split].to_polars().collect()


def polars_reads(root: Path) -> pl.DataFrame:
    return pl.scan_parquet(root, hive_partitioning=True).collect()


def duckdb_reads(root: Path) -> pl.DataFrame:
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
    table = duckdb.sql(
        f"select * from read_parquet('{root}/**/*.parquet', hive_partitioning=true)"
    ).to_arrow_table()
    read = pl.from_arrow(table)
    assert isinstance(read, pl.DataFrame)
    if "__HIVE_DEFAULT_PARTITION__" in repr(read.rows()):
        pytest.skip("this DuckDB reads the directory of missing values as a text")
    return read


@pytest.mark.parametrize("reads", [polars_reads, duckdb_reads])
def test_rows_and_types_are_those_that_other_libraries_read(
    tmp_path: Path, reads: Callable[[Path], pl.DataFrame]
) -> None:
    root = lake(tmp_path / "lake", rows())
    own, theirs = whole(root), reads(root)

    assert sorted_rows(rows()) == sorted_rows(own)
    assert sorted_rows(theirs) == sorted_rows(own)
    assert theirs.select(NAMES).schema == own.select(NAMES).schema
    assert NAMES == own.columns


def test_a_directory_and_patterns_are_one_source(tmp_path: Path) -> None:
    root = lake(tmp_path / "lake", rows())
    entries: list[list[str | Path]] = [
        [root],
        [f"{root}/"],
        [root / "*" / "*" / "*" / "*.parquet"],
        [f"{root}/**/*.parquet"],
    ]
    one = lake(tmp_path / "one", rows().filter(year=2020, month=-1, place="a b"))

    assert 1 == len({tuple(list_files(entry).names) for entry in entries})
    assert ["year=2020/month=-1/place=a%20b/part-0.parquet"] == list_files(
        [one / "*" / "*" / "*" / "*.parquet"]
    ).names
    assert ["month=-1/place=a%20b/part-0.parquet"] == list_files([one / "year=2020"]).names
    assert ["place=a%20b/part-0.parquet"] == list_files(
        [one / "year=2020" / "month=-1" / "*" / "*"]
    ).names


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["1", "2"], pa.int64()),
        (["10", "-7", "0"], pa.int64()),
        (["01", "-7"], pa.string()),
        (["007"], pa.string()),
        (["-0"], pa.string()),
        (["1", "x"], pa.string()),
        (["1.5"], pa.string()),
        (["2024-01-01"], pa.string()),
        (["__HIVE_DEFAULT_PARTITION__", "3"], pa.int64()),
        (["__HIVE_DEFAULT_PARTITION__"], pa.string()),
        (["9223372036854775807", "-9223372036854775808"], pa.int64()),
        (["9223372036854775808"], pa.string()),
        ([""], pa.string()),
        (["١"], pa.string()),
    ],
)
def test_a_column_is_of_whole_numbers_where_all_values_are(
    values: list[str], kind: pa.DataType
) -> None:
    assert {"key": kind} == partition_types([f"key={value}/a.parquet" for value in values])


def test_an_entity_in_names_keeps_its_zeros_unless_it_is_declared(tmp_path: Path) -> None:
    for entity in ("007", "7", "070"):
        (tmp_path / f"raw/e={entity}").mkdir(parents=True)
        days = "".join(f"2024-0{month}-01,{month}\n" for month in range(1, 7))
        (tmp_path / f"raw/e={entity}/a-{entity}.csv").write_text(f"day,x\n{days}")
    source = tmp_path / "raw"

    def entities(**options: Any) -> set[Any]:
        split = headrace.TemporalSplit(
            source=source, time="day", entity="e", split_date="2024-05-01", **options
        )
        headrace.prepare(split, tmp_path / "out")
        run = headrace.open(tmp_path / "out")
        return {row for name in run.splits for row in run[name].to_arrow(["e"])["e"].to_pylist()}

    assert {"007", "7", "070"} == entities()
    assert {7, 70} == entities(types={"e": "int64"})
    assert {"007", "7", "070"} == set(headrace.open(source)["all"].to_arrow()["e"].to_pylist())
    opened = headrace.open(source, types={"e": "int32"})["all"].to_arrow()
    assert pa.int32() == opened["e"].type
    with raised(InputError, column="e", value="007", remedy="declare another type"):
        headrace.open(source, types={"e": "bool"})


@settings(max_examples=examples(50))
@given(st.dictionaries(st.text(min_size=1), st.text(), min_size=1, max_size=4))
def test_names_come_back_from_their_percent_encoding(told: dict[str, str]) -> None:
    encodable = {key: value for key, value in told.items() if (key + value).isprintable()}
    name = "/".join(
        [
            *(f"{quote(key, safe='')}={quote(value, safe='')}" for key, value in encodable.items()),
            "a.csv",
        ]
    )
    hidden = any(quote(key, safe="")[0] in "._" for key in encodable)

    assert hidden or encodable == partition_of(name)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            ["year=1/a.csv", "year=2/month=1/b.csv"],
            "column 'month': year=1 has no such column in its name",
        ),
        (["year=1/a.csv", "b.csv"], "column 'year': . has no such column in its name"),
        (["year=1/year=2/a.csv"], "column 'year': two directories have it"),
        (["year=%ff/a.csv"], "is not percent-encoded UTF-8"),
    ],
)
def test_names_that_do_not_fit_together_are_refused(names: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        partition_types(names)


@pytest.mark.parametrize("below", ["", "train/"])
def test_files_beside_directories_of_columns_are_refused(tmp_path: Path, below: str) -> None:
    lake(tmp_path / "lake" / below, rows().drop("month", "place"), ["year"])
    rows().write_parquet(tmp_path / "lake" / below / "more.parquet")

    with raised(InputError, column="year", remedy="give files that have the same columns"):
        headrace.open(tmp_path / "lake")


def test_a_column_of_the_files_stays_theirs(tmp_path: Path) -> None:
    for year in (2024, 2025):
        (tmp_path / f"year={year}").mkdir()
        pq.write_table(pa.table({"year": [year + 100]}), tmp_path / f"year={year}" / "a.parquet")

    assert [2124, 2125] == whole(tmp_path)["year"].to_list()


def test_a_column_of_some_files_only_is_refused(tmp_path: Path) -> None:
    for year, table in ((2024, {"a": [1], "year": [2024]}), (2025, {"a": [1]})):
        (tmp_path / f"year={year}").mkdir()
        pq.write_table(pa.table(table), tmp_path / f"year={year}" / "a.parquet")

    with raised(InputError, column="year", remedy="leave the column out of the files"):
        headrace.open(tmp_path)


@pytest.mark.parametrize(
    "suffix", [".csv", ".csv.gz", ".tsv", ".jsonl", ".json", ".parquet", ".arrow"]
)
def test_files_of_every_format_have_the_columns(tmp_path: Path, suffix: str) -> None:
    frame = pl.DataFrame({"a": ["x", "y"], "b": ["v", "w"]})
    for year in ("2024", "__HIVE_DEFAULT_PARTITION__"):
        path = tmp_path / f"year={year}" / f"a{suffix}"
        path.parent.mkdir()
        writers: dict[str, Callable[[], Any]] = {
            ".csv": lambda path=path: frame.write_csv(path),
            ".csv.gz": lambda path=path: path.write_bytes(
                __import__("gzip").compress(frame.write_csv().encode())
            ),
            ".tsv": lambda path=path: frame.write_csv(path, separator="\t"),
            ".jsonl": lambda path=path: frame.write_ndjson(path),
            ".json": lambda path=path: frame.write_json(path),
            ".parquet": lambda path=path: frame.write_parquet(path),
            ".arrow": lambda path=path: frame.write_ipc(path, compat_level=pl.CompatLevel.oldest()),
        }
        writers[suffix]()
    expected = [("x", "v", 2024), ("y", "w", 2024), ("x", "v", None), ("y", "w", None)]
    types = partition_types(list_files([tmp_path]).names)
    chunked = [
        row
        for name in list_files([tmp_path]).names
        for chunk in read_chunks(survey(tmp_path / name, name, partitions=types))
        for row in chunk.table().to_pylist()
    ]
    split = headrace.open(tmp_path)["all"]

    assert expected == whole(tmp_path).rows()
    assert expected == [tuple(row.values()) for row in chunked]
    assert [{"year": 2024}] * 2 + [{"year": None}] * 2 == split.to_arrow(["year"]).to_pylist()
    assert [{"year": 2024, "a": "x"}] == split.to_arrow(["year", "a"]).to_pylist()[:1]


def test_splits_of_partitioned_directories(tmp_path: Path) -> None:
    for split in ("train", "test"):
        lake(tmp_path / split, rows(), ["year"])
    dataset = headrace.open(tmp_path)

    assert {"train": 600, "test": 600} == dict(dataset.split_rows)
    assert sorted_rows(rows()) == sorted_rows(dataset["train"].to_polars().collect())


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl"])
def test_a_split_by_a_column_of_the_names_has_each_row_once(tmp_path: Path, suffix: str) -> None:
    for (year, when), part in rows().drop("place").group_by("year", "when", maintain_order=True):
        path = tmp_path / "lake" / f"year={year}" / f"when={when}" / f"a.{suffix}"
        path.parent.mkdir(parents=True)
        own = part.drop("year", "when")
        writers: dict[str, Callable[[Path], Any]] = {
            "parquet": own.write_parquet,
            "csv": own.write_csv,
            "jsonl": own.write_ndjson,
        }
        writers[suffix](path)
    split = headrace.TemporalSplit(
        source=tmp_path / "lake", time="when", entity="who", split_date="2024-01-01"
    )
    headrace.prepare(split, tmp_path / "out")
    found = headrace.open(tmp_path / "out")
    read = [found[each].to_polars().collect() for each in found.splits if found.split_rows[each]]
    pairs = pl.concat(read).select(pl.col("amount", "year").cast(pl.Float64)).sort("amount")

    assert rows().select("amount", pl.col("year").cast(pl.Float64)).rows() == pairs.rows()
    assert {"2024", "2025"} == set(found["test"].to_polars().collect()["year"].cast(pl.String))
    assert headrace.verify(tmp_path / "out").problems == []


def test_a_stream_has_the_columns(tmp_path: Path) -> None:
    root = lake(tmp_path / "lake", rows(), ["year"])
    batches = list(
        headrace.open(root).stream(
            "all", batch_size=64, columns=["amount", "year"], batch_format="numpy"
        )
    )
    pairs = {
        (amount, year)
        for batch in batches
        for amount, year in zip(batch["amount"], batch["year"], strict=True)
    }

    assert set(rows().select("amount", "year").rows()) == pairs


def test_series_take_entities_from_names_of_directories(tmp_path: Path) -> None:
    for station in ("01", "02"):
        path = tmp_path / "lake" / f"station={station}" / "a.parquet"
        path.parent.mkdir(parents=True)
        days = pl.date_range(pl.date(2020, 1, 1), pl.date(2022, 12, 31), eager=True).cast(pl.String)
        pl.DataFrame({"day": days, "flow": range(len(days))}).write_parquet(path)
    found = headrace.prepare(
        headrace.Series(
            source=tmp_path / "lake", time="day", entity="station", target="flow", min_train_years=1
        ),
        tmp_path / "out",
    )

    assert {"01", "02"} == set(pl.read_parquet(found.run / "entities.parquet")["entity"])


def test_a_column_of_text_files_keeps_its_type_where_names_have_it_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for year in (2023, 2024):
        (tmp_path / f"lake/year={year}").mkdir(parents=True)
        (tmp_path / f"lake/year={year}/part-{year}.csv").write_text(
            f"day,n,year\n{year}-01-01,1,{year - 2000}\n"
        )
    split = headrace.TemporalSplit(source=tmp_path / "lake", time="day", split_date="2024-01-01")
    warned: list[str] = []
    headrace.prepare(
        split, tmp_path / "out", on_event=lambda event: warned.append(str(vars(event)))
    )
    opened = headrace.open(tmp_path / "lake", cache_dir=tmp_path / "cache")["all"]

    assert pa.int64() == opened.schema.field("year").type
    assert [23, 24] == opened.to_arrow()["year"].to_pylist()
    assert pa.int64() == headrace.open(tmp_path / "out")["train"].schema.field("year").type
    assert any("have year" in message for message in caplog.messages)
    assert any("have year" in message for message in warned)
