"""Which columns of measurements are what: entity, time, peer, value. Names first, then what the values can be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from headrace.cli.init.asked import AskedHistories
from headrace.cli.init.look import Look, known, look, named, number_share
from headrace.cli.init.times import time_forms
from headrace.errors import SettingsError
from headrace.formats.detect import stem_of_name
from headrace.formats.text_columns import as_text
from headrace.histories.codec.addresses import KINDS, Kind, parse

FILE_NAME = "file_name"
FILES, ROWS = 64, 1 << 14

_TIMES = ("event_time", "timestamp", "datetime", "epoch", "time", "date", "ts")
_ENTITIES = ("src_addr", "source", "src", "probe", "prb", "sensor", "device", "from", "client", "host", "entity", "id")
_PEERS = ("dst_addr", "destination", "dest", "dst", "peer", "target", "remote", "server", "anchor", "to_")
_VALUES = ("rtt", "latency", "delay", "ping", "response", "elapsed", "duration", "value")
_UNITS = {"us": ("_us", "_usec", "_micros"), "ms": ("_ms", "_msec", "_millis"), "s": ("_s", "_sec", "_seconds")}
_MOST = 0.9  # of the distinct values: more that cannot be read, and it is no column of addresses


@dataclass
class Roles:
    """The source, the settings that were found, and words about them by setting."""

    seen: Look
    settings: dict[str, Any]
    words: dict[str, str] = field(default_factory=dict)


def roles_of(asked: AskedHistories) -> Roles:
    """Find out what is what. Raises `SettingsError` for what is not there or cannot be told, `InputError`."""
    seen = look(asked.source, files=FILES, rows=ROWS)
    if not any(len(table) for _, table in seen.tables):
        raise SettingsError(f"{asked.source[0]}: holds no rows; give data to look at")
    roles = Roles(seen, {"source": asked.source if len(asked.source) > 1 else asked.source[0]})
    taken = [known(each, seen.columns, "column") for each in (asked.time, asked.peer, asked.value) if each is not None]
    if asked.entity not in (None, FILE_NAME):
        taken.append(known(str(asked.entity), seen.columns, "--entity"))
    common = [each.name for each in seen.columns.values() if each.in_files == len(seen.tables)]
    free = [name for name in common if name not in taken]
    free = _find_time(roles, asked, free)
    free = _find_entity(roles, asked, free)
    free = _find_peer(roles, asked, free)
    _find_value(roles, asked, free)
    return roles


def parts(seen: Look, name: str) -> list[pa.ChunkedArray]:
    """The column in each table that has it."""
    return [table[name] for _, table in seen.tables if name in table.column_names]


def _find_time(roles: Roles, asked: AskedHistories, free: list[str]) -> list[str]:
    names = [asked.time] if asked.time is not None else sorted(free, key=lambda name: -named(name, _TIMES))
    for name in names:
        forms = time_forms(parts(roles.seen, name))
        if forms is None:
            continue
        roles.settings["time"] = name
        if forms.forms not in ((), ("iso",)):
            roles.settings["time_format"] = list(forms.forms)
        words = "When it was measured; without an offset, UTC."
        if len(forms.forms) > 1:
            words += f" Written in {len(forms.forms)} forms, tried in this order; the first that reads a value counts."
        roles.words["time"] = " ".join(each for each in (words, forms.doubt) if each)
        return [each for each in free if each != name]
    if asked.time is not None:
        raise SettingsError(
            f"{roles.seen.names[0]}: column {asked.time!r} holds no times that are understood; give another --time, or "
            f"write the configuration with time_format as a strptime pattern"
        )
    raise SettingsError(f"{roles.seen.names[0]}: no column that all files have holds times; give --time, {_of(free)}")


def _find_entity(roles: Roles, asked: AskedHistories, free: list[str]) -> list[str]:
    seen, settings = roles.seen, roles.settings
    stems = [stem_of_name(name.rsplit("/", 1)[-1]) for name in seen.names]
    if asked.entity is None:
        best = _addresses(seen, free, _ENTITIES)
        peers = [each for each in best if named(each[0], _PEERS) and not named(each[0], _ENTITIES[:-2])]
        best = [each for each in best if each not in peers] or best
        if best:
            name, kind = best[0]
            others = [each for each, _ in best[1:4]]
            also = f" Others that could be: {', '.join(others)}." if others else ""
            roles.words["entity"] = f"Whose history it is: {_counted(seen, name)}.{also}"
            return _with_entity(settings, name, kind, free)
    if asked.entity in (None, FILE_NAME):
        for kind in KINDS:
            if bool(parse(pa.array(stems), kind).readable.all()) and (len(stems) > 1 or asked.entity == FILE_NAME):
                settings["entity_from"] = FILE_NAME
                if kind != "address":
                    settings["entity_kind"] = kind
                roles.words["entity"] = f"Every file is one entity, named as the file: {len(stems):,}, e.g. {stems[0]}."
                return free
        raise SettingsError(
            f"{seen.names[0]}: no column holds addresses or numbers of entities, and names of files are none "
            f"({stems[0]!r}); give --entity, {_of(free)}"
        )
    found = _kind_of(seen, asked.entity)
    if found is None:
        raise SettingsError(
            f"{seen.names[0]}: column {asked.entity!r} holds neither addresses nor whole numbers below 2^32, e.g. "
            f"{_example(seen, asked.entity)!r}; give another --entity, or number the entities"
        )
    roles.words["entity"] = f"Whose history it is: {_counted(seen, asked.entity)}."
    return _with_entity(settings, asked.entity, found, free)


def _with_entity(settings: dict[str, Any], name: str, kind: Kind, free: list[str]) -> list[str]:
    settings["entity"] = name
    if kind != "address":
        settings["entity_kind"] = kind
    return [each for each in free if each != name]


def _find_peer(roles: Roles, asked: AskedHistories, free: list[str]) -> list[str]:
    seen = roles.seen
    if asked.peer is not None:
        kind = _kind_of(seen, asked.peer)
        if kind is None:
            raise SettingsError(
                f"{seen.names[0]}: column {asked.peer!r} holds neither addresses nor whole numbers below 2^32, e.g. "
                f"{_example(seen, asked.peer)!r}; give another --peer, or leave it out"
            )
        found = [(asked.peer, kind)]
    else:
        found = _addresses(seen, free, _PEERS)
    if not found:
        roles.words["peer"] = "No column of the other end: rows take 6 bytes a measurement."
        return free
    name, kind = found[0]
    roles.settings["peer"] = name
    if kind != "address":
        roles.settings["peer_kind"] = kind
    roles.words["peer"] = f"The other end: {_counted(seen, name)}. Without it rows take 6 bytes a measurement."
    return [each for each in free if each != name]


def _find_value(roles: Roles, asked: AskedHistories, free: list[str]) -> None:
    seen = roles.seen
    name = asked.value
    if name is None:
        numbers = [each for each in free if seen.columns[each].kind == "number"]
        called = sorted((each for each in numbers if named(each, _VALUES)), key=lambda each: -named(each, _VALUES))
        finer = [each for each in numbers if _has_fractions(seen, each)]
        usable = called or (finer if len(finer) == 1 else numbers if len(numbers) == 1 else [])
        if not usable:
            raise SettingsError(
                f"{seen.names[0]}: no column is the latency for certain; give --value, {_of(numbers or free)}"
            )
        name = usable[0]
    roles.settings["value"] = name
    low = name.lower()
    unit: Literal["us", "ms", "s"] | None = next(
        (each for each, ends in _UNITS.items() if low.endswith(ends)),  # type: ignore[misc]  # its keys are these words
        None,
    )
    if unit is not None:
        roles.settings["value_unit"] = unit
    roles.words["unit"] = "" if unit else "The unit is not told by the name: ms is assumed."


def _addresses(seen: Look, names: Sequence[str], words: Sequence[str]) -> list[tuple[str, Kind]]:
    """Columns that may be entities or peers, best first. Numbers count only where the name says so."""
    found = [(name, _kind_of(seen, name)) for name in names]
    usable = [(name, kind) for name, kind in found if kind == "address" or (kind == "number" and named(name, words))]
    return sorted(usable, key=lambda each: (-named(each[0], words), KINDS.index(each[1])))


def _kind_of(seen: Look, name: str) -> Kind | None:
    """What most of its distinct values are."""
    try:
        texts = _texts(seen, name)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, SettingsError):
        return None
    for kind in KINDS:
        if len(texts) and parse(texts, kind).readable.mean() >= _MOST:
            return kind
    return None


def _texts(seen: Look, name: str) -> pa.Array:
    """The distinct values as text, without nulls."""
    encoded = [as_text(pc.unique(each), ("",), name) for each in parts(seen, name) if _plain(each.type)]
    chunks = [chunk for each in encoded for chunk in _chunks(each)]
    joined = pa.chunked_array(chunks, pa.large_string())
    return pc.unique(joined.drop_null()) if len(joined) else pa.array([], pa.large_string())


def _chunks(values: pa.Array | pa.ChunkedArray) -> list[pa.Array]:
    values = values.cast(pa.large_string())
    return list(values.chunks) if isinstance(values, pa.ChunkedArray) else [values]


def _plain(kind: pa.DataType) -> bool:
    return not pa.types.is_nested(kind)


def _counted(seen: Look, name: str) -> str:
    texts = _texts(seen, name)
    return f"{name} ({len(texts):,} of them in the rows looked at, e.g. {texts[0]})"


def _example(seen: Look, name: str) -> str:
    texts = _texts(seen, name)
    return str(texts[0]) if len(texts) else ""


def _has_fractions(seen: Look, name: str) -> bool:
    shares = [number_share(each) for each in parts(seen, name)]
    values = [pl.Series(np.asarray(each.drop_null().to_numpy(), np.float64)) for each in shares if each is not None]
    return any(bool((each.drop_nans() != each.drop_nans().floor()).any()) for each in values)


def _of(names: Sequence[str]) -> str:
    return f"one of {', '.join(names[:20])}" + (", …" if len(names) > 20 else "")
