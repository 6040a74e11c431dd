"""Draw rows at random: digest what they are drawn by, deal classes, and judge the shares."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.arrays import I64, U64
from headrace.errors import InputError, setting, setting_name
from headrace.formats.column_paths import with_paths
from headrace.formats.dates import Dates
from headrace.formats.shard import Chunk, Shard
from headrace.report.words import percentage, pluralise
from headrace.run.events import Note
from headrace.split.allocate import Allocation, EntitySet, Hashes, hash_null_entity
from headrace.split.content import Content
from headrace.split.drawing import Assigned
from headrace.split.earlier import UNKNOWN, EarlierRun, Groups
from headrace.split.features import Counts, Feature, Scans
from headrace.split.features.folds import StrataScanner, rows_of_entities
from headrace.split.random_split import RandomSplit
from headrace.split.rules import Output, SplitPlan
from headrace.split.scan import Scanner, read_entities
from headrace.split.settings import SplitSettings

_FEW_ROWS = 10


class DrawScanner(Scanner):
    """Digest the values that the rows of a shard are drawn by.

    compared: whether rows are also compared by them.
    """

    def __init__(self, content: Content, shard: Shard, compared: bool) -> None:
        self.content = content
        self.shard = shard
        self.compared = compared
        self.columns = content.columns(shard)
        self.digests: list[U64] = [np.empty(0, np.uint64)]

    def scan(self, chunk: Chunk, table: pa.Table, times: Dates) -> None:
        """Digest a chunk."""
        self.digests.append(self.content.digest_chunk(chunk, table, str(self.shard.path)))

    @property
    def draws(self) -> U64:
        """The digests of all rows."""
        return np.concatenate(self.digests)

    def row_values(self) -> dict[str, pa.Array]:
        """Return the digests, if rows are also compared by them."""
        if self.compared:
            return {"content": pa.array(self.draws)}
        return {}


class Drawn(Feature):
    """Rows or groups drawn into the splits; with folds, only what rows are drawn by."""

    @classmethod
    def is_part(cls, settings: SplitSettings) -> bool:
        """Return whether the split is a random one."""
        return isinstance(settings, RandomSplit)

    def __init__(self, output: Output, shards: Sequence[Shard]) -> None:
        super().__init__(output, shards)
        assert isinstance(self.settings, RandomSplit)
        self.random = self.settings
        self.content = content_drawn(output)
        self.compared = draws_compare(output)

    def scanner(self, shard: Shard) -> Scanner | None:
        """Digest rows, unless groups are drawn."""
        if self.content is None:
            return None
        return DrawScanner(self.content, shard, self.compared)

    def decide(self, plan: SplitPlan, scans: Scans) -> SplitPlan:
        """Draw all groups, if classes or units of them need to be known."""
        joins = self.random.duplicates == "group"
        if self.random.folds is not None:
            return plan
        known = scans.earlier is not None and scans.earlier.keeps_groups
        if self.random.stratify is None and not joins and not known:
            return plan
        run = scans.context.run
        rows = None
        if self.random.stratify is not None:
            entities, rows = rows_of_entities(run, scans.scanned)
        else:
            entities = self._entities(run, scans)
        if scans.earlier is not None:
            return replace(plan, placement=self._beside(scans.earlier.known, entities, rows))
        return replace(plan, placement=Assigned.of(self.random, entities, rows))

    def _beside(self, known: Groups, entities: Hashes, rows: I64 | None) -> Assigned:
        """Draw the groups that are new, and leave the known ones where they are."""
        new = known.code_of(entities) == UNKNOWN
        new_rows = None if rows is None else rows[new]
        drawn = Assigned.of(self.random, entities.take(new), new_rows)
        groups = Groups.joined([known, Groups(drawn.entities, drawn.code)])
        allocation = Allocation(groups.hashes, groups.code, len(groups.code))
        return Assigned(self.random, allocation, groups.code, None)

    def _entities(self, run: Path, scans: Scans) -> Hashes:
        entities = EntitySet()
        for number in scans.scanned:
            entities.add(read_entities(run, number)[0])
        if self.random.null_entity == "own" and any(scans.results("null_entity_before")):
            entities.add(hash_null_entity(self.random.seed))
        return entities.ordered()

    def metadata(self, plan: SplitPlan, scans: Scans, counts: Counts) -> dict[str, Any]:
        """Check the splits, and record what rows are drawn by."""
        columns = [] if self.content is None else list(self.content.schema.names)
        drawn = {"by": self.random.drawn_by, "columns": columns}
        if self.random.folds is not None:
            return {"drawn": drawn}
        rows = {split: counts.rows[split] for split in self.random.splits}
        total = sum(rows.values())
        if not rows["train"]:
            raise InputError(
                f"train has no rows of {total:,}",
                remedy=f"choose another {setting('seed')}, or draw by a column of smaller groups",
            )
        scans.context.warn(self._small_split_warnings(rows))
        shares = ", ".join(f"{split} {percentage(count, total)}" for split, count in rows.items())
        scans.context.on_event(Note("info", f"{pluralise(total, 'row')}: {shares}"))
        return {"drawn": drawn}

    def _small_split_warnings(self, rows: dict[str, int]) -> Iterator[str]:
        for split, count in rows.items():
            if count < _FEW_ROWS:
                yield (
                    f"{split} has {pluralise(count, 'row')} of {sum(rows.values()):,}; give a"
                    f" larger ratio, or {setting('stratify')}, which makes shares exact"
                )


class Strata(Feature):
    """Classes of which each split gets its share."""

    @classmethod
    def is_part(cls, settings: SplitSettings) -> bool:
        """Return whether there are classes, and no folds, which count them too."""
        return isinstance(settings, RandomSplit) and settings.stratify is not None

    def scanner(self, shard: Shard) -> Scanner | None:
        """Count rows by group and class."""
        return StrataScanner(self.settings, shard, self.settings.strata)


def content_drawn(output: Output) -> Content | None:
    """Return the columns that rows are drawn by; None if groups are drawn."""
    settings = output.settings
    if settings.drawn_by == "entity":
        return None
    names = output.drawn or settings.drawn_columns(output.source)
    return Content(
        schema=with_paths(output.source, names),
        types={name: type_ for name, type_ in output.types.items() if name in names},
        dialect=settings.dialect,
        by="values",
    )


def group_types(output: Output) -> dict[str, str]:
    """Return the types, by column, of the values that groups are known by.

    Whole numbers of any width, texts, and whole numbers as texts are alike: "text" where an entity
    is its text, else "integer". Values of other types have other hashes, so that a group of another
    type is another group.
    """
    entity = output.settings.entity_column
    names = [entity] if entity is not None else []
    if isinstance(output.settings, RandomSplit):
        content = content_drawn(output)
        names = names if content is None else content.schema.names
    integer = "text" if names == [entity] else "integer"
    words = {}
    for field in with_paths(output.source, names):
        words[field.name] = _word_of(output.types.get(field.name, field.type), integer)
    return words


def refuse_other_types(output: Output, earlier: EarlierRun) -> None:
    """Raise `InputError` if groups have hashes of other types than in the earlier run, which would
    find none of them again.
    """
    before = earlier.run.manifest.metadata.get("group_types", {})
    for name, type_ in group_types(output).items():
        if before.get(name) != type_:
            raise InputError(
                f"it is {type_}, and {before.get(name)} in the earlier run, so its values cannot be"
                " found again there, and rows in test could come to be in train",
                path=earlier.run.root,
                column=name,
                remedy=(
                    f"give the column the type that it had, with {setting('types')} or in the"
                    f" source, or leave {setting_name('assignment_from')} out"
                ),
            )


def _word_of(type_: pa.DataType, integer: str) -> str:
    if isinstance(type_, pa.DictionaryType):
        type_ = type_.value_type
    if pa.types.is_integer(type_):
        return integer
    if (
        pa.types.is_string(type_)
        or pa.types.is_large_string(type_)
        or pa.types.is_string_view(type_)
    ):
        return "text"
    return str(type_)


def draws_compare(output: Output) -> bool:
    """Return whether rows are compared by the very columns that they are drawn by."""
    settings = output.settings
    source = output.source
    if settings.drawn_by == "entity" or settings.duplicates == "allow":
        return False
    return (output.drawn or settings.drawn_columns(source)) == output.compared()
