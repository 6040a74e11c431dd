"""Execute a split of tables: survey, scan, plan, write, finish."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from headrace.checks import nearest
from headrace.errors import HeadraceError, InputError, SettingsError, setting, setting_name
from headrace.folds.settings import Rolling
from headrace.formats.column_paths import ColumnSelection, has_column
from headrace.formats.common_schema import columns_with_gaps, join_shards, with_content
from headrace.formats.dialect import UTF8
from headrace.formats.evidence import Evidence
from headrace.formats.grouped import at_fault, grouped, part_of
from headrace.formats.header import hint, is_value, row_for_names
from headrace.formats.partitions import ignored_names, partition_types
from headrace.formats.plain_types import in_text
from headrace.formats.registry import FORMATS, FileType
from headrace.formats.shard import Shard
from headrace.formats.source import read_signature, survey_all
from headrace.formats.type_words import keeps_text
from headrace.formats.types import column_types, is_text, shorten_list
from headrace.run.context import STAGE_DIRECTORY, RunContext, Task, TaskFiles
from headrace.run.events import Note
from headrace.run.prepare import Outcome
from headrace.run.receipts import Receipt
from headrace.run.tally import ShardRecord, tally
from headrace.split import advice
from headrace.split.allocate import EntitySet, Hashes, allocate, hash_null_entity
from headrace.split.cutoff import DateBins, total
from headrace.split.drawing import ByHash
from headrace.split.earlier import (
    GONE,
    EarlierRun,
    allocate_new,
    find_earlier,
    keep_table,
    version_of,
)
from headrace.split.features import Counts, Feature, Scans, features_of
from headrace.split.features.duplicates import find_distinguishing
from headrace.split.random_split import RandomSplit
from headrace.split.rules import (
    SPLITS,
    Clock,
    DropRule,
    OneCut,
    Output,
    Placement,
    SplitPlan,
    clock_of,
    cutoff_on,
)
from headrace.split.scan import (
    Scanner,
    TypesScanner,
    one_form,
    read_entities,
    scan_shard,
)
from headrace.split.settings import SplitSettings, TemporalSplit, compression_problem
from headrace.split.write import join_split, output_schema, records_of, split_shard, word_of_output
from headrace.storage import local

DIRECTORIES = {split: f"training_data/{split}" for split in SPLITS} | {"oot": "oot_data"}
_FILES_A_TASK = 64  # surveyed
_NUMBER = re.compile(r"part-(\d+)")
# of columns whose values the split changes, so a field inside a struct cannot be one
_WRITTEN_ROLES = ("label", "targets", "types")
_DAY_US = timedelta(days=1) // timedelta(microseconds=1)


@dataclass(frozen=True)
class SurveyedSource:
    """The surveyed source: shards in name order, the number that each keeps, and their common
    schema. Of many small shards, groups stand in their place.
    """

    shards: Sequence[Shard]
    numbers: Sequence[int]
    schema: pa.Schema

    @property
    def files(self) -> int:
        """The number of source files."""
        return sum(len(shard.paths) for shard in self.shards)

    @property
    def first(self) -> Shard:
        """The first shard that has columns."""
        return with_content(self.shards)[0]

    def tasks(self, work: Callable[[int, Shard, TaskFiles], dict[str, Any]]) -> list[Task]:
        """Return a task for each shard.

        work: takes the shard's index, the shard, and the files of the task.
        """
        tasks = []
        for number, shard in enumerate(self.shards):
            call = partial(work, number, shard)
            tasks.append(Task(shard.name, shard.size, call, shard.paths))
        return tasks


def execute(
    settings: SplitSettings, context: RunContext, files: Sequence[tuple[Path, str]]
) -> Outcome:
    """Run the split in the run directory."""
    source = _survey(settings, context, files)
    earlier = find_earlier(settings, context, source.shards, source.schema)
    output = replace(_output(settings, source), drawn=() if earlier is None else earlier.drawn)
    if settings.dialect.encoding != UTF8 and output.file_type.format.content != "binary":
        context.inform([f"the source is {settings.dialect.encoding}; what is written is UTF-8"])
    distinguishing = find_distinguishing(output, source.shards, earlier)
    context.inform(advice.of_distinguishing(distinguishing, settings))
    output = replace(output, distinguishing=distinguishing)
    features = features_of(output, source.shards)
    if earlier is not None:
        for feature in features:
            feature.check_earlier(earlier)
    scans = _scan(settings, context, source, features, earlier)
    for feature in features:
        feature.join(scans)
    plan = _plan(output, scans, features)
    parts = _write(scans, plan, source)
    return _finish(plan, source, scans, parts, features)


def _scan(
    settings: SplitSettings,
    context: RunContext,
    source: SurveyedSource,
    features: Sequence[Feature],
    earlier: EarlierRun | None,
) -> Scans:
    """Scan all shards that are not taken over from an earlier run. Warns of odd values."""
    versions = context.versions  # tasks go to other machines, which listeners of the context cannot

    def scan(number: int, shard: Shard, files: TaskFiles) -> dict[str, Any]:
        if earlier is not None and shard.name in earlier.linked:
            known = earlier.scans[shard.name]
            return {"rows_in": known.rows_in, **known.extra}
        result = _scanned(settings, features, shard, number, files)
        return {**result, "source": version_of(versions, shard, source.schema)}

    receipts = context.stage("scan", source.tasks(scan), durable=False)
    scans = Scans(context, source.shards, receipts, earlier)
    context.warn(advice.odd_values(settings, scans))
    context.warn(_row_for_names(settings, source, scans))
    return scans


def _row_for_names(settings: SplitSettings, source: SurveyedSource, scans: Scans) -> list[str]:
    """Return a warning if the first line of a file was taken for names and looks like a row."""
    first = source.first
    names = first.schema.names
    if settings.signature is not None or first.dialect is None or not any(map(is_value, names)):
        return []
    types = scans.evidence.types()
    schema = pa.schema([(name, types.get(name, pa.string())) for name in names])
    warning = row_for_names(first.path, schema)
    return [] if warning is None else [warning]


def _scanners(settings: SplitSettings, features: Sequence[Feature], shard: Shard) -> list[Scanner]:
    """Return what looks at the rows of a shard."""
    scanners: list[Scanner] = []
    if shard.dialect is not None and not keeps_text(settings.types):
        scanners.append(TypesScanner(shard, [*settings.types], settings.dialect))
    for feature in features:
        scanner = feature.scanner(shard)
        if scanner is not None:
            scanners.append(scanner)
    return scanners


def _scanned(
    settings: SplitSettings,
    features: Sequence[Feature],
    shard: Shard,
    number: int,
    files: TaskFiles,
) -> dict[str, Any]:
    """Scan a shard, or a group of shards, of which errors and advice name the one that they are
    about.
    """

    def scan(shard: Shard, files: TaskFiles) -> dict[str, Any]:
        return scan_shard(files, settings, shard, number, _scanners(settings, features, shard))

    def scan_alone(shard: Shard) -> dict[str, Any]:
        nothing_assigned = TaskFiles(files.run, durable=False)
        try:
            return scan(shard, nothing_assigned)
        finally:
            nothing_assigned.discard()

    def same_form(parts: Sequence[Shard], results: Sequence[dict[str, Any]]) -> None:
        if isinstance(settings, TemporalSplit):
            forms = [
                (part.path, result["forms"]) for part, result in zip(parts, results, strict=True)
            ]
            one_form(forms, settings.time_format, settings.time_name)

    if not shard.parts:
        return scan(shard, files)
    try:
        result = scan(shard, files)
    except HeadraceError as error:
        raise at_fault(shard, error, scan_alone, same_form) from error
    if result["first_unreadable"] is not None:
        alone = (scan_alone(part_of(shard, part)) for part in shard.parts)
        unreadable = (part_result["first_unreadable"] for part_result in alone)
        result["first_unreadable"] = next(filter(None, unreadable), result["first_unreadable"])
    return result


def _plan(output: Output, scans: Scans, features: Sequence[Feature]) -> SplitPlan:
    """Decide all that the shards are written by."""
    settings = output.settings
    context = scans.context
    clock: Clock = "utc"
    bins = DateBins(0, 1, 1)
    if isinstance(settings, TemporalSplit):
        clock = clock_of(one_form(_forms(scans), settings.time_format, settings.time_name))
        cutoff_us = 0
        if settings.split_date is not None:
            advice.check_units(settings, scans)
            cutoff_us = cutoff_on(settings, clock)
        bins = _bins(scans, clock, cutoff_us)
        if scans.earlier is not None:
            bins = scans.earlier.bins(bins)
        entities = _entities_before(settings, scans)
        if scans.earlier is None or settings.entity is None:
            allocation = allocate(entities, settings.train_ratio)
        else:
            allocation = allocate_new(entities, settings.train_ratio, scans.earlier.known)
        placement: Placement = OneCut(settings, allocation)
    else:
        assert isinstance(settings, RandomSplit)
        placement = ByHash.of(settings)
    rules: list[DropRule] = []
    filled: list[str] = []
    for feature in features:
        rules += feature.rules
        filled += feature.filled
    plan = SplitPlan(
        output=output,
        schema=output.source,
        placement=placement,
        rules=rules,
        null_entity=hash_null_entity(settings.seed),
        clock=clock,
        bins=bins,
        keeps_groups=scans.earlier is not None and scans.earlier.keeps_groups,
    )
    for feature in features:
        plan = feature.decide(plan, scans)
    summary = plan.placement.summary()
    if settings.cut_in_time and settings.entity_column is None:
        summary = (
            f"no entity is given, so time alone decides; give {setting('entity')} if rows belong to"
            " customers, devices, ..."
        )
    if summary is not None:
        context.on_event(Note("info", summary))
    return replace(plan, schema=output_schema(plan, filled))


def _forms(scans: Scans) -> Iterable[tuple[Path, Sequence[str]]]:
    """Return the forms of the times of each shard."""
    return zip((shard.path for shard in scans.shards), scans.results("forms"), strict=True)


def _bins(scans: Scans, clock: Clock, cutoff_us: int) -> DateBins:
    """Return the time bins that hold all rows."""
    first_us = scans.known("first_us")
    last_us = scans.known("last_us")
    if not first_us:
        return DateBins.over(cutoff_us, cutoff_us, cutoff_us)
    # Mixed times were scanned on two clocks, whose offset is less than a day.
    slack = 0
    if clock == "mixed":
        slack = _DAY_US
    return DateBins.over(min(first_us) - slack, max(last_us) + slack, cutoff_us)


def _entities_before(settings: TemporalSplit, scans: Scans) -> Hashes:
    """Return the entities that are seen before the last cut, ascending by hash."""
    cuts = 1
    if isinstance(settings.folds, Rolling):
        cuts = settings.folds.n
    entities = EntitySet()
    for number in scans.scanned:
        hashes, first_cut = read_entities(scans.context.run, number)
        entities.add(hashes.take(first_cut < cuts))
    if settings.null_entity == "own" and any(scans.results("null_entity_before")):
        entities.add(hash_null_entity(settings.seed))
    return entities.ordered()


def _write(scans: Scans, plan: SplitPlan, source: SurveyedSource) -> list[Receipt]:
    """Write the rows of each shard to their splits, or take over the files of an earlier run."""
    earlier = scans.earlier
    sharded = plan.settings.layout == "sharded"
    if sharded:
        root = ""
    else:
        root = f"{STAGE_DIRECTORY}/"

    def write(number: int, shard: Shard, files: TaskFiles) -> dict[str, Any]:
        name = f"part-{source.numbers[number]:05d}{plan.output.file_type.extension}"
        targets = {split: f"{root}{directory_of(split)}/{name}" for split in plan.names}
        if earlier is not None and shard.name in earlier.linked:
            earlier.take_over(shard.name, number, targets, files)
            reasons = [rule.reason.value for rule in plan.rules]
            return earlier.part(shard.name, plan.bins, reasons)
        return split_shard(files, plan, shard, number, targets)

    def keep(files: TaskFiles) -> dict[str, Any]:
        assert earlier is not None
        keep_table(files, GONE, earlier.forgotten_shards.table())
        return {}

    if plan.keeps_groups:
        scans.context.stage("assignment", [Task("earlier groups", 0, keep)])
    durable = sharded or plan.settings.assignment_from is not None
    return scans.context.stage("split", source.tasks(write), durable=durable)


def _finish(
    plan: SplitPlan,
    source: SurveyedSource,
    scans: Scans,
    parts: Sequence[Receipt],
    features: Sequence[Feature],
) -> Outcome:
    """Check the counts, join files if one file per split is requested, and describe the run."""
    settings = plan.settings
    context = scans.context
    if settings.folds is None:
        splits = settings.splits
    else:
        splits = plan.names
    counts = _counts(plan, parts, splits)
    feature_metadata: dict[str, Any] = {}
    for feature in features:
        feature_metadata |= feature.metadata(plan, scans, counts)
    directories = {split: directory_of(split) for split in splits}
    if settings.folds is not None:
        splits = tuple(cell for cell in splits if counts.rows[cell])
        directories = {split: directory_of(split) for split in splits}
    index, totals = tally(_written_shards(context, plan, source, parts, splits), splits)
    if settings.folds is None and "test" in splits:
        _alias_test(context, splits)
        directories["oot"] = DIRECTORIES["oot"]
    evidence = scans.evidence
    types = _types_of_texts(plan, evidence)
    return Outcome(
        schema=plan.schema,
        index=index,
        splits=totals,
        dropped=counts.dropped,
        source={
            "files": source.files,
            "bytes": sum(shard.size for shard in source.shards),
            "rows": sum(part.rows_in for part in parts),
            "empty_shards": [
                name for receipt in scans.receipts for name in receipt.extra["without_rows"]
            ],
        },
        directories=directories,
        metadata={
            **_metadata(plan, scans, parts, splits),
            **feature_metadata,
            "inputs": _inputs(plan, types),
        },
        dialect=settings.dialect.written,
        texts=types,
        gaps=(evidence.gaps() & types.keys()) | columns_with_gaps(source.shards, plan.schema),
    )


def _inputs(plan: SplitPlan, types: Mapping[str, pa.DataType]) -> Literal["numbers", "text"]:
    """Return what a stream delivers in the columns without a role: text if no number is there.

    types: of columns that are stored as text.
    """
    settings = plan.settings
    roles = {*settings.time_columns, settings.entity_column, settings.label}
    roles.update(settings.targets or ())
    inputs = []
    for column in plan.schema:
        if column.name not in roles:
            inputs.append(types.get(column.name, column.type))
    if all(is_text(type_) or pa.types.is_temporal(type_) for type_ in inputs):
        return "text"
    return "numbers"


def _types_of_texts(plan: SplitPlan, evidence: Evidence) -> dict[str, pa.DataType]:
    """Return the types that all values of the columns of text fit, as streams deliver them."""
    settings = plan.settings
    types = evidence.types()
    if settings.main_target is not None and not keeps_text(settings.types):
        types[settings.main_target] = pa.float64()  # the text of numbers that were computed
    stored = {field.name for field in plan.schema if is_text(field.type)}
    declared = settings.types.keys()
    return {name: types[name] for name in types if name in stored and name not in declared}


def _counts(plan: SplitPlan, parts: Sequence[Receipt], splits: Sequence[str]) -> Counts:
    rows = dict.fromkeys(splits, 0)
    dropped = {rule.reason.value: 0 for rule in plan.rules}
    for part in parts:
        for split in rows:
            rows[split] += part.rows_by_split[split]
        for reason in dropped:
            dropped[reason] += part.dropped_by_reason[reason]
    return Counts(rows, dropped)


def _written_shards(
    context: RunContext,
    plan: SplitPlan,
    source: SurveyedSource,
    parts: Sequence[Receipt],
    splits: Sequence[str],
) -> list[ShardRecord]:
    """Return the shards of the output, after joining them to one file per split if the layout asks
    for that.
    """
    if plan.settings.layout == "sharded":
        shards = []
        for part, shard in zip(parts, source.shards, strict=True):
            word = word_of_output(plan.output, shard)
            for split in splits:
                for record in records_of(part, split):
                    blocks = part.extra["blocks"][split]
                    name = "" if shard.parts else shard.name  # rows of several
                    shards.append(ShardRecord(split, record, blocks, word, name))
        return shards
    word = word_of_output(plan.output, source.first)
    tasks = []
    for split in splits:
        target = f"{directory_of(split)}/{split}_processed_data{plan.output.file_type.extension}"
        size = 0
        for part in parts:
            for record in records_of(part, split):
                size += record.bytes
        work = partial(
            join_split, plan=plan, first=source.first, split=split, parts=parts, target=target
        )
        tasks.append(Task(split, size, work))
    joined = context.stage("join", tasks)
    return [ShardRecord(part.subject, part.files[0], part.extra["blocks"], word) for part in joined]


def directory_of(split: str) -> str:
    """Return the directory of a split, relative to the run; cells of folds have a common parent
    directory.
    """
    return DIRECTORIES.get(split, f"folds/{split}")


def _survey(
    settings: SplitSettings, context: RunContext, files: Sequence[tuple[Path, str]]
) -> SurveyedSource:
    if settings.signature is None:
        signature = None
    else:
        signature = read_signature(settings.signature)
    declared = column_types(settings.types)
    types = partition_types((name for _, name in files), declared)
    look = partial(survey_all, signature=signature, partitions=types, dialect=settings.dialect)
    starts = range(0, len(files), _FILES_A_TASK)
    surveyed = context.map(
        [partial(look, files[start : start + _FILES_A_TASK]) for start in starts]
    )
    shards = [shard for part in surveyed for shard in part]
    joined = join_shards(_choose_columns(settings, shards), settings.schema_drift)
    context.inform(joined.changes)
    context.warn(ignored_names(types, {name for shard in shards for name in shard.partition}))
    schema = joined.schema
    for role, name in settings.named_columns():
        if not has_column(schema, name):
            advice_on_header = hint(
                schema.names, f"name its columns in a file, {setting('signature')}"
            )
            path = with_content(shards)[0].path
            raise InputError(
                f"has no column {name!r} for {setting_name(role)}; its columns are"
                f" {shorten_list(schema.names)}{advice_on_header}",
                path=path,
                value=name,
                remedy=nearest(name, schema.names, "") or None,
            )
        if role in _WRITTEN_ROLES and name not in schema.names:
            raise InputError(
                f"it is a field of a struct, and {setting_name(role)} names a column that is"
                " written anew",
                path=with_content(shards)[0].path,
                column=name,
                remedy=f"name it in {setting('columns')} too, which makes a column of it",
            )
    if settings.lineage == "columns":
        for name in ("source_shard", "source_row"):
            if name in schema.names:
                raise InputError(
                    f"{setting_name('lineage')} would add a second column of this name",
                    path=shards[0].path,
                    column=name,
                    remedy="leave it off or rename the column",
                )
    numbers = number_shards([name for _, name in files], settings.shard_numbers)
    shards = list(joined.shards)
    if settings.lineage == "off":  # else each row says which shard it is from
        shards = grouped(shards)
    firsts = accumulate((len(shard.paths) for shard in shards[:-1]), initial=0)
    return SurveyedSource(shards, [numbers[first] for first in firsts], schema)


def _choose_columns(settings: SplitSettings, shards: Sequence[Shard]) -> Sequence[Shard]:
    """Leave columns of all shards unread: those that are not chosen, or those that are dropped.

    Raises `SettingsError` for columns that no shard has, and for one that another setting names and
    is left out: `verify` reads it from what was written.
    """
    named = settings.columns or settings.drop_columns
    if named is None:
        return shards
    selection = ColumnSelection(settings.columns, settings.drop_columns)
    schemas = list({id(shard.schema): shard.schema for shard in shards}.values())
    selection.check(schemas)
    chosen = [shard.with_choice(selection.names_in(shard.schema)) for shard in shards]
    for role, name in settings.named_columns():
        left_out = not any(has_column(shard.schema, name) for shard in chosen)
        if left_out and any(has_column(schema, name) for schema in schemas):
            raise SettingsError(
                f"it leaves out {name!r}, which {setting_name(role)} names",
                setting="columns" if settings.columns else "drop_columns",
                value=list(named),
                remedy="keep it: what decides a row's split is verified from what is written",
            )
    return chosen


def number_shards(names: Sequence[str], how: Literal["keep", "dense"]) -> list[int]:
    """Give each source shard name a distinct number.

    how="keep": the N of part-N if every name has one (gaps stay); 0, 1, 2, ... in name order if
    none has. Raises `InputError` naming both files if two names have the same N, or if only some
    have one.
    """
    matches = [_NUMBER.search(name.rsplit("/", 1)[-1]) for name in names]
    if how == "dense" or not any(matches):
        return list(range(len(names)))
    dense = setting("shard_numbers", "dense")
    numbered: dict[int, str] = {}
    for name, match in zip(names, matches, strict=True):
        if match is None:
            raise InputError(
                "has no number, but other shards are called part-N",
                path=name,
                remedy=f"rename it, or number all with {dense}",
            )
        first = numbered.setdefault(int(match[1]), name)
        if first != name:
            raise InputError(
                f"is shard {int(match[1])} like {first}, and one would overwrite the other",
                path=name,
                remedy=f"rename one, or number all with {dense}",
            )
    return list(numbered)


def _output(settings: SplitSettings, source: SurveyedSource) -> Output:
    """Decide how rows are written.

    Raises `InputError` for columns that the format cannot hold: delimited text has no form for
    nested values and bytes.
    """
    file_types = [shard.file_type for shard in with_content(source.shards)]
    formats = {file_type.format.written_as or file_type.format.name for file_type in file_types}
    format_name: Any = settings.format
    if format_name == "same":
        if len(formats) > 1:
            listed = " and ".join(sorted(formats))
            raise SettingsError(
                f"the source holds {listed}",
                setting="format",
                value=format_name,
                remedy="choose one output format",
            )
        format_name = next(iter(formats))
    problem = compression_problem(format_name, settings.compression)
    if problem is not None:
        raise SettingsError(problem)
    if FORMATS[format_name].content == "binary":
        file_type = FileType.named(format_name)
        codec = settings.compression or "lz4"
    else:
        texts = set()
        for file_type in file_types:
            if file_type.format.content != "binary":
                texts.add(file_type.compression)
        compression: Any = settings.compression
        if compression is None:
            compression = "none"
            if len(texts) == 1:
                compression = next(iter(texts))
        file_type = FileType.named(format_name, compression)
        codec = "none"
    # A text file of all shards' rows has the separator of the first shard, if that has the same
    # format.
    separator = file_type.format.separator or ""
    if source.first.file_type.format == file_type.format and source.first.dialect is not None:
        separator = source.first.dialect.separator
    output = Output(
        settings=settings,
        source=source.schema,
        file_type=file_type,
        parquet_compression=codec,
        separator=separator,
        types=column_types(settings.types),
    )
    _refuse_types(output, source.shards)
    return output


def _refuse_types(output: Output, shards: Sequence[Shard]) -> None:
    """Raise `InputError` for columns that the format cannot hold, naming the first file that has
    one.
    """
    if output.file_type.format.content == "binary":
        return
    is_json = output.file_type.format.separator is None
    unfit = set()
    for data_type in set(output.source.types):
        if not in_text(data_type) or (not is_json and pa.types.is_nested(data_type)):
            unfit.add(data_type)
    for field in output.source if unfit else ():
        data_type = field.type
        if data_type in unfit:
            shard = next((shard for shard in shards if field.name in shard.schema.names), shards[0])
            raise InputError(
                f"{output.file_type.format.name} cannot hold {data_type}",
                path=shard.path,
                column=field.name,
                remedy=f"choose {setting('format', 'parquet')} or remove the column",
            )


def _alias_test(context: RunContext, splits: Sequence[str]) -> None:
    """Link the files of `test` under the second name `oot_data`."""
    directory = local.make_directory(context.run / DIRECTORIES["oot"])
    for split in splits:
        local.make_directory(context.run / DIRECTORIES[split])
    paths = sorted((context.run / DIRECTORIES["test"]).iterdir())
    for path in paths:
        if not path.name.startswith(local.TEMP_PREFIX):
            local.alias(path, directory / path.name.replace("test_processed_data", "oot_data"))
    local.sync_directory(directory)


def _metadata(
    plan: SplitPlan, scans: Scans, parts: Sequence[Receipt], splits: Sequence[str]
) -> dict[str, Any]:
    """Return the facts of any split; features add theirs."""
    settings = plan.settings
    forms = sorted(set().union(*scans.results("forms")))
    date_form = None
    if forms:
        date_form = "iso_mixed"
        if len(forms) == 1:
            date_form = forms[0]
    metadata: dict[str, Any] = {
        "entity": settings.entity_column,
        "missing_like": advice.missing_like(scans),
    }
    if not isinstance(settings, TemporalSplit):
        return metadata
    return metadata | {
        "split_date": settings.split_date,
        "time": settings.time,
        "date_form": date_form,
        "cutoff_us": None if settings.split_date is None else cutoff_on(settings, plan.clock),
        "dates": total((part.extra["dates"] for part in parts), plan.bins, splits),
    }
