"""Execute the temporal split: survey, scan, allocate, split, and join if one file per split is requested."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from headrace.errors import InputError, SettingsError
from headrace.folds.settings import GroupKFold
from headrace.formats.common_schema import common_schema, with_content
from headrace.formats.partitions import partition_types
from headrace.formats.registry import Compression, FileType
from headrace.formats.shard import Shard
from headrace.formats.source import read_signature, survey
from headrace.formats.types import few, hint, is_text, type_named
from headrace.report.words import many
from headrace.run.context import STAGE_DIRECTORY, RunContext, Task, TaskFiles
from headrace.run.events import Note
from headrace.run.prepare import Outcome
from headrace.run.receipts import Receipt
from headrace.run.tally import ShardRecord, tally
from headrace.split import duplicates, folding, guidance
from headrace.split.allocate import EntitySet, allocate, hash_nobody
from headrace.split.columns import label_map
from headrace.split.content import Content
from headrace.split.cutoff import DateBins, total
from headrace.split.scan import one_form, read_entities, scan_shard
from headrace.split.settings import TemporalSplit, compression_problem
from headrace.split.shards import (
    SPLITS,
    Output,
    SplitPlan,
    clock_of,
    copies_bytes,
    cutoff_us,
    derive,
    join_split,
    reasons_of,
    records_of,
    split_shard,
    word_of_output,
)
from headrace.storage import local
from headrace.stream.audit.exclude import read_excluded

DIRECTORIES = {split: f"training_data/{split}" for split in SPLITS} | {"oot": "oot_data"}
_NUMBER = re.compile(r"part-(\d+)")
_DAY_US = timedelta(days=1) // timedelta(microseconds=1)


@dataclass(frozen=True)
class Source:
    """The surveyed source: shards in name order, the number that each keeps, and their common schema."""

    shards: Sequence[Shard]
    numbers: Sequence[int]
    schema: pa.Schema

    @property
    def first(self) -> Shard:
        """The first shard that has columns."""
        return with_content(self.shards)[0]

    def tasks(self, work: Callable[[int, Shard, TaskFiles], dict[str, Any]]) -> list[Task]:
        """Return a task for each shard. work: takes the shard's index, the shard, and the files of the task."""
        return [
            Task(shard.name, shard.size, partial(work, place, shard), [shard.path])
            for place, shard in enumerate(self.shards)
        ]


def execute(settings: TemporalSplit, context: RunContext, files: Sequence[tuple[Path, str]]) -> Outcome:
    """Run the split in the run directory."""
    source = _survey(settings, context, files)
    output = _output(settings, source)
    content = _content(output, source)
    benchmarks = read_excluded(settings.exclude, settings.exclude_ngram)

    def scan(place: int, shard: Shard, files: TaskFiles) -> dict[str, Any]:
        # Rows are digested here to decide by them, or because pass 2 does not parse them.
        early = content
        if content is not None and settings.duplicates == "count" and settings.near is None:
            parsed = content.by != "fields" and shard.dialect is not None
            early = content if copies_bytes(output, shard) and not parsed else None
        return scan_shard(files, settings, shard, place, early, benchmarks)

    scans = context.stage("scan", source.tasks(scan), durable=False)
    context.warn(guidance.odd_values(settings, scans))
    plan = _plan(output, content, source, scans, context)
    root = "" if settings.layout == "sharded" else f"{STAGE_DIRECTORY}/"

    def split(place: int, shard: Shard, files: TaskFiles) -> dict[str, Any]:
        name = f"part-{source.numbers[place]:05d}{plan.kind.extension}"
        targets = {split: f"{root}{directory_of(split)}/{name}" for split in plan.parts}
        return split_shard(files, plan, shard, place, targets)

    parts = context.stage("split", source.tasks(split), durable=settings.layout == "sharded")
    splits = settings.splits if plan.folding is None else plan.parts
    rows = {split: sum(part.rows_by_split[split] for part in parts) for split in splits}
    dropped = {reason: sum(part.dropped_by_reason[reason] for part in parts) for reason in reasons_of(settings)}
    if plan.folding is None:
        _refuse_empty(rows, plan)
        context.warn(guidance.few_rows(settings, rows, dropped, scans))
        if (cost := guidance.cost_of_rules(rows, dropped)) is not None:
            context.on_event(Note("info", cost))
    else:
        splits = tuple(cell for cell in splits if rows[cell])
        context.warn(folding.check_rows(settings, plan.folding, rows))
    repeats = None if content is None else duplicates.facts(context, plan, len(parts))
    if repeats is not None:
        context.warn(duplicates.told(repeats, rows, len(plan.allocation.known)))
    index, totals = tally(_written_shards(context, plan, source, parts, splits), splits)
    if plan.folding is None:
        _alias_test(context, splits)
    optional = {"fold_content": repeats if plan.folding else None}
    if benchmarks is not None:
        optional["benchmarks"] = benchmarks.metadata(each.extra["excluded"] for each in scans)
    return Outcome(
        schema=plan.schema,
        index=index,
        splits=totals,
        dropped=dropped,
        source={
            "files": len(source.shards),
            "bytes": sum(shard.size for shard in source.shards),
            "rows": sum(part.rows_in for part in parts),
            "empty_shards": [part.subject for part in parts if not part.rows_in],
        },
        directories={split: directory_of(split) for split in (*splits, *(() if plan.folding else ("oot",)))},
        facts={
            **_facts(settings, plan, scans, parts, splits),
            "duplicates": None if plan.folding else repeats,
            **{name: found for name, found in optional.items() if found is not None},
        },
        null_values=settings.null_values,
    )


