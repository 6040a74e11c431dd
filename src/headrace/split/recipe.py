"""The temporal split as a run: survey, scan, allocate, split, and where one file per split is asked, join."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa

from headrace.dataset.index import IndexRow
from headrace.dataset.manifest import SplitTotals
from headrace.errors import InputError, SettingsError
from headrace.formats.detect import Compression, Kind
from headrace.formats.schema import few, hint, is_text, type_named
from headrace.formats.shard import SEPARATOR, Shard
from headrace.formats.source import common_schema, find_files, read_signature, survey, with_content
from headrace.run.context import STAGE_DIRECTORY, RunContext, Task, TaskFiles
from headrace.run.events import Note
from headrace.run.prepare import Outcome
from headrace.run.receipts import Receipt
from headrace.split.allocate import BYTES_PER_ENTITY, EntitySet, allocate, hash_nobody
from headrace.split.columns import label_map
from headrace.split.config import PARQUET_COMPRESSIONS, TEXT_COMPRESSIONS, TemporalSplit
from headrace.split.date_checks import check_units, one_form
from headrace.split.date_counts import DateBins, total
from headrace.split.findings import few_rows, missing_like, odd_values
from headrace.split.join import join_split
from headrace.split.numbering import number_shards
from headrace.split.scan import read_entities, scan_shard
from headrace.split.split import (
    REASONS,
    SPLITS,
    Clock,
    SplitPlan,
    clock_of,
    cutoff_us,
    derive,
    split_shard,
    word_of_output,
)
from headrace.storage import local

DIRECTORIES = {split: f"training_data/{split}" for split in SPLITS} | {"oot": "oot_data"}


@dataclass(frozen=True)
class Source:
    """The surveyed source: shards in name order, the number each keeps, their one schema."""

    shards: Sequence[Shard]
    numbers: Sequence[int]
    schema: pa.Schema

    @property
    def first(self) -> Shard:
        """The first shard that says something of columns."""
        return with_content(self.shards)[0]


def source_files(settings: TemporalSplit) -> list[tuple[Path, str]]:
    """The source's files and their names, sorted by name; the signature file is not one of them."""
    files = find_files(settings.source)
    if settings.signature is not None:
        signature = settings.signature.resolve()
        files = [(path, name) for path, name in files if path.resolve() != signature]
    if not files:
        raise InputError(
            f"{settings.source[0]}: holds no data file beside the signature; give the directory of the shards"
        )
    return files


def execute(settings: TemporalSplit, context: RunContext, files: Sequence[tuple[Path, str]]) -> Outcome:
    """Do the split in the run directory."""
    source = _survey(settings, context, files)
    kind, parquet_compression = _output_kind(settings, source.shards)
    _refuse_unwritable(source, kind)
    scans = context.stage("scan", _scan_tasks(settings, source), durable=False)
    context.warn(odd_values(settings, scans))
    plan = _plan(settings, source, scans, kind, parquet_compression, context)
    parts = context.stage("split", _split_tasks(plan, source), durable=settings.layout == "sharded")
    rows = {split: sum(part.result["rows"][split] for part in parts) for split in SPLITS}
    dropped = {reason: sum(part.result["dropped"][reason] for part in parts) for reason in REASONS}
    _refuse_empty(rows, plan)
    context.warn(few_rows(settings, rows, dropped, scans))
    index = _sharded_index(parts, source, plan) if settings.layout == "sharded" else _join(plan, source, parts, context)
    _alias_test(context)
    return Outcome(
        schema=plan.schema,
        index=index,
        splits=_totals(context, index, rows),
        dropped=dropped,
        source={
            "files": len(source.shards),
            "bytes": sum(shard.size for shard in source.shards),
            "rows": sum(part.result["rows_read"] for part in parts),
            "empty_shards": [part.subject for part in parts if not part.result["rows_read"]],
        },
        directories=DIRECTORIES,
        facts=_facts(settings, plan, scans, parts),
        null_values=settings.null_values,
    )


