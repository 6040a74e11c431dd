"""Find entities that hold the same measurements under two names, and decide what happens to them.

The content of an entity is all its measurements, in any order. Of each measurement the compared
columns count, with the time and the latency as they are stored. Hashes of the
measurements are summed, so nothing is sorted or kept, and parts and slices may come in any order.
The contents of all entities are compared in memory, at 8 bytes per entity, or 32 if duplicates are
grouped or dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from headrace.arrays import I64, U16, U64, Bools
from headrace.dataset.contents import columns_in_words, repeats_warning
from headrace.draws import GAMMA, mix
from headrace.errors import setting
from headrace.formats.content import NOTHING, Repeated, tagged
from headrace.histories.codec.rows import Measurements
from headrace.histories.codec.values import mix_values
from headrace.histories.config import Histories
from headrace.near.repeats import keep_words
from headrace.run.context import STAGE_DIRECTORY, TaskFiles, read_arrow

# reasons why measurements are dropped that are known once histories are complete
DUPLICATE = "duplicate"
OUTSIDE = "other_period"
_AT_ONCE = 1 << 15  # measurements hashed at a time, so that they stay in the processor's cache


def content_sums(
    settings: Histories,
    times: I64,
    peer: U64 | None,
    codes: U16,
    starts: I64,
    values: U64 | None = None,
) -> U64:
    """Sum a hash of the compared columns of each measurement, row by row: uint64 [R].

    times, peer, codes: [N], of the measurements, peer from `mix_peers`.
    starts: [R], where the rows start.
    values: [N, K], words of the value columns.
    """
    names = settings.compared()
    compared = [number for number, name in enumerate(settings.values) if name in names]
    hashes = np.empty(len(codes), np.uint64)
    for first in range(0, len(codes), _AT_ONCE):
        part = slice(first, first + _AT_ONCE)
        words = np.zeros(len(codes[part]), np.uint64)
        if settings.time_column in names:
            words = times[part].astype(np.uint64) << np.uint64(16)
        if settings.value in names:
            words |= codes[part]
        if peer is not None and settings.peer in names:
            words += peer[part]
        if values is not None and compared:
            words += mix_values(values[part][:, compared])
        words += np.uint64(GAMMA)  # a measurement of zeros must change the sum too
        hashes[part] = mix(words)
    if not len(starts):
        return np.zeros(0, np.uint64)
    return np.add.reduceat(hashes, starts)


def digests(sums: U64, counts: I64) -> U64:
    """Digest the content of entities.

    sums, counts: [E], the sum of the hashes of their measurements, and how many measurements they
    have. An entity whose rows were all dropped has the digest `NOTHING`.
    """
    digest = mix(sums + counts.astype(np.uint64) * np.uint64(GAMMA))
    digest[digest == NOTHING] = 1
    digest[counts == 0] = NOTHING
    return digest


class Contents:
    """Running content sums of a partition's histories, [H].

    counts: measurements of each.
    first: stored time of the first measurement of each.
    """

    def __init__(self, settings: Histories, histories: int) -> None:
        self._settings = settings
        self._sums = np.zeros(histories, np.uint64)
        self.counts = np.zeros(histories, np.int64)
        self.first = np.full(histories, np.iinfo(np.int64).max)

    def add(
        self, rows: Measurements, history: I64, peer: U64 | None, values: U64 | None = None
    ) -> None:
        """Add rows.

        history: [R], the history of each row.
        peer: [N], of each measurement, from `mix_peers`.
        values: [N, K], words of the value columns.
        """
        sums = content_sums(self._settings, rows.times, peer, rows.codes, rows.starts, values)
        np.add.at(self._sums, history, sums)
        np.add.at(self.counts, history, np.diff(rows.starts, append=len(rows.times)))
        np.minimum.at(self.first, history, rows.times[rows.starts])

    def digests(self) -> U64:
        """Return the digest of each history's content."""
        return digests(self._sums, self.counts)


