"""Find the rows: shards in a directory, one file, a prepared dataset, or a DataFrame."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.dataset.index import SplitIndex
from headrace.dataset.indexed import ReadBlock
from headrace.dataset.open import is_prepared
from headrace.errors import InputError, SettingsError
from headrace.formats.detect import kind_of_name
from headrace.formats.listing import NoMatch, list_files
from headrace.formats.schema import plain
from headrace.storage.places import path_of
from headrace.stream.loader.dataset import open_dataset

_FRAME_BLOCK_ROWS = 1 << 13


@dataclass(frozen=True, kw_only=True)
class Source:
    """Blocks, who reads them, and the files they are in, empty ones included (none for a DataFrame)."""

    index: SplitIndex
    read_block: ReadBlock
    files: tuple[Path, ...]


def open_files(
    file_dir: str | Path,
    *,
    filename: str | None,
    shard_pattern: str | Sequence[str] | None,
    split: str | None,
    cache_dir: str | Path | None,
) -> Source:
    """Open the shards of a directory, one file of it, or a split of a prepared dataset.

    shard_pattern: one or several patterns such as "part-*.parquet"; None: files named part-*, else all data files.
    Raises `InputError` if there are none, or some of one format and some of another.
    """
    root = path_of(file_dir)
    if not root.is_dir():
        raise InputError(f"{root}: no such directory; give the directory of the shards as file_dir")
    if filename is not None and shard_pattern is not None:
        raise SettingsError(f"filename is {filename!r} and shard_pattern {shard_pattern!r}; give one of them")
    if filename is None and shard_pattern is None and is_prepared(root):
        data = open_dataset(root)
        index = data.split_index(split)
        files = tuple(data.root / name for name in index.shards)
        return Source(index=index, read_block=data.block_reader(split), files=files)
    if split is not None:
        raise SettingsError(f"split is {split!r}, but {root} is no prepared dataset; give the directory of its shards")
    found = [root / filename] if filename is not None else _matching(root, shard_pattern)
    data = open_dataset(found, cache_dir=cache_dir)
    return Source(index=data.split_index(), read_block=data.block_reader(), files=tuple(found))


def _matching(root: Path, shard_pattern: str | Sequence[str] | None) -> list[Path]:
    patterns = [shard_pattern] if isinstance(shard_pattern, str) else list(shard_pattern or ("part-*",))
    found = _data_files(root, patterns)
    if not found and shard_pattern is None:
        found = _data_files(root, ["*"])
    if not found:
        asked = ", ".join(patterns) if shard_pattern is not None else "*.parquet, *.csv, *.tsv, *.jsonl"
        raise InputError(f"{root}: holds no shard that matches {asked}; check the directory, or pass shard_pattern=")
    formats = sorted({kind.format for path in found if (kind := kind_of_name(path.name))})
    if len(formats) > 1:
        raise InputError(
            f"{root}: holds shards of several formats, {', '.join(formats)}, which may be the same rows twice;"
            f' name one, e.g. shard_pattern="part-*.{formats[0]}*"'
        )
    return found


def _data_files(root: Path, patterns: Sequence[str]) -> list[Path]:
    fixed = path_of(glob.escape(str(root)))
    found: set[Path] = set()
    for pattern in patterns:
        with suppress(NoMatch):
            listing = list_files([fixed / pattern])
            found.update(listing.path(place) for place in range(len(listing.names)))
    return sorted(found)


def of_frame(frame: Any) -> Source:
    """Take the rows of a pandas or polars DataFrame, or of an Arrow table, into memory, and into every worker's.

    Dictionaries become their values, and columns of nothing but nulls text. Raises `InputError` if a column holds
    values of several types, `SettingsError` if it is something else.
    """
    library = type(frame).__module__.partition(".")[0]
    if isinstance(frame, pa.Table):
        table = frame
    elif library == "polars" and hasattr(frame, "to_arrow") and hasattr(frame, "columns"):
        table = frame.to_arrow()
    elif library == "pandas" and hasattr(frame, "columns"):
        table = _of_pandas(frame)
    else:
        raise SettingsError(
            f"dataframe is a {type(frame).__module__}.{type(frame).__name__}; give a pandas or polars DataFrame,"
            " or a pyarrow Table"
        )
    kinds = [(each.name, pa.string() if pa.types.is_null(each.type) else plain(each.type)) for each in table.schema]
    table = table.cast(pa.schema(kinds)).combine_chunks()
    starts = np.arange(0, table.num_rows, _FRAME_BLOCK_ROWS, dtype=np.int64)
    nothing = np.zeros(len(starts), np.int64)
    index = SplitIndex(
        split="all",
        schema=table.schema,
        shards=("dataframe",),
        formats=("memory",),
        shard_of_block=nothing,
        block=np.arange(len(starts), dtype=np.int64),
        rows=np.minimum(_FRAME_BLOCK_ROWS, table.num_rows - starts),
        offset=nothing,
        length=nothing,
    )
    return Source(index=index, read_block=TableBlocks(table), files=())


@dataclass(frozen=True)
class TableBlocks:
    """Slices of a table in memory, by block number."""

    table: pa.Table

    def __call__(self, number: int, columns: Sequence[str] | None) -> pa.Table:
        """Return the rows of one block."""
        part = self.table.slice(number * _FRAME_BLOCK_ROWS, _FRAME_BLOCK_ROWS)
        return part if columns is None else part.select(list(columns))


def _of_pandas(frame: Any) -> pa.Table:
    names = [str(name) for name in frame.columns]
    if len(set(names)) < len(names):
        raise InputError(f"dataframe: column names repeat in {names}; rename one of them")
    arrays = []
    for place, name in enumerate(names):
        series = frame.iloc[:, place]
        floats = getattr(series.dtype, "kind", "") == "f" and isinstance(series.dtype, np.dtype)
        try:  # a NaN of pandas is a missing text or date, but a float of its own
            arrays.append(pa.array(series.to_numpy() if floats else series, from_pandas=not floats))
        except pa.ArrowException as error:
            raise InputError(
                f"dataframe: column {name!r} holds values of several types ({error}); make them one type"
            ) from error
    return pa.table(dict(zip(names, arrays, strict=True)))
