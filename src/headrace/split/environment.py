"""The environment variables of the container job that `headrace split --from-env` replaces."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.errors import SettingsError

CONTAINER_SOURCE = "/opt/ml/processing/input/data"
CONTAINER_OUT = "/opt/ml/processing/output"

_UNSET = ("", "None", "null")
_SIZES = ("SHARD_SIZE", "STREAMING_BATCH_SIZE", "BATCH_SIZE")


@dataclass(frozen=True)
class FromEnvironment:
    """Settings that the environment gives, and the number of workers."""

    settings: dict[str, Any]
    workers: int | None


def settings_from_environment(environment: Mapping[str, str]) -> FromEnvironment:
    """DATE_COLUMN, GROUP_ID_COLUMN, SPLIT_DATE, TRAIN_RATIO, RANDOM_SEED, ENABLE_TRUE_STREAMING, OUTPUT_FORMAT,
    MAX_WORKERS, TARGETS, MAIN_TASK_INDEX, LABEL_FIELD as settings. "", "None" and "null" mean unset.

    The job's files are not compressed, whatever its input: their names end in .csv, .tsv or .parquet.
    SHARD_SIZE, STREAMING_BATCH_SIZE and BATCH_SIZE bounded the old script's memory; they must be whole numbers and
    have no effect: memory is bounded by the chunk. Raises `SettingsError` naming the variable, also where one of
    TARGETS and MAIN_TASK_INDEX is set without the other: the main target would not be made.
    """

    def text(name: str) -> str | None:
        value = environment.get(name, "").strip()
        return None if value in _UNSET else value

    def number(name: str, kind: type[int] | type[float]) -> Any:
        value = text(name)
        try:
            return None if value is None else kind(value)
        except ValueError:
            raise SettingsError(f"{name} is {value!r}; give a number, or unset it") from None

    for name in _SIZES:
        number(name, int)
    format_ = text("OUTPUT_FORMAT")
    if format_ is not None and format_.lower() not in ("csv", "tsv", "parquet"):
        raise SettingsError(f"OUTPUT_FORMAT is {format_!r}; give CSV, TSV or Parquet")
    targets = _targets(text("TARGETS"))
    index = number("MAIN_TASK_INDEX", int)
    if (targets is None) != (index is None):
        given, missing = ("TARGETS", "MAIN_TASK_INDEX") if index is None else ("MAIN_TASK_INDEX", "TARGETS")
        raise SettingsError(
            f"{given} is {text(given)!r} and {missing} is not set, so no main target would be made; set {missing}, or "
            f"unset {given}"
        )
    label = text("LABEL_FIELD")
    settings = {
        "time": text("DATE_COLUMN"),
        "entity": text("GROUP_ID_COLUMN"),
        "split_date": text("SPLIT_DATE"),
        "train_ratio": number("TRAIN_RATIO", float),
        "seed": number("RANDOM_SEED", int),
        "layout": "sharded" if (text("ENABLE_TRUE_STREAMING") or "").lower() == "true" else "single",
        "format": "csv" if format_ is None else format_.lower(),
        "label": label,
        "targets": targets,
        "main_task_index": index,
    }
    return FromEnvironment(
        {name: value for name, value in settings.items() if value is not None}, number("MAX_WORKERS", int)
    )


def _targets(text: str | None) -> tuple[str, ...] | None:
    """A comma list, quotes stripped, or a literal list."""
    if text is None:
        return None
    if text.startswith("["):
        try:
            names = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            raise SettingsError(f"TARGETS is {text!r}; give a comma-separated list of columns") from None
        return tuple(str(name) for name in names)
    return tuple(name.strip().strip("'\"") for name in text.split(",") if name.strip())
