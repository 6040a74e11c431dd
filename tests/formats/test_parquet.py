"""Parquet we write is made to be trained on; Parquet we read is checked."""

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace
from headrace.errors import CorruptShard, HeadraceError, InputError
from headrace.formats import parquet
from headrace.formats.registry import FileType
from headrace.formats.source import find_files, read_block, read_chunks, survey
from headrace.formats.types import Target
from headrace.formats.write import BLOCK_ROWS, ShardWriter
from raised import raised
from tables import write_bytes

PARQUET = FileType.named("parquet")


def written(
    path: Path, table: pa.Table, schema: pa.Schema | None = None, compression: str = "lz4"
) -> Path:
    with ShardWriter(
        path,
        file_type=PARQUET,
        schema=schema or table.schema,
        dialect=None,
        parquet_compression=compression,
    ) as writer:
        writer.append(table)
        writer.finish()
    return path


def test_page_checksums_are_written(tmp_path: Path) -> None:
    table = pa.table({"a": list(range(1000))})
    path = written(tmp_path / "p.parquet", table, compression="none")
    data = bytearray(path.read_bytes())
    at = data.find((500).to_bytes(8, "little") + (501).to_bytes(8, "little"))
    data[at] ^= 1
    path.write_bytes(bytes(data))

    assert at > 0
    with pytest.raises(OSError, match="CRC"):
        pq.read_table(path, page_checksum_verification=True)


@pytest.mark.parametrize("compression", ["none", "snappy", "lz4", "zstd"])
def test_the_codec_is_the_one_that_was_asked_for(tmp_path: Path, compression: str) -> None:
    path = written(tmp_path / "p.parquet", pa.table({"a": [1, 2]}), compression=compression)
    expected = {"none": "UNCOMPRESSED"}.get(compression, compression.upper())

    assert expected == pq.read_metadata(path).row_group(0).column(0).compression


def test_a_column_declared_without_nulls_is_required_in_the_file(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.string())])
    path = written(tmp_path / "p.parquet", pa.table({"a": [1], "b": ["x"]}), schema)

    assert schema == pq.read_schema(path)
    assert 0 == pq.ParquetFile(path).schema.column(0).max_definition_level


