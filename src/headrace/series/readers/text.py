"""Read CSV files with comment lines, and GRDC files.

Such a file is read and decoded as a whole, so memory is O(file). Quotes, separators and numbers of
fields are checked as strictly as in any CSV file.

A file of the Global Runoff Data Centre begins with comment lines in Latin-1. Its columns are
separated by semicolons: a day as YYYY-MM-DD (a month ends in -00), a clock as hh:mm or --:--, then
one or several columns of discharge in m³/s.
-999 is missing. The file name begins with the station number: 1134100_Q_Day.Cmd.txt.
"""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import InputError
from headrace.formats import delimited
from headrace.formats.decoding import decoded
from headrace.formats.dialect import TextDialect
from headrace.formats.registry import Compression, FileType, open_bytes, read_whole, reading

GRDC_NAME = re.compile(r"(\d+)_Q_\w+.*", re.IGNORECASE)
_GRDC_TIME = ("YYYY-MM-DD", "hh:mm")
_GRDC_DIALECT = TextDialect(encoding="latin-1")
_GRDC_MISSING = r"^\s*-999(\.0*)?\s*$"


def text_table(
    path: Path, name: str, file_type: FileType, *, comment: str | None, dialect: TextDialect
) -> pa.Table:
    """Read a delimited file as text. Raises `InputError`.

    comment: lines that begin with it, after blanks, are skipped.
    """
    with reading(path), open_bytes(path, file_type.compression) as stream:
        data = read_whole(path, stream, file_type.compression)
    data = decoded(data, path, dialect.of_file(data[:4]))
    data = data[delimited.lines_end(data, dialect.skip_rows) :]
    if comment is not None:
        data = re.sub(
            rb"(?m)^[ \t]*" + re.escape(comment.encode()) + rb"[^\n]*(\n|\Z)", b"", data
        ).lstrip(b"\r\n")
    if not data.strip():
        return pa.table({})
    shard = delimited.survey(path, name, file_type, dialect=dialect.written, text=data)
    assert shard.dialect is not None
    return delimited.parse_block(data[shard.dialect.header_bytes :], shard, None)


def grdc_table(path: Path, time: str) -> pa.Table:
    """Read a GRDC file: its times as the column `time`, and its other columns under their names, as
    text.
    """
    if path.suffix == ".gz":
        compression: Compression = "gz"
    else:
        compression = "none"
    raw = text_table(
        path, path.name, FileType.named("csv", compression), comment="#", dialect=_GRDC_DIALECT
    )
    table = raw.rename_columns([name.strip() for name in raw.column_names])
    if _GRDC_TIME[0] not in table.column_names:
        raise InputError(
            f"its first line after the comments names {', '.join(table.column_names)}, and not"
            " YYYY-MM-DD as in files of the GRDC",
            path=path,
            remedy="give another reader",
        )
    times = pc.replace_substring_regex(
        pc.utf8_trim_whitespace(table[_GRDC_TIME[0]]), r"-00$", "-01"
    )
    if _GRDC_TIME[1] in table.column_names:
        clocks = pc.fill_null(pc.utf8_trim_whitespace(table[_GRDC_TIME[1]]), "--:--")
        has_clock = pc.match_substring_regex(clocks, r"^[0-9]{1,2}:")
        times = pc.if_else(
            has_clock, pc.binary_join_element_wise(times, clocks, pa.scalar(" ", times.type)), times
        )
    values = {}
    for name in table.column_names:
        if name not in _GRDC_TIME:
            values[name] = pc.if_else(
                pc.match_substring_regex(table[name], _GRDC_MISSING), None, table[name]
            )
    return pa.table({time: times, **values})
