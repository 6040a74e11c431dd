"""Look at the columns of a source in a few files and rows: their contents, and how much is missing.

Files are chosen evenly over the sorted names, so that repeated looks see the same files. Text
columns with only numbers count as numbers and those with only times as times, because CSV has no
other way to store them.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from headrace.checks import nearest
from headrace.cli.init.commented import Section
from headrace.cli.init.names import repeats_names, value_as_name
from headrace.cli.init.times import NUMBERS, is_typed_time, time_format
from headrace.dataset.tables import with_paths
from headrace.errors import HeadraceError, InputError, SettingsError, setting
from headrace.formats.dates import date_word
from headrace.formats.dialect import PLAIN, UTF8, TextDialect
from headrace.formats.listing import Listing, NoMatch, list_files, nested_pattern
from headrace.formats.partitions import partition_types
from headrace.formats.registry import (
    SEPARATOR_NAMES,
    file_type_of_name,
    open_bytes,
    reading,
)
from headrace.formats.source import read_chunks, survey
from headrace.formats.text_columns import nulled
from headrace.formats.types import is_text
from headrace.report.words import pluralise

Kind = Literal["number", "time", "text", "other"]
Value = TypeVar("Value")

# how many files to look at, and rows in each
FILES = 16
ROWS = 1 << 18
WHOLE = 64 << 20  # bytes of a source that is looked at whole
_HEAD_BYTES = 1 << 18
_MOST_TITLES = 50  # lines before the line of names
_MOST_FILES = 1024
_MOST_ROWS = 1 << 23
NULLS = (  # texts among numbers and times that mean missing
    *("NA", "N/A", "n/a", "#N/A", "NULL", "null", "None", "none", "\\N", "missing"),
    *("?", "-", "--", "."),
)
_ALWAYS_NULL = NULLS[:1]  # in other texts too
FIRST_LINE = "first_line"  # of text files: it holds the names of columns
NAMED_TIME = re.compile(  # a column of a wide table
    r"X?(19|20)\d\d([-_/. ]?\d\d?|[-_/. ]?[QW]\d\d?){0,2}"
    r"|(?i:jan|feb|mar|apr|may|mai|jun|jul|aug|sep|oct|okt|nov|dec|dez)(?i:[a-z]*)[-_/. ]?\d*"
)
_NAMELESS = re.compile(r"\s*|Unnamed: \d+|__index_level_\d+__")
_LEAST_NAMES = 2  # of a line of names
_JSON = r'^\s*(\[\s*[\[{"\d\]-]|\{\s*["}]).*[\]}]\s*$'
_JSON_ROWS = 1_000  # that are looked at


@dataclass(frozen=True)
class Column:
    """A column in the rows that were looked at.

    in_files: the number of those files that have it. missing: a share of rows. time_format: of a
    time; None if its type is a time. nested: whether it is a field of a struct, named by its path.
    """

    name: str
    content: Kind
    in_files: int
    missing: float
    time_format: str | None = None
    nested: bool = False


@dataclass(frozen=True)
class Look:
    """A source.

    root, names, bytes: of all its files. tables: (name, first rows) of the files looked at.
    complete: whether these are all rows. dialect: what is unusual about how texts are written.
    """

    source: tuple[str, ...]
    root: Path
    names: list[str]
    bytes: int
    tables: list[tuple[str, pa.Table]]
    columns: dict[str, Column]
    complete: bool = False
    dialect: TextDialect = PLAIN

    @property
    def unusual(self) -> Section:
        """The dialect that the files need to be read at all, and what shows it; empty for most."""
        words = []
        if self.dialect.encoding != UTF8:
            words.append("The texts are not UTF-8; this encoding reads them. Look at them.")
        if self.dialect.skip_rows:
            words.append(
                f"The line of names stands below {pluralise(self.dialect.skip_rows, 'line')}, which"
                " have not its fields: all lines from it on have."
            )
        settings = {"dialect": self.dialect.stored()} if words else {}
        return Section(" ".join(words), settings)

    def everywhere(self, content: Kind) -> list[str]:
        """Return the columns of this kind that all files have, in file order."""
        result = []
        for column in self.columns.values():
            if column.content == content and column.in_files == len(self.tables):
                result.append(column.name)
        return result

    def known(self, name: str, option: str) -> Column:
        """Return a column that all files have. option: that gives its name.

        Raises `SettingsError`.
        """
        column = self.columns[known(name, self.columns, option)]
        lacking = self.lacking(name)
        if lacking:
            raise SettingsError(
                f"{len(lacking)} of the {len(self.tables)} files looked at lack it",
                setting=option,
                value=name,
                remedy=f"leave them out, such as {lacking[0]}, or use a column that all have",
            )
        return column

    def lacking(self, name: str) -> list[str]:
        """Return the files looked at that lack a column."""
        return [file for file, table in self.tables if name not in table.column_names]

    def texts(self) -> list[str]:
        """Return the columns that are text in at least one of the files looked at."""
        result = []
        for name, column in self.columns.items():
            if not column.nested and any(_is_text(table, name) for _, table in self.tables):
                result.append(name)
        return result

    def top_level(self) -> list[str]:
        """Return the columns that are no fields of a struct."""
        return [name for name, column in self.columns.items() if not column.nested]

    def null_values(self, keys: Sequence[str]) -> list[str]:
        """Return the texts that mean missing in these columns, and in those of numbers and times;
        `NA` anywhere.
        """
        words_seen = set[str]()
        for name in self.texts():
            is_open = name in keys or self.columns[name].content != "text"
            words = NULLS if is_open else _ALWAYS_NULL
            for _, table in self.tables:
                if _is_text(table, name):
                    values = pl.Series("x", table[name], dtype=pl.String)
                    words_seen.update(values.filter(values.is_in(list(words))))
        return [word for word in NULLS if word in words_seen]


class Data:
    """A source that `init` looks at: once, however many recipes ask.

    source: files, directories or patterns. A directory with data in subdirectories alone is
    replaced by their pattern, and a table by the directory of its copy.
    """

    def __init__(
        self, source: Sequence[Any], time_format: str | None = None, header: str | None = None
    ) -> None:
        self.source = [_reached(path) for path in with_paths(list(source))]
        self._declared = (time_format, header)
        self._read: dict[Hashable, Any] = {}

    def declared(self, time_format: str | None, header: str | None) -> Data:
        """Return the data with what is known of them: the format of times in texts, and
        `first_line` if that of text files holds the names.

        Raises `SettingsError` for others.
        """
        if (time_format, header) == self._declared:
            return self
        if time_format is not None:
            date_word(time_format, "time_format")
        if header not in (None, FIRST_LINE):
            raise SettingsError(setting="header", value=header, remedy=f"it may be {FIRST_LINE}")
        return Data(self.source, time_format, header)

    @cached_property
    def listing(self) -> Listing:
        """All its files, with their splits. Raises `InputError`."""
        return list_files(self.source, splits="keep")

    @cached_property
    def tables(self) -> Look:
        """Its files as tables; of texts that are not UTF-8, in the likeliest encoding, and of those
        with lines before the line of names, from it on.

        Raises `InputError` if one cannot be read, `Unsure` if the line of names may be a row.
        """
        form, header = self._declared
        try:
            seen = look(self.source, time_format=form)
            dialect = PLAIN
            if "" in list(seen.columns)[1:]:
                dialect = _dialect_of(str(seen.root / seen.tables[0][0]))
            if dialect == PLAIN:
                _check_names(seen, header)
                return seen
        except InputError as error:
            dialect = _dialect_of(error.path)
            if dialect == PLAIN:
                raise
        return look(self.source, dialect, time_format=form)

    @cached_property
    def unusual(self) -> Section:
        """The dialect that its text files need to be read at all; see `Look.unusual`."""
        with suppress(HeadraceError):  # which is said where the files are read
            if any(map(_is_delimited, self.listing.names)):
                return self.tables.unusual
        return Section("")

    def once(self, read: Callable[[Listing, TextDialect], Value]) -> Value:
        """Read its files in another way, if they have not been read in it yet."""
        if read not in self._read:
            dialect = TextDialect(**self.unusual.settings.get("dialect", {}))
            self._read[read] = read(self.listing, dialect)
        result: Value = self._read[read]
        return result


def _reached(path: Any) -> Any:
    """Return the path; of a directory with data in subdirectories alone, their pattern."""
    pattern = None
    with suppress(HeadraceError):  # what cannot be listed, the recipe says
        try:
            list_files([path], splits="keep")
        except NoMatch:
            pattern = nested_pattern(str(path))
    return pattern or path


def _is_delimited(name: str) -> bool:
    """Return whether a name is that of CSV or TSV, compressed or not."""
    file_type = file_type_of_name(Path(name).name)
    return file_type is not None and file_type.format.separator is not None


def _head_of(path: str | None) -> bytes:
    """Return the first bytes of a file of delimited text, unpacked; none of others."""
    if path is None or not Path(path).is_file() or not _is_delimited(path):
        return b""
    file_type = file_type_of_name(Path(path).name)
    assert file_type is not None
    with reading(Path(path)), open_bytes(Path(path), file_type.compression) as stream:
        return bytes(stream.read(WHOLE))


def _encoding_of(head: bytes) -> str:
    """Return the encoding that a text may have. head: its first bytes."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    try:
        codecs.getincrementaldecoder(UTF8)().decode(head)  # the last character may be cut
    except UnicodeDecodeError:
        return UTF8 if b"\0" in head else "cp1252"
    return UTF8


