"""Kept footers give what fresh ones give, to every thread, whatever happens to the file."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.errors import CorruptShard, InputError
from headrace.formats import parquet
from headrace.formats.registry import FileType
from headrace.formats.source import read_block
from headrace.formats.types import Target

PARQUET = FileType.named("parquet")


@pytest.fixture(autouse=True)
def nothing_open() -> None:
    parquet.forget()


def write(path: Path, first: int = 0, rows: int = 400) -> pa.Table:
    table = pa.table(
        {"a": list(range(first, first + rows)), "b": [str(n) for n in range(first, first + rows)]}
    )
    pq.write_table(table, path, row_group_size=40, write_page_checksum=True, compression="none")
    return table


def read(path: Path, block: int, columns: list[str], schema: pa.Schema, **options) -> pa.Table:
    target = Target.of(pa.schema([schema.field(name) for name in columns]))
    return read_block(
        path,
        "parquet",
        block=block,
        offset=0,
        length=0,
        target=target,
        names=schema.names,
        **options,
    )


@pytest.mark.parametrize("columns", [["a", "b"], ["b", "a"], ["b"]])
def test_columns_come_in_the_order_asked_for(columns: list[str], tmp_path: Path) -> None:
    table = write(tmp_path / "p.parquet")

    for block in (3, 0, 9, 3):
        assert (
            table.slice(block * 40, 40)
            .select(columns)
            .equals(read(tmp_path / "p.parquet", block, columns, table.schema))
        )


def test_threads_read_one_file_at_the_same_time(tmp_path: Path) -> None:
    table = write(tmp_path / "p.parquet")

    def look(number: int) -> bool:
        block = number * 7 % 10
        part = read(tmp_path / "p.parquet", block, ["a", "b"], table.schema)
        return part.equals(table.slice(block * 40, 40))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(look, range(400)))


@pytest.mark.parametrize("how", ["replaced", "written over"])
def test_a_file_that_changed_is_opened_again(how: str, tmp_path: Path) -> None:
    path = tmp_path / "p.parquet"
    table = write(path)
    read(path, 0, ["a"], table.schema)
    if how == "replaced":
        other = write(tmp_path / "other", 5000)
        os.replace(tmp_path / "other", path)
    else:
        before = path.stat()
        other = write(path, 5000, 300)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))

    assert other.slice(0, 40).select(["a"]).equals(read(path, 0, ["a"], table.schema))


def test_more_files_than_footers_are_kept_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "_MOST_FOOTER_BYTES", 20_000)
    tables = [write(tmp_path / f"{n}.parquet", n * 1000) for n in range(9)]
    for turn in range(3):
        for n, table in enumerate(tables):
            part = read(tmp_path / f"{n}.parquet", turn, ["a"], table.schema)
            assert table.slice(turn * 40, 40).select(["a"]).equals(part)

    assert 0 < len(parquet._open_files.footers) < 9
    assert parquet._open_files.bytes <= 20_000


def test_a_file_that_failed_is_looked_at_anew(tmp_path: Path) -> None:
    path = tmp_path / "p.parquet"
    table = write(path)
    clean = path.read_bytes()
    data = bytearray(clean)
    data[data.find((50).to_bytes(8, "little") + (51).to_bytes(8, "little"))] ^= 1
    path.write_bytes(data)

    with pytest.raises(CorruptShard, match=r"row group 1: .*CRC"):
        read(path, 1, ["a"], table.schema)
    assert table.slice(0, 40).select(["a"]).equals(read(path, 0, ["a"], table.schema))
    assert (
        table.slice(40, 40)["a"].to_pylist()
        != read(path, 1, ["a"], table.schema, pages="trust")["a"].to_pylist()
    )
    path.write_bytes(clean)
    os.utime(path, ns=(1, 1))
    assert table.slice(40, 40).select(["a"]).equals(read(path, 1, ["a"], table.schema))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_reads_its_own_footers(tmp_path: Path) -> None:
    table = write(tmp_path / "p.parquet")
    read(tmp_path / "p.parquet", 0, ["a"], table.schema)
    assert parquet._open_files.footers
    child = os.fork()
    if not child:
        empty = not parquet._open_files.footers
        part = read(tmp_path / "p.parquet", 1, ["a"], table.schema)
        os._exit(0 if empty and part.equals(table.slice(40, 40).select(["a"])) else 1)

    assert 0 == os.waitpid(child, 0)[1]


def test_what_is_no_parquet_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "p.parquet").write_bytes(b"PAR1 and then nothing of the kind")

    with (
        pytest.raises(InputError, match="cannot be read"),
        parquet.open_file(tmp_path / "p.parquet", PARQUET),
    ):
        pass
