"""Read CSV files with comment lines.

Such a file is read and decoded as a whole, so memory is O(file). Quotes, separators and numbers of
fields are checked as strictly as in any CSV file.
"""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa

from headrace.formats import delimited
from headrace.formats.decoding import decoded
from headrace.formats.dialect import TextDialect
from headrace.formats.registry import FileType, open_bytes, read_whole, reading


def text_table(
    path: Path, name: str, file_type: FileType, *, comment: str | None, dialect: TextDialect
) -> pa.Table:
    """Read a delimited file as text. Raises `InputError`.

    comment: lines that begin with it, after blanks, are skipped.
    """
    with reading(path), open_bytes(path, file_type.compression) as stream:
        data = read_whole(path, stream, file_type.compression)
    data = decoded(data, path, dialect.of_file(data[:4]))
    if comment is not None:
        data = re.sub(
            rb"(?m)^[ \t]*" + re.escape(comment.encode()) + rb"[^\n]*(\n|\Z)", b"", data
        ).lstrip(b"\r\n")
    if not data.strip():
        return pa.table({})
    shard = delimited.survey(path, name, file_type, dialect=dialect.written, text=data)
    assert shard.dialect is not None
    return delimited.parse_block(data[shard.dialect.header_bytes :], shard, None)
