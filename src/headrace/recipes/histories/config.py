"""What can be asked of histories."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from headrace.histories.addresses import Kind
from headrace.recipes.temporal_split.dates import date_word
from headrace.run.context import RunContext
from headrace.run.prepare import Outcome
from headrace.settings import Names, Settings
from headrace.storage.settings import Places

BadRows = Literal["error", "drop"]
ValueRule = Literal["failed", "drop", "error"]

# What a measurement costs in memory while its partition is sorted and encoded.
WORKING_BYTES = 256
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?", re.IGNORECASE)


def _as_bytes(value: object) -> object:
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        return value
    return int(float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " "))


Bytes = Annotated[int, BeforeValidator(_as_bytes)]


class Histories(Settings):
    """The measurements of every entity in time order, as big rows that contexts are drawn from.

    source: a file, a directory, a glob pattern, or a list of them; shards and rows in any order.
    entity: column of the entity; entity_from="file_name" takes the names of the files instead, without extension.
    entity_kind, peer_kind: "address" (IPv4 or IPv6) or "number" (0 to 4,294,967,295).
    time: column of the time. peer: column of the other end, None where there is none. value: column of the latency.
    time_format: of text and numbers: "iso", an epoch such as "epoch_s" or strptime patterns, tried in this order. Times
    without an offset are UTC. Columns of timestamps need none.
    value_unit: "us", "ms" or "s".
    missing, negative, zero: what nulls and NaN, values below 0, and 0 are: a failed measurement, dropped and counted,
    or an error; zero="value" is a latency.
    bad_rows: rows whose entity, time, peer or value cannot be read are an "error", or dropped ("drop") and counted.
    sample_rate: share of rows to keep, chosen by a keyed hash of shard name and row.
    train_ratio: an entity trains if its keyed hash is below this share of all hashes, else it tests; it stays on its
    side whatever other entities come.
    seed: of the sample, the split and the order of entities.
    max_row_bytes: rows are cut at the last measurement that keeps them within; a row has at least one.
    memory_limit: bytes that the work may take at a time, beside the libraries themselves, e.g. "2GiB".
    partitions: into how many the entities are hashed, and so how many shards a split has; None: as the limit asks.
    format: "array_record" (extra `histories`), or "arrow" to be mapped.

    Raises `SettingsError` when built with values that cannot work.
    """

    source: Places = Field(min_length=1)
    entity: str = Field("src_addr", min_length=1)
    entity_from: Literal["column", "file_name"] = "column"
    entity_kind: Kind = "address"
    time: str = Field("event_time", min_length=1)
    time_format: Names = ("iso",)
    peer: str | None = None
    peer_kind: Kind = "address"
    value: str = Field("rtt", min_length=1)
    value_unit: Literal["us", "ms", "s"] = "ms"
    missing: ValueRule = "failed"
    negative: ValueRule = "failed"
    zero: Literal["value", "failed", "drop", "error"] = "value"
    bad_rows: BadRows = "error"
    sample_rate: float = Field(1.0, gt=0, le=1)
    train_ratio: float = Field(0.9, ge=0, le=1)
    seed: int = Field(42, ge=0, lt=2**63)
    max_row_bytes: Bytes = Field(8 << 20, ge=1, le=1 << 31)
    memory_limit: Bytes = Field(2 << 30, ge=1 << 20)
    partitions: int | None = Field(None, ge=1, le=1 << 12)
    format: Literal["array_record", "arrow"] = "array_record"

    @field_validator("time_format")
    @classmethod
    def _known_formats(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for each in value:
            date_word(each, "time_format")
        if not value:
            raise ValueError("time_format is empty; give at least one")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Histories:
        names = self.columns()
        if len(set(names)) < len(names):
            raise ValueError(f"columns are {', '.join(names)}; entity, time, peer and value must differ")
        if self.peer is None and self.peer_kind != "address":
            raise ValueError(f"peer_kind is {self.peer_kind!r} and there is no peer; give peer, or leave it out")
        return self

    def columns(self) -> list[str]:
        """The columns that are read."""
        entity = [self.entity] if self.entity_from == "column" else []
        return [*entity, self.time, *([] if self.peer is None else [self.peer]), self.value]

    @property
    def slab_rows(self) -> int:
        """Measurements of an average partition; one of up to twice as many is sorted in memory."""
        return max(1, self.memory_limit // (16 * WORKING_BYTES))

    @property
    def recipe_name(self) -> str:
        """The word in manifests and configuration files."""
        return "histories"

    def config(self) -> dict[str, Any]:
        """All settings as JSON."""
        return {"recipe": self.recipe_name, **self.model_dump(mode="json")}

    def identity_settings(self) -> dict[str, Any]:
        """The settings that can change a byte of output."""
        return self.model_dump(mode="json", exclude={"source"})

    def source_files(self) -> list[tuple[Path, str]]:
        """The source's files and their names relative to its root, sorted by name."""
        from headrace.formats.source import find_files

        return find_files(self.source)

    def source_places(self) -> Sequence[str | Path]:
        """Files, directories and patterns, as given."""
        return self.source

    def execute(self, context: RunContext, files: Sequence[tuple[Path, str]]) -> Outcome:
        """Do the work in the run directory; see `headrace.prepare`."""
        from headrace.recipes.histories.recipe import execute  # the recipe imports its settings

        return execute(self, context, files)
