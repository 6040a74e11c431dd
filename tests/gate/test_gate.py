"""What the gate refuses that Arrow would read, and what it reads once."""

import os
import resource
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headrace.errors import CorruptShard, InputError
from headrace.formats.source import read_chunks, survey
from headrace.gate import arrow
from headrace.gate.arrow import open_arrow
from headrace.gate.growth import decoded_bytes
from headrace.gate.mapped import check_mapped, map_bytes, while_mapped
from headrace.gate.whole import is_ascii
from raised import raised


def write(
    path: Path, rows: pa.Table, compression: str | None = None, *, stream: bool = False
) -> Path:
    make = pa.ipc.new_stream if stream else pa.ipc.new_file
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with make(str(path), rows.schema, options=options) as writer:
        writer.write_table(rows)
    return path


def zeros(count: int) -> pa.Table:
    return pa.table({"i": np.zeros(count, np.int64)})


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_a_batch_that_decompresses_to_much_more_is_refused_before_it_does(
    tmp_path: Path, compression: str, stream: bool
) -> None:
    path = write(tmp_path / "a.arrow", zeros(1 << 25 | 1), compression, stream=stream)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    with raised(CorruptShard, path=path):
        open_arrow(path).table()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


def test_honest_batches_of_constant_values_grow_as_they_like_below_the_limit(
    tmp_path: Path,
) -> None:
    rows = zeros(1 << 22)
    path = write(tmp_path / "a.arrow", rows, "zstd")

    assert path.stat().st_size * 1000 < rows.nbytes
    assert rows.equals(open_arrow(path).table())


def test_rows_that_take_no_bytes_are_limited(tmp_path: Path) -> None:
    path = write(tmp_path / "a.arrow", pa.table({"n": pa.nulls((1 << 24) + 1)}))

    with raised(CorruptShard, path=path):
        open_arrow(path).table()


@pytest.mark.parametrize(
    "column",
    [
        pa.DictionaryArray.from_arrays(np.zeros(1 << 12, np.int32), ["x" * (1 << 17)]),
        pa.RunEndEncodedArray.from_arrays(pa.array([1 << 12], pa.int32()), ["x" * (1 << 17)]),
        pa.ListViewArray.from_arrays(
            pa.array(np.zeros(1 << 12, np.int32)),
            pa.array(np.full(1 << 12, 1 << 14, np.int32)),
            pa.array(np.arange(1 << 14)),
        ),
    ],
    ids=["dictionary", "runs", "list views"],
)
def test_a_long_value_that_is_used_many_times_is_refused(tmp_path: Path, column: pa.Array) -> None:
    path = write(tmp_path / "a.arrow", pa.table({"x": column}))

    assert path.stat().st_size < 2 << 20
    assert decoded_bytes(column) > 1 << 28
    with pytest.raises((CorruptShard, InputError), match="holds"):
        for chunk in read_chunks(survey(path, path.name)):
            chunk.table()


def test_a_batch_is_validated_once_until_its_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    validated = []
    monkeypatch.setattr(arrow, "is_whole", lambda values: validated.append(len(values)) or True)
    path = write(tmp_path / "a.arrow", pa.table({"a": ["x", "y"], "b": [1, 2]}))
    for _ in range(3):
        open_arrow(path).batch(0, [0])
    assert 1 == len(validated)

    open_arrow(path).batch(0)
    assert 2 == len(validated)

    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    open_arrow(path).batch(0)
    assert 4 == len(validated)


TEXTS = [
    ([0, 1, 3], b"abc"),
    ([0, 1, 3], b"a\xc3\xa9"),
    ([0, 2, 3], b"a\xc3\xa9"),
    ([0, 3, 1], b"abc"),
    ([0, 5, 3], b"abc"),
    ([-1, 1, 3], b"abc"),
    ([0, 1, 4], b"abc"),
    ([2, 2, 2], b"abc"),
    ([0, 0, 0], b""),
]


@pytest.mark.parametrize("type_", [pa.string(), pa.large_string()], ids=str)
@pytest.mark.parametrize(("offsets", "data"), TEXTS, ids=range(len(TEXTS)))
def test_texts_that_pass_at_a_glance_are_valid(
    type_: pa.DataType, offsets: list[int], data: bytes
) -> None:
    positions = np.array(offsets, np.int32 if type_ == pa.string() else np.int64)
    buffers = [None, pa.py_buffer(positions), pa.py_buffer(data)]
    for start in range(2):
        try:
            array = pa.Array.from_buffers(type_, 2 - start, buffers, offset=start)
        except pa.ArrowInvalid:
            continue  # as `validate` would find
        try:
            array.validate(full=True)
        except pa.ArrowInvalid:
            assert not is_ascii(array)
        else:
            assert is_ascii(array) == data[offsets[start] : offsets[-1]].isascii()


def test_a_file_that_is_mapped_is_shared_until_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    one = map_bytes(path)

    assert one.data is map_bytes(path).data
    assert not one.data.flags.writeable
    path.unlink()
    path.write_bytes(b"abcd")
    assert b"abcd" == map_bytes(path).data.tobytes()
    assert b"abc" == one.data.tobytes()


def test_a_cut_file_is_named_and_a_replaced_or_deleted_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(bytes(10_000))
    kept = map_bytes(path)
    made = while_mapped(iter(range(3)))
    assert 0 == next(made)
    os.truncate(path, 100)

    with raised(CorruptShard, path=path):
        next(made)
    with raised(CorruptShard, path=path):
        kept.check()
    path.unlink()
    path.write_bytes(b"")
    check_mapped()
    path.unlink()
    check_mapped()


def test_a_file_of_another_kind_or_without_bytes_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe")

    for name in ("empty", "pipe", "missing", ""):
        with raised(CorruptShard, path=tmp_path / name, remedy="restore it"):
            open_arrow(tmp_path / name)
