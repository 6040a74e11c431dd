"""Write a first configuration of series, from the names, types and first rows of some files.

It computes nothing that the run computes. Comments mention what the first rows cannot show.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import F64, I64
from headrace.cli.init.commented import Aside, Section, proposed_settings
from headrace.cli.init.look import (
    FILES,
    ROWS,
    Data,
    Look,
    Unsure,
    evenly,
    known,
    look_of,
    nameless,
    numeric_column,
)
from headrace.cli.init.numbers import number_marks
from headrace.cli.init.options import InitSeriesOptions
from headrace.cli.init.roles import (
    best_time,
    entities,
    is_panel,
    refuse_short_years,
    series_owners,
    time_columns,
)
from headrace.cli.init.times import number_time_format, time_format
from headrace.cli.settings_flags import describe
from headrace.errors import InputError, SettingsError, setting, setting_name
from headrace.formats import grids
from headrace.formats.dates import MISSING
from headrace.formats.registry import stem_of_name
from headrace.formats.text_columns import as_text
from headrace.formats.types import is_text
from headrace.formats.zones import wall_to_utc
from headrace.report.words import many_entities, pluralise
from headrace.series.arrays.axis import DAY_US, Frequency, agreed, infer, place_rows
from headrace.series.settings import FILE_NAME, Series
from headrace.series.sources import STATIC, entity_of, files_of, parse, shards_of
from headrace.series.statics import static_table
from headrace.series.times import Observed
from headrace.series.usable import count_usable
from headrace.storage.places import expanded

_TIME_NAMES = ("date", "time", "datetime", "timestamp", "valid_time", "ds", "day")
_STEP_NAMES = (
    "step",
    "time_step",
    "timestep",
    "time_idx",
    "time_index",
    "t",
    "tick",
    "index",
    "idx",
)
# of times that may be whole numbers
_NUMBER_NAMES = (*_TIME_NAMES, "year", "ts", "epoch", *_STEP_NAMES)
_YEARS = ("%Y%m", "%Y")
_ENTITY_NAMES = (
    *(
        "entity",
        "entity_id",
        "unique_id",
        "gauge_id",
        "gauge",
        "basin",
        "basin_id",
        "station",
        "station_id",
    ),
    *(
        "site",
        "site_id",
        "region",
        "store",
        "store_id",
        "meter",
        "meter_id",
        "country",
        "series_id",
        "item",
        "item_id",
        "sku",
        "shop",
        "sensor",
        "sensor_id",
        "id",
    ),
)
# A pandas index written as a column, or an id such as CustomerID or user_id.
_ROW_NUMBERS = re.compile(r"|Unnamed: \d+|__index_level_\d+__|(.*[a-z])?(ID|Id)|(.*_)?id")
_SENTINELS = (-999.0, -9999.0, -99999.0, -999.99, -9999.9, -99.99, -99.9, -1e20, -1e34)
_DAYS_A_YEAR = 366
_WEEK = 7
_COUNTS = re.compile(
    "count|births|deaths|sales|sold|qty|quantity|units|trips|passengers|cases|orders|visits|clicks"
    "|rides|calls|events|volume|revenue|turnover"
)  # in names of what a day has the sum of
_SHARED = 0.05  # share of rows of val on dates of train, above which cuts are dates
_REACH = 0.95  # share of rows of entities that have some in train and test
_JITTER = 0.25  # share of a step
_REGULAR = 0.8  # share of distances that are about a step
_FEW = 0.05  # share of rows whose time may repeat by mistake
_ABSENT = 0.05  # share of steps without a row above which it is asked what they mean
_PRESENT = 0.1  # least share of steps with a row
_COUNTED = 1_000  # entities whose windows are counted
_ROW_KEYS = ["entity", "time", "occurrence"]
_MANY = 10_000  # files per split; with more entities they are packed
_LEAST_WIDE = 3  # columns, each an entity
_LEAST_ENTITIES = 4  # that show whether an attribute is of the target
_SAME_FACTOR = 0.1  # spread of the logarithm of its factor
_DIFFER = 0.3  # spread of the logarithm of the target among entities
_LEAST_TARGETS = 20  # that show whether a target drifts
_DRIFTS = 0.5
_OF_TARGET = "computed of the target on all dates, which tells of val and test"


@dataclass
class _SeriesDraft:
    """The settings found so far, in file order, and observations to print beside their
    descriptions.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    seen: dict[str, str] = field(default_factory=dict)
    doubts: dict[str, str] = field(default_factory=dict)  # printed as warnings too
    entities: list[str] = field(default_factory=list)
    summaries: pl.DataFrame = field(default_factory=pl.DataFrame)  # of the target, by entity
    counted: bool = False  # the time counts steps
    about: str = ""  # one line for the terminal
    proposed: dict[str, Any] = field(default_factory=dict)  # settings that are written as comments


