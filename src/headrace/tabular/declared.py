"""Blocks whose declared columns are read as what they are, and whose missing values are filled where asked.

A block is done whole, in the threads that decode it. A column that nobody declared keeps its type and its values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import pyarrow as pa
import pyarrow.compute as pc

from headrace.dataset.indexed import ReadBlock
from headrace.errors import InputError, SettingsError
from headrace.formats.schema import is_text, plain
from headrace.formats.text_columns import nulled, typed
from headrace.tabular.fields import Fields, NumberType, is_number

BadNumbers = Literal["error", "missing"]

_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"


@dataclass(kw_only=True)
class DeclaredBlocks:
    """Blocks of a source, as `fields` declares them; settings may be changed until workers are started.

    null_values: texts that mean a missing number, beside the empty one. bad_numbers: what a text is that is no number.
    fills: value of each column that stands for a missing one.
    """

    read_block: ReadBlock
    source_schema: pa.Schema
    fields: Fields
    number_type: NumberType = "float64"
    null_values: Sequence[str] = ()
    bad_numbers: BadNumbers = "error"
    fills: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.number_type not in get_args(NumberType):
            raise SettingsError(f'number_type is {self.number_type!r}; expected "float32" or "float64"')
        if self.bad_numbers not in get_args(BadNumbers):
            raise SettingsError(f'bad_numbers is {self.bad_numbers!r}; expected "error" or "missing"')
        if isinstance(self.null_values, str):
            raise SettingsError(f'null_values is the text {self.null_values!r}; give a list, e.g. ["NA"]')
        self.null_values = tuple(self.null_values)
        self.fills = dict.fromkeys(self.fields.cat_field_list, "") | self.fills

    @property
    def schema(self) -> pa.Schema:
        """What a block has after this. Raises `SettingsError` if the declarations do not fit the source."""
        return self.fields.schema(self.source_schema, self.number_type)

    def declare(self, fields: Fields) -> None:
        """Other declarations from now on. Raises `SettingsError` if they do not fit the source, and changes nothing."""
        fields.schema(self.source_schema, self.number_type)
        added = {name: "" for name in fields.cat_field_list if name not in self.fills}
        gone = [name for name in self.fields.cat_field_list if name not in fields.cat_field_list]
        self.fields = fields
        self.fills = {name: value for name, value in self.fills.items() if name not in gone} | added

    def fill(self, values: Mapping[str, Any]) -> None:
        """Fill missing values of these columns from now on. Raises `SettingsError` on a value of another type."""
        schema = self.schema
        for name, value in values.items():
            if name not in schema.names:
                raise SettingsError(f"fill_missing_value: column {name!r} is not in the data; it has {schema.names}")
            _scalar(name, value, schema.field(name).type)
        self.fills = {**self.fills, **values}

    def __call__(self, number: int, columns: Sequence[str] | None) -> pa.Table:
        """The rows of a block. Raises `InputError` for a text in a column of numbers that is none."""
        table = self.read_block(number, columns)
        schema = self.schema
        for place, each in enumerate(table.schema):
            name, kind = each.name, schema.field(each.name).type
            column = self._read(table.select([name]), name, kind)
            if name in self.fills:
                column = _filled(column, _scalar(name, self.fills[name], kind))
            if column is not table[name]:
                table = table.set_column(place, pa.field(name, kind), column)
        return table

    def _read(self, column: pa.Table, name: str, kind: pa.DataType) -> pa.ChunkedArray:
        values = column[name]
        if pa.types.is_dictionary(values.type):
            values = values.cast(plain(values.type))
        if values.type == kind:
            return values
        if is_text(values.type) and is_number(kind):
            if self.bad_numbers == "missing" and name in self.fields.tab_field_list:
                return _lenient(nulled(values, self.null_values), kind)
            if not pa.types.is_floating(kind):
                values = nulled(values, self.null_values)
            declared = "tab_field_list" if name in self.fields.tab_field_list else "label_name"
            return typed(pa.table({name: values}), {name: kind}, self.null_values, declared, 0)[name]
        try:
            return values.cast(kind, safe=not is_number(kind))
        except pa.ArrowException as error:
            raise InputError(
                f"column {name}: {values.type} cannot be read as {kind} ({error}); declare it as what it is"
            ) from error


def _lenient(texts: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    texts = pc.utf8_trim_whitespace(texts)
    absent = pa.scalar(None, texts.type)
    return pc.if_else(pc.match_substring_regex(texts, _NUMBER), texts, absent).cast(kind)


def _filled(column: pa.ChunkedArray, value: pa.Scalar) -> pa.ChunkedArray:
    missing = pc.is_null(column, nan_is_null=True)
    return pc.if_else(missing, value, column) if pc.any(missing).as_py() else column


def _scalar(name: str, value: Any, kind: pa.DataType) -> pa.Scalar:
    try:
        return pa.scalar(value, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise SettingsError(
            f"fill_missing_value: {value!r} is no {kind}, which column {name!r} is ({error}); give a value of that type"
        ) from error
