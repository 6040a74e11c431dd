"""A configuration for histories, from a look at the data. The rows looked at are read by the recipe's own parser."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from headrace.cli.init.asked import AskedHistories
from headrace.cli.init.commented import Aside, Section, settings_of
from headrace.cli.init.look import number_share
from headrace.errors import SettingsError
from headrace.formats.detect import stem_of_name
from headrace.formats.source import survey
from headrace.histories.config import Histories
from headrace.histories.init_roles import Roles, parts, roles_of
from headrace.histories.parse import Dropped, Known, Place, parse_chunk


def histories_sections(asked: AskedHistories) -> tuple[list[Section], str]:
    """The sections of the configuration, and a line about the data. Raises `SettingsError`, `InputError`."""
    roles = roles_of(asked)
    kept, dropped = _read(roles)
    if not kept:
        first = next(iter(dropped.first.values()), "it holds no rows")
        raise SettingsError(f"none of the rows looked at is a measurement; {first}; give --entity, --time, --value")
    sections = _sections(asked, roles, dropped)
    Histories(**{name: value for name, value in settings_of(sections).items() if name not in ("recipe", "out")})
    return sections, _about(roles)


def _read(roles: Roles) -> tuple[int, Dropped]:
    """How many of the rows are measurements, and what the others are."""
    settings = Histories(**roles.settings, bad_rows="drop")
    dropped, known, kept = Dropped(), Known.none(settings), 0
    for name, table in roles.seen.tables:
        if len(table):
            place = Place(name, name, stem_of_name(name.rsplit("/", 1)[-1]))
            kept += len(parse_chunk(table, np.arange(len(table)), place, settings, dropped, known).codes)
    return kept, dropped


def _about(roles: Roles) -> str:
    seen = roles.seen
    rows = sum(len(table) for _, table in seen.tables)
    own = roles.settings.get("entity", "the file's name")
    return (
        f"{len(seen.names):,} files, {seen.bytes / 1e6:,.1f} MB; looked at {rows:,} rows of {len(seen.tables):,}; "
        f"entity {own}, time {roles.settings['time']}, value {roles.settings['value']}"
    )


def _sections(asked: AskedHistories, roles: Roles, dropped: Dropped) -> list[Section]:
    settings, words = roles.settings, roles.words

    def some(*names: str) -> dict[str, Any]:
        return {name: settings[name] for name in names if name in settings}

    sections = [
        Section(
            f"Written by `headrace init histories` after a look at the data: {_about(roles)}.\n"
            "Paths are relative to where the command is run. Every setting is explained in docs/histories.md.",
            {"recipe": "histories", "out": asked.out},
        ),
        Section(f"Measurements, in any order. {_separators(roles)}{_drift(roles)}".strip(), some("source")),
        Section(words["entity"], some("entity", "entity_from", "entity_kind")),
        Section(words["time"], some("time", "time_format")),
        Section(words["peer"], some("peer", "peer_kind")),
        Section(*_value(roles)),
    ]
    if dropped.rows:
        told = "; ".join(
            f"{word.replace('_', ' ')}: {dropped.rows[word]:,}, first {where}" for word, where in dropped.first.items()
        )
        sections.append(
            Section(f"Rows that are no measurements are dropped and counted. Looked at: {told}.", {"bad_rows": "drop"})
        )
    sections += [
        Section(
            "An entity trains or tests as its keyed hash says, whatever other entities come. A sample keeps rows by a "
            "keyed hash too.",
            {"train_ratio": 0.9, "seed": 42, "sample_rate": Aside(0.1)},
        ),
        Section(
            "Rows are cut at the last measurement that fits. memory_limit bounds the work, whatever the data; the "
            "number of shards follows from it, unless partitions says how many.",
            {"max_row_bytes": "8MiB", "memory_limit": "2GiB", "partitions": Aside(8)},
        ),
        _format(),
    ]
    return sections


def _value(roles: Roles) -> tuple[str, dict[str, Any]]:
    """What the values are: their range, and what is no latency."""
    name = roles.settings["value"]
    shares = [number_share(each) for each in parts(roles.seen, name)]
    values = np.concatenate([np.zeros(0), *(np.asarray(each.to_numpy()) for each in shares if each is not None)])
    there = values[~np.isnan(values)]
    positive = there[(there > 0) & np.isfinite(there)]
    told = ["The latency.", roles.words["unit"]]
    if len(positive):
        told.append(
            f"Values above 0 run from {positive.min():g} to {positive.max():g}, half of them up to "
            f"{np.median(positive):g}."
        )
    negative = there[there < 0]
    if len(negative):
        usual = np.unique(negative)
        some = ", ".join(f"{each:g}" for each in usual[:6]) + (", …" if len(usual) > 6 else "")
        told.append(f"{len(negative):,} are below 0 ({some}), codes of failures rather than times.")
    absent = len(values) - len(there)
    if absent:
        told.append(f"{absent:,} are missing.")
    zeros = int((there == 0).sum())
    if zeros:
        told.append(f"{zeros:,} are 0: a latency, unless zero says failed or drop.")
    told.append("Each may be failed, drop or error; failed measurements stay in the history.")
    settings = {"value": name, "value_unit": roles.settings.get("value_unit", "ms"), "missing": "failed"}
    return " ".join(each for each in told if each), {**settings, "negative": "failed", "zero": "value"}


def _separators(roles: Roles) -> str:
    """The separator of text files, which is found out file by file."""
    name = roles.seen.names[0]
    dialect = survey(roles.seen.root / name, name).dialect
    if dialect is None or dialect.separator in (",", "\t"):
        return ""
    return f"Fields are separated by {dialect.separator!r}, which is found out. "


def _drift(roles: Roles) -> str:
    partial = [each.name for each in roles.seen.columns.values() if each.in_files < len(roles.seen.tables)]
    return f"Not all files have {_few(partial)}, which no setting needs." if partial else ""


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (", …" if len(names) > 8 else "")


def _format() -> Section:
    words = "array_record for random access (extra histories), arrow to be mapped."
    if find_spec("array_record") is None:
        return Section(f"{words} array_record is not installed here.", {"format": "arrow"})
    return Section(words, {"format": "array_record"})