def series_sections(options: InitSeriesOptions, data: Data) -> tuple[list[Section], str]:
    """Make the sections of the configuration, and a line about the data.

    Raises `SettingsError`, `InputError`.
    """
    draft = _tables(options, data)
    encoded = []
    if options.static:
        encoded = _static(draft, options)
    pipelines: dict[str, Any] = {}
    for role in ("target", "features"):
        pipelines[role] = {"strategy": "per_group", "pipeline": [{"step": "StandardScaler"}]}
    numbers = [name for name in draft.settings.get("static_features", ()) if name not in encoded]
    static = []
    for names, step in ((numbers, "StandardScaler"), (encoded, "OneHotEncoder")):
        if names:
            static.append({"strategy": "unified", "columns": names, "pipeline": [{"step": step}]})
    if static:
        pipelines["static_features"] = static
    fields = Series.model_fields
    _set_defaults(draft)
    for name, value in draft.proposed.items():
        draft.settings.setdefault(name, value if isinstance(value, Aside) else Aside(value))
    draft.settings |= {
        "preprocessing_configs": pipelines,
        "batch_size": fields["batch_size"].default,
        "seed": fields["seed"].default,
        "layout": "packed" if len(draft.entities) > _MANY else "files",
    }
    draft.seen["preprocessing_configs"] = (
        "Fitted on train rows only; per_group: one fit per entity; unified: one fit for all, on"
        " fit_on_n_entities of them. Steps and their parameters are in docs/series_pipelines.md."
    )
    head = f"Written by `headrace init series` after a look at the data: {draft.about}."
    sections = [
        Section(
            f"{head}\nPaths are relative to where the command is run.",
            {"recipe": "series", "out": options.out},
        )
    ]
    for name, value in draft.settings.items():
        words = f"{describe(fields[name])} {draft.seen.get(name, '')} {draft.doubts.get(name, '')}"
        sections.append(Section(words.strip(), {name: value}, draft.doubts.get(name, "")))
    Series(**proposed_settings(sections))  # raises what the run would raise
    return sections, draft.about


def _set_defaults(draft: _SeriesDraft) -> None:
    """Write the defaults of the settings that most users change."""
    names = ["train_ratio", "val_ratio", "max_imputation_gap_size"]
    if "train_end" in draft.settings:
        names = names[-1:]
    for name in names:
        draft.settings.setdefault(name, Series.model_fields[name].default)


def _tables(options: InitSeriesOptions, source: Data) -> _SeriesDraft:  # noqa: PLR0914 - each guess needs earlier ones
    data = _look(options, source)
    time = _choose_time(options, data)
    marks, marked = number_marks(data, options.decimal, (time,))
    are_numbers = {*data.everywhere("number"), *marked} - {time}
    numbers = [name for name in data.columns if name in are_numbers]
    if options.target is None:
        likely = [name for name in numbers if not nameless(name)]
        raise Unsure.of("the column to be predicted is not given", "target", likely)
    _refuse_wide(options, data, time, numbers)
    target = known(options.target, data.columns, "target")
    entity = _choose_entity(options, data, time)
    draft = _SeriesDraft({"source": options.source})
    draft.settings |= {"entity": entity, "time": time}
    dialect = _dialect(data, _time_form(draft, data, time), marks)
    if dialect:
        draft.settings["dialect"] = dialect
    if options.time_zone is not None:
        draft.settings["time_zone"] = options.time_zone
    features = [known(name, data.columns, "features") for name in options.feature_names]
    ahead = [known(name, data.columns, "future_features") for name in options.future_names]
    notes = ["Known only up to the last input; name what is known ahead in future_features."]
    if not features:
        notes.append("All numeric columns.")
        left = [
            name
            for name in numbers
            if _ROW_NUMBERS.fullmatch(name) or data.columns[name].missing == 1
        ]
        features = [name for name in numbers if name not in (entity, target, *left)]
        if left:
            words = ", ".join(map(repr, left))
            notes.append(f"Left out, because they number things or hold no value: {words}.")
    absent = [name for name in features if data.columns[name].in_files < len(data.tables)]
    if absent:
        words = ", ".join(absent)
        notes.append(f"Not every file has {words}: entities without a feature fail.")
    draft.seen["past_features"] = " ".join(notes)
    past = [name for name in features if name not in ahead]
    draft.settings |= {"frequency": "infer", "target": target, **_roles(past, ahead)}
    _look_at_rows(draft, data)
    return draft


def _refuse_wide(options: InitSeriesOptions, data: Look, time: str, numbers: Sequence[str]) -> None:
    """Raise `SettingsError` if the target is no column, and each column may be an entity."""
    others = set(data.columns) - {time}
    if options.target in data.columns or others != set(numbers) or len(others) < _LEAST_WIDE:
        return
    if options.target and get_close_matches(options.target, others, n=1):  # a mistyped name
        return
    raise SettingsError(
        "the source has no such column",
        setting="target",
        value=options.target,
        remedy=(
            f"use one of {', '.join(numbers[:20])}; or, if each column is an entity, write a long"
            f" table in Polars: `table.unpivot(index={time!r}, variable_name='entity',"
            f" value_name={options.target!r}).write_parquet('long.parquet')`"
        ),
    )


