"""Rewrite a shard of a finished run without the rows of some entities.

Text keeps the bytes of the remaining records; Parquet keeps its schema, compression and row order.
The whole shard is checked against its digest, read once for the entities and keys of its rows, and
read once more to copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import I64, Bools
from headrace.dataset.open import FinishedRun
from headrace.dataset.sound import damaged
from headrace.digest import sha256_file
from headrace.errors import CorruptShard
from headrace.formats.parquet import open_file
from headrace.formats.source import (
    copied_records,
    file_type_of_word,
    read_block,
    read_chunks,
    survey,
)
from headrace.formats.text_columns import as_text
from headrace.formats.types import Target
from headrace.formats.write import ShardWriter
from headrace.run.context import TaskFiles
from headrace.run.tally import ShardRecord
from headrace.storage.places import place_of


@dataclass(frozen=True)
class Erased:
    """The rows to erase.

    entities: for each split, those that have rows. rows: for each split, ascending, from 0. others:
    entities without rows that files of the run still know.
    """

    column: str
    entities: Mapping[str, Sequence[str]]
    rows: Mapping[str, I64]
    others: Sequence[str] = ()


@dataclass(frozen=True)
class Erasure:
    """A recipe's functions for rewriting a run without some rows.

    keys: takes a finished run; returns the columns it needs, and a function from a table of them to
    the key of each row, int64, as in the index. None: rows have no keys. count: takes a run and
    keys of rows; returns counts that can be summed.
    metadata: takes a run, the rows to erase, the counts of the erased rows of each split, and the
    number of workers; returns the metadata that changes without those rows.
    knows: takes a run, the column of entities and some of them; returns those that files which are
    no shards know. files: takes a run and the rows to erase; returns the new bytes of each file
    that is no shard and keeps something of them, None for a file that goes. encoding: for Parquet,
    see `ParquetSink`.
    """

    keys: Callable[[FinishedRun], tuple[Sequence[str], Callable[[pa.Table], I64]]] | None = None
    count: Callable[[FinishedRun, I64], I64] | None = None
    metadata: Callable[[FinishedRun, Erased, Mapping[str, I64], int], dict[str, Any]] | None = None
    knows: Callable[[FinishedRun, str, Sequence[str]], Sequence[str]] | None = None
    files: Callable[[FinishedRun, Erased], Mapping[str, bytes | None]] | None = None
    encoding: Literal["compact", "fast"] = "compact"


@dataclass(frozen=True)
class ShardEraser:
    """Rewrites shards of a run without the rows of the named entities.

    column: holds the entities.
    """

    run: FinishedRun
    column: str
    names: Sequence[str]
    erasure: Erasure

    def task(self, old: ShardRecord, expected: int, files: TaskFiles) -> dict[str, Any]:
        """Write a shard without the rows of the entities; write none if all its rows are theirs."""
        path = self.run.root / old.file.path
        with place_of(path).local_copy() as copy:
            if sha256_file(copy) != old.file.digest:
                raise damaged(path)
            gone, keys = self._look(copy, old)
            if int(gone.sum()) != expected:
                raise CorruptShard(
                    f"{int(gone.sum())} rows are of the entities, a look at its column found"
                    f" {expected}",
                    path=path,
                    remedy="delete entities-*.arrows in the cache and run again",
                )
            blocks: list[dict[str, Any]] = []
            if not gone.all():
                target = files.temporary(old.file.path)
                parquet = old.format == "parquet"
                if parquet:
                    writer = self._copy_groups(copy, target, old, gone, keys)
                else:
                    writer = self._copy_records(copy, target, old, gone, keys)
                with writer:
                    written = writer.finish()
                files.finished(target, old.file.path, written)
                blocks = [asdict(block) for block in written.blocks]
        count = self.erasure.count
        return {
            "rows_in": len(gone),
            "rows": int((~gone).sum()),
            "forgotten": expected,
            "blocks": blocks,
            "counts": [] if keys is None or count is None else count(self.run, keys[gone]).tolist(),
        }

    def _look(self, copy: Path, old: ShardRecord) -> tuple[Bools, I64 | None]:
        """Return a mask of the rows to erase from a shard, and the keys of all its rows."""
        key_columns: Sequence[str] = ()
        key_of: Callable[[pa.Table], I64] | None = None
        if self.erasure.keys is not None:
            key_columns, key_of = self.erasure.keys(self.run)
        column = self.column
        dialect = self.run.dialect
        requested_names = pa.array(self.names, pa.large_string())
        schema = self.run.schema
        target = Target.of(
            pa.schema([schema.field(name) for name in dict.fromkeys([column, *key_columns])])
        )
        gone = []
        keys = [np.empty(0, np.int64)]
        for number, block in enumerate(old.blocks):
            table = read_block(
                copy,
                old.format,
                block=number,
                offset=block["offset"],
                length=block["length"],
                target=target,
                names=schema.names,
                dialect=dialect,
            )
            texts = as_text(table[column], dialect.null_values, column)
            gone.append(np.asarray(pc.is_in(texts, value_set=requested_names)))
            if key_of is not None:
                keys.append(key_of(table))
        return np.concatenate(gone), None if key_of is None else np.concatenate(keys)

    def _copy_groups(
        self, copy: Path, target: Path, old: ShardRecord, gone: Bools, keys: I64 | None
    ) -> ShardWriter:
        with open_file(copy, file_type_of_word(old.format)) as file:
            stored = file.metadata.row_group(0).column(0).compression.lower()
            writer = ShardWriter(
                target,
                file_type=file_type_of_word(old.format),
                schema=file.schema_arrow,
                dialect=None,
                parquet_compression={"uncompressed": "none", "lz4_raw": "lz4"}.get(stored, stored),
                encoding=self.erasure.encoding,
                block_rows=max(block["rows"] for block in old.blocks),
            )
            for number, block in enumerate(old.blocks):
                part = slice(block["first_row"], block["first_row"] + block["rows"])
                table = file.read_row_group(number, use_threads=False)
                writer.append(
                    table.filter(pa.array(~gone[part])),
                    None if keys is None else keys[part][~gone[part]],
                )
        return writer

    def _copy_records(
        self, copy: Path, target: Path, old: ShardRecord, gone: Bools, keys: I64 | None
    ) -> ShardWriter:
        shard = survey(copy, old.file.path, dialect=self.run.dialect)
        sizes = [chunk.sizes() for chunk in read_chunks(shard)]
        known_sizes = [size for size in sizes if size is not None]
        if len(known_sizes) < len(sizes) or sum(map(len, known_sizes)) != len(gone):
            raise damaged(self.run.root / old.file.path, "has other records than its blocks say")
        writer = ShardWriter(
            target,
            file_type=shard.file_type,
            schema=shard.schema,
            dialect=shard.dialect,
            block_rows=max(block["rows"] for block in old.blocks),
        )
        row = 0
        for records in copied_records(shard, np.concatenate(known_sizes)):
            part = slice(row, row + len(records))
            writer.append(
                records.filter(pa.array(~gone[part])),
                None if keys is None else keys[part][~gone[part]],
            )
            row += len(records)
        return writer
