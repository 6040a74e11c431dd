"""Find entities that hold the same measurements under two names, and decide what happens to them.

The content of an entity is all its measurements, in any order. Of each measurement the compared columns count, with the
time in whole seconds and the latency as its stored code. Hashes of the measurements are summed, so nothing is sorted or
held, and parts and slabs may come in any order. The contents of all entities are compared in memory, at 8 bytes per
entity, or 32 if duplicates are grouped or dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from headrace.arrays import I64, U16, U64, Bools
from headrace.dataset.contents import names_told, repeats_told
from headrace.draws import GAMMA, mix
from headrace.formats.content import NOTHING, Repeated, tagged
from headrace.histories.codec.rows import Measurements
from headrace.histories.codec.values import mixed_values
from headrace.histories.config import Histories
from headrace.run.context import STAGE_DIRECTORY, TaskFiles, read_arrow
from headrace.run.repeats import keep_words

REASON = "duplicate"
_AT_ONCE = 1 << 15  # measurements hashed at a time, so that they stay in the processor's cache


def content_sums(
    settings: Histories, seconds: I64, peer: U64 | None, codes: U16, starts: I64, values: U64 | None = None
) -> U64:
    """Sum a hash of the compared columns of each measurement, row by row: uint64 [R].

    seconds, peer, codes: [N], of the measurements, peer from `mixed_peers`.
    starts: [R], where the rows begin.
    values: [N, K], words of the value columns.
    """
    names = settings.compared()
    held = [] if values is None else [number for number, name in enumerate(settings.values) if name in names]
    hashes = np.empty(len(codes), np.uint64)
    for first in range(0, len(codes), _AT_ONCE):
        part = slice(first, first + _AT_ONCE)
        words = seconds[part].astype(np.uint64) if settings.time in names else np.zeros(len(codes[part]), np.uint64)
        words <<= np.uint64(16)
        if settings.value in names:
            words |= codes[part]
        if peer is not None and settings.peer in names:
            words += peer[part]
        if values is not None and held:
            words += mixed_values(values[part][:, held])
        words += np.uint64(GAMMA)  # a measurement of zeros must change the sum too
        hashes[part] = mix(words)
    return np.add.reduceat(hashes, starts) if len(starts) else np.zeros(0, np.uint64)


def digests(sums: U64, counts: I64) -> U64:
    """Digest the content of entities.

    sums, counts: [E], the sum of the hashes of their measurements, and how many measurements they have. An entity whose
    rows were all dropped has the digest `NOTHING`.
    """
    found = mix(sums + counts.astype(np.uint64) * np.uint64(GAMMA))
    found[found == NOTHING] = 1
    found[counts == 0] = NOTHING
    return found


class Contents:
    """Running content sums of a partition's entities, [E].

    counts: measurements of each.
    first: time of the first measurement of each, in seconds.
    """

    def __init__(self, settings: Histories, entities: int) -> None:
        self._settings = settings
        self._sums, self.counts = np.zeros(entities, np.uint64), np.zeros(entities, np.int64)
        self.first = np.full(entities, np.iinfo(np.int64).max)

    def add(self, rows: Measurements, entity: I64, peer: U64 | None, values: U64 | None = None) -> None:
        """Add rows.

        entity: [R], the entity of each row.
        peer: [N], of each measurement, from `mixed_peers`.
        values: [N, K], words of the value columns.
        """
        sums = content_sums(self._settings, rows.times, peer, rows.codes, rows.starts, values)
        np.add.at(self._sums, entity, sums)
        np.add.at(self.counts, entity, np.diff(rows.starts, append=len(rows.times)))
        np.minimum.at(self.first, entity, rows.times[rows.starts])

    def digests(self) -> U64:
        """Return the digest of each entity's content."""
        return digests(self._sums, self.counts)


@dataclass(frozen=True)
class Decision:
    """Record what happens to the entities of a partition, bool [E] in hash order.

    trains: in train, else in test.
    goes: dropped, as a copy.
    """

    trains: Bools
    goes: Bools


def compared_file(number: int) -> str:
    """Return the path of the compared contents of a partition's entities, relative to the run."""
    return f"{STAGE_DIRECTORY}/compare-{number:05d}.arrow"


def keep_compared(files: TaskFiles, number: int, contents: Contents, trains: Bools) -> None:
    """Write the content digests of a partition's entities, their first times, and whether they would train."""
    columns = {"content": contents.digests(), "first": contents.first, "trains": pa.array(trains)}
    files.write_arrow(compared_file(number), pa.table(columns))


def decide(run: Path, partitions: int, asked: Literal["group", "drop"]) -> list[Decision]:
    """Decide what happens to the entities of each partition, from the files of `keep_compared`.

    Entities are in the order of their keyed hash. With "group", entities with the same content go to the split of the
    first of them. With "drop", the one that begins first stays; ties go to the first in order.
    """
    tables = [read_arrow(run / compared_file(number)) for number in range(partitions)]
    names = ("content", "first", "trains")
    content, first, trains = (np.concatenate([each[name].to_numpy() for each in tables]) for name in names)
    goes = np.zeros(len(content), np.bool_)
    if asked == "group":
        _, original, unit = np.unique(content, return_index=True, return_inverse=True)
        trains = trains[original][unit]
    else:
        order = np.lexsort((first, content))
        goes[order[1:]] = content[order[1:]] == content[order[:-1]]
    ends = np.cumsum([len(each) for each in tables])[:-1]
    return [Decision(*each) for each in zip(np.split(trains, ends), np.split(goes, ends), strict=True)]


def counted_file(number: int) -> str:
    """Return the path of the contents of a partition's written entities, each with its split."""
    return f"{STAGE_DIRECTORY}/content-{number:05d}.arrow"


def keep_counted(files: TaskFiles, number: int, contents: Contents, decision: Decision) -> None:
    """Write the contents of the entities that were written, with the number of their split."""
    stays = ~decision.goes
    words = tagged(contents.digests()[stays], (~decision.trains[stays]).astype(np.uint8))
    keep_words(files, counted_file(number), words)


def facts(settings: Histories, found: Repeated) -> dict[str, Any]:
    """Return the manifest facts on entities with the same content; none if they are only counted and there are none."""
    if settings.duplicates == "count" and not sum(found.own.values()) + sum(found.earlier.values()):
        return {}
    said = {"in_earlier_split": dict(found.earlier), "repeated": dict(found.own)}
    return {"duplicates": {"are": settings.duplicates, "content": list(settings.compared()), **said}}


def told(settings: Histories, found: Repeated, entities: dict[str, int]) -> list[str]:
    """Return a warning if the test split repeats content of the train split; else an empty list."""
    sentence = repeats_told(found.earlier, entities, unit="entities")
    if sentence is None:
        return []
    return [f'{sentence}, compared by {names_told(settings.compared())}; choose duplicates="group" or "drop"']
