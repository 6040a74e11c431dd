"""A packed shard: the specified columns and interface, the same row groups however bins arrive, whole or not there."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from packed_cases import as_lists, made_rows, table_lists
from pyarrow import fs as pafs

from headrace.bins.rows import PackedRows
from headrace.errors import StoreError
from headrace.packing.storage.packed_parquet import CODECS, ParquetShardWriter, columns, rows_of
from headrace.run.context import TaskFiles
from headrace.storage.local import strays
from raised import raised


def write(path, rows, how="bins", **options):
    writer = ParquetShardWriter(path, **options)
    if how == "bins":
        writer.write_bins(rows)
    else:
        for number in range(len(rows)):
            writer.write_bin(number, *rows.bin(number))
    return writer.finalize()


@pytest.mark.parametrize("compression", CODECS)
@pytest.mark.parametrize("how", ["bins", "bin by bin"])
def test_bins_come_back_as_they_were_written(tmp_path, compression, how):
    rows = made_rows()
    write(tmp_path / "s.parquet", rows, how, compression=compression, row_group_size=10)
    file = pq.ParquetFile(tmp_path / "s.parquet", page_checksum_verification=True)

    assert as_lists(rows) == table_lists(file.read())
    assert [10, 10, 5] == [
        file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)
    ]
    assert {("UNCOMPRESSED" if compression == "none" else compression.upper())} == {
        file.metadata.row_group(0).column(place).compression for place in range(3)
    }


def test_the_schema_is_the_specifications(tmp_path):
    write(tmp_path / "s.parquet", made_rows())

    assert pq.read_schema(tmp_path / "s.parquet") == ParquetShardWriter.SCHEMA
    assert ParquetShardWriter.SCHEMA == pa.schema(
        [
            ("input_ids", pa.list_(pa.int32())),
            ("loss_mask", pa.list_(pa.uint8())),
            ("seq_start_id", pa.list_(pa.int32())),
        ]
    )


def test_a_table_is_packed_rows_again_slices_and_chunks_too():
    rows = made_rows(9)
    table = columns(rows)

    assert as_lists(rows) == as_lists(rows_of(table))
    assert as_lists(rows[2:7]) == as_lists(rows_of(table.slice(2, 5)))
    assert as_lists(rows[2:5]) == as_lists(
        rows_of(pa.concat_tables([table.slice(2, 1), table.slice(3, 2)]))
    )
    assert as_lists(rows[:0]) == as_lists(rows_of(table.slice(0, 0)))
    assert np.shares_memory(rows_of(table).ids, rows.ids)


def test_columns_may_be_declared_to_hold_no_nulls(tmp_path):
    rows = made_rows(30)
    with ParquetShardWriter(
        tmp_path / "s.parquet", row_group_size=20, declared="required"
    ) as writer:
        writer.write_bins(rows)
    schema = pq.read_schema(tmp_path / "s.parquet")

    assert not any(field.nullable or field.type.value_field.nullable for field in schema)
    assert [pa.int32(), pa.uint8(), pa.int32()] == [field.type.value_type for field in schema]
    assert as_lists(rows) == table_lists(pq.read_table(tmp_path / "s.parquet"))
    with pytest.raises(ValueError, match="declared is 'maybe'; choose one of nullable, required"):
        ParquetShardWriter(tmp_path / "t.parquet", declared="maybe")
    assert ["s.parquet"] == os.listdir(tmp_path)


@pytest.mark.parametrize("size", [1, 3, 25, 1000])
def test_the_bytes_do_not_depend_on_how_bins_arrive(tmp_path, size):
    rows = made_rows(60)
    digests = [
        write(tmp_path / "a", rows, how, row_group_size=size)["sha256"]
        for how in ("bins", "bin by bin")
    ]
    for step in (1, 4, 7, 33):
        with ParquetShardWriter(tmp_path / "b", row_group_size=size) as writer:
            for at in range(0, 60, step):
                writer.write_bins(rows[at : at + step])
                writer.write_bins(rows[:0])
            digests.append(writer.finalize()["sha256"])

    assert len(set(digests)) == 1


def test_scratch_buffers_may_be_used_again(tmp_path):
    ids, mask, starts = np.zeros(4, np.int32), np.zeros(4, np.uint8), np.zeros(1, np.int32)
    with ParquetShardWriter(tmp_path / "s.parquet") as writer:
        for number in range(3):
            ids[:], mask[:] = number, number % 2
            writer.write_bin(number, ids, mask, starts)

    assert [([n] * 4, [n % 2] * 4, [0]) for n in range(3)] == table_lists(
        pq.read_table(tmp_path / "s.parquet")
    )


def test_the_result_says_what_was_written(tmp_path):
    rows = made_rows(7)
    result = write(tmp_path / "s.parquet", rows, row_group_size=4, compression="gzip")
    data = (tmp_path / "s.parquet").read_bytes()

    assert {
        "format": "parquet",
        "compression": "gzip",
        "num_bins": 7,
        "row_group_size": 4,
        "num_tokens": len(rows.ids),
        "num_sequences": len(rows.starts),
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
    } == result


def test_metadata_is_in_the_footer(tmp_path):
    write(tmp_path / "s.parquet", made_rows(), metadata={"pack_size": "4096", "seed": "0"})

    assert {b"pack_size": b"4096", b"seed": b"0"}.items() <= pq.read_metadata(
        tmp_path / "s.parquet"
    ).metadata.items()


def test_tokens_have_no_dictionary_and_pages_have_checksums(tmp_path):
    rows = made_rows(200)
    write(tmp_path / "s.parquet", rows, compression="none")
    path = tmp_path / "s.parquet"
    damaged = bytearray(path.read_bytes())
    at = bytes(damaged).index(rows.ids[:4].tobytes())
    damaged[at] ^= 1
    path.write_bytes(damaged)

    assert not pq.read_metadata(path).row_group(0).column(0).has_dictionary_page
    with pytest.raises(OSError, match="CRC"):
        pq.ParquetFile(path, page_checksum_verification=True).read()


@pytest.mark.parametrize("size", [0, -5])
def test_a_row_group_holds_at_least_one_bin(tmp_path, size):
    with pytest.raises(ValueError, match=f"row_group_size is {size}"):
        ParquetShardWriter(tmp_path / "s.parquet", row_group_size=size)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("word", "codec"), [(None, "none"), ("", "none"), ("ZSTD", "zstd")])
def test_words_for_a_codec(tmp_path, word, codec):
    assert codec == write(tmp_path / "s.parquet", made_rows(), compression=word)["compression"]


@pytest.mark.slow
def test_a_higher_level_makes_the_same_bins_smaller(tmp_path):
    rows = made_rows(300, longest=300)
    rows = PackedRows(
        rows.ids % 300, rows.mask, rows.starts, rows.token_offsets, rows.start_offsets
    )
    low, high = (
        write(tmp_path / f"{level}", rows, compression_level=level)["bytes"] for level in (1, 19)
    )

    assert high < low
    assert as_lists(rows) == table_lists(pq.read_table(tmp_path / "19"))


@pytest.mark.parametrize(
    ("compression", "level"), [("zstd", 0), ("zstd", 23), ("gzip", 10), ("lz4", 1), ("none", 1)]
)
def test_a_level_that_the_codec_has_not_is_refused(tmp_path, compression, level):
    with pytest.raises(
        ValueError, match=f"compression_level is {level}; levels of {compression}: "
    ):
        ParquetShardWriter(tmp_path / "s.parquet", compression=compression, compression_level=level)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_codec_is_refused(tmp_path):
    with pytest.raises(ValueError, match="compression is 'brotli9'; choose one of zstd, snappy"):
        ParquetShardWriter(tmp_path / "s.parquet", compression="brotli9")
    assert list(tmp_path.iterdir()) == []


def test_nothing_can_be_written_after_the_end(tmp_path):
    writer = ParquetShardWriter(tmp_path / "s.parquet")
    writer.finalize()

    with pytest.raises(RuntimeError, match="bin 3 comes after the file was closed"):
        writer.write_bin(3, *made_rows().bin(0))
    with pytest.raises(RuntimeError):
        writer.write_bins(made_rows())
    with pytest.raises(RuntimeError):
        writer.finalize()


def test_a_shard_without_bins_is_a_shard(tmp_path):
    write(tmp_path / "s.parquet", made_rows(0))

    assert 0 == pq.read_table(tmp_path / "s.parquet").num_rows
    assert pq.read_schema(tmp_path / "s.parquet") == ParquetShardWriter.SCHEMA


@pytest.mark.parametrize(
    ("ids", "mask", "starts", "says"),
    [
        ([1, 2], [1], [0], "as many mask values as ids"),
        ([[1]], [[1]], [0], "one axis each"),
        ([1, 3_000_000_000], [1, 1], [0], "3000000000 does not fit int32"),
        ([1, 2], [1, -1], [0], "loss_mask holds -1"),
        ([1, 2], [7, 0], [0], "loss_mask holds 7; give 1 where a label is trained"),
        ([0.5, 2], [1, 1], [0], "give integers"),
    ],
)
def test_what_does_not_fit_is_refused_and_names_the_bin(tmp_path, ids, mask, starts, says):
    with ParquetShardWriter(tmp_path / "s.parquet") as writer:
        writer.write_bin(0, np.array([5]), np.array([True]), np.array([0]))
        with pytest.raises(ValueError, match=rf"bin 1.*{says}"):
            writer.write_bin(1, np.array(ids), np.array(mask), np.array(starts))

    assert [([5], [1], [0])] == table_lists(pq.read_table(tmp_path / "s.parquet"))


def test_until_the_end_there_is_only_a_temporary_name_of_its_own(tmp_path):
    first, second = (ParquetShardWriter(tmp_path / "s.parquet", row_group_size=1) for _ in range(2))
    first.write_bins(made_rows(3))
    names = {path.name for path in tmp_path.iterdir()}
    second.write_bins(made_rows(4))
    second.finalize()
    first.finalize()

    assert len(names) == 2
    assert all(name.startswith(".tmp-") for name in names)
    assert [tmp_path / "s.parquet"] == list(tmp_path.iterdir())
    assert 3 == pq.read_table(tmp_path / "s.parquet").num_rows


@pytest.mark.parametrize("end", ["error", "abort"])
def test_an_error_leaves_nothing_and_the_old_file_stays(tmp_path, end):
    write(tmp_path / "s.parquet", made_rows(3))
    if end == "error":
        with (
            pytest.raises(KeyError),
            ParquetShardWriter(tmp_path / "s.parquet", row_group_size=1) as writer,
        ):
            writer.write_bins(made_rows(4))
            raise KeyError
    else:
        writer = ParquetShardWriter(tmp_path / "s.parquet", row_group_size=1)
        writer.write_bins(made_rows(4))
        writer.abort()
        writer.abort()

    assert [tmp_path / "s.parquet"] == list(tmp_path.iterdir())
    assert 3 == pq.read_table(tmp_path / "s.parquet").num_rows


LIMITED = """
import resource, signal, sys
sys.path[:0] = %r
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
from packed_cases import made_rows
from headrace.errors import StoreError
from headrace.packing.storage.packed_parquet import ParquetShardWriter
try:
    with ParquetShardWriter(sys.argv[1], row_group_size=10) as writer:
        writer.write_bins(made_rows(2000))