def _dialect(data: Look, form: str | None, marks: Mapping[str, str]) -> dict[str, Any]:
    """Return the parts of the dialect that these tables need.

    form: of the time. marks: of numbers.
    """
    dialect = data.dialect.stored()
    dialect |= marks
    if form not in (None, "iso"):
        dialect["time_format"] = form
    absent = data.null_values(())
    if absent:
        dialect["null_values"] = absent
    return dialect


def _time_form(draft: _SeriesDraft, data: Look, time: str) -> str | None:
    """Return the format of the time column; mark the draft if it counts steps."""
    form = data.columns[time].time_format
    if data.columns[time].content == "number":
        years = () if time.lower() in _STEP_NAMES else _YEARS
        form = number_time_format(_parts(data, time), years)
        draft.counted = form is None
        form = form or "epoch_s"
    return form or time_format(_parts(data, time))


def _choose_time(options: InitSeriesOptions, data: Look) -> str:
    """Return the time column, which all files have. Raises `SettingsError`."""
    name_of_time = _find_time(options, data) if options.time is None else options.time
    time = known(name_of_time, data.columns, "time")
    for name, table in data.tables:
        if time not in table.column_names:
            raise SettingsError(
                "the file does not have the time of other files",
                path=name,
                column=time,
                remedy=(
                    "give the files of the series alone, and files of static attributes with"
                    f" {setting('static')}"
                ),
            )
    return time


def _choose_entity(options: InitSeriesOptions, data: Look, time: str) -> str:
    """Return the entity column, or `FILE_NAME`. Raises `SettingsError`."""
    entity = options.entity
    if entity is None:
        lower = {name.lower(): name for name in data.columns}
        repeated = max(
            1 - len(table[time].unique()) / max(1, len(table)) for _, table in data.tables
        )
        named = [lower[name] for name in _ENTITY_NAMES if name in lower and lower[name] != time]
        if repeated >= _FEW and not named:
            form = replace(data.columns[time], time_format=_form_of(data, time))
            for matches in entities(data, form):
                if is_panel(data, form, matches.name):
                    named.append(matches.name)
            named += series_owners(data, form)
        if repeated >= _FEW and not named:
            others = [name for name in data.columns if name not in (time, options.target)]
            raise Unsure.of(
                "times repeat, and no column is named like an entity",
                "entity",
                [*others, FILE_NAME],
                path=data.names[0],
                column=time,
                remedy=(
                    f"give {setting('entity')}: a column, or {FILE_NAME} if a file is one entity"
                ),
            )
        if repeated < _FEW:
            entity = FILE_NAME
        else:
            entity = named[0]
    return known(entity, (*data.columns, FILE_NAME), "entity")


def _form_of(data: Look, time: str) -> str | None:
    """Return the format of a column of times, None if its type is one."""
    column = data.columns[time]
    if column.content == "number":
        return number_time_format(_parts(data, time), _YEARS)
    return column.time_format or time_format(_parts(data, time))


def _find_time(options: InitSeriesOptions, data: Look) -> str:
    """Choose the time column: times by name, any times, or whole numbers by name.

    Raises `SettingsError`.
    """

    matches = time_columns(data)
    if matches:
        return best_time(data, matches).name
    in_some = [column.name for column in data.columns.values() if column.content == "time"]
    if in_some:
        return in_some[0]  # the caller says which file lacks it
    lower = {name.lower(): name for name in data.columns}
    used = {options.target, options.entity, *options.feature_names}
    numbers = [name for name in data.everywhere("number") if name not in used]
    likely = [lower[name] for name in _NUMBER_NAMES if lower.get(name) in numbers]
    if options.entity:
        owners = [options.entity]
    else:
        owners = [lower[name] for name in _ENTITY_NAMES if name in lower]
    for name in likely:
        others = [owner for owner in owners if owner != name]
        if all(_grows(table, name, others) for _, table in data.tables):
            return name
    refuse_short_years(data)
    raise Unsure.of("no column holds times", "time", list(data.columns), path=data.names[0])


def _grows(table: pa.Table, name: str, entities: list[str]) -> bool:
    """Return whether all values of a column are whole and greater than the one before, of the same
    entity if any.

    A column that never repeats although there are several entities numbers the rows, and is no
    time.
    """
    if not (is_text(table[name].type) or pa.types.is_integer(table[name].type)):
        return False
    entity = next((name for name in entities if name in table.column_names), None)
    values = pl.Series("value", table[name]).cast(pl.Int64, strict=False)
    rows = pl.DataFrame(values).with_columns(
        entity=pl.lit("") if entity is None else pl.Series(table[entity])
    )
    if rows["entity"].n_unique() > 1 and values.is_unique().all():
        return False
    steps = rows.select(pl.col("value").diff().over("entity"))["value"]
    return not values.has_nulls() and bool((steps.drop_nulls() > 0).all())


