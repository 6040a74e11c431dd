"""Read the rows of chat files in batches, and keep going after broken rows.

Formats: JSON lines, JSON arrays (or objects one after another), Parquet, Arrow, CSV and TSV, also
with gzip and zstd. A line that is not valid JSON becomes a `BrokenRow` in its position, so that it
can be counted with its file and line. A file that cannot be read at all raises `InputError`. Memory
is O(batch): a batch has at most `batch_rows` rows, and ends once it holds `batch_bytes` of text. A
line longer than `line_bytes` is skipped without being held. A JSON array is decoded object by
object, an Arrow file by its record batches, delimited text by its blocks.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.bins import Alignment
from headrace.digest import DECODER, RepeatedKey, loads
from headrace.errors import InputError, setting, setting_name
from headrace.formats.column_paths import value_at
from headrace.formats.dialect import PLAIN, TextDialect
from headrace.formats.plain_types import refusal
from headrace.formats.registry import (
    FileType,
    detect,
    file_type_of_name,
    holds_nothing,
    open_bytes,
)
from headrace.formats.shard import Shard
from headrace.formats.text_columns import nulled
from headrace.packing.chats.layouts import NAMES
from headrace.packing.chats.rejections import RowRejected, preview
from headrace.packing.storage.legacy import read_legacy, sequences_of_bins

NPY = ".npy"  # a pickle of packed bins
BATCH_ROWS = 1000
BATCH_BYTES = 16 << 20
LINE_BYTES = 256 << 20
_READ_BYTES = 1 << 20
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1f]")
_BOM = b"\xef\xbb\xbf"
_WHITE = re.compile(r"[ \t\r\n]*")
_BETWEEN = re.compile(r"[ \t\r\n,]*")


@dataclass(frozen=True, slots=True)
class BrokenRow:
    """A row that could not be read. reason: a word of `rejections.REASONS`."""

    reason: str
    detail: str


Row = Mapping[str, Any] | BrokenRow


@dataclass(frozen=True, slots=True)
class RowBatch:
    """Rows of one file in file order.

    numbers: of each row, from 1. unit: what they count, "line" or "row". unread: columns of the
    file that are not in the rows.
    """

    file: str
    unit: str
    numbers: list[int]
    rows: list[Row]
    unread: Collection[str] = ()

    def row_words(self, row: int) -> str:
        """Return the line or the number of a row of this batch as text."""
        return f"{self.unit} {self.numbers[row]}"

    def where(self, row: int) -> str:
        """Return the file and line of a row of this batch as text."""
        return f"{self.file}: {self.row_words(row)}"


def read_rows(  # noqa: PLR0913 - arguments are settings of reading
    path: Path,
    *,
    name: str | None = None,
    part: tuple[int, int] = (0, 1),
    batch_rows: int = BATCH_ROWS,
    batch_bytes: int = BATCH_BYTES,
    line_bytes: int = LINE_BYTES,
    alignment: Alignment | None = None,
    named: Collection[str] | None = None,
    unread: Collection[str] = (),
    dialect: TextDialect = PLAIN,
) -> Iterator[RowBatch]:
    """Read the rows of a file in order, in batches; blank lines are not rows.

    name: the file's name in messages; the path if None. part: (k, n) gives every n-th row from the
    k-th on, 0-based. The n parts together are all rows, each once. Lines of other parts are not
    parsed. alignment: of the masks in a pickled .npy of bins. named: the columns that settings
    name; others whose type is not read are left out. None: all are needed but those in `unread`.
    dialect: of delimited text, whose values are texts, and null where a field is empty. Raises
    `InputError` for other formats and for damaged files.
    """
    name = name or str(path)
    if path.suffix == NPY:
        yield from _sequences_of_bins(path, name, part, alignment, batch_rows)
        return
    file_type = _detected(path)
    if holds_nothing(path, file_type, dialect):
        return
    left_out: set[str] = set()
    is_lines = file_type.format.name == "jsonl"
    if is_lines:
        numbered_rows = _lines(path, file_type, part, line_bytes)
    elif file_type.format.name == "json":
        numbered_rows = _values(path, file_type, part)
    else:
        code = file_type.format.load()
        shard = code.survey(path, path.name, file_type, dialect=dialect)
        columns = _columns_to_read(shard, named, unread)
        left_out = set(shard.schema.names).difference(columns)
        numbered_rows = _own_rows(_tables(shard, columns, batch_rows, batch_bytes), part)
    unit = "row"
    if is_lines:
        unit = "line"
    numbers: list[int] = []
    rows: list[Row] = []
    size = 0
    for number, row, row_bytes in numbered_rows:
        numbers.append(number)
        rows.append(row)
        size += row_bytes
        if len(rows) >= batch_rows or size >= batch_bytes:
            yield RowBatch(name, unit, numbers, rows, left_out)
            numbers = []
            rows = []
            size = 0
    if rows:
        yield RowBatch(name, unit, numbers, rows, left_out)


def _detected(path: Path) -> FileType:
    """Detect the type of a file of chats. Raises `InputError`."""
    try:
        return detect(path)
    except InputError:
        # a text that does not begin with JSON may be JSON lines whose first lines are broken
        known = file_type_of_name(path.name)
        if (
            known is None
            or known.format.name != "jsonl"
            or _CONTROL.search(next(_chunks(path, known), b""))
        ):
            raise
        return known


def _sequences_of_bins(
    path: Path, name: str, part: tuple[int, int], alignment: Alignment | None, batch_rows: int
) -> Iterator[RowBatch]:
    """Read the sequences of pickled bins as rows of tokens. Memory: O(file)."""
    if alignment is None:
        raise InputError(
            f"a pickled .npy does not say the {setting_name('alignment')} of its loss masks",
            path=path,
            remedy=(
                f"give {setting('alignment', 'legacy_roll_right')}, as most older files have it, or"
                f" {setting('alignment', 'shift_left')}"
            ),
        )
    remainder, modulus = part
    first = 0
    for bins in read_legacy(path, bins_at_once=batch_rows):
        sequences = sequences_of_bins(bins, alignment)
        indices = range((remainder - first) % modulus, len(sequences), modulus)
        rows: list[Row] = []
        for index in indices:
            ids, mask = sequences[index]
            rows.append({"input_ids": ids, "loss_mask": mask})
        if rows:
            yield RowBatch(name, "row", [first + index + 1 for index in indices], rows)
        first += len(sequences)


def row_of_line(line: bytes) -> Row:
    """Parse the object of one line, or return what is wrong with it."""
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        return BrokenRow(
            "broken_utf8",
            f"byte {error.start} of the line is not UTF-8: {preview(line[error.start :][:8])}",
        )
    try:
        return _row_of_value(loads(text))
    except RepeatedKey as error:
        return BrokenRow("repeated_key", f"{error}: {preview(text)}")
    except (ValueError, RecursionError) as error:
        return BrokenRow("broken_json", f"{error}: {preview(text)}")


def _row_of_value(value: object) -> Row:
    if isinstance(value, dict | BrokenRow):
        return value
    return BrokenRow("not_an_object", f"the row is {preview(value)}")


def filter_row(row: Mapping[str, Any], filters: Sequence[tuple[str, frozenset[str]]]) -> None:
    """Raise `RowRejected` if a filter leaves out the row: its cell, which may be a list, holds none
    of the words.
    """
    for name, words in filters if isinstance(row, Mapping) else ():
        value = value_at(row, name)
        cell: Sequence[Any] = [value]
        if isinstance(value, str):
            cell = value.split(",")
        elif isinstance(value, Sequence):
            cell = value
        if value is None or words.isdisjoint(str(word).strip() for word in cell):
            raise RowRejected("filtered", f"{name} is {preview(value)}")


def _chunks(path: Path, file_type: FileType) -> Iterator[bytes]:
    try:
        with open_bytes(path, file_type.compression) as stream:
            while block := stream.read(_READ_BYTES):
                yield bytes(block)
    except OSError as error:
        raise InputError(
            f"{error}; the file is cut or damaged", path=path, remedy="fetch it again"
        ) from error


def _lines(
    path: Path, file_type: FileType, part: tuple[int, int], line_bytes: int
) -> Iterator[tuple[int, Row, int]]:
    index = 0  # index of the row, without blank lines
    for number, line in enumerate(_complete_lines(_chunks(path, file_type), line_bytes), 1):
        if number == 1 and line is not None:
            line = line.removeprefix(_BOM)
        if line is not None and not line.strip():
            continue
        if index % part[1] == part[0]:
            row: Row = BrokenRow("too_long_line", f"more than {line_bytes:,} bytes")
            if line is not None:
                row = row_of_line(line)
            yield number, row, len(line or b"")
        index += 1


def _complete_lines(chunks: Iterator[bytes], line_bytes: int) -> Iterator[bytes | None]:
    """Yield lines without their ends; None for a line that is too long to hold."""
    parts: list[bytes] = []
    size = 0
    for chunk in chunks:
        first, *others = chunk.split(b"\n")
        size += len(first)
        if size <= line_bytes:
            parts = [*parts, first]
        else:
            parts = []
        if others:
            yield b"".join(parts) if size <= line_bytes else None
            for line in others[:-1]:
                yield line if len(line) <= line_bytes else None
            parts = [others[-1]]
            size = len(others[-1])
    if size:
        yield b"".join(parts) if size <= line_bytes else None


def _complete_value(
    text: str, at: int, path: Path, index: int, *, more: bool
) -> tuple[Any, int] | None:
    """Decode the value at a position; return it and its end.

    None if the value may continue in text that is not read yet. Raises `InputError` if there is no
    more text and the value is not valid.
    """
    try:
        value, end = _decoded(text, at)
    except (ValueError, RecursionError) as error:
        if more:
            return None
        raise InputError(
            f"it is not valid JSON ({error}), and the rows after it cannot be separated",
            path=path,
            row=index + 1,
            remedy="correct the file",
        ) from error
    if end < len(text) or not more or isinstance(value, dict | BrokenRow):
        return value, end
    return None  # a number that may continue


def _values(
    path: Path, file_type: FileType, part: tuple[int, int]
) -> Iterator[tuple[int, Row, int]]:
    """Yield the objects of an array, or of a file of concatenated objects."""
    text = ""
    at = 0
    inside = False
    ended = False
    index = 0
    needed_characters = _READ_BYTES
    texts = _texts(path, file_type)
    more = True
    while True:
        at = (_BETWEEN if inside else _WHITE).match(text, at).end()  # type: ignore[union-attr]  # both match anything
        if at < len(text) and (
            text[at] == "]" if inside else text[at] == "[" and not (index or ended)
        ):
            inside, ended, at = not inside, inside, at + 1
            continue
        if at < len(text):
            if ended:
                raise InputError(
                    f"text after the array: {preview(text[at : at + 40])}",
                    path=path,
                    remedy="correct the file",
                )
            decoded = _complete_value(text, at, path, index, more=more)
            if decoded is not None:
                value, end = decoded
                if index % part[1] == part[0]:
                    yield index + 1, _row_of_value(value), end - at
                index += 1
                at = end
                needed_characters = _READ_BYTES
                continue
        if not more:
            if inside:
                raise InputError(
                    "the array does not end; the file is cut", path=path, remedy="fetch it again"
                )
            return
        text = text[at:]
        at = 0
        while len(text) < needed_characters and more:
            chunk = next(texts, None)
            more = chunk is not None
            text = text + (chunk or "")
        # retry a longer value with twice the text
        needed_characters = max(2 * len(text), _READ_BYTES)


def _decoded(text: str, at: int) -> tuple[object, int]:
    """Decode the JSON value at a position and return its end too; a `BrokenRow` if it repeats a
    key.
    """
    try:
        return DECODER.raw_decode(text, at)
    except RepeatedKey as error:
        end = json.JSONDecoder().raw_decode(text, at)[1]
        return BrokenRow("repeated_key", f"{error}: {preview(text[at:end])}"), end


def _texts(path: Path, file_type: FileType) -> Iterator[str]:
    """Yield the text of a file; bytes that are not UTF-8 become lone surrogates, which later reject
    their row.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    for number, chunk in enumerate(_chunks(path, file_type)):
        yield decoder.decode(chunk if number else chunk.removeprefix(_BOM))
    yield decoder.decode(b"", final=True)


