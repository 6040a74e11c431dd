"""The file formats: what names and first bytes say, and which module reads and writes each.

A format is one module with an object that has the methods of `FormatCode`, and one entry of
`FORMATS`, which has the facts that are needed before any file is read. Its module is imported on
first use, because listing files needs names alone.

The name of a file states its format and compression, and its first bytes show them. If they
disagree, there is no way to know which is right, so the error states both (`detect`).
"""

from __future__ import annotations

import codecs
import re
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from headrace.errors import CorruptShard, HeadraceError, InputError, first_line
from headrace.formats.dialect import PLAIN, UTF8, TextDialect
from headrace.formats.foreign import workbook
from headrace.gate import RESTORE
from headrace.storage.places import place_of

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.formats.decoding import DecodedStream
    from headrace.formats.shard import FormatCode


Compression = Literal["none", "gz", "zst"]
SEPARATOR_NAMES = {",": "comma", ";": "semicolon", "|": "pipe", "\t": "tab"}


@dataclass(frozen=True, kw_only=True)
class Format:
    """One file format.

    name: its word in settings and indexes. code: module and object that read and write it.
    extensions: endings of names, without a dot; the first is written. content: what the first bytes
    show; "binary" content begins with one of `magic`. separator: of delimited text. written_as: the
    format that a split writes its rows in, if it is another. compressions: how a split may compress
    what it writes; of text, the whole file, and of binary content, what the file says itself.
    """

    name: str
    code: str
    extensions: tuple[str, ...]
    content: Literal["text", "json", "binary"]
    magic: tuple[bytes, ...] = ()
    separator: str | None = None
    written_as: str | None = None
    compressions: tuple[str, ...] = ("none", "gz", "zst")

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

    def written(self) -> list[Format]:
        """Return the formats that a split writes."""
        return [entry for entry in self if entry.written_as is None]

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
            compressions=("none", "snappy", "lz4", "zstd"),
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


_COMPRESSED: tuple[tuple[bytes, Compression], ...] = (
    (b"\x1f\x8b", "gz"),
    (b"\x28\xb5\x2f\xfd", "zst"),
)
_ENCRYPTED = b"PARE"
_OTHERS: tuple[tuple[bytes, str], ...] = (  # formats that headrace does not read
    (b"PK\x03\x04", "a zip archive"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ", "xz"),
    (b"ORC", "ORC"),
    (b"Obj\x01", "Avro"),
    (b"FEA1", "Feather version 1"),
    (_ENCRYPTED, "Parquet with an encrypted footer"),
    (b"\xd0\xcf\x11\xe0", "a document of old Office"),
    (b"SQLite format 3\x00", "an SQLite database"),
    (b"\x89HDF", "HDF5"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"\x80\x04\x95", "a pickle"),
    (b"\x80\x05\x95", "a pickle"),
    (b"7z\xbc\xaf", "a 7z archive"),
    (b"Rar!\x1a", "a RAR archive"),
    (b"\x04\x22\x4d\x18", "LZ4"),
    (b"\xff\x06\x00\x00sNaPpY", "Snappy"),
)
_TAR = slice(257, 262), b"ustar"
# files found in place of data: what they are, and a remedy
_INSTEAD: tuple[tuple[re.Pattern[bytes], str, str], ...] = (
    (
        re.compile(rb"version https://git-lfs\.github\.com/spec"),
        "is a Git LFS pointer, not the data",
        "run `git lfs pull` in its repository",
    ),
    (
        re.compile(rb"/annex/objects/"),
        "is a git-annex pointer, not the data",
        "run `git annex get` in its repository",
    ),
    (
        re.compile(rb"\s*<(!doctype\s+html|html[\s>])", re.IGNORECASE),
        "is a web page, as a server sends for an error or a login",
        "download the data again",
    ),
    (
        re.compile(rb"\s*<\?xml\s"),
        "is XML, as a store sends for an error",
        "download the data again",
    ),
)
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1f\x7f]")
_JSON_OBJECT = re.compile(rb'(\[\s*)?\{\s*["}]')
LARGEST_RECORD = 128 << 20  # bytes of one row of text
LARGEST_WHOLE = 64 << 20
_LONGEST_BLANK = 4096
DECRYPT = (
    "headrace has no keys: read it with pyarrow.parquet.read_table(decryption_properties=…) and"
    " write it again without encryption_properties"
)
_BOM = b"\xef\xbb\xbf"
_BOMB_RATIO = 200  # above the compression ratio of text rows
# A gzip file may hold several members and a zstd file several frames; every reader joins them. Each
# block is one of these, so that a block is a byte range of the file. No time stamp is written, so
# output is deterministic.
_GZIP_LEVEL = 4  # a quarter of the time of level 6 for a few percent of size, on text tables
_ZSTD_LEVEL = 3
_ARROW_CODEC = {"gz": "gzip", "zst": "zstd"}


def open_bytes(path: Path, compression: Compression) -> pa.NativeFile:
    """Open the decompressed bytes; a truncated or damaged stream raises `OSError` on read, never
    ends early.
    """
    import pyarrow as pa

    return pa.input_stream(place_of(path).arrow_stream(), compression=_ARROW_CODEC.get(compression))