def _dialect_of(path: str | None) -> TextDialect:
    """Return the dialect that a file may have which is not read as it is."""
    head = _head_of(path)
    encoding = _encoding_of(head)
    text = head[:_HEAD_BYTES].decode(encoding, "replace").removeprefix("\ufeff")
    lines = _lines_before_names(text, complete=len(head) < _HEAD_BYTES)
    return TextDialect(encoding=encoding, skip_rows=lines)


def _lines_before_names(text: str, *, complete: bool) -> int:
    """Return the number of lines before the first from which on all have as many fields, two or
    more, with distinct names in it; 0 if there is none, or one before has as many too: it may be
    the line of names, above a row that is damaged.

    complete: whether the last line is.
    """
    lines = [f"{line}\n" for line in text.split("\n")]
    if not complete:
        lines = lines[:-1]
    for skipped in range(min(_MOST_TITLES, len(lines) - 1) + 1):
        if not lines[skipped].strip():
            continue
        for separator in SEPARATOR_NAMES:
            rows = _rows_of(lines[skipped:], separator)
            names = rows[0] if rows else []
            if _are_names(names) and len(set(map(len, rows))) == 1:
                if any(_is_complete_row(line, separator, len(names)) for line in lines[:skipped]):
                    return 0
                return skipped
    return 0


