"""The commands that look at a stream: plan, peek, where, seen. All but peek read nothing beyond the index."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import mask_view
from headrace.cli.opening import open_source
from headrace.cli.text_columns import CacheDir, NullValues, Types
from headrace.errors import HeadraceError, InputError, SettingsError

if TYPE_CHECKING:
    from headrace.stream.plan import Plan

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
Source = Annotated[
    str, typer.Argument(metavar="PATH", help="A prepared dataset, or plain shards: directory, file, glob.")
]
Split = Annotated[str | None, typer.Option(help="Which split; may be left out where there is only one.")]
Ranks = Annotated[int, typer.Option(min=1, help="World size.")]
Workers = Annotated[int, typer.Option(min=0, help="DataLoader workers of each rank; 0: threads in its own process.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Rows in a batch of one rank (of one worker).")]
Remainder = Annotated[str | None, typer.Option(help="pad, drop or exact; default: exact for one reader, else pad.")]
Shuffle = Annotated[bool, typer.Option("--shuffle/--no-shuffle", help="A keyed order of rows, or files in order.")]
Seed = Annotated[int, typer.Option(help="Seed of the order.")]
Epoch = Annotated[int, typer.Option(min=0, help="Which epoch.")]
Lanes = Annotated[int | None, typer.Option(min=1, help="Lanes; default: as a stream of this topology chooses.")]
Samples = Annotated[int | None, typer.Option("--samples-per-epoch", min=1, help="Rows of an epoch; default: all.")]
Distribution = Annotated[str, typer.Option(help="balanced, or whole shards: round_robin, by_size.")]
ShuffleRows = Annotated[int | None, typer.Option(min=1, help="Rows a reader shuffles among; default: as a stream.")]


def plan(
    path: Source,
    ranks: Ranks,
    batch_size: BatchSize,
    split: Split = None,
    workers: Workers = 0,
    remainder: Remainder = None,
    shuffle: Shuffle = True,
    seed: Seed = 0,
    epoch: Epoch = 0,
    lanes: Lanes = None,
    shuffle_rows: ShuffleRows = None,
    types: Types = None,
    null_values: NullValues = None,
    cache_dir: CacheDir = None,
    samples_per_epoch: Samples = None,
    distribution: Distribution = "balanced",
    html: Annotated[
        Path | None, typer.Option(help="Draw the plan as a page, into this file.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Say who reads how much when, before anything runs. Exit 1 if a row would come twice, be missing, or steps differ.

    Reads nothing beyond the index. Bytes are estimates from it. Shuffle quality is the mean distance in the natural
    order between neighbours of the global order, relative to that of a full shuffle (1.0), on a sample.

    With --html: who reads what when as pictures, what is decoded more than once, and who has nothing to do.

    Example:  headrace plan out --split train --ranks 8 --workers 4 --batch-size 1024
    """
    from headrace.stream.plan import estimate_peak_bytes
    from headrace.stream.whereabouts import shuffle_quality

    index = open_source(path, types, null_values, cache_dir).split_index(split)
    found = _plan(
        index,
        ranks=ranks,
        workers=workers,
        batch_size=batch_size,
        remainder=remainder,
        shuffle=shuffle,
        seed=seed,
        epoch=epoch,
        lanes=lanes,
        shuffle_rows=shuffle_rows,
        samples_per_epoch=samples_per_epoch,
        distribution=distribution,
    )
    coverage = found.coverage()
    rows, read = found.rows_per_consumer, found.bytes_per_consumer
    per_rank = rows.reshape(-1, ranks).sum(axis=0), read.reshape(-1, ranks).sum(axis=0)
    amplified = found.read_amplification
    steps = {found.share(rank=rank, worker=worker).steps for rank in range(ranks) for worker in range(max(1, workers))}
    delivered = coverage.delivered_rows + coverage.dropped_rows == found.order.rows
    record: dict[str, Any] = {
        "split": index.split,
        "rows": index.total_rows,
        "blocks": len(index.rows),
        "shards": len(index.shards),
        "ranks": ranks,
        "workers": workers,
        "batch_size": batch_size,
        "remainder": found.remainder,
        "distribution": distribution,
        "epoch_rows": found.order.rows,
        "lanes": found.order.lanes,
        "window_rows": found.order.window_rows,
        "steps_per_rank": found.steps_per_rank,
        "rows_per_rank": _extremes(per_rank[0]),
        "rows_per_worker": _extremes(rows),
        "bytes_per_rank": _extremes(per_rank[1]),
        "bytes_per_worker": _extremes(read),
        "overlap_rows": coverage.overlap_rows,
        "missing_rows": coverage.missing_rows,
        "dropped_rows": coverage.dropped_rows,
        "padded_rows": coverage.padded_rows,
        "read_amplification": round(amplified, 3),
        "lanes_without_amplification": found.lanes_without_amplification,
        "peak_memory_bytes_per_worker": estimate_peak_bytes(found),
        "shuffle_quality": round(shuffle_quality(index, found.order), 3),
        "ok": not (coverage.overlap_rows or coverage.missing_rows) and delivered and len(steps) == 1,
    }
    if html is not None:
        from headrace.report.lanes import plan_page
        from headrace.report.write import publish

        publish(plan_page(found, index, record), html)
    if as_json:
        typer.echo(json.dumps({**record, "html": str(html)} if html is not None else record))
    else:
        _print_record(f"plan of {index.split}", record)
        if html is not None:
            typer.echo(f"page  {html}")
    if not record["ok"]:
        raise HeadraceError(
            f"{path}: split {index.split}: {coverage.overlap_rows} rows would come twice and {coverage.missing_rows} be"
            " missing; this is a fault of headrace: report it with the output of --json"
        )