def _survey(settings: TemporalSplit, context: RunContext, files: Sequence[tuple[Path, str]]) -> Source:
    signature = None if settings.signature is None else read_signature(settings.signature)

    def look(path: Path, name: str) -> Callable[[], Shard]:
        return lambda: survey(path, name, signature)

    shards = context.map([look(path, name) for path, name in files])
    schema = common_schema(shards, settings.schema_drift, widen_by='schema_drift="widen"')
    wanted = {"date_column": settings.date_column, "group_column": settings.group_column}
    wanted |= {"label": settings.label} if settings.label is not None else {}
    wanted |= {f"targets[{place}]": name for place, name in enumerate(settings.targets or ())}
    wanted |= {f"types[{name!r}]": name for name in settings.types}
    for role, name in wanted.items():
        if name not in schema.names:
            told = hint(schema.names, "name its columns in a file, signature=")
            known = few(schema.names)
            first = with_content(shards)[0].path
            raise InputError(f"{first}: has no column {name!r} ({role}); its columns are {known}{told}")
    if settings.lineage == "columns" and {"source_shard", "source_row"} & set(schema.names):
        raise InputError(
            f"{shards[0].path}: has a column source_shard or source_row already; leave lineage off or rename it"
        )
    return Source(shards, number_shards([name for _, name in files], settings.shard_numbers), schema)


def _output_kind(settings: TemporalSplit, shards: Sequence[Shard]) -> tuple[Kind, str]:
    """Format and compression of the output files, and the codec inside Parquet ones."""
    same = {"json": "jsonl", "arrow": "parquet"}
    shards = with_content(shards)
    formats = {same.get(shard.kind.format, shard.kind.format) for shard in shards}
    if settings.format == "same" and len(formats) > 1:
        raise SettingsError(f"the source holds {' and '.join(sorted(formats))}; choose one output format with format=")
    format_ = next(iter(formats)) if settings.format == "same" else settings.format
    allowed = PARQUET_COMPRESSIONS if format_ == "parquet" else TEXT_COMPRESSIONS
    if settings.compression is not None and settings.compression not in allowed:
        raise SettingsError(f"compression is {settings.compression!r}, {format_} takes {', '.join(allowed)}")
    if format_ == "parquet":
        return Kind("parquet", "none"), settings.compression or "lz4"
    compressions = {shard.kind.compression for shard in shards if shard.kind.format not in ("parquet", "arrow")}
    own: Compression = next(iter(compressions)) if len(compressions) == 1 else "none"
    return Kind(format_, settings.compression or own), "none"  # type: ignore[arg-type]  # checked against TEXT_COMPRESSIONS above


def _refuse_unwritable(source: Source, kind: Kind) -> None:
    """Delimited text has no form for nested values and bytes."""
    if kind.format not in ("csv", "tsv"):
        return
    for field in source.schema:
        if (
            pa.types.is_nested(field.type)
            or pa.types.is_binary(field.type)
            or pa.types.is_fixed_size_binary(field.type)
        ):
            shard = next(each for each in source.shards if field.name in each.schema.names)
            raise InputError(
                f"{shard.path}: column {field.name} is {field.type}, which {kind.format} cannot hold; "
                f'choose format="parquet" or remove the column'
            )


def _scan_tasks(settings: TemporalSplit, source: Source) -> list[Task]:
    def task(place: int, shard: Shard) -> Task:
        return Task(shard.name, shard.size, lambda files: scan_shard(files, settings, shard, place), [shard.path])

    return [task(place, shard) for place, shard in enumerate(source.shards)]