def _are_names(fields: Sequence[str]) -> bool:
    """Return whether the fields of a line may be names: all differ, and none is blank or a value,
    but for years of a wide table. After the last there may be a separator.
    """
    names = list(fields)
    if names and not names[-1]:
        names.pop()
    if len(names) < _LEAST_NAMES or len({*names} - {""}) != len(names):
        return False
    values = [name for name in names if _is_value(name)]
    return all(map(NAMED_TIME.fullmatch, values)) and not _is_value(names[0])


def _is_complete_row(line: str, separator: str, fields: int) -> bool:
    """Return whether a line has so many fields, none of them blank."""
    return any(len(row) == fields and all(row) for row in _rows_of([line], separator))


def _rows_of(lines: list[str], separator: str) -> list[list[str]]:
    """Return the rows that are not blank; [] if quotes do not pair up."""
    try:
        return [row for row in csv.reader(lines, delimiter=separator) if row]
    except csv.Error:
        return []


def _check_names(seen: Look, header: str | None) -> None:
    """Raise `InputError` for times without a name and for a line of names that comes again, and
    `Unsure` if that line looks like a row.

    header: first_line if it is known to hold the names.
    """
    path = seen.root / seen.tables[0][0]
    for column in seen.columns.values():
        if nameless(column.name) and column.content == "time":
            raise InputError(
                "holds times, and has no name",
                path=path,
                column=column.name,
                remedy=(
                    "write a name, such as date, into the line of names, or give that of the index"
                    " in pandas: `frame.rename_axis('date')`"
                ),
            )
    delimited = [(name, table) for name, table in seen.tables if _is_delimited(name)]
    if header is not None or not delimited:
        return
    contents = {column.name: column.content for column in seen.columns.values()}
    matches = value_as_name(contents, [table for _, table in delimited])
    if matches is None or contents[matches.name] not in ("number", "time"):
        _refuse_repeated_names(seen.root, delimited)
    if matches is not None:
        raise Unsure.of(
            f"has no line of names, or one like a row: {matches.why}",
            "header",
            [],  # it is no answer to take by Enter
            path=path,
            remedy=(
                "write a line of names above the rows, or if its first line is one, give"
                f" {setting('header', FIRST_LINE)}"
            ),
        )


