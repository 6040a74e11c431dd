"""Detect the format and compression of a file from its name and content together.

The name states the format, and the first bytes show it. If they disagree, there is no way to know which is right, so
the error states both.

Listing files needs names alone, so what opens them imports pyarrow on use.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from headrace.errors import InputError
from headrace.storage.places import place_of

if TYPE_CHECKING:
    import pyarrow as pa

Format = Literal["csv", "tsv", "jsonl", "json", "parquet", "arrow"]
Compression = Literal["none", "gz", "zst"]

_MAGIC: tuple[tuple[bytes, str], ...] = ((b"\x1f\x8b", "gz"), (b"\x28\xb5\x2f\xfd", "zst"))
_BINARY_MAGIC: tuple[tuple[bytes, str], ...] = (
    (b"PAR1", "parquet"),
    (b"PK\x03\x04", "a zip archive"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ", "xz"),
    (b"ARROW1", "arrow"),
    (b"\xff\xff\xff\xff", "arrow"),
    (b"ORC", "ORC"),
    (b"Obj\x01", "Avro"),
    (b"FEA1", "Feather version 1"),
    (b"\xd0\xcf\x11\xe0", "an old Excel workbook"),
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
_INSTEAD: tuple[tuple[re.Pattern[bytes], str], ...] = (  # files found in place of data
    (
        re.compile(rb"version https://git-lfs\.github\.com/spec"),
        "is a Git LFS pointer, not the data; run `git lfs pull` in its repository",
    ),
    (re.compile(rb"/annex/objects/"), "is a git-annex pointer, not the data; run `git annex get` in its repository"),
    (
        re.compile(rb"\s*<(!doctype\s+html|html[\s>])", re.IGNORECASE),
        "is a web page, as a server sends for an error or a login; download the data again",
    ),
    (re.compile(rb"\s*<\?xml\s"), "is XML, as a store sends for an error; download the data again"),
)
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1f\x7f]")
_JSON_OBJECT = re.compile(rb'(\[\s*)?\{\s*["}]')
_NAME = re.compile(
    r"^(?P<stem>.*?)(?:\.snappy)?\.(?P<format>csv|tsv|jsonl|ndjson|json|parquet|arrow|feather)(?:\.(?P<compression>gz|zst))?\Z",
    re.DOTALL,  # a name may hold a newline
)
LARGEST_RECORD = 128 << 20  # bytes of one row of text
LARGEST_WHOLE = 64 << 20
_LONGEST_BLANK = 4096
_BOM = b"\xef\xbb\xbf"
_BOMB_RATIO = 200  # above the compression ratio of text rows
# A gzip file may hold several members and a zstd file several frames; every reader joins them. Each block is one of
# these, so that a block is a byte range of the file. No time stamp is written, so output is deterministic.
_GZIP_LEVEL = 4  # a quarter of the time of level 6 for a few percent of size, on text tables
_ZSTD_LEVEL = 3
_SAME = {"ndjson": "jsonl", "feather": "arrow"}
_ARROW_CODEC = {"gz": "gzip", "zst": "zstd"}


# Endings of data file names, in lower case.
DATA_NAMES = tuple(
    f".{word}{tail}"
    for word in ("csv", "tsv", "jsonl", "ndjson", "json", "parquet", "arrow", "feather")
    for tail in ("", ".gz", ".zst")
)


def is_data_name(name: str) -> bool:
    """Check whether a name is that of a data file."""
    return name[0] not in "._" and name.lower().endswith(DATA_NAMES)


@dataclass(frozen=True)
class Kind:
    """The format of a file and how its bytes are compressed as a whole."""

    format: Format
    compression: Compression

    @property
    def extension(self) -> str:
        """The file name extension, e.g. ".csv.gz"."""
        return f".{self.format}" + ("" if self.compression == "none" else f".{self.compression}")


def kind_of_name(name: str) -> Kind | None:
    """Read the kind from a file name; None if it is not a data file."""
    match = _NAME.match(name.lower())
    if match is None or name.startswith((".", "_")):
        return None
    format_ = match["format"]
    return Kind(_SAME.get(format_, format_), match["compression"] or "none")  # type: ignore[arg-type]  # the pattern admits only these words


def stem_of_name(name: str) -> str:
    """Remove the extensions from a data file's name."""
    match = _NAME.match(name.lower())
    return name if match is None else name[: match.end("stem")]


