"""Keep the assignment of an earlier run, and take over the shards that have not changed.

Groups that the earlier run has in a split stay there, and only new ones are drawn. A source shard
of the same size and version, under the same settings and schema, has the same output, so its files
become files of the new run too. Beside the shards such a run keeps what the next one needs: for
each source shard its groups with their splits, where a split does not follow from the hash alone,
and the digests of its rows. An earlier run without these files is read once. Memory is O(groups).
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, partial
from math import floor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import U8, U64, distinct
from headrace.dataset.contents import map_blocks
from headrace.dataset.manifest import read_settings
from headrace.dataset.open import FinishedRun, find_run
from headrace.dataset.receipts import NO_RECEIPT, RECEIPTS, parse_receipt
from headrace.digest import canonical_json, sha256_hex
from headrace.errors import InputError, SettingsError, setting_name
from headrace.formats.content import row_digests, tagged
from headrace.formats.shard import Shard
from headrace.formats.text_columns import as_text
from headrace.formats.types import describe
from headrace.formats.write import Written
from headrace.recipe import find_recipe
from headrace.run.context import RunContext, TaskFiles, read_arrow
from headrace.run.identity import Version
from headrace.run.receipts import FileRecord, Receipt
from headrace.split.allocate import (
    TRAIN,
    VAL,
    Allocation,
    EntitySet,
    Hashes,
    hash_entities,
    hash_null_entity,
    hash_rows,
    in_order,
)
from headrace.split.cutoff import DateBins
from headrace.split.random_split import RandomSplit
from headrace.split.rules import SPLITS
from headrace.split.settings import SplitSettings
from headrace.storage import local
from headrace.storage.places import place_of

DIRECTORY = "assignment"
GONE = f"{DIRECTORY}/earlier.arrow"  # groups of shards that are no longer there, or have changed
UNKNOWN = 255
_GROUPS = pa.schema({"high": pa.uint64(), "low": pa.uint64(), "split": pa.uint8()})
_CONTENT = pa.schema({"content": pa.uint64()})
# Settings that change where a row goes, which an assignment cannot outlive.
_SAME = ("seed", "entity", "by", "time", "time_zone", "dialect", "folds", "near")


@dataclass(frozen=True)
class Groups:
    """Groups and the splits that they are in. hashes [N]; code uint8 [N]."""

    hashes: Hashes
    code: U8

    @classmethod
    def of(cls, hashes: Hashes, code: U8) -> Groups:
        """Return each group once, ascending by hash, with the first of its splits."""
        order, high = in_order(hashes.high)
        low = hashes.low[order]
        code = code[order]
        same_high = high[1:] == high[:-1]
        if (same_high & (low[1:] != low[:-1])).any():  # two groups share 64 bits
            order = np.lexsort((low, high))
            high, low, code = high[order], low[order], code[order]
        new = np.ones(len(high), np.bool_)
        new[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
        starts = np.flatnonzero(new)
        if len(starts):
            code = np.minimum.reduceat(code, starts)
        return cls(Hashes(high[starts], low[starts]), code)

    @classmethod
    def joined(cls, parts: Sequence[Groups]) -> Groups:
        """Return the groups of all parts."""
        high = np.concatenate([np.empty(0, np.uint64), *(part.hashes.high for part in parts)])
        low = np.concatenate([np.empty(0, np.uint64), *(part.hashes.low for part in parts)])
        code = np.concatenate([np.empty(0, np.uint8), *(part.code for part in parts)])
        return cls.of(Hashes(high, low), code)

    def code_of(self, hashes: Hashes) -> U8:
        """Return the split of each group [N]; UNKNOWN for new ones."""
        return np.append(self.code, np.uint8(UNKNOWN))[self.hashes.index_of(hashes)]

    def without(self, hashes: Hashes) -> Groups:
        """Return the groups without those of these hashes, which are ascending."""
        remains = hashes.index_of(self.hashes) < 0
        return Groups(self.hashes.take(remains), self.code[remains])

    def table(self) -> pa.Table:
        """Return the columns of a file."""
        return pa.table({"high": self.hashes.high, "low": self.hashes.low, "split": self.code})


def _read_groups(path: Path) -> Groups:
    """Read the groups that a file of a run holds. Raises `CorruptShard`."""
    with place_of(path).local_copy() as copy:
        table = read_arrow(copy, _GROUPS)
        columns = [table[name].to_numpy() for name in _GROUPS.names]
        return Groups(Hashes(columns[0], columns[1]), columns[2])


@dataclass(frozen=True)
class EarlierRun:
    """A run whose assignment is kept.

    parts, scans: receipts of its source shards, by name. linked: names of the shards that it has in
    the same form. by_hash: whether a group's split follows from its hash in both runs, so that no
    group needs to be known. groups, content: of each of its source shards, by name.
    """

    run: FinishedRun
    settings: SplitSettings
    scans: Mapping[str, Receipt]
    parts: Mapping[str, Receipt]
    linked: frozenset[str]
    by_hash: bool
    gone: Groups
    groups: Mapping[str, Groups] = field(default_factory=dict)
    content: Mapping[str, U64] = field(default_factory=dict)

    @property
    def drawn(self) -> tuple[str, ...]:
        """The columns that rows are drawn by; empty if groups are."""
        return tuple(self.run.manifest.metadata.get("drawn", {}).get("columns", ()))

    @cached_property
    def known(self) -> Groups:
        """All groups that the run, or one before it, has in a split."""
        return Groups.joined([self.gone, *self.groups.values()])

    @property
    def forgotten_shards(self) -> Groups:
        """The groups of shards that are not taken over, with those of earlier runs."""
        parts = [part for name, part in self.groups.items() if name not in self.linked]
        return Groups.joined([self.gone, *parts])

    @property
    def linked_content(self) -> U64:
        """The contents of the shards that are taken over, ascending, without their splits."""
        parts = [part for name, part in self.content.items() if name in self.linked]
        words = np.concatenate([np.empty(0, np.uint64), *parts])
        return distinct(words & ~np.uint64(3))

    def bins(self, bins: DateBins) -> DateBins:
        """Return bins that hold all rows, and whose borders are borders of the earlier ones."""
        if not self.linked or not self.settings.time_columns:
            return bins
        earlier = DateBins.recorded(self.run.manifest.metadata["dates"])
        last_us = max(bins.first_us + bins.width_us * bins.count, _end(earlier))
        first_us = min(bins.first_us, earlier.first_us)
        width = earlier.width_us
        first_us = earlier.first_us - -(-(earlier.first_us - first_us) // width) * width
        while (last_us - first_us) // width >= 2 * max(earlier.count, 73):
            width *= 2
        return DateBins(first_us, width, -(-(last_us - first_us) // width))

    def part(self, name: str, bins: DateBins, reasons: Sequence[str]) -> dict[str, Any]:
        """Return what the receipt of a shard that is taken over records."""
        part = self.parts[name]
        dates = {}
        if self.settings.time_columns:
            earlier = DateBins.recorded(self.run.manifest.metadata["dates"])
            for split, counts in part.extra["dates"].items():
                starts = earlier.first_us + earlier.width_us * np.arange(len(counts))
                index = (starts - bins.first_us) // bins.width_us
                weights = np.array(counts, np.float64)
                rows = np.bincount(index, weights, bins.count).astype(np.int64)
                dates[split] = rows.tolist()
        dropped = {reason: part.dropped_by_reason.get(reason, 0) for reason in reasons}
        return {
            "rows_in": part.rows_in,
            "rows_by_split": part.rows_by_split,
            "dropped_by_reason": dropped,
            "dates": dates,
            "blocks": part.extra["blocks"],
        }

    def take_over(
        self, name: str, number: int, targets: Mapping[str, str], files: TaskFiles
    ) -> None:
        """Give the files of a shard a second name in the new run, or copy them.

        number: of the shard in the new run.
        """
        reused = set()
        for record in self.parts[name].published_files:
            target = targets.get(Path(record.path).parent.name)
            for path in (groups_file(number), content_file(number)):
                if (
                    record.path.startswith(DIRECTORY)
                    and record.path.partition(".")[2] == path.partition(".")[2]
                ):
                    target = path
            if target is None:
                continue
            reused.add(target)
            temporary = files.temporary(target)
            with place_of(self.run.root / record.path).local_copy() as existing:
                local.alias(existing, temporary)
            written = Written(0, record.bytes, record.digest, (), record.checksum)
            files.finished(temporary, target, written, on_disk=True)
        if groups_file(number) not in reused and self.keeps_groups:
            keep_table(files, groups_file(number), self.groups[name].table())
        if content_file(number) not in reused and self.run.manifest.metadata.get("duplicates"):
            keep_table(files, content_file(number), pa.table({"content": self.content[name]}))

    @property
    def keeps_groups(self) -> bool:
        """Whether groups are kept, because their split does not follow from their hash."""
        return not self.by_hash and _has_groups(self.settings)


def _end(bins: DateBins) -> int:
    return bins.first_us + bins.width_us * bins.count


def settings_of(run: FinishedRun) -> SplitSettings:
    """Return the settings of a finished run."""
    model = find_recipe(run.manifest.recipe).settings()
    settings: SplitSettings = read_settings(run.root, run.manifest, model)
    return settings


def allocate_new(entities: Hashes, train_ratio: float, known: Groups) -> Allocation:
    """Leave known entities on their side, and draw the new ones, so that the ratio of all is kept
    as far as can be.

    Entities that only test are on no side.
    """
    new = entities.take(known.code_of(entities) == UNKNOWN)
    trained = int(np.count_nonzero(known.code == TRAIN))
    seen = int(np.count_nonzero(known.code <= VAL)) + len(new)
    train = floor(Fraction(repr(train_ratio)) * seen) - trained
    sides = (np.arange(len(new)) >= train).astype(np.uint8)
    groups = Groups.joined([known, Groups(new, sides)])
    return Allocation(groups.hashes, groups.code, seen)


def version_of(versions: Mapping[Path, Version], shard: Shard, schema: pa.Schema) -> list[Any]:
    """Return what the output of a shard depends on besides the settings: its version and the schema
    common to all shards.
    """
    digest = sha256_hex(canonical_json(describe(schema)))
    if not shard.parts:
        return [*versions[shard.path], digest]
    parts = [[part.name, *versions[part.path]] for part in shard.parts]
    return [sha256_hex(canonical_json(parts)), digest]


def find_earlier(
    settings: SplitSettings, context: RunContext, shards: Sequence[Shard], schema: pa.Schema
) -> EarlierRun | None:
    """Find the run whose assignment is kept; None if there is none to keep.

    Raises `SettingsError` if it was prepared in another way, so that its assignment means nothing.
    """
    if settings.assignment_from is None:
        return None
    run = FinishedRun(*find_run(settings.assignment_from))
    earlier = settings_of(run) if run.manifest.recipe == settings.recipe_name else None
    _refuse_others(settings, earlier, run)
    assert earlier is not None
    for name in run.manifest.metadata.get("drawn", {}).get("columns", ()):
        if name not in schema.names:
            raise InputError(
                "rows were drawn by this column in the earlier run, and the source lacks it",
                path=run.root,
                column=name,
                remedy=f"restore the column, or leave {setting_name('assignment_from')} out",
            )
    scans = _receipts(run, "scan")
    parts = _receipts(run, "split")
    linked = set()
    if _same_output(settings, earlier):
        for shard in shards:
            known = scans.get(shard.name)
            version = version_of(context.versions, shard, schema)
            if shard.name in parts and known and known.extra.get("source") == version:
                linked.add(shard.name)
    by_hash = settings.assigns_by_hash(earlier) and run.manifest.metadata.get("assigned", {}).get(
        "by_hash", True
    )
    earlier_run = EarlierRun(
        run, earlier, scans, parts, frozenset(linked), by_hash, groups_of_earlier(run)
    )
    return _read(earlier_run, context)


def _refuse_others(
    settings: SplitSettings, earlier: SplitSettings | None, run: FinishedRun
) -> None:
    name = "recipe"
    values: tuple[object, object] = (settings.recipe_name, run.manifest.recipe)
    if earlier is not None:
        for name in _SAME:
            values = (getattr(settings, name, None), getattr(earlier, name, None))
            if values[0] != values[1]:
                break
        else:
            name = ""
    if earlier is not None and not name and settings.entity_column is None:
        for name in ("split_date", "content"):
            values = (getattr(settings, name, None), getattr(earlier, name, None))
            if values[0] != values[1]:
                break
        else:
            name = ""
    if name:
        raise SettingsError(
            f"{setting_name('assignment_from')} has {values[1]!r} for {setting_name(name)}, by"
            " which no assignment of this run can be kept",
            path=run.root,
            setting=name,
            value=values[0],
            remedy=f"give the same {setting_name(name)}, or leave"
            f" {setting_name('assignment_from')} out",
        )


def _receipts(run: FinishedRun, stage: str) -> dict[str, Receipt]:
    """Return the receipts of a stage by the shards they are about; none that cannot be read."""
    receipts = {}
    totals = run.manifest.receipts.get(stage)
    for number in range(0 if totals is None else totals.tasks):
        try:
            data = place_of(run.root / RECEIPTS / f"{stage}-{number:05d}.json").read()
            receipt = parse_receipt(data)
        except (*NO_RECEIPT, OSError):
            return {}
        receipts[receipt.subject] = receipt
    return receipts


def _same_output(settings: SplitSettings, earlier: SplitSettings) -> bool:
    """Return whether both write the rows of a shard in the same way, to the same splits."""
    if settings.layout != "sharded":
        return False
    ours = settings.identity_settings()
    theirs = earlier.identity_settings()
    for identity in (ours, theirs):
        identity.pop("assignment_from", None)
        identity.pop("shard_numbers", None)
    return ours == theirs


def groups_of_earlier(run: FinishedRun) -> Groups:
    """Read the groups of earlier runs whose shards are gone or have changed."""
    path = run.root / GONE
    try:
        place_of(path).stat()
    except FileNotFoundError:
        return Groups.joined([])
    return _read_groups(path)


def _read(earlier_run: EarlierRun, context: RunContext) -> EarlierRun:
    """Read the groups and contents of the earlier run: from its files, else from its output."""
    names = list(earlier_run.parts)
    gone = earlier_run.gone
    if earlier_run.keeps_groups and _needs_all(earlier_run):
        read = groups_in_splits(earlier_run.run, earlier_run.settings, context.workers)
        for code, split in enumerate(SPLITS):
            if split in read:
                codes = np.full(len(read[split]), code, np.uint8)
                gone = Groups.joined([gone, Groups(read[split], codes)])
    results = context.map([partial(_read_part, earlier_run, name) for name in names])
    groups = {}
    content = {}
    for name, (part_groups, words) in zip(names, results, strict=True):
        groups[name] = part_groups
        content[name] = words
    return replace(earlier_run, gone=gone, groups=groups, content=content)


def _needs_all(earlier_run: EarlierRun) -> bool:
    """Return whether the groups of the earlier run are not known by source shard."""
    if earlier_run.parts and earlier_run.settings.layout == "sharded":
        return False
    return not any(_groups_record(part) for part in earlier_run.parts.values())


def _groups_record(part: Receipt) -> FileRecord | None:
    """Return the file of the groups of a source shard, if the run keeps it."""
    for record in part.published_files:
        if record.path.endswith(".groups.arrow"):
            return record
    return None


def _read_part(earlier_run: EarlierRun, name: str) -> tuple[Groups, U64]:
    part = earlier_run.parts[name]
    none = Groups.joined([])
    groups = None if earlier_run.keeps_groups and not _needs_all(earlier_run) else none
    needs_content = name in earlier_run.linked and earlier_run.run.manifest.metadata.get(
        "duplicates"
    )
    content = None if needs_content else np.empty(0, np.uint64)
    for record in part.published_files:
        path = earlier_run.run.root / record.path
        if record.path.endswith(".groups.arrow") and groups is None:
            groups = _read_groups(path)
        if record.path.endswith(".content.arrow") and content is None:
            with place_of(path).local_copy() as copy:
                content = read_arrow(copy, _CONTENT)["content"].to_numpy()
    if groups is not None and content is not None:
        return groups, content
    return _read_output(earlier_run, part, groups, content)


def _has_groups(settings: SplitSettings) -> bool:
    return settings.entity_column is not None or isinstance(settings, RandomSplit)


def _read_output(
    earlier_run: EarlierRun, part: Receipt, groups: Groups | None, content: U64 | None
) -> tuple[Groups, U64]:
    """Read groups and contents, where they are not known, from the output of a source shard."""
    settings = earlier_run.settings
    metadata = earlier_run.run.manifest.metadata
    drawn = list(metadata.get("drawn", {}).get("columns", ()))
    compared = list((metadata.get("duplicates") or {}).get("content", ()))
    columns = [*drawn, *compared, *filter(None, [settings.entity_column])]
    all_groups = []
    words = [np.empty(0, np.uint64)]
    for code, split in enumerate(SPLITS):
        paths = {record.path for record in part.files}
        if split not in earlier_run.run.splits:
            continue
        index = earlier_run.run.split_index(split)
        read = earlier_run.run.block_reader(split)
        for block in range(len(index.rows)):
            if index.shards[int(index.shard_of_block[block])] not in paths:
                continue
            table = read(block, list(dict.fromkeys(columns)))
            if groups is None:
                hashes = hashes_of_rows(settings, table, drawn)
                all_groups.append(Groups.of(hashes, np.full(len(hashes), code, np.uint8)))
            if content is None:
                words.append(tagged(row_digests(table.select(compared)), code))
    if groups is None:
        groups = Groups.joined(all_groups)
    if content is None:
        content = np.sort(np.concatenate(words))
    return groups, content


def hashes_of_rows(settings: SplitSettings, table: pa.Table, drawn: Sequence[str]) -> Hashes:
    """Hash the groups of output rows, each at least once."""
    name = settings.entity_column
    if name is None:
        return hash_rows(row_digests(table.select(list(drawn))), settings.seed)
    texts = as_text(table[name], settings.dialect.null_values, name)
    hashes = hash_entities(pc.unique(texts).drop_null(), settings.seed)
    if not texts.null_count:
        return hashes
    null = hash_null_entity(settings.seed)
    return Hashes(np.append(hashes.high, null.high), np.append(hashes.low, null.low))


def groups_in_splits(run: FinishedRun, settings: SplitSettings, workers: int) -> dict[str, Hashes]:
    """Read the groups of each split from the output of a run, ascending by hash."""
    drawn = list(run.manifest.metadata.get("drawn", {}).get("columns", ()))
    columns = [*drawn, *filter(None, [settings.entity_column])]
    result = {}
    for split in run.splits:
        entities = EntitySet()
        work = partial(hashes_of_rows, settings, drawn=drawn)
        for hashes in map_blocks(run, split, workers, columns, work):
            entities.add(hashes)
        result[split] = entities.ordered()
    return result


def keep_table(files: TaskFiles, target: str, table: pa.Table) -> None:
    """Write an Arrow file that stays in the run."""
    files.write(target, arrow_bytes(table))


def arrow_bytes(table: pa.Table) -> bytes:
    """Return a table as the bytes of an Arrow file, which has a batch even without rows."""
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
        if not table.num_rows:
            writer.write_batch(pa.RecordBatch.from_pylist([], table.schema))
    return sink.getvalue()


def groups_file(number: int) -> str:
    """Return the path of the groups of a source shard, relative to the run."""
    return f"{DIRECTORY}/part-{number:05d}.groups.arrow"


def content_file(number: int) -> str:
    """Return the path of the digests of a source shard's rows, relative to the run."""
    return f"{DIRECTORY}/part-{number:05d}.content.arrow"
