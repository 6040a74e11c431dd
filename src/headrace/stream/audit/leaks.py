"""Find what the splits of a dataset share, and say what was tried: content, spellings of one
entity, values that entities share, labels that can be told, calendar time.

A split by time and entity says nothing about content: the same text can belong to two entities, on
both sides of the cutoff. `find_leaks` reads the splits and reports; it changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from headrace.arrays import distinct
from headrace.checks import check_integer
from headrace.dataset.contents import roles_of
from headrace.dataset.manifest import in_usual_order
from headrace.engine.local import default_workers
from headrace.errors import InputError, SettingsError, setting
from headrace.formats.column_paths import has_column, known_columns, leaves_of, with_paths
from headrace.formats.content import LINEAGE, NOTHING, content_columns
from headrace.near.stages import check_near
from headrace.stream.audit.chance import by_chance
from headrace.stream.audit.in_time import (
    LaterDates,
    PastCut,
    Period,
    Together,
    columns_of,
    concurrent,
    date_columns,
    dated,
    other_dates,
    past_cut,
    periods,
)
from headrace.stream.audit.names import (
    Link,
    NearIds,
    distinct_names,
    find_links,
    linking_columns,
    same_names,
)
from headrace.stream.audit.near import NearDuplicates, SplitBlocks, near_duplicates
from headrace.stream.audit.other_units import OtherUnits, columns_as_written, find_other_units
from headrace.stream.audit.overlap import (
    Benchmark,
    Overlap,
    find_benchmarks,
    find_overlaps,
    holds_texts,
    read_items,
    texts_of_blocks,
)
from headrace.stream.audit.telling import Telling, Tried, find_telling
from headrace.stream.audit.units import (
    Shared,
    Units,
    digest_units,
    first_rows,
    is_packed,
)
from headrace.stream.loader.dataset import Dataset


@dataclass(frozen=True, kw_only=True)
class LeakReport:
    """Result of `find_leaks`.

    unit: what is compared: "row", "sequence" or "entity". rows: units of each split. content: the
    compared columns. left_out: identifiers of rows, which are not. distinguishing: compared columns
    in which all rows looked at differ. constant: columns with one value in these rows. rounded:
    columns whose numbers are compared rounded too. numbers: all compared columns of numbers, dates
    and nested values, which are compared as written.
    other_units: rows of the first split in the last one with numbers in other units; None if none
    are found, see `OtherUnits`.
    blank: units of each split that are empty in the compared columns, and are not compared.
    repeated: units of each split whose content an earlier unit of the same split has.
    shared: for each pair of splits.
    same_entities: entities of each split that an earlier split has too.
    near_ids, spellings: names of one entity by a strict and by a looser rule; links: columns whose
    values two entities share. telling, tried: columns that predict the label, and how each was
    tried.
    overlaps: benchmark items found in rows, see `Overlap`. items: benchmark items searched for.
    short_items: those with fewer than five words, which are not.
    periods, concurrent: of splits whose rows have a time, see `Period` and `Together`.
    past_cut: of labels derived from times after their row, see `PastCut`. later_dates: other dates
    behind the cutoff in rows before it. late_values: other dates not before the time of their row.
    dates: columns of them.
    near: near duplicates, if requested.
    """

    unit: str
    rows: Mapping[str, int]
    content: tuple[str, ...]
    repeated: Mapping[str, int]
    shared: tuple[Shared, ...]
    left_out: tuple[str, ...] = ()
    distinguishing: tuple[str, ...] = ()
    constant: tuple[str, ...] = ()
    rounded: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    other_units: OtherUnits | None = None
    same_entities: Mapping[str, int] = field(default_factory=dict)
    near_ids: NearIds | None = None
    spellings: NearIds | None = None
    linking: tuple[str, ...] = ()
    links: tuple[Link, ...] = ()
    telling: tuple[Telling, ...] = ()
    tried: tuple[Tried, ...] = ()
    overlaps: tuple[Overlap, ...] = ()
    items: Mapping[str, int] = field(default_factory=dict)
    short_items: Mapping[str, int] = field(default_factory=dict)
    periods: tuple[Period, ...] = ()
    concurrent: tuple[Together, ...] = ()
    past_cut: tuple[PastCut, ...] = ()
    dates: tuple[str, ...] = ()
    later_dates: tuple[LaterDates, ...] = ()
    late_values: tuple[LaterDates, ...] = ()
    blank: Mapping[str, int] = field(default_factory=dict)
    near: NearDuplicates | None = None

    @property
    def units(self) -> str:
        """The plural of the unit."""
        return {"entity": "entities"}.get(self.unit, f"{self.unit}s")

    @property
    def worst(self) -> float:
        """The largest share of any leak, 0 to 1.

        Considers shares of a split that is in an earlier one, above what chance gives, or near it,
        whose entities have another name in an earlier one, or whose labels look past the cutoff,
        and the share of a benchmark that is in the data.
        """
        overlapping: dict[str, set[int]] = {source: set() for source in self.items}
        for overlap in self.overlaps:
            overlapping[overlap.source].add(overlap.item)
        of_items = [
            len(overlapping[source]) / max(1, count) for source, count in self.items.items()
        ]
        of_rows = [
            *(leak.excess for leak in self.shared),
            *(leak.fraction for leak in self.past_cut),
        ]
        if self.other_units is not None:
            of_rows.append(self.other_units.fraction)
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
    _check_arguments(dataset, ngram, near)
    content = tuple(dict.fromkeys(content))
    requested = {"entity": entity, "label": label, "time": time, "label_horizon": label_horizon}
    roles = _roles(dataset, content, requested)
    workers = workers or default_workers()
    splits = [SplitBlocks(dataset, name, workers) for name in in_usual_order(dataset.split_rows)]
    features = _features(dataset, roles)
    _refuse_what_finds_nothing(
        dataset, content or features, near=near is not None, against=bool(against)
    )
    benchmarks = {
        str(path): Benchmark.of(read_items(path), ngram) for path in find_benchmarks(against)
    }
    columns = list(dict.fromkeys(filter(None, [*content, *features, roles.get("entity")])))
    looked_at = first_rows(splits, columns)
    units = digest_units(dataset, splits, content, features, looked_at)
    report = _of_content(splits, units, roles, columns_as_written(looked_at, units))
    units = replace(units, digests={}, rounded={})  # up to 24 bytes a row that nothing reads again
    report = replace(report, **_of_time(splits, roles, features, looked_at))
    if roles.get("entity") is not None:
        linking = () if units.packed else units.distinguishing.without(features)
        report = replace(report, **_of_entities(splits, roles, linking, looked_at))
    if roles.get("label") is not None:
        report = replace(report, **_of_label(splits, roles, features))
    report = replace(report, **_of_benchmarks(splits, benchmarks))
    if near is not None:
        pairs = near_duplicates(splits, units.read, near, packed=units.packed)
        report = replace(report, near=pairs)
    return report


def _check_arguments(dataset: Dataset, ngram: int, near: float | None) -> None:
    check_integer("ngram", ngram, least=3)
    if near is not None:
        check_near(near)
    if dataset.manifest is not None and dataset.manifest.folds:
        raise SettingsError(
            "its splits are those of folds",
            path=dataset.root,
            remedy="choose a fold, with --fold 0 or .fold(0)",
        )


def _of_benchmarks(
    splits: Sequence[SplitBlocks], benchmarks: Mapping[str, Benchmark]
) -> dict[str, Any]:
    """Look for the items of benchmarks in all rows, if there are any."""
    if not benchmarks:
        return {}
    return {
        "overlaps": tuple(find_overlaps(benchmarks, texts_of_blocks(splits))),
        "items": {name: benchmark.count for name, benchmark in benchmarks.items()},
        "short_items": {name: benchmark.short for name, benchmark in benchmarks.items()},
    }


def _nulls(roles: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(roles.get("null_values", ()))


def _of_label(
    splits: Sequence[SplitBlocks], roles: Mapping[str, Any], features: Sequence[str]
) -> dict[str, Any]:
    """Try each column as one that gives the label away; also those that say which file, and which
    row of it, a row came from.
    """
    lineage = known_columns(splits[0].index.schema, LINEAGE)
    telling, tried = find_telling(splits, roles["label"], [*features, *lineage], _nulls(roles))
    return {"telling": telling, "tried": tried}


def _of_content(
    splits: Sequence[SplitBlocks],
    units: Units,
    roles: Mapping[str, Any],
    numbers: tuple[str, ...],
) -> LeakReport:
    """Compare the contents of all splits."""
    contents = {name: values[values != NOTHING] for name, values in units.digests.items()}
    chance = by_chance(units, splits, roles.get("entity"), _nulls(roles))
    shared = []
    for first, other in combinations(splits, 2):
        shared.append(units.shared(first, other, chance.get((first.name, other.name))))
    return LeakReport(
        unit=units.unit,
        rows={name: len(values) for name, values in units.digests.items()},
        content=tuple(units.compared),
        left_out=units.distinguishing.left_out,
        distinguishing=units.distinguishing.compared,
        constant=units.constant,
        rounded=tuple(grid.column for grid in units.grids),
        numbers=numbers,
        other_units=find_other_units(splits, units, numbers),
        blank={name: len(units.digests[name]) - len(values) for name, values in contents.items()},
        repeated={name: len(values) - len(distinct(values)) for name, values in contents.items()},
        shared=tuple(shared),
    )


def _of_time(
    splits: Sequence[SplitBlocks],
    roles: Mapping[str, Any],
    features: Sequence[str],
    looked_at: pa.Table,
) -> dict[str, Any]:
    """Compare the times of rows, their labels and other dates with the cutoff."""
    if roles.get("time") is None:
        return {}
    dates = dated(splits, roles)
    fields: dict[str, Any] = {"periods": periods(dates), "concurrent": concurrent(dates)}
    if roles.get("label_horizon") is not None:
        fields["past_cut"] = past_cut(dates, roles["label_horizon"], roles.get("cutoff_us"))
    columns = date_columns(looked_at, features, _span(fields["periods"]))
    fields["dates"] = tuple(columns)
    fields["later_dates"], fields["late_values"] = other_dates(splits, columns, roles)
    return fields


def _span(spans: Sequence[Period]) -> tuple[int, int] | None:
    """Return the first and last time of all splits; None if there is none."""
    firsts = [span.first_us for span in spans if span.first_us is not None]
    lasts = [span.last_us for span in spans if span.last_us is not None]
    if not firsts:
        return None
    return min(firsts), max(lasts)


def _of_entities(
    splits: Sequence[SplitBlocks],
    roles: Mapping[str, Any],
    columns: Sequence[str],
    looked_at: pa.Table,
) -> dict[str, Any]:
    """Compare the names of entities, and the values that they share."""
    entity = roles["entity"]
    parts = distinct_names(splits, entity, _nulls(roles))
    linking = linking_columns(looked_at, entity, columns, _nulls(roles))
    near_ids, spellings = same_names(parts)
    same = {}
    for number, split in enumerate(splits[1:], start=1):
        earlier = pl.concat(parts[:number])["raw"].unique()
        same[split.name] = len(parts[number].filter(pl.col("raw").is_in(earlier.implode())))
    return {
        "same_entities": same,
        "near_ids": near_ids,
        "spellings": spellings,
        "linking": tuple(linking),
        "links": find_links(splits, entity, linking, _nulls(roles), [len(part) for part in parts]),
    }


def _features(dataset: Dataset, roles: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the columns that are no time, entity, label or target; of structs their fields."""
    others = {roles.get(role) for role in ("entity", "label")}
    times = columns_of(roles.get("time"))
    names = content_columns(dataset.schema, {*others, *times, *roles.get("targets", ())})
    return leaves_of(dataset.schema, names)


def _roles(
    dataset: Dataset, content: Sequence[str], requested: Mapping[str, str | None]
) -> dict[str, Any]:
    """Return the roles of columns: the given ones over those of the run.

    Raises `SettingsError` for unknown columns.
    """
    names = dataset.schema.names
    roles = roles_of(dataset) | {role: name for role, name in requested.items() if name}
    columns = [
        (role, name) for role in ("entity", "label", "time") for name in columns_of(roles.get(role))
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
    dataset: Dataset, compared: Sequence[str], *, near: bool, against: bool
) -> None:
    """Raise `SettingsError` or `InputError` if no column is compared, or none can hold the texts to
    search for.
    """
    schema = dataset.schema
    names = schema.names
    if not compared and not is_packed(dataset):
        raise SettingsError(
            "all columns are time, entity or label",
            setting="content",
            remedy=f"name what to compare, of {names}",
        )
    packed = is_packed(dataset)
    if against and packed:
        raise InputError(
            "packed rows hold tokens, not texts",
            setting="against",
            remedy=f"compare the chats that they were packed from with {setting('against')}",
        )
    if near and not packed and not holds_texts(with_paths(schema, compared)):
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
