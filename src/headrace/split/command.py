"""`headrace split`: a split in time or a random one from flags, or a split in time from the
environment of the container job it replaces.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli.commands import execute
from headrace.cli.settings_flags import PartialFlagValues, RunOptions
from headrace.errors import SettingsError, setting, setting_name
from headrace.split.random_split import RandomSplit
from headrace.split.settings import SplitSettings, TemporalSplit

# paths of the container job
_SOURCE = "/opt/ml/processing/input/data"
_OUT = "/opt/ml/processing/output"
_REQUIRED = {"time": "DATE_COLUMN", "entity": "GROUP_ID_COLUMN", "split_date": "SPLIT_DATE"}


def split(
    source: Annotated[
        list[str] | None,
        typer.Argument(help="Files, directories or glob patterns.", show_default=False),
    ] = None,
    *,
    out: Annotated[Path | None, typer.Option(help="Output directory.", show_default=False)] = None,
    from_env: Annotated[
        bool,
        typer.Option(
            "--from-env",
            help="Take what is not given from DATE_COLUMN, GROUP_ID_COLUMN, SPLIT_DATE, ...",
        ),
    ] = False,
    lineage: Annotated[
        bool,
        typer.Option(
            "--lineage",
            help="Add source_shard and source_row to every row.",
            rich_help_panel="Output",
        ),
    ] = False,
    flag_values: PartialFlagValues,
    about: RunOptions,
) -> None:
    """Split shards by time without leaking an entity, or at random where there is no time.

    Rows before the split date are in train or val, by entity; rows on or after it are in test,
    except entities already in train. Without --entity time alone decides. Without --time, rows are
    drawn, equal ones together, or by --by the groups of a column.

    Example:  headrace split raw --out out --time time --entity customer --split-date 2025-01-01
    """
    settings = flag_values.values | ({"lineage": "columns"} if lineage else {})
    if from_env:
        variables, workers = settings_from_environment(flag_values.environment)
        if about.workers is None:
            about = replace(about, workers=workers)
        if about.max_dropped is None:  # as in the job that it replaces
            about = replace(about, max_dropped=1.0)
        settings = {**variables, **settings}
        if settings["format"] in ("csv", "tsv"):
            settings.setdefault("compression", "none")
        source = source or [_SOURCE]
        out = out or Path(_OUT)
        settings = _signature_beside(Path(source[0])) | settings
    flags = []
    if not source:
        flags.append("SOURCE")
    if out is None:
        flags.append(setting("out"))
    _refuse_missing(flags, settings, from_env)
    assert out is not None

    if from_env:
        _refuse_address(out)
    run = execute(_model(settings)(source=source, **settings), out, about)
    if from_env:
        from headrace.run.prepare import export_tree

        export_tree(run, out, ("training_data", "oot_data"))


def _signature_beside(source: Path) -> dict[str, Any]:
    """Return the job's signature as a setting: the first file of `signature` beside its data."""
    directory = source.parent / "signature"
    if not directory.is_dir():
        return {}
    first = min((path for path in directory.iterdir() if path.is_file()), default=None)
    if first is None or not first.stat().st_size:
        return {}
    return {"signature": first}


def _refuse_address(out: Path) -> None:
    from headrace.storage.places import is_address

    if is_address(str(out)):
        raise SettingsError(
            f"{setting_name('from_env')} lays links and copies beside the run, which an address"
            " cannot hold",
            path=out,
            remedy="leave it out",
        )


@dataclass(frozen=True)
class _Flags:
    """The fields of several settings models, as one model has them."""

    model_fields: Mapping[str, Any]


def flag_models() -> _Flags:
    """Return the flags of both splits; where both have one, its help is that of a split in time."""
    return _Flags({**TemporalSplit.model_fields, **_only_random()})


def _only_random() -> dict[str, Any]:
    fields = RandomSplit.model_fields
    return {name: field for name, field in fields.items() if name not in TemporalSplit.model_fields}


def _in_time(settings: Mapping[str, Any]) -> bool:
    """Return whether a setting that only a split in time has is given."""
    return any(name not in RandomSplit.model_fields for name in settings)


def _model(settings: Mapping[str, Any]) -> type[SplitSettings]:
    """Return the settings model of a split with these settings."""
    if not _in_time(settings):
        return RandomSplit
    for name in settings:
        if name in _only_random():
            raise SettingsError(
                f"rows are split by {setting_name('time')}, which leaves nothing to draw",
                setting=name,
                value=settings[name],
                remedy=f"leave it out, or {setting('time')}",
            )
    return TemporalSplit