def open_text(
    path: Path, compression: Compression, dialect: TextDialect
) -> pa.NativeFile | DecodedStream:
    """Open the decompressed text as UTF-8; bytes of another encoding raise `InputError` on read."""
    stream = open_bytes(path, compression)
    if dialect.encoding == UTF8:
        return stream
    from headrace.formats.decoding import DecodedStream

    return DecodedStream(stream, path, dialect)


_MEND = "fetch it again if it was cut or damaged on its way, else write it again"


@contextmanager
def reading(path: Path, row: str | None = None) -> Iterator[None]:
    """Convert what is raised while a source file is read to an `InputError` that names the file and
    a remedy: the one place where exceptions of the system, of Arrow and of the gate, which knows
    files of runs, become errors about a source.

    row: the part of the file that is read, in words.
    """
    try:
        yield
    except CorruptShard as error:
        if (
            error.marked_remedy != RESTORE
        ):  # of storage: the file is sound, but no longer the one opened
            raise error.at(path=path, row=row) from error.__cause__
        remedy = _remedy(error.__cause__)
        raise InputError(
            *error.args, path=path, row=error.row or row, column=error.column, remedy=remedy
        ) from error
    except HeadraceError as error:
        raise error.at(path=path) from error.__cause__
    except FileNotFoundError as error:
        raise InputError("is gone; it was there a moment ago", path=path) from error
    except PermissionError as error:
        raise InputError("permission denied", path=path, remedy="make the file readable") from error
    except raw_errors() as error:
        raise InputError(
            f"cannot be read ({first_line(error)})", path=path, row=row, remedy=_remedy(error)
        ) from error


def _remedy(error: BaseException | None) -> str:
    """Return what helps against an error of Arrow or the system: a type that Arrow does not read is
    no damage.
    """
    if isinstance(error, NotImplementedError):
        return "write it with smaller row groups, other types, encodings or compression"
    return _MEND


def raw_errors() -> tuple[type[Exception], ...]:
    """Return the types of exceptions that reading damaged or strange bytes raises."""
    arrow = sys.modules.get("pyarrow")
    python_errors = (OSError, ValueError, LookupError, EOFError, NotImplementedError, zlib.error)
    return python_errors if arrow is None else (*python_errors, arrow.ArrowException)


def read_all_bytes(path: Path, stream: pa.NativeFile, compression: Compression) -> bytes:
    """Read the decompressed bytes of a file that must be read at once.

    Raises `InputError` once they exceed both `LARGEST_WHOLE` and any plausible compression ratio: a
    decompression bomb.
    """
    if compression == "none":
        most = LARGEST_WHOLE
    else:
        most = max(LARGEST_WHOLE, _BOMB_RATIO * path.stat().st_size)
    parts = []
    size = 0
    while block := stream.read(1 << 24):
        parts.append(block)
        size += len(block)
        if size > most and compression != "none":
            raise InputError(
                f"decompresses to more than {size >> 20} MiB, {_BOMB_RATIO} times its size",
                path=path,
                remedy=(
                    "if this is intended, decompress it, or write JSON lines or Parquet, which are"
                    " read in parts"
                ),
            )
    return b"".join(parts)


def too_long(path: Path) -> InputError:
    """Build the error for a record that does not end within `LARGEST_RECORD` bytes."""
    return InputError(
        f"a row is longer than {LARGEST_RECORD >> 20} MiB; a quote or a line end is"
        " missing, or it is not a table",
        path=path,
    )


def _no_data_name(path: Path) -> InputError:
    """Build the error for a file whose name is not one of data."""
    if path.name.startswith((".", "_")):
        return InputError(
            "its name begins with a dot or an underscore, so it is not taken for data",
            path=path,
            remedy="rename it",
        )
    if path.suffix.lower() in (".yaml", ".yml"):
        return InputError(
            "is a configuration, not data",
            path=path,
            remedy=f"use `headrace run {path}`",
        )
    return InputError(
        "cannot tell the format from the name",
        path=path,
        remedy=f"use {FORMATS.listed()}, each optionally followed by .gz or .zst",
    )


def _not_as_named(path: Path, file_type: FileType, content: str, start: bytes) -> InputError:
    """Build the error for a file with the content of another format than its name says."""
    remedy = "rename it to what it is, and convert or unpack it"
    if start.startswith(_ENCRYPTED):
        remedy = DECRYPT
    if content in {"text", "json", *(entry.name for entry in FORMATS)}:
        remedy = "rename it to what it is"
    return InputError(
        f"the name says {file_type.format.name}, the content is {content}",
        path=path,
        remedy=remedy,
    )


