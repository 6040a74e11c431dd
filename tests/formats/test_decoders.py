"""Polars and pyarrow read the same of Parquet, or pyarrow reads it."""

import itertools
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace.errors import InputError, SettingsError
from headrace.formats import parquet, polars_parquet
from headrace.formats.decoders import Decoder, decoder_of_split
from headrace.formats.plain_types import plain
from headrace.formats.source import read_block
from headrace.formats.types import Target
from laws import examples

TYPES: list[pa.DataType] = [
    pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(),
    pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(), pa.float16(), pa.float32(), pa.float64(),
    pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(),
    pa.binary(3), pa.date32(), pa.date64(), pa.time32("ms"), pa.time64("us"), pa.time64("ns"),
    *(pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC", "+01:00", "Europe/Berlin")),
    *(pa.duration(unit) for unit in ("s", "ms", "us", "ns")),
    pa.decimal128(5, 2), pa.decimal128(18, 0), pa.decimal128(38, 10), pa.decimal256(50, 3),
    pa.dictionary(pa.int32(), pa.string()), pa.null(), pa.list_(pa.int32()), pa.list_(pa.int32(), 2),
    pa.struct([("a", pa.int32()), ("b", pa.string())]), pa.map_(pa.string(), pa.int64()),
]  # fmt: skip
ENCODINGS = {
    "dictionary": {"use_dictionary": True},
    "plain": {"use_dictionary": False},
    "int96": {"use_deprecated_int96_timestamps": True},
    "pages 2.0": {"data_page_version": "2.0", "data_page_size": 64, "use_dictionary": False},
    "no schema of Arrow": {"store_schema": False},
    "split": {"use_dictionary": False, "use_byte_stream_split": True},
}


def values_of(type_: pa.DataType, rows: int, rng: np.random.Generator, share: float) -> pa.Array:
    """Random bits of a type, so that every NaN and every border appears."""
    missing = rng.random(rows) < share
    if pa.types.is_null(type_):
        return pa.nulls(rows)
    if pa.types.is_dictionary(type_):
        return values_of(type_.value_type, rows, rng, share).dictionary_encode()
    if pa.types.is_struct(type_):
        columns = [values_of(field.type, rows, rng, share) for field in type_]
        return pa.StructArray.from_arrays(columns, fields=list(type_), mask=pa.array(missing))
    if pa.types.is_fixed_size_list(type_):
        inner = values_of(type_.value_type, 2 * rows, rng, 0)
        return pa.FixedSizeListArray.from_arrays(inner, 2)
    if pa.types.is_list(type_) or pa.types.is_map(type_):
        offsets = pa.array(np.append(0, np.cumsum(rng.integers(0, 4, rows))).astype("i4"))
        count = offsets[-1].as_py()
        if pa.types.is_map(type_):
            keys = values_of(pa.string(), count, rng, 0)
            return pa.MapArray.from_arrays(
                offsets, keys, values_of(type_.item_type, count, rng, share)
            )
        return pa.ListArray.from_arrays(offsets, values_of(type_.value_type, count, rng, share))
    if pa.types.is_decimal(type_):
        digits = rng.integers(-9999, 9999, rows).astype(object) * 10 ** max(0, type_.precision - 6)
        unscaled = pa.array(digits.tolist(), pa.decimal256(76, 0)).cast(pa.decimal256(76, 0))
        bits = np.frombuffer(unscaled.buffers()[1], "u8").reshape(-1, 4)[:, : type_.bit_width // 64]
        array = pa.Array.from_buffers(type_, rows, [None, pa.py_buffer(np.ascontiguousarray(bits))])
        return pa.compute.if_else(pa.array(missing), pa.scalar(None, type_), array)
    if pa.types.is_fixed_size_binary(type_):
        return pa.array([rng.bytes(3) for _ in range(rows)], type_, mask=missing)
    if type_.id in (pa.string().id, pa.large_string().id, pa.string_view().id):
        words = [f"é{number}" * int(number % 9) for number in rng.integers(0, 50, rows)]
        return pa.array(words, pa.string(), mask=missing).cast(type_)
    if pa.types.is_binary(type_) or pa.types.is_large_binary(type_):
        return pa.array([rng.bytes(int(n)) for n in rng.integers(0, 30, rows)], type_, mask=missing)
    if pa.types.is_boolean(type_):
        return pa.array(rng.random(rows) < 0.5, mask=missing)
    most = {pa.time32("ms"): 86_400_000, pa.date64(): 40_000, pa.date32(): 40_000}.get(type_, 0)
    if pa.types.is_time64(type_):
        most = 86_400_000_000
    bits = rng.integers(-(1 << 63), 1 << 63, rows, dtype="i8") >> (int(rng.integers(0, 8)) * 8)
    if pa.types.is_timestamp(type_) or pa.types.is_duration(type_):
        bits = bits >> 24
    if most:
        bits = rng.integers(0, most, rows) * (86_400_000 if pa.types.is_date64(type_) else 1)
    raw = bits.astype(f"i{type_.bit_width // 8}")
    array = pa.Array.from_buffers(type_, rows, [None, pa.py_buffer(raw)])
    return pa.compute.if_else(pa.array(missing), pa.scalar(None, type_), array)


def read(path: Path, block: int, schema: pa.Schema, decoder: Decoder) -> pa.Table:
    return read_block(
        path, "parquet", block=block, offset=0, length=0,
        target=Target.of(schema), names=schema.names, decoder=decoder, of_run=False,
    )  # fmt: skip


def bits(column: pa.ChunkedArray) -> Any:
    """All that a column says: type, nulls, and the bits of every value that is none."""
    (array,) = column.combine_chunks().chunks if column.num_chunks != 1 else column.chunks
    array = pa.concat_arrays([array]).take(pa.array(np.arange(len(array))))
    floats = {pa.float16(): "u2", pa.float32(): "u4", pa.float64(): "u8"}
    if array.type in floats and len(array):
        raw = np.frombuffer(array.buffers()[1], floats[array.type], len(array))
        valid = array.is_valid().to_numpy(zero_copy_only=False)
        return array.type, valid.tolist(), raw[valid].tolist()
    return array.type, array


@given(
    types=st.lists(st.sampled_from(TYPES), min_size=1, max_size=6),
    encoding=st.sampled_from(sorted(ENCODINGS)),
    codec=st.sampled_from(["none", "snappy", "gzip", "zstd", "lz4", "brotli"]),
    share=st.sampled_from([0.0, 0.3, 1.0]),
    nullable=st.booleans(),
    sizes=st.tuples(st.integers(1, 300), st.integers(1, 120)),
    seed=st.integers(0, 1 << 30),
)
@settings(max_examples=examples(100), deadline=None)
def test_both_decoders_read_the_same(
    tmp_path_factory: pytest.TempPathFactory,
    types: list[pa.DataType], encoding: str, codec: str, share: float, nullable: bool,
    sizes: tuple[int, int], seed: int,
) -> None:  # fmt: skip
    rows, group = sizes
    rng = np.random.default_rng(seed)
    columns = []
    fields = []
    for number, type_ in enumerate(types):
        column = values_of(type_, rows, rng, share)
        required = not nullable and not column.null_count
        columns.append(column)
        fields.append(pa.field(f"c{number}", column.type, not required))
    table = pa.table(columns, schema=pa.schema(fields))
    path = tmp_path_factory.mktemp("equal") / "p.parquet"
    try:
        pq.write_table(table, path, row_group_size=group, compression=codec, **ENCODINGS[encoding])
    except (pa.ArrowException, OSError):  # this encoding is not for these types
        return
    names = table.schema.names
    rng.shuffle(names)
    schema = pa.schema([(name, plain(table.schema.field(name).type)) for name in names])
    for block in range(-(-rows // group)):
        try:
            usual = read(path, block, schema, "pyarrow")
        except InputError:
            with pytest.raises(InputError):
                read(path, block, schema, "polars")
            continue
        fast = read(path, block, schema, "polars")
        assert usual.schema.equals(fast.schema)
        for name in names:
            assert bits(usual[name]) == bits(fast[name]), name


NUMBERS = [pa.int64(), pa.bool_(), pa.decimal128(18, 0)]


def written(path: Path, **options: Any) -> pa.Schema:
    rng = np.random.default_rng(5)
    columns = {f"c{at}": values_of(type_, 4000, rng, 0.2) for at, type_ in enumerate(NUMBERS)}
    table = pa.table(columns)
    pq.write_table(table, path, row_group_size=1000, **options)
    return table.schema


def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The row groups that Polars is asked for from now on."""
    groups = []
    usual = polars_parquet.PolarsFile.read

    def seen(self: polars_parquet.PolarsFile, group: int, columns: Any) -> pa.Table:
        groups.append(group)
        return usual(self, group, columns)

    monkeypatch.setattr(polars_parquet.PolarsFile, "read", seen)
    return groups


@pytest.mark.parametrize("pages", ["1.0", "2.0"])
def test_a_flipped_bit_in_a_page_with_a_checksum_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pages: Any
) -> None:
    path = tmp_path / "p.parquet"
    schema = written(path, write_page_checksum=True, data_page_version=pages, compression="none")
    groups = asked(monkeypatch)
    data = bytearray(path.read_bytes())
    data[200] ^= 4
    path.write_bytes(data)

    with pytest.raises(InputError) as caught:
        read(path, 0, schema, "polars")
    assert (str(path), "row group 0") == (caught.value.path, caught.value.row)
    assert not groups


def test_polars_reads_what_is_pinned_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = written(tmp_path / "p.parquet")
    groups = asked(monkeypatch)
    for decoder, times in (("pyarrow", 0), ("auto", 0), ("polars", 1)):
        groups.clear()
        read(tmp_path / "p.parquet", 2, schema, decoder)
        assert [range(2, 3)] * times == groups


def test_a_column_that_polars_reads_as_another_type_is_left_to_pyarrow(tmp_path: Path) -> None:
    path = tmp_path / "p.parquet"
    table = pa.table({"a": pa.array([1, None], pa.timestamp("us", "+01:00")), "b": [1.0, 2.0]})
    pq.write_table(table, path)

    assert table.equals(read(path, 0, table.schema, "polars"))
    assert {"b"} == set(parquet._footer(path).of_polars.rates)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_of_a_process_with_polars_reads_with_pyarrow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = written(tmp_path / "p.parquet")
    expected = read(tmp_path / "p.parquet", 1, schema, "polars")
    groups = asked(monkeypatch)
    child = os.fork()
    if not child:
        same = read(tmp_path / "p.parquet", 1, schema, "polars").equals(expected)
        os._exit(0 if same and not groups else 1)

    assert 0 == os.waitpid(child, 0)[1]


def test_a_file_that_is_replaced_while_polars_reads_it_is_read_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "p.parquet"
    schema = written(path)
    pq.write_table(pq.read_table(path).slice(3000), tmp_path / "other", row_group_size=1000)
    usual = polars_parquet.PolarsFile.read

    def replaced(self: polars_parquet.PolarsFile, group: int, columns: Any) -> pa.Table:
        table = usual(self, group, columns)
        os.replace(tmp_path / "other", path)
        return table

    monkeypatch.setattr(polars_parquet.PolarsFile, "read", replaced)
    with pytest.raises(InputError):
        read(path, 0, schema, "polars")
    assert read(path, 0, schema, "pyarrow").equals(pq.read_table(path))


def test_a_split_takes_polars_where_loading_it_pays() -> None:
    floats = pa.schema([pa.field(f"c{at}", pa.float64()) for at in range(28)])
    required = pa.schema([field.with_nullable(False) for field in floats])
    blocks = np.full(1000, 50_000)

    assert "auto" == decoder_of_split("auto", floats, blocks)
    assert "pyarrow" == decoder_of_split("auto", floats, blocks[:10])
    assert "pyarrow" == decoder_of_split("auto", required, blocks)
    assert "polars" == decoder_of_split("polars", required, blocks[:1])


def test_an_open_file_is_used_again_and_few_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "_MOST_OPEN", 3)
    opened = []
    usual = parquet._opened
    monkeypatch.setattr(parquet, "_opened", lambda path: opened.append(path) or usual(path))
    parquet.forget()
    paths = [tmp_path / f"{number}.parquet" for number in range(5)]
    (schema,) = {written(path) for path in paths}
    for block, path in itertools.product(range(4), paths[:3]):
        read(path, block, schema, "pyarrow")
    assert paths[:3] == opened
    for block, path in itertools.product(range(2), paths):
        read(path, block, schema, "pyarrow")
    assert parquet._open_files._open == 3


def test_batches_are_the_same_by_every_decoder(tmp_path: Path) -> None:
    written(tmp_path / "p.parquet")
    batches = []
    for decoder in ("auto", "pyarrow", "polars"):
        stream = headrace.open(tmp_path).stream(
            batch_size=512, shuffle=True, seed=2, batch_format="arrow", decoder=decoder
        )
        batches.append(pa.concat_tables(stream))

    assert batches[0].equals(batches[1])
    assert batches[0].equals(batches[2])
    with pytest.raises(SettingsError) as caught:
        headrace.open(tmp_path).stream(batch_size=512, decoder="duckdb")
    assert ("decoder", "duckdb") == (caught.value.setting, caught.value.value)
