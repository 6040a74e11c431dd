"""Read static attributes from tables joined on the entity, and turn them into model inputs. O(entities) of memory.

Numbers are scaled and texts encoded, both fitted only on retained entities that train.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import InputError
from headrace.formats import delimited
from headrace.formats.registry import FileType, file_type_of_name
from headrace.formats.source import read_chunks, survey
from headrace.formats.text_columns import as_text, numbers, with_points
from headrace.formats.types import is_text
from headrace.series.arrays.encoders import Encoder, fit_encoder
from headrace.series.config import Series
from headrace.series.pipelines.fitted import Fitted, fit
from headrace.series.readers.text import text_table


@dataclass(frozen=True)
class Statics:
    """The static features of entities, sorted by name: one row each, null if missing.

    strangers: number of entities in static files that have no series.
    unknown: entities with a text that reused encoders do not know: entity → message.
    """

    entities: list[str]
    table: pl.DataFrame
    strangers: int
    unknown: dict[str, str]

    def lacking(self) -> dict[str, str]:
        """Return the entities that lack some features, or have unknown ones: entity → message."""
        missing = self.table.select(pl.all().is_null()).to_numpy()
        found = dict(self.unknown)
        for row in np.flatnonzero(missing.any(axis=1)).tolist():
            absent = [name for name, gone in zip(self.table.columns, missing[row], strict=True) if gone]
            found[self.entities[row]] = f"has no static {', '.join(absent[:5])}" + (", …" if len(absent) > 5 else "")
        return found


def read_statics(settings: Series, files: Sequence[tuple[Path, str]], entities: Sequence[str]) -> Statics:
    """Read the static features of these entities from all files. An entity in no file lacks all of them.

    Raises `InputError` if a feature is in no file, is not a number and has no encoder, or if two files disagree about
    an entity.
    """
    encoded, names = settings.resolved.encoded, pl.DataFrame({"entity": sorted(entities)}, {"entity": pl.String})
    key = settings.static_entity or settings.entity
    said: dict[str, list[pl.DataFrame]] = {name: [] for name in sorted(settings.static_features)}
    strangers: set[str] = set()
    for path, name in files:
        if not path.stat().st_size:
            continue
        table = static_table(settings, path, name, key, said)
        # null_values apply to values only: a key may be called NA
        keys = pl.Series("entity", as_text(table[key], ("",), f"{path}: column {key!r}"), dtype=pl.String)
        strangers |= set(keys.drop_nulls()).difference(entities)
        for feature in (each for each in said if each in table.column_names):
            read = (_texts if feature in encoded else _numbers)(settings, path, feature, table[feature])
            said[feature].append(pl.DataFrame({"entity": keys, "value": read, "file": str(path)}).drop_nulls())
    columns = []
    for feature, parts in said.items():
        if not parts:
            shown = f"{', '.join(str(path) for path, _ in files[:3])}{', …' if len(files) > 3 else ''}"
            raise InputError(f"{shown}: no file has the static feature {feature!r}; correct static_features")
        own = pl.concat(parts).join(names, on="entity", how="semi", maintain_order="left")
        before = pl.col("value", "file").shift().over("entity").name.prefix("other_")
        for clash in own.with_columns(before).filter(pl.col("value") != pl.col("other_value")).iter_rows(named=True):
            raise InputError(
                f"{clash['file']}: {feature} of {clash['entity']} is {clash['value']!r}, {clash['other_file']} has "
                f"{clash['other_value']!r} for it; correct one of them"
            )
        whole = names.join(own.unique("entity"), on="entity", how="left", maintain_order="left")
        columns.append(whole["value"].alias(feature))
    table, unknown = pl.DataFrame(columns), dict[str, str]()
    for encoder in () if settings.reused is None else settings.reused.pipelines().static_encoders:
        for feature, known in zip(encoder.columns, encoder.categories, strict=True):
            if encoder.step["handle_unknown"] == "error":
                for name, text in zip(names["entity"], table[feature], strict=True):
                    if text is not None and text not in known:
                        why = "which no entity had that the encoder was fitted on"
                        unknown[name] = f"its static {feature} is {text!r}, {why}"
    return Statics(names["entity"].to_list(), table, len(strangers), unknown)


def _numbers(settings: Series, path: Path, name: str, column: pa.ChunkedArray) -> pl.Series:
    try:
        read = np.asarray(
            numbers(with_points(column, settings.decimal), settings.null_values, name).to_numpy(), np.float64
        )
    except (InputError, pa.ArrowNotImplementedError) as error:
        raise InputError(
            f"{path}: {error}; static features are numbers, or texts with an encoder: leave {name!r} out, or encode it "
            f"by a pipeline of its own in preprocessing_configs.static_features, {{strategy: unified, columns: "
            f"[{name}], pipeline: [OneHotEncoder]}} or [OrdinalEncoder], and name the columns of the others"
        ) from None
    if np.isinf(read).any():
        raise InputError(f"{path}: row {int(np.argmax(np.isinf(read))) + 1}: {name} is infinite; correct it")
    return pl.Series(np.where(np.isin(read, settings.missing_numbers), np.nan, read)).fill_nan(None)


def _texts(settings: Series, path: Path, name: str, column: pa.ChunkedArray) -> pl.Series:
    """Return a column as texts; numbers are converted to texts."""
    if is_text(column.type):
        column = pc.utf8_trim_whitespace(column)
    read = pl.Series(as_text(column, settings.null_values, f"{path}: column {name!r}"), dtype=pl.String)
    if settings.missing_numbers and not is_text(column.type):
        marked = np.isin(np.asarray(column.cast(pa.float64(), safe=False).to_numpy()), settings.missing_numbers)
        read = read.set(pl.Series(marked), None)
    return read


def static_table(
    settings: Series, path: Path, name: str, key: str | None = None, columns: Container[str] = ()
) -> pa.Table:
    """Read all columns of a static file, or the column `key` and its columns among `columns`. Raises `InputError`.

    A .txt file is delimited text, and its separator is detected as in CSV files. All its columns are text without
    padding.
    """
    is_plain_text = ".txt" in path.name.lower()
    kind = file_type_of_name(path.name)
    if is_plain_text:
        kind = FileType.named("csv", "gz" if path.suffix == ".gz" else "zst" if path.suffix == ".zst" else "none")
    if kind is not None and kind.format.separator is not None and settings.rewritten_text:
        whole = text_table(path, name, kind, comment=settings.comment, encoding=settings.encoding)
        shard = None
        schema = whole.schema
    else:
        shard = survey(path, name) if kind is None or not is_plain_text else delimited.survey(path, path.name, kind)
        schema = shard.schema
    names = schema.names
    if key is not None and key not in names:
        raise InputError(
            f"{path}: has no column {key!r} to join on; it has {', '.join(names[:12])}; correct static_entity"
        )
    own = [each for each in names if key is None or each == key or each in columns]
    pieces = [whole.select(own)] if shard is None else [chunk.table(own) for chunk in read_chunks(shard, own)]
    table = pa.concat_tables(pieces or [schema.empty_table().select(own)])
    if is_plain_text:
        table = pa.table({each: pc.utf8_trim_whitespace(table[each]) for each in own})
    return table


def processed_statics(
    settings: Series, statics: Statics, entities: Sequence[str]
) -> tuple[pa.Table, Fitted, tuple[Encoder, ...], dict[str, int]]:
    """Fit and transform the static features of these entities. Raises `InputError` if that cannot be done.

    Held-out entities are not part of a fit. Reused pipelines transform, and nothing is fitted. Returns a table of
    entities and float32 features by name, with the encoded columns in place of each text; the fitted pipelines and
    encoders; and, by feature, the number of entities that lacked it and got the mean or median (only if there are any).
    """
    resolved, reused = settings.resolved, None if settings.reused is None else settings.reused.pipelines()
    trains = np.array([settings.division.trains(each) for each in entities], np.bool_)
    row_of = {name: row for row, name in enumerate(statics.entities)}
    table = statics.table[[row_of[each] for each in entities]]
    numeric = [name for name in table.columns if name not in resolved.encoded]
    given = table.select(numeric).to_numpy() if numeric else np.empty((len(table), 0))
    missing, values = np.isnan(given), given
    if settings.missing_static in ("mean", "median") and missing.any():
        for at in np.flatnonzero(missing[trains].all(axis=0)):
            raise InputError(
                f"static feature {numeric[at]!r} is missing for every entity; take it out of static_features"
            )
        middle = (np.nanmean if settings.missing_static == "mean" else np.nanmedian)(given[trains], axis=0)
        values = np.where(missing, middle, given)
    lacked = (missing & ~np.isnan(values)).sum(axis=0).tolist()
    offsets = np.arange(len(entities) + 1, dtype=np.int64)
    if reused is None:
        trained = [each for each, own in zip(entities, trains, strict=True) if own]
        fitted = fit(
            resolved.static_scaling, numeric, values[trains], offsets[: len(trained) + 1], trained, strategy="unified"
        )
    else:
        fitted = reused.static_features
    scaled = fitted.transform(numeric, values, offsets, entities)
    columns = {name: [(name, column)] for name, column in zip(numeric, scaled.T, strict=True)}
    encoders = []
    for each in resolved.static_encoding:
        assert each.encoder is not None
        texts = {name: table[name].to_list() for name in each.columns or ()}
        for name, own in texts.items():
            if None in own:
                raise InputError(
                    f"entity {entities[own.index(None)]!r} has no static {name}, and a text has no "
                    f"{settings.missing_static}; complete the static files, or give missing_static='drop_entity'"
                )
        of_run = () if reused is None else reused.static_encoders
        encoder = next((one for one in of_run if one.columns == tuple(texts)), None)
        those = {name: [text for text, own in zip(texts[name], trains, strict=True) if own] for name in texts}
        encoder = encoder or fit_encoder(each.encoder, tuple(texts), those)
        codes = dict(zip(encoder.names, encoder.transform(texts).T.astype(np.float32), strict=True))
        columns |= {name: [(out, codes[out]) for out in encoder.names_of(name)] for name in texts}
        encoders.append(encoder)
    made = [(settings.entity_column, entities), *(column for name in table.columns for column in columns[name])]
    called = [name for name, _ in made]
    twice = sorted({name for name in called if called.count(name) > 1})
    if twice:
        raise InputError(
            f"{len(twice)} columns of static features would have the same name, first {twice[0]!r}: that of a category "
            "is COLUMN_CATEGORY; rename the other column in the static files"
        )
    filled = {name: count for name, count in zip(numeric, lacked, strict=True) if count}
    types = [pa.string(), *[pa.float32()] * (len(made) - 1)]
    schema = pa.schema([pa.field(name, kind, nullable=False) for name, kind in zip(called, types, strict=True)])
    arrays = [pa.array(column, kind) for (_, column), kind in zip(made, types, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema), fitted, tuple(encoders), filled