@dataclass(frozen=True)
class Decision:
    """What happens to the histories of a partition, bool [H], entities in hash order.

    A history is an entity; with `train_end` it is 2 × entity, the measurements before that time, or
    the next number, those from it on.

    in_train: in train, else in test.
    dropped: as a copy.
    outside: in no split, because of an entity that is held out, or one that is not.
    """

    in_train: Bools
    dropped: Bools
    outside: Bools

    @classmethod
    def of(cls, settings: Histories, entity_in_train: Bools) -> Decision:
        """Decide by the hash of each entity, and by time; drop no copies."""
        if settings.cut is None:
            nothing = np.zeros(len(entity_in_train), np.bool_)
            return cls(entity_in_train, nothing, nothing)
        late = np.tile([False, True], len(entity_in_train))
        nothing = np.zeros(len(late), np.bool_)
        outside = nothing
        if settings.train_ratio < 1:
            outside = np.repeat(entity_in_train, 2) == late
        return cls(~late, nothing, outside)

    @property
    def written(self) -> Bools:
        """Which histories are in a split."""
        return ~(self.dropped | self.outside)

    def in_split(self, split: str) -> Bools:
        """Return which histories are written to a split."""
        chosen: Bools = self.written & (self.in_train == (split == "train"))
        return chosen


def _compared_file(partition: int) -> str:
    """Return the path of the compared contents of a partition's entities, relative to the run."""
    return f"{STAGE_DIRECTORY}/compare-{partition:05d}.arrow"


def keep_compared(files: TaskFiles, partition: int, contents: Contents, decision: Decision) -> None:
    """Write the content digests of a partition's histories, their first times, and what becomes of
    them if they are no copies.
    """
    columns = {
        "content": contents.digests(),
        "first": contents.first,
        "in_train": pa.array(decision.in_train),
        "outside": pa.array(decision.outside),
    }
    files.write_arrow(_compared_file(partition), pa.table(columns))


def decide(run: Path, partitions: int, duplicates: Literal["group", "drop"]) -> list[Decision]:
    """Decide what happens to the histories of each partition, from the files of `keep_compared`.

    Entities are in the order of their keyed hash. With "group", entities with the same content go
    to the split of the first of them. With "drop", the history in a split that begins first stays;
    ties go to the first in order.
    """
    tables = [read_arrow(run / _compared_file(partition)) for partition in range(partitions)]
    everything = pa.concat_tables(tables)
    content = everything["content"].to_numpy()
    in_train = everything["in_train"].to_numpy()
    outside = everything["outside"].to_numpy()
    dropped = np.zeros(len(content), np.bool_)
    if duplicates == "group":
        _, original, group = np.unique(content, return_index=True, return_inverse=True)
        in_train = in_train[original][group]
    else:
        order = np.lexsort((everything["first"].to_numpy(), content, outside))
        dropped[order[1:]] = content[order[1:]] == content[order[:-1]]
        dropped &= ~outside
    ends = np.cumsum([len(table) for table in tables])[:-1]
    columns = (np.split(column, ends) for column in (in_train, dropped, outside))
    parts = zip(*columns, strict=True)
    return [Decision(*part) for part in parts]


def counted_file(partition: int) -> str:
    """Return the path of the contents of a partition's written entities, each with its split."""
    return f"{STAGE_DIRECTORY}/content-{partition:05d}.arrow"


def keep_counted(files: TaskFiles, partition: int, contents: Contents, decision: Decision) -> None:
    """Write the contents of the histories that were written, with the number of their split."""
    stays = decision.written & (contents.counts > 0)
    words = tagged(contents.digests()[stays], (~decision.in_train[stays]).astype(np.uint8))
    keep_words(files, counted_file(partition), words)


def duplicate_metadata(settings: Histories, repeats: Repeated) -> dict[str, Any]:
    """Return the manifest facts on entities with the same content; none if they are only counted
    and there are none.
    """
    counts = [*repeats.same_split.values(), *repeats.earlier.values()]
    if settings.duplicates == "count" and not sum(counts):
        return {}
    return {
        "duplicates": {
            "are": settings.duplicates,
            "content": list(settings.compared()),
            "in_earlier_split": dict(repeats.earlier),
            "repeated": dict(repeats.same_split),
        }
    }


def duplicate_warnings(
    settings: Histories, repeats: Repeated, entities: dict[str, int]
) -> list[str]:
    """Return a warning if the test split repeats content of the train split; else an empty list."""
    sentence = repeats_warning(repeats.earlier, entities, unit="entities")
    if sentence is None:
        return []
    columns = columns_in_words(settings.compared())
    choice = setting("duplicates", "group", "drop")
    return [f"{sentence}, compared by {columns}; choose {choice}"]
