"""Pass 2: every row of a shard to its split, or to the reason it is dropped for.

Where a row only changes place, its bytes are copied and nothing is parsed; else the columns are read, derived and
written. Which way is taken depends on the settings and the shard alone, so results do not depend on scheduling.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.arrays import I64
from headrace.errors import InputError
from headrace.formats.dates import INSTANTS, MISSING
from headrace.formats.detect import Kind
from headrace.formats.shard import SEPARATOR, Dialect, Shard, word_of
from headrace.formats.source import copied_records, fit, read_chunks, unchanged
from headrace.formats.text_columns import typed
from headrace.formats.write import Piece, ShardWriter
from headrace.run.context import TaskFiles
from headrace.split import columns
from headrace.split.allocate import TRAIN, UNSEEN, VAL, Allocation, Hashes
from headrace.split.config import TemporalSplit
from headrace.split.cutoff import to_utc
from headrace.split.date_counts import DateBins
from headrace.split.scan import INSTANT, MISSING_LABEL, NOBODY, UNREADABLE_DATE, Scanned, read_scan

SPLITS = ("train", "val", "test")
REASONS = (
    "null_date",
    "unreadable_date",
    "null_group",
    "train_entity_after_cutoff",
    "val_entity_after_cutoff",
    "missing_label",
)
_CLASS = {name: code for code, name in enumerate((*SPLITS, *REASONS))}

Clock = Literal["utc", "wall", "mixed"]
Classes = npt.NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class SplitPlan:
    """All that pass 2 needs beside a shard; one copy, shared by all workers.

    source: the schema common to all shards; schema: of the output. clock: that the dates are told by; where some are
    told by each, key ranges are in UTC. bins: stretches of time in which the rows of each split are counted.
    separator: of a text file that holds all of a split; shards of their own keep their source's.
    """

    settings: TemporalSplit
    source: pa.Schema
    schema: pa.Schema
    kind: Kind
    parquet_compression: str
    allocation: Allocation
    nobody: Hashes
    clock: Clock
    classes: Mapping[str, int] | None
    separator: str
    bins: DateBins
    types: Mapping[str, pa.DataType] = field(default_factory=dict)


def clock_of(forms: Collection[str]) -> Clock:
    """The clock of dates of these forms."""
    instants = INSTANTS.intersection(forms)
    return "wall" if not instants else "utc" if len(instants) == len(forms) else "mixed"


def cutoff_us(settings: TemporalSplit, clock: Clock) -> int:
    """The cutoff in microseconds on this clock; UTC for mixed dates."""
    cutoff = settings.cutoff()
    return cutoff.wall_us if clock == "wall" else cutoff.instant_us


def key_micros(scanned: Scanned, plan: SplitPlan) -> I64:
    """The dates of all rows on one clock. A wall-clock time that clocks skip is as if they were changed behind it."""
    if plan.clock != "mixed":
        return scanned.micros
    return on_utc(scanned.micros, (scanned.flags & INSTANT) == 0, plan.settings.timezone)


def on_utc(micros: I64, wall: npt.NDArray[np.bool_], zone: str) -> I64:
    """Mixed dates as UTC; wall: which of them are wall-clock times of the zone."""
    return np.where(wall, to_utc(micros, zone), micros) if wall.any() else micros


def classify(scanned: Scanned, plan: SplitPlan) -> Classes:
    """Split or drop reason of every row: uint8 [N], a place in SPLITS + REASONS. Pure.

    A row has one reason: no date, unreadable date, no entity, after the cutoff, no label, in this order.
    """
    side_of_entity = plan.allocation.side_of(scanned.hashes)
    nobody = int(plan.allocation.side_of(plan.nobody)[0]) if plan.settings.null_group == "own" else UNSEEN
    side = np.append(side_of_entity, np.uint8(nobody))[scanned.entity]  # NOBODY is -1, the last place
    before = scanned.micros < cutoff_us(plan.settings, plan.clock)
    if plan.clock == "mixed":
        wall = (scanned.flags & INSTANT) == 0
        before = np.where(wall, scanned.micros < plan.settings.cutoff().wall_us, before)

    result = np.full(len(side), _CLASS["test"], np.uint8)
    result[before & (side == TRAIN)] = _CLASS["train"]
    result[before & (side == VAL)] = _CLASS["val"]
    flagged = scanned.flags.any()
    if flagged:
        result[(scanned.flags & MISSING_LABEL) != 0] = _CLASS["missing_label"]
    result[~before & (side == TRAIN)] = _CLASS["train_entity_after_cutoff"]
    if plan.settings.val_in_test == "drop":
        result[~before & (side == VAL)] = _CLASS["val_entity_after_cutoff"]
    if plan.settings.null_group != "own":
        result[scanned.entity == NOBODY] = _CLASS["null_group"]
    result[scanned.micros == MISSING] = _CLASS["null_date"]
    if flagged:
        result[(scanned.flags & UNREADABLE_DATE) != 0] = _CLASS["unreadable_date"]
    return result


def split_shard(
    files: TaskFiles, plan: SplitPlan, shard: Shard, number: int, targets: Mapping[str, str]
) -> dict[str, Any]:
    """Write the shard's rows of each split to `targets[split]`; splits without rows get no file."""
    scanned = read_scan(files.run, number)
    classes, keys = classify(scanned, plan), key_micros(scanned, plan)
    sizes = scanned.sizes if copies_bytes(plan, shard) else None
    dialect = output_dialect(plan, shard)
    schema = plan.schema if sizes is None else shard.schema
    with ExitStack() as stack:
        writers: dict[str, ShardWriter] = {}
        row = 0
        for pieces in _derived(plan, shard) if sizes is None else _copied(plan, shard, sizes):
            part = slice(row, row + len(pieces))
            if part.stop > len(classes):
                raise InputError(f"{shard.path}: changed while it was read; run again once it is complete")
            for code, split in enumerate(SPLITS):
                chosen = classes[part] == code
                if not chosen.any():
                    continue
                if split not in writers:
                    writer = ShardWriter(
                        files.temporary(targets[split]),
                        kind=plan.kind,
                        schema=schema,
                        dialect=dialect,
                        parquet_compression=plan.parquet_compression,
                    )
                    writers[split] = stack.enter_context(writer)
                writers[split].append(pieces.filter(pa.array(chosen)), keys[part][chosen])
            row += len(pieces)
        if row != len(classes):
            raise InputError(
                f"{shard.path}: has {row} rows now and had {len(classes)} before; run again once it is complete"
            )
        written = {split: writer.finish() for split, writer in writers.items()}
        for split, result in written.items():
            files.finished(writers[split].path, targets[split], result)
    counts = np.bincount(classes, minlength=len(_CLASS))
    return {
        "rows_read": row,
        "rows": {name: int(counts[_CLASS[name]]) for name in SPLITS},
        "dropped": {name: int(counts[_CLASS[name]]) for name in REASONS},
        "dates": {name: plan.bins.counts(keys[classes == _CLASS[name]]).tolist() for name in SPLITS},
        "blocks": {split: [asdict(block) for block in result.blocks] for split, result in written.items()},
    }