def _refuse_repeated_names(root: Path, tables: Sequence[tuple[str, pa.Table]]) -> None:
    """Raise `InputError` if a row is the line of names again."""
    for name, table in tables:
        if repeats_names(table):
            raise InputError(
                "holds its line of names again as a row, as files joined into one do",
                path=root / name,
                remedy="remove that row",
            )


def _is_value(text: str) -> bool:
    """Return whether a field is rather a value than a name: a number or a date."""
    return re.fullmatch(r"[-+]?[\d.,:/ -]*\d", text.strip()) is not None


class Unsure(SettingsError):
    """A guess is not certain enough: a setting decides.

    candidates: values that it may have, the likeliest first.
    """

    candidates: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        problem: str,
        name: str,
        candidates: Sequence[str],
        *,
        path: str | Path | None = None,
        column: str | None = None,
        remedy: str = "",
    ) -> Unsure:
        """Make the error of a setting. remedy: instead of the list of its candidates."""
        some = ", ".join(candidates[:20]) + (", …" if len(candidates) > 20 else "")
        error = cls(
            problem,
            setting=name,
            path=path,
            column=column,
            remedy=remedy or (f"give one of {some}" if some else f"give {setting(name)}"),
        )
        error.candidates = tuple(candidates)
        return error


def _is_text(table: pa.Table, name: str) -> bool:
    return name in table.column_names and is_text(table[name].type)


def look(
    source: Sequence[str | Path],
    dialect: TextDialect = PLAIN,
    *,
    time_format: str | None = None,
) -> Look:
    """Look at up to 16 files of a source and up to 262,144 rows of each; at all of a source of at
    most 64 MiB.

    time_format: of times in texts, if it is declared.

    Raises `InputError` if there are no files or one cannot be read.
    """
    listing = list_files(with_paths(list(source)))
    files = FILES
    rows = ROWS
    if listing.sizes.sum() <= WHOLE:
        files = _MOST_FILES
        rows = _MOST_ROWS
    chosen = evenly(len(listing.names), files)
    types = partition_types(listing.names)
    tables = []
    for index in chosen:
        name = listing.names[index]
        tables.append((name, first_rows(listing.root / name, name, rows, types, dialect)))
    complete = len(chosen) == len(listing.names)
    complete &= all(len(table) < rows for _, table in tables)
    size = int(listing.sizes.sum())
    paths = tuple(map(str, source))
    seen = look_of(paths, listing.root, listing.names, size, tables, time_format=time_format)
    return replace(seen, complete=complete, dialect=dialect)


def look_of(
    source: tuple[str, ...],
    root: Path,
    files: list[str],
    size: int,
    tables: list[tuple[str, pa.Table]],
    *,
    time_format: str | None = None,
) -> Look:
    """Describe the columns of tables: (name, first rows) of some of the files. The fields of
    structs are columns too, named by their paths, as recipes take them.

    size: bytes of all files. time_format: of times in texts, if it is declared.
    """
    # Empty files have no columns to describe.
    tables = [(name, table) for name, table in tables if table.num_columns] or tables[:1]
    tables = [(name, _with_fields(table)) for name, table in tables]
    parts: dict[str, list[pa.ChunkedArray]] = {}
    structs = set()
    for _, table in tables:
        for name in table.column_names:
            parts.setdefault(name, []).append(table[name])
            if pa.types.is_struct(table[name].type):
                structs.add(f"{name}.")
    columns = {}
    for name, of_column in parts.items():
        nested = name.startswith(tuple(structs))
        columns[name] = replace(_column(name, of_column, time_format), nested=nested)
    return Look(source, root, files, size, tables, columns)


def _with_fields(table: pa.Table) -> pa.Table:
    """Return a table with the fields of its structs, that are no structs, behind its columns."""
    flat = table.select(
        [name for name in table.column_names if pa.types.is_struct(table[name].type)]
    )
    while any(pa.types.is_struct(column_type) for column_type in flat.schema.types):
        flat = flat.flatten()
    for name in flat.column_names:
        if name not in table.column_names:
            table = table.append_column(name, flat[name])
    return table


