"""Convert shards of other loaders into Parquet, as part of `headrace convert`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from headrace.cli.output import emit, printer, say, table
from headrace.printable import printable


def convert_shards(source: str, out: Path, *, as_json: bool) -> None:
    """Convert tars or MDS shards with a progress bar on the terminal, and print the resulting columns."""
    from headrace.cli.progress import shard_progress  # imports rich, which completion does not need
    from headrace.dataset.convert import convert as write

    with shard_progress("convert the shards") as on_shard:
        made = write(source, out, on_shard=on_shard)
    if as_json:
        emit({**asdict(made), "path": str(made.path)})
        return
    columns = table(f"{made.rows:,} rows in {made.shards:,} shards", ("column", "type"))
    for name, kind in made.columns.items():
        columns.add_row(printable(name), kind)
    printer().print(columns)
    for reason, count in made.skipped.items():
        say(f"skipped, {reason}: {count:,}")
    say(f"shards  {made.path}")