def peek(
    path: Source,
    split: Split = None,
    rows: Annotated[int, typer.Option(min=1, help="How many rows.")] = 10,
    types: Types = None,
    null_values: NullValues = None,
    cache_dir: CacheDir = None,
    mask: mask_view.Mask = False,
    tokenizer: mask_view.Tokenizer = None,
    chat_template: mask_view.ChatTemplate = None,
    layout: mask_view.Layout = "auto",
    columns: mask_view.Columns = None,
    reasoning: mask_view.Reasoning = "template",
    as_json: Json = False,
) -> None:
    """Print the first rows of a split, in the natural order, with the types that batches have.

    With --mask: the first rows of chat files as a packing run would encode them, trained text in colour.

    Example:  headrace peek out --split train --rows 5

    Example:  headrace peek chats.jsonl --mask --tokenizer qwen3/ --rows 3
    """
    if mask:
        mask_view.show_masks(
            path,
            rows,
            tokenizer=tokenizer,
            chat_template=chat_template,
            layout=layout,
            columns=columns,
            reasoning=reasoning,
            as_json=as_json,
        )
        return
    if tokenizer is not None:
        raise SettingsError("--tokenizer is for --mask; add --mask to see chats with their loss mask")
    import pyarrow as pa

    from headrace.formats.schema import describe

    dataset = open_source(path, types, null_values, cache_dir)
    index = dataset.split_index(split)
    read = dataset.block_reader(split)
    tables, left = [index.schema.empty_table()], rows
    for block in range(len(index.rows)):
        if left <= 0:
            break
        tables.append(read(block, None).slice(0, left))
        left -= tables[-1].num_rows
    first = pa.concat_tables(tables)
    if as_json:
        typer.echo(json.dumps({"schema": describe(first.schema), "rows": first.to_pylist()}, default=str))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    title = f"{index.split}: {first.num_rows:,} of {index.total_rows:,} rows"
    table = Table(title=title, title_justify="left", header_style="bold")
    for column in describe(first.schema):
        table.add_column(Text(f"{column['name']}\n{column['type']}"), overflow="fold")
    for row in first.to_pylist():
        table.add_row(*(Text("null", style="dim") if value is None else Text(str(value)) for value in row.values()))
    Console(soft_wrap=not os.isatty(1)).print(table)