def _refuse_missing(flags: Sequence[str], settings: Mapping[str, Any], from_env: bool) -> None:
    """Raise `SettingsError` if something required is missing.

    flags: those known to be missing.
    """
    # the job always requires an entity
    needed = [name for name in _REQUIRED if from_env or name != "entity"]
    if not from_env and not _in_time(settings):
        needed = []
    elif "folds" in settings:
        needed.remove("split_date")
    missing = [name for name in needed if name not in settings]
    flags = [*flags, *map(setting, missing)]
    if not flags:
        return
    remedy = "add it"
    if len(flags) > 1:
        remedy = "add them"
    if from_env:
        remedy += f" or set {', '.join(_REQUIRED[name] for name in missing)}"
    raise SettingsError(f"not given: {', '.join(flags)}", remedy=remedy)


def settings_from_environment(environment: Mapping[str, str]) -> tuple[dict[str, Any], int | None]:
    """Read settings and the number of workers from the environment of the container job.

    Variables: DATE_COLUMN, GROUP_ID_COLUMN, SPLIT_DATE, TRAIN_RATIO, RANDOM_SEED,
    ENABLE_TRUE_STREAMING, OUTPUT_FORMAT, TARGETS, MAIN_TASK_INDEX, LABEL_FIELD, MAX_WORKERS. "",
    "None" and "null" mean unset.

    The output is not compressed, whatever the input is, because the job's file names end in .csv,
    .tsv or .parquet. SHARD_SIZE, STREAMING_BATCH_SIZE and BATCH_SIZE bounded the memory of the old
    script. They must be whole numbers but have no effect, because the chunk size bounds memory.
    Raises `SettingsError` naming the variable, also if only one of TARGETS and MAIN_TASK_INDEX is
    set, because the main target would not be made.
    """

    def text(name: str) -> str | None:
        value = environment.get(name, "").strip()
        if value in ("", "None", "null"):
            return None
        return value

    def number(name: str, parse: type[int] | type[float]) -> Any:
        value = text(name)
        try:
            if value is None:
                return None
            return parse(value)
        except ValueError:
            raise SettingsError(
                setting=name, value=value, remedy="give a number, or unset it"
            ) from None

    for name in ("SHARD_SIZE", "STREAMING_BATCH_SIZE", "BATCH_SIZE"):
        number(name, int)
    format_ = text("OUTPUT_FORMAT") or "csv"
    if format_.lower() not in ("csv", "tsv", "parquet"):
        raise SettingsError(
            setting="OUTPUT_FORMAT", value=format_, remedy="give CSV, TSV or Parquet"
        )
    targets = _targets(text("TARGETS"))
    index = number("MAIN_TASK_INDEX", int)
    if targets is not None and index is None:
        raise _no_main_target("TARGETS", text("TARGETS"), "MAIN_TASK_INDEX")
    if targets is None and index is not None:
        raise _no_main_target("MAIN_TASK_INDEX", text("MAIN_TASK_INDEX"), "TARGETS")
    settings = {
        **{name: text(variable) for name, variable in _REQUIRED.items()},
        "train_ratio": number("TRAIN_RATIO", float),
        "seed": number("RANDOM_SEED", int),
        "layout": (
            "sharded" if (text("ENABLE_TRUE_STREAMING") or "").lower() == "true" else "single"
        ),
        "format": format_.lower(),
        "label": text("LABEL_FIELD"),
        "targets": targets,
        "main_task_index": index,
    }
    provided = {name: value for name, value in settings.items() if value is not None}
    return provided, number("MAX_WORKERS", int)


def _no_main_target(name: str, value: str | None, missing: str) -> SettingsError:
    return SettingsError(
        f"{missing} is not set, so no main target would be made",
        setting=name,
        value=value,
        remedy=f"set {missing}, or unset {name}",
    )


def _targets(text: str | None) -> tuple[str, ...] | None:
    """Parse a comma list, with quotes stripped, or a literal list."""
    if text is None:
        return None
    if text.startswith("["):
        try:
            return tuple(str(name) for name in ast.literal_eval(text))
        except (ValueError, SyntaxError):
            raise SettingsError(
                setting="TARGETS", value=text, remedy="give a comma-separated list of columns"
            ) from None
    names = []
    for name in text.split(","):
        if name.strip():
            names.append(name.strip().strip("'\""))
    return tuple(names)