def _columns_to_read(
    shard: Shard, named: Collection[str] | None, unread: Collection[str]
) -> list[str]:
    """Return the columns of types that are read. Raises `InputError` if another one is needed."""
    columns = []
    for field in shard.schema:
        error = refusal(field.type)
        if error is None:
            columns.append(field.name)
        elif field.name in unread:
            continue
        elif named is None or field.name in NAMES or _is_named(field.name, named):
            raise error.at(path=shard.path, column=field.name)
    return columns


def _is_named(column: str, named: Collection[str]) -> bool:
    return any(name == column or name.startswith(f"{column}.") for name in named)


def _tables(
    shard: Shard, columns: Sequence[str], batch_rows: int, batch_bytes: int
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield the rows of a file of columns, with the average size of a row."""
    code = shard.file_type.format.load()
    most_rows = batch_rows
    if shard.dialect is None:  # blocks of text are known when it was read
        spans = code.blocks(shard)
        mean = sum(span.length for span in spans) // max(1, sum(span.rows for span in spans))
        most_rows = max(1, min(batch_rows, batch_bytes // max(1, mean)))
    for chunk in code.read(shard, columns, most_rows=most_rows):
        table = chunk.table(columns)
        if shard.dialect is not None:
            nulls = ("", *shard.dialect.text.null_values)
            texts = [nulled(column, nulls) for column in table.columns]
            table = pa.Table.from_arrays(texts, columns)
        size = table.nbytes // max(1, chunk.rows)
        for batch in table.to_batches(max(1, min(batch_rows, batch_bytes // max(1, size)))):
            yield batch, size


def _own_rows(
    batches: Iterator[tuple[pa.RecordBatch, int]], part: tuple[int, int]
) -> Iterator[tuple[int, Row, int]]:
    """Yield the rows of a part, with their numbers from 1.

    Null in a struct, which has every key, is an absent key.
    """
    first = 0
    for batch, size in batches:
        count = batch.num_rows
        indices = range((part[0] - first) % part[1], count, part[1])
        if len(indices) < count:
            batch = batch.take(pa.array(indices, pa.int64()))
        nested = []
        for field in batch.schema:
            if _has_struct(field.type):
                nested.append(field.name)
        for index, row in zip(indices, batch.to_pylist(maps_as_pydicts="lossy"), strict=True):
            for key in nested:
                row[key] = _drop_nulls(row[key])
            yield first + index + 1, row, size
        first += count


def _drop_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        result = {}
        for key, inner in value.items():
            if inner is not None:
                result[key] = _drop_nulls(inner)
        return result
    if isinstance(value, list):
        return [_drop_nulls(inner) for inner in value]
    return value


def _has_struct(data_type: pa.DataType) -> bool:
    if pa.types.is_struct(data_type):
        return True
    return pa.types.is_nested(data_type) and any(
        _has_struct(data_type.field(index).type) for index in range(data_type.num_fields)
    )
