"""Propose a configuration for histories from the names, types and first rows of columns.

Names decide first, then the possible values. The sampled rows go through the recipe's own parser,
so rows that it would refuse are reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.cli.init.asked import AskedHistories
from headrace.cli.init.commented import Aside, Section, settings_of
from headrace.cli.init.look import NULLS, Look, known, look, named, number_share
from headrace.cli.init.times import time_forms
from headrace.errors import SettingsError
from headrace.formats.registry import stem_of_name
from headrace.formats.source import survey
from headrace.formats.text_columns import as_text
from headrace.histories import IdKind
from headrace.histories.codec.addresses import parse
from headrace.histories.config import MOST_VALUES, Histories
from headrace.histories.parse import Dropped, SourceFile, parse_chunk
from headrace.report.words import many, size

_FILES = 64
_ROWS = 1 << 14
_TIMES = ("event_time", "timestamp", "datetime", "epoch", "time", "date", "ts")
_ENTITIES = (
    "src_addr",
    "source",
    "src",
    "probe",
    "prb",
    "sensor",
    "device",
    "from",
    "client",
    "host",
    "entity",
    "id",
)
_PEERS = (
    "dst_addr",
    "destination",
    "dest",
    "dst",
    "peer",
    "target",
    "remote",
    "server",
    "anchor",
    "to_",
)
_VALUES = ("rtt", "latency", "delay", "ping", "response", "elapsed", "duration", "value")
_UNITS = {
    "us": ("_us", "_usec", "_micros"),
    "ms": ("_ms", "_msec", "_millis"),
    "s": ("_s", "_sec", "_seconds"),
}
_ENTITY_TEXTS = (
    *(
        "customer",
        "user",
        "visitor",
        "session",
        "account",
        "member",
        "patient",
        "tail",
        "aircraft",
        "vehicle",
        "card",
    ),
    *("sensor", "device", "client", "operator", "opid", "entity"),
)
_PEER_TEXTS = (
    "item",
    "product",
    "stock",
    "sku",
    "page",
    "url",
    "merchant",
    "article",
    "dest",
    "destination",
    "airport",
)
_FEW = 0.5  # share of distinct texts among the rows, above which a column is not a category
_MOST = 0.9  # share of the distinct values that must parse in a column of addresses or numbers

_PARSED: tuple[IdKind, ...] = ("address", "number")

Found = tuple[dict[str, Any], str]  # settings, and a comment about them


def histories_sections(asked: AskedHistories) -> tuple[list[Section], str]:
    """Return the sections of the configuration, and a line about the data.

    Raises `SettingsError`, `InputError`.
    """
    seen = look(asked.source, files=_FILES, rows=_ROWS)
    rows = sum(len(table) for _, table in seen.tables)
    if not rows:
        raise SettingsError(f"{asked.source[0]}: holds no rows; give data to look at")
    taken = [
        asked.time,
        asked.peer,
        asked.value,
        None if asked.entity == "file_name" else asked.entity,
    ]
    for name in taken:
        if name is not None:
            known(name, seen.columns, "column")
    free = []
    for each in seen.columns.values():
        if each.in_files == len(seen.tables) and each.name not in taken:
            free.append(each.name)
    time, time_words = _find_time(seen, asked.time, free)
    free = [each for each in free if each != time["time"]]
    entity, entity_words = _find_entity(seen, asked.entity, free)
    free = [each for each in free if each != entity.get("entity")]
    peer, peer_words = _find_peer(seen, asked.peer, free)
    free = [each for each in free if each != peer.get("peer")]
    value = dict[str, Any]()
    value_words = ""
    if asked.value or entity.get("entity_kind") != "text":
        value, value_words = _find_value(seen, asked.value, free)
    types, values_words = _find_values(seen, [each for each in free if each != value.get("value")])
    if not value and not types:
        raise SettingsError(
            f"{seen.names[0]}: no column holds values; give --value, {_one_of(free)}"
        )
    if types:
        values: dict[str, Any] = {"values": Aside(types) if value else types}
    else:
        values = {}
    source = {"source": asked.source if len(asked.source) > 1 else asked.source[0]}

    about = (
        f"{many(len(seen.names), 'file')}, {size(seen.bytes)}; looked at {many(rows, 'row')} of"
        f" {many(len(seen.tables), 'file')}; entity {entity.get('entity', 'the name of the file')},"
        f" time {time['time']}, "
        + (f"value {value['value']}" if value else f"values {_some(list(types), 8)}")
    )
    sections = [
        Section(
            f"Written by `headrace init histories` after a look at the data: {about}.\nPaths are"
            " relative to where the command is run. Every setting is explained in"
            " docs/histories.md.",
            {"recipe": "histories", "out": asked.out},
        ),
        Section(f"Measurements, in any order. {_about_files(seen)}".strip(), source),
        Section(entity_words, entity),
        Section(time_words, time),
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
    settings = {**source, **time, **entity, **peer, **value, **({} if value else values)}
    read = []
    for each in settings.values():
        if isinstance(each, str) and each in seen.columns:
            read.append(each)
    if any(seen.holds(name, NULLS) for name in (*read, *({} if value else types))):
        settings["null_values"] = list(NULLS)
        sections.append(Section("Texts that mean missing.", {"null_values": list(NULLS)}))
    dropped = _try(seen, Histories(**settings, bad_rows="drop"))
    if dropped.rows:
        told = "; ".join(
            f"{word.replace('_', ' ')}: {dropped.rows[word]:,}, first {where}"
            for word, where in dropped.first.items()
        )
        words = f"Rows that are not measurements are dropped and counted. Looked at: {told}."
        sections.append(Section(words, {"bad_rows": "drop"}))
    sections += _sections_of_output()
    Histories(
        **{
            name: value
            for name, value in settings_of(sections).items()
            if name not in ("recipe", "out")
        }
    )
    return sections, about


def _sections_of_output() -> list[Section]:
    """Return the sections that do not depend on the data."""
    has_array_record = find_spec("array_record") is not None
    return [
        Section(
            "An entity trains or tests as its keyed hash says, whatever other entities come. A"
            " sample keeps rows by a keyed hash too.",
            {"train_ratio": 0.9, "seed": 42, "sample_rate": Aside(0.1)},
        ),
        Section(
            "Rows are cut at the last measurement that fits. memory_limit bounds the work, whatever"
            " the data; the number of shards follows from it, unless partitions says how many.",
            {"max_row_bytes": "8MiB", "memory_limit": "2GiB", "partitions": Aside(8)},
        ),
        Section(
            "array_record for random access (extra histories), arrow to be mapped."
            + ("" if has_array_record else " array_record is not installed here."),
            {"format": "array_record" if has_array_record else "arrow"},
        ),
    ]


def _try(seen: Look, settings: Histories) -> Dropped:
    """Parse the sampled rows; return those that are not measurements.

    Raises `SettingsError` if none is one.
    """
    dropped = Dropped()
    kept = 0
    for name, table in seen.tables:
        if len(table):
            file = SourceFile(name, name, stem_of_name(name.rsplit("/", 1)[-1]))
            kept += len(parse_chunk(table, np.arange(len(table)), file, settings, dropped).codes)
    if not kept:
        first = next(iter(dropped.first.values()))
        raise SettingsError(
            f"none of the rows looked at is a measurement; {first}; give --entity, --time, --value"
        )
    return dropped


def _about_files(seen: Look) -> str:
    words = ""
    dialect = survey(seen.root / seen.names[0], seen.names[0]).dialect
    if dialect is not None and dialect.separator not in (",", "\t"):
        words = f"Fields are separated by {dialect.separator!r}, as detected. "
    partial = []
    for each in seen.columns.values():
        if each.in_files < len(seen.tables):
            partial.append(each.name)
    return words + (
        f"Not all files have {_some(partial, 8)}, which no setting needs." if partial else ""
    )


def _find_time(seen: Look, asked: str | None, free: Sequence[str]) -> Found:
    order = sorted(
        free, key=lambda name: (-named(name, _TIMES), seen.columns[name].kind == "number")
    )
    for name in order if asked is None else [asked]:
        forms = time_forms(_parts(seen, name))
        if forms is None:
            continue
        words = "When it was measured; without an offset, UTC."
        if len(forms.forms) > 1:
            words += (
                f" Written in {len(forms.forms)} forms, tried in this order; the first that reads a"
                " value counts."
            )
        declared = {} if forms.forms in ((), ("iso",)) else {"time_format": list(forms.forms)}
        return {"time": name, **declared}, f"{words} {forms.doubt}".strip()
    if asked is not None:
        raise SettingsError(
            f"{seen.names[0]}: column {asked!r} holds no times that can be read; give another"
            " --time, or write the configuration with time_format as a strptime pattern"
        )
    raise SettingsError(
        f"{seen.names[0]}: no column that all files have holds times; give --time, {_one_of(free)}"
    )


def _find_entity(seen: Look, asked: str | None, free: Sequence[str]) -> Found:
    stems = [stem_of_name(name.rsplit("/", 1)[-1]) for name in seen.names]
    name = None if asked == "file_name" else asked
    if asked is None:
        best = _address_columns(seen, free, _ENTITIES)
        best = [
            each for each in best if not named(each, _PEERS) or named(each, _ENTITIES[:-2])
        ] or best
        name = next(iter(best or _called(free, _ENTITY_TEXTS)), None)
    if name is not None:
        return (
            _address_column(seen, name, "entity", "number the entities"),
            f"Whose history it is: {name}.",
        )
    words = f"Every file is one entity, named as the file: {len(stems):,}, e.g. {stems[0]}."
    for kind in _PARSED:
        if parse(pa.array(stems), kind).family.all() and (len(stems) > 1 or asked is not None):
            return {"entity_from": "file_name"} | (
                {} if kind == "address" else {"entity_kind": kind}
            ), words
    if asked is not None:
        return {"entity_from": "file_name", "entity_kind": "text"}, words
    raise SettingsError(
        f"{seen.names[0]}: no column is the entity for certain, and names of files are none"
        f" ({stems[0]!r}); give --entity, {_one_of(free)}"
    )


def _find_peer(seen: Look, asked: str | None, free: Sequence[str]) -> Found:
    name = asked or next(
        iter([*_address_columns(seen, free, _PEERS), *_called(free, _PEER_TEXTS)]), None
    )
    if name is None:
        return {}, "No column of the other end: rows take 6 bytes a measurement."
    found = _address_column(seen, name, "peer", "leave it out")
    return found, f"The other end: {name}. Without it rows take 6 bytes a measurement."


def _find_values(seen: Look, free: Sequence[str]) -> tuple[dict[str, str], str]:
    """Suggest types for the other columns that all files have; texts that rarely repeat are left
    out.
    """
    types: dict[str, str] = {}
    for name in free:
        kind = seen.columns[name].kind
        values = _numbers(seen, name)
        there = values[np.isfinite(values)]
        if kind == "number" and len(there):
            whole = bool((there == np.floor(there)).all())
            small = whole and bool((np.abs(there) < 1 << 31).all())
            if small:
                types[name] = "int32"
            elif whole:
                types[name] = "int64"
            else:
                types[name] = "float32"
        elif kind == "text" and 0 < len(_texts(seen, name)) <= _FEW * sum(
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


def _find_value(seen: Look, asked: str | None, free: Sequence[str]) -> Found:
    name = asked
    if name is None:
        numbers = [each for each in free if seen.columns[each].kind == "number"]
        finer = []
        for each in numbers:
            if (_numbers(seen, each) > np.floor(_numbers(seen, each))).any():
                finer.append(each)
        usable = _called(numbers, _VALUES) or (
            finer if len(finer) == 1 else numbers if len(numbers) == 1 else []
        )
        if not usable:
            raise SettingsError(
                f"{seen.names[0]}: no column is the latency for certain; give --value,"
                f" {_one_of(numbers or free)}"
            )
        name = usable[0]
    unit = next((each for each, ends in _UNITS.items() if name.lower().endswith(ends)), None)
    words = "The latency. Its name does not give the unit; ms is assumed."
    if unit:
        words = "The latency."
    values = _numbers(seen, name)
    negative = values[values < 0]
    absent = int(np.isnan(values).sum())
    if len(negative):
        codes = _some([f"{each:g}" for each in np.unique(negative)], 6)
        words += f" {len(negative):,} are below 0 ({codes}), codes of failures rather than times."
    if absent:
        words += f" {absent:,} are missing."
    words += " Each may be failed, drop or error; failed measurements stay in the history."
    return {"value": name, "value_unit": unit or "ms"}, words


def _called(names: Sequence[str], words: Sequence[str]) -> list[str]:
    """Return the columns named by one of these words, best first."""
    return sorted(
        (each for each in names if named(each, words)), key=lambda each: -named(each, words)
    )


def _address_columns(seen: Look, names: Sequence[str], words: Sequence[str]) -> list[str]:
    """Return the columns that may be entities or peers, best first.

    Numbers count only if the name fits.
    """
    kinds = {name: _kind_of(seen, name) for name in names}
    usable = [
        name
        for name, kind in kinds.items()
        if kind == "address" or (kind == "number" and named(name, words))
    ]
    return sorted(usable, key=lambda name: (-named(name, words), kinds[name] != "address"))


def _address_column(seen: Look, name: str, role: str, otherwise: str) -> dict[str, Any]:
    """Suggest the settings of a column of entities or peers; values that are neither address nor
    number are text.
    """
    kind = _kind_of(seen, name) or "text"
    if pa.types.is_nested(_parts(seen, name)[0].type):
        raise SettingsError(
            f"{seen.names[0]}: column {name!r} is nested; give another --{role}, or {otherwise}"
        )
    return {role: name} | ({} if kind == "address" else {f"{role}_kind": kind})


def _kind_of(seen: Look, name: str) -> IdKind | None:
    """Return the kind of most of the distinct values."""
    try:
        texts = _texts(seen, name)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, SettingsError):
        return None
    return next(
        (
            kind
            for kind in _PARSED
            if len(texts) and parse(texts, kind).family.astype(bool).mean() >= _MOST
        ),
        None,
    )


def _texts(seen: Look, name: str) -> pa.Array:
    """Return the distinct values as text, without nulls."""
    found = pa.array([], pa.large_string())
    for column in _parts(seen, name):
        if not pa.types.is_nested(column.type):
            texts = as_text(column, ("",), name).cast(pa.large_string())
            found = pc.unique(pa.chunked_array([found, *texts.chunks]).drop_null())
    return found


def _numbers(seen: Look, name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the values that are numbers; NaN if missing."""
    shares = [number_share(each) for each in _parts(seen, name)]
    return np.concatenate(
        [np.zeros(0), *(each.to_numpy().astype(float) for each in shares if each is not None)]
    )


def _parts(seen: Look, name: str) -> list[pa.ChunkedArray]:
    """Return the column of each table that has it."""
    return [table[name] for _, table in seen.tables if name in table.column_names]


def _one_of(names: Sequence[str]) -> str:
    return f"one of {_some(names, 20)}"


def _some(names: Sequence[str], most: int) -> str:
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")
