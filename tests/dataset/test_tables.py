"""A table of any library is the source that its rows are, and splits come back as they were."""

import gzip
import importlib
import io
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace.dataset.tables import is_table, keep
from headrace.errors import HeadraceError, InputError, SettingsError
from laws import examples
from raised import raised

DATA = Path(__file__).parents[2].parent / "shared" / "data"
LISTINGS = DATA / "job2-airbnb-antwerp" / "listings.csv.gz"
GSM8K = DATA / "job5-gsm8k" / "test.jsonl.gz"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def library(name: str) -> Any:
    return pytest.importorskip(name, reason=f"{name} is not installed")


def frame() -> pl.DataFrame:
    if not LISTINGS.is_file():
        pytest.skip(f"{LISTINGS} is not there: the data set is not in the repository")
    names = [
        "id",
        "host_id",
        "first_review",
        "price",
        "latitude",
        "review_scores_rating",
        "description",
    ]
    read = pl.read_csv(gzip.decompress(LISTINGS.read_bytes()), infer_schema_length=None)
    return read.select(names).with_columns(first_review=pl.col("first_review").cast(pl.String))


OF_LIBRARY: dict[str, Callable[[pa.Table], Any]] = {
    "pyarrow table": lambda table: table,
    "pyarrow chunks": lambda table: pa.concat_tables(
        [table.slice(0, 7), table.slice(7, 0), table.slice(7)]
    ),
    "pyarrow reader": lambda table: table.to_reader(max_chunksize=100),
    "pyarrow dataset": pyarrow.dataset.dataset,
    "polars": pl.DataFrame,
    "polars lazy": lambda table: pl.DataFrame(table).lazy(),
    "polars series of structs": lambda table: pl.DataFrame(table).to_arrow(
        compat_level=pl.CompatLevel.newest()
    ),
    "categories": lambda table: table.set_column(3, "price", table["price"].dictionary_encode()),
    "pandas": lambda table: (library("pandas"), table.to_pandas())[1],
    "duckdb": lambda table: library("duckdb").from_arrow(table),
    "datasets": lambda table: library("datasets").Dataset(table),
    "datasets iterable": lambda table: library("datasets").Dataset(table).to_iterable_dataset(),
}


@pytest.mark.parametrize("made", OF_LIBRARY.values(), ids=OF_LIBRARY.keys())
def test_the_same_content_of_any_library_is_the_same_source(
    made: Callable[[pa.Table], Any],
) -> None:
    table = frame().to_arrow()
    given = made(table)

    assert is_table(given)
    assert keep(given) == keep(table)


@pytest.mark.slow
@pytest.mark.parametrize("made", OF_LIBRARY.values(), ids=OF_LIBRARY.keys())
def test_rows_are_those_of_the_library(made: Callable[[pa.Table], Any]) -> None:
    table = frame().to_arrow()
    opened = headrace.open(made(table))

    assert {"all": table.num_rows} == opened.split_rows
    assert pl.DataFrame(table).equals(pl.DataFrame(opened["all"]))


@pytest.mark.slow
def test_a_split_of_a_table_is_that_of_its_file_and_is_reused(tmp_path: Path) -> None:
    rows = frame().filter(pl.col("first_review").is_not_null())
    (tmp_path / "raw").mkdir()
    rows.write_parquet(tmp_path / "raw" / "part-00000.parquet")
    columns: dict[str, Any] = {
        "time": "first_review",
        "entity": "host_id",
        "split_date": "2022-01-01",
    }
    headrace.prepare(headrace.TemporalSplit(source=tmp_path / "raw", **columns), tmp_path / "a")
    of_table = headrace.prepare(headrace.TemporalSplit(source=rows, **columns), tmp_path / "b")
    again = headrace.prepare(
        headrace.TemporalSplit(source=[rows.to_arrow().to_reader(10)], **columns), tmp_path / "b"
    )
    other = headrace.prepare(
        headrace.TemporalSplit(source=rows.reverse(), **columns), tmp_path / "b"
    )

    assert "reused" == again.how
    assert of_table.run != other.run
    for split in ("train", "val", "test"):
        expected = headrace.open(tmp_path / "a")[split]
        assert len(expected)
        assert expected.to_arrow().equals(headrace.open(of_table.run)[split].to_arrow())


