"""Small Parquet files that decode to gigabytes, or say so; made in no time."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

GROUP = 1 << 20


def coded(text: str, rows: int) -> pa.DictionaryArray:
    """Equal texts, which take no bytes in Parquet."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), [text])


def equal_rows(path: Path) -> None:
    """60 million equal rows."""
    table = pa.table({"text": coded("x" * 30, GROUP), "number": np.zeros(GROUP, np.int64)})
    with pq.ParquetWriter(path, table.schema, store_schema=False) as writer:
        for _ in range(60):
            writer.write_table(table)


def one_long_text(path: Path) -> None:
    """A text of 3.5 MB in each of a million rows."""
    text = random.Random(1).randbytes(1_750_000).hex()
    table = pa.table({"text": coded(text, GROUP), "number": np.zeros(GROUP, np.int64)})
    pq.write_table(table, path, compression="none", store_schema=False)


def pages_that_grow(compression: str) -> Callable[[Path], None]:
    """Pages of 180 MB of equal bytes."""

    def write(path: Path) -> None:
        table = pa.table({"text": ["a" * (45 << 20)] * 4, "number": range(4)})
        pq.write_table(table, path, compression=compression, use_dictionary=False)

    return write


def many_pages(path: Path) -> None:
    """Pages of 1 MiB, 512 MB together."""
    table = pa.table({"text": pa.repeat("a" * (1 << 20), 64), "number": np.zeros(64, np.int64)})
    with pq.ParquetWriter(path, table.schema, compression="zstd", use_dictionary=False) as writer:
        for _ in range(8):
            writer.write_table(table)


def leaves_in_one_row(path: Path) -> None:
    """A list of 20 million numbers."""
    lists = pa.ListArray.from_arrays([0, 20 << 20], pa.array(np.zeros(20 << 20, np.int64)))
    pq.write_table(pa.table({"text": ["a"], "number": lists}), path)


def nested(path: Path) -> None:
    """A list of lists."""
    pq.write_table(pa.table({"text": ["a"], "number": [[[1]]]}), path)


def prefixes(path: Path) -> None:
    """Texts that share prefixes, of which each takes two bytes and stands for 100 KB."""
    texts = pa.array(["a" * 100_000] * 20_000)
    pq.write_table(
        pa.table({"text": texts, "number": range(20_000)}),
        path,
        use_dictionary=False,
        column_encoding={"text": "DELTA_BYTE_ARRAY"},
    )


def small(path: Path, rows: int = 12_345) -> None:
    """A file of no harm."""
    table = pa.table({"text": [f"{row:05d}" for row in range(rows)], "number": np.arange(rows)})
    pq.write_table(table, path, compression="none", use_dictionary=False)


def varint(number: int) -> bytes:
    """A number of Thrift's compact protocol."""
    number = (number << 1) ^ (number >> 63)
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def footer_says(old: int, new: int) -> Callable[[Path], None]:
    """The footer has a number where another was."""

    def write(path: Path) -> None:
        small(path)
        data = path.read_bytes()
        (size,) = struct.unpack("<I", data[-8:-4])
        footer = data[-8 - size : -8].replace(varint(old), varint(new))
        assert footer != data[-8 - size : -8]
        path.write_bytes(data[: -8 - size] + footer + struct.pack("<I", len(footer)) + b"PAR1")

    return write


def page_says(old: int, new: int) -> Callable[[Path], None]:
    """The header of the first page has a number where another was, of as many bytes."""

    def write(path: Path) -> None:
        small(path)
        data = path.read_bytes()
        assert len(varint(old)) <= len(varint(new))
        at = data.index(varint(old))
        path.write_bytes(data[:at] + varint(new) + data[at + len(varint(new)) :])

    return write


def footer_of_columns(count: int) -> Callable[[Path], None]:
    """A footer of column chunks of three bytes, of which Arrow makes 700."""

    def write(path: Path) -> None:
        column = b"\x26\x08\x00"
        group = b"\x19\xfc" + plain(count) + column * count + b"\x16\x00\x16\x00\x00"
        element = b"\x48\x01r\x15\x02\x00" + b"\x15\x02\x25\x00\x18\x01x\x00"
        footer = b"\x15\x02\x19\x2c" + element + b"\x16\x00\x19\x1c" + group + b"\x00"
        path.write_bytes(b"PAR1" + footer + struct.pack("<I", len(footer)) + b"PAR1")

    return write


def plain(number: int) -> bytes:
    """A length of Thrift's compact protocol."""
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def sparse(path: Path) -> None:
    """A file of 100 GB without anything in it."""
    with path.open("wb") as file:
        file.truncate(100 << 30)


BOMBS: dict[str, Callable[[Path], None]] = {
    "equal rows": equal_rows,
    "one long text": one_long_text,
    "zstd pages": pages_that_grow("zstd"),
    "gzip pages": pages_that_grow("gzip"),
    "many pages": many_pages,
    "leaves in one row": leaves_in_one_row,
    "nested": nested,
    "prefixes": prefixes,
    "footer: more rows": footer_says(12_345, 12_346),
    "footer: fewer rows": footer_says(12_345, 12_344),
    "footer: 2**60 rows": footer_says(12_345, 1 << 60),
    "footer: rows below 0": footer_says(12_345, -12_345),
    "page: 2**31 values": page_says(12_345, (1 << 31) - 1),
    "page: no values": page_says(12_345, 8193),
    "footer: a million columns": footer_of_columns(1_000_000),
    "sparse": sparse,
}
