"""A block is a byte range that can be read on its own, and the digest is that of the file."""

from hashlib import sha256
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headrace.formats import delimited, jsonl, records
from headrace.formats.json_parse import Lines, Location
from headrace.formats.registry import FileType, compress_block, decompress_block
from headrace.formats.shard import Dialect
from headrace.formats.source import read_chunks, survey
from headrace.formats.write import BLOCK_ROWS, ShardWriter, Written

DIALECT = Dialect(",", "\n")
TABLE = pa.table(
    {
        "a": [f"{n:03d}" for n in range(150_000)],
        "b": [str(n * 7919 % 10007) for n in range(150_000)],
    }
)
KINDS = [FileType.named(format_, compression) for format_ in ("csv", "tsv", "jsonl", "parquet") for compression in ("none", "gz", "zst") if format_ != "parquet" or compression == "none"]  # fmt: skip


def dialect_of(kind: FileType) -> Dialect | None:
    return {"csv": DIALECT, "tsv": Dialect("\t", "\r\n", bom=True)}.get(kind.format.name)


def write(
    path: Path, kind: FileType, pieces: list[pa.Table], keys: list[np.ndarray] | None = None
) -> Written:
    with ShardWriter(path, file_type=kind, schema=TABLE.schema, dialect=dialect_of(kind)) as writer:
        for place, piece in enumerate(pieces):
            writer.append(piece, None if keys is None else keys[place])
        return writer.finish()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.extension)
def test_the_digest_and_size_are_those_of_the_file(tmp_path: Path, kind: FileType) -> None:
    path = tmp_path / f"p{kind.extension}"
    written = write(path, kind, [TABLE])

    assert sha256(path.read_bytes()).hexdigest() == written.digest
    assert path.stat().st_size == written.bytes
    assert len(TABLE) == written.rows


@pytest.mark.parametrize("kind", KINDS[:-1], ids=lambda kind: kind.extension)
def test_each_block_of_a_text_file_is_read_on_its_own(tmp_path: Path, kind: FileType) -> None:
    path = tmp_path / f"p{kind.extension}"
    written = write(path, kind, [TABLE])
    data, shard = path.read_bytes(), survey(path, path.name)
    found = []
    for block in written.blocks:
        part = decompress_block(data[block.offset : block.offset + block.length], kind.compression)
        if kind.format.name == "jsonl":
            found.append(jsonl.parse_block(Lines.of(part, Location(path)), TABLE.schema))
        else:
            found.append(delimited.parse_block(part, shard, None).cast(TABLE.schema))
        assert block.rows == len(found[-1])

    assert TABLE.equals(pa.concat_tables(found))
    assert len(data) == written.blocks[-1].offset + written.blocks[-1].length


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.extension)
def test_the_whole_file_is_read_by_its_format(tmp_path: Path, kind: FileType) -> None:
    path = tmp_path / f"p{kind.extension}"
    write(path, kind, [TABLE])

    assert TABLE.equals(
        pa.concat_tables(
            [chunk.table().cast(TABLE.schema) for chunk in read_chunks(survey(path, path.name))]
        )
    )


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.extension)
def test_bytes_do_not_depend_on_the_pieces_that_rows_come_in(
    tmp_path: Path, kind: FileType
) -> None:
    pieces = [TABLE.slice(start, 10_007) for start in range(0, len(TABLE), 10_007)]

    assert write(tmp_path / "one", kind, [TABLE]) == write(tmp_path / "many", kind, pieces)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.extension)
def test_a_file_without_rows_is_read_as_a_file_without_rows(tmp_path: Path, kind: FileType) -> None:
    path = tmp_path / f"p{kind.extension}"
    written = write(path, kind, [])

    assert (0, ()) == (written.rows, written.blocks)
    assert [] == list(read_chunks(survey(path, path.name)))


def test_blocks_follow_each_other(tmp_path: Path) -> None:
    blocks = write(tmp_path / "p", FileType.named("csv"), [TABLE]).blocks

    assert [0, BLOCK_ROWS, 2 * BLOCK_ROWS] == [block.first_row for block in blocks]
    assert [block.offset + block.length for block in blocks[:-1]] == [
        block.offset for block in blocks[1:]
    ]
    assert len(b"a,b\n") == blocks[0].offset


def test_keys_give_each_block_its_least_and_greatest(tmp_path: Path) -> None:
    keys = np.arange(len(TABLE), dtype=np.int64)[::-1]
    blocks = write(tmp_path / "p", FileType.named("csv", "gz"), [TABLE], [keys]).blocks

    assert [(len(TABLE) - b.first_row - b.rows, len(TABLE) - b.first_row - 1) for b in blocks] == [
        (b.key_min, b.key_max) for b in blocks
    ]


def test_records_are_written_as_they_stand(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    data = b'007,"x\ny"\n8,\n'
    ends = records.record_ends(
        records.as_bytes(data), records.quote_positions(records.as_bytes(data))
    )
    lines = records.slices(data, ends)
    with ShardWriter(
        path, file_type=FileType.named("csv"), schema=TABLE.schema, dialect=DIALECT
    ) as writer:
        for piece in (lines, lines.slice(1), lines.filter(pa.array([True, False])), lines.slice(2)):
            writer.append(piece)
        written = writer.finish()

    assert 4 == written.rows
    assert b'a,b\n007,"x\ny"\n8,\n8,\n007,"x\ny"\n' == path.read_bytes()


@pytest.mark.parametrize("compression", ["none", "gz", "zst"])
def test_a_compressed_block_is_the_same_every_time_and_comes_back(compression: str) -> None:
    data = bytes(range(256)) * 100

    assert bytes(compress_block(data, compression)) == bytes(compress_block(data, compression))
    assert data == decompress_block(bytes(compress_block(data, compression)), compression)


@pytest.mark.parametrize("compression", ["gz", "zst"])
def test_a_cut_compressed_block_is_an_error(compression: str) -> None:
    block = bytes(compress_block(bytes(range(256)) * 100, compression))

    with pytest.raises(OSError, match=r".+"):
        decompress_block(block[:-3], compression)