def test_splits_of_hugging_face_are_splits_and_come_back() -> None:
    datasets = library("datasets")
    if not GSM8K.is_file():
        pytest.skip(f"{GSM8K} is not there: the data set is not in the repository")
    whole = pl.read_ndjson(io.BytesIO(gzip.decompress(GSM8K.read_bytes()))).to_arrow()
    parts = datasets.Dataset(whole).train_test_split(
        0.25, seed=1
    )  # a view: rows are chosen by number
    opened = headrace.open(parts)

    assert {name: len(part) for name, part in parts.items()} == opened.split_rows
    for name, part in parts.items():
        assert part.to_list() == opened[name].to_datasets().to_list()
        assert part.to_pandas().equals(opened[name].to_pandas())


def test_duckdb_gets_the_rows() -> None:
    library("duckdb")
    opened = headrace.open(frame())["all"]
    hosts = opened.to_duckdb().aggregate("count(*), count(distinct host_id)").fetchall()

    assert [(len(opened), frame()["host_id"].n_unique())] == hosts


@pytest.mark.slow
def test_a_lazy_scan_answers_as_the_rows_do(tmp_path: Path) -> None:
    rows = frame().sort("id")
    for number, part in enumerate(rows.iter_slices(700)):
        part.write_parquet(tmp_path / f"part-{number:05d}.parquet", row_group_size=100)
    lazy = headrace.open(tmp_path)["all"].to_polars()
    asked: list[Callable[[pl.LazyFrame], pl.LazyFrame]] = [
        lambda frame: frame,
        lambda frame: frame.select("price", "id"),
        lambda frame: frame.head(750).select("id"),
        lambda frame: frame.filter(pl.col("latitude") > 51.2).select("host_id").head(5),
        lambda frame: frame.group_by("host_id").len().sort("host_id"),
        lambda frame: frame.select(pl.len()),
    ]

    assert isinstance(lazy, pl.LazyFrame)
    for each in asked:
        assert each(rows.lazy()).collect().equals(each(lazy).collect())


VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int16(): st.integers(-9, 9),
    pa.bool_(): st.booleans(),
    pa.float64(): st.sampled_from([0.0, -0.0, 1.5]),
    pa.string(): st.sampled_from(["", "a", "b", "ab", "é"]),
    pa.large_string(): st.sampled_from(["", "a"]),
    pa.binary(): st.sampled_from([b"", b"\0", b"\0\0"]),
    pa.date32(): st.dates(),
    pa.timestamp("us"): st.datetimes(),
    pa.decimal128(9, 2): st.decimals(-9, 9, places=2),
    pa.list_(pa.string()): st.lists(st.sampled_from([None, "", "a"]), max_size=3),
    pa.list_(pa.int8(), 2): st.lists(st.integers(0, 3), min_size=2, max_size=2),
    pa.map_(pa.string(), pa.int8()): st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(0, 2)), max_size=2
    ),
    pa.struct([("x", pa.int8()), ("y", pa.list_(pa.string()))]): st.fixed_dictionaries(
        {
            "x": st.integers(0, 2) | st.none(),
            "y": st.lists(st.sampled_from(["", "a"]), max_size=2) | st.none(),
        }
    ),
}


@st.composite
def tables(draw: st.DrawFn) -> tuple[pa.Table, pa.Table, list[int]]:
    """Two small tables of one schema, often equal, and places to cut."""
    kinds = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=3))
    made = []
    for _ in range(2):
        rows = draw(st.lists(st.tuples(*(VALUES[kind] | st.none() for kind in kinds)), max_size=5))
        columns = [pa.array([row[place] for row in rows], kind) for place, kind in enumerate(kinds)]
        made.append(pa.table(columns, names=[f"c{place}" for place in range(len(kinds))]))
    return (
        made[0],
        draw(st.sampled_from([made[0], made[1]])),
        draw(st.lists(st.integers(0, 5), max_size=3)),
    )


