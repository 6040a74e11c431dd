"""Snapshots of Delta, Iceberg and Lance are the rows that their own libraries read, deleted ones absent."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import headrace
from headrace.errors import InputError

LISTINGS = Path(__file__).parents[2].parent / "shared" / "data" / "job2-airbnb-antwerp" / "listings.csv.gz"
Tables = list[tuple[str, Any]]  # addresses of versions, and the rows of each as the library reads them


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def listings() -> pa.Table:
    if not LISTINGS.is_file():
        pytest.skip(f"{LISTINGS} is not there: the data set is not in the repository")
    names = ["id", "host_id", "last_scraped", "price", "room_type", "accommodates"]
    return pl.read_csv(gzip.decompress(LISTINGS.read_bytes()), infer_schema_length=None).select(names).to_arrow()


def delta(root: Path) -> Tables:
    deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed")
    path = str(root / "table")
    deltalake.write_deltalake(path, listings(), partition_by=["room_type"])
    deltalake.DeltaTable(path).delete("accommodates > 4")
    versions = [(f"@{each}", deltalake.DeltaTable(path, version=each)) for each in (0, 1)] + [("", deltalake.DeltaTable(path))]  # fmt: skip
    return [(f"delta:{path}{word}", table.to_pyarrow_table()) for word, table in versions]


def iceberg(root: Path) -> Tables:
    sql = pytest.importorskip("pyiceberg.catalog.sql", reason="pyiceberg with sqlite is not installed")
    catalog = sql.SqlCatalog("test", uri=f"sqlite:///{root}/catalog.db", warehouse=f"file://{root}/lake")
    catalog.create_namespace("home")
    rows = listings()
    table = catalog.create_table("home.table", schema=rows.schema)
    table.append(rows)
    table.delete("accommodates > 4")
    path = f"iceberg:{root}/lake/home/table"
    ids = [each.snapshot_id for each in table.metadata.snapshots]
    return [(f"{path}@{each}", table.scan(snapshot_id=each).to_arrow()) for each in ids] + [(path, table.scan().to_arrow())]  # fmt: skip


def lance(root: Path) -> Tables:
    library = pytest.importorskip("lance", reason="pylance is not installed")
    path = str(root / "table")
    library.write_dataset(listings(), path)
    library.dataset(path).delete("accommodates > 4")
    versions = [(f"@{each}", library.dataset(path, version=each)) for each in (1, 2)] + [("", library.dataset(path))]
    return [(f"lance:{path}{word}", table.to_table()) for word, table in versions]


SYSTEMS = [delta, iceberg, lance]


@pytest.mark.parametrize("made", SYSTEMS)
def test_a_version_has_the_rows_that_its_library_reads(made: Callable[[Path], Tables], tmp_path: Path) -> None:
    found = made(tmp_path)
    counts = [table.num_rows for _, table in found]

    assert counts[0] == listings().num_rows
    assert counts[1] == counts[2] < counts[0]
    for address, table in found:
        opened = headrace.open(address)
        expected = pl.DataFrame(table).select(opened.schema.names)
        assert expected.sort("id").equals(pl.DataFrame(opened["all"]).sort("id"))


@pytest.mark.parametrize("made", SYSTEMS)
def test_the_version_is_part_of_the_run_id(made: Callable[[Path], Tables], tmp_path: Path) -> None:
    addresses = [address for address, _ in made(tmp_path)]

    def run(address: str) -> str:
        return headrace.prepare(headrace.Rewrite(source=address), tmp_path / "out").manifest.run_id

    first, second, newest = map(run, addresses)

    assert first != second == newest


@pytest.mark.parametrize("made", SYSTEMS)
def test_a_version_that_is_not_there_is_refused(made: Callable[[Path], Tables], tmp_path: Path) -> None:
    address = made(tmp_path)[2][0]

    with pytest.raises(InputError, match=r"/table(@99)?: (has no snapshot 99|\w+ cannot read it)"):
        headrace.open(f"{address}@99")


def test_a_table_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere"):
        headrace.open(f"delta:{tmp_path}/nowhere@1")


def test_deletion_vectors_are_refused(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed")
    path = str(tmp_path / "table")
    deltalake.write_deltalake(path, listings(), configuration={"delta.enableDeletionVectors": "true"})

    with pytest.raises(InputError, match="deletionVectors"):
        headrace.open(f"delta:{path}")