def _written_shards(
    context: RunContext, plan: SplitPlan, source: Source, parts: Sequence[Receipt], splits: Sequence[str]
) -> list[ShardRecord]:
    """Return the shards of the output, after joining them to one file per split if the layout asks for that."""
    if plan.settings.layout == "sharded":
        return [
            ShardRecord(split, record, part.extra["blocks"][split], word_of_output(plan, shard), shard.name)
            for part, shard in zip(parts, source.shards, strict=True)
            for split in splits
            for record in records_of(part, split)
        ]
    word = word_of_output(plan, source.first)

    def task(split: str) -> Task:
        target = f"{directory_of(split)}/{split}_processed_data{plan.kind.extension}"
        size = sum(record.bytes for part in parts for record in records_of(part, split))
        return Task(
            split, size, partial(join_split, plan=plan, first=source.first, split=split, parts=parts, target=target)
        )

    joined = context.stage("join", [task(split) for split in splits])
    return [ShardRecord(each.subject, each.files[0], each.extra["blocks"], word) for each in joined]


def directory_of(split: str) -> str:
    """Return the directory of a split, relative to the run; cells of folds have a common parent directory."""
    return DIRECTORIES.get(split, f"folds/{split}")


def _survey(settings: TemporalSplit, context: RunContext, files: Sequence[tuple[Path, str]]) -> Source:
    signature = None if settings.signature is None else read_signature(settings.signature)
    types = partition_types(name for _, name in files)
    shards = context.map([partial(survey, path, name, signature, types) for path, name in files])
    schema = common_schema(shards, settings.schema_drift, widen_by='schema_drift="widen"')
    stratify = settings.folds.stratify if isinstance(settings.folds, GroupKFold) else None
    roles = {"time": settings.time, "entity": settings.entity, "stratify": stratify, "label": settings.label}
    wanted = {role: name for role, name in roles.items() if name is not None}
    wanted |= {f"targets[{place}]": name for place, name in enumerate(settings.targets or ())}
    wanted |= {f"types[{name!r}]": name for name in settings.types}
    wanted |= {f"content[{place}]": name for place, name in enumerate(settings.content)}
    for role, name in wanted.items():
        if name not in schema.names:
            told = hint(schema.names, "name its columns in a file, signature=")
            first = with_content(shards)[0].path
            raise InputError(f"{first}: has no column {name!r} ({role}); its columns are {few(schema.names)}{told}")
    if settings.lineage == "columns" and {"source_shard", "source_row"} & set(schema.names):
        raise InputError(
            f"{shards[0].path}: has a column source_shard or source_row already; leave lineage off or rename it"
        )
    return Source(shards, number_shards([name for _, name in files], settings.shard_numbers), schema)


def number_shards(names: Sequence[str], how: Literal["keep", "dense"]) -> list[int]:
    """Give each source shard name a distinct number.

    how="keep": the N of part-N if every name has one (gaps stay); 0, 1, 2, ... in name order if none has.
    Raises `InputError` naming both files if two names have the same N, or if only some have one.
    """
    matches = [_NUMBER.search(name.rsplit("/", 1)[-1]) for name in names]
    if how == "dense" or not any(matches):
        return list(range(len(names)))
    seen: dict[int, str] = {}
    for name, match in zip(names, matches, strict=True):
        if match is None:
            raise InputError(
                f"{name}: has no number, but other shards are called part-N; rename it, "
                f'or number all with shard_numbers="dense"'
            )
        first = seen.setdefault(int(match[1]), name)
        if first != name:
            raise InputError(
                f"{name} and {first}: are both shard {int(match[1])}, one would overwrite the other; "
                f'rename one, or number all with shard_numbers="dense"'
            )
    return list(seen)


