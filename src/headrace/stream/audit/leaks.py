"""Find what the splits of a dataset share: content, spellings of one entity, labels that can be
told, calendar time.

A split by time and entity says nothing about content: the same text can belong to two entities, on
both sides of the cutoff. `find_leaks` reads the splits and reports; it changes nothing. Contents
are compared by 64-bit hashes of all values of a row, which collide for one in 10^19 pairs of
different rows. In packed rows each sequence is compared separately; in histories, everything that
an entity has.

Rows of different entities at one time share what happened then: weather, a holiday, a market. A
label that is derived from the days after its row contains information of the test period if the row
is close to the cutoff.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from headrace.arrays import F64, I64, U64, distinct
from headrace.checks import check_integer, duration_us
from headrace.dataset.contents import roles_of, split_digests
from headrace.dataset.manifest import in_usual_order
from headrace.engine.local import default_workers
from headrace.errors import InputError, SettingsError, setting
from headrace.formats.column_paths import has_column, required_path, with_paths
from headrace.formats.content import NOTHING, content_columns, row_digests
from headrace.formats.dates import MISSING, parse_dates
from headrace.formats.text_columns import as_text, joined_time, nulled
from headrace.near.stages import check_near
from headrace.near.words import plain_names
from headrace.recipe import recipe_of_run
from headrace.stream.audit.near import (
    STARTS,
    TOKEN_IDS,
    NearDuplicates,
    SplitBlocks,
    near_duplicates,
    sequence_digests,
)
from headrace.stream.audit.overlap import (
    Benchmark,
    Overlap,
    find_benchmarks,
    find_overlaps,
    holds_texts,
    read_items,
    texts_of_blocks,
)
from headrace.stream.loader.dataset import Dataset

_PACKED = (TOKEN_IDS, "loss_mask", STARTS)
_EXAMPLES = 5
_LOOKED_AT = 1 << 19  # rows of each split on which a column is tried
_CLASSES = 100  # more distinct values than this are not classes
_BINS = 256  # quantiles of a numeric column
# share of the most frequent class's errors; a column with fewer gives the label away
_TELLING = 0.1


@dataclass(frozen=True, kw_only=True)
class Shared:
    """Rows of `split` whose content is also in an earlier split.

    fraction: of the rows of `split`, 0 to 1.

    examples: up to five pairs of rows, SHARD:ROW in the earlier split and in this one; rows count
    from 0.
    """

    earlier: str
    split: str
    rows: int
    fraction: float
    examples: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class NearIds:
    """Entities with several names that differ only in case, blanks or Unicode form.

    separate: the number of them with names in different splits.
    fraction: of a split's entities, those that have another name in an earlier split; the largest
    over all splits, 0 to 1.
    """

    entities: int
    separate: int
    fraction: float
    examples: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Telling:
    """A column that alone predicts the label.

    accuracy: the share of rows that it predicts correctly. most_frequent: the share of the most
    frequent class. Learned on one split and tested on another. It may be a legitimate feature, so
    it is only reported.
    """

    column: str
    accuracy: float
    most_frequent: float


@dataclass(frozen=True, kw_only=True)
class Period:
    """The first and last time of a split, in microseconds since 1970; None if it has none.

    unread: rows whose time cannot be read.
    """

    split: str
    first_us: int | None
    last_us: int | None
    unread: int


@dataclass(frozen=True, kw_only=True)
class Together:
    """Rows of `split` at times between the first and last row of other entities in an earlier
    split.

    fraction: of the rows of `split`, 0 to 1. first_us, last_us: the first and last time of these
    rows; None if there are none.
    """

    earlier: str
    split: str
    rows: int
    fraction: float
    first_us: int | None
    last_us: int | None


@dataclass(frozen=True, kw_only=True)
class PastCut:
    """Rows of `split` whose time plus horizon reaches the cutoff.

    fraction: of the rows of `split`, 0 to 1.
    """

    split: str
    rows: int
    fraction: float


@dataclass(frozen=True, kw_only=True)
class LeakReport:
    """Result of `find_leaks`.

    unit: what is compared: "row", "sequence" or "entity". rows: units of each split. content: the
    compared columns. blank: units of each split that are empty in these columns, and are not
    compared.
    repeated: units of each split whose content an earlier unit of the same split has.
    shared: for each pair of splits.
    overlaps: benchmark items found in rows, see `Overlap`. items: benchmark items searched for.
    short_items: those with fewer than five words, which are not.
    periods, concurrent: of splits whose rows have a time, see `Period` and `Together`.
    past_cut: of labels derived from times after their row, see `PastCut`.
    near: near duplicates, if requested.
    """

    unit: str
    rows: Mapping[str, int]
    content: tuple[str, ...]
    repeated: Mapping[str, int]
    shared: tuple[Shared, ...]
    near_ids: NearIds | None = None
    telling: tuple[Telling, ...] = ()
    overlaps: tuple[Overlap, ...] = ()
    items: Mapping[str, int] = field(default_factory=dict)
    short_items: Mapping[str, int] = field(default_factory=dict)
    periods: tuple[Period, ...] = ()
    concurrent: tuple[Together, ...] = ()
    past_cut: tuple[PastCut, ...] = ()
    blank: Mapping[str, int] = field(default_factory=dict)
    near: NearDuplicates | None = None

    @property
    def units(self) -> str:
        """The plural of the unit."""
        return {"entity": "entities"}.get(self.unit, f"{self.unit}s")

    @property
    def worst(self) -> float:
        """The largest share of any leak, 0 to 1.

        Considers shares of a split that is in an earlier one or near it, whose entities have
        another name in an earlier one, or whose labels look past the cutoff, and the share of a
        benchmark that is in the data.
        """
        overlapping: dict[str, set[int]] = {source: set() for source in self.items}
        for overlap in self.overlaps:
            overlapping[overlap.source].add(overlap.item)
        of_items = [
            len(overlapping[source]) / max(1, count) for source, count in self.items.items()
        ]
        of_rows = [
            *(leak.fraction for leak in self.shared),
            *(leak.fraction for leak in self.past_cut),
        ]
        if self.near is None:
            near = []
        else:
            near = [leak.fraction for leak in self.near.shared]
        if self.near_ids is None:
            names = []
        else:
            names = [self.near_ids.fraction]
        return max([0.0, *of_rows, *near, *names, *of_items])

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {**asdict(self), "worst": self.worst}


def find_leaks(  # noqa: PLR0913 - all are settings
    dataset: Dataset,
    *,
    content: Sequence[str] = (),
    entity: str | None = None,
    label: str | None = None,
    time: str | None = None,
    label_horizon: str | None = None,
    against: Sequence[str | Path] = (),
    ngram: int = 13,
    near: float | None = None,
    workers: int | None = None,
) -> LeakReport:
    """Compare the splits of a dataset with each other, and with benchmarks that should not be in
    it.

    content: columns to compare; none: all but time, entity, label and lineage.
    entity, label, time: columns; None: those of the run's own settings, if it has any.
    label_horizon: how far past the time of a row its label looks, such as 30d; None: as in the
    run's own settings. against: files of benchmark items, or directories of them: JSON lines, CSV,
    Parquet, or text with one item per line. ngram: consecutive words that an item and a row must
    share; items with fewer words must match whole. near: a Jaccard index of shingles, 0.5 to 1;
    rows that reach it are near duplicates.
    Raises `SettingsError` for columns that do not exist, and what reading raises.

    Memory: 8 bytes per row, 24 more if rows have a time, the distinct entities, the benchmarks, and
    with a label about 524,288 rows of two splits. Near duplicates take up to 190 bytes per row
    more, in memory and in temporary files.
    """
    check_integer("ngram", ngram, least=3)
    if near is not None:
        check_near(near)
    if dataset.manifest is not None and dataset.manifest.folds:
        raise SettingsError(
            "its splits are those of folds",
            path=dataset.root,
            remedy="choose a fold, with --fold 0 or .fold(0)",
        )
    content = tuple(dict.fromkeys(content))
    roles = _roles(
        dataset,
        content,
        {"entity": entity, "label": label, "time": time, "label_horizon": label_horizon},
    )
    workers = workers or default_workers()
    splits = [SplitBlocks(dataset, name, workers) for name in in_usual_order(dataset.split_rows)]
    units = _digest_units(dataset, splits, content, roles, near=near, against=bool(against))
    contents = {name: values[values != NOTHING] for name, values in units.digests.items()}
    dated = _dated(splits, roles) if roles.get("time") is not None else {}
    benchmarks = {}
    for path in find_benchmarks(against):
        benchmarks[str(path)] = Benchmark.of(read_items(path), ngram)
    report = LeakReport(
        unit=units.unit,
        rows={name: len(values) for name, values in units.digests.items()},
        content=tuple(units.compared),
        blank={name: len(units.digests[name]) - len(values) for name, values in contents.items()},
        repeated={name: len(values) - len(distinct(values)) for name, values in contents.items()},
        shared=tuple(_shared(first, other, units) for first, other in combinations(splits, 2)),
        near_ids=None,
        telling=(),
        overlaps=(),
        items={name: benchmark.count for name, benchmark in benchmarks.items()},
        short_items={name: benchmark.short for name, benchmark in benchmarks.items()},
        periods=periods(dated),
        concurrent=concurrent(dated),
        past_cut=(),
        near=None,
    )
    null_values = roles.get("null_values", ())
    if roles.get("entity") is not None:
        report = replace(report, near_ids=_near_ids(splits, roles["entity"], null_values))
    if roles.get("label") is not None:
        telling = _telling(splits, roles["label"], _features(dataset, roles), null_values)
        report = replace(report, telling=telling)
    if benchmarks:
        overlaps = tuple(find_overlaps(benchmarks, texts_of_blocks(splits)))
        report = replace(report, overlaps=overlaps)
    if roles.get("label_horizon") is not None:
        past = past_cut(dated, roles["label_horizon"], roles.get("cutoff_us"))
        report = replace(report, past_cut=past)
    if near is not None:
        pairs = near_duplicates(splits, units.read, near, packed=units.packed)
        report = replace(report, near=pairs)
    return report


@dataclass(frozen=True, kw_only=True)
class _Units:
    """What splits are compared by: a digest of each row, sequence or other unit of each split.

    compared: names of the compared columns. read: the columns that are read for it. first_row: the
    first row of each unit, by split, if a unit is several rows.
    """

    unit: str
    packed: bool
    compared: Sequence[str]
    read: Sequence[str]
    digests: Mapping[str, U64]
    first_row: Mapping[str, I64]


def _digest_units(
    dataset: Dataset,
    splits: Sequence[SplitBlocks],
    content: Sequence[str],
    roles: Mapping[str, Any],
    *,
    near: float | None,
    against: bool,
) -> _Units:
    """Digest the units of each split. Raises as `_refuse_what_finds_nothing`."""
    packed = set(_PACKED) <= set(dataset.schema.names) and not content
    compared = content or ((TOKEN_IDS,) if packed else _features(dataset, roles))
    _refuse_what_finds_nothing(
        dataset.schema, compared, near=near is not None and not packed, against=against
    )
    read = (TOKEN_IDS, STARTS) if packed else compared
    recipe = None
    if not content and dataset.manifest is not None:
        recipe = recipe_of_run(dataset.manifest.recipe)
    digests: dict[str, U64] = {}
    first_row: dict[str, I64] = {}
    if recipe is not None and recipe.content_unit is not None:
        unit = recipe.content_unit
        for split in splits:
            contents = recipe.contents(dataset, split.name, split.workers)
            compared = contents.columns
            first_row[split.name] = contents.first_rows
            digests[split.name] = contents.digests
    else:
        unit = "sequence" if packed else "row"
        digest = sequence_digests if packed else row_digests
        for split in splits:
            digests[split.name] = split_digests(dataset, split.name, split.workers, read, digest)
    if packed:
        unit = "sequence"
    return _Units(
        unit=unit,
        packed=packed,
        compared=compared,
        read=read,
        digests=digests,
        first_row=first_row,
    )


def _features(dataset: Dataset, roles: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the columns that are no time, entity, label or target."""
    others = {roles.get(role) for role in ("entity", "label")}
    times = _columns_of(roles.get("time"))
    return content_columns(dataset.schema, {*others, *times, *roles.get("targets", ())})