def open_bytes(path: Path, compression: Compression) -> pa.NativeFile:
    """Open the decompressed bytes; a truncated or damaged stream raises `OSError` on read, never ends early."""
    import pyarrow as pa

    return pa.input_stream(place_of(path).arrow_stream(), compression=_ARROW_CODEC.get(compression))


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Convert an `OSError` of the enclosed reads to an `InputError` that names the file and a remedy."""
    try:
        yield
    except FileNotFoundError as error:
        raise InputError(f"{path}: is gone; it was there a moment ago") from error
    except PermissionError as error:
        raise InputError(f"{path}: permission denied; make the file readable") from error
    except OSError as error:
        raise InputError(f"{path}: {error}; the file is cut or damaged, fetch it again") from error


def read_whole(path: Path, stream: pa.NativeFile, compression: Compression) -> bytes:
    """Read the decompressed bytes of a file that must be read at once.

    Raises `InputError` once they exceed both `LARGEST_WHOLE` and any plausible compression ratio: a decompression bomb.
    """
    most = LARGEST_WHOLE if compression == "none" else max(LARGEST_WHOLE, _BOMB_RATIO * path.stat().st_size)
    parts, size = [], 0
    while block := stream.read(1 << 24):
        parts.append(block)
        size += len(block)
        if size > most and compression != "none":
            raise InputError(
                f"{path}: decompresses to more than {size >> 20} MiB, {_BOMB_RATIO} times its size; if this is "
                "intended, decompress it, or write JSON lines or Parquet, which are read in parts"
            )
    return b"".join(parts)


def too_long(path: Path) -> InputError:
    """Build the error for a record that does not end within `LARGEST_RECORD` bytes."""
    return InputError(
        f"{path}: a row is longer than {LARGEST_RECORD >> 20} MiB; a quote or a line end is missing, or it is not a "
        "table"
    )


def detect(path: Path) -> Kind:
    """Detect format and compression of a file from its name and content, which must agree.

    Reads a few hundred bytes. Raises `InputError` on disagreement or an unknown name.
    """
    kind = kind_of_name(path.name)
    if kind is None:
        raise InputError(
            f"{path}: cannot tell the format from the name; use .csv, .tsv, .jsonl, .json, .parquet or .arrow, "
            f"each optionally followed by .gz or .zst"
        )
    with path.open("rb") as file:
        head = file.read(512)
    said = next((said for sign, said in _INSTEAD if sign.match(head.removeprefix(_BOM))), None)
    if said is not None:
        raise InputError(f"{path}: {said}")
    found = next((name for magic, name in _MAGIC if head.startswith(magic)), "none")
    if head and found != kind.compression:
        says = {"none": "not compressed", "gz": "gzip", "zst": "zstd"}
        raise InputError(
            f"{path}: the name says {says[kind.compression]}, the bytes say {says[found]}; rename it to what it is"
        )
    with reading(path), open_bytes(path, kind.compression) as stream:
        start = stream.read(4096)
    text = start.removeprefix(_BOM).lstrip()
    if not text:
        return kind
    archive = "a tar archive" if start[_TAR[0]] == _TAR[1] else None
    content = archive or next((name for magic, name in _BINARY_MAGIC if start.startswith(magic)), None)
    if content is None or not _CONTROL.search(start):  # a header may begin with the letters of another format
        is_json = _JSON_OBJECT.match(text) or (text[:1] == b"[" and kind.format in ("json", "jsonl"))
        content = "json" if is_json else "text"
    expected = {"csv": "text", "tsv": "text", "jsonl": "json"}.get(kind.format, kind.format)
    if content != expected:
        also = "" if content in ("text", "json", "parquet", "arrow") else ", and convert or unpack it"
        raise InputError(
            f"{path}: the name says {kind.format}, the content is {content}; rename it to what it is{also}"
        )
    return kind


def holds_nothing(path: Path, kind: Kind) -> bool:
    """Check for a file without content: 0 bytes decompressed, or only a byte-order mark and blank lines."""
    if path.stat().st_size > _LONGEST_BLANK:  # compressed, it would be a few bytes
        return False
    with reading(path), open_bytes(path, kind.compression) as stream:
        data = stream.read(_LONGEST_BLANK + 1)
    if kind.format in ("parquet", "arrow"):
        return not data
    blank = b"\r\n" if kind.format in ("csv", "tsv") else b" \t\r\n"
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
