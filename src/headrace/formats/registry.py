"""The file formats: what names and first bytes say, and which module reads and writes each.

A format is one module with an object that has the methods of `FormatCode`, and one entry of
`FORMATS`, which has the facts that are needed before any file is read. Its module is imported on
first use, because listing files needs names alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from headrace.formats.shard import FormatCode

Compression = Literal["none", "gz", "zst"]
SEPARATOR_NAMES = {",": "comma", ";": "semicolon", "|": "pipe", "\t": "tab"}


@dataclass(frozen=True, kw_only=True)
class Format:
    """One file format.

    name: its word in settings and indexes. code: module and object that read and write it.
    extensions: endings of names, without a dot; the first is written. content: what the first bytes
    show; "binary" content begins with one of `magic`. separator: of delimited text. written_as: the
    format that a split writes its rows in, if it is another.
    """

    name: str
    code: str
    extensions: tuple[str, ...]
    content: Literal["text", "json", "binary"]
    magic: tuple[bytes, ...] = ()
    separator: str | None = None
    written_as: str | None = None

    def load(self) -> FormatCode:
        """Import the code that reads and writes the format."""
        module, _, name = self.code.partition(":")
        code: FormatCode = getattr(import_module(module), name)
        return code


class Registry:
    """The known formats, in the order in which messages name them."""

    def __init__(self, formats: Iterable[Format]) -> None:
        self._formats: dict[str, Format] = {}
        for entry in formats:
            self.add(entry)

    def add(self, entry: Format) -> None:
        """Add a format, or replace that of the same name."""
        self._formats[entry.name] = entry
        self._of_extension = {word: entry for entry in self for word in entry.extensions}
        words = "|".join(map(re.escape, self._of_extension))
        # A name may hold a newline.
        self._name = re.compile(
            rf"(?P<stem>.*?)(?:\.snappy)?\.(?P<extension>{words})(?:\.(?P<compression>gz|zst))?\Z",
            re.DOTALL,
        )
        self.endings = tuple(
            f".{word}{tail}" for word in self._of_extension for tail in ("", ".gz", ".zst")
        )

    def __iter__(self) -> Iterator[Format]:
        return iter(self._formats.values())

    def __getitem__(self, name: str) -> Format:
        """Return a format. Raises `KeyError`."""
        return self._formats[name]

    def listed(self) -> str:
        """List the usual extensions for a message: ".csv, .tsv or .parquet"."""
        *others, last = (f".{entry.extensions[0]}" for entry in self)
        return f"{', '.join(others)} or {last}"

    def parse_name(self, name: str) -> tuple[str, FileType | None]:
        """Split the name of a file into its stem and its type; the whole name and None if it has no
        known extension.
        """
        match = self._name.match(name.lower())
        if match is None:
            return name, None
        compression: Compression = match["compression"] or "none"  # type: ignore[assignment]  # of the pattern's words
        return name[: match.end("stem")], FileType(
            self._of_extension[match["extension"]], compression
        )


FORMATS = Registry(
    (
        Format(
            name="csv",
            code="headrace.formats.delimited:CODE",
            extensions=("csv",),
            content="text",
            separator=",",
        ),
        Format(
            name="tsv",
            code="headrace.formats.delimited:CODE",
            extensions=("tsv",),
            content="text",
            separator="\t",
        ),
        Format(
            name="jsonl",
            code="headrace.formats.jsonl:CODE",
            extensions=("jsonl", "ndjson"),
            content="json",
        ),
        Format(
            name="json",
            code="headrace.formats.jsonl:CODE",
            extensions=("json",),
            content="json",
            written_as="jsonl",
        ),
        Format(
            name="parquet",
            code="headrace.formats.parquet:CODE",
            extensions=("parquet",),
            content="binary",
            magic=(b"PAR1",),
        ),
        Format(
            name="arrow",
            code="headrace.formats.arrow:CODE",
            extensions=("arrow", "feather"),
            content="binary",
            magic=(b"ARROW1", b"\xff\xff\xff\xff"),
            written_as="parquet",
        ),
    )
)


@dataclass(frozen=True)
class FileType:
    """The format of a file, and how its bytes are compressed as a whole."""

    format: Format
    compression: Compression = "none"

    @classmethod
    def named(cls, name: str, compression: Compression = "none") -> FileType:
        """Return the type of a format by its name."""
        return cls(FORMATS[name], compression)

    @property
    def word(self) -> str:
        """The format with its compression, e.g. "csv.gz"."""
        if self.compression == "none":
            return self.format.name
        return f"{self.format.name}.{self.compression}"

    @property
    def extension(self) -> str:
        """The ending of a name that headrace writes, e.g. ".csv.gz"."""
        return f".{self.word}"


def is_data_name(name: str) -> bool:
    """Check whether a name is that of a data file."""
    return name[0] not in "._" and name.lower().endswith(FORMATS.endings)


def file_type_of_name(name: str) -> FileType | None:
    """Read the type of a file from its name; None if it is not a data file."""
    if name.startswith((".", "_")):
        return None
    return FORMATS.parse_name(name)[1]


def stem_of_name(name: str) -> str:
    """Remove the extensions from a data file's name."""
    return FORMATS.parse_name(name)[0]


def index_word(file_type: FileType, separator: str | None) -> str:
    """Return the word of an index for a shard: "csv.gz", "parquet"; "csv-semicolon.gz" for an
    unusual separator.
    """
    if separator is None or separator == file_type.format.separator:
        return file_type.word
    format_, dot, compression = file_type.word.partition(".")
    return f"{format_}-{SEPARATOR_NAMES[separator]}{dot}{compression}"


def parse_index_word(word: str) -> tuple[FileType, str | None]:
    """Return the file type and the separator of a word of an index.

    Raises `KeyError` for an unknown word.
    """
    format_, dot, compression = word.partition(".")
    name, dash, separator = format_.partition("-")
    file_type = file_type_of_name(f"shard.{name}{dot}{compression}")
    if file_type is None:
        raise KeyError(word)
    if not dash:
        return file_type, file_type.format.separator
    return file_type, {name: character for character, name in SEPARATOR_NAMES.items()}[separator]
