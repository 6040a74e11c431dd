"""Find the rows and read their blocks by the columns that a configuration declares.

    config = {
        "label_name": "label",
        "text_name": "text",
        "cat_field_list": ["sky"],
        "tab_field_list": ["height"],
    }

Only declared columns are changed: an undeclared one keeps its type and its values. A training
configuration has many other keys, which are left alone. Blocks are done whole, in the threads that
decode them.
"""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.checks import check_word
from headrace.dataset.index import SplitIndex
from headrace.dataset.indexed import ReadBlock
from headrace.dataset.open import is_prepared
from headrace.errors import InputError, SettingsError, setting, setting_name
from headrace.formats.dialect import PLAIN, TextDialect
from headrace.formats.listing import NoMatch, list_files
from headrace.formats.plain_types import plain
from headrace.formats.registry import file_type_of_name
from headrace.formats.text_columns import nulled, plain_numerals, typed
from headrace.formats.types import is_text
from headrace.storage.places import path_of
from headrace.stream.loader.dataset import open_dataset

BadNumbers = Literal["error", "missing"]
LabelType = Literal["number", "text"]
NumberType = Literal["float32", "float64"]

_NAMES = ("label_name", "text_name", "primary_text_name", "secondary_text_name")
_LISTS = ("full_field_list", "cat_field_list", "tab_field_list")
_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """Declare what each column is.

    label_name: the target; text such as "1" is read as a whole number, unless label_type is "text".
    text_name, primary_text_name, secondary_text_name: texts. cat_field_list: categories, as text,
    "" where missing. tab_field_list: numbers, as floats. full_field_list: the columns to deliver,
    in this order; empty: all there are.
    """

    label_name: str | None = None
    text_name: str | None = None
    primary_text_name: str | None = None
    secondary_text_name: str | None = None
    full_field_list: tuple[str, ...] = ()
    cat_field_list: tuple[str, ...] = ()
    tab_field_list: tuple[str, ...] = ()
    label_type: LabelType = "number"

    def __post_init__(self) -> None:
        for name in _NAMES:
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise SettingsError(
                    setting=name,
                    value=value,
                    remedy="give the name of a column, or leave it out",
                )
        for name in _LISTS:
            columns = getattr(self, name)
            is_list = isinstance(columns, Sequence) and not isinstance(columns, str)
            if not is_list or not all(isinstance(column, str) for column in columns):
                raise SettingsError(
                    setting=name, value=columns, remedy="give a list of column names"
                )
            if len(set(columns)) < len(columns):
                raise SettingsError(
                    "it names a column twice",
                    setting=name,
                    value=list(columns),
                    remedy="name each once",
                )
            object.__setattr__(self, name, tuple(columns))
        check_word("config: label_type", self.label_type, get_args(LabelType))
        both = [name for name in self.tab_field_list if name in (*self.cat_field_list, *self.texts)]
        if both:
            raise SettingsError(
                f"{both[0]!r} is declared a text or category too",
                setting="tab_field_list",
                remedy="declare it once",
            )

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> Fields:
        """Read the declarations in a configuration; None and the empty text mean unset.

        Raises `SettingsError`.
        """
        if not isinstance(config, Mapping):
            raise SettingsError(
                f"a {type(config).__name__}",
                setting="config",
                remedy="give a dict, e.g. config.model_dump()",
            )
        if config.get("header", 0) not in (0, "infer"):
            raise SettingsError(
                "the first line of a text shard is its header",
                setting="header",
                value=config["header"],
                remedy="write one",
            )
        known = {}
        for name in (*_NAMES, *_LISTS, "label_type"):
            if config.get(name) not in (None, ""):
                known[name] = config[name]
        return cls(**known)

    @property
    def texts(self) -> tuple[str, ...]:
        """The columns declared as text."""
        named = (self.text_name, self.primary_text_name, self.secondary_text_name)
        return tuple(dict.fromkeys(name for name in named if name is not None))

    @property
    def _declared(self) -> tuple[str, ...]:
        return (*self.full_field_list, *self.texts, *self.cat_field_list, *self.tab_field_list)

    def columns(self, available: Sequence[str]) -> tuple[str, ...]:
        """Return the columns to deliver, in order; of a list, those that are named elsewhere come
        behind it.
        """
        if not self.full_field_list:
            return tuple(available)
        names = [*self._declared]
        if self.label_name is not None and self.label_name in available:
            names.append(self.label_name)
        return tuple(dict.fromkeys(map(str, names)))

    def schema(self, source: pa.Schema, number_type: NumberType) -> pa.Schema:
        """Return the schema after declared columns were read as what they are.

        Raises `SettingsError` if a declared column does not exist or cannot be that. A label may be
        absent: data to predict on has none.
        """
        missing = [name for name in self._declared if name not in source.names]
        if missing:
            raise SettingsError(
                f"{missing} are not in the data",
                setting="config",
                remedy=f"choose from {source.names}",
            )
        return pa.schema([(field.name, self._type(field, number_type)) for field in source])

    def _type(self, column: pa.Field, number_type: NumberType) -> pa.DataType:
        name = column.name
        dtype = plain(column.type)
        if name in self.tab_field_list:
            if not is_number(column.type) and not is_text(dtype):
                raise SettingsError(
                    f"{column.type} is not a number",
                    setting="tab_field_list",
                    column=name,
                    remedy="take it out",
                )
            if number_type == "float32":
                return pa.float32()
            return pa.float64()
        if name in (*self.cat_field_list, *self.texts):
            if pa.types.is_nested(dtype):
                raise SettingsError(
                    f"{column.type} is not text or a category",
                    setting="config",
                    column=name,
                    remedy="leave it undeclared",
                )
            return pa.string()
        if name == self.label_name and self.label_type == "number" and is_text(dtype):
            return pa.int64()
        return dtype