def _columns_of(role: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """Return the columns of a role: one, several of a time, or none."""
    if role is None:
        return ()
    if isinstance(role, str):
        return (role,)
    return role


def _roles(
    dataset: Dataset, content: Sequence[str], requested: Mapping[str, str | None]
) -> dict[str, Any]:
    """Return the roles of columns: the given ones over those of the run.

    Raises `SettingsError` for unknown columns.
    """
    names = dataset.schema.names
    roles = roles_of(dataset) | {role: name for role, name in requested.items() if name}
    columns = [
        (role, name)
        for role in ("entity", "label", "time")
        for name in _columns_of(roles.get(role))
    ]
    for role, name in (*columns, *(("content", name_) for name_ in content)):
        if name is not None and not has_column(dataset.schema, name):
            raise SettingsError(
                "the dataset has no such column",
                setting=role,
                value=name,
                remedy=f"give one of {names}",
            )
    if roles.get("label_horizon") is not None and roles.get("time") is None:
        raise SettingsError(
            "nothing says which column is the time of a row",
            setting="label_horizon",
            remedy=f"name it with {setting('time')}, of {names}",
        )
    return roles


def _refuse_what_finds_nothing(
    schema: pa.Schema, compared: Sequence[str], *, near: bool, against: bool
) -> None:
    """Raise `SettingsError` or `InputError` if no column is compared, or none can hold the texts to
    search for.
    """
    names = schema.names
    if not compared:
        raise SettingsError(
            "all columns are time, entity or label",
            setting="content",
            remedy=f"name what to compare, of {names}",
        )
    if against and set(_PACKED) <= set(names):
        raise InputError(
            "packed rows hold tokens, not texts",
            setting="against",
            remedy=f"compare the chats that they were packed from with {setting('against')}",
        )
    if near and not holds_texts(with_paths(schema, compared)):
        raise SettingsError(
            f"none of the compared columns holds texts: {', '.join(compared)}",
            setting="near",
            remedy="leave it out",
        )
    if against and not holds_texts(schema):
        raise SettingsError(
            f"no column holds texts, so no item can be found: {', '.join(names)}",
            setting="against",
            remedy="leave it out",
        )


def _shared(earlier: SplitBlocks, later: SplitBlocks, units: _Units) -> Shared:
    """Compare two splits."""
    known = units.digests[earlier.name]
    digests = units.digests[later.name]

    def location(split: SplitBlocks, unit: int) -> str:
        row = int(units.first_row[split.name][unit]) if units.first_row else unit
        return split.location(row)

    hit = np.flatnonzero(np.isin(digests, known) & (digests != NOTHING))
    examples = []
    if not units.packed:
        order = np.argsort(known, kind="stable")
        first = order[np.searchsorted(known[order], digests[hit[:_EXAMPLES]])]
        for early, late in zip(first.tolist(), hit[:_EXAMPLES].tolist(), strict=True):
            examples.append((location(earlier, early), location(later, late)))
    return Shared(
        earlier=earlier.name,
        split=later.name,
        rows=len(hit),
        fraction=len(hit) / max(1, len(digests)),
        examples=tuple(examples),
    )


def _near_ids(splits: Sequence[SplitBlocks], entity: str, null_values: Sequence[str]) -> NearIds:
    """Group entities by their names without case, blanks around and between words, and Unicode
    forms.
    """

    def distinct(table: pa.Table) -> pl.DataFrame:
        texts = pl.Series("raw", pl.from_arrow(as_text(table[entity], null_values, entity)))
        return texts.drop_nulls().unique().to_frame()

    parts = []
    for number, split in enumerate(splits):
        names_of_blocks = [pl.DataFrame(schema={"raw": pl.String}), *split.map([entity], distinct)]
        names_of_split = pl.concat(names_of_blocks).unique()
        parts.append(names_of_split.with_columns(pl.lit(number).alias("split")))
    ids = pl.concat(parts)
    ids = ids.with_columns(plain_names(ids["raw"]).alias("plain"))
    names = ids.group_by("plain", "raw").agg(pl.col("split").min().alias("first"))
    groups = (
        ids.group_by("plain")
        .agg(pl.col("raw").unique().sort(), (pl.col("split").n_unique() > 1).alias("apart"))
        .filter(pl.col("raw").list.len() > 1)
        .sort("plain")
    )
    # The first split of an entity's other names: the smallest, or the second smallest if that is
    # this name's own.
    firsts = (
        names.group_by("plain")
        .agg(pl.col("first").sort().alias("firsts"))
        .filter(pl.col("firsts").list.len() > 1)
    )
    other = pl.col("firsts").list.get(
        (pl.col("first") == pl.col("firsts").list.first()).cast(pl.Int8)
    )
    again = (
        ids.join(firsts, on="plain")
        .join(names, on=["plain", "raw"])
        .filter(other < pl.col("split"))["split"]
    )
    examples = (
        groups.sort("apart", descending=True, maintain_order=True)["raw"].head(_EXAMPLES).to_list()
    )
    return NearIds(
        entities=len(groups),
        separate=int(groups["apart"].sum()),
        fraction=max(
            int((again == number).sum()) / max(1, len(ids_of_split))
            for number, ids_of_split in enumerate(parts)
        ),
        examples=tuple(tuple(row) for row in examples),
    )


def _telling(
    splits: Sequence[SplitBlocks], label: str, columns: Sequence[str], null_values: Sequence[str]
) -> tuple[Telling, ...]:
    """Predict the label from each column alone, by the most frequent class of its value.

    A number with many values is first binned into 256 quantiles.
    """
    if len(splits) < 2 or not (splits[0].index.total_rows and splits[-1].index.total_rows):
        return ()
    schema = splits[0].index.schema
    flat = [name for name in columns if not pa.types.is_nested(required_path(schema, name).type)]
    trained, tried = (
        _sample(split, flat, label=label, null_values=null_values)
        for split in (splits[0], splits[-1])
    )
    if trained[label].n_unique() > _CLASSES:
        return ()
    trained = trained.drop_nulls(label)
    tried = tried.drop_nulls(label)
    if not len(trained) or not len(tried):
        return ()
    usual = trained[label].mode().sort()[0]
    base = _share(tried[label] == usual)
    if base == 1:
        return ()
    telling = []
    for column in flat:
        guesses = _guesses(trained.select(column, label), tried.select(column, label))
        accuracy = _share(guesses.fill_null(usual) == tried[label])
        if 1 - accuracy <= _TELLING * (1 - base):
            telling.append(Telling(column=column, accuracy=accuracy, most_frequent=base))
    return tuple(telling)


def _sample(
    split: SplitBlocks, columns: Sequence[str], *, label: str, null_values: Sequence[str]
) -> pl.DataFrame:
    """Read rows from all over a split: the label as text, as any value may be a class, and
    decimals, which polars may lack, as floats.
    """

    def read(table: pa.Table) -> pa.Table:
        for number, column in enumerate(table.schema):
            if column.name == label:
                texts = as_text(table[number], null_values, label)
                table = table.set_column(number, label, texts)
            elif pa.types.is_decimal(column.type):
                table = table.set_column(number, column.name, table[number].cast(pa.float64()))
        return table

    # All columns at once, because text files are parsed again in every read.
    tables = split.map([*columns, label], read, split.spread(_LOOKED_AT))
    return pl.DataFrame(pl.from_arrow(pa.concat_tables(tables)))


def _guesses(known: pl.DataFrame, tried: pl.DataFrame) -> pl.Series:
    """Predict the label of each row of `tried`, null for a value that is not known.

    Both have one column and the label.
    """
    column, label = known.columns
    values = known[column]
    if values.dtype.is_numeric() and values.n_unique() > _BINS:
        numbers = _floats(values)
        edges = np.unique(np.nanquantile(numbers, np.linspace(0, 1, _BINS)))
        binned = np.searchsorted(edges, _floats(tried[column]))
        known = known.with_columns(pl.Series(column, np.searchsorted(edges, numbers)))
        tried = tried.with_columns(pl.Series(column, binned))
    best = known.group_by(column).agg(pl.col(label).mode().sort().first().alias("guess"))
    guesses = tried.join(best, on=column, how="left", nulls_equal=True, maintain_order="left")
    return guesses["guess"]


def _floats(column: pl.Series) -> F64:
    return column.cast(pl.Float64).fill_null(np.nan).to_numpy()


def _share(right: pl.Series) -> float:
    return int(right.sum()) / max(1, len(right))


# --- in calendar time


def _dated(splits: Sequence[SplitBlocks], roles: Mapping[str, Any]) -> dict[str, pl.DataFrame]:
    """Read when the rows of each split begin and end, and a hash of their entities, which is null
    without a column.
    """
    columns = {role: roles[role] for role in ("time", "until", "entity") if roles.get(role)}
    null_values = roles.get("null_values", ())

    def read(table: pa.Table) -> pl.DataFrame:
        def micros(role: str) -> I64:
            nulls = ("", *null_values)
            values = joined_time(
                [nulled(table[name], nulls) for name in _columns_of(columns[role])]
            )
            return parse_dates(values, roles.get("time_format", "auto")).micros

        begin = micros("time")
        if "until" in columns:
            end = micros("until")
        else:
            end = begin
        entity = pl.Series([None] * len(begin), dtype=pl.UInt64)  # null: equal to no entity
        if "entity" in columns:
            texts = as_text(table[columns["entity"]], null_values, columns["entity"])
            entity = pl.Series(pl.from_arrow(texts)).hash(seed=0)
        return pl.DataFrame({"entity": entity, "begin": begin, "end": end})

    empty = pl.DataFrame(schema={"entity": pl.UInt64, "begin": pl.Int64, "end": pl.Int64})
    names = [name for role in columns.values() for name in _columns_of(role)]
    return {split.name: pl.concat([empty, *split.map(names, read)]) for split in splits}


def periods(splits: Mapping[str, pl.DataFrame]) -> tuple[Period, ...]:
    """Return the first and last time of each split."""
    overlaps = []
    for name, rows in splits.items():
        read = _read(rows)
        first, last = read.select(pl.col("begin").min(), pl.col("end").max()).row(0)
        overlaps.append(
            Period(split=name, first_us=first, last_us=last, unread=len(rows) - len(read))
        )
    return tuple(overlaps)


def concurrent(splits: Mapping[str, pl.DataFrame]) -> tuple[Together, ...]:
    """Count, for each pair of splits, the rows that share calendar time with other entities of the
    earlier one.
    """
    concurrences = []
    for earlier, later in combinations(splits, 2):
        spans = (
            _read(splits[earlier])
            .group_by("entity")
            .agg(pl.col("begin").min(), pl.col("end").max())
        )
        first = _of_others(spans, "begin", descending=False)
        last = _of_others(spans, "end", descending=True)
        same = _read(splits[later]).filter((pl.col("end") >= first) & (pl.col("begin") <= last))
        first_us, last_us = same.select(pl.col("begin").min(), pl.col("end").max()).row(0)
        fraction = len(same) / max(1, len(splits[later]))
        concurrences.append(
            Together(
                earlier=earlier,
                split=later,
                rows=len(same),
                fraction=fraction,
                first_us=first_us,
                last_us=last_us,
            )
        )
    return tuple(concurrences)


def past_cut(
    splits: Mapping[str, pl.DataFrame], horizon: str, cutoff_us: int | None
) -> tuple[PastCut, ...]:
    """Count the rows of each split but the last whose time plus horizon reaches the cutoff.

    cutoff_us: None: the first time of the row's entity in the last split or, if it has no rows
    there, of any entity. Raises `SettingsError` for a horizon that is not a duration, and for a
    single split.
    """
    reach = duration_us("label_horizon", horizon)
    *names, last = splits
    if not names:
        raise SettingsError(
            f"the dataset has one split, {last}, and no cutoff",
            setting="label_horizon",
            remedy="give a dataset with a test split",
        )
    tested = _read(splits[last])
    first_test = (
        tested.drop_nulls("entity").group_by("entity").agg(pl.col("begin").min().alias("own"))
    )
    any_first = pl.lit(tested["begin"].min(), pl.Int64)
    if cutoff_us is not None:
        cut = pl.lit(cutoff_us)
    else:
        cut = pl.col("own").fill_null(any_first)
    past = []
    for name in names:
        rows = _read(splits[name]).join(first_test, on="entity", how="left")
        count = rows.select((pl.col("end") + reach >= cut).sum()).item()
        past.append(PastCut(split=name, rows=count, fraction=count / max(1, len(splits[name]))))
    return tuple(past)


def _read(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows whose time could be read."""
    return rows.filter((pl.col("begin") != MISSING) & (pl.col("end") != MISSING))


def _of_others(spans: pl.DataFrame, column: str, *, descending: bool) -> pl.Expr:
    """Return the first time, or the last, of an entity other than the row's.

    spans: one row for each entity.
    """
    best = spans.sort(column, "entity", descending=descending).head(2)
    first, second = [*best[column].to_list(), None, None][:2]
    of_first = pl.col("entity") == pl.lit(best["entity"][0] if len(best) else None, pl.UInt64)
    return pl.when(of_first).then(pl.lit(second, pl.Int64)).otherwise(pl.lit(first, pl.Int64))
