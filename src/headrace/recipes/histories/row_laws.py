"""What one row must be, checked for itself: the words of every problem. Slow; rows that are right need `piece_laws`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.arrays import U64, Bools
from headrace.histories.addresses import Addresses, texts
from headrace.histories.latency import is_canonical
from headrace.histories.rows import RowColumns
from headrace.recipes.histories.config import Histories
from headrace.recipes.histories.keyed import hash_entities
from headrace.recipes.histories.piece import partition_of
from headrace.recipes.histories.rows_file import ROWS

FACTS = ("src_id", "part", "n_measurements", "first_time", "last_time", "split")


@dataclass(frozen=True)
class Entities:
    """Of the entities of rows [R]: their texts, the hash they are sorted by, and where the settings put them."""

    names: pa.StringArray
    order: U64
    trains: Bools
    inside: Bools


@dataclass(frozen=True)
class Partition:
    """Where rows of a shard come from: the settings of the run, and the number of its partition among all.

    compiled: hashes and texts by numba.
    """

    settings: Histories
    number: int
    partitions: int
    compiled: bool = False

    def entities(self, addresses: Addresses) -> Entities:
        """What rows of these entities must agree with."""
        kind = self.settings.entity_kind
        hashes = hash_entities(addresses, kind, self.settings.seed, compiled=self.compiled)
        names = texts(addresses, kind, compiled=self.compiled)
        inside = partition_of(hashes.order, self.partitions) == self.number
        return Entities(names, hashes.order, hashes.train(self.settings.train_ratio), inside)


@dataclass(frozen=True)
class RowBefore:
    """What the next row is compared with."""

    name: str
    order: int
    part: int
    last_time: int


def row_problem(
    row: RowColumns, partition: Partition, facts: dict[str, object], before: RowBefore | None
) -> str | RowBefore:
    """What is wrong with a row, or what the one behind it is compared with. facts: what `rows.parquet` says of it."""
    address = Addresses(np.array([row.entity_family], np.uint8), row.entity_bytes.reshape(1, 16))
    entity = partition.entities(address)
    name, order = entity.names[0].as_py(), int(entity.order[0])
    told = tuple(facts[each] for each in FACTS)
    holds = (name, row.part, row.n, row.first_time, row.last_time, "train" if entity.trains[0] else "test")
    if told != holds:
        return f"holds {holds}, {ROWS} says {told}"
    if before is None or before.name != name:
        if before is not None and order < before.order:  # an entity that comes again would be out of place
            return f"its entity {name} is out of order, so it may come twice"
        if row.part != 0:
            return f"is part {row.part} of {name}, and the parts before are missing"
    elif row.part != before.part + 1:
        return f"is part {row.part} of {name} behind part {before.part}"
    elif row.first_time < before.last_time:
        return f"begins at {row.first_time}, the part before ends at {before.last_time}"
    wrong = np.flatnonzero(~is_canonical(row.codes))
    if len(wrong):
        return f"measurement {int(wrong[0]) + 1} has code {int(row.codes[wrong[0]])}, which no latency is encoded as"
    if not entity.inside[0]:
        return f"its entity {name} belongs to another partition"
    return RowBefore(name, order, row.part, row.last_time)
