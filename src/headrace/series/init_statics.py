"""Which static attributes every entity has, and by which column they are joined."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.cli.init.asked import AskedSeries
from headrace.cli.init.look import first_rows, known, number_share
from headrace.errors import SettingsError
from headrace.series.config import FILE_NAME, Series
from headrace.series.files import static_files
from headrace.series.init_roles import Draft
from headrace.series.statics import read_statics, text_table


def look_at_statics(draft: Draft, asked: AskedSeries) -> None:
    wanted = set(draft.entities)
    shape = Series(**{**draft.settings, "static": asked.static, "static_entity": "?", "static_features": ["?"]})
    files = static_files(shape.source_files())
    tables = [(path, text_table(path) if ".txt" in name.lower() else first_rows(path, name)) for path, name in files]
    counts = Counter(name for _, table in tables for name in table.column_names)
    key = _static_key(tables, wanted)
    draft.settings["static"] = asked.static
    if draft.settings["entity"] == FILE_NAME or key != draft.settings["entity"]:
        draft.settings["static_entity"] = key
    numbers = [
        name
        for name in counts
        if name != key
        and all(number_share(table[name]) is not None for _, table in tables if name in table.column_names)
    ]
    if asked.static_names:
        for name in asked.static_names:
            known(name, counts, "static feature")
        draft.settings["static_features"] = asked.static_names
        draft.settings["missing_static"] = "drop_entity"
        draft.texts = [name for name in asked.static_names if name not in numbers]
        return
    signatures = {name for path, table in tables if path.name.startswith("camels_hydro") for name in table.column_names}
    numbers = [name for name in numbers if name not in signatures]
    if not numbers:
        raise SettingsError(f"{files[0][0]}: has no column of numbers; leave --static out")
    values = read_statics(Series(**{**draft.settings, "static_features": numbers}), files, draft.entities)
    has_any = ~np.isnan(values.values).all(axis=1)
    keep = []
    for name, column in zip(values.names, values.values[has_any].T, strict=True):
        if not np.isnan(column).any() and (len(draft.entities) == 1 or len(np.unique(column)) > 1):
            keep.append(name)
    left = [name for name in values.names if name not in keep]
    draft.settings["static_features"] = keep
    draft.settings["missing_static"] = "drop_entity"
    words = f"{len(keep)} columns of numbers that every entity has."
    if left:
        words += f" Left out, as some entity lacks them or all have the same: {', '.join(left[:30])}"
        words += ", …." if len(left) > 30 else "."
    if signatures:
        words += " Those of camels_hydro are left out too: they are computed from streamflow, val and test included."
    others = [name for name in counts if name not in {key, *numbers, *signatures}]
    if others:
        words += f" Texts are left out too, which --static-features has encoded: {', '.join(others[:30])}"
        words += ", …." if len(others) > 30 else "."
    if not has_any.all():
        words += f" {int((~has_any).sum()):,} entities have no static features, and leave the run."
    draft.words["static"] = words


def _static_key(tables: Sequence[tuple[Path, pa.Table]], entities: set[str]) -> str:
    """The column whose values are entities most often."""
    best, most = "", 0
    for _, table in tables:
        for name in table.column_names:
            found = len(set(pc.cast(table[name], pa.string()).to_pylist()) & entities)
            if found > most:
                best, most = name, found
    if not best:
        raise SettingsError(
            "no column of the static files holds the names of the entities; correct --static, or name the files as "
            "the entities"
        )
    return best