def _plan(
    settings: TemporalSplit,
    source: Source,
    scans: Sequence[Receipt],
    kind: Kind,
    parquet_compression: str,
    context: RunContext,
) -> SplitPlan:
    clock = clock_of(one_form(settings, source.shards, scans))
    check_units(settings, source.shards, scans)
    seen = EntitySet()
    for place in range(len(scans)):
        hashes, before = read_entities(context.run, place)
        seen.add(type(hashes)(hashes.high[before], hashes.low[before]))
    nobody = hash_nobody(settings.seed)
    if settings.null_group == "own" and any(scan.result["nobody_before"] for scan in scans):
        seen.add(nobody)
    classes = None
    if settings.label is not None:
        classes = label_map(sorted({name for scan in scans for name in scan.result["classes"]}))
    draft = SplitPlan(
        settings=settings,
        source=source.schema,
        schema=source.schema,
        kind=kind,
        parquet_compression=parquet_compression,
        allocation=allocate(seen.ordered(), settings.train_ratio),
        nobody=nobody,
        clock=clock,
        bins=_bins(scans, clock, cutoff_us(settings, clock)),
        classes=classes,
        separator=_first_separator(source.first, kind),
        types={name: type_named(word) for name, word in settings.types.items()},
    )
    plan = replace(draft, schema=_output_schema(draft))
    known = plan.allocation
    size = BYTES_PER_ENTITY * len(known.known) / 1e6
    context.on_event(
        Note(
            "info",
            f"{len(known.known):,} entities before the cutoff: {known.train:,} train, {known.val:,} validate "
            f"({size:.1f} MB)",
        )
    )
    return plan


def _first_separator(first: Shard, kind: Kind) -> str:
    """What separates fields in a text file of all shards' rows: what the first shard has, if it is of that format."""
    if first.dialect is not None and first.kind.format == kind.format:
        return first.dialect.separator
    return SEPARATOR.get(kind.format, "")


def _output_schema(plan: SplitPlan) -> pa.Schema:
    """The output's columns, types and which may hold nulls, from deriving no rows at all."""
    made = derive(plan.source.empty_table(), plan, "", "", 0).schema
    never_null = {plan.settings.date_column}  # rows without date or label are dropped, or stop the run
    if plan.settings.label is not None:
        never_null.add(plan.settings.label)
    if plan.settings.null_group != "own":
        never_null.add(plan.settings.group_column)
    if plan.settings.lineage == "columns":
        never_null |= {"source_shard", "source_row"}
    source = {field.name: field for field in plan.source}
    fields = []
    for field in made:
        before = source.get(field.name)
        unchanged = before is not None and before.type == field.type
        nullable = field.name not in never_null and not (unchanged and before is not None and not before.nullable)
        kind = field.type
        if field.name in plan.types and is_text(kind):  # text files keep the text; readers deliver the type
            kind = plan.types[field.name]
        fields.append(pa.field(field.name, kind, nullable=nullable))
    return pa.schema(fields)


def part_targets(plan: SplitPlan, number: int) -> dict[str, str]:
    """Where the part of one source shard goes, per split, relative to the run."""
    root = "" if plan.settings.layout == "sharded" else f"{STAGE_DIRECTORY}/"
    return {split: f"{root}{DIRECTORIES[split]}/part-{number:05d}{plan.kind.extension}" for split in SPLITS}


def _split_tasks(plan: SplitPlan, source: Source) -> list[Task]:
    def task(place: int, shard: Shard) -> Task:
        targets = part_targets(plan, source.numbers[place])
        return Task(shard.name, shard.size, lambda files: split_shard(files, plan, shard, place, targets), [shard.path])

    return [task(place, shard) for place, shard in enumerate(source.shards)]


def _refuse_empty(rows: dict[str, int], plan: SplitPlan) -> None:
    settings, known = plan.settings, plan.allocation
    for split, entities in (("train", known.train), ("val", known.val)):
        if rows[split] == 0:
            raise InputError(
                f"{split} has no rows: {len(known.known):,} entities have rows before {settings.split_date}, "
                f"{entities:,} of them {'train' if split == 'train' else 'validate'}; "
                f"choose a later split_date or another train_ratio (now {settings.train_ratio})"
            )


