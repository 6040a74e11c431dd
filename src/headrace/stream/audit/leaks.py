"""Find what the splits of a dataset share: content, spellings of one entity, labels that can be told, calendar time.

A split by time and entity says nothing about content: the same text can belong to two entities, on both sides of the
cutoff. `find_leaks` reads the splits and reports; it changes nothing. Contents are compared by 64-bit hashes of all
values of a row, which collide for one in 10^19 pairs of different rows. In packed rows each sequence is compared
separately; in histories, everything that an entity has.

Rows of different entities at one time share what happened then: weather, a holiday, a market. A label that is derived
from the days after its row contains information of the test period if the row is close to the cutoff.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from headrace.arrays import I64, U64
from headrace.checks import check_integer, duration_us
from headrace.dataset.contents import roles_of, split_digests
from headrace.dataset.manifest import in_usual_order
from headrace.engine.local import default_workers
from headrace.errors import InputError, SettingsError
from headrace.formats.content import NOTHING, content_columns, row_digests
from headrace.formats.dates import MISSING, parse_dates
from headrace.formats.text_columns import as_text, nulled
from headrace.near.stages import check_near
from headrace.recipe import recipe_of_run
from headrace.stream.audit.near import STARTS, TOKEN_IDS, NearDuplicates, SplitBlocks, near_duplicates, sequence_digests
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
_TELLING = 0.1  # share of the most frequent class's errors; a column with fewer gives the label away


@dataclass(frozen=True, kw_only=True)
class Shared:
    """Rows of `split` whose content is also in an earlier split. share: of the rows of `split`, 0 to 1.

    examples: up to five pairs of rows, SHARD:ROW in the earlier split and in this one; rows count from 0.
    """

    earlier: str
    split: str
    rows: int
    share: float
    examples: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class NearIds:
    """Entities with several names that differ only in case, blanks or Unicode form.

    apart: the number of them with names in different splits.
    share: of a split's entities, those that have another name in an earlier split; the largest over all splits, 0 to 1.
    """

    entities: int
    apart: int
    share: float
    examples: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Telling:
    """A column that alone predicts the label.

    accuracy: the share of rows that it predicts correctly. most_frequent: the share of the most frequent class. Learned
    on one split and tested on another. It may be a legitimate feature, so it is only reported.
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
    """Rows of `split` at times between the first and last row of other entities in an earlier split.

    share: of the rows of `split`, 0 to 1. first_us, last_us: the first and last time of these rows; None if there are
    none.
    """

    earlier: str
    split: str
    rows: int
    share: float
    first_us: int | None
    last_us: int | None


@dataclass(frozen=True, kw_only=True)
class PastCut:
    """Rows of `split` whose time plus horizon reaches the cutoff. share: of the rows of `split`, 0 to 1."""

    split: str
    rows: int
    share: float


@dataclass(frozen=True, kw_only=True)
class LeakReport:
    """Result of `find_leaks`.

    unit: what is compared: "row", "sequence" or "entity". rows: units of each split. content: the compared columns.
    blank: units of each split that are empty in these columns, and are not compared.
    repeated: units of each split whose content an earlier unit of the same split has.
    shared: for each pair of splits.
    overlaps: benchmark items found in rows, see `Overlap`. items: benchmark items searched for.
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

        Considers shares of a split that is in an earlier one or near it, whose entities have another name in an earlier
        one, or whose labels look past the cutoff, and the share of a benchmark that is in the data.
        """
        of_items = [
            len({overlap.item for overlap in self.overlaps if overlap.source == source}) / max(1, count)
            for source, count in self.items.items()
        ]
        of_rows = [*(each.share for each in self.shared), *(each.share for each in self.past_cut)]
        near = [] if self.near is None else [each.share for each in self.near.shared]
        names = [] if self.near_ids is None else [self.near_ids.share]
        return max([0.0, *of_rows, *near, *names, *of_items])

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {**asdict(self), "worst": self.worst}


