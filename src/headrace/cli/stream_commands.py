"""The commands that look at a stream: peek, where, seen. All but peek read nothing beyond the index."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.flags import Json, with_groups
from headrace.cli.for_machines import tell
from headrace.cli.mask_view import AskedMask, show_masks
from headrace.cli.one_epoch import OneEpoch, Source, Split
from headrace.cli.opening import open_source
from headrace.cli.printing import cell, printer, say
from headrace.cli.text_columns import PlainShards
from headrace.errors import InputError, SettingsError

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.dataset.index import SplitIndex
    from headrace.dataset.indexed import ReadBlock


@with_groups
def peek(
    path: Source,
    *,
    split: Split = None,
    rows: Annotated[int, typer.Option(min=1, help="How many rows.")] = 10,
    shards: PlainShards,
    asked: AskedMask,
    as_json: Json = False,
) -> None:
    """Print the first rows of a split, in the natural order, with the types that batches have.

    With --mask: the first rows of chat files as a packing run would encode them, trained text in colour.

    Example:  headrace peek out --split train --rows 5

    Example:  headrace peek chats.jsonl --mask --tokenizer qwen3/ --rows 3
    """
    if asked.mask:
        show_masks(path, rows, asked, as_json=as_json)
        return
    if asked.tokenizer is not None:
        raise SettingsError("--tokenizer is for --mask; add --mask to see chats with their loss mask")
    from headrace.formats.schema import describe

    dataset = open_source(path, shards)
    index = dataset.split_index(split)
    first = _first_rows(index, dataset.block_reader(split), rows)
    if as_json:
        tell({"schema": describe(first.schema), "rows": first.to_pylist()})
        return
    from rich.table import Table
    from rich.text import Text

    title = f"{index.split}: {first.num_rows:,} of {index.total_rows:,} rows"
    table = Table(title=title, title_justify="left", header_style="bold")
    for column in describe(first.schema):
        table.add_column(Text(f"{cell(column['name'])}\n{cell(column['type'])}"), overflow="fold")
    for row in first.to_pylist():
        table.add_row(*(Text("null", style="dim") if value is None else Text(cell(value)) for value in row.values()))
    printer().print(table)


def _first_rows(index: SplitIndex, read: ReadBlock, rows: int) -> pa.Table:
    import pyarrow as pa

    tables, left = [index.schema.empty_table()], min(rows, index.total_rows)
    for block in range(len(index.rows)):
        if left <= 0:
            break
        tables.append(read(block, None).slice(0, left))
        left -= tables[-1].num_rows
    return pa.concat_tables(tables)


@with_groups
def where(
    path: Source,
    *,
    row: Annotated[str, typer.Option(metavar="SHARD:ROW", help="A shard's path or name, and its row from 0.")],
    asked: OneEpoch,
    shards: PlainShards,
    as_json: Json = False,
) -> None:
    """Say which step, rank and place in the batch sees a row. Steps, ranks, workers and places count from 0.

    Example:  headrace where out --split train --row part-00003.parquet:17 --epoch 2 --ranks 8 --batch-size 1024
    """
    from headrace.stream.order.whereabouts import find_row, row_number

    shard, _, number = row.rpartition(":")
    if not shard or not number.isdigit():
        raise SettingsError(f"--row is {row!r}; write SHARD:ROW, e.g. part-00003.parquet:17, rows counted from 0")
    index = open_source(path, shards).split_index(asked.split)
    total = index.total_rows if asked.samples_per_epoch is None else asked.samples_per_epoch
    block, inside = row_number(index, shard, int(number))
    found = find_row(asked.plan(index), block=block, row=inside)
    record: dict[str, Any] = {"split": index.split, "row": row, "epoch": asked.epoch, "seen": found is not None}
    if found is not None:
        record |= {name: getattr(found, name) for name in ("step", "rank", "place", "position")}
    if as_json:
        tell(record)
    elif found is None:
        whole = asked.samples_per_epoch is None
        why = 'remainder="drop" leaves it out' if whole else "it is another epoch's turn, or dropped"
        say(f"{row} is not delivered in epoch {asked.epoch}: {why}")
    else:
        say(
            f"{row} in epoch {asked.epoch}: step {found.step} of rank {found.rank},"
            f" row {found.place} of the batch; position {found.position:,} of {total:,}"
        )


@with_groups
def seen(
    state: Annotated[Path, typer.Argument(help="JSON file of what state_dict() gave.")],
    path: Source,
    shards: PlainShards,
    *,
    as_json: Json = False,
) -> None:
    """Say what a checkpoint has seen of its epoch: rows and share, and rows of each shard.

    Example:  headrace seen state.json out
    """
    from headrace.stream.order.state import StreamState
    from headrace.stream.order.whereabouts import seen_per_shard

    saved = StreamState.from_dict(read_state(state))
    index = open_source(path, shards).split_index(saved.split)
    saved.check_index(index)
    counts = seen_per_shard(index, saved).tolist()
    totals = [int(index.rows[index.shard_of_block == shard].sum()) for shard in range(len(index.shards))]
    record = {
        "split": saved.split,
        "epoch": saved.epoch,
        "rows": saved.rows,
        "seen_rows": sum(counts),
        "share": round(sum(counts) / saved.rows, 6) if saved.rows else 1.0,
        "shards": {
            name: {"seen_rows": count, "rows": total}
            for name, count, total in zip(index.shards, counts, totals, strict=True)
        },
    }
    if as_json:
        tell(record)
        return
    from rich.table import Table

    rows = f"{sum(counts):,} of {saved.rows:,} rows, {100 * record['share']:.1f} %"
    title = f"{saved.split}, epoch {saved.epoch}: {rows}"
    table = Table(title=title, title_justify="left", header_style="bold")
    table.add_column("shard", overflow="fold")
    for name in ("seen", "rows"):
        table.add_column(name, justify="right")
    for name, count, total in zip(index.shards, counts, totals, strict=True):
        table.add_row(name, f"{count:,}", f"{total:,}")
    printer().print(table)


def read_state(path: Path) -> Any:
    """The JSON in a file that a state was saved to."""
    from headrace.sealed import parse_state  # imports numpy and pyarrow, which --help and a tab do without

    try:
        return parse_state(path.read_bytes())
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    except ValueError as error:
        raise InputError(f"{path}: is not JSON ({error}); give the file that state_dict() was saved to") from error
