"""Snapshots as their own libraries write and read them. Run as a script it checks those of one library by itself."""

import gzip
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

import headrace
from headrace.errors import InputError

LISTINGS = Path(__file__).parents[2].parent / "shared" / "data" / "job2-airbnb-antwerp" / "listings.csv.gz"
Tables = list[tuple[str, Any]]  # addresses of versions, and the rows of each as the library reads them


def listings() -> pa.Table:
    names = ["id", "host_id", "last_scraped", "price", "room_type", "accommodates"]
    return pl.read_csv(gzip.decompress(LISTINGS.read_bytes()), infer_schema_length=None).select(names).to_arrow()


def delta(root: Path) -> Tables:
    import deltalake

    path = str(root / "table")
    deltalake.write_deltalake(path, listings(), partition_by=["room_type"])
    deltalake.DeltaTable(path).delete("accommodates > 4")
    versions = [(f"@{each}", deltalake.DeltaTable(path, version=each)) for each in (0, 1)] + [("", deltalake.DeltaTable(path))]  # fmt: skip
    return [(f"delta:{path}{word}", table.to_pyarrow_table()) for word, table in versions]


def iceberg(root: Path) -> Tables:
    from pyiceberg.catalog import sql

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
    import lance as library

    path = str(root / "table")
    library.write_dataset(listings(), path)
    library.dataset(path).delete("accommodates > 4")
    versions = [(f"@{each}", library.dataset(path, version=each)) for each in (1, 2)] + [("", library.dataset(path))]
    return [(f"lance:{path}{word}", table.to_table()) for word, table in versions]


def check_rows(found: Tables) -> None:
    """Each version has the rows that its library reads, deleted ones absent."""
    counts = [table.num_rows for _, table in found]
    assert counts[0] == listings().num_rows
    assert counts[1] == counts[2] < counts[0]
    for address, table in found:
        opened = headrace.open(address)
        expected = pl.DataFrame(table).select(opened.schema.names)
        assert expected.sort("id").equals(pl.DataFrame(opened["all"]).sort("id"))


def check_run_ids(found: Tables, out: Path) -> None:
    """The version is part of the run id."""
    first, second, newest = (
        headrace.prepare(headrace.Rewrite(source=address), out).manifest.run_id for address, _ in found
    )
    assert first != second == newest


def refusal(found: Tables) -> str:
    """What is said of a version that is not there."""
    try:
        headrace.open(f"{found[2][0]}@99")
    except InputError as error:
        return str(error)
    return ""


SYSTEMS: dict[str, Callable[[Path], Tables]] = {"delta": delta, "iceberg": iceberg, "lance": lance}

if __name__ == "__main__":
    folder = Path(sys.argv[2])
    os.environ["HOME"] = str(folder / "home")
    made = SYSTEMS[sys.argv[1]](folder)
    check_rows(made)
    check_run_ids(made, folder / "out")
    print(refusal(made))
