"""Parse rows of CSV and TSV to columns: a few are cut from the bytes, others go through Arrow on
the calling thread.

Text stays text: nothing is inferred, an empty field is null, a quoted empty field is empty text. If
few columns are wanted, they are cut at the separators, found for all rows at once. Quoted columns
and whole tables are parsed. Numbers of a streamed block are parsed to numbers directly,
without text in between (`parse_numbers`). Memory is O(block).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from headrace.arrays import I32, I64, U64
from headrace.errors import InputError, setting
from headrace.formats import records
from headrace.formats.content import NOTHING, chain
from headrace.formats.decoding import not_utf8
from headrace.formats.dialect import BACKSLASH, TextDialect
from headrace.formats.registry import open_text
from headrace.formats.regular import RowLines, has_hexadecimal, regular_rows
from headrace.formats.shard import BOM, Shard

FEW_COLUMNS = 4  # up to this number, cutting columns from the bytes beats parsing
_AT_ONCE = 1 << 20  # bytes parsed at once: more do not stay in the CPU cache
_FIELD = 256  # greatest mean bytes of a field in a very wide row
_COUNTED_AT_ONCE = 32 << 20
_BATCH_ROWS = 1 << 15  # digested at once: arrays of this size reuse memory instead of new pages
_ALL = slice(0, None)
_TITLES = 20  # rows above a header at most


@dataclass
class DelimitedChunk:
    """Whole records of a CSV or TSV file.

    `first_row` counts data rows from 0. original: the bytes of the file, if blank lines were left
    out. offset: of these bytes in the text of the file, if known.
    """

    shard: Shard
    marked: records.Marked
    first_row: int
    ends: I64
    original: records.Data | None = None
    offset: int | None = None
    _checked: bool = False
    _parsed: dict[str, pa.ChunkedArray] = field(default_factory=dict)
    _known: records.Stops = field(default_factory=dict)

    @property
    def data(self) -> records.Data:
        """The bytes of the records."""
        return self.marked.data

    @property
    def rows(self) -> int:
        """The number of records."""
        return len(self.ends)

    def sizes(self) -> I32 | None:
        """Return the bytes of every row, line end included; None if there are blank lines between
        rows.
        """
        if self.original is not None:
            return None
        return np.diff(self.ends, prepend=0).astype(np.int32)

    def head(self, rows: int) -> DelimitedChunk:
        """Return the first rows as a chunk that has nothing parsed."""
        if rows >= self.rows:
            return self
        ends = self.ends[:rows]
        stop = int(ends[-1]) if rows else 0
        data, marks, quotes = self.marked
        inside = quotes[: int(np.searchsorted(quotes, stop))]
        marked = records.Marked(pa.py_buffer(data).slice(0, stop), marks[:stop], inside)
        return DelimitedChunk(self.shard, marked, self.first_row, ends, self.original, self.offset)

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return columns as text.

        Raises `InputError` naming the row that has too few or too many fields.
        """
        names = self.shard.schema.names
        selected = list(names if columns is None else columns)
        missing = [name for name in selected if name not in self._parsed]
        if missing and not self._checked:
            self._check_text()
            self._checked = True
        index_of_name = {name: index for index, name in enumerate(names)}
        few_missing = len(missing) <= FEW_COLUMNS < len(names)
        if missing and (few_missing or self._text.escape is not None):
            self._parsed |= self._cut([index_of_name[name] for name in missing])
            missing = [name for name in missing if name not in self._parsed]
        if missing:
            self._parsed.update(
                zip(
                    missing,
                    self._parse([index_of_name[name] for name in missing]).columns,
                    strict=True,
                )
            )
        return pa.table({name: self._parsed[name] for name in selected})

    @property
    def _separator(self) -> str:
        assert self.shard.dialect is not None
        return self.shard.dialect.separator

    @property
    def _text(self) -> TextDialect:
        assert self.shard.dialect is not None
        return self.shard.dialect.text

    def _check_text(self) -> None:
        """Check that everything is UTF-8 and that all readers interpret every quote alike."""
        if not records.is_utf8(self.data):
            try:
                bytes(self.data).decode("utf-8")
            except UnicodeDecodeError as error:
                raise not_utf8(self.shard.path, error.object, self._row_at(error.start)) from error
        _, marks, quotes = self.marked
        at = records.first_stray_quote(marks, quotes, ord(self._separator))
        if at is not None:
            near = bytes(self.data[max(0, at - 40) : at + 40]).decode("utf-8", "replace")
            raise InputError(
                f"a quote inside a field, near {near!r}",
                path=self.shard.path,
                row=self._row_at(at),
                remedy=self._quotes_remedy(),
            )

    def _quotes_remedy(self) -> str:
        return (
            "quote fields that hold quotes, double the quotes inside, or if"
            f" {quotes_remedy(bytes(self.data), self._text)}"
        )

    def _row_at(self, position: int) -> int:
        """Return the number of the row at a position, counted from 1 in the file."""
        return self.first_row + int(np.searchsorted(self.ends, position, side="right")) + 1

    def _stops(self, indices: Sequence[int]) -> records.Stops:
        """Find where fields end, row by row.

        Raises `InputError` if a row has a wrong number of fields.
        """
        if indices and set(indices) <= self._known.keys():
            return self._known
        width = len(self.shard.schema)
        _, data, quotes = self.marked
        separator = ord(self._separator)
        stops = records.field_stops(
            data, quotes, rows=self.rows, separator=separator, width=width, columns=indices
        )
        if stops is not None:
            self._known |= stops
            return stops
        fields = records.fields_per_record(
            records.outside_quotes(data, quotes, separator), self.ends
        )
        row = int(np.flatnonzero(fields != width)[0])
        start = 0
        if row:
            start = int(self.ends[row - 1])
        line = bytes(self.data[start : int(self.ends[row])]).decode("utf-8", "replace").strip()
        on_line = ""
        if self.offset is not None:
            on_line = f" on line {lines_before(self.shard, self.offset) + self._lines(row) + 1:,}"
        raise InputError(
            f"it has {int(fields[row])} fields{on_line}, the header {width}: {line[:120]!r}",
            path=self.shard.path,
            row=self._row_at(start),
            remedy=self._width_remedy(wider=fields[row] > width and self._row_at(start) < _TITLES),
        )

    def _lines(self, row: int) -> int:
        """Count the lines before a row, from the beginning of the chunk."""
        data, marks, quotes = self.marked
        ends = self.ends
        if self.original is not None:
            data, marks, quotes = records.mark(self.original, self._text)
            ends = records.record_ends(marks, quotes)
            row = int(np.flatnonzero(~records.blank(marks, ends))[row])
        start = int(np.append(0, ends)[row])
        return int(np.count_nonzero(records.as_bytes(data)[:start] == records.NEWLINE))

    def _width_remedy(self, *, wider: bool) -> str:
        remedy = "complete or remove that row"
        if wider:
            lines = setting("dialect", {"skip_rows": 1})
            remedy += f"; if the line of names stands below others, such as a title, give {lines}"
        if self._text.quoting == "none":
            return f"{remedy}, or leave {setting('dialect', {'quoting': 'none'})} out"
        if self._text.escape is None and b"\\" in bytes(self.data):
            escapes = setting("dialect", {"escape": BACKSLASH})
            return f"{remedy}, or if a backslash escapes separators, give {escapes}"
        return remedy

    def _spans(self, runs: Sequence[tuple[int, int]], rows: slice = _ALL) -> list[tuple[I64, I64]]:
        """Find start and end in every row of each run of adjacent columns (first, last)."""
        last = len(self.shard.schema) - 1
        stops = self._stops(
            sorted({index for run in runs for index in (run[0] - 1, run[1]) if 0 <= index < last})
        )
        data = self.marked.marks
        row_ends = self.ends[rows]
        row_starts = np.zeros_like(row_ends)
        if rows.start:
            row_starts[:1] = self.ends[rows.start - 1]
        else:
            row_starts[:1] = 0
        row_starts[1:] = row_ends[:-1]
        spans = []
        for first, final in runs:
            if first:
                starts = stops[first - 1][rows] + 1
            else:
                starts = row_starts
            if final < last:
                ends = stops[final][rows]
            else:  # without the line end
                ends = row_ends - 1
                ends[-1:] += data[row_ends[-1:] - 1] != records.NEWLINE
                ends -= (ends > row_starts) & (data[np.maximum(ends - 1, 0)] == records.RETURN)
            spans.append((starts, ends))
        return spans

    def digests(self, columns: Sequence[str]) -> U64:  # noqa: PLR0914 - one computation
        """Digest the fields of these columns, row by row, from the bytes of the file; 0 if all
        fields are empty.

        Fields that are equal as text have equal digests, quoted or not, in files with the same
        separator and column order. The hash is polars', which is stable only within one version, so
        digests may be compared within one run only.
        """
        import polars as pl

        names = self.shard.schema.names
        selected = set(columns)
        indices = [index for index, name in enumerate(names) if name in selected]
        first = [
            index
            for index, before in zip(indices, [-2, *indices], strict=False)
            if index - 1 != before
        ]
        final = [
            index
            for index, after in zip(indices, [*indices[1:], -1], strict=True)
            if index + 1 != after
        ]
        runs = list(zip(first, final, strict=True))
        _, marks, quotes = self.marked
        loose = records.loose_quotes(marks, quotes, ord(self._separator))
        rows = np.unique(np.searchsorted(self.ends, loose, side="right"))
        texts = []
        if len(rows):
            texts = self._rendered(rows, runs)
        digests = np.zeros(self.rows, np.uint64)
        for begin in range(0, self.rows, _BATCH_ROWS):
            batch = slice(begin, min(begin + _BATCH_ROWS, self.rows))
            special = slice(*np.searchsorted(rows, (batch.start, batch.stop)).tolist())
            at = rows[special] - begin
            result = digests[batch]
            text_bytes = np.zeros(len(result), np.int64)
            for number, (starts, ends) in enumerate(self._spans(runs, batch)):
                hashes = pl.Series(records.views(self.data, starts, ends)).hash(seed=0).to_numpy()
                sizes = ends - starts
                if len(at):
                    hashes = hashes.copy()
                    text = texts[number][special]
                    hashes[at] = pl.Series(pl.from_arrow(text)).hash(seed=0).to_numpy()
                    sizes[at] = pc.binary_length(text).to_numpy()
                text_bytes += sizes
                if len(runs) > 1:
                    chain(result, hashes)
                else:
                    result[:] = hashes
            result[result == NOTHING] = 1
            result[text_bytes == len(indices) - len(runs)] = NOTHING  # only separators
        return digests

    def _rendered(self, rows: I64, runs: Sequence[tuple[int, int]]) -> list[pa.LargeBinaryArray]:
        """Parse rows, and render the fields of each run with only the necessary quotes."""
        chosen = np.zeros(self.rows, np.bool_)
        chosen[rows] = True
        data = records.joined(records.slices(self.data, self.ends).filter(pa.array(chosen)))
        indices = [index for first, final in runs for index in range(first, final + 1)]
        longest = int(np.diff(self.ends, prepend=0).max()) + 1
        types = dict.fromkeys(indices, pa.large_string())
        fields = parse(data, self._separator, len(self.shard.schema), types, longest=longest)
        quote = pa.scalar('"', pa.large_string())
        empty = pa.scalar("", pa.large_string())
        plain = {}
        for index, column in zip(indices, fields.columns, strict=True):
            text = column.combine_chunks()
            special = pc.match_substring_regex(text, f'[{re.escape(self._separator)}\n"]')
            quoted = pc.binary_join_element_wise(
                quote, pc.replace_substring(text, '"', '""'), quote, empty
            )
            plain[index] = pc.if_else(special, quoted, text).cast(pa.large_binary())
        separator = pa.scalar(self._separator.encode(), pa.large_binary())
        rendered = []
        for first, final in runs:
            parts = [plain[index] for index in range(first, final + 1)]
            rendered.append(
                pc.binary_join_element_wise(
                    *parts, separator, null_handling="replace", null_replacement=b""
                )
            )
        return rendered

    def _cut(self, indices: list[int]) -> dict[str, pa.ChunkedArray]:
        """Cut columns from the bytes, by name; columns with quoted fields are left out because they
        must be parsed, if nothing is escaped.
        """
        escape = self._text.escape is not None
        data = records.as_bytes(self.data)
        columns = {}
        for index, (starts, ends) in zip(
            indices, self._spans([(index, index) for index in indices]), strict=True
        ):
            if escape:
                text = unescaped(self.marked, starts, ends)
                columns[self.shard.schema.names[index]] = pa.chunked_array([text])
                continue
            quoted = data[starts[starts < ends]] == records.QUOTE
            if len(self.marked.quotes) and quoted.any():
                continue
            text = records.cut(self.data, starts, ends).cast(pa.large_string())
            if (starts == ends).any():
                text = pc.if_else(
                    pa.array(starts == ends), pa.scalar(None, pa.large_string()), text
                )
            columns[self.shard.schema.names[index]] = pa.chunked_array([text])
        return columns

    def _parse(self, indices: list[int]) -> pa.Table:
        types = dict.fromkeys(indices, pa.large_string())
        if not len(self.data):
            return pa.schema([(str(index), type_) for index, type_ in types.items()]).empty_table()
        longest = int(np.diff(self.ends, prepend=0).max()) + 1
        try:
            table = parse(
                self.data,
                self._separator,
                len(self.shard.schema),
                types,
                quoting=self._text.quoting,
                longest=longest,
            )
        except pa.ArrowInvalid as error:
            self._stops([])  # raises for a row with too few or too many fields
            raise InputError(
                f"cannot be read as {self.shard.file_type.format.name}"
                f" ({str(error).splitlines()[0]})",
                path=self.shard.path,
                row=f"near row {self.first_row + 1}",
                remedy=self._quotes_remedy(),
            ) from error
        if table.num_rows != self.rows:
            raise InputError(
                "quotes do not pair up",
                path=self.shard.path,
                row=f"rows {self.first_row + 1} to {self.first_row + self.rows}",
                remedy=self._quotes_remedy(),
            )
        return table


