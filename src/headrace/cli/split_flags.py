"""The flags of `headrace split` that are settings of `TemporalSplit`, by what they are about."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli.flags import given_in
from headrace.errors import SettingsError

_column = partial(typer.Option, rich_help_panel="Columns and dates", show_default=False)
_output = partial(typer.Option, rich_help_panel="Output", show_default=False)
_row = partial(typer.Option, rich_help_panel="Rows that do not fit", show_default=False)


@dataclass(frozen=True, kw_only=True)
class ColumnsAndDates:
    """Which column is what, and how dates are read."""

    date_column: Annotated[str | None, _column(help="When a row happened.")] = None
    group_column: Annotated[
        str | None, _column(help="The entity: customer, device, aircraft, ... It never trains and tests.")
    ] = None
    split_date: Annotated[str | None, _column(help="The cutoff; the instant itself is test.")] = None
    label: Annotated[str | None, _column(help="Column of classes; becomes 0..k-1.")] = None
    targets: Annotated[str | None, _column(help="Comma-separated target columns.")] = None
    main_task_index: Annotated[int | None, _column(help="Which target becomes the maximum of the others.")] = None
    types: Annotated[str | None, _column(help="Types of text columns, e.g. distance=int32,delay=float32.")] = None
    signature: Annotated[Path | None, _column(help="File with the column names of headerless CSV or TSV.")] = None
    date_format: Annotated[
        str | None,
        _column(
            help="auto (default) | iso | epoch_s | _ms | _us | _ns | _days | excel_days | yyyymmdd | strptime pattern."
        ),
    ] = None
    timezone: Annotated[str | None, _column(help="Zone of dates without offset; UTC unless given.")] = None


@dataclass(frozen=True, kw_only=True)
class Output:
    """What is written."""

    layout: Annotated[
        str | None, _output(help="sharded (default): a shard per source shard; single: one file a split.")
    ] = None
    format: Annotated[str | None, _output(help="same (default) | csv | tsv | jsonl | parquet")] = None
    compression: Annotated[
        str | None,
        _output(
            help="Text: none | gz | zst, as the source unless given. Parquet: none | snappy | lz4 (default) | zstd."
        ),
    ] = None
    lineage: Annotated[
        bool,
        typer.Option("--lineage", help="Add source_shard and source_row to every row.", rich_help_panel="Output"),
    ] = False
    shard_numbers: Annotated[
        str | None, _output(help="keep (default): the N of part-N; dense: 0, 1, 2, ... in name order.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class RowsThatDoNotFit:
    """What becomes of nulls, of entities on both sides, and of shards that differ."""

    null_values: Annotated[str | None, _row(help="Comma-separated texts that mean missing, e.g. NA.")] = None
    null_group: Annotated[
        str | None, _row(help="Rows without entity: error (default) | own: one entity together | drop, counted.")
    ] = None
    null_date: Annotated[str | None, _row(help="Rows without a readable date: error (default) | drop, counted.")] = None
    val_in_test: Annotated[
        str | None, _row(help="Entities that validate may test: keep (default) | drop: they may not.")
    ] = None
    schema_drift: Annotated[
        str | None, _row(help="Shards that differ: error (default) | widen the schema where nothing is lost.")
    ] = None


def settings_in(columns: ColumnsAndDates, output: Output, rows: RowsThatDoNotFit) -> dict[str, Any]:
    """What was given, as settings of `TemporalSplit`. Raises `SettingsError` for --types that are none."""
    given = given_in(columns, output, rows)
    if given.pop("lineage"):
        given["lineage"] = "columns"
    for name in ("targets", "null_values"):
        if name in given:
            given[name] = _names(given[name])
    if "types" in given:
        given["types"] = _types(given["types"])
    return given


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _types(text: str) -> dict[str, str]:
    pairs = [pair.rsplit("=", 1) for pair in text.split(",") if pair.strip()]
    for pair in pairs:
        if len(pair) != 2:
            raise SettingsError(f"--types: {pair[0]!r} is no NAME=TYPE; write e.g. distance=int32")
    return {name.strip(): word.strip() for name, word in pairs}
