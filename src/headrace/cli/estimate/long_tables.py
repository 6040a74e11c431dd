"""Some whole entities of long tables, whose rows may lie anywhere: first rows would be a day of each, or one of all.

One pass reads the tables and keeps the rows of the entities whose keyed hashes are the smallest so far, as many as fit:
one that is among them at the end was so from its first row on. Memory is O(sample + rows of one entity).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.cli.estimate.sized import SizedFile
from headrace.cli.init.series_long import MOST_BYTES
from headrace.digest import derive_key, hash_texts
from headrace.errors import InputError
from headrace.formats.detect import Kind
from headrace.formats.source import read_chunks, survey
from headrace.recipes.temporal_split.columns import as_text

_KEY = derive_key(0, "estimate.entities")
_FEWEST = 4  # entities that stay, however many bytes: one alone may be too short for the recipe
_HELD = 64 << 20  # bytes of Arrow that are kept on the way, if they are not of one entity
_CODEC = {"gz": "gzip", "zst": "zstd"}


@dataclass(frozen=True)
class TakenEntities:
    """recipe: on the sample; bytes: of the tables that it stands for. rows_of, entities_of: of the whole tables."""

    recipe: Any
    bytes: int
    rows_of: int
    entities_of: int


@dataclass
class _Kept:
    """The rows of entities with small hashes. pieces: (file, entity of each row, rows) in the order of the source."""

    names: set[str] = field(default_factory=set)
    hashes: dict[str, tuple[int, int]] = field(default_factory=dict)
    rows: Counter[str] = field(default_factory=Counter)
    limit: tuple[int, int] = (1 << 64, 0)  # hashes from here on are let go
    pieces: list[tuple[int, pa.Array, pa.Table]] = field(default_factory=list)

    def add(self, file: int, keys: pa.Array, table: pa.Table) -> None:
        """Take in the rows of entities that may stay. keys: their entities, null for none."""
        counts = {each["values"]: each["counts"] for each in keys.drop_null().value_counts().to_pylist()}
        new = pa.array([name for name in counts if name not in self.names], pa.string())
        if len(new):
            high, low = hash_texts(_KEY, new)
            found = dict(zip(new.to_pylist(), zip(high.tolist(), low.tolist(), strict=True), strict=True))
            self.names |= found.keys()
            self.hashes |= {name: number for name, number in found.items() if number < self.limit}
        self.rows.update({name: count for name, count in counts.items() if name in self.hashes})
        self._keep(file, keys, table)

    def bytes(self) -> int:
        """Of Arrow that is held."""
        return sum(int(table.nbytes) for _, _, table in self.pieces)

    def cut(self, rows: int, fewest: int) -> None:
        """Let go of the entities with the largest hashes until those that stay have so many rows at most."""
        ordered = sorted(self.hashes, key=self.hashes.__getitem__)
        held = np.cumsum([self.rows[name] for name in ordered])
        stay = max(fewest, int(np.searchsorted(held, rows, "right")))
        if stay >= len(ordered):
            return
        self.limit = self.hashes[ordered[stay]]
        for name in ordered[stay:]:
            del self.hashes[name], self.rows[name]
        pieces, self.pieces = self.pieces, []
        for piece in pieces:
            self._keep(*piece)

    def _keep(self, file: int, keys: pa.Array, table: pa.Table) -> None:
        stays = pc.is_in(keys, value_set=pa.array(sorted(self.hashes), keys.type))
        own = table.filter(stays)
        if own.num_rows:
            self.pieces.append((file, keys.filter(stays), own))


def take_entities(recipe: Any, tables: Sequence[SizedFile], directory: Path, sample_bytes: int) -> TakenEntities:
    """Write the rows of about so many bytes' entities below a directory, in files of the same names and kinds.

    Raises `InputError` where there is no entity, or more than can be read for an estimate.
    """
    total = sum(file.size for file in tables)
    if total > MOST_BYTES:
        raise InputError(
            f"the long tables have {total / 1e9:,.1f} GB, and for an estimate up to {MOST_BYTES / 1e9:,.1f} GB are read"
        )
    listed = recipe.listed()
    wanted = None if listed is None else pa.array(listed, pa.large_string())
    kept, rows, own_rows, kinds = _Kept(), 0, 0, {}
    for number, file in enumerate(tables):
        shard = survey(file.path, file.name)
        if shard.content == "nothing":
            continue
        kinds[number] = shard.kind
        if recipe.entity not in shard.schema.names:
            raise InputError(f"{file.path}: has no column {recipe.entity!r}")
        for chunk in read_chunks(shard):
            table = chunk.table(shard.schema.names)
            if not table.num_rows:
                continue
            keys = as_text(table[recipe.entity], recipe.null_values, f"{file.path}: column {recipe.entity!r}")
            keys = keys.combine_chunks() if isinstance(keys, pa.ChunkedArray) else keys
            if wanted is not None:
                keys = pc.if_else(pc.is_in(keys, value_set=wanted.cast(keys.type)), keys, None)
            kept.add(number, keys, table)
            rows += table.num_rows
            own_rows += len(keys) - keys.null_count
            if kept.bytes() > _HELD:
                kept.cut(kept.rows.total() // 2, 1)
    if not kept.hashes:
        raise InputError(f"no row of the tables has an entity in column {recipe.entity!r}")
    kept.cut(own_rows * sample_bytes // max(1, total), _FEWEST)
    for number, file in enumerate(tables):
        own = [table for place, _, table in kept.pieces if place == number]
        if own:
            _write(pa.concat_tables(own), kinds[number], directory / file.name)
    places = {(directory / file.name).parent for file in tables}
    update: dict[str, Any] = {"source": tuple(sorted(place for place in places if place.exists()))}
    if recipe.region_time_series_base_dirs:
        update = {"region_time_series_base_dirs": {place.name: place for place in update["source"]}}
    if listed is not None:
        update |= {"entities": tuple(sorted(kept.hashes)), "entities_file": None}
    stands_for = total * kept.rows.total() // own_rows
    return TakenEntities(recipe.model_copy(update=update), stands_for, rows, len(kept.names))


def _write(table: pa.Table, kind: Kind, target: Path) -> None:
    """A table as a file of this kind."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if kind.format == "parquet" and kind.compression == "none":
        pq.write_table(table, target)
        return
    if kind.format == "arrow" and kind.compression == "none":
        with pa.OSFile(str(target), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        return
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    with pa.output_stream(str(target), compression=_CODEC.get(kind.compression)) as stream:
        if kind.format == "jsonl":
            stream.write(frame.write_ndjson().encode())
        elif kind.format == "json":
            stream.write(frame.write_json().encode())
        elif kind.format in ("csv", "tsv"):
            stream.write(frame.write_csv(separator="," if kind.format == "csv" else "\t").encode())
        else:
            raise InputError(f"{target.name}: is {kind.extension}, of which no part can be taken")
