"""Read one block of a shard on its own: the verb that streams and `verify` are made of."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from headrace.errors import CorruptShard, HeadraceError, InputError
from headrace.formats import arrow, delimited, jsonl, parquet
from headrace.formats.compress import decompress_block
from headrace.formats.delimited_numbers import parse_numbers
from headrace.formats.detect import Kind, kind_of_name
from headrace.formats.forked import require_polars
from headrace.formats.schema import is_text
from headrace.formats.separator import separator_of
from headrace.formats.shard import Dialect, Shard
from headrace.formats.typed import typed
from headrace.formats.whole import Pages
from headrace.recipe import registrations
from headrace.storage.places import place_of


def kind_of_word(word: str) -> Kind:
    """The kind behind a word of the index, such as "csv.gz", "csv-semicolon" or "parquet"."""
    kind = _kind_and_separator(word)[0]
    if kind is None:
        for recipe in registrations().values():
            if word in recipe.readers:
                raise InputError(recipe.readers[word])
    if kind is None:
        raise CorruptShard(f"format {word!r} is not known; the index was written by another version, upgrade headrace")
    return kind


def read_block(
    path: Path,
    word: str,
    *,
    block: int,
    offset: int,
    length: int,
    columns: Sequence[str] | None,
    schema: pa.Schema,
    null_values: Sequence[str] = (),
    pages: Pages = "check",
) -> pa.Table:
    """The rows of one block as columns of the schema's types (all columns, or the given ones in their order).

    block: row group number (Parquet) or record batch (Arrow). offset, length: byte range (text, Arrow streams); a CSV
    or TSV block at offset 0 begins with the header of its file, which is no row. Thread-safe; the work releases the
    interpreter lock. Raises `CorruptShard` naming file and block if the bytes cannot be read as they were written, and
    `InputError` if a text is not of its declared type. pages: see `parquet.read_block`.
    """
    kind = kind_of_word(word)
    if kind.format in ("parquet", "arrow"):
        try:
            if kind.format == "arrow":
                return arrow.read_block(path, kind, block, offset, length, columns, schema)
            return parquet.read_block(path, kind, block, columns, schema, pages)
        except FileNotFoundError as error:
            raise CorruptShard(f"{path}: is missing; restore it or prepare the run again") from error
    wanted = pa.schema([schema.field(name) for name in (schema.names if columns is None else columns)])
    if kind.format in ("jsonl", "json"):
        require_polars(path)
    try:
        data = decompress_block(_bytes_of(path, offset, length), kind.compression)
        if kind.format in ("jsonl", "json"):
            return jsonl.parse_block(jsonl.clean_block(data, path, kind), path, wanted)
        if offset == 0:
            data = delimited.without_header(data)
        shard = _text_shard(path, word, schema)
        table = _straight(data, shard, wanted, null_values)
        if table is None:
            table = delimited.parse_block(data, shard, wanted.names)
    except FileNotFoundError as error:
        raise CorruptShard(f"{path}: is missing; restore it or prepare the run again") from error
    except (OSError, zlib.error, pa.ArrowInvalid, HeadraceError) as error:
        told = str(error).removeprefix(f"{path}: ")
        changed = "or, if it changed, " if isinstance(error, HeadraceError) else ""  # ours say what else to do
        raise CorruptShard(
            f"{path}: block {block} (bytes {offset} to {offset + length}): {told}; "
            f"{changed}restore the file or prepare the run again"
        ) from error
    types = {field.name: field.type for field in wanted if not is_text(field.type)}
    return typed(table, types, null_values, f"{path}: block {block} (bytes {offset} to {offset + length})", 0).cast(
        wanted
    )


def _kind_and_separator(word: str) -> tuple[Kind | None, str | None]:
    try:
        plain, separator = separator_of(word)
    except KeyError:
        return None, None
    return kind_of_name(f"shard.{plain}"), separator


def _bytes_of(path: Path, offset: int, length: int) -> bytes:
    data = place_of(path).read_ranges([(offset, offset + length)])[0]
    if len(data) < length:
        raise CorruptShard("the file ends before")
    return data


def _straight(data: bytes, shard: Shard, wanted: pa.Schema, null_values: Sequence[str]) -> pa.Table | None:
    assert shard.dialect is not None
    separator, names = shard.dialect.separator, shard.schema.names
    return parse_numbers(data, separator=separator, names=names, wanted=wanted, null_values=null_values)


def _text_shard(path: Path, word: str, schema: pa.Schema) -> Shard:
    text = pa.schema([(name, pa.string()) for name in schema.names])
    kind, separator = _kind_and_separator(word)
    assert kind is not None
    assert separator is not None
    dialect = Dialect(separator, "\n")
    return Shard(
        path=path, name=path.name, size=0, mtime_ns=0, kind=kind, schema=text, null_columns=frozenset(), dialect=dialect
    )