def evenly(count: int, most: int) -> list[int]:
    """Choose at most `most` of the numbers 0..count-1, evenly from end to end."""
    numbers: list[int] = np.unique(np.linspace(0, count - 1, most).round().astype(int)).tolist()
    return numbers


def known(name: str, among: Iterable[str], option: str) -> str:
    """Return the name if it is among these. Raises `SettingsError` with the most similar one.

    option: that gives the name.
    """
    names = list(among)
    if name in names:
        return name
    some = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
    raise SettingsError(
        "the source has no such column",
        setting=option,
        value=name,
        remedy=nearest(name, names, f"use one of {some}"),
    )


def named(name: str, words: Sequence[str]) -> int:
    """Score how well a name fits: higher for earlier words, 0 if it contains none of them."""
    low = name.lower().replace("identity", "")  # it contains "entity" but does not mean one
    for rank, word in enumerate(words):
        if word in low:
            return len(words) - rank
    return 0


def id_like(name: str) -> bool:
    """Return True if a name suggests identifiers, even if the values are numbers."""
    low = name.lower()
    return low == "id" or low.endswith(("_id", "id", "_no", "_nr", "number", "nummer", "_key"))


def nameless(name: str) -> bool:
    """Return True for the name of a pandas index that was written as a column, or none at all."""
    return _NAMELESS.fullmatch(name) is not None


def numeric_column(
    column: pa.ChunkedArray, nulls: Sequence[str] = ("", *NULLS)
) -> pa.ChunkedArray | None:
    """Return the column as float64, null where missing; None if it holds anything else.

    nulls: texts that mean missing.
    """
    try:
        if is_text(column.type):
            text = pl.Series("x", nulled(column, nulls), dtype=pl.String).str.strip_chars()
            read = text.cast(pl.Float64, strict=False)
            if read.null_count() > text.null_count():
                return None
            return pa.chunked_array([read.to_arrow()])
        if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
            return None
        return column.cast(pa.float64(), safe=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pl.exceptions.PolarsError):
        return None


def _column(name: str, parts: Sequence[pa.ChunkedArray], declared: str | None) -> Column:
    """Describe a column from its parts; files without rows are ignored if others have some.

    declared: the format of times in texts.
    """
    count = len(parts)
    parts = [part for part in parts if len(part)] or parts
    rows = max(1, sum(len(part) for part in parts))
    absent = 0
    for part in parts:
        if is_text(part.type):
            absent += nulled(part, ("", *NULLS)).null_count
        else:
            absent += part.null_count
    form = None
    if all(is_text(part.type) or is_typed_time(part) for part in parts):
        of_texts = [nulled(part, NULLS) if is_text(part.type) else part for part in parts]
        form = time_format(of_texts, declared)
    if form is not None and form not in NUMBERS:
        return Column(name, "time", count, absent / rows, form if is_text(parts[0].type) else None)
    numbers = [numeric_column(part) for part in parts]
    if all(values is not None for values in numbers):
        content: Kind = "number"
        for values in numbers:
            assert values is not None
            known_values = np.asarray(values.drop_null().to_numpy(), np.float64)
            absent += int(np.isnan(known_values).sum())
    else:
        content = "other"
        if any(is_text(part.type) and not _is_json(part) for part in parts):
            content = "text"
    return Column(name, content, count, absent / rows)


def _is_json(column: pa.ChunkedArray) -> bool:
    """Return whether most texts of a column are lists or objects, written as JSON."""
    texts = pc.cast(column.drop_null().slice(0, _JSON_ROWS), pa.large_string())
    return (pc.mean(pc.match_substring_regex(texts, _JSON)).as_py() or 0) > 0.5


def first_rows(
    path: Path,
    name: str,
    rows: int = ROWS,
    partitions: Mapping[str, pa.DataType] | None = None,
    dialect: TextDialect = PLAIN,
) -> pa.Table:
    """Read the first rows of a file, all columns. partitions: types of columns encoded in paths."""
    shard = survey(path, name, partitions=partitions, dialect=dialect)
    chunks: list[pa.Table] = []
    for chunk in read_chunks(shard):
        chunks.append(chunk.table(shard.schema.names))
        if sum(part.num_rows for part in chunks) >= rows:
            break
    if chunks:
        return pa.concat_tables(chunks).slice(0, rows)
    return shard.schema.empty_table()
