"""Convert datasets of WebDataset and MosaicML Streaming to Parquet, once, one file per shard."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.checks import explains_calls
from headrace.errors import InputError, RunBusy, SettingsError
from headrace.formats import mds, tars
from headrace.formats.detect import Kind
from headrace.formats.schema import plain
from headrace.formats.write import ShardWriter
from headrace.storage import local
from headrace.storage.place import Fact
from headrace.storage.places import local_path_of, path_of, place_of

_RECORD, _LOCK = "converting.json", "converting.lock"
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
        fields, skipped = _fields_of(parts)
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
    if not facts and tars.is_tar(root.name):
        return [_Part(root, place_of(root).stat(), _target(root.name))]
    parts = []
    for name in sorted(name for name in facts if name.rpartition("/")[2] == mds.INDEX):
        inside = name.removesuffix(mds.INDEX)
        for shard in mds.shards_of(root / inside):
            fact = facts.get(inside + shard.path.name)
            if fact is None:
                raise InputError(f"{shard.path}: is missing, though {root / name} lists it; restore the file")
            parts.append(_Part(shard.path, fact, _target(inside + shard.raw["basename"]), shard))
    parts = parts or [_Part(root / name, facts[name], _target(name)) for name in sorted(filter(tars.is_tar, facts))]
    if not parts:
        raise InputError(
            f"{root}: holds neither tars nor an {mds.INDEX} of MDS shards; give a directory of WebDataset or MDS"
        )
    return parts


def _target(name: str) -> str:
    """Name the Parquet file of a shard. Dots become hyphens, so that no part is taken for an extension."""
    directory, slash, last = name.rpartition("/")
    return f"{directory}{slash}{tars.without_extension(last.removesuffix('.mds')).replace('.', '-')}.parquet"


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


def _fields_of(parts: Iterable[_Part]) -> tuple[pa.Schema | None, Counter[str]]:
    """Return the columns of tars, and the number of files in them that belong to no sample."""
    archives = [part.path for part in parts if part.mds is None]
    return tars.survey(archives) if archives else (None, Counter())


def _write(part: _Part, fields: pa.Schema | None, target: Path) -> None:
    """Write one shard, which gets its final name once it is complete."""
    local.make_directory(target.parent)
    if part.mds is not None:
        table = mds.table_of(part.mds)
        fields = pa.schema([(field.name, plain(field.type)) for field in table.schema])
        pieces = iter((table,))
    else:
        assert fields is not None
        pieces = tars.samples(part.path, fields)
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
