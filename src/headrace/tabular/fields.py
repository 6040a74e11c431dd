"""What the columns are, as a configuration declares them. Only declared columns are changed. Pure.

    config = {"label_name": "label", "text_name": "text", "cat_field_list": ["sky"], "tab_field_list": ["height"]}

A training configuration has many other keys; they are nobody's business here and are left alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import pyarrow as pa

from headrace.errors import SettingsError
from headrace.formats.schema import is_text, plain

LabelType = Literal["number", "text"]
NumberType = Literal["float32", "float64"]

_NAMES = ("label_name", "text_name", "primary_text_name", "secondary_text_name")
_LISTS = ("full_field_list", "cat_field_list", "tab_field_list")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """Which column is what.

    label_name: the target; text such as "1" is read as a whole number, unless label_type is "text".
    text_name, primary_text_name, secondary_text_name: texts. cat_field_list: categories, as text, "" where missing.
    tab_field_list: numbers, as floats. full_field_list: the columns to deliver, in this order; empty: all there are.
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
                raise SettingsError(f"config: {name} is {value!r}; give the name of a column, or leave it out")
        for name in _LISTS:
            object.__setattr__(self, name, _column_list(name, getattr(self, name)))
        if self.label_type not in get_args(LabelType):
            raise SettingsError(f'config: label_type is {self.label_type!r}; expected "number" or "text"')
        both = [name for name in self.tab_field_list if name in (*self.cat_field_list, *self.texts)]
        if both:
            raise SettingsError(
                f"config: column {both[0]!r} is declared a number (tab_field_list) and a text or category too;"
                " declare it once"
            )

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> Fields:
        """The declarations in a configuration; None and the empty text mean unset. Raises `SettingsError`."""
        if not isinstance(config, Mapping):
            raise SettingsError(f"config is a {type(config).__name__}; give a dict, e.g. config.model_dump()")
        if config.get("header", 0) not in (0, "infer"):
            raise SettingsError(
                f"config: header is {config['header']!r}; the first line of a text shard is its header: write one"
            )
        known = {name: config[name] for name in (*_NAMES, *_LISTS, "label_type") if config.get(name) not in (None, "")}
        return cls(**known)

    @property
    def texts(self) -> tuple[str, ...]:
        """The columns declared as text."""
        named = (self.text_name, self.primary_text_name, self.secondary_text_name)
        return tuple(dict.fromkeys(name for name in named if name is not None))

    def columns(self, available: Sequence[str]) -> tuple[str, ...]:
        """The columns to deliver, in order; of a list, those that are named elsewhere come behind it."""
        if not self.full_field_list:
            return tuple(available)
        named = (*self.full_field_list, *self.texts, *self.cat_field_list, *self.tab_field_list)
        label = (self.label_name,) if self.label_name in available else ()
        return tuple(dict.fromkeys(str(name) for name in (*named, *label)))

    def schema(self, source: pa.Schema, number_type: NumberType) -> pa.Schema:
        """The schema after declared columns were read as what they are.

        Raises `SettingsError` if a declared column does not exist or cannot be that. A label may be absent: data to
        predict on has none.
        """
        declared = (*self.full_field_list, *self.texts, *self.cat_field_list, *self.tab_field_list)
        missing = [name for name in declared if name not in source.names]
        if missing:
            raise SettingsError(f"config: columns {missing} are not in the data; it has {source.names}")
        for name in self.tab_field_list:
            if not is_number(source.field(name).type) and not is_text(plain(source.field(name).type)):
                raise SettingsError(
                    f"config: column {name!r} is {source.field(name).type}, which is no number; take it out of"
                    " tab_field_list"
                )
        for name in (*self.cat_field_list, *self.texts):
            if pa.types.is_nested(plain(source.field(name).type)):
                raise SettingsError(
                    f"config: column {name!r} is {source.field(name).type}, which is no text or category; leave it"
                    " undeclared"
                )
        return pa.schema([(each.name, self._type(each, number_type)) for each in source])

    def _type(self, field: pa.Field, number_type: NumberType) -> pa.DataType:
        kind = plain(field.type)
        if field.name in self.tab_field_list:
            return pa.float32() if number_type == "float32" else pa.float64()
        if field.name in (*self.cat_field_list, *self.texts):
            return pa.string()
        if field.name == self.label_name and self.label_type == "number" and is_text(kind):
            return pa.int64()
        return kind


def is_number(kind: pa.DataType) -> bool:
    """Whether values of this type are numbers or booleans."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_boolean(kind)
    )


def _column_list(name: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(each, str) for each in value):
        raise SettingsError(f"config: {name} is {value!r}; give a list of column names")
    if len(set(value)) < len(value):
        raise SettingsError(f"config: {name} names a column twice: {list(value)}; name each once")
    return tuple(value)