def quotes_remedy(data: bytes, dialect: TextDialect) -> str:
    """Advise on text whose quotes do not pair up: the part of the dialect that may read it."""
    if dialect.escape is None and b'\\"' in data:
        return f"a backslash escapes quotes, give {setting('dialect', {'escape': BACKSLASH})}"
    return f"quotes are text, give {setting('dialect', {'quoting': 'none'})}"


def lines_before(shard: Shard, offset: int) -> int:
    """Count the lines before a position in the text of a file, which is read again: only errors
    need them.
    """
    assert shard.dialect is not None
    lines = 0
    with open_text(shard.path, shard.file_type.compression, shard.dialect.text) as stream:
        while offset and (block := stream.read(min(_COUNTED_AT_ONCE, offset))):
            lines += block.count(b"\n")
            offset -= len(block)
    return lines


def parse(  # noqa: PLR0913 - all are settings
    data: records.Data,
    separator: str,
    width: int,
    types: Mapping[int, pa.DataType],
    *,
    absent: Sequence[str] = ("",),
    quoted_absent: str = "text",
    quoting: str = "minimal",
    lines: RowLines = "several lines",
    longest: int = 0,
) -> pa.Table:
    """Parse the columns at some positions of whole records, each as its type, in the order of
    `types`.

    data: records of `width` fields, without a header. absent: texts that mean null; quoted_absent:
    "text" if they do not in quotes, else "null". quoting: as in `TextDialect`. lines: of a row
    at most. longest: bytes of the longest record, if known.
    Raises `pa.ArrowInvalid` for a record of another width, a value that does not fit, and a record
    of more than a MiB that exceeds `longest`.
    """
    array = records.as_bytes(data)
    quoted = quoting == "minimal" and bool((array == records.QUOTE).any())
    if array[:3].tobytes() == BOM:  # part of a value; but the parser strips one mark from any data
        data = BOM + bytes(data)
    # else Arrow treats a final empty field as quoted if the one before was
    if array[-1] != records.NEWLINE:
        data = bytes(data) + b"\n"
    names = [str(index) for index in range(width)]
    selected = [names[index] for index in types]
    read = pacsv.ReadOptions(
        use_threads=False,
        column_names=names,
        block_size=max(_AT_ONCE, _FIELD * width, longest + len(BOM)),
    )
    split = pacsv.ParseOptions(
        delimiter=separator,
        quote_char='"' if quoted else False,
        newlines_in_values=quoted and lines == "several lines",
        ignore_empty_lines=width > 1,
    )
    convert = pacsv.ConvertOptions(
        column_types=dict(zip(selected, types.values(), strict=True)),
        include_columns=selected,
        null_values=list(absent),
        strings_can_be_null=True,
        quoted_strings_can_be_null=quoted_absent == "null",
    )
    while True:
        with suppress(pa.ArrowCancelled):  # a signal that Python's handler has already processed
            return pacsv.read_csv(pa.BufferReader(data), read, split, convert).combine_chunks()