def _parts(data: Look, name: str) -> list[pa.ChunkedArray]:
    """Return the column of each table that has it."""
    return [table[name] for _, table in data.tables if name in table.column_names]


def _look(options: InitSeriesOptions, source: Data) -> Look:
    """Look at the first rows of tables, or of NetCDF files and Zarr stores."""
    paths = [expanded(Path(source)) for source in options.source]
    inside: list[Path] = []
    for path in paths:
        inside += [path] if path.is_file() else path.glob("*")
    if not any(map(grids.is_grid, [*paths, *inside])):
        return source.tables
    shaped = Series(source=options.source, target="?")
    files = shards_of(shaped.source_files())
    tables = []
    for number in evenly(len(files), FILES):
        path, name = files[number]
        tables.append((entity_of(name), grids.first_rows(path, ROWS)))
    size = sum(path.stat().st_size for path, _ in files)
    names = [entity_of(name) for _, name in files]
    folder = files[0][0].parent
    return look_of(tuple(options.source), folder, names, size, tables)


def _look_at_rows(draft: _SeriesDraft, data: Look) -> None:
    """Complete the draft from the first rows of some files, read as the run reads them."""
    seen = draft.seen
    shaped = Series(**draft.settings)
    rows = _rows(shaped, data)
    looked_at = rows["entity"].unique(maintain_order=True).to_list()
    to_their_end = data.complete or all(len(table) < ROWS for _, table in data.tables)
    files = shaped.entity == FILE_NAME
    draft.entities = [_file_entity(name) for name in data.names] if files else looked_at
    times = rows["time"].to_numpy()
    rows = _look_at_steps(draft, shaped, rows, data.names[0])
    frequency = Frequency.parse(draft.settings["frequency"])
    rows = _with_occurrence(rows, shaped.time_zone)
    twice = len(rows) - len(rows.unique(_ROW_KEYS))
    if twice and shaped.time_zone is None and frequency.steps_per_year > _DAYS_A_YEAR:
        seen["time"] = (
            f"{pluralise(twice, 'time comes', 'times come')} twice: if they are of clocks that"
            " change, give time_zone."
        )
    elif twice and not draft.settings.get("resample"):
        _combine(draft, shaped, rows, twice)
    sentinels = _look_at_missing(draft, shaped, rows)
    numbers = pl.col("^\\d+$").replace(sentinels, np.nan)
    rows = rows.select(pl.all().exclude("^\\d+$"), numbers)
    shaped = shaped.with_frequency(draft.settings["frequency"])
    if not rows["0"].is_not_nan().any():  # the target
        raise SettingsError(
            "holds no number in the rows looked at",
            setting="target",
            value=str(draft.settings["target"]),
            remedy="give a column of numbers",
        )
    draft.summaries = _summaries(rows)
    if to_their_end:
        _known_ahead(draft, shaped, rows)
        if not draft.counted:
            _cut_by_date(draft, rows)
    count = many_entities(len(draft.entities))
    if not files and not (to_their_end and len(data.tables) == len(data.names)):
        count += " in the first rows"
    seen["source"] = f"{count}, e.g. {draft.entities[0]}; {len(looked_at)} were looked at."
    first, last = times.min(), times.max()
    if draft.counted:
        span = f"steps {first // 1_000_000} to {last // 1_000_000}"
    else:
        first, last = np.array([first, last]).astype("datetime64[us]").astype("datetime64[D]")
        span = f"{draft.settings['frequency']} steps, {first} to {last}"
    draft.about = f"{count}, {span}; {_count_windows(draft, shaped, rows)}"


