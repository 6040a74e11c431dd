"""What `verify` finds: each law broken on purpose, in files whose digests have been put right again."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from array_record.python import array_record_module
from pings import blobs_of, dealt, histories, random_pings, write_pings

import headrace
from headrace.histories.codec.rows import HEADER, HEADER_BYTES
from headrace.histories.shard_file import read_blobs
from headrace.run.prepare import Prepared
from raised import raised
from resealed import change_settings, reseal, reseal_files

PINGS = random_pings(11, 600, entities=12)
Rows = list[bytearray]


@pytest.fixture
def prepared(tmp_path: Path) -> Prepared:
    source = write_pings(tmp_path / "in", dealt(PINGS, 2))
    return histories(source, tmp_path / "out", partitions=1, max_row_bytes=900)


def rewrite(prepared: Prepared, change: Callable[[Rows], Rows]) -> None:
    """Change the rows of the train shard, and make every digest agree with it."""
    (path,) = (prepared.run / "histories" / "train").iterdir()
    rows = change([bytearray(blob) for blob in blobs_of(path)])
    writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1,uncompressed")
    for row in rows:
        writer.write(bytes(row))
    writer.close()
    reseal_files(prepared.run)


def header(row: bytearray) -> np.ndarray:
    return np.frombuffer(row, HEADER, 1)


def code_of(row: bytearray, place: int) -> np.ndarray:
    return np.frombuffer(row, "<u2", 1, HEADER_BYTES + 4 * int(header(row)["n"][0]) + 2 * place)


def other_code(rows: Rows) -> Rows:
    code = code_of(rows[3], 1)
    code[:] = 1500 if code[0] != 1500 else 1501
    return rows


def strange_code(rows: Rows) -> Rows:
    code_of(rows[2], 0)[:] = 31 << 11 | 5
    return rows


def late_time(rows: Rows) -> Rows:
    times = np.frombuffer(rows[1], "<u4", int(header(rows[1])["n"][0]), HEADER_BYTES)
    times[1] = times[-1] + 5
    return rows


def shifted(rows: Rows) -> Rows:
    header(rows[0])["first_time"] += 1
    return rows


def swapped_peers(rows: Rows) -> Rows:
    head = header(rows[0])
    peers = int(head["peers4"][0]) * 4 + int(head["peers6"][0]) * 16
    rows[0][-peers - 4 :] = rows[0][-peers - 4 :][::-1]
    return rows


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (other_code, "exactly once|the source had"),
        (strange_code, r"row 3: measurement 1 has code 63493"),
        (late_time, r"row 2: has times that do not ascend"),
        (shifted, r"row 1: holds .* says"),
        (swapped_peers, "the source had|restore it"),
        (lambda rows: rows[:-1], r"rows, rows\.parquet has"),
        (lambda rows: [*rows, rows[-1]], r"is not in rows\.parquet"),
        (lambda rows: [rows[1], rows[0], *rows[2:]], r"row 1: holds"),
        (lambda rows: [rows[0][:-8], *rows[1:]], "row 1: has .* bytes, its header says"),
    ],
    ids=[
        "code",
        "strange code",
        "time",
        "shifted",
        "peers",
        "lost row",
        "doubled row",
        "swapped rows",
        "cut row",
    ],
)
def test_verify_finds_what_is_wrong_and_where(
    prepared: Prepared, change: Callable[[Rows], Rows], says: str
) -> None:
    assert headrace.verify(prepared.out).problems == []

    rewrite(prepared, change)
    (problem,) = headrace.verify(prepared.out).problems

    assert re.search(says, problem), problem


def test_verify_finds_a_changed_byte_in_any_file(prepared: Prepared) -> None:
    for path in [*(prepared.run / "histories").rglob("part-*"), prepared.run / "rows.parquet"]:
        data = path.read_bytes()
        path.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
        assert headrace.verify(prepared.out).problems, path
        path.write_bytes(data)
    assert headrace.verify(prepared.out).problems == []


def test_verify_finds_an_entity_on_the_wrong_side(prepared: Prepared) -> None:
    change_settings(prepared.run, seed=43)

    assert headrace.verify(prepared.out).problems


def test_verify_finds_measurements_the_manifest_does_not_count(prepared: Prepared) -> None:
    reseal(prepared.run, lambda record: record["source"].update(rows=record["source"]["rows"] + 1))

    (problem,) = headrace.verify(prepared.out).problems
    assert "rows read" in problem


def test_a_cut_shard_is_an_error_and_not_an_empty_one(prepared: Prepared) -> None:
    (path,) = (prepared.run / "histories" / "train").iterdir()
    path.write_bytes(path.read_bytes()[:70_000])

    with raised(headrace.errors.CorruptShard, path=path):
        list(read_blobs(path))


def test_rows_parquet_is_ordinary_parquet(prepared: Prepared) -> None:
    assert pq.read_table(prepared.run / "rows.parquet").column_names[:3] == [
        "src_id",
        "part",
        "n_measurements",
    ]
