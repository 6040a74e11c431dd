"""What rows that were read together must be, checked for all of them at once: a few vector operations for each law.

It says that all is right, or nothing: `row_laws` finds the row that is wrong, and the words for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import I64, U64
from headrace.histories.codec.addresses import Addresses
from headrace.histories.codec.latency import is_canonical
from headrace.histories.codec.many import Columns, Joined, columns_of, joined_at, peers_of
from headrace.histories.keyed import mixed_peers, multiset_sum
from headrace.histories.row_laws import Entities, Partition, RowBefore
from headrace.histories.shard_file import Blobs

Number = TypeVar("Number", np.int64, np.uint64)


@dataclass(frozen=True)
class Right:
    """Rows that are as they must be: their measurements, the `multiset_sum` of these, and the last row."""

    measurements: int
    sum: int
    last: RowBefore


def check_piece(piece: Blobs, partition: Partition, facts: pa.RecordBatch, before: RowBefore | None) -> Right | None:
    """All rows of a piece; None if one of them is wrong. Some 50 bytes of memory a measurement.

    facts: what `rows.parquet` says of each; before: the row before the first.
    """
    if len(piece.sizes) != facts.num_rows:
        return None
    found = joined_at(piece.data, piece.sizes)
    columns = None if found is None else columns_of(found)
    if found is None or columns is None or not is_canonical(columns.codes).all():
        return None
    head = found.head
    entities = partition.entities(Addresses(head["entity_family"].copy(), np.ascontiguousarray(head["entity"])))
    first_time = head["first_time"].astype(np.int64)
    rows = _Rows(entities, head["part"].astype(np.int64), first_time, first_time + head["time_span"])
    if not (entities.inside.all() and _is_as_told(rows, found.n, facts) and _is_in_order(rows, before)):
        return None
    last = RowBefore(entities.names[-1].as_py(), int(entities.order[-1]), int(rows.part[-1]), int(rows.last_time[-1]))
    return Right(int(found.n.sum()), _sum_of(found, columns, entities.order, first_time), last)


@dataclass(frozen=True)
class _Rows:
    """Of rows [R]."""

    entities: Entities
    part: I64
    first_time: I64
    last_time: I64


def _is_as_told(rows: _Rows, n: I64, facts: pa.RecordBatch) -> bool:
    trains, split = rows.entities.trains, facts["split"]
    for word, held in (("train", trains), ("test", ~trains)):
        if not np.array_equal(pc.equal(split, word).to_numpy(zero_copy_only=False), held):
            return False
    if pc.equal(facts["src_id"], rows.entities.names).false_count:
        return False
    numbers = {"part": rows.part, "n_measurements": n, "first_time": rows.first_time, "last_time": rows.last_time}
    return all(np.array_equal(facts[name].to_numpy(), held) for name, held in numbers.items())


def _is_in_order(rows: _Rows, before: RowBefore | None) -> bool:
    """Entities by their hash, parts from 0 on, and times across parts; the first row against the one before."""
    names, order, part = rows.entities.names, rows.entities.order, rows.part
    goes_on = np.zeros(len(part), np.bool_)
    goes_on[1:] = pc.equal(names.slice(1), names.slice(0, len(part) - 1)).to_numpy(zero_copy_only=False)
    if before is not None:
        goes_on[0] = before.name == names[0].as_py()
    last = before or RowBefore("", 0, 0, 0)
    previous_order = np.concatenate([np.array([last.order], np.uint64), order[:-1]])
    previous_part = np.concatenate([np.array([last.part]), part[:-1]])
    previous_time = np.concatenate([np.array([last.last_time]), rows.last_time[:-1]])
    wrong = ~goes_on & ((order < previous_order) | (part != 0))
    wrong |= goes_on & ((part != previous_part + 1) | (rows.first_time < previous_time))
    return not wrong.any()


def _sum_of(found: Joined, columns: Columns, order: U64, first_time: I64) -> int:
    n = found.n
    peer = None
    if columns.index is not None:
        peers = found.peers4 + found.peers6
        mixed = np.append(mixed_peers(peers_of(found)), np.uint64(0))
        begin = np.where(peers > 0, np.cumsum(peers) - peers, len(mixed) - 1)
        peer = mixed[_spread(begin, n) + columns.index]
    return multiset_sum(_spread(order, n), _spread(first_time, n) + columns.seconds, peer, columns.codes)


def _spread(values: npt.NDArray[Number], n: I64) -> npt.NDArray[Number]:
    """What each of n measurements has of its row."""
    return np.repeat(values, n) if len(n) > 1 else np.broadcast_to(values, int(n[0]))
