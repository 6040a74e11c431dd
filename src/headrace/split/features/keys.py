"""Drop the rows without a time or an entity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.arrays import Bools
from headrace.errors import InputError, setting
from headrace.formats.dates import MISSING
from headrace.formats.evidence import spelled_type
from headrace.formats.shard import Shard
from headrace.formats.types import type_word
from headrace.split.allocate import EntitySet
from headrace.split.earlier import EarlierRun
from headrace.split.features import Counts, Feature, Scans
from headrace.split.features.drawn import group_types, refuse_other_types
from headrace.split.reasons import Reason
from headrace.split.rules import DropRule, Output, ScannedRows, SplitPlan
from headrace.split.scan import NULL_ENTITY, read_spellings


def _lacks_entity(rows: ScannedRows) -> Bools | None:
    """Mask the rows without an entity, unless they form one or time alone decides."""
    settings = rows.plan.settings
    if settings.entity_column is None or settings.null_entity == "own":
        return None
    lacks: Bools = rows.scanned.entity == NULL_ENTITY
    return lacks


class Keys(Feature):
    """The time and the entity, which place a row. Every scan reads both."""

    def __init__(self, output: Output, shards: Sequence[Shard]) -> None:
        super().__init__(output, shards)
        self.output = output
        rules = []
        self.filled = []
        if self.settings.time_columns:
            rules.append(DropRule.of_scan(Reason.UNREADABLE_TIME))
            rules.append(DropRule(Reason.NULL_TIME, lambda rows: rows.time_us == MISSING))
            self.filled += self.settings.time_columns
        rules.append(DropRule(Reason.NULL_ENTITY, _lacks_entity))
        self.rules = rules
        if self.settings.entity_column is not None and self.settings.null_entity != "own":
            self.filled.append(self.settings.entity_column)

    def check_earlier(self, earlier: EarlierRun) -> None:
        """Refuse groups whose values have other hashes than in the earlier run."""
        refuse_other_types(self.output, earlier)

    def metadata(self, plan: SplitPlan, scans: Scans, counts: Counts) -> dict[str, Any]:
        """Record the types of the values that groups are known by."""
        return {"group_types": group_types(self.output)}

    def decide(self, plan: SplitPlan, scans: Scans) -> SplitPlan:
        """Refuse entities that are one value in two spellings."""
        name = self.settings.entity_column
        if name is not None and spelled_type(scans.evidence.words.get(name, ())) is not None:
            _refuse_spellings(name, scans)
        return plan


def _refuse_spellings(column: str, scans: Scans) -> None:
    """Raise `InputError` for an entity whose value has another spelling somewhere in the source or
    in the earlier run: 12 in train and 12.0 in test would be one.
    """
    run = scans.context.run
    texts = EntitySet()
    values = EntitySet()
    if scans.earlier is not None:
        texts.add(scans.earlier.known.hashes)
        values.add(scans.earlier.known.hashes)
    for number in scans.scanned:
        spellings = read_spellings(run, number)
        texts.add(spellings.hashes)
        values.add(spellings.by_value)
    known = texts.ordered()
    distinct = values.ordered()
    if len(known) == len(distinct):
        return
    counts = np.zeros(len(distinct), np.int64)
    seen = np.zeros(len(known), np.bool_)
    for number in scans.scanned:
        spellings = read_spellings(run, number)
        index = known.index_of(spellings.hashes)
        new = ~seen[index]
        seen[index] = True
        np.add.at(counts, distinct.index_of(spellings.by_value)[new], 1)
    if scans.earlier is not None:
        new = ~seen[known.index_of(scans.earlier.known.hashes)]
        np.add.at(counts, distinct.index_of(scans.earlier.known.hashes)[new], 1)
    word = type_word(scans.evidence.types()[column])
    for number in scans.scanned:
        spellings = read_spellings(run, number)
        if spellings.others is None:
            continue
        repeated = counts[distinct.index_of(spellings.by_value)] > 1
        others = spellings.others.filter(pa.array(repeated)).drop_null()
        if len(others):
            raise InputError(
                f"other rows write this value, a {word}, in another form, so that it would be two"
                " entities",
                path=scans.shards[number].path,
                column=column,
                value=others[0].as_py(),
                remedy=(
                    f"group by values with {setting('types', {column: word})}, or by texts as they"
                    f" are with {setting('types', {column: 'text'})}"
                ),
            )
