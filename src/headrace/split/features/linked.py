"""Join entities that share a value, such as an e-mail address, into one before anything is drawn.

Pass 1 notes which entity has which values of the columns of `linked_by`. A value that 2 to `HUB`
entities have joins them; one that more have is a placeholder or a hub, joins none, and is named. A
stage of its own then writes the entities of each shard again with the hash of their unit, the
least of its members. All that follows reads these, so that a unit is drawn, dropped and tested as
one entity. Memory: 24 bytes for each pair of an entity and a value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headrace.arrays import I64, U64, components
from headrace.digest import derive_key
from headrace.draws import mix
from headrace.errors import InputError, setting, setting_name
from headrace.formats.dates import Dates
from headrace.formats.shard import Chunk, Shard
from headrace.formats.text_columns import as_text
from headrace.keyed_hash import hash_texts
from headrace.run.context import Task, TaskFiles, read_arrow
from headrace.split.allocate import EntitySet
from headrace.split.features import Counts, Feature, Scans
from headrace.split.rules import Output, SplitPlan
from headrace.split.scan import (
    Scanner,
    column_of,
    linked_file,
    links_file,
    read_entities,
)
from headrace.split.settings import SplitSettings

if TYPE_CHECKING:
    import polars as pl

HUB = 10  # entities; a value of more joins none
_MOST_OF_ALL = 0.1  # share of the entities that one unit may have
_MOST = 100  # and that it may always have
_KEY = derive_key(0, "linked entities")
_NAMED = 20  # hubs
_FREQUENT = 32  # values of a chunk whose texts are kept, to name hubs


def link_values(table: pa.Table, name: str, null_values: Sequence[str], column: int) -> U64:
    """Hash the values of a column, in plain spelling; 0 for a missing one.

    column: its number in `linked_by`, so that an address never equals a number of a telephone.
    """
    texts = _plain_texts(table, name, null_values)
    filled = (texts != "").fill_null(value=False).to_numpy()
    hashes = np.zeros(len(texts), np.uint64)
    hashes[filled] = hash_texts(_KEY, texts.filter(filled).to_arrow())[0]
    return np.where(filled, mix(hashes + np.uint64(column)) | np.uint64(1), np.uint64(0))


def _plain_texts(table: pa.Table, name: str, null_values: Sequence[str]) -> pl.Series:
    import polars as pl  # a split without links does not load it

    from headrace.near.words import plain_names

    return plain_names(pl.Series(pl.from_arrow(as_text(column_of(table, name), null_values, name))))


class LinkScanner(Scanner):
    """Note the values that each entity of a shard has."""

    def __init__(self, settings: SplitSettings) -> None:
        self.settings = settings
        self.columns = settings.linked_by
        self.values: list[list[U64]] = [[np.empty(0, np.uint64)] for _ in self.columns]
        self.frequent: Counter[tuple[str, str]] = Counter()

    def scan(self, chunk: Chunk, table: pa.Table, times: Dates) -> None:
        """Hash the values of a chunk."""
        nulls = self.settings.dialect.null_values
        for number, name in enumerate(self.columns):
            self.values[number].append(link_values(table, name, nulls, number))
            texts = _plain_texts(table, name, nulls).drop_nulls()
            counts = texts.value_counts(sort=True).head(_FREQUENT)
            for text, count in counts.iter_rows():
                self.frequent[name, text] += count

    def finish(self, files: TaskFiles, number: int, rows: pa.Table) -> None:
        """Write the distinct pairs of an entity and a value."""
        entity = rows["entity"].to_numpy().astype(np.int64)
        pairs = [np.empty((0, 2), np.int64)]
        for parts in self.values:
            values = np.concatenate(parts)
            has_both = (values != 0) & (entity >= 0)
            pair = np.column_stack([entity[has_both], values[has_both].view(np.int64)])
            pairs.append(np.unique(pair, axis=0))
        columns = np.concatenate(pairs)
        files.write_arrow(
            links_file(number), pa.table({"entity": columns[:, 0], "value": columns[:, 1]})
        )

    def result(self) -> dict[str, Any]:
        """Return the most frequent values, by column and text."""
        frequent = self.frequent.most_common(_FREQUENT * len(self.columns))
        return {"frequent": [[name, text, count] for (name, text), count in frequent]}


class LinkedEntities(Feature):
    """Entities that share values, as one."""

    @classmethod
    def is_part(cls, settings: SplitSettings) -> bool:
        """Return whether columns link entities."""
        return bool(settings.linked_by)

    def __init__(self, output: Output, shards: Sequence[Shard]) -> None:
        super().__init__(output, shards)
        self.counts: dict[str, Any] = {}

    def scanner(self, shard: Shard) -> Scanner | None:
        """Note the values of a shard."""
        return LinkScanner(self.settings)

    def join(self, scans: Scans) -> None:
        """Write the entities of each shard again, each with the hash of its unit.

        Raises `InputError` for a unit of too many entities.
        """
        run = scans.context.run
        known = EntitySet()
        for number in scans.scanned:
            known.add(read_entities(run, number, linked=False)[0])
        entities = known.ordered()
        index = [
            entities.index_of(read_entities(run, number, linked=False)[0])
            for number in scans.scanned
        ]
        pairs = []
        for number, indices in zip(scans.scanned, index, strict=True):
            links = read_arrow(run / links_file(number))
            entity = indices[links["entity"].to_numpy()]
            pairs.append(np.column_stack([entity, links["value"].to_numpy()]))
        unit, hubs = units_of(len(entities), np.concatenate(pairs))
        largest = self._refuse_giant(unit)
        joined = len(unit) - len(np.unique(unit))
        self.counts = {
            "columns": list(self.settings.linked_by),
            "joined": joined,
            "largest_unit": largest,
            "hub_above": HUB,
            "hubs": hubs.tolist(),
            "named_hubs": self._named(scans, hubs),
        }
        scans.context.inform(self._sentences(len(entities)))

        def write(position: int, files: TaskFiles) -> dict[str, Any]:
            number = scans.scanned[position]
            _, first_cut = read_entities(run, number, linked=False)
            of_unit = entities.take(unit[index[position]])
            table = pa.table({"high": of_unit.high, "low": of_unit.low, "first_cut": first_cut})
            files.write_arrow(linked_file(number), table)
            return {}

        tasks = [
            Task(scans.shards[number].name, 0, partial(write, position))
            for position, number in enumerate(scans.scanned)
        ]
        scans.context.stage("link", tasks, durable=False)

    def _refuse_giant(self, unit: I64) -> int:
        sizes = np.bincount(unit, minlength=1)
        largest = int(sizes.max())
        if largest > max(_MOST, _MOST_OF_ALL * len(unit)):
            raise InputError(
                f"its values join {largest:,} of {len(unit):,} entities into one, which no split"
                " could divide",
                column=", ".join(self.settings.linked_by),
                remedy=(
                    f"leave a column out of {setting_name('linked_by')}, or declare its"
                    f" placeholders with {setting('dialect')}"
                ),
            )
        return largest

    def _named(self, scans: Scans, hubs: U64) -> list[str]:
        known = set(hubs.tolist())
        columns = list(self.settings.linked_by)
        counts: Counter[tuple[str, str]] = Counter()
        for frequent in scans.known("frequent"):
            for name, text, count in frequent:
                counts[name, text] += count
        named = []
        for (name, text), _ in counts.most_common():
            [value] = link_values(pa.table({name: [text]}), name, (), columns.index(name))
            if int(value) in known:
                named.append(f"{name} {text!r}")
        return named[:_NAMED]

    def _sentences(self, entities: int) -> list[str]:
        columns = " or ".join(self.settings.linked_by)
        messages = [
            f"{self.counts['joined']:,} of {entities:,} entities share {columns} with another and"
            f" count as one with it; the largest such unit has {self.counts['largest_unit']:,}"
        ]
        if self.counts["hubs"]:
            named = ", ".join(self.counts["named_hubs"]) or "none of them frequent"
            messages.append(
                f"{len(self.counts['hubs']):,} values of more than {HUB} entities join none:"
                f" {named}"
            )
        return messages

    def metadata(self, plan: SplitPlan, scans: Scans, counts: Counts) -> dict[str, Any]:
        """Record what was joined, and the hubs."""
        return {"linked": self.counts}


def units_of(entities: int, pairs: I64) -> tuple[I64, U64]:
    """Return the least entity of each entity's unit, int64 [entities], and the hubs, ascending.

    pairs: an entity and a value, int64 [pairs, 2]; each once or more.
    """
    pairs = np.unique(pairs, axis=0)
    values, number, holders = np.unique(pairs[:, 1], return_inverse=True, return_counts=True)
    joins = (holders >= 2) & (holders <= HUB)
    chosen = joins[number]
    order = np.argsort(number[chosen], kind="stable")
    entity = pairs[chosen, 0][order]
    same = np.flatnonzero(np.diff(number[chosen][order]) == 0)
    hubs = np.sort(values[holders > HUB].view(np.uint64))
    return components(entities, entity[same], entity[same + 1]), hubs