@pytest.mark.slow
@given(tables())
@settings(max_examples=examples(150))
def test_the_digest_tells_contents_apart_and_no_cuts(
    tmp_path_factory: pytest.TempPathFactory, pair: tuple[pa.Table, pa.Table, list[int]]
) -> None:
    one, other, cuts = pair
    cache = tmp_path_factory.mktemp("cache")
    bounds = [0, *sorted(cuts), other.num_rows]
    parts = [other.slice(begin, max(0, end - begin)) for begin, end in itertools.pairwise(bounds)]
    texts = [
        [list(map(repr, column.to_pylist())) for column in table.columns] for table in (one, other)
    ]

    found = keep(one, cache), keep(pa.concat_tables(parts), cache)
    assert (found[0] == found[1]) == (texts[0] == texts[1])
    assert pq.read_table(found[1]).to_pylist() == other.to_pylist()


@pytest.mark.slow
def test_a_table_larger_than_a_shard_is_several_whose_order_is_kept(tmp_path: Path) -> None:
    numbers = np.arange(2_500_000)

    def batches() -> Iterator[pa.RecordBatch]:
        for part in np.array_split(numbers, 77):
            yield pa.record_batch({"n": part})

    reader = pa.RecordBatchReader.from_batches(pa.schema([("n", pa.int64())]), batches())
    kept = keep(reader)

    assert 3 == len(list(kept.iterdir()))
    assert kept == keep(pa.table({"n": numbers}))
    assert (numbers == headrace.open(kept)["all"].to_arrow()["n"].to_numpy()).all()


def test_what_is_no_source_is_refused_by_name() -> None:
    with raised(InputError, remedy="or give one table"):
        headrace.open({"train": pa.table({"x": [1]}), "unsupervised": pa.table({"x": [1]})})
    with raised(InputError, remedy="give a table with some"):
        headrace.open(pa.table({}))
    with raised(InputError, remedy="rename one of them"):
        headrace.open(pa.table([[1], [2]], names=["x", "x"]))
    with raised(SettingsError, setting="columns", value=["y"], remedy="choose among x"):
        headrace.open(pa.table({"x": [1]}))["all"].to_arrow(["y"])
    with pytest.raises(InputError, match="several splits"):
        headrace.prepare(
            headrace.TemporalSplit(
                source={
                    "train": pa.table({"x": [1], "y": [1]}),
                    "test": pa.table({"x": [1], "y": [1]}),
                },
                time="x",
                entity="y",
                split_date="2025-01-01",
            ),
            "out",
        )


def test_no_library_is_imported_to_tell_paths_from_tables() -> None:
    assert not any(
        map(is_table, ["raw", Path("raw"), ["a", "b"], {}, {"a": "b"}, 3, None, importlib])
    )


def test_other_recipes_take_tables_wherever_they_take_paths(tmp_path: Path) -> None:
    rows = pl.DataFrame({"who": ["a", "b"] * 40, "n": range(80)})
    headrace.rewrite(rows.lazy(), tmp_path / "out")
    blend = {
        "train": [{"name": "d", "path": rows}],
        "valid": [{"name": "d", "path": [rows.head(3)]}],
    }
    packed = headrace.PackedSequences(blend=blend, tokenizer=tmp_path)

    assert rows.equals(pl.DataFrame(headrace.open(tmp_path / "out")["all"]))
    assert [keep(rows), keep(rows.head(3))] == packed.source_places()


MIXED = {"text": ["a", 1.5]}
NO_TABLES: dict[str, tuple[Callable[[], object], type[HeadraceError], str]] = {
    "rows": (
        lambda: [{"text": "a"}, {"text": "b"}],
        SettingsError,
        "make a table of the rows",
    ),
    "array": (
        lambda: np.zeros((2, 2)),
        SettingsError,
        "make a table of the rows",
    ),
    "series": (lambda: pl.Series([1, 2]), InputError, "give a table with columns"),
    "mixed": (
        lambda: library("pandas").DataFrame(MIXED),
        InputError,
        "give each column one type",
    ),
}


@pytest.mark.parametrize("name", NO_TABLES)
def test_what_is_no_table_is_refused_with_what_to_give(name: str):
    make, kind, remedy = NO_TABLES[name]

    with raised(kind, remedy=remedy):
        headrace.open(make())


def test_a_list_of_rows_as_a_source_is_refused_once():
    rows = [{"text": "a"}, {"text": "b"}]

    with raised(
        SettingsError, setting="source", value=rows[0], remedy="give a path, or make it a table"
    ):
        headrace.TemporalSplit(source=rows, time="when", split_date="2025-01-01")