def where(
    path: Source,
    row: Annotated[str, typer.Option(metavar="SHARD:ROW", help="A shard's path or name, and its row from 0.")],
    ranks: Ranks,
    batch_size: BatchSize,
    split: Split = None,
    workers: Workers = 0,
    remainder: Remainder = None,
    shuffle: Shuffle = True,
    seed: Seed = 0,
    epoch: Epoch = 0,
    lanes: Lanes = None,
    shuffle_rows: ShuffleRows = None,
    types: Types = None,
    null_values: NullValues = None,
    cache_dir: CacheDir = None,
    samples_per_epoch: Samples = None,
    distribution: Distribution = "balanced",
    as_json: Json = False,
) -> None:
    """Say which step, rank and place in the batch sees a row. Steps, ranks, workers and places count from 0.

    Example:  headrace where out --split train --row part-00003.parquet:17 --epoch 2 --ranks 8 --batch-size 1024
    """
    from headrace.stream.whereabouts import find_row, row_number

    shard, _, number = row.rpartition(":")
    if not shard or not number.isdigit():
        raise SettingsError(f"--row is {row!r}; write SHARD:ROW, e.g. part-00003.parquet:17, rows counted from 0")
    index = open_source(path, types, null_values, cache_dir).split_index(split)
    total = index.total_rows if samples_per_epoch is None else samples_per_epoch
    block, inside = row_number(index, shard, int(number))
    found = find_row(
        _plan(
            index,
            ranks=ranks,
            workers=workers,
            batch_size=batch_size,
            remainder=remainder,
            shuffle=shuffle,
            seed=seed,
            epoch=epoch,
            lanes=lanes,
            shuffle_rows=shuffle_rows,
            samples_per_epoch=samples_per_epoch,
            distribution=distribution,
        ),
        block=block,
        row=inside,
    )
    record: dict[str, Any] = {"split": index.split, "row": row, "epoch": epoch, "seen": found is not None}
    if found is not None:
        record |= {name: getattr(found, name) for name in ("step", "rank", "worker", "place", "position")}
    if as_json:
        typer.echo(json.dumps(record))
    elif found is None:
        why = (
            'remainder="drop" leaves it out' if samples_per_epoch is None else "it is another epoch's turn, or dropped"
        )
        typer.echo(f"{row} is not delivered in epoch {epoch}: {why}")
    else:
        typer.echo(
            f"{row} in epoch {epoch}: step {found.step} of rank {found.rank} (worker {found.worker}),"
            f" row {found.place} of the batch; position {found.position:,} of {total:,}"
        )


def seen(
    state: Annotated[Path, typer.Argument(help="JSON file of what state_dict() gave.")],
    path: Source,
    types: Types = None,
    null_values: NullValues = None,
    cache_dir: CacheDir = None,
    as_json: Json = False,
) -> None:
    """Say what a checkpoint has seen of its epoch: rows and share, and rows of each shard.

    Example:  headrace seen state.json out
    """
    from headrace.stream.state import StreamState
    from headrace.stream.whereabouts import seen_per_shard

    saved = StreamState.from_dict(read_state(state))
    index = open_source(path, types, null_values, cache_dir).split_index(saved.split)
    saved.check_index(index)
    counts = seen_per_shard(index, saved).tolist()
    totals = [int(index.rows[index.shard_of_block == shard].sum()) for shard in range(len(index.shards))]
    record = {
        "split": saved.split,
        "epoch": saved.epoch,
        "rows": saved.epoch_rows,
        "seen_rows": sum(counts),
        "share": round(sum(counts) / saved.epoch_rows, 6) if saved.epoch_rows else 1.0,
        "shards": {
            name: {"seen_rows": count, "rows": total}
            for name, count, total in zip(index.shards, counts, totals, strict=True)
        },
    }
    if as_json:
        typer.echo(json.dumps(record))
        return
    from rich.console import Console
    from rich.table import Table

    rows = f"{sum(counts):,} of {saved.epoch_rows:,} rows, {100 * record['share']:.1f} %"
    title = f"{saved.split}, epoch {saved.epoch}: {rows}"
    table = Table(title=title, title_justify="left", header_style="bold")
    table.add_column("shard", overflow="fold")
    for name in ("seen", "rows"):
        table.add_column(name, justify="right")
    for name, count, total in zip(index.shards, counts, totals, strict=True):
        table.add_row(name, f"{count:,}", f"{total:,}")
    Console(soft_wrap=not os.isatty(1)).print(table)


def read_state(path: Path) -> Any:
    """The JSON in a file that a state was saved to."""
    try:
        return json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    except ValueError as error:
        raise InputError(f"{path}: is no JSON ({error}); give the file that state_dict() was saved to") from error


def _plan(index: Any, *, ranks: int, workers: int, epoch: int, **settings: Any) -> Plan:
    from headrace.stream.options import StreamOptions
    from headrace.stream.passes import first_state, plan_pass
    from headrace.stream.topology import Topology

    options = StreamOptions(**settings)  # checks what words and numbers may be
    start = first_state(index, options, world_size=ranks, workers=workers, epoch=epoch)
    return plan_pass(index, options, start, topology=Topology(rank=0, world_size=ranks), workers=workers)


def _extremes(values: Any) -> dict[str, int]:
    return {"min": int(values.min()), "max": int(values.max())}


def _print_record(title: str, record: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, value in record.items():
        if name != "split":
            table.add_row(name.replace("_", " "), _text(value))
    Console(soft_wrap=not os.isatty(1)).print(table)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "[green]yes[/green]" if value else "[bold red]NO[/bold red]"
    if isinstance(value, dict):
        return f"{value['min']:,} … {value['max']:,}"
    return f"{value:,}" if isinstance(value, int | float) else str(value)