def is_number(dtype: pa.DataType) -> bool:
    """Return whether values of this type are numbers or booleans."""
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean)
    return any(test(dtype) for test in tests)


@dataclass(kw_only=True)
class DeclaredBlocks:
    """Blocks of a source, as `fields` declares them; settings may be changed until workers are
    started.

    dialect: how numbers are written, and which texts mean a missing one. bad_numbers: the rule for
    other texts. fills: value of each column that stands for a missing one.
    """

    read_block: ReadBlock
    source_schema: pa.Schema
    fields: Fields
    number_type: NumberType = "float64"
    dialect: TextDialect = PLAIN
    bad_numbers: BadNumbers = "error"
    fills: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_word("number_type", self.number_type, get_args(NumberType))
        check_word("bad_numbers", self.bad_numbers, get_args(BadNumbers))
        self.fills = dict.fromkeys(self.fields.cat_field_list, "") | self.fills

    @property
    def schema(self) -> pa.Schema:
        """Return a block's schema after reading.

        Raises `SettingsError` if the declarations do not fit the source.
        """
        return self.fields.schema(self.source_schema, self.number_type)

    def declare(self, fields: Fields) -> None:
        """Change the declarations from now on.

        Raises `SettingsError`, changing nothing, if they do not fit.
        """
        fields.schema(self.source_schema, self.number_type)
        gone = set(self.fields.cat_field_list).difference(fields.cat_field_list)
        retained = {name: value for name, value in self.fills.items() if name not in gone}
        self.fields, self.fills = fields, dict.fromkeys(fields.cat_field_list, "") | retained

    def fill(self, values: Mapping[str, Any]) -> None:
        """Fill missing values of these columns from now on.

        Raises `SettingsError` on a value of another type.
        """
        schema = self.schema
        for name, value in values.items():
            if name not in schema.names:
                raise SettingsError(
                    "not in the data",
                    setting="columns",
                    column=name,
                    remedy=f"choose from {schema.names}",
                )
            _scalar(name, value, schema.field(name).type)
        self.fills = {**self.fills, **values}

    def __call__(self, number: int, columns: Sequence[str] | None) -> pa.Table:
        """Read the rows of a block.

        Raises `InputError` for a text in a column of numbers that is none.
        """
        table = self.read_block(number, columns)
        schema = self.schema
        for column_number, name in enumerate(table.schema.names):
            dtype = schema.field(name).type
            before = table[name]
            column = self._read(before, name, dtype)
            if name in self.fills:
                missing = pc.is_null(column, nan_is_null=True)
                if pc.any(missing).as_py():
                    column = pc.if_else(missing, _scalar(name, self.fills[name], dtype), column)
            if column is not before:
                table = table.set_column(column_number, pa.field(name, dtype), column)
        return table

    def _read(self, values: pa.ChunkedArray, name: str, dtype: pa.DataType) -> pa.ChunkedArray:
        if pa.types.is_dictionary(values.type):
            values = values.cast(plain(values.type))
        if values.type == dtype:
            return values
        if is_text(values.type) and is_number(dtype):
            is_declared = name in self.fields.tab_field_list
            if self.bad_numbers == "missing" and is_declared:
                texts = pc.utf8_trim_whitespace(nulled(values, self.dialect.null_values))
                texts = plain_numerals(texts, self.dialect)
                absent = pa.scalar(None, texts.type)
                return pc.if_else(pc.match_substring_regex(texts, _NUMBER), texts, absent).cast(
                    dtype
                )
            if not pa.types.is_floating(dtype):
                values = nulled(values, self.dialect.null_values)
            declared = "label_name"
            if is_declared:
                declared = "tab_field_list"
            return typed(pa.table({name: values}), {name: dtype}, self.dialect, declared, 0)[name]
        try:
            return values.cast(dtype, safe=not is_number(dtype))
        except pa.ArrowException as error:
            raise InputError(
                f"{values.type} cannot be read as {dtype} ({error})",
                column=name,
                remedy="declare it as what it is",
            ) from error