def _output(settings: TemporalSplit, source: Source) -> Output:
    """Decide how rows are written.

    Raises `InputError` for columns that the format cannot hold: delimited text has no form for nested values and bytes.
    """
    file_types = [shard.file_type for shard in with_content(source.shards)]
    formats = {each.format.written_as or each.format.name for each in file_types}
    if settings.format == "same" and len(formats) > 1:
        raise SettingsError(f"the source holds {' and '.join(sorted(formats))}; choose one output format with format=")
    format_ = next(iter(formats)) if settings.format == "same" else settings.format
    if problem := compression_problem(format_, settings.compression):
        raise SettingsError(problem)
    kind, codec = FileType.named("parquet"), settings.compression or "lz4"
    if format_ != "parquet":
        compressions = {each.compression for each in file_types if each.format.content != "binary"}
        own: Compression = next(iter(compressions)) if len(compressions) == 1 else "none"
        kind, codec = FileType.named(format_, settings.compression or own), "none"  # type: ignore[arg-type]  # checked above
    # A text file of all shards' rows has the separator of the first shard, if that has the same format.
    dialect = source.first.dialect if source.first.file_type.format == kind.format else None
    output = Output(
        settings=settings,
        source=source.schema,
        kind=kind,
        parquet_compression=codec,
        separator=kind.format.separator or "" if dialect is None else dialect.separator,
        types={name: type_named(word) for name, word in settings.types.items()},
    )
    _refuse_types(output, source.schema, source.shards)
    return output


def _refuse_types(output: Output, schema: pa.Schema, shards: Sequence[Shard]) -> None:
    """Raise `InputError` for columns that the format cannot hold, naming the first file that has one."""
    for field in schema if output.kind.format.separator is not None else ():
        type_ = field.type
        if pa.types.is_nested(type_) or pa.types.is_binary(type_) or pa.types.is_fixed_size_binary(type_):
            shard = next((each for each in shards if field.name in each.schema.names), shards[0])
            raise InputError(
                f"{shard.path}: column {field.name} is {type_}, which {output.kind.format.name} cannot hold; "
                f'choose format="parquet" or remove the column'
            )


def _content(output: Output, source: Source) -> Content | None:
    """Choose the columns that rows are compared by; None if no comparison is requested or no column is left to compare.

    Delimited text whose rows are only counted, and copied as bytes, is not parsed for this. Raises `SettingsError` if a
    requested comparison has no column.
    """
    settings = output.settings
    names = settings.compared(source.schema.names)
    if settings.duplicates == "allow" or (settings.folds is not None and settings.duplicates == "count"):
        return None
    if not names:
        if settings.duplicates == "count" and settings.near is None:
            return None
        told = "" if settings.near is None else f" and near {settings.near:g}"
        raise SettingsError(
            f"duplicates is {settings.duplicates!r}{told}, but all columns are time, entity, label or targets; name "
            f'those to compare with content=, or leave it at "count"'
        )
    types = {name: kind for name, kind in output.types.items() if name in names}
    shards = with_content(source.shards)
    fields = settings.duplicates == "count" and settings.near is None and not types
    fields = fields and output.kind.format.separator is not None
    fields = fields and all(copies_bytes(output, shard) for shard in shards)
    fields = fields and len({shard.dialect.separator for shard in shards if shard.dialect is not None}) == 1
    schema = pa.schema([source.schema.field(name) for name in names])
    content = Content(schema=schema, types=types, null_values=settings.null_values, by="fields" if fields else "values")
    if settings.near is not None:
        from headrace.split.near import check_near  # loads more libraries

        check_near(content)
    return content


def _plan(
    output: Output, content: Content | None, source: Source, scans: Sequence[Receipt], context: RunContext
) -> SplitPlan:
    settings = output.settings
    forms = [(shard.path, scan.extra["forms"]) for scan, shard in zip(scans, source.shards, strict=True)]
    clock = clock_of(one_form(forms, settings.time_format, settings.time))
    if settings.split_date is not None:
        guidance.check_units(settings, source.shards, scans)
    seen = EntitySet()
    for place in range(len(scans)):
        hashes, before = read_entities(context.run, place)
        seen.add(hashes.take(before))
    nobody = hash_nobody(settings.seed)
    if settings.null_entity == "own" and any(scan.extra["nobody_before"] for scan in scans):
        seen.add(nobody)
    classes = None
    if settings.label is not None:
        classes = label_map(sorted({name for scan in scans for name in scan.extra["classes"]}))
    edge_us = 0 if settings.split_date is None else cutoff_us(settings, clock)
    # Mixed dates were scanned on two clocks, whose offset is less than a day.
    slack = _DAY_US if clock == "mixed" else 0
    first = min((each - slack for scan in scans if (each := scan.extra["first_us"]) is not None), default=edge_us)
    last = max((each + slack for scan in scans if (each := scan.extra["last_us"]) is not None), default=edge_us)
    draft = SplitPlan(
        **vars(output),
        schema=source.schema,
        allocation=allocate(seen.ordered(), settings.train_ratio),
        nobody=nobody,
        clock=clock,
        bins=DateBins.over(first, last, edge_us),
        classes=classes,
        content=content,
    )
    plan = replace(draft, schema=_output_schema(draft))
    if settings.near is not None:
        from headrace.split.near import number_alike  # loads more libraries

        plan = number_alike(context, plan, source.shards)
    if settings.folds is not None:
        return folding.folded(context, plan, len(scans))
    plan = duplicates.decided(context, plan, len(scans))
    if settings.entity is None:
        told = "no entity is given, so time alone decides; give entity= if rows belong to customers, devices, ..."
        context.on_event(Note("info", told))
        return plan
    known = plan.allocation
    told = f"{len(known.known):,} entities before the cutoff: {known.train:,} train, {known.val:,} validate"
    context.on_event(Note("info", told))
    return plan


