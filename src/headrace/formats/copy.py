"""The rows of a text shard as bytes, for rows that only change place.

The sizes of the records are known from an earlier pass, so nothing is searched: bytes in, record boundaries by adding
up, one filter. O(chunk) of memory.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from headrace.arrays import I32
from headrace.errors import InputError
from headrace.formats import records
from headrace.formats.detect import open_bytes
from headrace.formats.shard import Shard

CHUNK_BYTES = 16 << 20


def copied_records(shard: Shard, sizes: I32, chunk_bytes: int = CHUNK_BYTES) -> Iterator[pa.LargeBinaryArray]:
    """Each row's bytes, line end included, in file order and in chunks; the last row gets a line end if it has none.

    sizes: bytes of every row, int32 [rows]. Raises `InputError` if the file no longer has these rows.
    """
    ends = np.cumsum(sizes, dtype=np.int64)
    newline = shard.dialect.newline.encode() if shard.dialect is not None else b"\n"
    row = 0
    try:
        with open_bytes(shard.path, shard.kind.compression) as stream:
            if shard.dialect is not None and shard.dialect.header_bytes:
                stream.read(shard.dialect.header_bytes)
            while row < len(ends):
                start = int(ends[row - 1]) if row else 0
                stop_row = max(row + 1, int(np.searchsorted(ends, start + chunk_bytes, side="right")))
                size = int(ends[stop_row - 1]) - start
                data = stream.read_buffer(size)
                bounds = ends[row:stop_row] - start
                if len(data) == size and stop_row == len(ends) and data[-1:].to_pybytes() != b"\n":
                    data = pa.py_buffer(data.to_pybytes() + newline)
                    bounds = np.append(bounds[:-1], len(data))
                if len(data) < size:
                    raise InputError(f"{shard.path}: is shorter than it was; run again once it is complete")
                yield records.slices(data, bounds)
                row = stop_row
    except OSError as error:
        raise InputError(f"{shard.path}: {error}; the file is cut or damaged, fetch it again") from error