def _scalar(name: str, value: Any, dtype: pa.DataType) -> pa.Scalar:
    try:
        return pa.scalar(value, dtype)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise SettingsError(
            f"the column is {dtype} ({error})",
            setting="columns",
            column=name,
            value=value,
            remedy="give a value of that type",
        ) from error


_FRAME_BLOCK_ROWS = 1 << 13


@dataclass(frozen=True, kw_only=True)
class TabularSource:
    """Blocks, who reads them, and the files they are in, empty ones included (none for a
    DataFrame).
    """

    index: SplitIndex
    read_block: ReadBlock
    files: tuple[Path, ...]


def open_files(
    file_dir: str | Path,
    *,
    filename: str | None,
    shard_pattern: str | Sequence[str] | None,
    split: str | None,
    cache_dir: str | Path | None,
    dialect: TextDialect = PLAIN,
) -> TabularSource:
    """Open the shards of a directory, one file of it, or a split of a prepared dataset.

    shard_pattern: one or several patterns such as "part-*.parquet"; None: files named part-*, else
    all data files. Raises `InputError` if there are none, or some of one format and some of
    another.
    """
    root = path_of(file_dir)
    if not root.is_dir():
        raise InputError(
            "no such directory",
            setting="file_dir",
            path=root,
            remedy="give the directory of the shards",
        )
    if filename is not None and shard_pattern is not None:
        raise SettingsError(
            f"{setting_name('shard_pattern')} is {shard_pattern!r}, and {setting_name('filename')}"
            f" is {filename!r}",
            remedy="give one of them",
        )
    if filename is None and shard_pattern is None and is_prepared(root):
        data = open_dataset(root)  # its index has the dialect of its files
        index = data.split_index(split)
        files = tuple(data.root / name for name in index.shards)
        return TabularSource(index=index, read_block=data.block_reader(split), files=files)
    if split is not None:
        raise SettingsError(
            "not a prepared dataset",
            setting="split",
            path=root,
            value=split,
            remedy="give the directory of its shards",
        )
    if filename is not None:
        paths = [root / filename]
    else:
        paths = _matching(root, shard_pattern)
    data = open_dataset(paths, dialect=dialect, cache_dir=cache_dir)
    return TabularSource(
        index=data.split_index(), read_block=data.block_reader(), files=tuple(paths)
    )


