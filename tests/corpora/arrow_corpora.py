"""The corpora of Parquet and Arrow files, and pyarrow as the reference."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from corpus import SHARED, Corpus, Refused

# A minute of work to decompress 2 GiB; a test of its own reads it once.
LARGE = "data/large_string_map.brotli.parquet"
_NO_DATA = {".md", ".txt", ".csv", ".bin", ".json", ".py", ".metadata", ".value"}


def _below(name: str) -> Mapping[str, Path]:
    root = SHARED / name
    files = sorted(path for path in root.rglob("*") if path.is_file())
    return {
        path.relative_to(root).as_posix(): path for path in files if path.suffix not in _NO_DATA
    }


def _parquet_files() -> Mapping[str, Path]:
    files = dict(_below("parquet"))
    del files[LARGE]
    return files


def _arrow_files() -> Mapping[str, Path]:
    return _below("arrow")


def _parquet(path: Path) -> str:
    return ".parquet"


def _arrow(path: Path) -> str:
    return ".arrow"


def _read_parquet(path: Path, schema: pa.Schema) -> pa.Table:
    try:
        # `read_table` would read INT96 as nanoseconds, which wrap around
        with pq.ParquetFile(
            path, coerce_int96_timestamp_unit="us", page_checksum_verification=True
        ) as file:
            table = file.read(use_threads=False)
        table.validate(full=True)
    except Exception as error:
        raise Refused(str(error)) from error
    return table


def _read_arrow(path: Path, schema: pa.Schema) -> pa.Table:
    data = path.read_bytes()
    try:
        if data.startswith(b"ARROW1"):
            table = pa.ipc.open_file(data).read_all()
        else:
            table = pa.ipc.open_stream(data).read_all()
        table.validate(full=True)
        str(table.schema)
    except Exception as error:
        raise Refused(str(error)) from error
    return table


PARQUET = Corpus(
    address="arrow_corpora:PARQUET", files=_parquet_files, extension=_parquet, truth=_read_parquet
)
ARROW = Corpus(
    address="arrow_corpora:ARROW", files=_arrow_files, extension=_arrow, truth=_read_arrow
)
