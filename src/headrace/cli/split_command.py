"""`headrace split`: the temporal split from flags, or from the environment of the script it replaces."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli.commands import Json, execute
from headrace.cli.environment import CONTAINER_OUT, CONTAINER_SOURCE, settings_from_environment
from headrace.cli.report_command import Report
from headrace.cli.spread import Address, Engine, ShardOf, Spread, WorkDir
from headrace.errors import SettingsError

HELP = """Split shards by time without leaking an entity.

Rows before the split date train or validate, by entity; rows from it on test entities that did not train.

Example:  headrace split raw --out out --date-column time --group-column customer --split-date 2025-01-01
"""

_COLUMNS, _OUTPUT, _ROWS = "Columns and dates", "Output", "Rows that do not fit"


def split(
    source: Annotated[
        list[str] | None, typer.Argument(help="Files, directories or glob patterns.", show_default=False)
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Output directory.", show_default=False)] = None,
    date_column: Annotated[
        str | None, typer.Option(help="When a row happened.", rich_help_panel=_COLUMNS, show_default=False)
    ] = None,
    group_column: Annotated[
        str | None,
        typer.Option(
            help="The entity: customer, device, aircraft, ... It never trains and tests.",
            rich_help_panel=_COLUMNS,
            show_default=False,
        ),
    ] = None,
    split_date: Annotated[
        str | None,
        typer.Option(help="The cutoff; the instant itself is test.", rich_help_panel=_COLUMNS, show_default=False),
    ] = None,
    train_ratio: Annotated[
        float | None, typer.Option(help="Share of entities that train; 0.9 unless given.", show_default=False)
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Decides which entities train; 42 unless given.", show_default=False)
    ] = None,
    layout: Annotated[
        str | None,
        typer.Option(
            help="sharded (default): a shard per source shard; single: one file a split.",
            rich_help_panel=_OUTPUT,
            show_default=False,
        ),
    ] = None,
    format_: Annotated[
        str | None,
        typer.Option(
            "--format", help="same (default) | csv | tsv | jsonl | parquet", rich_help_panel=_OUTPUT, show_default=False
        ),
    ] = None,
    compression: Annotated[
        str | None,
        typer.Option(
            help="Text: none | gz | zst, as the source unless given. Parquet: none | snappy | lz4 (default) | zstd.",
            rich_help_panel=_OUTPUT,
            show_default=False,
        ),
    ] = None,
    lineage: Annotated[
        bool, typer.Option("--lineage", help="Add source_shard and source_row to every row.", rich_help_panel=_OUTPUT)
    ] = False,
    shard_numbers: Annotated[
        str | None,
        typer.Option(
            help="keep (default): the N of part-N; dense: 0, 1, 2, ... in name order.",
            rich_help_panel=_OUTPUT,
            show_default=False,
        ),
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(help="Column of classes; becomes 0..k-1.", rich_help_panel=_COLUMNS, show_default=False),
    ] = None,
    targets: Annotated[
        str | None, typer.Option(help="Comma-separated target columns.", rich_help_panel=_COLUMNS, show_default=False)
    ] = None,
    main_task_index: Annotated[
        int | None,
        typer.Option(
            help="Which target becomes the maximum of the others.", rich_help_panel=_COLUMNS, show_default=False
        ),
    ] = None,
    types: Annotated[
        str | None,
        typer.Option(
            help="Types of text columns, e.g. distance=int32,delay=float32.",
            rich_help_panel=_COLUMNS,
            show_default=False,
        ),
    ] = None,
    null_values: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated texts that mean missing, e.g. NA.", rich_help_panel=_ROWS, show_default=False
        ),
    ] = None,
    signature: Annotated[
        Path | None,
        typer.Option(
            help="File with the column names of headerless CSV or TSV.", rich_help_panel=_COLUMNS, show_default=False
        ),
    ] = None,
    date_format: Annotated[
        str | None,
        typer.Option(
            help="auto (default) | iso | epoch_s | epoch_ms | yyyymmdd | a strptime pattern.",
            rich_help_panel=_COLUMNS,
            show_default=False,
        ),
    ] = None,
    timezone: Annotated[
        str | None,
        typer.Option(
            help="Zone of dates without offset; UTC unless given.", rich_help_panel=_COLUMNS, show_default=False
        ),
    ] = None,
    null_group: Annotated[
        str | None,
        typer.Option(
            help="Rows without entity: error (default) | own: one entity together | drop, counted.",
            rich_help_panel=_ROWS,
            show_default=False,
        ),
    ] = None,
    null_date: Annotated[
        str | None,
        typer.Option(
            help="Rows without a readable date: error (default) | drop, counted.",
            rich_help_panel=_ROWS,
            show_default=False,
        ),
    ] = None,
    val_in_test: Annotated[
        str | None,
        typer.Option(
            help="Entities that validate may test: keep (default) | drop: they may not.",
            rich_help_panel=_ROWS,
            show_default=False,
        ),
    ] = None,
    schema_drift: Annotated[
        str | None,
        typer.Option(
            help="Shards that differ: error (default) | widen the schema where nothing is lost.",
            rich_help_panel=_ROWS,
            show_default=False,
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Shards at a time; default one per core.", show_default=False)
    ] = None,
    engine: Engine = None,
    address: Address = None,
    shard_of: ShardOf = None,
    work_dir: WorkDir = None,
    from_env: Annotated[
        bool,
        typer.Option("--from-env", help="Take what is not given from DATE_COLUMN, GROUP_ID_COLUMN, SPLIT_DATE, ..."),
    ] = False,
    report: Report = "auto",
    as_json: Json = False,
) -> None:
    """See HELP; the docstring of a command is its long help."""
    given: dict[str, Any] = {
        "date_column": date_column,
        "group_column": group_column,
        "split_date": split_date,
        "train_ratio": train_ratio,
        "seed": seed,
        "layout": layout,
        "format": format_,
        "compression": compression,
        "lineage": "columns" if lineage else None,
        "shard_numbers": shard_numbers,
        "label": label,
        "targets": _names(targets),
        "main_task_index": main_task_index,
        "types": _types(types),
        "null_values": _names(null_values),
        "signature": signature,
        "date_format": date_format,
        "timezone": timezone,
        "null_group": null_group,
        "null_date": null_date,
        "val_in_test": val_in_test,
        "schema_drift": schema_drift,
    }
    given = {name: value for name, value in given.items() if value is not None}
    if from_env:
        environment = settings_from_environment(os.environ)
        workers = workers if workers is not None else environment.workers
        given = {**environment.settings, **given}
        source = source or [CONTAINER_SOURCE]
        out = out or Path(CONTAINER_OUT)
        if "signature" not in given:
            given |= _container_signature(Path(source[0]))
    if not source:
        raise SettingsError("no source; give files, a directory or a glob pattern: headrace split SOURCE --out OUT ...")
    if out is None:
        raise SettingsError("no output directory; give --out OUT")
    _require(given, from_env)

    from headrace.storage.remote_path import is_remote

    if from_env and is_remote(out):
        raise SettingsError(f"--from-env lays links and copies beside the run, and {out} has none; leave it out")

    from headrace.recipes.temporal_split.config import TemporalSplit

    run = execute(
        TemporalSplit(source=source, **given),
        out,
        workers,
        "json" if as_json else "text",
        Spread(engine, address, shard_of, work_dir),
        report,
    )
    if from_env:
        from headrace.run.export import export_tree

        export_tree(run, out, ("training_data", "oot_data"))


def _require(given: dict[str, Any], from_env: bool) -> None:
    names = {"date_column": "DATE_COLUMN", "group_column": "GROUP_ID_COLUMN", "split_date": "SPLIT_DATE"}
    missing = [name for name in names if name not in given]
    if missing:
        flags = ", ".join("--" + name.replace("_", "-") for name in missing)
        variables = f" or set {', '.join(names[name] for name in missing)}" if from_env else ""
        raise SettingsError(f"not given: {flags}; add {'them' if len(missing) > 1 else 'it'}{variables}")


def _names(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(name.strip() for name in text.split(",") if name.strip())


def _types(text: str | None) -> dict[str, str] | None:
    if text is None:
        return None
    pairs: Sequence[list[str]] = [pair.rsplit("=", 1) for pair in text.split(",") if pair.strip()]
    for pair in pairs:
        if len(pair) != 2:
            raise SettingsError(f"--types: {pair[0]!r} is no NAME=TYPE; write e.g. distance=int32")
    return {name.strip(): word.strip() for name, word in pairs}


def _container_signature(source: Path) -> dict[str, Path]:
    """The container job's signature file: the first file of the `signature` directory beside its data."""
    directory = source.parent / "signature"
    files = sorted(each for each in directory.iterdir() if each.is_file()) if directory.is_dir() else []
    return {"signature": files[0]} if files and files[0].stat().st_size else {}
