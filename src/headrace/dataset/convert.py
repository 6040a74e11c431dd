"""Convert datasets of WebDataset and MosaicML Streaming to Parquet, once, one file per shard.

WebDataset shards are tar archives in which consecutive files with one key are the fields of a sample. The key of a file
is its path up to the first dot of its name. The field is the rest after that dot, in lower case. Fields are typed by
their last extension, as `webdataset` decodes them: text, integers, JSON (kept as text); all others are bytes. Source:
https://github.com/webdataset/webdataset, tariterators.py and autodecode.py. `formats.mds` reads the other kind.
"""

from __future__ import annotations

import gzip
import json
import lzma
import os
import re
import shutil
import tarfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.checks import explains_calls
from headrace.errors import CorruptShard, InputError, RunBusy, SettingsError
from headrace.formats import mds
from headrace.formats.detect import Kind
from headrace.formats.schema import plain
from headrace.formats.write import ShardWriter
from headrace.storage import local
from headrace.storage.place import Fact
from headrace.storage.places import local_path_of, path_of, place_of

_RECORD, _LOCK = "converting.json", "converting.lock"
_KEY = "__key__"
_TARS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
_PARTS = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)", re.DOTALL)
_META = re.compile(r"__[^/]*__($|/)")
_TEXTS = frozenset({"txt", "text", "transcript", "json", "jsn"})
_NUMBERS = frozenset({"cls", "cls2", "class", "count", "index", "inx", "id"})
_BATCH_BYTES = 8 << 20
OnShard: TypeAlias = Callable[[int, int], None]


@dataclass(frozen=True)
class Converted:
    """The result of `convert`. columns: name to type; skipped: files in tars that belong to no sample, by reason."""

    path: Path
    rows: int
    shards: int
    columns: dict[str, str]
    skipped: dict[str, int]


@dataclass(frozen=True)
class _Part:
    """A shard: its file, the name of its Parquet file in the output, and its entry in an MDS index."""

    path: Path
    fact: Fact
    target: str
    mds: mds.MdsShard | None = None


@explains_calls("convert")
def convert(source: str | Path, out: str | Path, *, on_shard: OnShard = lambda done, shards: None) -> Converted:
    """Write the samples of WebDataset tars or MDS shards as Parquet, in their order, one file per shard.

    source: a directory with shards at any depth, or one tar; local or in an object store. Subdirectories are kept, so
    `train/` and `val/` stay splits. A tar is read twice, the first time for the names of its fields.
    out: a new or empty local directory. It appears once it is complete; a call that was killed resumes after the last
    finished shard. on_shard: called with the number of finished shards and the total.

    The columns of tars are `__key__` and the extensions of the files: text (txt, text, transcript, json, jsn), int64
    (cls, cls2, class, count, index, inx, id), and bytes for all others; null if a sample has no such file. Columns of
    MDS have the types of their encodings: json and str_decimal stay text, jpeg and png bytes, arrays become lists.

    Raises `InputError` for a source of neither kind or a value that does not fit its type, `CorruptShard` for a damaged
    shard, `SettingsError` if `out` is not empty, `RunBusy` if another call is writing to it.
    """
    root, target = path_of(source), local_path_of(out, "out").absolute()
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise SettingsError(f"{target}: is not empty; give a new directory")
    parts = _parts_of(root)
    work = target.with_name(f"{local.TEMP_PREFIX}{target.name}-converting")
    local.make_directory(work)
    with local.alone(work / _LOCK, others="skip") as held:
        if not held:
            raise RunBusy(f"{target}: another process converts to it; wait until it has ended")
        _start(work, {str(part.path): [part.fact.size, place_of(part.path).version(part.fact)] for part in parts})
        fields, skipped = _survey([part.path for part in parts if part.mds is None])
        for done, part in enumerate(parts):
            on_shard(done, len(parts))
            if not (work / part.target).exists():
                _write(part, fields, work / part.target)
        on_shard(len(parts), len(parts))
        schema = _one_schema(work, parts)
        for name in (_RECORD, _LOCK):
            (work / name).unlink()
        with local.storing(target):
            os.replace(work, target)
            local.sync_directory(target.parent)
    rows = sum(pq.read_metadata(target / part.target).num_rows for part in parts)
    columns = {field.name: str(field.type) for field in schema}
    return Converted(target, rows, len(parts), columns, dict(sorted(skipped.items())))


def _parts_of(root: Path) -> list[_Part]:
    """List the shards at or below a directory, or the given tar, by name."""
    facts = {fact.name: fact for fact in place_of(root).files_below()}
    if not facts and root.name.endswith(_TARS):
        return [_Part(root, place_of(root).stat(), _target(root.name))]
    parts = []
    for name in sorted(name for name in facts if name.rpartition("/")[2] == mds.INDEX):
        inside = name.removesuffix(mds.INDEX)
        for shard in mds.shards_of(root / inside):
            fact = facts.get(inside + shard.path.name)
            if fact is None:
                raise InputError(f"{shard.path}: is missing, though {root / name} lists it; restore the file")
            parts.append(_Part(shard.path, fact, _target(inside + shard.raw["basename"]), shard))
    parts = parts or [_Part(root / name, facts[name], _target(name)) for name in sorted(facts) if name.endswith(_TARS)]
    if not parts:
        raise InputError(
            f"{root}: holds neither tars nor an {mds.INDEX} of MDS shards; give a directory of WebDataset or MDS"
        )
    return parts


