"""What can be asked of a temporal split."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal
from zoneinfo import ZoneInfo

from pydantic import Field, field_validator, model_validator

from headrace.formats.source import read_signature
from headrace.formats.type_words import TypeWords
from headrace.recipes.temporal_split.cutoff import Cutoff, cutoff_at
from headrace.recipes.temporal_split.dates import date_word
from headrace.run.context import RunContext
from headrace.run.prepare import Outcome
from headrace.settings import Names, Settings
from headrace.storage.settings import LocalPath, Places

TEXT_COMPRESSIONS = ("none", "gz", "zst")
PARQUET_COMPRESSIONS = ("none", "snappy", "lz4", "zstd")


class TemporalSplit(Settings):
    """Rows before the split date train or validate, by entity; rows from it on test entities that did not train.

    source: a file, a directory, a glob pattern, or a list of them.
    date_column, group_column: the time of a row and its entity.
    split_date: the cutoff, e.g. "2025-01-01" or an instant with offset; the instant itself is test.
    train_ratio: share of entities seen before the cutoff that train, in (0, 1); exactly floor(entities × ratio).
    seed: decides which entities those are; nothing else does.
    layout: "sharded" keeps one output shard per source shard and split, "single" makes one file per split.
    format: of the output; "same" as the source. compression: None for the source's own (Parquet: lz4).
    label: column of classes; text classes become 0..k-1 by one map for all shards, rows without label are dropped.
    targets, main_task_index: the main target becomes the row-wise maximum of the other targets.
    signature: file with the column names of headerless CSV or TSV shards.
    null_group: rows without entity are an "error", one entity of their "own", or dropped ("drop") and counted.
    null_date: rows without a readable date are an "error", or dropped and counted.
    timezone: zone that dates without offset are in, and the split date too.
    date_format: "auto" (one form for the whole source); "iso" (with or without offset); "epoch_s", "epoch_ms",
    "epoch_us", "epoch_ns" or "epoch_days" since 1970; "excel_days"; "yyyymmdd"; or a strptime pattern.
    val_in_test: whether entities that validate may also test.
    schema_drift: shards that differ are an "error", or "widen" the schema where nothing is lost.
    lineage: "columns" adds source_shard and source_row to every row.
    types: types of text columns, e.g. {"distance": "int32"}; Parquet holds them so, streams deliver them so.
    null_values: texts that mean "missing" in entity, date, label, target and typed columns, e.g. ("NA",).
    shard_numbers: "keep" the number in part-N, or "dense" numbers in name order.

    Raises `SettingsError` when built with values that cannot work.
    """

    source: Places = Field(min_length=1)
    date_column: str = Field(min_length=1)
    group_column: str = Field(min_length=1)
    split_date: str
    train_ratio: float = Field(0.9, gt=0, lt=1)
    seed: int = Field(42, ge=0, lt=2**63)
    layout: Literal["sharded", "single"] = "sharded"
    format: Literal["same", "csv", "tsv", "jsonl", "parquet"] = "same"
    compression: Literal["none", "gz", "zst", "snappy", "lz4", "zstd"] | None = None
    label: str | None = None
    targets: Names | None = None
    main_task_index: int | None = Field(None, ge=0)
    signature: LocalPath | None = None
    null_group: Literal["error", "own", "drop"] = "error"
    null_date: Literal["error", "drop"] = "error"
    timezone: str = "UTC"
    date_format: str = "auto"
    val_in_test: Literal["keep", "drop"] = "keep"
    schema_drift: Literal["error", "widen"] = "error"
    lineage: Literal["off", "columns"] = "off"
    types: TypeWords = Field(default_factory=dict)
    null_values: Names = ()
    shard_numbers: Literal["keep", "dense"] = "keep"

    @field_validator("split_date", mode="before")
    @classmethod
    def _date_as_text(cls, value: object) -> object:
        # YAML reads an unquoted date as a date.
        return value.isoformat() if hasattr(value, "isoformat") else value

    @field_validator("timezone")
    @classmethod
    def _known_zone(cls, value: str) -> str:
        try:
            ZoneInfo(value)
        except (KeyError, ValueError, OSError):
            raise ValueError(
                f"timezone is {value!r}, which is no IANA zone; give one such as 'Europe/Berlin'"
            ) from None
        return value

    @field_validator("date_format")
    @classmethod
    def _known_format(cls, value: str) -> str:
        return value if value == "auto" else date_word(value, "date_format", "auto")

    @model_validator(mode="after")
    def _consistent(self) -> TemporalSplit:
        self.cutoff()
        if (self.targets is None) != (self.main_task_index is None):
            raise ValueError("targets and main_task_index go together; give both or neither")
        if self.targets is not None and self.main_task_index is not None:
            if len(self.targets) < 2 or len(set(self.targets)) != len(self.targets):
                raise ValueError(f"targets are {', '.join(self.targets)}; give two or more different columns")
            if self.main_task_index >= len(self.targets):
                raise ValueError(
                    f"main_task_index is {self.main_task_index}, there are {len(self.targets)} targets; "
                    f"counting begins at 0"
                )
        if self.format == "parquet" and self.compression not in (None, *PARQUET_COMPRESSIONS):
            raise ValueError(f"compression is {self.compression!r}, Parquet takes {', '.join(PARQUET_COMPRESSIONS)}")
        if self.format in ("csv", "tsv", "jsonl") and self.compression not in (None, *TEXT_COMPRESSIONS):
            raise ValueError(f"compression is {self.compression!r}, {self.format} takes {', '.join(TEXT_COMPRESSIONS)}")
        if self.date_column == self.group_column:
            raise ValueError(f"date_column and group_column are both {self.date_column!r}; they must differ")
        for role, name in (("date_column", self.date_column), ("group_column", self.group_column)):
            if self.targets is not None and self.main_target == name:
                raise ValueError(f"the main target {name!r} is also the {role}; it would be overwritten")
            if self.label == name:
                raise ValueError(
                    f"label is {name!r}, which is also the {role} and would be overwritten by classes; copy that column"
                    f" under another name to learn it"
                )
        if self.types.get(self.label or "", "int64") != "int64":
            raise ValueError(
                f"types[{self.label!r}] is {self.types[self.label or '']!r}, and a label becomes the int64 numbers of"
                f" its classes; leave it out of types, or leave label= out for values as they are"
            )
        return self

    @property
    def recipe_name(self) -> str:
        """The word in manifests and configuration files."""
        return "temporal_split"

    @property
    def main_target(self) -> str | None:
        """The column that becomes the maximum of the other targets."""
        if self.targets is None or self.main_task_index is None:
            return None
        return self.targets[self.main_task_index]

    def cutoff(self) -> Cutoff:
        """The split date as an instant and as wall-clock time of the zone. Raises `ValueError` on an unreadable one."""
        text = self.split_date.strip()
        if re.fullmatch(r"\d{8}", text):
            text = f"{text[:4]}-{text[4:6]}-{text[6:]}"
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise ValueError(f"split_date is {self.split_date!r}; give an ISO date such as 2025-01-01") from None
        return cutoff_at(moment, ZoneInfo(self.timezone))

    def config(self) -> dict[str, Any]:
        """All settings as JSON."""
        return {"recipe": self.recipe_name, **self.model_dump(mode="json")}

    def source_files(self) -> list[tuple[Path, str]]:
        """The source's files and their names relative to its root, sorted by name."""
        from headrace.recipes.temporal_split.recipe import source_files  # the recipe imports its settings

        return source_files(self)

    def source_places(self) -> Sequence[str | Path]:
        """Files, directories and patterns, as given."""
        return self.source

    def execute(self, context: RunContext, files: Sequence[tuple[Path, str]]) -> Outcome:
        """Do the split in the run directory; see `headrace.prepare`."""
        from headrace.recipes.temporal_split.recipe import execute  # the recipe imports its settings

        return execute(self, context, files)

    def identity_settings(self) -> dict[str, Any]:
        """The settings that can change a byte of output; of the signature its names, not its path."""
        settings = self.model_dump(mode="json", exclude={"source", "signature"})
        settings["signature"] = None if self.signature is None else read_signature(self.signature)
        settings["split_date"] = str(self.cutoff().instant_us)
        return settings
