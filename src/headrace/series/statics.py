"""Read static attributes from tables joined on the entity, and turn them into model inputs.

Numbers are scaled and texts encoded, both fitted only on retained entities in train. O(entities)
of memory.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import F32, Bools
from headrace.errors import InputError, setting_name
from headrace.formats import delimited
from headrace.formats.registry import Compression, FileType, file_type_of_name
from headrace.formats.source import read_chunks, survey
from headrace.formats.text_columns import as_text, numbers
from headrace.formats.types import is_text
from headrace.series.arrays.encoders import Encoder, fit_encoder
from headrace.series.pipelines.fitted import Fitted, fit
from headrace.series.pipelines.settings import PipelineSettings

if TYPE_CHECKING:
    from headrace.series.settings import Series

_COMPRESSIONS: dict[str, Compression] = {".gz": "gz", ".zst": "zst"}


@dataclass(frozen=True)
class Statics:
    """The static features of entities, one row each, in the order given, null if missing.

    unused: number of entities in static files that have no series.
    unknown: entities with a text that reused encoders do not know: entity → message.
    """

    entities: list[str]
    table: pl.DataFrame
    unused: int
    unknown: dict[str, str]

    def lacking(self) -> dict[str, str]:
        """Return the entities that lack some features, or have unknown ones: entity → message."""
        missing = self.table.select(pl.all().is_null()).to_numpy()
        messages = dict(self.unknown)
        for row in np.flatnonzero(missing.any(axis=1)).tolist():
            names = np.array(self.table.columns)[missing[row]].tolist()
            more = ", …" if len(names) > 5 else ""
            messages[self.entities[row]] = f"has no static {', '.join(names[:5])}{more}"
        return messages


def read_statics(  # noqa: PLR0914 - files are joined column by column
    settings: Series, files: Sequence[tuple[Path, str]], entities: Sequence[str]
) -> Statics:
    """Read the static features of these entities from all files. An entity in no file lacks all of
    them.

    Raises `InputError` if a feature is in no file, is not a number and has no encoder, or if two
    files disagree about an entity.
    """
    encoded = settings.resolved.encoded
    names = pl.DataFrame({"entity": sorted(entities)}, {"entity": pl.String})
    key = settings.static_entity or settings.entity
    values: dict[str, list[pl.DataFrame]] = {name: [] for name in settings.static_features}
    unused: set[str] = set()
    for path, name in files:
        if not path.stat().st_size:
            continue
        table = static_table(settings, path, name, key, values)
        # null_values apply to values only: a key may be called NA
        texts = as_text(table[key], ("",), key, path)
        keys = pl.Series("entity", texts, dtype=pl.String)
        unused |= set(keys.drop_nulls()).difference(entities)
        for feature, parts in values.items():
            if feature in table.column_names:
                read = _read_texts if feature in encoded else _read_numbers
                column = read(settings, path, feature, table[feature])
                part = {"entity": keys, "value": column, "file": str(path)}
                parts.append(pl.DataFrame(part).drop_nulls())
    columns = []
    for feature, parts in values.items():
        if not parts:
            paths = ", ".join(str(path) for path, _ in files[:3])
            more = ", …" if len(files) > 3 else ""
            raise InputError(
                f"no file has it: {paths}{more}",
                setting="static_features",
                column=feature,
                remedy="correct the names",
            )
        known = pl.concat(parts).join(names, on="entity", how="semi", maintain_order="left")
        _refuse_contradictions(feature, known)
        known = known.unique("entity")
        joined = names.join(known, on="entity", how="left", maintain_order="left")
        columns.append(joined["value"].alias(feature))
    table = pl.DataFrame(columns)
    unknown = _unknown_texts(settings, names["entity"], table)
    return Statics(names["entity"].to_list(), table, len(unused), unknown)


def _refuse_contradictions(feature: str, known: pl.DataFrame) -> None:
    """Raise `InputError` if two files have different values of a feature for an entity."""
    before = pl.col("value", "file").shift().over("entity").name.prefix("other_")
    clashes = known.with_columns(before).filter(pl.col("value") != pl.col("other_value"))
    for clash in clashes.iter_rows(named=True):
        raise InputError(
            f"{clash['other_file']} has {clash['other_value']!r} for entity {clash['entity']}",
            path=clash["file"],
            column=feature,
            value=clash["value"],
            remedy="correct one of them",
        )


def _unknown_texts(settings: Series, entities: pl.Series, table: pl.DataFrame) -> dict[str, str]:
    """Return the entities with a text that reused encoders do not know: entity → message."""
    unknown: dict[str, str] = {}
    if settings.reused is None:
        return unknown
    for encoder in settings.reused.pipelines().static_encoders:
        if encoder.step["handle_unknown"] != "error":
            continue
        for feature, known in zip(encoder.columns, encoder.categories, strict=True):
            for entity, text in zip(entities, table[feature], strict=True):
                if text is not None and text not in known:
                    unknown[entity] = (
                        f"its static {feature} is {text!r}, which no entity had that the encoder"
                        " was fitted on"
                    )
    return unknown


def _read_numbers(settings: Series, path: Path, name: str, column: pa.ChunkedArray) -> pl.Series:
    try:
        parsed = numbers(column, settings.dialect, name)
        values = np.asarray(parsed.to_numpy(), np.float64)
    except (InputError, pa.ArrowNotImplementedError) as error:
        configs = setting_name("preprocessing_configs")
        raise InputError(
            f"static features are numbers, or texts with an encoder ({error})",
            path=path,
            column=name,
            remedy=(
                f"leave it out, or encode it by a pipeline of its own in {configs},"
                f" static_features: {{strategy: unified, columns: [{name}], pipeline:"
                " [OneHotEncoder]} or [OrdinalEncoder], and name the columns of the others"
            ),
        ) from None
    infinite = np.isinf(values)
    if infinite.any():
        row = int(np.argmax(infinite)) + 1
        raise InputError("infinite", path=path, row=row, column=name, remedy="correct it")
    values = np.where(np.isin(values, settings.missing_numbers), np.nan, values)
    return pl.Series(values).fill_nan(None)


def _read_texts(settings: Series, path: Path, name: str, column: pa.ChunkedArray) -> pl.Series:
    """Return a column as texts; numbers are converted to texts."""
    if is_text(column.type):
        column = pc.utf8_trim_whitespace(column)
    texts = as_text(column, settings.dialect.null_values, name, path)
    values = pl.Series(texts, dtype=pl.String)
    if settings.missing_numbers and not is_text(column.type):
        as_numbers = np.asarray(column.cast(pa.float64(), safe=False).to_numpy())
        missing = np.isin(as_numbers, settings.missing_numbers)
        values = values.set(pl.Series(missing), None)
    return values


def static_table(
    settings: Series, path: Path, name: str, key: str | None = None, columns: Container[str] = ()
) -> pa.Table:
    """Read all columns of a static file, or the column `key` and its columns among `columns`.

    A .txt file is delimited text, and its separator is detected as in CSV files. All its columns
    are text without padding. Raises `InputError`.
    """
    is_plain_text = ".txt" in path.name.lower()
    file_type = file_type_of_name(path.name)
    if is_plain_text:
        file_type = FileType.named("csv", _COMPRESSIONS.get(path.suffix, "none"))
    if file_type is not None and is_plain_text:
        shard = delimited.survey(path, path.name, file_type, dialect=settings.dialect)
    else:
        shard = survey(path, name, dialect=settings.dialect)
    names = shard.schema.names
    if key is not None:
        if key not in names:
            raise InputError(
                f"the file cannot be joined on it, it has {', '.join(names[:12])}",
                setting="static_entity",
                path=path,
                column=key,
                remedy="correct the name",
            )
        names = [name for name in names if name == key or name in columns]
    chunks = [chunk.table(names) for chunk in read_chunks(shard, names)]
    table = pa.concat_tables(chunks or [shard.schema.empty_table().select(names)])
    if is_plain_text:
        table = pa.table({name: pc.utf8_trim_whitespace(table[name]) for name in names})
    return table


@dataclass(frozen=True)
class ProcessedStatics:
    """The static features of the retained entities as model inputs.

    table: entities, then float32 features in the order given, with the encoded columns in place of
    each text.
    """

    table: pa.Table
    fitted: Fitted
    encoders: tuple[Encoder, ...]


def process_statics(  # noqa: PLR0914 - numbers and texts are fitted apart, then joined
    settings: Series, statics: Statics, entities: Sequence[str]
) -> ProcessedStatics:
    """Fit and transform the static features of these entities.

    Held-out entities are not part of a fit. Reused pipelines transform, and nothing is fitted.
    Raises `InputError` if that cannot be done.
    """
    resolved = settings.resolved
    trains = np.array([settings.division.trains(entity) for entity in entities], np.bool_)
    row_of = {name: row for row, name in enumerate(statics.entities)}
    table = statics.table[[row_of[entity] for entity in entities]]
    numeric = [name for name in table.columns if name not in resolved.encoded]
    values = np.empty((len(table), 0))
    if numeric:
        values = table.select(numeric).to_numpy()
    offsets = np.arange(len(entities) + 1, dtype=np.int64)
    if settings.reused is None:
        trained = np.array(entities, object)[trains].tolist()
        train_offsets = offsets[: len(trained) + 1]
        fitted = fit(
            resolved.static_scaling,
            numeric,
            values[trains],
            train_offsets,
            trained,
            strategy="unified",
        )
    else:
        fitted = settings.reused.pipelines().static_features
    scaled = fitted.transform(numeric, values, offsets, entities)
    columns = {name: {name: scaled[:, number]} for number, name in enumerate(numeric)}
    encoders = []
    for pipeline in resolved.static_encoding:
        texts = {name: table[name].to_list() for name in pipeline.columns or ()}
        encoder = _encoder(settings, pipeline, texts, trains)
        codes = encoder.transform(texts).astype(np.float32)
        by_name = dict(zip(encoder.names, codes.T, strict=True))
        for name in texts:
            columns[name] = {output: by_name[output] for output in encoder.names_of(name)}
        encoders.append(encoder)
    processed = _input_table(settings, entities, [columns[name] for name in table.columns])
    return ProcessedStatics(processed, fitted, tuple(encoders))


def _input_table(
    settings: Series, entities: Sequence[str], columns: Sequence[Mapping[str, F32]]
) -> pa.Table:
    """Return the entities and their inputs as a table. Raises `InputError` for a repeated name."""
    arrays = [pa.array(entities, pa.string())]
    fields = [pa.field(settings.entity_column, pa.string(), nullable=False)]
    for outputs in columns:
        for output, codes in outputs.items():
            arrays.append(pa.array(codes, pa.float32()))
            fields.append(pa.field(output, pa.float32(), nullable=False))
    names = [field.name for field in fields]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InputError(
            f"{len(repeated)} columns of static features would repeat a name; that of a category is"
            " COLUMN_CATEGORY",
            column=repeated[0],
            remedy="rename the other column in the static files",
        )
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _encoder(
    settings: Series, pipeline: PipelineSettings, texts: dict[str, list[str]], trains: Bools
) -> Encoder:
    """Return the reused encoder of these columns, or fit one on entities in train."""
    columns = tuple(texts)
    if settings.reused is not None:
        for encoder in settings.reused.pipelines().static_encoders:
            if encoder.columns == columns:
                return encoder
    train_texts = {name: np.array(texts[name], object)[trains].tolist() for name in columns}
    assert pipeline.encoder is not None
    return fit_encoder(pipeline.encoder, columns, train_texts)
