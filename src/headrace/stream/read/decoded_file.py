"""One decoded block on disk: an uncompressed Arrow file, followed by its length and a checksum of all its bytes.

    Arrow file ‖ magic (8 bytes) ‖ length of the Arrow file (8) ‖ CRC-32 of it (4), little-endian

Mapping it costs no copy: columns are views of the page cache.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Literal

import pyarrow as pa

_MAGIC = b"headrac1"
_TRAILER = struct.Struct("<8sQI")


class TornFile(Exception):
    """A cached file is not what was written: cut short, changed, or of another kind."""


def encode(table: pa.Table) -> tuple[pa.Buffer, bytes]:
    """The Arrow file of a table, one record batch where offsets allow it, and what stands behind it."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    data = sink.getvalue()
    return data, _TRAILER.pack(_MAGIC, data.size, zlib.crc32(data))


def map_file(path: str | Path, contents: Literal["check", "trust"]) -> pa.Table:
    """The table of a file, as views of it. contents: whether the checksum is computed, which reads every byte.

    Raises `FileNotFoundError`, `OSError`, or `TornFile` if it is not whole. What is mapped outlives its name.
    """
    try:
        source = pa.memory_map(str(path))
        size = source.size() - _TRAILER.size
        if size < 0:
            raise TornFile(f"{path}: has only {source.size()} bytes")
        source.seek(size)
        magic, length, checksum = _TRAILER.unpack(source.read(_TRAILER.size))
        source.seek(0)
        data = source.read_buffer(size)
        if (magic, length) != (_MAGIC, size):
            raise TornFile(f"{path}: was cut or written by another version")
        if contents == "check" and zlib.crc32(data) != checksum:
            raise TornFile(f"{path}: its bytes are not those that were written")
        return pa.ipc.open_file(data).read_all()
    except pa.ArrowException as error:
        raise TornFile(f"{path}: {error}") from error