def test_row_groups_are_full_whatever_pieces_the_rows_come_in(tmp_path: Path) -> None:
    table = pa.table({"a": list(range(3 * BLOCK_ROWS // 2))})
    with ShardWriter(
        tmp_path / "p.parquet", file_type=PARQUET, schema=table.schema, dialect=None
    ) as writer:
        for start in range(0, len(table), 999):
            writer.append(table.slice(start, 999))
        writer.finish()
    metadata = pq.read_metadata(tmp_path / "p.parquet")

    assert [BLOCK_ROWS, BLOCK_ROWS // 2] == [
        metadata.row_group(g).num_rows for g in range(metadata.num_row_groups)
    ]


def test_a_row_group_holds_at_most_8_mebibytes(tmp_path: Path) -> None:
    table = pa.table({"a": ["x" * 1000] * 20_000})
    path = written(tmp_path / "p.parquet", table, compression="none")
    metadata = pq.read_metadata(path)

    assert 8 << 20 >= max(
        1004 * metadata.row_group(g).num_rows for g in range(metadata.num_row_groups)
    )


def test_dictionaries_are_used_where_values_repeat_and_only_there(tmp_path: Path) -> None:
    table = pa.table({"unique": [str(n) for n in range(8000)], "few": [str(n % 5) for n in range(8000)], "number": list(range(8000)), "code": [n % 3 for n in range(8000)]})  # fmt: skip
    path = written(tmp_path / "p.parquet", table)
    group = pq.read_metadata(path).row_group(0)
    coded = {
        group.column(c).path_in_schema
        for c in range(group.num_columns)
        if "RLE_DICTIONARY" in group.column(c).encodings
    }

    assert {"few", "code"} == coded


def test_a_file_without_rows_has_its_schema(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False)])
    with ShardWriter(
        tmp_path / "p.parquet", file_type=PARQUET, schema=schema, dialect=None
    ) as writer:
        written_ = writer.finish()

    assert 0 == written_.rows
    assert schema == pq.read_schema(tmp_path / "p.parquet")


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_a_flipped_byte_is_an_error_or_changes_nothing(tmp_path: Path, compression: str) -> None:
    table = pa.table(
        {"a": [str(n * 7919 % 10007) for n in range(5000)], "b": [n * 0.5 for n in range(5000)]}
    )
    path = written(tmp_path / "p.parquet", table, compression=compression)
    clean = path.read_bytes()
    footer = int.from_bytes(clean[-8:-4], "little") + 8
    random_ = random.Random(7)
    silent = 0
    for _ in range(60):
        data = bytearray(clean)
        data[random_.randrange(4, len(clean) - footer)] ^= 1 << random_.randrange(8)
        path.write_bytes(bytes(data))
        try:
            shard = survey(path, path.name)
            read = pa.concat_tables([chunk.table() for chunk in read_chunks(shard)])
            silent += not read.equals(table)
        except InputError as error:
            assert "damaged" in str(error)  # noqa: PT017  # either outcome is right, a wrong row is not

    assert 0 == silent


def test_a_damaged_block_is_a_corrupt_shard(tmp_path: Path) -> None:
    table = pa.table({"a": list(range(1000))})
    path = written(tmp_path / "p.parquet", table, compression="none")
    data = bytearray(path.read_bytes())
    data[data.find((500).to_bytes(8, "little") + (501).to_bytes(8, "little"))] ^= 1
    path.write_bytes(bytes(data))

    with raised(CorruptShard, row="row group 0", remedy="restore it"):
        read_block(
            path,
            "parquet",
            block=0,
            offset=0,
            length=0,
            target=Target.of(table.schema),
            names=["a"],
        )


@pytest.mark.parametrize("size", [3, 8, 200, -1, -8, -100])
def test_a_cut_file_is_an_error(tmp_path: Path, size: int) -> None:
    path = written(tmp_path / "p.parquet", pa.table({"a": list(range(1000))}))
    path.write_bytes(path.read_bytes()[:size])

    with pytest.raises(InputError, match=r"p\.parquet"):
        survey(path, path.name)


@pytest.mark.parametrize("name", ["part-0.parquet.gz", "part-0.parquet.zst"])
def test_a_parquet_file_may_be_compressed_as_a_whole(tmp_path: Path, name: str) -> None:
    plain = written(tmp_path / "plain", pa.table({"a": ["007"]}))
    path = write_bytes(tmp_path / name, plain.read_bytes())

    assert [{"a": "007"}] == [
        row for chunk in read_chunks(survey(path, name)) for row in chunk.table().to_pylist()
    ]


def test_a_snappy_parquet_file_is_found_once(tmp_path: Path) -> None:
    written(tmp_path / "part-0.snappy.parquet", pa.table({"a": [1]}), compression="snappy")
    source = [tmp_path / "part-*.parquet", tmp_path / "*.snappy.parquet", tmp_path]

    assert ["part-0.snappy.parquet"] == [name for _, name in find_files(source)]


def test_columns_are_read_by_name_in_any_order_also_with_dots(tmp_path: Path) -> None:
    path = tmp_path / "part-0.parquet"
    pq.write_table(pa.table({"a": [1], "a.b": ["x"], "c__DOT__d": [2.5], "s": [{"f": 1}]}), path)
    shard = survey(path, path.name)

    for names in (["a"], ["a.b", "a"], ["c.d", "a"], ["s", "a.b"], None):
        (chunk,) = read_chunks(shard, names)
        expected = {"a": 1, "a.b": "x", "c.d": 2.5, "s": {"f": 1}}
        assert {name: expected[name] for name in names or expected} == chunk.table(
            names
        ).to_pylist()[0]


def test_columns_that_hold_no_null_are_known_from_the_schema(tmp_path: Path) -> None:
    path = tmp_path / "part-0.parquet"
    schema = pa.schema([pa.field("full", pa.int64(), nullable=False), ("gaps", pa.int64())])
    pq.write_table(pa.table({"full": [1, 2], "gaps": [1, 2]}, schema), path)

    assert {"gaps"} == survey(path, path.name).null_columns


def test_nulls_are_read_whatever_statistics_claim(tmp_path: Path) -> None:
    values = [None if number % 2 else number for number in range(944)]
    path = tmp_path / "part-0.parquet"
    days = ["2024-01-01", "2024-06-01"] * 472
    pq.write_table(pa.table({"a": pa.array(values), "day": days}), path, compression="none")
    nulls, none = b"\x16\xb0\x07", b"\x16\x80\x00"  # 472 and 0 of the statistics, in two bytes
    path.write_bytes(path.read_bytes().replace(nulls, none))
    group = pq.ParquetFile(path).metadata.row_group(0)

    assert 0 == group.column(0).statistics.null_count
    dataset = headrace.open(path, cache_dir=tmp_path / "cache")
    assert values == dataset["all"].to_arrow()["a"].to_pylist()
    batches = list(dataset.stream(batch_size=1000, batch_format="arrow", shuffle=False))
    assert values == pa.concat_tables(batches)["a"].to_pylist()[:944]
    for form in ("parquet", "csv"):
        settings = {"time": "day", "split_date": "2024-03-01", "duplicates": "allow"}
        out = tmp_path / form
        headrace.prepare(headrace.TemporalSplit(source=path, format=form, **settings), out)
        splits = headrace.open(out)
        assert values[1::2] == splits["test"].to_arrow()["a"].to_pylist()
        assert values[::2] == splits["train"].to_arrow()["a"].to_pylist()


def test_a_column_called_as_a_field_of_another_is_read_alone(tmp_path: Path) -> None:
    path = tmp_path / "part-0.parquet"
    pq.write_table(pa.table({"x": [{"y": 2}], "x.y": [1]}), path)
    shard = survey(path, path.name)

    chunks = shard.file_type.format.load().read(shard, ["x.y"])
    assert [{"x.y": 1}] == [row for chunk in chunks for row in chunk.table().to_pylist()]


def test_dictionary_columns_are_read_as_their_values(tmp_path: Path) -> None:
    path = tmp_path / "part-0.parquet"
    pq.write_table(pa.table({"a": pa.array(["x", "y", "x"]).dictionary_encode()}), path)
    shard = survey(path, path.name)

    assert pa.schema([("a", pa.string())]) == shard.schema
    assert ["x", "y", "x"] == [
        row["a"] for chunk in read_chunks(shard) for row in chunk.table().to_pylist()
    ]


def test_a_name_that_stands_twice_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "part-0.parquet"
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["a.b", "a__DOT__b"]), path)

    with raised(InputError, column="a.b", remedy="rename one of them"):
        survey(path, path.name)


