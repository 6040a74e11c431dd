"""Arrow files and streams are shards like any other: the same rows, whatever they are made of; damage is an error."""

import os
import random
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.feather
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace.errors import HeadraceError, InputError
from headrace.formats.source import read_chunks, survey
from laws import examples
from raised import raised
from tables import fresh

WRITERS = {"file": pa.ipc.new_file, "stream": pa.ipc.new_stream}


def write(
    path: Path, batches: list[pa.RecordBatch], how: str = "file", compression: str | None = None
) -> Path:
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with WRITERS[how](str(path), batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return path


def table(rows: int = 1000) -> pa.Table:
    return pa.table(
        {
            "a": pa.array(range(rows), pa.int32()),
            "text": pa.array([None if n % 7 == 0 else f"é{n}" for n in range(rows)]),
            "list": pa.array([[n] * (n % 4) for n in range(rows)], pa.list_(pa.int32())),
            "at": pa.array(range(rows), pa.timestamp("ns", "Europe/Berlin")),
        }
    )


def streamed(path: Path, **options) -> pa.Table:
    loader = headrace.open(path, cache_dir=path.parent / "cache").stream(
        batch_size=64, batch_format="arrow", remainder="exact", **options
    )
    return pa.concat_tables(list(loader)).drop_columns("valid")


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("how", WRITERS)
def test_every_row_is_streamed_in_order(tmp_path: Path, how: str, compression: str | None) -> None:
    expected = table()
    path = write(tmp_path / "a.arrow", expected.to_batches(max_chunksize=150), how, compression)
    dataset = headrace.open(path, cache_dir=tmp_path / "cache")

    assert [150] * 6 + [100] == dataset.split_index().rows.tolist()
    assert expected.equals(streamed(path))
    assert expected.select(["list", "a"]).equals(streamed(path, columns=["list", "a"]))


@pytest.mark.parametrize("name", ["a.feather", "a.arrow.gz", "a.arrow.zst"])
def test_other_names_of_arrow_files(tmp_path: Path, name: str) -> None:
    plain = tmp_path / "plain"
    pyarrow.feather.write_feather(table(), str(plain), compression="zstd")
    codec = {"gz": "gzip", "zst": "zstd"}.get(name.rsplit(".", 1)[1])
    with pa.output_stream(str(tmp_path / name), compression=codec) as out:
        out.write(plain.read_bytes())
    plain.unlink()

    assert table().equals(streamed(tmp_path / name))


@pytest.mark.parametrize("compression", ["uncompressed", "lz4", "zstd"])
@pytest.mark.parametrize("rows", [0, 1, 5000])
def test_files_whose_messages_stand_apart_are_read(
    tmp_path: Path, compression: str, rows: int
) -> None:
    frame = pl.DataFrame({"a": [f"x{n}" for n in range(rows)], "b": list(range(rows))}, schema={"a": pl.String, "b": pl.Int64})  # fmt: skip
    frame.write_ipc(
        tmp_path / "x.arrow", compression=compression, compat_level=pl.CompatLevel.oldest()
    )
    shard = survey(tmp_path / "x.arrow", "x.arrow")
    tables = [chunk.table(["b", "a"]) for chunk in read_chunks(shard)]

    assert list(range(rows)) == [each for table in tables for each in table["b"].to_pylist()]
    assert [f"x{n}" for n in range(rows)] == [
        each for table in tables for each in table["a"].to_pylist()
    ]


@pytest.mark.slow
def test_an_uncompressed_column_is_not_copied(tmp_path: Path) -> None:
    path = write(tmp_path / "a.arrow", table(100_000).combine_chunks().to_batches())
    read = headrace.open(path, cache_dir=tmp_path / "cache").block_reader()
    before = pa.total_allocated_bytes()
    block = read(0, ["a", "at"])

    assert 100_000 == block.num_rows
    assert pa.total_allocated_bytes() - before < 10_000


def test_of_a_compressed_file_only_the_columns_asked_for_are_decompressed(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.arrow", table(100_000).combine_chunks().to_batches(), compression="zstd"
    )
    read = headrace.open(path, cache_dir=tmp_path / "cache").block_reader()
    path_bytes = path.stat().st_size
    before = pa.total_allocated_bytes()
    block = read(0, ["a"])

    assert 100_000 == block.num_rows
    assert pa.total_allocated_bytes() - before < 4 * 100_000 + path_bytes + 10_000


@settings(max_examples=examples(30))
@given(
    sizes=st.lists(st.integers(0, 50), min_size=1, max_size=6), how=st.sampled_from(sorted(WRITERS))
)
def test_batches_of_any_size_keep_their_rows(tmp_path_factory, sizes: list[int], how: str) -> None:
    whole = table(sum(sizes))
    starts = [sum(sizes[:place]) for place in range(len(sizes))]
    batches = [
        pa.RecordBatch.from_arrays(
            [whole[name].combine_chunks().slice(start, size) for name in whole.column_names],
            schema=whole.schema,
        )
        for start, size in zip(starts, sizes, strict=True)
    ]
    path = write(fresh(tmp_path_factory.getbasetemp()) / "a.arrow", batches, how)
    shard = survey(path, path.name)

    assert whole.equals(
        pa.concat_tables([chunk.table() for chunk in read_chunks(shard)]).cast(whole.schema)
    )
    assert [size for size in sizes if size] == (
        headrace.open(path, cache_dir=path.parent / "cache").split_index().rows.tolist()
        if sum(sizes)
        else []
    )


def test_dictionaries_become_their_values_in_files_and_are_refused_in_streams(
    tmp_path: Path,
) -> None:
    words = pa.table({"word": pa.array(["b", "a", None, "b"]).dictionary_encode()})
    file = write(tmp_path / "a.arrow", words.to_batches())
    stream = write(tmp_path / "b.arrow", words.to_batches(), "stream")

    assert ["b", "a", None, "b"] == streamed(file)["word"].to_pylist()
    with pytest.raises(
        InputError, match=r"b\.arrow: is an Arrow stream with dictionaries.*; save it as"
    ):
        streamed(stream)


def test_categories_and_nested_texts_of_polars_are_read(tmp_path: Path) -> None:
    words = ["b", "a", None, "b"]
    frame = pl.DataFrame(
        {
            "word": pl.Series(words, dtype=pl.Categorical),
            "rank": pl.Series(words, dtype=pl.Enum(["a", "b"])),
            "inside": [{"x": "u", "y": ["v", "w"]}] * 4,
            "pairs": pl.Series([["p", "q"]] * 4, dtype=pl.Array(pl.String, 2)),
            "bytes": [b"1", None, b"", b"2"],
        }
    )
    path = tmp_path / "a.arrow"
    frame.write_ipc(path)
    (chunk,) = read_chunks(survey(path, "a.arrow"))

    assert frame.to_dicts() == chunk.table().to_pylist() == streamed(path).to_pylist()
    assert (
        words[::-1]
        == headrace.open(path, cache_dir=tmp_path).map_dataset().batch([3, 2, 1, 0])["word"]
    )


def test_categories_of_polars_are_text_at_any_depth(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    pl.DataFrame(
        {"x": [{"word": "a"}] * 3}, schema={"x": pl.Struct({"word": pl.Categorical})}
    ).write_ipc(path)

    (chunk,) = read_chunks(survey(path, "a.arrow"))

    assert [{"x": {"word": "a"}}] * 3 == chunk.table().to_pylist()


@pytest.mark.parametrize("how", WRITERS)
@pytest.mark.parametrize("keep", [0, 3, 40, 0.5, 0.98])
def test_a_cut_file_is_an_error(tmp_path: Path, how: str, keep: float) -> None:
    path = write(tmp_path / "a.arrow", table().to_batches(max_chunksize=100), how)
    data = path.read_bytes()
    path.write_bytes(data[: int(keep if keep >= 1 else keep * len(data))])

    with pytest.raises(InputError, match=r"a\.arrow.*(cut or damaged|rename it|no whole|is empty)"):
        streamed(path)


@pytest.mark.slow
@pytest.mark.smoke("stream")
@pytest.mark.parametrize("how", WRITERS)
def test_damage_is_an_error_or_another_value_never_a_crash_or_another_shape(
    tmp_path: Path, how: str
) -> None:
    path = write(tmp_path / "a.arrow", table(200).to_batches(), how)
    whole = path.read_bytes()
    choose = random.Random(5)
    errors = 0
    for _ in range(150):
        data = bytearray(whole)
        data[choose.randrange(len(data))] ^= 1 << choose.randrange(8)
        path.write_bytes(data)
        (tmp_path / "cache").mkdir(exist_ok=True)
        for each in (tmp_path / "cache").iterdir():
            each.unlink()
        try:
            rows = streamed(path)
            rows.validate(full=True)
            assert 200 >= rows.num_rows
        except HeadraceError as error:
            errors += 1
            assert "a.arrow" in str(error)  # noqa: PT017  # either outcome is right

    assert errors > 10


def test_a_block_whose_offsets_are_damaged_is_refused(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.arrow", [pa.record_batch({"text": [f"{n:06d}" for n in range(100)]})]
    )
    dataset = headrace.open(path, cache_dir=tmp_path / "cache")
    data = bytearray(path.read_bytes())
    at = data.find((6 * 50).to_bytes(4, "little") + (6 * 51).to_bytes(4, "little"))
    data[at : at + 4] = (1 << 30).to_bytes(4, "little")
    indexed = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(indexed.st_atime_ns, indexed.st_mtime_ns))  # damage leaves the time as it is

    assert at > 0
    with raised(
        InputError, path=path, row="record batch 0", column="text", remedy="fetch it again"
    ):
        dataset.block_reader()(0, None)


def test_a_name_that_lies_is_an_error(tmp_path: Path) -> None:
    write(tmp_path / "a.arrow", table().to_batches()).rename(tmp_path / "a.parquet")

    with raised(InputError, remedy="rename it to what it is"):
        streamed(tmp_path / "a.parquet")


def test_a_type_that_arrow_does_not_read_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    pl.DataFrame({"i": pl.Series([2**100, None], dtype=pl.Int128)}).write_ipc(path)

    with raised(InputError, path=path, remedy="other types"):
        headrace.open(path, cache_dir=tmp_path / "cache")
