"""Which columns of a source are what: time, entity, target, features. A first draft of settings for series."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.cli.init.asked import AskedSeries
from headrace.cli.init.look import Look, known, look
from headrace.cli.init.times import time_format
from headrace.errors import SettingsError
from headrace.formats.listing import list_files
from headrace.series.camels_us import FORCING
from headrace.series.config import FILE_NAME
from headrace.series.init_long import MOST_BYTES, Looked
from headrace.series.observed import Observed
from headrace.storage.places import expanded

_ENTITY_NAMES = (
    *("entity", "entity_id", "unique_id", "gauge_id", "gauge", "basin", "basin_id", "station", "station_id"),
    *("site", "site_id", "series_id", "item_id", "sensor", "sensor_id", "id"),
)
_FEW = 0.05  # of rows: times that come twice by mistake
_ROW_NUMBERS = re.compile(r"|Unnamed: \d+|__index_level_\d+__")  # an index of pandas that was written beside
_TIME_NAMES = ("date", "time", "datetime", "timestamp", "valid_time", "ds", "day")


@dataclass
class Draft:
    """Settings that were found, and words about them by setting."""

    settings: dict[str, Any]
    words: dict[str, str] = field(default_factory=dict)
    entities: list[str] = field(default_factory=list)
    whole: bool = True  # entities are all that there are
    observed: list[tuple[str, Observed]] | None = None  # of long tables: the rows of some entities, all if `whole`
    texts: list[str] = field(default_factory=list)  # static features that are no numbers
    about: str = ""  # one line for the terminal


def draft_of(asked: AskedSeries) -> Draft:
    """The roles of the columns. Raises `SettingsError` for what is not there or cannot be told."""
    return _camels(asked) if _is_camels(asked.source) else _tables(asked)


def _is_camels(source: Sequence[str]) -> bool:
    root = expanded(Path(source[0]))
    return len(source) == 1 and (root / "basin_mean_forcing").is_dir() and (root / "usgs_streamflow").is_dir()


def _camels(asked: AskedSeries) -> Draft:
    products = sorted(each.name for each in (expanded(Path(asked.source[0])) / "basin_mean_forcing").iterdir())
    settings = {
        "source": asked.source,
        "reader": "camels_us",
        "forcing": "daymet" if "daymet" in products else products[0],
        "entity": FILE_NAME,
        "time": "date",
        "target": known(asked.target or "qobs", ("qobs", "qobs_cfs", *FORCING), "target"),
        "features": [
            known(each, ("qobs", "qobs_cfs", "estimated", *FORCING), "feature")
            for each in asked.feature_names or FORCING
        ],
    }
    return Draft(settings, {"source": f"The text files of CAMELS-US; forcing may be {', '.join(products)}."})


def _tables(asked: AskedSeries) -> Draft:
    seen = look(asked.source)
    time = _time_column(seen, asked.time)
    target = asked.target
    numbers = [name for name in seen.everywhere("number") if name != time]
    if target is None:
        raise SettingsError(
            f"target is not given; add --target with the column to be predicted, one of {', '.join(numbers[:40])}"
        )
    known(target, seen.columns, "target")
    entity, words = _entity_column(seen, asked.entity, time)
    settings: dict[str, Any] = {"source": asked.source, "entity": entity, "time": time, "target": target}
    form = seen.columns[time].time_format or _number_format(seen, time)
    if form not in (None, "iso"):
        settings["time_format"] = form
    settings["features"] = _features(seen, asked, settings)
    draft = Draft(settings, {"source": words})
    counts = {name: seen.columns[name].in_files for name in settings["features"]}
    some = [f"{name} ({n} of {len(seen.tables)} files)" for name, n in counts.items() if n < len(seen.tables)]
    if some:
        draft.words["features"] = f"Not every file has {', '.join(some)}: entities without a feature fail."
    if not asked.feature_names and (rows := [name for name in seen.columns if _ROW_NUMBERS.fullmatch(name)]):
        before = f"{draft.words['features']} " if "features" in draft.words else ""
        draft.words["features"] = f"{before}Left out: {', '.join(map(repr, rows))}, which numbers the rows of a table."
    if entity != FILE_NAME:
        _look_at_long(draft, seen)
    return draft


def _look_at_long(draft: Draft, seen: Look) -> None:
    """All rows of long tables; of very large ones, the first rows of some."""
    looked = Looked(draft.settings)
    draft.whole = seen.bytes <= MOST_BYTES
    if draft.whole:
        listing = list_files(seen.source)
        looked.read((listing.path(place), name) for place, name in enumerate(listing.names))
    else:
        for _, table in seen.tables:
            looked.add(table)
    draft.observed, draft.entities = looked.observed(), sorted(looked.names)


def _time_column(seen: Look, asked: str | None) -> str:
    if asked is not None:
        return known(asked, seen.columns, "time")
    times = seen.everywhere("time")
    lower = {name.lower(): name for name in seen.columns}
    for name in _TIME_NAMES:
        found = lower.get(name)
        if found in times or (found is not None and _number_format(seen, found) is not None):
            return str(found)
    if times:
        return times[0]
    raise SettingsError(f"no column of {seen.names[0]} holds times; give --time, one of {', '.join(seen.columns)}")


def _number_format(seen: Look, name: str) -> str | None:
    """How whole numbers, or text of them, are times."""
    return time_format([table[name] for _, table in seen.tables if name in table.column_names])


def _entity_column(seen: Look, asked: str | None, time: str) -> tuple[str, str]:
    if asked is not None:
        if asked == FILE_NAME:
            return asked, "One file per entity, named as the file."
        return known(asked, seen.columns, "entity"), "Tables with the rows of many entities."
    most = max(_repeated(table, [time]) for _, table in seen.tables)
    if not most:
        return FILE_NAME, "One file per entity, named as the file."
    found = [
        name for name in (*seen.everywhere("text"), *seen.everywhere("number")) if _may_be_entity(seen, time, name)
    ]
    found.sort(key=lambda name: name.lower() not in _ENTITY_NAMES)
    for name in found:
        if name.lower() in _ENTITY_NAMES or not any(_repeated(table, [time, name]) for _, table in seen.tables):
            return name, f"Tables with the rows of many entities, which {name} tells apart."
    if most < _FEW:
        return FILE_NAME, "One file per entity, named as the file."
    raise SettingsError(
        f"{seen.names[0]}: {time} repeats, and no column tells entities apart; give --entity COLUMN, or "
        f"--entity {FILE_NAME} if a file is one entity"
    )


def _may_be_entity(seen: Look, time: str, name: str) -> bool:
    """Text or whole numbers that come many times and not twice at most of the times."""
    if name == time:
        return False
    for _, table in seen.tables:
        column = table[name]
        if column.null_count or len(column.unique()) * 3 > max(6, len(column)):
            return False
        if seen.columns[name].kind == "number" and any("." in str(each) for each in column.unique().to_pylist()[:1000]):
            return False
        if _repeated(table, [time, name]) > _FEW:
            return False
    return True


def _repeated(table: pa.Table, columns: list[str]) -> float:
    """The share of rows that say the same in these columns as another."""
    distinct = table.select(columns).group_by(columns).aggregate([]).num_rows
    return 1.0 - int(distinct) / max(1, int(table.num_rows))


def _features(seen: Look, asked: AskedSeries, settings: dict[str, Any]) -> list[str]:
    if asked.feature_names:
        return [known(name, seen.columns, "feature") for name in asked.feature_names]
    roles = {settings["entity"], settings["time"], settings["target"]}
    return [name for name in seen.everywhere("number") if name not in roles and not _ROW_NUMBERS.fullmatch(name)]
