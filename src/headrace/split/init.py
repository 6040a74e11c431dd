"""Propose the configuration of a split from a look at the data: time, entity, cutoff; without a
time, what is drawn.

Each guess comes with its reason and the alternatives. Counts cover only the rows that were read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.cli.init.commented import Aside, Section, proposed_settings
from headrace.cli.init.look import (
    NULLS,
    Column,
    Data,
    Look,
    Unsure,
    id_like,
    nameless,
)
from headrace.cli.init.numbers import are_numbers, number_marks, odd_numbers
from headrace.cli.init.options import InitSplitOptions
from headrace.cli.init.roles import (
    NO_TIME,
    all_integers,
    best_time,
    candidate,
    clock_of,
    date_parts,
    entities,
    has_content,
    instants,
    is_panel,
    labels,
    named_time,
    refuse_doubtful_times,
    time_columns,
    time_of_day,
    with_joined,
)
from headrace.cli.init.times import day_first_doubt
from headrace.errors import InputError, SettingsError, setting
from headrace.formats.dates import parse_dates
from headrace.formats.dialect import UTF8, TextDialect
from headrace.formats.registry import file_type_of_name
from headrace.formats.text_columns import nulled
from headrace.formats.types import is_text
from headrace.report.words import pluralise, size
from headrace.split.random_split import RandomSplit
from headrace.split.recipe import number_shards
from headrace.split.settings import TemporalSplit

_TEST_SHARE = 0.2  # share of rows from the proposed cutoff on
_DAY_US = 86_400_000_000
_LEAST_ROWS = 3
_MOST_HOLES = 8  # columns that are listed

_SHARES = Section(
    "This share of the entities with rows before the cutoff goes to train and the others to val;"
    " the seed decides which. Entities in val may also be in test, unless val_in_test is drop.",
    {"train_ratio": 0.9, "seed": 42, "val_in_test": Aside("drop")},
)


def split_sections(options: InitSplitOptions, data: Data) -> tuple[list[Section], str]:
    """Return the sections of the configuration, and a line about the data.

    Raises `SettingsError`, `InputError`.
    """
    sample = data.tables
    rows = sum(table.num_rows for _, table in sample.tables)
    if not rows:
        raise SettingsError(
            "has no rows to look at", path=options.source[0], remedy="give a source that has some"
        )
    if options.time == NO_TIME and NO_TIME not in sample.columns:
        return _random_sections(sample, options, rows)
    if options.time is not None or time_columns(sample):
        return _temporal_sections(sample, options, rows)
    parts = date_parts(sample)
    if parts is not None:
        names, form = parts
        return _temporal_sections(with_joined(sample, names, form), options, rows, names)
    if options.split_date is None:
        refuse_doubtful_times(sample)
        return _random_sections(sample, options, rows)
    return _temporal_sections(sample, options, rows)


def _temporal_sections(
    sample: Look, options: InitSplitOptions, rows: int, parts: Sequence[str] = ()
) -> tuple[list[Section], str]:
    """Return the sections of a split in time. parts: columns that are joined as the time."""
    time, time_section = _time(sample, options)
    if parts:
        time_section.settings["time"] = list(parts)
    entity, entity_section = _entity(sample, options, time)
    split_date, cut_words = _cutoff(sample, options, time)
    about = _about(sample, rows)
    sections = [
        Section(
            f"Written by `headrace init split` after a look at the data: {about}.\n"
            "Paths are relative to where the command is run.",
            {"recipe": "temporal_split", "out": options.out},
        ),
        Section(
            "The source to split.",
            {"source": options.source if len(options.source) > 1 else options.source[0]},
        ),
        time_section,
        entity_section,
        Section(cut_words, {"split_date": split_date}),
        *([_SHARES] if entity else []),
        *_column_sections(sample, options, entity),
        Section(
            "layout: a shard per source shard, or single: a file per split. format: same as the"
            " source, or e.g. parquet, which is read several times faster than text. lineage:"
            " columns adds source_shard and source_row.",
            {"layout": "sharded", "format": _format(sample), "lineage": Aside("columns")},
        ),
    ]
    TemporalSplit(**proposed_settings(sections))  # raises what the run would raise
    whose = f"entity {entity}" if entity else "no entity"
    return sections, f"{about}; date {time.name}, {whose}, cutoff {split_date}"


def _about(sample: Look, rows: int) -> str:
    """Describe the data, and how many rows were looked at."""
    return (
        f"{pluralise(len(sample.names), 'file')}, {size(sample.bytes)},"
        f" {pluralise(len(sample.top_level()), 'column')}; looked at {pluralise(rows, 'row')} of"
        f" {pluralise(len(sample.tables), 'file')}"
        f"{f', read as {sample.dialect.encoding}' if sample.dialect.encoding != UTF8 else ''}"
    )


def _random_sections(
    sample: Look, options: InitSplitOptions, rows: int
) -> tuple[list[Section], str]:
    """Return the sections of a random split, for data in which no column is a time."""
    if rows < _LEAST_ROWS:
        raise SettingsError(
            f"holds {pluralise(rows, 'row')}, too few for three splits",
            path=options.source[0],
            remedy="if a list in it holds the rows, write them one a line: `jq -c '.data[]'`",
        )
    if not has_content(sample):
        raise SettingsError(
            "no column is more than an id or a nested value",
            path=options.source[0],
            remedy="write what is trained on into columns",
        )
    about = _about(sample, rows)
    if options.entity is not None or entities(sample, None):
        by, by_section = _entity(sample, options, None)
        by_section.settings["by"] = by_section.settings.pop("entity")
    else:
        by = "rows"
        words = "Rows are drawn by their values, so that equal rows share a split."
        by_section = Section(f"{words} No column repeats as an entity's would.", {"by": by})
    label: Any = Aside("COLUMN")
    why = ""
    for name, classes in labels(sample):
        if name != by:
            label = name
            why = f"{name} has {classes} classes and is named like a label."
            break
    sections = [
        Section(
            f"Written by `headrace init split` after a look at the data: {about}.\n"
            "Paths are relative to where the command is run.",
            {"recipe": "random_split", "out": options.out},
        ),
        Section(
            "The source to split.",
            {"source": options.source if len(options.source) > 1 else options.source[0]},
        ),
        by_section,
        Section(
            "No column is a time, so rows are drawn: these shares go to val and test, the rest to"
            " train; the seed decides which. stratify: a column of classes, of which each split"
            f" gets its share. {why}".strip(),
            {"val_ratio": 0.1, "test_ratio": 0.1, "seed": 42, "stratify": label},
        ),
        *_column_sections(sample, options, by),
        Section(
            "layout: a shard per source shard, or single: a file per split. format: same as the"
            " source, or e.g. parquet, which is read several times faster than text.",
            {"layout": "sharded", "format": _format(sample)},
        ),
    ]
    RandomSplit(**proposed_settings(sections))  # raises what the run would raise
    return sections, f"{about}; no date, so drawn by {by}"


def _time(sample: Look, options: InitSplitOptions) -> tuple[Column, Section]:
    """Choose the time column, and return the section that explains the choice."""
    matches = time_columns(sample)
    also = ""
    if options.time is not None:
        best = named_time(sample, options.time)
    elif not matches:
        raise Unsure.of(
            "no column that all files have holds dates",
            "time",
            list(sample.columns),
            path=options.source[0],
        )
    else:
        best = best_time(sample, matches)
        others = [column.name for column in matches if column is not best]
        also = " No other column is a date."
        if others:
            also = f" Also dates: {', '.join(others)}."
    columns = [table[best.name] for _, table in sample.tables if best.name in table.column_names]
    doubt = f"{day_first_doubt(columns, best.time_format)} {_unread(columns, best)}".strip()
    section = Section(f"When a row happened.{also} {doubt}".strip(), doubt=doubt)
    section.settings["time"] = best.name
    section.settings |= _dialect(best)
    clock = clock_of(sample, best)
    if clock is not None:
        section.words += f" {clock.name} is its time of day: {clock.time_format}."
        section.settings["time"] = [best.name, clock.name]
        if "dialect" in section.settings:
            form = f"{best.time_format} {clock.time_format}"
            section.settings["dialect"] = {"time_format": form}
    if _has_two_kinds(columns, best):
        zone = "Some have an offset and some have none; the latter are read in time_zone."
        section.words += f" {zone}"
        section.doubt = f"{section.doubt} {zone}".strip()
        section.settings["dialect"] = {"time_format": "iso"}
    if best.missing or _unread(columns, best):
        section.settings["bad_rows"] = "drop"
    section.settings["time_zone"] = Aside("UTC")
    return best, section


def _unread(columns: Sequence[pa.ChunkedArray], time: Column) -> str:
    """Say how many texts of the time are no times; "" if all are."""
    count = 0
    first = ""
    for column in columns:
        if is_text(column.type):
            texts = nulled(column, ("", *NULLS))
            unread = texts.filter(
                pa.array(parse_dates(texts, time.time_format or "auto").unreadable)
            )
            count += len(unread)
            first = first or str((unread.to_pylist() or [""])[0])
    if not count:
        return ""
    return f"Dropped: {pluralise(count, 'row')} without a time, such as {first!r}."


def _has_two_kinds(columns: Sequence[pa.ChunkedArray], time: Column) -> bool:
    """Return whether some times are written with an offset from UTC, and others without one."""
    if time.time_format not in (None, "iso"):
        return False
    forms: set[str] = set()
    for column in columns:
        if is_text(column.type):
            forms |= parse_dates(nulled(column, ("", *NULLS)), "iso").forms
    return {"iso", "iso_zoned"} <= forms


def _dialect(time: Column) -> dict[str, Any]:
    """Return the setting that says how a time is written, if one is needed."""
    if time.time_format not in (None, "iso"):
        return {"dialect": {"time_format": time.time_format}}
    return {}


def _entity(sample: Look, options: InitSplitOptions, time: Column | None) -> tuple[str, Section]:
    """Choose the entity column, and return the section that explains the choice."""
    if options.entity is not None:
        best = candidate(sample, sample.known(options.entity, "entity").name)
        words = f"No entity may be in both train and test: {best.words()}."
    else:
        usable = entities(sample, time)
        if not usable:
            words = (
                "No column looks like an entity, so rows are split by time alone, without val: an"
                " entity may be in both train and test. Name its column if there is one."
            )
            return "", Section(words, {"entity": Aside("COLUMN")})
        best = usable[0]
        for matches in usable:
            if is_panel(sample, time, matches.name):
                best = matches
                break
        if is_panel(sample, time, best.name):
            words = (
                f"Each {best.name} has a row at most dates ({best.words()}), so rows are split by"
                " date alone, without val: were it the entity, rows of train and val would share"
                f" dates, and test would lose every {best.name} in train. To hold some out all the"
                " same, name it."
            )
            return "", Section(words, {"entity": Aside(best.name)})
        others = usable[1:4]
        words = (
            f"No entity may be in both train and test. Chosen by name and counts: {best.words()}."
        )
        if others:
            words += f" Others that could be: {', '.join(other.words() for other in others)}."
    section = Section(words, {"entity": best.name})
    if best.missing:
        # or "own", which makes them one entity; both are counted
        section.settings["null_entity"] = "drop"
    return best.name, section


def _cutoff(sample: Look, options: InitSplitOptions, time: Column) -> tuple[str, str]:
    """Choose a day from which on about a fifth of the rows lies; also return words about it."""
    dates = np.sort(instants(sample, time))
    if not len(dates):
        raise SettingsError(
            "the time column holds no time in the rows sampled",
            path=options.source[0],
            column=time.name,
            remedy=f"give another column as {setting('time')}, or write its times as 2025-01-31",
        )
    words = f"Dates looked at run from {_day(dates[0])} to {_day(dates[-1])}"
    if options.split_date is not None:
        return options.split_date, f"{words}. Rows from here on are in test."
    at = int(dates[int((1 - _TEST_SHARE) * (len(dates) - 1))])
    day = at - at % _DAY_US
    if day <= int(dates[0]):
        day += _DAY_US
    words += (
        f"; {100 * float((dates >= day).mean()):.0f} % of the rows are from here on and go to"
        " test, except those of entities in train. A row at this instant is in test."
    )
    return _day(day), words


def _day(micros: int) -> str:
    return str(np.datetime64(int(micros), "us").astype("datetime64[D]"))


def _column_sections(sample: Look, options: InitSplitOptions, entity: str) -> list[Section]:
    """Propose types for text columns, texts that mean null, and columns that some files lack."""
    sections = []
    if sample.unusual.settings:
        sections.append(sample.unusual)
    if _numbers_clash(sample):
        words = "Several files have the same number, such as part-0; dense numbers them anew."
        sections.append(Section(words, {"shard_numbers": "dense"}))
    partial = []
    for column in sample.columns.values():
        if column.in_files < len(sample.tables) and not column.nested:
            partial.append(column)
    if partial or len({tuple(table.schema.types) for _, table in sample.tables}) > 1:
        names = ", ".join(column.name for column in partial[:8])
        words = (
            f"Files differ in their columns{f': not all have {names}' if names else ''}. widen"
            " takes all of them."
        )
        sections.append(Section(words, {"schema_drift": "widen"}))
    sections += _number_sections(sample, options, entity)
    sections += _odd_number_section(sample, entity)
    absent = sample.null_values([entity])
    if absent:
        sections.append(Section("Texts that mean missing.", {"dialect": {"null_values": absent}}))
    holes = _with_holes(sample)
    if holes:
        words = f"Missing numbers are NaN in batches: {', '.join(holes)}."
        sections.append(Section(words, doubt=words))
    empty = [
        name for name in sample.top_level() if nameless(name) or sample.columns[name].missing == 1
    ]
    if empty:
        words = "Columns without a name, such as row numbers, or without any value are left out."
        sections.append(Section(words, {"drop_columns": empty}))
    return sections


def _with_holes(sample: Look) -> list[str]:
    """Return the columns of numbers in which some are missing, the emptiest first, and shares."""
    holes = []
    for name in sample.everywhere("number"):
        missing = sample.columns[name].missing
        if 0 < missing < 1 and not nameless(name):
            holes.append((-missing, f"{name} {100 * missing:.2g} %"))
    listed = [words for _, words in sorted(holes)[:_MOST_HOLES]]
    return listed + ["…"] * (len(holes) > _MOST_HOLES)


def _number_sections(sample: Look, options: InitSplitOptions, entity: str) -> list[Section]:
    """Propose types for columns of text that hold numbers; they are set where texts alone would not
    be read as such.
    """
    numbers = {}
    for name in sample.texts():
        column = sample.columns[name]  # an empty one has no type
        is_code = name == entity or id_like(name) or _matches(sample, name, r"^\s*0[0-9]")
        if column.content == "number" and column.missing < 1 and not is_code:
            is_whole = all_integers(sample, name) and not _matches(sample, name, r"[.eE]")
            numbers[name] = "int64" if is_whole else "float64"
    marks, marked = number_marks(sample, options.decimal, (entity,))
    if marked:
        dialect = TextDialect(**marks)
        read = [name for name in numbers if are_numbers(sample, name, dialect)]
        numbers = {name: numbers[name] for name in read}
        numbers |= dict.fromkeys(marked, "float64")
        spelled = " and ".join(f"{name} {mark!r}" for name, mark in marks.items())
        words = f"Numbers are written with {spelled}; only columns with a type are read as such."
        return [Section(words, {"dialect": marks, "types": numbers})]
    if not numbers:
        return []
    words = "Text columns that hold numbers, which readers deliver as int64 or float64."
    if _format(sample) == "same":
        return [Section(words, {"types": Aside(numbers)})]
    return [Section("Columns of numbers, which some files hold as text.", {"types": numbers})]


def _odd_number_section(sample: Look, entity: str) -> list[Section]:
    """Say which columns of numbers stay texts, because of a unit or a word for missing."""
    names = []
    for name in sample.texts():
        if sample.columns[name].content == "text" and name != entity and not id_like(name):
            names.append(name)
    odd = odd_numbers(sample, [name for name in names if time_of_day(sample, name) is None])
    if not odd:
        return []
    listed = ", ".join(f"{name} ({value!r})" for name, value in odd.items())
    words = (
        f"Numbers that stay texts, because of values such as these: {listed}. If they mean missing,"
        f" give null_values and types; if a unit, write the numbers alone."
    )
    return [Section(words, doubt=words)]


def _matches(sample: Look, name: str, pattern: str) -> bool:
    """Return whether a text of a column has the pattern in it."""
    for _, table in sample.tables:
        is_there = name in table.column_names and is_text(table[name].type)
        if is_there and pc.any(pc.match_substring_regex(table[name], pattern)).as_py():
            return True
    return False


def _format(sample: Look) -> str:
    """Return the format to write: the one of the source if it has one."""
    formats = set()
    for name in sample.names:
        file_type = file_type_of_name(name)
        if file_type is not None:
            formats.add(file_type.format.written_as or file_type.format.name)
    return "same" if len(formats) <= 1 else "parquet"


def _numbers_clash(sample: Look) -> bool:
    try:
        number_shards(sample.names, "keep")
    except InputError:
        return True
    return False
