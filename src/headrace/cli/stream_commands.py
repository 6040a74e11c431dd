"""The commands around a stream: index, peek, where, seen. where and seen read nothing beyond the index."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from headrace.cli.flags import Json, OneEpoch, PlainShards, Source, Split, offers, with_groups
from headrace.cli.output import cell, emit, printer, say
from headrace.errors import InputError, SettingsError
from headrace.packing.mask_view import MaskOptions, show_masks


@with_groups
def index(
    path: Annotated[str, typer.Argument(metavar="PATH", help="Plain shards: a directory, a file or a glob.")],
    *,
    place: Annotated[
        str | None,
        typer.Option(
            help="beside (in PATH/.headrace) or cache; default: beside, or the cache where PATH cannot be written.",
            show_default=False,
            autocompletion=offers("beside", "cache"),
        ),
    ] = None,
    shards: PlainShards,
    as_json: Json = False,
) -> None:
    """Publish the index of plain shards beside them. Whoever opens PATH afterwards reads no shard to find its blocks.

    The index holds the rows of every block and the columns. It is used while the files keep their names, sizes and
    times; of files that changed an index is made anew, and the log says so. Give the --types and --null-values that
    PATH is opened with.

    Example:  headrace index raw

    Example:  headrace index raw --types price=float32 --place cache
    """
    from headrace.checks import check_word
    from headrace.cli.progress import index_progress
    from headrace.dataset.open import is_prepared
    from headrace.dataset.plain import Place, publish_index
    from headrace.storage.places import path_of

    if place is not None:
        check_word("--place", place, get_args(Place))
    if is_prepared(path_of(path)):
        raise InputError(f"{path}: is a prepared dataset, whose runs have an index; give a directory of plain shards")
    with index_progress() as on_progress:
        found = publish_index(path, place=place, **shards.options(), on_progress=on_progress)  # type: ignore[arg-type]  # checked
    splits = {name: found.dataset.split_index(name) for name in found.dataset.splits}
    if as_json:
        counts = {
            name: {"shards": len(each.shards), "blocks": len(each.rows), "rows": each.total_rows}
            for name, each in splits.items()
        }
        size = found.path.stat().st_size
        emit({"path": str(found.path), "place": found.place, "how": found.how, "bytes": size, "splits": counts})
        return
    for name, each in splits.items():
        say(f"{name}: {each.total_rows:,} rows in {len(each.rows):,} blocks of {len(each.shards):,} shards")
    kept = ", which is that of the files as they are" if found.how == "kept" else ""
    say(f"index  {found.path}{kept}")
    if place is None and found.place == "cache":
        say("the directory of the shards cannot be written, so the index is in the cache of this user alone")


@with_groups
def peek(
    path: Source,
    *,
    split: Split = None,
    rows: Annotated[int, typer.Option(min=1, help="How many rows.")] = 10,
    shards: PlainShards,
    asked: MaskOptions,
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
    import pyarrow as pa

    from headrace.formats.schema import describe

    dataset = shards.open(path)
    index, read = dataset.split_index(split), dataset.block_reader(split)
    tables, left = [index.schema.empty_table()], min(rows, index.total_rows)
    for block in range(len(index.rows)):
        if left <= 0:
            break
        tables.append(read(block, None).slice(0, left))
        left -= tables[-1].num_rows
    first = pa.concat_tables(tables)
    if as_json:
        emit({"schema": describe(first.schema), "rows": first.to_pylist()})
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
    index = shards.open(path).split_index(asked.split)
    total = index.total_rows if asked.samples_per_epoch is None else asked.samples_per_epoch
    block, inside = row_number(index, shard, int(number))
    found = find_row(asked.plan(index), block=block, row=inside)
    record: dict[str, Any] = {"split": index.split, "row": row, "epoch": asked.epoch, "seen": found is not None}
    if found is not None:
        record |= {name: getattr(found, name) for name in ("step", "rank", "place", "position")}
    if as_json:
        emit(record)
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
    index = shards.open(path).split_index(saved.split)
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
        emit(record)
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