def _output_schema(plan: SplitPlan) -> pa.Schema:
    """Return the output's columns, types and nullability, by deriving an empty table."""
    settings = plan.settings
    # Rows without time or label are dropped, or stop the run.
    never_null: set[str | None] = {settings.time, settings.label}
    if settings.null_entity != "own":
        never_null.add(settings.entity)
    if settings.lineage == "columns":
        never_null |= {"source_shard", "source_row"}
    source = {field.name: field for field in plan.source}
    fields = []
    for field in derive(plan.source.empty_table(), plan, "", "", 0).schema:
        before = source.get(field.name)
        filled = before is not None and before.type == field.type and not before.nullable
        kind = field.type
        if field.name in plan.types and is_text(kind):  # text files keep the text; readers convert it
            kind = plan.types[field.name]
        fields.append(pa.field(field.name, kind, nullable=not filled and field.name not in never_null))
    return pa.schema(fields)


def _refuse_empty(rows: Mapping[str, int], plan: SplitPlan) -> None:
    settings, known = plan.settings, plan.allocation
    if settings.entity is None:
        if not rows["train"]:
            reaches = {"gap": settings.gap, "label_horizon": settings.label_horizon}
            reached = "".join(f", {name}={value}" for name, value in reaches.items() if value)
            raise InputError(
                f"train has no rows: no row that counts is before {settings.split_date}{reached}; choose a later "
                "split_date="
            )
        return
    apart = known.units == len(known.known)
    joined = "" if apart else f', and content joins them to {known.units:,} units (content=, duplicates="drop" help)'
    for split, entities, verb in (("train", known.train, "train"), ("val", known.val, "validate")):
        if rows[split] == 0:
            raise InputError(
                f"{split} has no rows: {many(len(known.known), 'entity has', 'entities have')} rows before "
                f"{settings.split_date}, {entities:,} of them {verb}{joined}; choose a later split_date= or another "
                f"train_ratio= (now {settings.train_ratio})"
            )


def _alias_test(context: RunContext, splits: Sequence[str]) -> None:
    """Link the files of `test` under the second name `oot_data`."""
    directory = local.make_directory(context.run / DIRECTORIES["oot"])
    for split in splits:
        local.make_directory(context.run / DIRECTORIES[split])
    tests = context.run / DIRECTORIES["test"]
    for path in sorted(each for each in tests.iterdir() if not each.name.startswith(local.TEMP_PREFIX)):
        local.alias(path, directory / path.name.replace("test_processed_data", "oot_data"))
    local.sync_directory(directory)


def _facts(
    settings: TemporalSplit,
    plan: SplitPlan,
    scans: Sequence[Receipt],
    parts: Sequence[Receipt],
    splits: Sequence[str],
) -> dict[str, Any]:
    known, entities = plan.allocation, {}
    if settings.entity is not None and plan.folding is None:
        entities = {
            "entities_before_cutoff": len(known.known),
            "train_entities": known.train,
            "val_entities": known.val,
        }
    forms = sorted({form for scan in scans for form in scan.extra["forms"]})
    return {
        "split_date": settings.split_date,
        "time": settings.time,
        "entity": settings.entity,
        "date_form": "iso_mixed" if len(forms) > 1 else forms[0] if forms else None,
        "cutoff_us": None if settings.split_date is None else cutoff_us(settings, plan.clock),
        **entities,
        **({} if plan.folding is None else {"folds": folding.facts(settings, plan.folding, plan.clock, splits)}),
        "missing_like": guidance.missing_like(scans),
        "label_map": None if plan.classes is None else dict(plan.classes),
        "dates": total((part.extra["dates"] for part in parts), plan.bins, splits),
    }
