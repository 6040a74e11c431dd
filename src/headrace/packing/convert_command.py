"""`headrace convert`: packed bins in the legacy pickled form into Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from headrace.cli.flags import Json
from headrace.cli.output import emit, say
from headrace.errors import InputError, SettingsError


def convert(
    source: Annotated[Path, typer.Argument(help="The legacy .npy file. It need not be trusted.")],
    target: Annotated[Path, typer.Argument(help="The Parquet file to write; one of that name is replaced.")],
    *,
    row_group_size: Annotated[
        int, typer.Option(min=1, help="Bins of a row group: 1000 to read in order, 32 to read at random.")
    ] = 1000,
    compression: Annotated[Literal["zstd", "snappy", "gzip", "lz4", "none"], typer.Option(help="Codec.")] = "zstd",
    compression_level: Annotated[
        int | None, typer.Option(help="zstd: 1 to 22, gzip: 1 to 9; the codec's own unless given.", show_default=False)
    ] = None,
    declared: Annotated[
        Literal["nullable", "required"],
        typer.Option(help="required: the schema says there are no nulls, which decodes a quarter faster."),
    ] = "nullable",
    alignment: Annotated[
        Literal["unknown", "shift_left", "legacy_roll_right"],
        typer.Option(help="How the file's loss masks stand, noted in the output; masks are kept as they are."),
    ] = "unknown",
    as_json: Json = False,
) -> None:
    """Convert packed bins from a pickled .npy file to Parquet, without running anything the pickle names.

    Example:  headrace convert legacy.npy bins.parquet
    """
    from headrace.bins.alignment import ALIGNMENT_KEY
    from headrace.packing.storage.legacy import convert_legacy_to_parquet
    from headrace.packing.storage.packed_parquet import checked_level

    try:
        checked_level(compression, compression_level)
    except ValueError as error:
        raise SettingsError(str(error)) from None
    if source.exists() and not source.is_file():  # a pipe would be waited for
        raise InputError(f"{source}: is not a file; give the .npy file itself")
    result = convert_legacy_to_parquet(
        source,
        target,
        row_group_size,
        compression,
        compression_level=compression_level,
        declared=declared,
        metadata={ALIGNMENT_KEY: alignment},
    )
    if as_json:
        emit({**result, "path": str(target)})
        return
    before, after = result["source_bytes"], result["bytes"]
    say(f"{result['num_bins']:,} bins, {result['num_tokens']:,} tokens  {target}")
    say(f"{before / 1e6:,.1f} MB → {after / 1e6:,.1f} MB ({100 * after / before:.1f} %)")