def _target(name: str) -> str:
    """Name the Parquet file of a shard. Dots become hyphens, so that no part is taken for an extension."""
    directory, slash, last = name.rpartition("/")
    stem = last.removesuffix(".mds")
    stem = stem.removesuffix(next(filter(stem.endswith, _TARS), ""))
    return f"{directory}{slash}{stem.replace('.', '-')}.parquet"


def _start(work: Path, sources: dict[str, list[int | str]]) -> None:
    """Keep the shards of an earlier call that read the same files, and delete those of other files."""
    record = work / _RECORD
    if record.exists() and json.loads(record.read_bytes()) == sources:
        for path in local.strays(work):
            path.unlink()
        return
    for path in work.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != _LOCK:
            path.unlink()
    local.write_over(record, json.dumps(sources).encode())


def _write(part: _Part, fields: pa.Schema, target: Path) -> None:
    """Write one shard, which gets its final name once it is complete. fields: the columns of tars."""
    local.make_directory(target.parent)
    pieces: Iterable[pa.Table] = _samples(part.path, fields)
    if part.mds is not None:
        table = mds.table_of(part.mds)
        fields, pieces = pa.schema([(field.name, plain(field.type)) for field in table.schema]), [table]
    with local.beside(target) as temporary:
        with ShardWriter(
            temporary, kind=Kind("parquet", "none"), schema=fields, dialect=None, parquet_compression="zstd"
        ) as writer:
            for piece in pieces:
                writer.append(piece)
            writer.finish()
        local.publish(temporary, target)


def _one_schema(work: Path, parts: Iterable[_Part]) -> pa.Schema:
    """Return the columns of all shards. Raises `InputError` if two shards of a directory differ."""
    seen: dict[Path, tuple[pa.Schema, Path]] = {}
    for part in parts:
        path = work / part.target
        schema = pq.read_schema(path)
        first, shard = seen.setdefault(path.parent, (schema, part.path))
        if not schema.equals(first):
            raise InputError(
                f"{part.path}: has other columns or types than {shard} ({_listed(schema)}, not {_listed(first)});"
                " convert them to directories of their own"
            )
    return next(iter(seen.values()))[0]


def _listed(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


def _survey(archives: Sequence[Path]) -> tuple[pa.Schema, Counter[str]]:
    """Read the headers of all members of tars; return the columns, and the number of other members by reason.

    The columns are the key and the fields sorted by name.
    """
    names: set[str] = set()
    skipped: Counter[str] = Counter()
    if not archives:
        return pa.schema([]), skipped
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
    if _KEY in names:
        raise InputError(
            f"{archives[0]}: a shard has files that end in .{_KEY}, the name of the column of keys; rename them"
        )
    kinds = {**dict.fromkeys(_TEXTS, pa.string()), **dict.fromkeys(_NUMBERS, pa.int64())}
    fields = [(name, kinds.get(name.rpartition(".")[2], pa.binary())) for name in sorted(names)]
    return pa.schema([(_KEY, pa.string()), *fields]), skipped


def _samples(path: Path, schema: pa.Schema) -> Iterator[pa.Table]:
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
            if not rows or rows[-1][_KEY] != key:
                if held > _BATCH_BYTES:
                    yield pa.Table.from_pylist(rows, schema)
                    rows, held = [], 0
                rows.append({_KEY: key})
            if name in rows[-1]:
                raise InputError(f"{path}: sample {key!r} has two files {name!r}; remove one")
            data = archive.extractfile(member)
            assert data is not None  # regular files only
            value, kind = data.read(), types[name]
            try:
                if pa.types.is_integer(kind):
                    rows[-1][name] = pa.scalar(int(value), kind).as_py()  # int64 may overflow
                else:
                    rows[-1][name] = value if pa.types.is_binary(kind) else value.decode()
            except (ValueError, OverflowError):
                wanted = "an integer of 64 bits" if pa.types.is_integer(kind) else "UTF-8"
                raise InputError(
                    f"{path}: {member.name!r}: is {value[:40]!r}, not {wanted}, which its extension says; give it"
                    " another extension"
                ) from None
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


@contextmanager
def _opened(path: Path) -> Iterator[tarfile.TarFile]:
    """Open an archive, compressed or not. Read errors become `CorruptShard`."""
    try:
        with place_of(path).local_copy() as copy, tarfile.open(copy) as archive:
            yield archive
            assert archive.fileobj is not None
            # A block of zeros ends an archive; tarfile also stops at cuts and damaged headers.
            archive.fileobj.seek(archive.offset)  # position of the next header
            if archive.fileobj.read(tarfile.BLOCKSIZE).count(0) < tarfile.BLOCKSIZE:
                raise tarfile.ReadError(f"no member and no end at byte {archive.offset:,}")
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise CorruptShard(f"{path}: is not a complete tar archive ({error}); restore the file") from None
