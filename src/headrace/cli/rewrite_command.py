"""`headrace rewrite`: shards of any kind into Parquet made to be trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.about_run import AboutRun
from headrace.cli.commands import execute
from headrace.cli.flags import with_groups
from headrace.cli.text_columns import PlainShards


@with_groups
def rewrite(
    source: Annotated[
        list[str], typer.Argument(help="A prepared dataset, or plain shards: files, directories, globs.")
    ],
    *,
    out: Annotated[Path, typer.Option(help="Output directory.", show_default=False)],
    codec: Annotated[
        str, typer.Option(help="none: decodes fastest | lz4: less disk, twice the decoding | zstd: least disk.")
    ] = "none",
    rows_per_group: Annotated[
        int | None, typer.Option(help="Rows of a row group; 65,536 or about 8 MiB unless given.", show_default=False)
    ] = None,
    shard_bytes: Annotated[
        int | None,
        typer.Option(
            help="Cut into shards of about so many source bytes; unless given, shards keep their names.",
            show_default=False,
        ),
    ] = None,
    columns: Annotated[
        str | None, typer.Option(help="Comma-separated columns to keep; all unless given.", show_default=False)
    ] = None,
    shards: PlainShards,
    about: AboutRun,
) -> None:
    """Rewrite shards as Parquet made to be trained on: the same rows, several times faster to decode.

    The splits of a prepared dataset stay; plain shards become the split "all". A killed rewrite goes on where it was.

    Example:  headrace rewrite raw --out fast
    """
    from headrace.recipes.rewrite.config import Rewrite

    recipe = Rewrite(
        source=source,
        codec=codec,
        rows_per_group=rows_per_group,
        shard_bytes=shard_bytes,
        columns=None if columns is None else [name.strip() for name in columns.split(",") if name.strip()],
        **shards.options(),
    )
    execute(recipe, out, about)