def _matching(root: Path, shard_pattern: str | Sequence[str] | None) -> list[Path]:
    if isinstance(shard_pattern, str):
        patterns = [shard_pattern]
    else:
        patterns = list(shard_pattern or ("part-*",))
    fixed = path_of(glob.escape(str(root)))
    matches: set[Path] = set()
    for choice in [patterns, ["*"]] if shard_pattern is None else [patterns]:
        for pattern in choice:
            with suppress(NoMatch):
                listing = list_files([fixed / pattern])
                matches.update(listing.path(number) for number in range(len(listing.names)))
        if matches:
            break
    if not matches:
        requested_names = "*.parquet, *.csv, *.tsv, *.jsonl"
        if shard_pattern is not None:
            requested_names = ", ".join(patterns)
        raise InputError(
            f"holds no shard that matches {requested_names}",
            path=root,
            remedy=f"check the directory, or pass {setting('shard_pattern')}",
        )
    file_types = map(file_type_of_name, [path.name for path in matches])
    formats = sorted({file_type.format.name for file_type in file_types if file_type})
    if len(formats) > 1:
        raise InputError(
            f"holds shards of several formats, {', '.join(formats)}, which may be the same"
            " rows twice",
            path=root,
            remedy=f"name one, e.g. {setting('shard_pattern', f'part-*.{formats[0]}*')}",
        )
    return sorted(matches)


def of_frame(frame: Any) -> TabularSource:
    """Take the rows of a pandas or polars DataFrame, or of an Arrow table, into memory, and into
    every worker's.

    Dictionaries become their values, and columns of nothing but nulls text. Raises `InputError` if
    a column holds values of several types, `SettingsError` if it is something else.
    """
    library = type(frame).__module__.partition(".")[0]
    if isinstance(frame, pa.Table):
        table = frame
    elif library == "polars" and hasattr(frame, "to_arrow") and hasattr(frame, "columns"):
        table = frame.to_arrow()
    elif library == "pandas" and hasattr(frame, "columns"):
        table = _of_pandas(frame)
    else:
        raise SettingsError(
            f"a {type(frame).__module__}.{type(frame).__name__}",
            setting="dataframe",
            remedy="give a pandas or polars DataFrame, or a pyarrow Table",
        )
    kinds = [
        (field.name, pa.string() if pa.types.is_null(field.type) else plain(field.type))
        for field in table.schema
    ]
    table = table.cast(pa.schema(kinds)).combine_chunks()
    starts = np.arange(0, table.num_rows, _FRAME_BLOCK_ROWS, dtype=np.int64)
    nothing = np.zeros(len(starts), np.int64)
    index = SplitIndex(
        split="all",
        schema=table.schema,
        shards=("dataframe",),
        formats=("memory",),
        shard_of_block=nothing,
        block=np.arange(len(starts), dtype=np.int64),
        rows=np.minimum(_FRAME_BLOCK_ROWS, table.num_rows - starts),
        offset=nothing,
        length=nothing,
    )
    return TabularSource(index=index, read_block=partial(_block_of, table), files=())


def _block_of(table: pa.Table, number: int, columns: Sequence[str] | None) -> pa.Table:
    part = table.slice(number * _FRAME_BLOCK_ROWS, _FRAME_BLOCK_ROWS)
    if columns is None:
        return part
    return part.select(list(columns))


def _of_pandas(frame: Any) -> pa.Table:
    names = [str(name) for name in frame.columns]
    if len(set(names)) < len(names):
        raise InputError(
            f"column names repeat in {names}", setting="dataframe", remedy="rename one of them"
        )
    arrays = []
    for number, name in enumerate(names):
        series = frame.iloc[:, number]
        floats = getattr(series.dtype, "kind", "") == "f" and isinstance(series.dtype, np.dtype)
        try:  # a NaN of pandas is a missing text or date, but a float of its own
            arrays.append(pa.array(series.to_numpy() if floats else series, from_pandas=not floats))
        except pa.ArrowException as error:
            raise InputError(
                f"it holds values of several types ({error})",
                setting="dataframe",
                column=name,
                remedy="make them one type",
            ) from error
    return pa.table(dict(zip(names, arrays, strict=True)))
