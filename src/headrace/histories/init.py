"""Propose a configuration for histories from the names, types and first rows of columns.

Names decide first, then the possible values. The sampled rows go through the recipe's own parser,
so rows that it would refuse are reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.cli.init.commented import Aside, Section, proposed_settings
from headrace.cli.init.look import (
    Column,
    Data,
    Look,
    Unsure,
    known,
    named,
    nameless,
    numeric_column,
)
from headrace.cli.init.options import InitHistoriesOptions
from headrace.cli.init.roles import (
    PEER_WORDS,
    best_time,
    clock_of,
    date_parts,
    entities,
    mixed_times,
    named_time,
    names_entity,
    refuse_short_years,
    time_columns,
    with_joined,
)
from headrace.cli.init.times import TimeForms, day_first_doubt
from headrace.errors import SettingsError, setting, setting_name
from headrace.formats.registry import stem_of_name
from headrace.formats.source import survey
from headrace.formats.text_columns import as_text
from headrace.histories import IdKind
from headrace.histories.codec.addresses import parse
from headrace.histories.config import MOST_VALUES, Histories
from headrace.histories.parse import Dropped, SourceFile, parse_chunk
from headrace.report.words import pluralise, size

_VALUES = ("rtt", "latency", "delay", "ping", "response", "elapsed", "duration", "value")
_UNITS = {
    "us": ("_us", "_usec", "_micros"),
    "ms": ("_ms", "_msec", "_millis"),
    "s": ("_s", "_sec", "_seconds"),
}
_FEW = 0.5  # share of distinct texts among the rows, above which a column is not a category
_MOST = 0.9  # share of the distinct values that must parse in a column of addresses or numbers

_PARSED: tuple[IdKind, ...] = ("address", "number")

Proposal = tuple[dict[str, Any], str]  # settings, and a comment about them


def histories_sections(  # noqa: PLR0914 - the parts of the configuration
    options: InitHistoriesOptions, data: Data
) -> tuple[list[Section], str]:
    """Return the sections of the configuration, and a line about the data.

    Raises `SettingsError`, `InputError`.
    """
    seen = data.tables
    rows = sum(len(table) for _, table in seen.tables)
    if not rows:
        raise SettingsError("holds no rows", path=options.source[0], remedy="give data to look at")
    parts = date_parts(seen) if options.time is None and not time_columns(seen) else None
    joined = seen if parts is None else with_joined(seen, *parts)
    time, time_section = _find_time(joined, options.time)
    read = {"time": time.name} if parts is None else {"time": list(parts[0])}
    time_section.settings = read | time_section.settings
    names = time_section.settings["time"]
    free = _free_columns(seen, options, [names] if isinstance(names, str) else names)
    entity, entity_words = _find_entity(joined, options.entity, time, free)
    free = _without(free, entity.get("entity"))
    peer, peer_words = _find_peer(seen, options.peer, free)
    free = _without(free, peer.get("peer"))
    value = dict[str, Any]()
    value_words = ""
    if options.value or entity.get("entity_kind") != "text":
        value, value_words = _find_value(seen, options.value, free)
    types, values_words = _find_values(seen, _without(free, value.get("value")))
    if not value and not types:
        raise Unsure.of("no column holds values", "value", free, path=seen.names[0])
    values: dict[str, Any] = {}
    if types:
        values["values"] = Aside(types) if value else types
    source = {"source": options.source if len(options.source) > 1 else options.source[0]}

    about = (
        f"{pluralise(len(seen.names), 'file')}, {size(seen.bytes)}; looked at"
        f" {pluralise(rows, 'row')} of {pluralise(len(seen.tables), 'file')}; entity"
        f" {entity.get('entity', 'the name of the file')}, time {time.name}, "
        + (f"value {value['value']}" if value else f"values {_some(list(types), 8)}")
    )
    sections = [
        Section(
            f"Written by `headrace init histories` after a look at the data: {about}.\nPaths are"
            " relative to where the command is run. Every setting is explained in"
            " docs/histories.md.",
            {"recipe": "histories", "out": options.out},
        ),
        Section(f"Measurements, in any order. {_about_files(seen)}".strip(), source),
        Section(entity_words, entity),
        time_section,
        Section(peer_words, peer),
    ]
    if value:
        sections.append(
            Section(
                value_words, {**value, "missing": "failed", "negative": "failed", "zero": "value"}
            )
        )
    if values:
        sections.append(Section(values_words, values))
    settings = {**source, **time_section.settings, **entity, **peer, **value}
    columns = [name for name in settings.values() if isinstance(name, str) and name in seen.columns]
    if not value:
        settings |= values
        columns += types
    sections += _sections_of_odd_rows(seen, settings, columns)
    sections += _sections_of_output()
    Histories(**proposed_settings(sections))  # raises what the run would raise
    return sections, about


def _free_columns(seen: Look, options: InitHistoriesOptions, times: Sequence[str]) -> list[str]:
    """Return the columns that all files have, and that are no time and named by no option.

    Raises `SettingsError` for an option that names no column.
    """
    chosen = {"peer": options.peer, "value": options.value}
    if options.entity != "file_name":
        chosen["entity"] = options.entity
    for option, name in chosen.items():
        if name is not None:
            known(name, seen.columns, option)
    free = []
    for column in seen.columns.values():
        if column.in_files < len(seen.tables) or nameless(column.name):
            continue
        if column.name not in chosen.values() and column.name not in times:
            free.append(column.name)
    return free


def _without(names: Sequence[str], name: str | None) -> list[str]:
    return [other for other in names if other != name]


def _sections_of_odd_rows(
    seen: Look, settings: Mapping[str, Any], read: Sequence[str]
) -> list[Section]:
    """Return the sections about missing values, and about rows that are not measurements.

    read: the columns that these settings name.
    """
    sections = []
    dialect = seen.dialect.stored()
    about_texts = [seen.unusual.words] if dialect else []
    absent = seen.null_values(read)
    if absent:
        dialect["null_values"] = absent
        about_texts.append("Texts that mean missing.")
    if dialect:
        sections.append(Section(" ".join(about_texts), {"dialect": dialect}))
        settings = {**settings, "dialect": settings.get("dialect", {}) | dialect}
    dropped = _try(seen, Histories(**settings, bad_rows="drop"))
    if dropped.rows:
        examples = []
        for word, where in dropped.first.items():
            examples.append(f"{word.replace('_', ' ')}: {dropped.rows[word]:,}, first {where}")
        words = (
            "Rows that are not measurements are dropped and counted. Looked at:"
            f" {'; '.join(examples)}."
        )
        sections.append(Section(words, {"bad_rows": "drop"}))
    return sections


def _sections_of_output() -> list[Section]:
    """Return the sections that do not depend on the data."""
    has_array_record = find_spec("array_record") is not None
    return [
        Section(
            "An entity is in train or test as its keyed hash says, whatever other entities come. A"
            " sample has rows by a keyed hash too.",
            {"train_ratio": 0.9, "seed": 42, "sample_rate": Aside(0.1)},
        ),
        Section(
            "Rows are cut at the last measurement that fits. memory_limit bounds the work, whatever"
            " the data; the number of shards follows from it, unless partitions says how many.",
            {"max_row_bytes": "8MiB", "memory_limit": "2GiB", "partitions": Aside(8)},
        ),
        Section(
            "array_record for Grain (extra histories); arrow is mapped, and contexts drawn at"
            " random from rows of megabytes are hundreds of times cheaper."
            + ("" if has_array_record else " array_record is not installed here."),
            {"format": "array_record" if has_array_record else "arrow"},
        ),
    ]


def _try(seen: Look, settings: Histories) -> Dropped:
    """Parse the sampled rows; return those that are not measurements.

    Raises `SettingsError` if none is one.
    """
    dropped = Dropped()
    measurements = 0
    for name, table in seen.tables:
        if len(table):
            file = SourceFile(name, name, stem_of_name(name.rsplit("/", 1)[-1]))
            measurements += len(
                parse_chunk(table, np.arange(len(table)), file, settings, dropped).codes
            )
    if not measurements:
        first = next(iter(dropped.first.values()))
        raise SettingsError(
            f"none of the rows looked at is a measurement: {first}",
            remedy=f"give {setting('entity')}, {setting('time')} or {setting('value')}",
        )
    return dropped


def _about_files(seen: Look) -> str:
    words = ""
    dialect = survey(seen.root / seen.names[0], seen.names[0]).dialect
    if dialect is not None and dialect.separator not in (",", "\t"):
        words = f"Fields are separated by {dialect.separator!r}, as detected. "
    partial = []
    for column in seen.columns.values():
        if column.in_files < len(seen.tables):
            partial.append(column.name)
    return words + (
        f"Not all files have {_some(partial, 8)}, which no setting needs." if partial else ""
    )


def _find_time(seen: Look, chosen: str | None) -> tuple[Column, Section]:
    """Choose the time, whose texts may be of several forms, and return its section.

    Raises `Unsure` without one.
    """
    forms: dict[str, TimeForms] = dict(mixed_times(seen))
    mixed = []
    for name, of_column in forms.items():
        if not of_column.unread:
            mixed.append(replace(seen.columns[name], time_format=of_column.forms[0]))
    if chosen is not None:
        best = named_time(seen, chosen)
    else:
        matches = [*time_columns(seen), *mixed]
        if not matches:
            refuse_short_years(seen)
            raise Unsure.of(
                "no column that all files have holds times",
                "time",
                list(seen.columns),
                path=seen.names[0],
            )
        best = best_time(seen, matches)
    words = "When it was measured; without an offset, UTC."
    declared: tuple[str, ...] = ()
    if best.name in forms:
        declared = forms[best.name].forms
        words += (
            f" Written in {len(declared)} forms, tried in this order; the first that reads a value"
            " counts."
        )
        doubt = forms[best.name].doubt
    else:
        if best.time_format not in (None, "iso"):
            declared = (str(best.time_format),)
        doubt = day_first_doubt(_parts(seen, best.name), best.time_format)
    section = Section(f"{words} {doubt}".strip(), {"time": best.name}, doubt=doubt)
    clock = clock_of(seen, best)
    if clock is not None:
        section.words += f" {clock.name} is its time of day: {clock.time_format}."
        section.settings["time"] = [best.name, clock.name]
        declared = tuple(f"{form} {clock.time_format}" for form in declared)
    if declared:
        section.settings["dialect"] = {"time_format": list(declared)}
    return best, section


def _find_entity(seen: Look, chosen: str | None, time: Column, free: Sequence[str]) -> Proposal:
    """Choose the entity: a column of addresses or named like one, else the names of the files.

    Raises `Unsure` if that is not certain.
    """
    stems = [stem_of_name(name.rsplit("/", 1)[-1]) for name in seen.names]
    name = None if chosen == "file_name" else chosen
    usable = [match.name for match in entities(seen, time) if match.name in free]
    if chosen is None:
        for column_name in usable:
            if names_entity(column_name) or _kind_of(seen, column_name) == "address":
                name = column_name
                break
    if name is not None:
        return (
            _address_column(seen, name, "entity", "number the entities"),
            f"Whose history it is: {name}.",
        )
    words = f"Every file is one entity, named as the file: {len(stems):,}, e.g. {stems[0]}."
    for id_kind in _PARSED:
        if parse(pa.array(stems), id_kind).family.all() and (len(stems) > 1 or chosen is not None):
            return {"entity_from": "file_name"} | (
                {} if id_kind == "address" else {"entity_kind": id_kind}
            ), words
    if chosen is not None:
        return {"entity_from": "file_name", "entity_kind": "text"}, words
    raise Unsure.of(
        f"no column is the entity for certain, and names of files are none ({stems[0]!r})",
        "entity",
        usable or free,
        path=seen.names[0],
    )


def _find_peer(seen: Look, chosen: str | None, free: Sequence[str]) -> Proposal:
    addresses = [name for name in free if _kind_of(seen, name) == "address"]
    name = chosen or next(iter([*_called(addresses, PEER_WORDS), *addresses]), None)
    name = name or next(iter(_called(free, PEER_WORDS)), None)
    if name is None:
        return {}, "No column of the other end: rows take 6 bytes a measurement."
    settings = _address_column(seen, name, "peer", "leave it out")
    return settings, f"The other end: {name}. Without it rows take 6 bytes a measurement."


def _find_values(seen: Look, free: Sequence[str]) -> tuple[dict[str, str], str]:
    """Suggest types for the other columns that all files have; texts that rarely repeat are left
    out.
    """
    types: dict[str, str] = {}
    for name in free:
        content = seen.columns[name].content
        values = _numbers(seen, name)
        there = values[np.isfinite(values)]
        if content == "number" and len(there):
            is_whole = bool((there == np.floor(there)).all())
            small = is_whole and bool((np.abs(there) < 1 << 31).all())
            if small:
                types[name] = "int32"
            elif is_whole:
                types[name] = "int64"
            else:
                types[name] = "float32"
        elif content == "text" and 0 < len(_texts(seen, name)) <= _FEW * sum(
            len(table) for _, table in seen.tables
        ):
            types[name] = "category"
    types = dict(list(types.items())[:MOST_VALUES])
    return (
        types,
        (
            "Other columns of a measurement. Integers are kept whole, float32 has 7 digits (float64"
            " 15), and categories have a dictionary in the run. Leave out what is not needed."
        ),
    )


def _find_value(seen: Look, chosen: str | None, free: Sequence[str]) -> Proposal:
    name = chosen
    if name is None:
        numbers = [
            column_name for column_name in free if seen.columns[column_name].content == "number"
        ]
        finer = []
        for column_name in numbers:
            if (_numbers(seen, column_name) > np.floor(_numbers(seen, column_name))).any():
                finer.append(column_name)
        alone = [names for names in (finer, numbers) if len(names) == 1]
        usable = _called(numbers, _VALUES) or (alone[0] if alone else [])
        if not usable:
            raise Unsure.of(
                "no column is the latency for certain",
                "value",
                numbers or list(free),
                path=seen.names[0],
            )
        name = usable[0]
    unit = next((word for word, ends in _UNITS.items() if name.lower().endswith(ends)), None)
    words = "The latency. Its name does not give the unit; ms is assumed."
    if unit:
        words = "The latency."
    values = _numbers(seen, name)
    negative = values[values < 0]
    absent = int(np.isnan(values).sum())
    if len(negative):
        codes = _some([f"{number:g}" for number in np.unique(negative)], 6)
        words += f" {len(negative):,} are below 0 ({codes}), codes of failures rather than times."
    if absent:
        words += f" {absent:,} are missing."
    words += " Each may be failed, drop or error; failed measurements stay in the history."
    return {"value": name, "value_unit": unit or "ms"}, words


def _called(names: Sequence[str], words: Sequence[str]) -> list[str]:
    """Return the columns named by one of these words, best first."""
    called = [name for name in names if named(name, words)]
    return sorted(called, key=lambda name: -named(name, words))


def _address_column(seen: Look, name: str, role: str, otherwise: str) -> dict[str, Any]:
    """Suggest the settings of a column of entities or peers; values that are neither address nor
    number are text.
    """
    id_kind = _kind_of(seen, name) or "text"
    if pa.types.is_nested(_parts(seen, name)[0].type):
        raise SettingsError(
            "is nested",
            path=seen.names[0],
            column=name,
            remedy=f"give another {setting_name(role)}, or {otherwise}",
        )
    return {role: name} | ({} if id_kind == "address" else {f"{role}_kind": id_kind})


def _kind_of(seen: Look, name: str) -> IdKind | None:
    """Return the kind of most of the distinct values."""
    try:
        texts = _texts(seen, name)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, SettingsError):
        return None
    for id_kind in _PARSED:
        if len(texts) and parse(texts, id_kind).family.astype(bool).mean() >= _MOST:
            return id_kind
    return None


def _texts(seen: Look, name: str) -> pa.Array:
    """Return the distinct values as text, without nulls."""
    distinct_texts = pa.array([], pa.large_string())
    for column in _parts(seen, name):
        if not pa.types.is_nested(column.type):
            texts = as_text(column, ("",), name).cast(pa.large_string())
            distinct_texts = pc.unique(
                pa.chunked_array([distinct_texts, *texts.chunks]).drop_null()
            )
    return distinct_texts


def _numbers(seen: Look, name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the values that are numbers; NaN if missing."""
    numbers = [np.zeros(0)]
    for column in map(numeric_column, _parts(seen, name)):
        if column is not None:
            numbers.append(column.to_numpy().astype(float))
    return np.concatenate(numbers)


def _parts(seen: Look, name: str) -> list[pa.ChunkedArray]:
    """Return the column of each table that has it."""
    return [table[name] for _, table in seen.tables if name in table.column_names]


def _some(names: Sequence[str], most: int) -> str:
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")