def detect(path: Path) -> FileType:
    """Detect format and compression of a file from its name and content, which must agree.

    Reads a few hundred bytes. Raises `InputError` on disagreement or an unknown name.
    """
    file_type = file_type_of_name(path.name)
    if file_type is None:
        raise workbook(path) or _no_data_name(path)
    with path.open("rb") as file:
        head = file.read(512)
    for pattern, problem, remedy in _INSTEAD:
        if pattern.match(head.removeprefix(_BOM)):
            raise InputError(problem, path=path, remedy=remedy)
    compression = next((name for magic, name in _COMPRESSED if head.startswith(magic)), "none")
    if head and compression != file_type.compression:
        words = {"none": "not compressed", "gz": "gzip", "zst": "zstd"}
        raise InputError(
            f"the name says {words[file_type.compression]}, the bytes say {words[compression]}",
            path=path,
            remedy="rename it to what it is",
        )
    with reading(path), open_bytes(path, file_type.compression) as stream:
        start = stream.read(4096)
    if file_type.format.content == "json":
        _refuse_no_json(path, start)
    content = _content_of(start, file_type.format)
    if file_type.format.content == "binary":
        expected = file_type.format.name
    else:
        expected = file_type.format.content
    if content not in (expected, "nothing"):
        raise workbook(path) or _not_as_named(path, file_type, content, start)
    return file_type


_NO_OBJECT = re.compile(rb"(null|true|false|-?\d+(\.\d+)?([eE][-+]?\d+)?|\"[^\"]*\")\s*(\n|\Z)")
_LINE_END = b"\n"
_COMMENT = re.compile(rb"//|/\*|#")


def _refuse_no_json(path: Path, start: bytes) -> None:
    """Raise `InputError` for text that was meant as JSON, with what it lacks."""
    text = start.removeprefix(_BOM).lstrip()
    if start[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) or b"\0" in start[:4]:
        wide = start[:4] in (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)
        encoding = "UTF-32" if wide or start[:8].count(b"\0") > 4 else "UTF-16"
        raise InputError(
            f"it looks like {encoding}, and JSON is UTF-8",
            path=path,
            remedy=f"convert it, for example with iconv -f {encoding.lower()} -t utf-8",
        )
    if _COMMENT.match(text):
        raise InputError(
            "it begins with a comment, which JSON does not have",
            path=path,
            remedy="remove the comments",
        )
    match = _NO_OBJECT.match(text)
    if match is not None:
        raise InputError(
            "its first value is not an object",
            path=path,
            row=f"line {start[: start.find(text)].count(_LINE_END) + 1}",
            value=match[1].decode("utf-8", "replace"),
            remedy="write one object per line; a list of objects may be the whole of a .json file",
        )


def looks_like(start: bytes, file_type: FileType) -> bool:
    """Return whether the first bytes of an uncompressed file are certainly of its format."""
    if any(start.startswith(magic) for magic, _ in _COMPRESSED):
        return False
    if any(pattern.match(start.removeprefix(_BOM)) for pattern, _, _ in _INSTEAD):
        return False
    return _content_of(start, file_type.format) == file_type.format.content


def _content_of(start: bytes, named: Format) -> str:
    """Return what the first bytes show: "text", "json", "nothing", or the name of a binary
    format.
    """
    text = start.removeprefix(_BOM).lstrip()
    if not text:
        return "nothing"
    magics = [(magic, entry.name) for entry in FORMATS for magic in entry.magic]
    binary = next((name for magic, name in (*magics, *_OTHERS) if start.startswith(magic)), None)
    if start[_TAR[0]] == _TAR[1]:
        binary = "a tar archive"
    # a header may begin with the letters of another format
    if binary is not None and _CONTROL.search(start):
        return binary
    # its reader names the line of a damaged file
    is_meant = text[:1] in b"[{" and named.content == "json"
    if is_meant or _JSON_OBJECT.match(text):
        return "json"
    return "text"


def holds_nothing(path: Path, file_type: FileType, dialect: TextDialect = PLAIN) -> bool:
    """Check for a file without content: 0 bytes decompressed, or only a byte-order mark and blank
    lines.
    """
    if path.stat().st_size > _LONGEST_BLANK:  # compressed, it would be a few bytes
        return False
    if file_type.format.separator is None:
        dialect = PLAIN
    with reading(path), open_text(path, file_type.compression, dialect) as stream:
        data = stream.read(_LONGEST_BLANK + 1)
    if file_type.format.content == "binary":
        return not data
    blank = b"\r\n"
    if file_type.format.separator is None:
        blank = b" \t\r\n"
    return len(data) <= _LONGEST_BLANK and not data.removeprefix(_BOM).strip(blank)


def compress_block(data: bytes | pa.Buffer, compression: Compression) -> bytes | pa.Buffer:
    """Compress data to one gzip member or one zstd frame, or return it as it is."""
    if compression == "gz":
        member = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, 31)
        return member.compress(data) + member.flush()
    if compression == "zst":
        import pyarrow as pa

        return pa.Codec("zstd", _ZSTD_LEVEL).compress(data)
    return data


def decompress_block(data: bytes, compression: Compression) -> bytes:
    """Undo `compress_block`; raises `OSError` or `zlib.error` on damaged bytes."""
    if compression == "none":
        return data
    import pyarrow as pa

    with pa.input_stream(pa.BufferReader(data), compression=_ARROW_CODEC[compression]) as stream:
        return bytes(stream.read())