def _look_at_steps(
    draft: _SeriesDraft, shaped: Series, rows: pl.DataFrame, file: str
) -> pl.DataFrame:
    """Add the frequency to the draft, and of events the rules that make days of them; return the
    rows at the steps.

    file: names the source in errors.
    """
    settings = draft.settings
    seen = draft.seen
    times = rows["time"].to_numpy()
    times_of_entities = [
        part["time"].to_numpy() for _, part in rows.group_by("entity", maintain_order=True)
    ]
    steps = Counter[str]()
    for entity_times in times_of_entities:
        inferred = infer(entity_times)
        if inferred is not None:
            steps[inferred.word] += 1
    if not steps:
        raise InputError(
            "no entity has three times",
            path=file,
            remedy=f"correct the source, or give {setting_name('time')}",
        )
    word = agreed(steps, "infer")
    settings["frequency"] = word
    if _jitters(draft, times_of_entities, Frequency.parse(word)):
        return _rounded(rows, Frequency.parse(word).micros)
    settings["frequency"] = _finer_step(times_of_entities, word)
    step = Frequency.parse(settings["frequency"])
    irregular = _irregular(times_of_entities, step)
    uneven = 2 * irregular > len(times_of_entities)
    if uneven and draft.counted:
        settings["frequency"] = "1s"
    elif uneven:  # these are events
        rule = "mean"
        if _COUNTS.search(shaped.target[0].lower()):
            rule = "total"
        settings |= {"frequency": "1d", "resample": {"*": "mean", shaped.target[0]: rule}}
        seen["resample"] = (
            "Times are those of events, not of steps. These rules make days of them; mean is for"
            f" readings, total for counts, as which {shaped.target[0]} was taken by its name alone."
        )
        rows = rows.with_columns(pl.col("time") // DAY_US * DAY_US)
    elif (
        settings["frequency"] == "1d"
        and len(times) >= _WEEK
        and np.is_busday((times // DAY_US).astype("datetime64[D]")).all()
    ):
        settings["frequency"] = "1b"
        seen["frequency"] = "No row looked at is on a weekend."
    if len(steps) > 1:
        words = ", ".join(f"{word} in {count}" for word, count in steps.items())
        seen["frequency"] = f"Entities differ: {words}."
    return rows


def _with_occurrence(rows: pl.DataFrame, zone: str | None) -> pl.DataFrame:
    """Add which of two instants a row is at, for local times that clocks repeat: 0 or 1."""
    if zone is None:
        return rows.with_columns(occurrence=0)
    times = rows["time"].to_numpy()
    repeated = wall_to_utc(times, zone, "earliest") != wall_to_utc(times, zone, "latest")
    earlier = pl.int_range(pl.len()).over("entity", "time").clip(upper_bound=1)
    return rows.with_columns(occurrence=pl.when(pl.Series(repeated)).then(earlier).otherwise(0))


def _combine(draft: _SeriesDraft, shaped: Series, rows: pl.DataFrame, twice: int) -> None:
    """Say what becomes of rows that share entity and time: of equal ones one stays, counts are
    summed, of readings the user decides.
    """
    if not len(rows.unique()) - len(rows.unique(_ROW_KEYS)):
        draft.settings["bad_rows"] = "drop"
        draft.seen["bad_rows"] = f"{pluralise(twice, 'row is', 'rows are')} a copy."
        return
    words = f"{pluralise(twice, 'row shares', 'rows share')} entity and time with another."
    if _COUNTS.search(shaped.target[0].lower()):
        draft.settings["resample"] = {"*": "mean", shaped.target[0]: "sum"}
        draft.seen["resample"] = (
            f"{words} {shaped.target[0]} is named like a count, so it is summed."
        )
    else:
        draft.proposed["bad_rows"] = Aside("drop", needed=True)
        draft.seen["bad_rows"] = (
            f"{words} drop keeps the first; or combine them by resample; else their entities are"
            " left out."
        )


def _day_at(times: pl.Series, fraction: float) -> int:
    """Return the day before which this share of the times is, in microseconds since 1970."""
    at = int(times.sort()[int(fraction * (len(times) - 1))])
    return at - at % DAY_US


def _cut_by_date(draft: _SeriesDraft, rows: pl.DataFrame) -> None:
    """Cut at dates if shares of each entity's rows would let many rows of val have dates of train
    rows of other entities.
    """
    fraction = Series.model_fields["train_ratio"].default
    until = fraction + Series.model_fields["val_ratio"].default
    time = pl.col("time")
    rows = rows.filter(pl.col("0").is_not_nan()).select("entity", "time")
    cuts = rows.group_by("entity").agg(
        time.quantile(fraction).alias("train"), time.quantile(until).alias("val")
    )
    within = rows.join(cuts, on="entity").filter(time >= pl.col("train"), time < pl.col("val"))
    shared = within.filter(time < cuts["train"].max()).height / max(1, within.height)
    train_end, val_end = (_day_at(rows["time"], at) for at in (fraction, until))
    spans = rows.group_by("entity").agg(
        time.min().alias("first"), time.max().alias("last"), pl.len().alias("rows")
    )
    reach = spans.filter(pl.col("first") < train_end, pl.col("last") >= val_end)
    if shared < _SHARED or train_end >= val_end or reach["rows"].sum() < _REACH * len(rows):
        return
    first, last = np.array([train_end, val_end]).astype("datetime64[us]").astype("datetime64[D]")
    draft.settings |= {"train_end": str(first), "val_end": str(last)}
    draft.seen["train_end"] = (
        f"By shares of each entity, {shared:.0%} of the rows of val would have dates of train rows"
        " of other entities."
    )
    if len(reach) < len(spans):
        without = pluralise(len(spans) - len(reach), "entity has", "entities have")
        draft.seen["train_end"] += f" {without} no rows in all three splits."


def _jitters(draft: _SeriesDraft, times_of_entities: Sequence[I64], step: Frequency) -> bool:
    """Take the value nearest to each step, if nearly all distances of rows are close to a step;
    return whether they are.
    """
    if not step.micros:
        return False
    close = 0
    all_steps = 0
    for times in times_of_entities:
        distances = np.diff(np.unique(times))
        all_steps += len(distances)
        close += int((np.abs(distances - step.micros) < step.micros * _JITTER).sum())
    exact = all(not len(place_rows(times, step).off_grid) for times in times_of_entities)
    if exact or close < _REGULAR * all_steps:
        return False
    words = (
        f"{close:,} of {all_steps:,} distances are within {_JITTER:.0%} of the step, and the clock"
        " shifts in between."
    )
    draft.settings["resample"] = {"*": "nearest"}
    draft.seen["resample"] = f"{words} Of two rows at one step the nearer one counts."
    return True


def _irregular(times_of_entities: Sequence[I64], step: Frequency) -> int:
    """Count the entities of which most rows share their time with another or lie between steps."""
    count = 0
    for times in times_of_entities:
        count += len(np.unique(place_rows(times, step).positions)) * 2 < len(times)
    return count


def _rounded(rows: pl.DataFrame, step: int) -> pl.DataFrame:
    """Return the rows with each time at the nearest multiple of a step, in microseconds."""
    return rows.with_columns((pl.col("time") + step // 2) // step * step)


def _finer_step(times_of_entities: Sequence[I64], word: str) -> str:
    """Return the longest step that all rows are on, if rows of most entities lie between those of
    `word`: with rows only on days of a sale, the most common distance is not the step.

    Returns `word` if nearly all of the finer steps would be without a row.
    """
    step = Frequency.parse(word)
    between = 0
    common = 0
    rows = 0
    span = 0
    for times in times_of_entities:
        distinct = np.unique(times)
        between += len(place_rows(times, step).off_grid) > 0
        common = int(np.gcd.reduce(np.append(np.diff(distinct), common)))
        rows += len(distinct)
        span += int(distinct[-1] - distinct[0])
    if step.months or not common or 2 * between <= len(times_of_entities):
        return word
    if rows * common < _PRESENT * span:
        return word
    return Frequency(common).word


def _look_at_missing(draft: _SeriesDraft, shaped: Series, rows: pl.DataFrame) -> list[float]:
    """Note how much is missing, add the numbers that mean missing to the draft, and return them."""
    sentinels: dict[float, list[str]] = {}
    missing = []
    for number, name in enumerate(shaped.columns):
        values = rows[str(number)]
        marks = sentinels_of(values.drop_nans().unique().sort().to_numpy())
        for mark in marks:
            sentinels.setdefault(mark, []).append(name)
        missing_ratio = (values.is_nan() | values.is_in(marks)).sum() / len(values)
        if missing_ratio:
            missing.append(f"{name} {missing_ratio:.1%}")
    if sentinels:
        descending = sorted(sentinels, reverse=True)
        lines = [f"{mark:g} in {', '.join(sentinels[mark])}" for mark in descending]
        dialect = draft.settings.setdefault("dialect", {})
        texts = [f"{mark:.10g}" for mark in descending]
        dialect["null_values"] = [*dialect.get("null_values", ()), *texts]
        draft.seen["dialect"] = f"Seen, as numbers that mean missing: {'; '.join(lines)}."
    draft.seen["max_imputation_gap_size"] = (
        f"Missing in the rows looked at: {', '.join(missing) or 'nothing'}."
    )
    return list(sentinels)


def _known_ahead(draft: _SeriesDraft, shaped: Series, rows: pl.DataFrame) -> None:
    """Take the features as known ahead that have values after the last target in most entities,
    if others have none.

    If all have, the target may only have failed or be late, so the user is asked.
    """
    last = pl.col("time").filter(pl.col("0").is_not_nan()).max().over("entity")
    later = rows.filter(pl.col("time") > last)
    if shaped.future_features:
        if len(later):
            draft.settings["trim"] = "none"
        return
    features = shaped.feature_names
    entities = rows["entity"].n_unique()
    ahead = []
    for number, name in enumerate(features, len(shaped.target)):
        having = later.filter(pl.col(str(number)).is_not_nan())["entity"].n_unique()
        if 2 * having >= entities:
            ahead.append(name)
    after = f"in the {pluralise(len(later), 'row')} after the last target"
    if 0 < len(ahead) < len(features):
        del draft.settings["past_features"]
        past = [name for name in features if name not in ahead]
        draft.settings |= _roles(past, ahead) | {"trim": "none"}
        draft.seen["future_features"] = f"Seen: only these have values {after}."
    elif ahead:
        draft.proposed["future_features"] = ahead
        draft.seen["future_features"] = (
            f"All features have values {after}: is the target late, or are they known ahead? If"
            " they are, name them here and not in past_features."
        )


def _count_windows(draft: _SeriesDraft, shaped: Series, rows: pl.DataFrame) -> str:
    """Say how many windows the rows looked at give, and what costs the others.

    Adds the question what an absent row means to the draft, if many are.
    """
    settings = Series(**draft.settings)
    order = [str(shaped.columns.index(name)) for name in settings.columns]
    rows = rows.unique(_ROW_KEYS, keep="last").sort(_ROW_KEYS)
    observed = {}
    for (entity,), part in islice(rows.group_by("entity", maintain_order=True), _COUNTED):
        values = part.select(order).to_numpy().astype(np.float64)
        observed[str(entity)] = Observed(part["time"].to_numpy(), values)
    usable = count_usable(settings, observed)
    words = str(usable)
    if not settings.resample and usable.absent_share > _ABSENT:
        draft.proposed["resample"] = {"*": "mean", settings.target[0]: "total"}
        draft.seen["resample"] = (
            f"{usable.absent_share:.0%} of the steps between an entity's first and last row have no"
            " row: does an absent row mean 0 or missing? It is taken as missing; this resample"
            f" makes it 0 in {settings.target[0]}, right for counts and never for readings."
        )
        words += f"; {draft.seen['resample'].removesuffix('.')}"
    drift = _drift(observed.values())
    if drift > _DRIFTS:
        words += (
            f"; {drift:.0%} of the last values of {settings.target[0]} are outside those of train:"
            " if it has a trend, open windows with scale='standard'"
        )
    return words


def _drift(entities: Iterable[Observed]) -> float:
    """Return the share of targets in the last fifth of each entity that are outside the range of
    its first three fifths.
    """
    outside = []
    for observed in entities:
        target = observed.values[:, 0]
        target = target[~np.isnan(target)]
        if len(target) < _LEAST_TARGETS:
            continue
        train = target[: len(target) * 3 // 5]
        last = target[len(target) * 4 // 5 :]
        outside.append(np.mean((last < train.min()) | (last > train.max())))
    return float(np.mean(outside)) if outside else 0.0


def _roles(past: Sequence[str], future: Sequence[str]) -> dict[str, list[str]]:
    """Return the settings of features, without empty ones."""
    roles = {"past_features": list(past), "future_features": list(future)}
    return {name: names for name, names in roles.items() if names}


def _rows(settings: Series, data: Look) -> pl.DataFrame:
    """Return the rows looked at that have an entity and a time, sorted by entity; value columns are
    named by number.
    """
    names = settings.columns
    parts = []
    for name, table in data.tables:
        if len(table) and {settings.time_column, *names} <= set(table.column_names):
            parsed = parse(settings, names, table, 0, name)
            times = parsed.times
            values = parsed.values
            entity: Any = pl.lit(_file_entity(name))
            if settings.entity != FILE_NAME:
                texts = as_text(table[settings.entity], (), settings.entity)
                entity = pl.Series(texts, dtype=pl.String)
            frame = pl.DataFrame(values, [str(at) for at in range(len(names))])
            parts.append(frame.with_columns(time=times, entity=entity))
    if parts:
        rows = pl.concat(parts)
    else:
        rows = pl.DataFrame(schema={"entity": pl.String, "time": pl.Int64})
    rows = rows.filter(pl.col("entity").is_not_null() & (pl.col("time") != MISSING)).sort("entity")
    if not len(rows):
        raise InputError(
            "no row has a time and all columns",
            path=data.names[0],
            remedy=(
                f"correct the source, {setting_name('time')} or {setting_name('past_features')}"
            ),
        )
    return rows


def _file_entity(name: str) -> str:
    return stem_of_name(name.rpartition("/")[2])


def sentinels_of(values: F64) -> list[float]:
    """Find values that mean missing: common sentinels, far below the others.

    values: distinct, ascending.
    """
    sentinels: list[float] = []
    while (
        len(values) > 1
        and values[0] in _SENTINELS
        and values[1] - values[0] > values[-1] - values[1]
    ):
        sentinels.append(float(values[0]))
        values = values[1:]
    return sentinels


def _entity_column(tables: Sequence[tuple[Path, pa.Table]], entities: Collection[str]) -> str:
    """Return the column of the files about entities that names the most of them."""
    shared = Counter[str]()
    for _, table in tables:
        for name in table.column_names:
            texts = pc.cast(table[name], pa.string()).to_pylist()
            shared[name] += len(set(texts) & set(entities))
    key = max(shared, key=lambda name: shared[name], default="")
    if not shared[key]:
        raise SettingsError(
            "no column of these files names the entities",
            setting="static",
            remedy="give others, or rename the files",
        )
    return key


def _static(draft: _SeriesDraft, options: InitSeriesOptions) -> list[str]:
    """Add the static features to the draft; return the names of those that are texts."""
    shape = {
        **draft.settings,
        "static": options.static,
        "static_entity": "?",
        "static_features": ["?"],
    }
    shaped = Series(**shape)
    files = files_of(STATIC, shaped.source_files())
    tables = [(path, static_table(shaped, path, name)) for path, name in files]
    key = _entity_column(tables, draft.entities)
    tables = [(path, _of_entities(table, key, draft.entities)) for path, table in tables]
    parts: dict[str, list[pa.ChunkedArray | None]] = {}
    for _, table in tables:
        for name in sorted({*table.column_names} - {key}, key=table.column_names.index):
            parts.setdefault(name, []).append(numeric_column(table[name]))
    numbers = []
    complete = []  # numbers that all entities have
    for name, columns in parts.items():
        known_columns = [column for column in columns if column is not None]
        if len(known_columns) == len(columns):
            numbers.append(name)
            if not any(column.null_count for column in known_columns):
                complete.append(name)
    names = [known(name, parts, "static_features") for name in options.static_names]
    of_target = _of_target(draft.summaries, [table for _, table in tables], key, names or complete)
    if names and of_target:
        words = ", ".join(f"{name} (its {word})" for name, word in of_target.items())
        draft.doubts["static_features"] = f"{_OF_TARGET}: {words}"
    if not names:
        names = [name for name in complete if name not in of_target]
        if not names:
            raise SettingsError(
                "no column has numbers for all entities",
                path=files[0][0],
                remedy=f"leave {setting_name('static')} out",
            )
        draft.seen["static_features"] = _left_out(parts, names, of_target)
    draft.settings |= {"static": options.static, "static_entity": key, "static_features": names}
    return [name for name in names if name not in numbers]


def _of_entities(table: pa.Table, key: str, entities: Sequence[str]) -> pa.Table:
    """Return the rows of these entities; all of a table that does not name entities."""
    if key not in table.column_names:
        return table
    return table.filter(pc.is_in(pc.cast(table[key], pa.string()), value_set=pa.array(entities)))


def _left_out(parts: Collection[str], names: Collection[str], of_target: Mapping[str, str]) -> str:
    """Say which attributes are proposed, and which are not. of_target: what each of those is."""
    words = "The numbers that all entities have."
    left = [name for name in parts if name not in names and name not in of_target]
    if left:
        listed = ", ".join(left[:30]) + (", …" if len(left) > 30 else "")
        words += f" Left out: {listed}; --static-features takes them."
    if of_target:
        listed = ", ".join(f"{name} (its {word})" for name, word in of_target.items())
        words += f" Left out, too: {_OF_TARGET}: {listed}."
    return words


def _summaries(rows: pl.DataFrame) -> pl.DataFrame:
    """Return what attributes are computed of the target: its mean and others, by entity."""
    target = pl.col("0")
    return (
        rows.filter(target.is_not_nan())
        .group_by("entity")
        .agg(
            target.mean().alias("mean"),
            target.median().alias("median"),
            target.std().alias("standard deviation"),
            target.min().alias("minimum"),
            target.max().alias("maximum"),
            target.quantile(0.05).alias("5 % quantile"),
            target.quantile(0.95).alias("95 % quantile"),
        )
    )


def _of_target(
    summaries: pl.DataFrame, tables: Sequence[pa.Table], key: str, names: Sequence[str]
) -> dict[str, str]:
    """Return the attributes that are a summary of the target, which holds its values in val and
    test, and which summary each is.
    """
    matches = {}
    for name in names:
        parts = []
        for table in tables:
            numbers = numeric_column(table[name]) if name in table.column_names else None
            if numbers is not None and key in table.column_names:
                entity = pl.Series("entity", pc.cast(table[key], pa.string()), dtype=pl.String)
                parts.append(pl.DataFrame([entity, pl.Series("value", numbers, dtype=pl.Float64)]))
        if not parts:
            continue
        both = summaries.join(pl.concat(parts).drop_nulls(), on="entity")
        for word in summaries.columns[1:]:
            if _are_one(both[word].to_numpy(), both["value"].to_numpy()):
                matches[name] = word
                break
    return matches


def _are_one(summary: F64, values: F64) -> bool:
    """Return whether values follow a summary of as many entities: by one factor, for other units;
    or nearly equal, if some are below 0.
    """
    if len(summary) < _LEAST_ENTITIES or not np.isfinite([summary, values]).all():
        return False
    if (summary > 0).all() and (values > 0).all():
        logarithms = np.log(summary)
        factors = np.log(values) - logarithms
        return bool(logarithms.std() > _DIFFER and factors.std() < _SAME_FACTOR)
    spread = summary.std()
    return bool(spread > 0 and (values - summary).std() < _SAME_FACTOR * spread)