def parse_numbers(
    data: bytes,
    *,
    separator: str,
    names: Sequence[str],
    schema: pa.Schema,
    null_values: Sequence[str],
) -> pa.Table | None:
    """Parse the wanted columns: integers and floats as declared, the others as large strings.

    Arrow's parser and its cast from text read numbers by the same rule, except for surrounding
    space, which the parser drops. Neither refuses hexadecimal integers, nor numbers too large for
    a float; `text_columns.cast_text` does, so blocks with such texts are left to it. This path is
    taken only for regular data: strict quotes, line ends of one kind, no field with space at an
    edge, all of it UTF-8. The result then equals parsing to text and casting.
    names: of all fields of a record, in order. null_values: texts that mean a missing number,
    besides the empty one. Returns None if it is no faster, something is irregular, or a value does
    not fit. The path through text then returns the rows, or raises the error that names them.
    """
    numbers = _parsed_numbers(data, schema)
    texts = [name for name in schema.names if name not in numbers]
    if not data or len(names) < 2 or not numbers or any('"' in name for name in null_values):
        return None
    quoted = b'"' in data
    if len(schema) <= FEW_COLUMNS < len(names) and not quoted:  # cutting from the bytes is faster
        return None
    lines = regular_rows(data, ord(separator))
    if lines is None:
        return None
    quoting = "minimal" if quoted else "none"
    index_of_name = {name: index for index, name in enumerate(names)}

    def read(columns: Sequence[str], absent: Sequence[str], quoted_absent: str) -> pa.Table:
        at = dict.fromkeys([index_of_name[name] for name in columns], pa.large_string())
        at |= {index_of_name[name]: numbers[name] for name in columns if name in numbers}
        table = parse(
            data,
            separator,
            len(names),
            at,
            absent=absent,
            quoted_absent=quoted_absent,
            quoting=quoting,
            lines=lines,
        )
        return table.rename_columns(list(columns))

    absent = ("", *null_values)
    try:
        if not texts:
            table = read([*numbers], absent, "null")
        elif not null_values and not (quoted and b'""' in data):
            table = read(schema.names, absent, "text")
        else:
            tables = read([*numbers], absent, "null"), read(texts, ("",), "text")
            columns = {name: part[name] for part in tables for name in part.column_names}
            table = pa.table({name: columns[name] for name in schema.names})
    except pa.ArrowInvalid:
        return None
    return None if _has_infinity(table) else table  # a text may have been too large