def test_an_error_while_writing_leaves_no_file_and_no_noise(tmp_path: Path) -> None:
    table = pa.table({"a": [1, 2]})

    def write() -> None:
        with ShardWriter(
            tmp_path / "p.parquet", file_type=PARQUET, schema=table.schema, dialect=None
        ) as writer:
            writer.append(pa.table({"a": list(range(BLOCK_ROWS))}))
            raise HeadraceError("stop")

    with pytest.raises(HeadraceError, match="stop"):
        write()
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize("group", [100, 1000, 300_000])
@pytest.mark.parametrize("dictionary", [True, False])
def test_coded_columns_hold_the_same_texts(tmp_path: Path, group: int, *, dictionary: bool) -> None:
    rows = 300_000 if group > 1000 else 2500
    texts = [None if n % 7 == 0 else f"text {n % 501}" for n in range(rows)]
    table = pa.table({"n": list(range(rows)), "a.b": texts, "c": texts[::-1]})
    path = tmp_path / "part-0.parquet"
    pq.write_table(table, path, row_group_size=group, use_dictionary=dictionary)
    shard = survey(path, path.name)
    chunks = [
        chunk.table(["a.b", "n", "c"])
        for chunk in read_chunks(shard, ["a.b", "n", "c"], coded=["a.b", "n"])
    ]

    stored = (
        dictionary and group > 100
    )  # of 100 rows each text is there once, so that codes would spare nothing
    assert all(stored == pa.types.is_dictionary(chunk.schema.field("a.b").type) for chunk in chunks)
    assert max(chunk.num_rows for chunk in chunks) <= 4 * parquet.CHUNK_ROWS
    whole = pa.concat_tables(
        [
            chunk.cast(pa.schema([shard.schema.field(name) for name in chunk.column_names]))
            for chunk in chunks
        ]
    )
    assert table.select(["a.b", "n", "c"]).equals(whole)