def _sharded_index(parts: Sequence[Receipt], source: Source, plan: SplitPlan) -> list[IndexRow]:
    rows = []
    for part, shard in zip(parts, source.shards, strict=True):
        files = {PurePosixPath(record.path).parent.name: record for record in part.files}
        word = word_of_output(plan, shard)
        for split, blocks in part.result["blocks"].items():
            record = files[split]
            for block, facts in enumerate(blocks):
                rows.append(
                    IndexRow(
                        split=split,
                        shard=record.path,
                        format=word,
                        block=block,
                        digest=record.digest,
                        checksum=record.checksum,
                        source_shard=shard.name,
                        **facts,
                    )
                )
    return sorted(rows, key=lambda row: (row.split, row.shard, row.block))


def _join(plan: SplitPlan, source: Source, parts: Sequence[Receipt], context: RunContext) -> list[IndexRow]:
    def task(split: str) -> Task:
        target = f"{DIRECTORIES[split]}/{split}_processed_data{plan.kind.extension}"
        size = sum(
            record.bytes for part in parts for record in part.files if PurePosixPath(record.path).parent.name == split
        )

        def work(files: TaskFiles) -> dict[str, Any]:
            return join_split(files, plan, source.first, split, parts, target)

        return Task(split, size, work)

    joined = context.stage("join", [task(split) for split in SPLITS])
    rows = []
    for receipt in joined:
        record = receipt.files[0]
        for block, facts in enumerate(receipt.result["blocks"]):
            rows.append(
                IndexRow(
                    split=receipt.subject,
                    shard=record.path,
                    format=word_of_output(plan, source.first),
                    block=block,
                    digest=record.digest,
                    checksum=record.checksum,
                    source_shard="",
                    **facts,
                )
            )
    return sorted(rows, key=lambda row: (row.split, row.shard, row.block))


def _alias_test(context: RunContext) -> None:
    """`oot_data` holds the files of `test` under a second name."""
    directory = local.make_directory(context.run / DIRECTORIES["oot"])
    for split in SPLITS:
        local.make_directory(context.run / DIRECTORIES[split])
    tests = context.run / DIRECTORIES["test"]
    for path in sorted(each for each in tests.iterdir() if not each.name.startswith(local.TEMP_PREFIX)):
        name = path.name.replace("test_processed_data", "oot_data")
        local.alias(path, directory / name)
    local.sync_directory(directory)


def _totals(context: RunContext, index: Sequence[IndexRow], rows: dict[str, int]) -> dict[str, SplitTotals]:
    shards = {split: sorted({row.shard for row in index if row.split == split}) for split in SPLITS}
    return {
        split: SplitTotals(
            rows=rows[split], shards=len(names), bytes=sum((context.run / name).stat().st_size for name in names)
        )
        for split, names in shards.items()
    }


def _bins(scans: Sequence[Receipt], clock: Clock, edge_us: int) -> DateBins:
    """Stretches of time that hold all dates of the source; without any, the cutoff."""
    # Mixed dates were scanned by two clocks; offsets between them are less than a day.
    slack = timedelta(days=1) // timedelta(microseconds=1) if clock == "mixed" else 0
    first = min((each - slack for scan in scans if (each := scan.result["first_us"]) is not None), default=edge_us)
    last = max((each + slack for scan in scans if (each := scan.result["last_us"]) is not None), default=edge_us)
    return DateBins.over(first, last, edge_us)


def _facts(
    settings: TemporalSplit, plan: SplitPlan, scans: Sequence[Receipt], parts: Sequence[Receipt]
) -> dict[str, Any]:
    forms = sorted({form for scan in scans for form in scan.result["forms"]})
    return {
        "split_date": settings.split_date,
        "date_column": settings.date_column,
        "group_column": settings.group_column,
        "date_form": "iso_mixed" if len(forms) > 1 else forms[0] if forms else None,
        "cutoff_us": cutoff_us(settings, plan.clock),
        "entities_before_cutoff": len(plan.allocation.known),
        "train_entities": plan.allocation.train,
        "val_entities": plan.allocation.val,
        "missing_like": missing_like(scans),
        "label_map": None if plan.classes is None else dict(plan.classes),
        "dates": total((part.result["dates"] for part in parts), plan.bins, SPLITS),
    }
