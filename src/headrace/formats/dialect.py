"""Define the dialect of text files: how fields are quoted, bytes are encoded, and values are
written.

The layers of reading use its parts one after another: `encoding` turns bytes into UTF-8,
`skip_rows` says where the line of names stands, `quoting` and `escape` find records and fields,
`null_values` say which of these are missing, and `decimal`, `thousands` and `time_format` how the
others are numbers and times. Values keep the text that they have in the file; only columns with a
declared type, and those with a role, are converted.

Loads no data library, so that shell completion is fast.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from headrace.errors import SettingsError, setting, setting_name
from headrace.settings import Names, Settings

# Texts that pandas reads as missing by default. Here text stays text, so their occurrence is
# reported.
MEANS_MISSING = frozenset(
    {
        *("NA", "N/A", "n/a", "<NA>", "#N/A", "#N/A N/A", "#NA", "null", "NULL", "None", "NaT"),
        *("nan", "-nan", "NaN", "-NaN", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN"),
    }
)

UTF8 = "utf-8"
BACKSLASH = "\\"
# encodings whose characters all have as many bytes, or pairs of two: positions can be computed
_WIDE = {"utf-16-le": 2, "utf-16-be": 2, "utf-32-le": 4, "utf-32-be": 4}
_MARKED = {"utf-16": b"\xfe\xff", "utf-32": b"\x00\x00\xfe\xff"}  # the mark of big-endian files


class TextDialect(Settings):
    r"""How text files are written: CSV and TSV; of values, any column of text.

    Raises `SettingsError` when built with values that cannot work.
    """

    quoting: Literal["minimal", "none"] = Field(
        "minimal",
        description=(
            "minimal: quotes around a field may hold separators and line ends, and are doubled"
            " inside it; none: a quote is a character like any other."
        ),
    )
    escape: Literal["\\"] | None = Field(
        None,
        description=(
            r"A backslash before a separator, quote or line end makes it text, as MySQL and"
            r" PostgreSQL write it; \N is missing, and \t, \n, \r, \b, \0, \Z are control"
            r" characters. Default: a backslash is a character like any other."
        ),
    )
    encoding: str = Field(
        UTF8,
        description=(
            "Encoding of the files, such as latin-1, cp1252 or utf-16. What is written is UTF-8."
        ),
    )
    skip_rows: int = Field(
        0,
        ge=0,
        le=10_000,
        description=(
            "Lines before the line of names, such as a title or comments: CSV and TSV. They are not"
            " written."
        ),
    )
    decimal: Literal[".", ","] = Field(".", description="Decimal mark of numbers.")
    thousands: Literal[",", ".", "'", " ", "_"] | None = Field(
        None, description="Mark between each three digits of numbers; a blank is any kind of it."
    )
    null_values: Names = Field(
        (),
        description=(
            "Texts that mean missing in columns with a role or a declared type, e.g. NA. An empty"
            " field always does."
        ),
    )
    time_format: Names = Field(
        (),
        description=(
            "How times are written: iso, an epoch such as epoch_s, period (2025Q1, Jan 2025), or a"
            " strptime pattern; several are tried in turn. Default: iso; in a temporal split, one"
            " form is found for the whole source."
        ),
    )

    @field_validator("encoding")
    @classmethod
    def _known_encoding(cls, value: str) -> str:
        try:
            codec = codecs.lookup(value)
            "a".encode(value)  # a LookupError for encodings of no text, such as hex
            name = codec.name.replace("_", "-")
        except (LookupError, ValueError, TypeError):
            raise ValueError(
                f"{setting_name('encoding')} is {value!r}, which is not known; give one such as"
                " latin-1, cp1252 or utf-16"
            ) from None
        if name in ("utf-8-sig", "ascii"):  # a mark is skipped in any case
            return UTF8
        return name

    @field_validator("time_format")
    @classmethod
    def _known_formats(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        from headrace.formats.dates import date_word  # settings load no data libraries

        for word in value:
            date_word(word, "time_format")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> TextDialect:
        if self.thousands == self.decimal:
            raise ValueError(
                f"{setting_name('thousands')} and {setting_name('decimal')} are both"
                f" {self.decimal!r}; give two marks"
            )
        return self

    @cached_property
    def plain_records(self) -> bool:
        """Whether records and fields are those of ordinary CSV."""
        return self.quoting == "minimal" and self.escape is None

    @cached_property
    def plain_numbers(self) -> bool:
        """Whether numbers are written as programs write them."""
        return self.decimal == "." and self.thousands is None

    @property
    def written(self) -> TextDialect:
        """The dialect of files that hold the same records: UTF-8, from the line of names on."""
        if self.encoding == UTF8 and not self.skip_rows:
            return self  # not kept: an object that holds itself cannot be compared
        # a copy would keep what was computed
        return TextDialect(**{**self.stored(), "encoding": UTF8, "skip_rows": 0})

    @cached_property
    def bytes_of_character(self) -> int | None:
        """Bytes of a character of a fixed width (UTF-16: of one or two), and 1 for UTF-8, where
        positions are counted in bytes of the file; None if they vary.
        """
        if self.encoding == UTF8:
            return 1
        if self.encoding in _WIDE:
            return _WIDE[self.encoding]
        if self.encoding in _MARKED:
            return int(self.encoding.removeprefix("utf-")) // 8
        try:  # all bytes in one go are as many characters, and those of ASCII are themselves
            text = bytes(range(256)).decode(self.encoding, "replace")
        except (LookupError, UnicodeError):
            return None
        ascii_ = "".join(map(chr, range(128)))
        if len(text) == 256 and text.startswith(ascii_) and _stands_alone(self.encoding):
            return 1
        return None

    def of_file(self, start: bytes) -> str:
        """Return the encoding of a file with its byte order, by its first bytes."""
        if self.encoding not in _MARKED:
            return self.encoding
        if start.startswith(_MARKED[self.encoding]):
            return f"{self.encoding}-be"
        return f"{self.encoding}-le"

    def stored(self) -> dict[str, Any]:
        """Return what differs from the default, as JSON, for the index of shards."""
        return self.model_dump(mode="json", exclude_defaults=True)


def _stands_alone(encoding: str) -> bool:
    """Return whether every byte is decoded to one character by itself.

    No byte above 127 is one in UTF-8, nor in encodings that shift by an escape.
    """
    valid = []
    for byte in range(256):
        text = bytes([byte]).decode(encoding, "ignore")
        valid.append(len(text) == 1)
    return all(valid[:128]) and any(valid[128:])


PLAIN = TextDialect()
_NAMES = "|".join(TextDialect.model_fields)
_BEFORE_NAME = re.compile(rf",(?=(?:{_NAMES})=)")
_LISTS = ("null_values", "time_format")


def _parsed(value: object) -> object:
    """Read quoting=none,encoding=latin-1 as the values of the model."""
    if isinstance(value, Mapping):
        return TextDialect(**{str(name): item for name, item in value.items()})
    if not isinstance(value, str):
        return value
    values: dict[str, Any] = {}
    for part in _BEFORE_NAME.split(value):
        name, equals, text = part.partition("=")
        if not equals:
            raise ValueError(
                f"{setting_name('dialect')} is {value!r}; write NAME=VALUE,NAME=VALUE, such as"
                " quoting=none,encoding=latin-1"
            )
        name = name.strip()
        if name not in _LISTS:
            values[name] = text
        elif name == "null_values":
            values[name] = (*values.get(name, ()), *text.split(","))
        else:
            values[name] = (*values.get(name, ()), text)
    return TextDialect(**values)


def _as_dialect(value: object) -> object:
    try:
        return _parsed(value)
    except SettingsError as error:  # pydantic asks for a ValueError
        raise ValueError(error.marked) from None


DialectSetting = Annotated[TextDialect, BeforeValidator(_as_dialect)]


def dialect_field(extra: dict[str, Any] | None = None) -> Any:
    """Declare the setting of a recipe. extra: facts about its flag."""
    return Field(
        PLAIN,
        examples=["quoting=none,null_values=\\N", "encoding=latin-1,decimal=,", "escape=\\"],
        json_schema_extra=extra,
        description=(
            "How text files are written, such as encoding=latin-1,decimal=,: quoting, escape,"
            " encoding, decimal, thousands, null_values and time_format."
        ),
    )


def dialect_of(value: object) -> TextDialect:
    """Return the dialect that an argument gives: one, a mapping, or NAME=VALUE,NAME=VALUE.

    Raises `SettingsError`.
    """
    try:
        dialect = _parsed(value)
    except ValueError as error:
        raise SettingsError(str(error)) from None
    if not isinstance(dialect, TextDialect):
        raise SettingsError(
            setting="dialect",
            value=value,
            remedy='give a TextDialect, or a mapping such as {"encoding": "latin-1"}',
        )
    return dialect


def null_setting(value: object) -> str:
    """Write the part of the dialect that makes a text mean missing."""
    return setting("dialect", {"null_values": [value]})
