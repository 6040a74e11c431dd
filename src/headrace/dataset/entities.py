"""Find the rows of entities: the column that names them, and one pass over it.

An entity is a value of that column, as text.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import I64
from headrace.dataset.indexed import IndexedDataset, check_rows
from headrace.dataset.manifest import CONFIG, read_config
from headrace.engine.local import default_workers, run_tasks
from headrace.errors import InputError, SettingsError, setting_name
from headrace.formats.column_paths import has_column
from headrace.formats.text_columns import as_text
from headrace.gate.json import interpreting
from headrace.recipe import recipe_of_run


def entity_column(dataset: IndexedDataset, column: str | None = None) -> str:
    """Return the column that names the entity of a row: the one given, or that of the run's own
    settings.

    Raises `SettingsError` with a remedy if neither names one, or the rows have no such column.
    """
    names = dataset.schema.names
    manifest = getattr(dataset, "manifest", None)
    recipe = ""
    name = column
    if manifest is not None and column is None:
        recipe = f"a run of {manifest.recipe!r}"
        config = read_config(dataset.root, manifest)
        with interpreting(dataset.root / CONFIG):
            name = recipe_of_run(manifest.recipe).roles(config).get("entity")
        source = manifest.metadata.get("source_facts")
        name = (
            name
            or manifest.metadata.get("entity")
            or (source.get("entity") if isinstance(source, dict) else None)
        )
    if name is None and recipe:
        raise SettingsError(
            f"{recipe} does not record the entity of its rows, and {setting_name('entity_column')}"
            " does not name it",
            path=dataset.root,
            remedy=(
                "ask the data that it was made of, or name one of its columns if it says it:"
                f" {', '.join(names)}"
            ),
        )
    if name is None:
        raise SettingsError(
            "plain shards do not say which column names the entity of a row, and"
            f" {setting_name('entity_column')} is not given",
            path=dataset.root,
            remedy=f"give one of {', '.join(names)}",
        )
    if not has_column(dataset.schema, name):
        raise SettingsError(
            "it cannot name entities, as the dataset does not have it",
            path=dataset.root,
            column=name,
            remedy=f"use one of {', '.join(names)}",
        )
    return name


def find_entities(
    dataset: IndexedDataset,
    column: str,
    entities: Sequence[str],
    *,
    workers: int | None = None,
) -> dict[str, tuple[I64, I64]]:
    """Find the rows of entities in each split: the number of each row's entity in `entities`, and
    the row in the split, int64; ordered by entity, then row.

    Raises what reading raises, and `InputError` for a column that cannot be a key.
    """
    names = pa.array(entities, pa.large_string())
    nulls = dataset.dialect.null_values

    def look(split: str, number: int) -> tuple[I64, I64]:
        index = dataset.split_index(split)
        table = dataset.block_reader(split)(number, [column])
        check_rows(table, index, number, dataset.root)
        try:
            texts = as_text(table[column], nulls, column)
        except InputError as error:
            raise error.at(path=dataset.root) from error.__cause__
        which = pc.index_in(texts, value_set=names)
        rows = np.flatnonzero(np.asarray(which.is_valid()))
        entity = np.asarray(which.drop_null().combine_chunks(), np.int64)
        return entity, rows + index.first_row[number]

    rows_of = {}
    for split in dataset.splits:
        numbers = range(len(dataset.split_index(split).rows))
        tasks = [partial(look, split, number) for number in numbers]
        block_rows = run_tasks(tasks, workers or default_workers())
        which, rows = np.concatenate(
            [np.empty((2, 0), np.int64), *map(np.stack, block_rows)], axis=1
        )
        order = np.lexsort((rows, which))
        rows_of[split] = which[order], rows[order]
    return rows_of
