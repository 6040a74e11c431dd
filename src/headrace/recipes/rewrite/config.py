"""What can be asked of a rewrite."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from headrace.engine.engine import EngineName
from headrace.formats.type_words import TypeWords
from headrace.run.context import RunContext
from headrace.run.events import OnEvent
from headrace.run.prepare import Outcome, Prepared, prepare
from headrace.settings import Names, Settings
from headrace.storage.settings import LocalPath, Places

Codec = Literal["none", "lz4", "zstd"]


class Rewrite(Settings):
    """Shards, plain or prepared, as Parquet made to be trained on: the same rows in the same order, faster to decode.

    source: a prepared dataset, or files, directories or glob patterns of plain shards.
    codec: "none" decodes fastest, "lz4" takes less disk at twice the decoding time, "zstd" the least.
    rows_per_group: rows of a row group; None: 65,536 or about 8 MiB, whichever is less.
    shard_bytes: cut the rows into shards of about so many bytes (in the source); None: keep the shards and their names.
    columns: which to keep, in this order; None: all.
    types, null_values: of columns of plain CSV and TSV files, as in `headrace.open`.
    cache_dir: where the index of plain shards is kept, as in `headrace.open`.

    Raises `SettingsError` when built with values that cannot work.
    """

    source: Places = Field(min_length=1)
    codec: Codec = "none"
    rows_per_group: int | None = Field(None, ge=1)
    shard_bytes: int | None = Field(None, ge=1)
    columns: Names | None = None
    types: TypeWords = Field(default_factory=dict)
    null_values: Names = ()
    cache_dir: LocalPath | None = None

    @field_validator("columns")
    @classmethod
    def _each_column_once(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if value is not None and (not value or len(set(value)) < len(value)):
            raise ValueError(f"columns are {list(value)}; name at least one, and each once")
        return value

    @property
    def recipe_name(self) -> str:
        """The word in manifests and configuration files."""
        return "rewrite"

    def config(self) -> dict[str, Any]:
        """All settings as JSON."""
        return {"recipe": self.recipe_name, **self.model_dump(mode="json")}

    def identity_settings(self) -> dict[str, Any]:
        """The settings that can change a byte of output, and which run the source is, if it is one."""
        from headrace.recipes.rewrite.recipe import identity_of_source  # the recipe imports its settings

        settings = self.model_dump(mode="json", exclude={"source", "cache_dir"})
        return {**settings, **identity_of_source(self)}

    def source_files(self) -> list[tuple[Path, str]]:
        """The source's shards that hold rows, and their names relative to its root, sorted by name."""
        from headrace.recipes.rewrite.recipe import source_files  # the recipe imports its settings

        return source_files(self)

    def source_places(self) -> Sequence[str | Path]:
        """Files, directories and patterns, as given."""
        return self.source

    def execute(self, context: RunContext, files: Sequence[tuple[Path, str]]) -> Outcome:
        """Do the rewrite in the run directory; see `headrace.prepare`."""
        from headrace.recipes.rewrite.recipe import execute  # the recipe imports its settings

        return execute(self, context, files)


def rewrite(
    source: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    workers: int | None = None,
    engine: EngineName = "local",
    address: str | None = None,
    shard_of: tuple[int, int] | None = None,
    on_event: OnEvent | None = None,
    **settings: Any,
) -> Prepared:
    """Rewrite shards, plain or prepared, as Parquet made to be trained on; `headrace.open(out)` streams the same rows.

    settings: those of `Rewrite`; engine, address and shard_of: as for `prepare`. The splits of a prepared source stay,
    plain shards become the split "all". What was made before is reused, and what was interrupted goes on. Raises
    `SettingsError`, `InputError`, `CorruptShard`, `StoreError`, `EngineError`, `RunBusy`.
    """
    sources = [source] if isinstance(source, str | Path) else list(source)
    recipe = Rewrite(source=sources, **settings)
    return prepare(recipe, out, workers=workers, engine=engine, address=address, shard_of=shard_of, on_event=on_event)
