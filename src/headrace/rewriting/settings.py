"""Define the settings of a rewrite, and the function that runs one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from headrace.dataset.tables import is_table
from headrace.formats.dialect import DialectSetting, dialect_field
from headrace.formats.type_words import TypeWords
from headrace.run.settings import RecipeSettings
from headrace.settings import ColumnChoice
from headrace.storage.settings import LocalPath, Places

if TYPE_CHECKING:
    from headrace.engine.engine import EngineName
    from headrace.run.events import OnEvent
    from headrace.run.prepare import Prepared


class Rewrite(RecipeSettings):
    """Shards, plain or prepared, as Parquet made to be trained on: the same rows, in the same order
    unless it is drawn, faster to decode.

    Raises `SettingsError` when built with values that cannot work.
    """

    recipe_name: ClassVar[str] = "rewrite"

    source: Places = Field(
        min_length=1,
        description="A prepared dataset, or plain shards: files, directories or glob patterns.",
    )
    compression: Literal["none", "lz4", "zstd"] = Field(
        "none",
        description=(
            "none decodes fastest, lz4 takes less disk at twice the decoding time, zstd the least."
        ),
    )
    rows_per_group: int | None = Field(
        None,
        ge=1,
        description="Rows of a row group. Default: 65,536 or about 8 MiB, whichever is less.",
    )
    shard_bytes: int | None = Field(
        None,
        ge=1,
        description=(
            "Cut into shards of about this many source bytes. By default, shards and their names"
            " stay; of more than 1,000, small neighbours are joined."
        ),
    )
    columns: ColumnChoice = Field(None, description="Columns to keep, in this order. Default: all.")
    drop_columns: ColumnChoice = Field(None, description="Columns to leave out instead.")
    types: TypeWords = Field(
        default_factory=dict,
        description=(
            "Types of columns of plain CSV or TSV shards, e.g. price=float32; "
            "text: all stay text. Default: those that every value fits."
        ),
    )
    dialect: DialectSetting = dialect_field()
    schema_drift: Literal["error", "widen"] = Field(
        "error",
        description=(
            "Plain shards with different schemas; widen: widen the schema where nothing is lost."
        ),
    )
    shuffle_seed: int | None = Field(
        None,
        description=(
            "Write the rows of each split in an order drawn by this seed, so that every block is a"
            " fair sample of its split. Default: the order of the source."
        ),
    )
    cache_dir: LocalPath | None = Field(
        None, description="Where the index of plain shards is kept. Default: ~/.cache/headrace."
    )

    def identity_settings(self) -> dict[str, Any]:
        """Return the settings that can change a byte of output, and the source's run_id if it is a
        prepared run.
        """
        from headrace.rewriting.recipe import identity_of_source  # the recipe imports its settings

        settings = self.identity_without("source", "cache_dir")
        for name in ("shuffle_seed", "drop_columns"):
            if settings[name] is None:
                del settings[name]
        return {**settings, **identity_of_source(self)}

    def source_files(self) -> list[tuple[Path, str]]:
        """Return the source's shards and their names relative to its root, sorted by name.

        Shards without rows are included. Raises `InputError` if no shard holds rows.
        """
        from headrace.rewriting.recipe import source_files  # the recipe imports its settings

        return source_files(self)


def rewrite(
    source: str | Path | Sequence[str | Path] | Any,
    out: str | Path,
    *,
    workers: int | None = None,
    engine: EngineName = "local",
    address: str | None = None,
    on_event: OnEvent | None = None,
    **settings: Any,
) -> Prepared:
    """Rewrite shards, plain or prepared, as Parquet for fast training; `headrace.open(out)` streams
    the same rows.

    settings: those of `Rewrite`.
    engine, address: as for `prepare`. The splits of a prepared source stay, plain shards become the
    split "all". Finished work is reused, and interrupted work resumes. Raises `SettingsError`,
    `InputError`, `CorruptShard`, `StoreError`, `EngineError`, `RunBusy`.
    """
    from headrace.run.prepare import prepare  # settings alone load no data libraries

    if isinstance(source, str | PurePath) or is_table(source):
        sources = [source]
    else:
        sources = list(source)
    recipe = Rewrite(source=sources, **settings)
    return prepare(recipe, out, workers=workers, engine=engine, address=address, on_event=on_event)
