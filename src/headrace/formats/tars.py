"""Read WebDataset shards: tar archives in which consecutive files with one key are the fields of a sample.

The key of a file is its path up to the first dot of its name. The field is the rest after that dot, in lower case.
Fields are typed by their last extension, as `webdataset` decodes them: text, integers, JSON (kept as text); all others
are bytes. Source: https://github.com/webdataset/webdataset, tariterators.py and autodecode.py.
"""

from __future__ import annotations

import gzip
import lzma
import re
import tarfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.errors import CorruptShard, InputError
from headrace.storage.places import place_of

KEY = "__key__"
EXTENSIONS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
_PARTS = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)", re.DOTALL)
_META = re.compile(r"__[^/]*__($|/)")
_TEXTS = frozenset({"txt", "text", "transcript", "json", "jsn"})
_NUMBERS = frozenset({"cls", "cls2", "class", "count", "index", "inx", "id"})
_BATCH_BYTES = 8 << 20


def is_tar(name: str) -> bool:
    """Return whether a file name is that of a tar."""
    return name.endswith(EXTENSIONS)


def without_extension(name: str) -> str:
    """Return a tar's file name without its extension."""
    return next((name.removesuffix(each) for each in EXTENSIONS if name.endswith(each)), name)


def survey(archives: Sequence[Path]) -> tuple[pa.Schema, Counter[str]]:
    """Read the headers of all members; return the columns, and the number of members that are not fields, by reason.

    The columns are the key and the fields sorted by name.
    """
    names: set[str] = set()
    skipped: Counter[str] = Counter()
    for path in archives:
        with _opened(path) as archive:
            for member in archive:
                part = _part_of(member)
                if isinstance(part, tuple):
                    names.add(part[1])
                elif part:
                    skipped[part] += 1
    if not names:
        raise InputError(f"{archives[0]}: no shard holds a file named KEY.FIELD, so there are no samples; give others")
    if KEY in names:
        raise InputError(
            f"{archives[0]}: a shard has files that end in .{KEY}, the name of the column of keys; rename them"
        )
    return pa.schema([(KEY, pa.string()), *((name, type_of(name)) for name in sorted(names))]), skipped


def type_of(name: str) -> pa.DataType:
    """Return the type of a field by its last extension."""
    last = name.rpartition(".")[2]
    return pa.string() if last in _TEXTS else pa.int64() if last in _NUMBERS else pa.binary()


def samples(path: Path, schema: pa.Schema) -> Iterator[pa.Table]:
    """Read the samples of an archive in order, in tables of about 8 MiB. A field that a sample lacks is null."""
    types = {each.name: each.type for each in schema}
    rows: list[dict[str, Any]] = []
    held = 0
    with _opened(path) as archive:
        for member in archive:
            part = _part_of(member)
            if not isinstance(part, tuple):
                continue
            key, name = part
            if not rows or rows[-1][KEY] != key:
                if held > _BATCH_BYTES:
                    yield pa.Table.from_pylist(rows, schema)
                    rows, held = [], 0
                rows.append({KEY: key})
            if name in rows[-1]:
                raise InputError(f"{path}: sample {key!r} has two files {name!r}; remove one")
            data = archive.extractfile(member)
            assert data is not None  # regular files only
            rows[-1][name] = _value(data.read(), types[name], f"{path}: {member.name!r}")
            held += member.size
    if rows:
        yield pa.Table.from_pylist(rows, schema)


def _part_of(member: tarfile.TarInfo) -> tuple[str, str] | str:
    """Return the key and the field of a member, or why it is not part of a sample; "" for a directory."""
    if not member.isreg():
        return "" if member.isdir() else "links and devices"
    match = _PARTS.fullmatch(member.name)
    if match is None or not match[2]:
        return "files without an extension"
    return "files about the archive (__NAME__)" if _META.match(member.name) else (match[1], match[2].lower())


def _value(data: bytes, kind: pa.DataType, where: str) -> bytes | str | int:
    if pa.types.is_binary(kind):
        return data
    try:
        return pa.scalar(int(data), kind).as_py() if pa.types.is_integer(kind) else data.decode()  # int64 may overflow
    except (ValueError, OverflowError):
        wanted = "an integer of 64 bits" if pa.types.is_integer(kind) else "UTF-8"
        raise InputError(
            f"{where}: is {data[:40]!r}, not {wanted}, which its extension says; give it another extension"
        ) from None


@contextmanager
def _opened(path: Path) -> Iterator[tarfile.TarFile]:
    """Open an archive, compressed or not. Read errors become `CorruptShard`."""
    try:
        with place_of(path).local_copy() as local, tarfile.open(local) as archive:
            yield archive
            _check_end(archive)
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise CorruptShard(f"{path}: is not a complete tar archive ({error}); restore the file") from None


def _check_end(archive: tarfile.TarFile) -> None:
    """Raise `ReadError` unless a block of zeros ends the archive; tarfile also stops at cuts and damaged headers."""
    assert archive.fileobj is not None
    archive.fileobj.seek(archive.offset)  # position of the next header
    if archive.fileobj.read(tarfile.BLOCKSIZE).count(0) < tarfile.BLOCKSIZE:
        raise tarfile.ReadError(f"no member and no end at byte {archive.offset:,}")
