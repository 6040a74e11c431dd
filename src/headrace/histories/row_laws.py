"""What rows must be, compared one by one: finds the first that is wrong, and the words for it.

Some 30 µs a row, so it is asked only where `piece_laws` says that something is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.arrays import U64, Bools
from headrace.histories.codec.addresses import Addresses, texts
from headrace.histories.codec.latency import is_canonical
from headrace.histories.codec.rows import RowColumns
from headrace.histories.config import Histories
from headrace.histories.keyed import hash_entities
from headrace.histories.piece import partition_of
from headrace.histories.rows_file import ROWS

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


def first_problem(
    rows: Sequence[RowColumns], partition: Partition, facts: Sequence[dict[str, object]], before: RowBefore | None
) -> tuple[int, str] | None:
    """The first of some rows behind each other that is wrong: its place among them, and what is wrong with it.

    facts: what `rows.parquet` says of each, fewer where it has fewer rows. before: the row before the first.
    """
    if not rows:
        return None
    addresses = Addresses(
        np.array([row.entity_family for row in rows], np.uint8), np.stack([row.entity_bytes for row in rows])
    )
    entities = partition.entities(addresses)
    names, trains, inside = entities.names.to_pylist(), entities.trains.tolist(), entities.inside.tolist()
    for place, (row, order) in enumerate(zip(rows, entities.order.tolist(), strict=True)):
        if place == len(facts):
            return place, f"is not in {ROWS}"
        name, last_time = names[place], row.last_time
        told = tuple(facts[place][each] for each in FACTS)
        holds = (name, row.part, row.n, row.first_time, last_time, "train" if trains[place] else "test")
        if told != holds:
            return place, f"holds {holds}, {ROWS} says {told}"
        this = RowBefore(name, order, row.part, last_time)
        problem = _out_of_order(this, row.first_time, before) or _strange_code(row)
        if problem is None and not inside[place]:
            problem = f"its entity {name} belongs to another partition"
        if problem is not None:
            return place, problem
        before = this
    return None


def _out_of_order(row: RowBefore, first_time: int, before: RowBefore | None) -> str | None:
    if before is None or before.name != row.name:
        if before is not None and row.order < before.order:  # an entity that comes again would be out of place
            return f"its entity {row.name} is out of order, so it may come twice"
        return None if row.part == 0 else f"is part {row.part} of {row.name}, and the parts before are missing"
    if row.part != before.part + 1:
        return f"is part {row.part} of {row.name} behind part {before.part}"
    if first_time < before.last_time:
        return f"begins at {first_time}, the part before ends at {before.last_time}"
    return None


def _strange_code(row: RowColumns) -> str | None:
    wrong = np.flatnonzero(~is_canonical(row.codes))
    if not len(wrong):
        return None
    return f"measurement {int(wrong[0]) + 1} has code {int(row.codes[wrong[0]])}, which no latency is encoded as"