def copies_bytes(plan: SplitPlan, shard: Shard) -> bool:
    """Whether this shard's rows keep their bytes: same format out as in, no column made or changed."""
    settings = plan.settings
    same_format = shard.kind.format == plan.kind.format
    derives = settings.label is not None or settings.targets is not None or settings.lineage == "columns"
    if not same_format or derives or plan.kind.format == "parquet":
        return False
    if plan.kind.format == "jsonl":
        return True
    return shard.schema.names == plan.source.names and shard.dialect == output_dialect(plan, shard)


def derive(table: pa.Table, plan: SplitPlan, where: str, shard_name: str, first_row: int) -> pa.Table:
    """Source columns → output columns: common schema, main target, classes, declared types, lineage."""
    settings = plan.settings
    table = fit(table, plan.source)
    if settings.targets is not None and settings.main_target is not None:
        values = columns.main_target(table, settings.targets, settings.main_target, settings.null_values)
        table = _replaced(table, settings.main_target, values)
    if settings.label is not None and plan.classes is not None:
        texts = columns.label_texts(table[settings.label], settings.null_values)
        table = _replaced(table, settings.label, columns.class_numbers(texts, plan.classes))
    read = typed(table, plan.types, settings.null_values, where, first_row)
    if plan.kind.format in ("parquet", "jsonl"):  # text files keep the text, which must be of the type all the same
        table = read
    if settings.lineage == "columns":
        table = columns.with_lineage(table, shard_name, first_row)
    return table


def _copied(plan: SplitPlan, shard: Shard, sizes: npt.NDArray[np.int32]) -> Iterator[Piece]:
    """The shard's rows as bytes. Declared types must hold all the same, so those columns are read and checked."""
    checked = [name for name in plan.types if shard.kind.format != "jsonl"]
    if checked:
        for chunk in read_chunks(shard):
            typed(chunk.table(checked), plan.types, plan.settings.null_values, str(shard.path), chunk.first_row)
    yield from copied_records(shard, sizes)
    unchanged(shard)


def _derived(plan: SplitPlan, shard: Shard) -> Iterator[Piece]:
    """The shard's rows as the output's columns."""
    where = str(shard.path)
    for chunk in read_chunks(shard):
        try:
            yield derive(chunk.table(), plan, where, shard.name, chunk.first_row)
        except InputError as error:
            if where in str(error):
                raise
            raise InputError(f"{where}: from row {chunk.first_row + 1}: {error}") from error


def _replaced(table: pa.Table, name: str, values: pa.ChunkedArray) -> pa.Table:
    return table.set_column(table.column_names.index(name), pa.field(name, values.type), values)


def output_dialect(plan: SplitPlan, shard: Shard) -> Dialect | None:
    """How the output text is written: as the source shard where that is the same format, else plainly."""
    if plan.kind.format not in SEPARATOR:
        return None
    own = shard.dialect if shard.kind.format == plan.kind.format else None
    if own is None:
        own = Dialect(SEPARATOR[plan.kind.format], "\n")
    return replace(own, separator=plan.separator) if plan.settings.layout == "single" else own


def word_of_output(plan: SplitPlan, shard: Shard) -> str:
    """The word for the index of the format that this shard's rows are written in."""
    dialect = output_dialect(plan, shard)
    return word_of(plan.kind, None if dialect is None else dialect.separator)