except StoreError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_full_disk_is_told_and_leaves_nothing(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", LIMITED % sys.path, str(tmp_path / "s.parquet")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip

    assert "larger than is allowed" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_any_arrow_file_system_takes_shards(tmp_path):
    (tmp_path / "bucket").mkdir()
    elsewhere = pafs.SubTreeFileSystem(str(tmp_path / "bucket"), pafs.LocalFileSystem())
    rows = made_rows()
    result = write("s.parquet", rows, filesystem=elsewhere, row_group_size=10)

    assert ["s.parquet"] == os.listdir(tmp_path / "bucket")
    assert as_lists(rows) == table_lists(pq.read_table("s.parquet", filesystem=elsewhere))
    assert (
        hashlib.sha256((tmp_path / "bucket" / "s.parquet").read_bytes()).hexdigest()
        == result["sha256"]
    )

    with pytest.raises(KeyError), ParquetShardWriter("t.parquet", filesystem=elsewhere) as writer:
        writer.write_bins(rows)
        raise KeyError
    assert ["s.parquet"] == os.listdir(tmp_path / "bucket")

    with raised(StoreError, path="nowhere/s.parquet", remedy="check the file system"):
        ParquetShardWriter("nowhere/s.parquet", filesystem=elsewhere)


def test_a_runs_task_gets_the_file_with_its_row_groups(tmp_path):
    files, rows = TaskFiles(tmp_path, durable=True), made_rows(25)
    temporary = files.temporary("data/s.parquet")
    with ParquetShardWriter("data/s.parquet", row_group_size=10, temporary=temporary) as file:
        file.write_bins(rows)
        written = file.finish()
        files.finished(temporary, "data/s.parquet", written)
    files.publish(lambda event: None)
    footer = pq.read_metadata(tmp_path / "data/s.parquet")

    assert [(0, 10), (10, 10), (20, 5)] == [
        (block.first_row, block.rows) for block in written.blocks
    ]
    assert (25, (tmp_path / "data/s.parquet").stat().st_size) == (written.rows, written.bytes)
    for group, block in enumerate(written.blocks):
        first, last = footer.row_group(group).column(0), footer.row_group(group).column(2)
        assert block.offset == first.data_page_offset
        assert block.offset + block.length >= last.data_page_offset + last.total_compressed_size


def test_more_tokens_than_offsets_can_say_are_refused(tmp_path):
    tokens = np.lib.stride_tricks.as_strided(np.zeros(1, np.int32), (1 << 31,), (0,))
    mask = np.lib.stride_tricks.as_strided(np.zeros(1, np.uint8), (1 << 31,), (0,))
    rows = PackedRows(tokens, mask, np.zeros(1, np.int32), np.array([0, 1 << 31]), np.array([0, 1]))
    with (
        pytest.raises(ValueError, match="a row group holds 2147483647"),
        ParquetShardWriter(tmp_path / "s", row_group_size=1) as file,
    ):
        file.write_bins(rows)


MEMORY = """
import sys
sys.path[:0] = %r
import numpy as np
from headrace.packing.storage.packed_parquet import ParquetShardWriter

def peak():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))

def write(bins, row_group_size):
    rng = np.random.default_rng(0)
    writer = ParquetShardWriter(sys.argv[1], row_group_size=row_group_size)
    for number in range(bins):
        ids, mask = rng.integers(0, 50_000, 2000, np.int32), rng.integers(0, 2, 2000, np.uint8)
        writer.write_bin(number, ids, mask, np.array([0, 500, 1000, 1500], np.int32))
    return writer.finalize()["bytes"]

write(10, 1)  # what libraries load and start on first use is not the writer's
peaks = [peak()]
for bins in (1000, 10_000):
    size = write(bins, 100)
    peaks.append(peak())
print(*peaks, size)
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="the peak of a process is read from Linux"
)
def test_memory_is_of_a_row_group_and_random_tokens_shrink(tmp_path):
    code = [sys.executable, "-c", MEMORY % sys.path, str(tmp_path / "s.parquet")]
    done = subprocess.run(code, capture_output=True, text=True, check=True)
    start, after_ten_groups, after_a_hundred, size = map(int, done.stdout.split())

    assert after_a_hundred - start < 50 << 20
    assert after_a_hundred - after_ten_groups < 12 << 20
    assert 10_000 * (2000 * 5 + 16) / size > 1.5


KILLED = """
import os, signal, sys
sys.path[:0] = %r
from packed_cases import made_rows
from headrace.packing.storage.packed_parquet import ParquetShardWriter
writer = ParquetShardWriter(sys.argv[1], row_group_size=10)
writer.write_bins(made_rows(25))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_killed_writer_leaves_the_old_file_and_a_stray_that_gc_knows(tmp_path):
    write(tmp_path / "s.parquet", made_rows(3))
    done = subprocess.run(
        [sys.executable, "-c", KILLED % sys.path, str(tmp_path / "s.parquet")], check=False
    )

    assert done.returncode == -9
    assert 3 == pq.read_table(tmp_path / "s.parquet").num_rows
    assert sorted(path for path in tmp_path.iterdir() if path.name != "s.parquet") == strays(
        tmp_path
    )
    assert 1 == len(strays(tmp_path))
