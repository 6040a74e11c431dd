"""Compressing text blocks so that each can be read on its own.

A gzip file may hold several members and a zstd file several frames; every reader joins them. We write one per block,
so a block is a byte range of the file. No time stamp goes in: the same bytes give the same bytes.
"""

from __future__ import annotations

import zlib

import pyarrow as pa

from headrace.formats.detect import Compression

GZIP_LEVEL = 4  # a quarter of the time of level 6 for a few percent of size, on text tables
ZSTD_LEVEL = 3


def compress_block(data: bytes | pa.Buffer, compression: Compression) -> bytes | pa.Buffer:
    """One gzip member, one zstd frame, or the data as it is."""
    if compression == "gz":
        member = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, 31)
        return member.compress(data) + member.flush()
    if compression == "zst":
        return pa.Codec("zstd", ZSTD_LEVEL).compress(data)
    return data


def decompress_block(data: bytes, compression: Compression) -> bytes:
    """The inverse of `compress_block`; raises `OSError` or `zlib.error` on damaged bytes."""
    if compression == "none":
        return data
    with pa.input_stream(pa.BufferReader(data), compression={"gz": "gzip", "zst": "zstd"}[compression]) as stream:
        return bytes(stream.read())
