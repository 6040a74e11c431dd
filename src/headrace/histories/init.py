"""Propose a configuration for histories from the names, types and first rows of columns.

Names decide first, then the possible values. The sampled rows go through the recipe's own parser,
so rows that it would refuse are reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.cli.init.asked import AskedHistories
from headrace.cli.init.commented import Aside, Section, proposed_settings
from headrace.cli.init.look import NULLS, Data, Look, Unsure, known, named, nameless, number_share
from headrace.cli.init.times import time_forms
from headrace.errors import SettingsError, setting, setting_name
from headrace.formats.registry import stem_of_name
from headrace.formats.source import survey
from headrace.formats.text_columns import as_text
from headrace.histories import IdKind
from headrace.histories.codec.addresses import parse
from headrace.histories.config import MOST_VALUES, Histories
from headrace.histories.parse import Dropped, SourceFile, parse_chunk
from headrace.report.words import pluralise, size

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

Proposal = tuple[dict[str, Any], str]  # settings, and a comment about them


def histories_sections(  # noqa: PLR0914 - the parts of the configuration
    options: AskedHistories, data: Data
) -> tuple[list[Section], str]:
    """Return the sections of the configuration, and a line about the data.

    Raises `SettingsError`, `InputError`.
    """
    seen = data.tables
    rows = sum(len(table) for _, table in seen.tables)
    if not rows:
        raise SettingsError("holds no rows", path=options.source[0], remedy="give data to look at")
    free = _free_columns(seen, options)
    time, time_words = _find_time(seen, options.time, free)
    free = _without(free, time["time"])
    entity, entity_words = _find_entity(seen, options.entity, free)
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
        f" {entity.get('entity', 'the name of the file')}, time {time['time']}, "
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
    settings = {**source, **time, **entity, **peer, **value}
    read = [name for name in settings.values() if isinstance(name, str) and name in seen.columns]
    if not value:
        settings |= values
        read += types
    sections += _sections_of_odd_rows(seen, settings, read)
    sections += _sections_of_output()
    Histories(**proposed_settings(sections))  # raises what the run would raise
    return sections, about


def _free_columns(seen: Look, options: AskedHistories) -> list[str]:
    """Return the columns that all files have and no option names.

    Raises `SettingsError` for an option that names no column.
    """
    chosen = {"time": options.time, "peer": options.peer, "value": options.value}
    if options.entity != "file_name":
        chosen["entity"] = options.entity
    for option, name in chosen.items():
        if name is not None:
            known(name, seen.columns, option)
    free = []
    for column in seen.columns.values():
        if column.in_files < len(seen.tables) or nameless(column.name):
            continue
        if column.name not in chosen.values():
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
    dialect: dict[str, Any] = {}
    about_texts = []
    if seen.encoding:
        dialect["encoding"] = seen.encoding
        about_texts.append("The texts are not UTF-8; this encoding reads them.")
    if any(seen.holds(name, NULLS) for name in read):
        dialect["null_values"] = list(NULLS)
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


def _find_time(seen: Look, chosen: str | None, free: Sequence[str]) -> Proposal:
    order = sorted(
        free, key=lambda name: (-named(name, _TIMES), seen.columns[name].content == "number")
    )
    for name in order if chosen is None else [chosen]:
        forms = time_forms(_parts(seen, name))
        if forms is None:
            continue
        words = "When it was measured; without an offset, UTC."
        if len(forms.forms) > 1:
            words += (
                f" Written in {len(forms.forms)} forms, tried in this order; the first that reads a"
                " value counts."
            )
        declared = (
            {} if forms.forms in ((), ("iso",)) else {"dialect": {"time_format": list(forms.forms)}}
        )
        return {"time": name, **declared}, f"{words} {forms.doubt}".strip()
    if chosen is not None:
        raise SettingsError(
            "holds no times that can be read",
            path=seen.names[0],
            column=chosen,
            remedy=(
                f"give another {setting_name('time')}, or write the configuration with time_format"
                " as a strptime pattern"
            ),
        )
    raise Unsure.of("no column that all files have holds times", "time", free, path=seen.names[0])


def _find_entity(seen: Look, chosen: str | None, free: Sequence[str]) -> Proposal:
    stems = [stem_of_name(name.rsplit("/", 1)[-1]) for name in seen.names]
    name = None if chosen == "file_name" else chosen
    if chosen is None:
        usable = _address_columns(seen, free, _ENTITIES)
        best = []
        for column_name in usable:
            if not named(column_name, _PEERS) or named(column_name, _ENTITIES[:-2]):
                best.append(column_name)
        name = next(iter(best or usable or _called(free, _ENTITY_TEXTS)), None)
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
        free,
        path=seen.names[0],
    )


def _find_peer(seen: Look, chosen: str | None, free: Sequence[str]) -> Proposal:
    name = chosen or next(
        iter([*_address_columns(seen, free, _PEERS), *_called(free, _PEER_TEXTS)]), None
    )
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


def _address_columns(seen: Look, names: Sequence[str], words: Sequence[str]) -> list[str]:
    """Return the columns that may be entities or peers, best first.

    Numbers count only if the name fits.
    """
    addresses = []
    numbers = []
    for name in names:
        id_kind = _kind_of(seen, name)
        if id_kind == "address":
            addresses.append(name)
        elif id_kind == "number" and named(name, words):
            numbers.append(name)
    return sorted(addresses + numbers, key=lambda name: -named(name, words))


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
    for column in map(number_share, _parts(seen, name)):
        if column is not None:
            numbers.append(column.to_numpy().astype(float))
    return np.concatenate(numbers)


def _parts(seen: Look, name: str) -> list[pa.ChunkedArray]:
    """Return the column of each table that has it."""
    return [table[name] for _, table in seen.tables if name in table.column_names]


def _some(names: Sequence[str], most: int) -> str:
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")