def find_leaks(
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
    """Compare the splits of a dataset with each other, and with benchmarks that should not be in it.

    content: columns to compare; none: all but time, entity, label and lineage.
    entity, label, time: columns; None: those of the run's own settings, if it has any.
    label_horizon: how far past the time of a row its label looks, such as 30d; None: as in the run's own settings.
    against: files of benchmark items, or directories of them: JSON lines, CSV, Parquet, or text with one item per line.
    ngram: consecutive words that an item and a row must share; items with fewer words must match whole.
    near: a Jaccard index of shingles, 0.5 to 1; rows that reach it are near duplicates.
    Raises `SettingsError` for columns that do not exist, and what reading raises.

    Memory: 8 bytes per row, 24 more if rows have a time, the distinct entities, the benchmarks, and with a label about
    524,288 rows of two splits. Near duplicates take up to 190 bytes per row more, in memory and in temporary files.
    """
    check_integer("ngram", ngram, least=3)
    if near is not None:
        check_near(near)
    if dataset.manifest is not None and dataset.manifest.folds:
        raise SettingsError(f"{dataset.root}: its splits are those of folds; choose a fold, with --fold 0 or .fold(0)")
    content = tuple(dict.fromkeys(content))
    roles = _roles(dataset, content, {"entity": entity, "label": label, "time": time, "label_horizon": label_horizon})
    entity, label, time, label_horizon = (roles.get(each) for each in ("entity", "label", "time", "label_horizon"))
    names = dataset.schema.names
    features = content_columns(names, {time, entity, label, *roles.get("targets", ())})
    packed = set(_PACKED) <= set(names) and not content
    recipe = None
    if not content and dataset.manifest is not None:
        recipe = recipe_of_run(dataset.manifest.recipe)
    unit = None if recipe is None else recipe.content_unit
    compared = content or ((TOKEN_IDS,) if packed else features)
    _refuse_what_finds_nothing(dataset.schema, compared, near=near is not None and not packed, against=bool(against))
    workers = workers or default_workers()
    splits = [SplitBlocks(dataset, name, workers) for name in in_usual_order(dataset.split_rows)]
    read = (TOKEN_IDS, STARTS) if packed else compared
    first: dict[str, I64] = {}  # first row of each unit, if units are several rows
    if recipe is None or unit is None:
        digest = sequence_digests if packed else row_digests
        digests = {each.name: split_digests(dataset, each.name, workers, read, digest) for each in splits}
    else:
        digests = {}
        for each in splits:
            compared, first[each.name], digests[each.name] = recipe.contents(dataset, each.name, workers)
    contents = {name: found[found != NOTHING] for name, found in digests.items()}
    dated = {} if time is None else _dated(splits, roles)
    benchmarks = {str(path): Benchmark.of(read_items(path), ngram) for path in find_benchmarks(against)}
    return LeakReport(
        unit="sequence" if packed else unit or "row",
        rows={name: len(found) for name, found in digests.items()},
        content=compared,
        blank={name: len(found) - len(contents[name]) for name, found in digests.items()},
        repeated={name: len(held) - len(np.unique(held)) for name, held in contents.items()},
        shared=tuple(_shared(one, other, digests, first, packed=packed) for one, other in combinations(splits, 2)),
        near_ids=None if entity is None else _near_ids(splits, entity, roles.get("null_values", ())),
        telling=() if label is None else _telling(splits, label, features, roles.get("null_values", ())),
        overlaps=tuple(find_overlaps(benchmarks, texts_of_blocks(splits))) if benchmarks else (),
        items={name: each.count for name, each in benchmarks.items()},
        periods=periods(dated),
        concurrent=concurrent(dated),
        past_cut=() if label_horizon is None else past_cut(dated, label_horizon, roles.get("cutoff_us")),
        near=None if near is None else near_duplicates(splits, read, near, packed=packed),
    )


def _roles(dataset: Dataset, content: Sequence[str], given: Mapping[str, str | None]) -> dict[str, Any]:
    """Return the roles of columns: the given ones over those of the run. Raises `SettingsError` for unknown columns."""
    names = dataset.schema.names
    roles = roles_of(dataset) | {role: name for role, name in given.items() if name}
    columns = [(role, roles.get(role)) for role in ("entity", "label", "time")]
    for role, name in (*columns, *(("content", each) for each in content)):
        if name is not None and name not in names:
            raise SettingsError(f"{role}: the dataset has no column {name!r}; it has {names}")
    if roles.get("label_horizon") is not None and roles.get("time") is None:
        raise SettingsError(
            f"label_horizon: nothing says which column is the time of a row; name it with time=, of {names}"
        )
    return roles


def _refuse_what_finds_nothing(schema: pa.Schema, compared: Sequence[str], *, near: bool, against: bool) -> None:
    """Raise `SettingsError` or `InputError` if no column is compared, or none can hold the texts to search for."""
    names = schema.names
    if not compared:
        raise SettingsError(f"content: all columns are time, entity or label; name what to compare, of {names}")
    if against and set(_PACKED) <= set(names):
        raise InputError(
            "against: packed rows hold tokens, not texts; compare the chats that they were packed from:"
            " headrace leaks CHATS --against FILE"
        )
    if near and not holds_texts(pa.schema([schema.field(name) for name in compared])):
        raise SettingsError(f"near: none of the compared columns holds texts: {', '.join(compared)}; leave near out")
    if against and not holds_texts(schema):
        raise SettingsError(f"against: no column holds texts, so no item can be found: {', '.join(names)}")


def _shared(
    earlier: SplitBlocks, later: SplitBlocks, digests: Mapping[str, U64], first_row: Mapping[str, I64], *, packed: bool
) -> Shared:
    """Compare two splits. first_row: the first row of each unit, if a unit is several rows."""
    known, found = digests[earlier.name], digests[later.name]

    def place(split: SplitBlocks, unit: int) -> str:
        return split.place(int(first_row[split.name][unit]) if first_row else unit)

    hit = np.flatnonzero(np.isin(found, known) & (found != NOTHING))
    examples = []
    if not packed:
        order = np.argsort(known, kind="stable")
        first = order[np.searchsorted(known[order], found[hit[:_EXAMPLES]])]
        pairs = zip(first.tolist(), hit[:_EXAMPLES].tolist(), strict=True)
        examples = [(place(earlier, a), place(later, b)) for a, b in pairs]
    return Shared(
        earlier=earlier.name,
        split=later.name,
        rows=len(hit),
        share=len(hit) / max(1, len(found)),
        examples=tuple(examples),
    )


def _near_ids(splits: Sequence[SplitBlocks], entity: str, null_values: Sequence[str]) -> NearIds:
    """Group entities by their names without case, blanks around and between words, and Unicode forms."""

    def distinct(table: pa.Table) -> pl.DataFrame:
        texts = pl.Series("raw", pl.from_arrow(as_text(table[entity], null_values, f"entity {entity!r}")))
        return texts.drop_nulls().unique().to_frame()

    parts = [
        pl.concat([pl.DataFrame(schema={"raw": pl.String}), *each.map([entity], distinct)])
        .unique()
        .with_columns(pl.lit(place).alias("split"))
        for place, each in enumerate(splits)
    ]
    plain = pl.col("raw").str.normalize("NFKC").str.to_lowercase().str.strip_chars().str.replace_all(r"\s+", " ")
    found = pl.concat(parts).with_columns(plain.alias("plain"))
    names = found.group_by("plain", "raw").agg(pl.col("split").min().alias("first"))
    groups = (
        found.group_by("plain")
        .agg(pl.col("raw").unique().sort(), (pl.col("split").n_unique() > 1).alias("apart"))
        .filter(pl.col("raw").list.len() > 1)
        .sort("plain")
    )
    # The first split of an entity's other names: the smallest, or the second smallest if that is this name's own.
    firsts = names.group_by("plain").agg(pl.col("first").sort().alias("firsts")).filter(pl.col("firsts").list.len() > 1)
    other = pl.col("firsts").list.get((pl.col("first") == pl.col("firsts").list.first()).cast(pl.Int8))
    again = found.join(firsts, on="plain").join(names, on=["plain", "raw"]).filter(other < pl.col("split"))["split"]
    examples = groups.sort("apart", descending=True, maintain_order=True)["raw"].head(_EXAMPLES).to_list()
    return NearIds(
        entities=len(groups),
        apart=int(groups["apart"].sum()),
        share=max(int((again == place).sum()) / max(1, len(own)) for place, own in enumerate(parts)),
        examples=tuple(tuple(each) for each in examples),
    )


def _telling(
    splits: Sequence[SplitBlocks], label: str, columns: Sequence[str], null_values: Sequence[str]
) -> tuple[Telling, ...]:
    """Predict the label from each column alone, by the most frequent class of its value.

    A number with many values is first binned into 256 quantiles.
    """
    if len(splits) < 2 or not (splits[0].index.total_rows and splits[-1].index.total_rows):
        return ()
    flat = [name for name in columns if not pa.types.is_nested(splits[0].index.schema.field(name).type)]

    def read(table: pa.Table) -> pa.Table:
        """Write the label as text, as any value may be a class, and decimals, which polars may lack, as floats."""
        for place, (name, kind) in enumerate(zip(table.schema.names, table.schema.types, strict=True)):
            if name == label:
                table = table.set_column(place, name, as_text(table[place], null_values, f"label {label!r}"))
            elif pa.types.is_decimal(kind):
                table = table.set_column(place, name, table[place].cast(pa.float64()))
        return table

    trained, tried = (  # all columns at once, because text files are parsed again in every read
        pl.DataFrame(pl.from_arrow(pa.concat_tables(each.map([*flat, label], read, each.spread(_LOOKED_AT)))))
        for each in (splits[0], splits[-1])
    )
    if trained[label].n_unique() > _CLASSES:
        return ()
    trained, tried = trained.drop_nulls(label), tried.drop_nulls(label)
    if not len(trained) or not len(tried):
        return ()
    usual = trained[label].mode().sort()[0]
    base = _share(tried[label] == usual)
    if base == 1:
        return ()
    found = []
    for column in flat:
        known, asked = trained.select(column, label), tried.select(column, label)
        values = known[column]
        if values.dtype.is_numeric() and values.n_unique() > _BINS:
            numbers = [each[column].cast(pl.Float64).fill_null(np.nan).to_numpy() for each in (known, asked)]
            edges = np.unique(np.nanquantile(numbers[0], np.linspace(0, 1, _BINS)))
            known, asked = (
                each.with_columns(pl.Series(column, np.searchsorted(edges, own)))
                for each, own in zip((known, asked), numbers, strict=True)
            )
        best = known.group_by(column).agg(pl.col(label).mode().sort().first().alias("guess"))
        guessed = asked.join(best, on=column, how="left", nulls_equal=True, maintain_order="left")["guess"]
        accuracy = _share(guessed.fill_null(usual) == asked[label])
        if 1 - accuracy <= _TELLING * (1 - base):
            found.append(Telling(column=column, accuracy=accuracy, most_frequent=base))
    return tuple(found)


def _share(right: pl.Series) -> float:
    return int(right.sum()) / max(1, len(right))


# --- in calendar time


def _dated(splits: Sequence[SplitBlocks], roles: Mapping[str, Any]) -> dict[str, pl.DataFrame]:
    """Read when the rows of each split begin and end, and a hash of their entities, which is null without a column."""
    columns = {role: roles[role] for role in ("time", "until", "entity") if roles.get(role)}
    null_values = roles.get("null_values", ())

    def read(table: pa.Table) -> pl.DataFrame:
        def micros(role: str) -> I64:
            values = nulled(table[columns[role]], ("", *null_values))
            return parse_dates(values, roles.get("time_format", "auto")).micros

        begin = micros("time")
        end = micros("until") if "until" in columns else begin
        entity = pl.Series([None] * len(begin), dtype=pl.UInt64)  # null: equal to no entity
        if "entity" in columns:
            texts = as_text(table[columns["entity"]], null_values, f"entity {columns['entity']!r}")
            entity = pl.Series(pl.from_arrow(texts)).hash(seed=0)
        return pl.DataFrame({"entity": entity, "begin": begin, "end": end})

    empty = pl.DataFrame(schema={"entity": pl.UInt64, "begin": pl.Int64, "end": pl.Int64})
    return {each.name: pl.concat([empty, *each.map(list(columns.values()), read)]) for each in splits}


def periods(splits: Mapping[str, pl.DataFrame]) -> tuple[Period, ...]:
    """Return the first and last time of each split."""
    found = []
    for name, rows in splits.items():
        read = _read(rows)
        first, last = read.select(pl.col("begin").min(), pl.col("end").max()).row(0)
        found.append(Period(split=name, first_us=first, last_us=last, unread=len(rows) - len(read)))
    return tuple(found)


def concurrent(splits: Mapping[str, pl.DataFrame]) -> tuple[Together, ...]:
    """Count, for each pair of splits, the rows that share calendar time with other entities of the earlier one."""
    found = []
    for earlier, later in combinations(splits, 2):
        spans = _read(splits[earlier]).group_by("entity").agg(pl.col("begin").min(), pl.col("end").max())
        first, last = _of_others(spans, "begin", descending=False), _of_others(spans, "end", descending=True)
        same = _read(splits[later]).filter((pl.col("end") >= first) & (pl.col("begin") <= last))
        first_us, last_us = same.select(pl.col("begin").min(), pl.col("end").max()).row(0)
        share = len(same) / max(1, len(splits[later]))
        found.append(
            Together(earlier=earlier, split=later, rows=len(same), share=share, first_us=first_us, last_us=last_us)
        )
    return tuple(found)


def past_cut(splits: Mapping[str, pl.DataFrame], horizon: str, cutoff_us: int | None) -> tuple[PastCut, ...]:
    """Count the rows of each split but the last whose time plus horizon reaches the cutoff.

    cutoff_us: None: the first time of the row's entity in the last split or, if it has no rows there, of any entity.
    Raises `SettingsError` for a horizon that is not a duration, and for a single split.
    """
    reach = duration_us("label_horizon", horizon)
    *names, last = splits
    if not names:
        raise SettingsError(
            f"label_horizon: the dataset has one split, {last}, and no cutoff; give one with a test split"
        )
    tested = _read(splits[last])
    own = tested.drop_nulls("entity").group_by("entity").agg(pl.col("begin").min().alias("own"))
    any_first = pl.lit(tested["begin"].min(), pl.Int64)
    cut = pl.lit(cutoff_us) if cutoff_us is not None else pl.col("own").fill_null(any_first)
    found = []
    for name in names:
        rows = _read(splits[name]).join(own, on="entity", how="left")
        count = rows.select((pl.col("end") + reach >= cut).sum()).item()
        found.append(PastCut(split=name, rows=count, share=count / max(1, len(splits[name]))))
    return tuple(found)


def _read(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows whose time could be read."""
    return rows.filter((pl.col("begin") != MISSING) & (pl.col("end") != MISSING))


def _of_others(spans: pl.DataFrame, column: str, *, descending: bool) -> pl.Expr:
    """Return the first time, or the last, of an entity other than the row's. spans: one row for each entity."""
    best = spans.sort(column, "entity", descending=descending).head(2)
    first, second = [*best[column].to_list(), None, None][:2]
    of_first = pl.col("entity") == pl.lit(best["entity"][0] if len(best) else None, pl.UInt64)
    return pl.when(of_first).then(pl.lit(second, pl.Int64)).otherwise(pl.lit(first, pl.Int64))
