"""A finished run of series, as its checks read it: settings, entities, and the rows of each shard of the store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.arrays import F64, I64
from headrace.dataset.open import FinishedRun
from headrace.series.config import Series
from headrace.series.finish import ENTITIES, STATICS


@dataclass(frozen=True)
class StoredShard:
    """The entities of one shard of the store, and where their rows lie in it."""

    path: str
    entities: list[str]
    first_row: I64
    rows: I64
    val_row: I64
    test_row: I64

    def values(self, run: FinishedRun) -> npt.NDArray[np.float32]:
        """Its rows, mapped: float32 [rows, C], scaled."""
        with pa.memory_map(str(run.root / self.path)) as source:
            column = pa.ipc.open_file(source).get_batch(0).column(0)
        width = column.type.list_size
        return np.asarray(column.flatten().to_numpy(), np.float32).reshape(-1, width)

    def train_rows(self, values: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.float32], I64]:
        """The train rows of its entities end to end, and where each begins."""
        spans = zip(self.first_row.tolist(), self.val_row.tolist(), strict=True)
        parts = [values[first : first + trains] for first, trains in spans]
        return np.concatenate(parts), np.append(0, np.cumsum(self.val_row)).astype(np.int64)


def stored_settings(run: FinishedRun) -> Series:
    """The settings that the run was made with."""
    config = json.loads((run.root / "config.json").read_bytes())
    config.pop("recipe", None)
    return Series(**config)


def stored_shards(run: FinishedRun) -> list[StoredShard]:
    """The shards of the store in order. O(entities) of memory."""
    table = pq.read_table(run.root / ENTITIES, columns=["entity", "shard", "first_row", "rows", "val_row", "test_row"])
    found = []
    shards = table["shard"].combine_chunks().dictionary_encode()
    for place, path in enumerate(shards.dictionary.to_pylist()):
        own = table.filter(pa.compute.equal(shards.indices, place))
        first, rows, val, test = (
            own[name].to_numpy().astype(np.int64) for name in ("first_row", "rows", "val_row", "test_row")
        )
        found.append(StoredShard(str(path), own["entity"].to_pylist(), first, rows, val, test))
    return found


def stored_statics(run: FinishedRun, settings: Series) -> tuple[list[str], dict[str, F64]]:
    """The entities with static features and these, scaled or encoded: float64 [E] by their columns' names."""
    table = pq.read_table(run.root / STATICS)
    entities = table[settings.entity_column].to_pylist()
    return entities, {name: table[name].to_numpy().astype(np.float64) for name in table.column_names[1:]}


def each_train_part(
    run: FinishedRun, shards: list[StoredShard]
) -> Iterator[tuple[StoredShard, npt.NDArray[np.float32], I64]]:
    """Shard by shard, the scaled train rows and where each entity's begin."""
    for shard in shards:
        rows, offsets = shard.train_rows(shard.values(run))
        yield shard, rows, offsets
