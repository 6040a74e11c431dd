"""A small Parquet file of a run that decodes to gigabytes is refused early, and others are read as they are."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from forks import limit_memory, run_child
from hypothesis import given
from hypothesis import strategies as st
from parquet_bombs import BOMBS, GROUP, coded

from headrace.digest import sha256_file
from headrace.errors import CorruptShard
from headrace.formats.source import read_block
from headrace.formats.types import Target
from headrace.gate.pages import PageError, pages
from headrace.gate.parquet import open_run_table, read_run_table
from raised import raised

MOST_BYTES = 300 << 20
MOST_CPU_S = 5


def read_bomb(path: str) -> None:
    """Read a file with less than 1 GiB more of address space."""
    limit_memory(1 << 30)
    with raised(CorruptShard, path=path):
        read_run_table(Path(path))


def read_nothing() -> None:
    """What a child needs by itself."""
    limit_memory(1 << 30)


@pytest.mark.slow
@pytest.mark.smoke("equal rows", "one long text", "zstd pages", "page: 2**31 values")
@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_in_little_memory(tmp_path: Path, name: str) -> None:
    path = tmp_path / "index.parquet"
    BOMBS[name](path)
    base = run_child("test_parquet:read_nothing", output=tmp_path / "base.txt")
    ended = run_child("test_parquet:read_bomb", str(path), output=tmp_path / "output.txt")

    assert 0 == ended.code, ended.output[-3000:]
    assert ended.peak_bytes - base.peak_bytes < MOST_BYTES
    assert ended.cpu_s - base.cpu_s < MOST_CPU_S


@given(
    texts=st.lists(st.none() | st.text(max_size=5), max_size=60),
    codes=st.booleans(),
    group_rows=st.integers(1, 70),
)
def test_what_is_no_bomb_is_read_as_arrow_reads_it(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str | None], codes: bool, group_rows: int
) -> None:
    path = tmp_path_factory.mktemp("run") / "rows.parquet"
    table = pa.table(
        {
            "text": pa.array(texts, pa.string()),
            "a.b": pa.array(range(len(texts)), pa.int32()),
            "list": pa.array([[1] * (len(text or "")) for text in texts], pa.list_(pa.int64())),
            "flag": pa.array([text is None for text in texts], pa.bool_()),
        }
    ).replace_schema_metadata({"a": "b"})
    pq.write_table(table, path, row_group_size=group_rows, use_dictionary=codes)

    actual = read_run_table(path, sha256=sha256_file(path))

    assert table.equals(actual)
    assert pq.read_schema(path).equals(actual.schema, check_metadata=True)
    some = pa.schema([table.schema.field("a.b"), table.schema.field("text")])
    assert table.select(["a.b", "text"]).equals(read_run_table(path, some))


def test_a_row_group_is_read_alone(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    table = pa.table({"n": range(10)})
    pq.write_table(table, path, row_group_size=4)

    with open_run_table(path) as file:
        assert (10, 3) == (file.num_rows, file.num_row_groups)
        assert table.slice(4, 4).equals(file.read(None, 1))


@pytest.mark.parametrize(
    "field",
    [
        pa.field("n", pa.int32()),
        pa.field("n", pa.int64(), nullable=False),
        pa.field("m", pa.int64()),
    ],
)
def test_other_columns_than_expected_are_refused(tmp_path: Path, field: pa.Field) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"n": pa.array([1, None], pa.int64())}), path)

    with raised(CorruptShard, path=path):
        read_run_table(path, pa.schema([field]))


def test_other_bytes_than_published_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"n": [1]}), path)

    with raised(CorruptShard, path=path):
        read_run_table(path, sha256="0" * 64)


def test_rows_that_the_caller_knows_of_are_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    numbers = {f"c{number}": np.zeros(GROUP, np.int64) for number in range(10)}
    pq.write_table(pa.table(numbers | {"text": coded("a", GROUP)}), path, store_schema=False)

    with raised(CorruptShard, path=path):
        read_run_table(path)
    assert GROUP == read_run_table(path, least=200 << 20).num_rows


def read_planned(path: str) -> None:
    """Read a row group of which fewer rows were planned."""
    limit_memory(1 << 30)
    target = Target.of(pa.schema({"text": pa.string(), "number": pa.int64()}))
    with raised(CorruptShard, path=path, row="row group 0"):
        read_block(
            Path(path), "parquet", block=0, offset=0, length=0, target=target, names=[], rows=10
        )


def test_a_row_group_of_other_rows_than_planned_is_not_decoded(tmp_path: Path) -> None:
    path = tmp_path / "part-0.parquet"
    table = pa.table({"text": coded("x" * 3000, GROUP), "number": np.zeros(GROUP, np.int64)})
    pq.write_table(table, path, store_schema=False)
    base = run_child("test_parquet:read_nothing", output=tmp_path / "base.txt")
    ended = run_child("test_parquet:read_planned", str(path), output=tmp_path / "output.txt")

    assert 0 == ended.code, ended.output[-3000:]
    assert ended.cpu_s - base.cpu_s < 1


def test_a_page_header_with_a_struct_in_place_of_a_number_is_refused(tmp_path: Path) -> None:
    struct = b"\x1c\x15\x00\x00"  # field 1: a struct with one integer
    path = tmp_path / "header"
    path.write_bytes(struct + b"\x15\x00\x15\x00\x00")
    with path.open("rb") as file, pytest.raises(PageError):
        list(pages(file.fileno(), 0, path.stat().st_size))