def _parsed_numbers(data: bytes, schema: pa.Schema) -> dict[str, pa.DataType]:
    """Select the columns that the parser reads as the numbers they are: it takes 0x10 for 16."""
    types = {column.name: column.type for column in schema if _is_number(column.type)}
    integers = [name for name, type_ in types.items() if pa.types.is_integer(type_)]
    if integers and has_hexadecimal(data):
        for name in integers:
            del types[name]
    return types


def _has_infinity(table: pa.Table) -> bool:
    floats = [column for column in table.columns if pa.types.is_floating(column.type)]
    return any(np.isinf(column.to_numpy()).any() for column in floats)


_CONTROLS = {"0": 0, "b": 8, "t": 9, "n": 10, "r": 13, "Z": 26}  # as MySQL escapes them
_MEANT = np.arange(256, dtype=np.uint8)
_MEANT[[ord(letter) for letter in _CONTROLS]] = [*_CONTROLS.values()]


def unescaped(  # noqa: PLR0914 - one computation
    marked: records.Marked, starts: I64, ends: I64
) -> pa.LargeStringArray:
    r"""Return the text of fields in which a backslash escapes the next character.

    Quotes around a field are removed, and those inside it are doubled. Fields that are empty or
    \N without quotes are null.
    """
    raw = records.as_bytes(marked.data)
    marks = marked.marks
    filled = starts < ends
    first = np.minimum(starts, len(raw) - 1)
    is_quoted = filled & (marks[first] == records.QUOTE) & bool(len(marked.quotes))
    missing = ~filled
    two = ends - starts == 2
    missing |= (
        two
        & (raw[first] == records.BACKSLASH)
        & (raw[np.minimum(first + 1, len(raw) - 1)] == ord("N"))
    )
    values = records.cut(marked.data, starts + is_quoted, ends - is_quoted)
    shapes = records.cut(pa.py_buffer(marks), starts + is_quoted, ends - is_quoted)
    bounds = np.frombuffer(values.buffers()[1], np.int64, len(values) + 1, 8 * values.offset)
    data = records.as_bytes(values.buffers()[2] or b"")[bounds[0] : bounds[-1]]
    shape = records.as_bytes(shapes.buffers()[2] or b"")[bounds[0] : bounds[-1]]
    bounds = bounds - bounds[0]
    at = np.flatnonzero(data == records.BACKSLASH)
    starts_run = np.diff(at, prepend=-2) != 1
    run_start = np.maximum.accumulate(np.where(starts_run, at, 0))
    escapers = at[(at - run_start) & 1 == 0]
    escapers = escapers[escapers + 1 < len(data)]
    dropped = np.zeros(len(data), np.bool_)
    dropped[escapers] = True
    quotes = np.flatnonzero(shape == records.QUOTE)
    if len(quotes):
        inside = is_quoted[np.searchsorted(bounds, quotes, side="right") - 1]
        dropped[quotes[inside][1::2]] = True  # the second of each two
    if not dropped.any():
        unescaped, new_bounds = data, bounds
    else:
        data = data.copy()
        data[escapers + 1] = _MEANT[data[escapers + 1]]
        unescaped = data[~dropped]
        new_bounds = bounds - np.append(0, np.cumsum(dropped))[bounds]
    texts = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(starts), [None, pa.py_buffer(new_bounds), pa.py_buffer(unescaped)]
    ).cast(pa.large_string())
    if missing.any():
        return pc.if_else(pa.array(missing), pa.scalar(None, pa.large_string()), texts)
    return texts


def _is_number(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(type_) or pa.types.is_float32(type_) or pa.types.is_float64(type_)
    )
