"""Define the commands around a stream: index, peek, plan, where.

The last two read only the index.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from headrace.cli.output import cell, emit, fitting_tables, in_flags, printer, say, table
from headrace.cli.settings_flags import Json, unless_given, with_groups
from headrace.cli.stream_flags import BatchSize, OneEpoch, PlainShards, Ranks, Source
from headrace.digest import RepeatedKey, loads
from headrace.errors import HeadraceError, InputError, SettingsError, setting, setting_name
from headrace.packing.mask_view import MaskOptions, show_masks
from headrace.printable import short_repr

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.console import RenderableType
    from rich.text import Text

    from headrace.dataset.plain import PublishedIndex
    from headrace.stream.order.plan import Plan


@with_groups
def index(
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="Plain shards: a directory, a file or a glob.")
    ],
    *,
    location: Annotated[
        Literal["beside", "cache"] | None,
        unless_given(
            "--place",
            help="Where to keep it: beside (in PATH/.headrace), or cache if PATH is not writable.",
        ),
    ] = None,
    shards: PlainShards,
    as_json: Json = False,
) -> None:
    """Publish the index of plain shards beside them.

    Opening PATH later then skips the scan.

    The index holds the rows of every block and the columns. It is used while the files keep their
    names, sizes and times; of files that changed an index is made anew, and the log says so. Give
    the --types, --null-values and --schema-drift that PATH is opened with.

    Example:  headrace index raw

    Example:  headrace index raw --types price=float32 --place cache
    """
    from headrace.cli.progress import shard_progress
    from headrace.dataset.plain import publish_index

    _refuse_prepared(path, shards)
    with shard_progress("index the shards") as on_progress:
        published = publish_index(
            path, location=location, **shards.options(), on_progress=on_progress
        )
    if as_json:
        emit(_published_record(published))
    else:
        _say_published(published, location)


def _refuse_prepared(path: str, shards: PlainShards) -> None:
    """Refuse what is no plain shards."""
    from headrace.dataset.open import is_prepared
    from headrace.storage.places import path_of

    if is_prepared(path_of(path)):
        raise InputError(
            "is a prepared dataset, whose runs already have an index",
            path=path,
            remedy="give a directory of plain shards",
        )
    if shards.fold is not None:
        raise SettingsError(
            "plain shards have no folds", setting="fold", value=shards.fold, remedy="leave it out"
        )


def _published_record(published: PublishedIndex) -> dict[str, Any]:
    """Return what a published index holds as JSON."""
    from headrace.dataset.plain import changes_of

    counts = {}
    for name in published.dataset.splits:
        split_index = published.dataset.split_index(name)
        counts[name] = {
            "shards": len(split_index.shards),
            "blocks": len(split_index.rows),
            "rows": split_index.total_rows,
        }
    return {
        "path": str(published.path),
        "location": published.location,
        "how": published.how,
        "bytes": published.path.stat().st_size,
        "splits": counts,
        "changes": changes_of(published.dataset.index),
    }


def _say_published(published: PublishedIndex, location: str | None) -> None:
    """Say what a published index holds, and where it is."""
    record = _published_record(published)
    for change in record["changes"]:
        say(change)
    for name, counts in record["splits"].items():
        say(
            f"{name}: {counts['rows']:,} rows in {counts['blocks']:,} blocks of"
            f" {counts['shards']:,} shards"
        )
    unchanged = ""
    if published.how == "kept":
        unchanged = ", unchanged because the files are unchanged"
    say(f"index  {published.path}{unchanged}")
    if location is None and published.location == "cache":
        say("the directory of the shards is not writable, so the index is in this user's cache")


@with_groups
def peek(
    path: Source,
    *,
    split: Annotated[
        str | None, typer.Option(help="The split; of several, train unless given.")
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="Number of rows.")] = 10,
    shards: PlainShards,
    masks: MaskOptions,
    as_json: Json = False,
) -> None:
    """Print the first rows of a split, in the natural order, with the types that batches have.

    With --mask: the first rows of chat files as a packing run would encode them, trained text in
    colour.

    Example:  headrace peek out --rows 5

    Example:  headrace peek chats.jsonl --mask --tokenizer qwen3/ --rows 3
    """
    if masks.mask:
        show_masks(path, rows, masks, as_json=as_json)
        return
    if masks.tokenizer is not None:
        raise SettingsError(
            f"{setting_name('tokenizer')} works only with {setting('mask')}",
            remedy=f"add {setting('mask')} to see chats with their loss mask",
        )
    from headrace.formats.types import describe

    dataset = shards.open(path)
    if split is None and len(dataset.splits) > 1:
        split = dataset.split_named("train")
    index = dataset.split_index(split)
    first = _first_rows(dataset, index, path, rows)
    columns = describe(first.schema)
    if as_json:
        named = [
            dict(zip(first.schema.names, row, strict=True))
            for row in zip(*first.values, strict=True)
        ]
        emit({"schema": columns, "not_shown": first.others, "rows": named})
        return
    heads = [(cell(column["name"]), cell(column["type"])) for column in columns]
    title = f"{index.split}: {first.rows:,} of {index.total_rows:,} rows"
    cells = [_cells(column) for column in first.values]
    for part in fitting_tables(title, heads, cells, printer().width):
        printer().print(part)
    for name, reason in first.others.items():
        say(f"{cell(name)} is not shown: {cell(reason)}")


class _FirstRows(NamedTuple):
    """Columns of the first rows, and why others cannot be shown, by name."""

    rows: int
    schema: pa.Schema
    values: list[list[Any]]
    others: dict[str, str]


def _first_rows(dataset: Any, index: Any, path: str, most: int) -> _FirstRows:
    """Read the first rows of a split. Raises `InputError` if no column can be read."""
    import pyarrow as pa

    from headrace.formats.plain_types import check_read, readable
    from headrace.stream.read.batch import python_values

    schema = readable(index.schema)
    if not len(schema):
        check_read(index.schema, path)
    read = dataset.block_reader(index.split)
    tables = [schema.empty_table()]
    left = min(most, index.total_rows)
    for block in range(len(index.rows)):
        if left <= 0:
            break
        tables.append(read(block, schema.names).slice(0, left))
        left -= tables[-1].num_rows
    first = pa.concat_tables(tables)
    values = []
    fields = []
    others = {}
    for field in index.schema:
        if field.name not in schema.names:
            others[field.name] = f"as {field.type} is not read"
            continue
        try:
            values.append(_as_read(python_values(field.name, first[field.name]), field.type))
            fields.append(field)
        except InputError as error:
            others[field.name] = str(error.args[0])
    return _FirstRows(first.num_rows, pa.schema(fields), values, others)


def _cells(values: list[Any]) -> list[Text]:
    """Return the values of a column as they are printed."""
    from rich.text import Text

    cells = []
    for value in values:
        if value is None:
            cells.append(Text("null", style="dim"))
        else:
            cells.append(Text(cell(_cut(value))))
    return cells


_LIST = 12  # most numbers of a list to show


def _cut(value: Any) -> Any:
    """Shorten a long list of numbers to its first ones and the number of others."""
    if (
        not isinstance(value, list)
        or len(value) <= _LIST
        or not all(isinstance(number, int | float) for number in value)
    ):
        return value
    return f"[{', '.join(map(str, value[:_LIST]))}, … {len(value) - _LIST:,} more]"


def _as_read(values: list[Any], column_type: pa.DataType) -> list[Any]:
    """Return floats with only the digits of their type: 0.1 for a float32, not
    0.10000000149011612.
    """
    import numpy as np
    import pyarrow as pa

    if pa.types.is_float32(column_type) or pa.types.is_float16(column_type):
        single = np.float32 if pa.types.is_float32(column_type) else np.float16
        return [None if value is None else float(str(single(value))) for value in values]
    if (
        pa.types.is_list(column_type)
        or pa.types.is_large_list(column_type)
        or pa.types.is_fixed_size_list(column_type)
    ):
        return [
            None if value is None else _as_read(value, column_type.value_type) for value in values
        ]
    return values


@with_groups
def plan(  # noqa: PLR0913 - the arguments are flags
    path: Source,
    *,
    ranks: Ranks,
    batch_size: BatchSize,
    epoch: OneEpoch,
    shards: PlainShards,
    state: Annotated[
        Path | None,
        unless_given(help="Plan the rest of this saved state instead of a whole epoch."),
    ] = None,
    detail: Annotated[
        bool, typer.Option("--detail", help="Print every figure of the plan.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show what each rank will read, before anything runs.

    Exit 1 if a row would come twice, be missing, or steps differ.

    Three lines say whether the plan holds, what it costs, and what would make it cheaper; --detail
    has all figures. Reads nothing beyond the index, but with --balance the lengths of packed
    sequences. Bytes are estimates from it. Read amplification is what all ranks decode over each
    block once; a stream decodes that much or less. Better lanes are other lanes that were computed
    to decode less. Mixing is computed for a column that is sorted in the order of the files, the
    worst case, on sampled batches: the share of batches whose rows are all of one of two equal
    classes, and how many of 100 equal classes a batch meets. What a true permutation gives stands
    beside it. With
    --balance: what the slowest rank of a step costs over the mean.

    With --state, a JSON file of what state_dict() gave: what the rest of that epoch costs on these
    ranks. Epoch, seed and order are those of the state. Read amplification is how many times what
    is left is decoded.

    Example:  headrace plan out --split train --ranks 8 --batch-size 1024

    Example:  headrace plan out --split train --ranks 7 --batch-size 1024 --state state.json
    """
    if state is None:
        saved = None
    else:
        saved = read_state(state)
    index = epoch.index_of(shards.open(path), saved)
    epoch_plan = epoch.plan(index, ranks=ranks, batch_size=batch_size, state=saved)
    record = _record(epoch, index, epoch_plan, saved)
    from headrace.stream.order.advice import advice_of

    if as_json:
        emit(record)
    else:
        for line in advice_of(record):
            say(line)
        if detail:
            _print_record(f"plan of {index.split}", record)
    _refuse_unsound(record, path)


def _refuse_unsound(record: dict[str, Any], path: str) -> None:
    if not record["ok"]:
        raise HeadraceError(
            f"of split {record['split']}, {record['overlap_rows']} rows would be delivered twice"
            f" and {record['missing_rows']} not at all; this is a bug in headrace",
            path=path,
            remedy="report it with the output of --json",
        )


def _record(epoch: OneEpoch, index: Any, epoch_plan: Plan, saved: Any) -> dict[str, Any]:
    """Return the plan as a record with stable names for machines."""
    from headrace.dataset.indexed import polars_columns
    from headrace.stream.order.advice import mixing_of_plan, sorted_mixing
    from headrace.stream.order.plan import estimate_peak_bytes

    better = None
    if saved is None:
        better = _better_lanes(epoch, index, epoch_plan)
    slowest = {}
    if epoch_plan.imbalance is not None:
        slowest["slowest_rank_over_mean"] = round(epoch_plan.imbalance, 4)
    coverage = epoch_plan.coverage()
    in_classes = sorted_mixing(epoch_plan)
    steps = {epoch_plan.rank_rows(rank).steps for rank in range(epoch_plan.world_size)}
    delivered = coverage.delivered_rows + coverage.dropped_rows == epoch_plan.remaining.total
    return {
        "split": index.split,
        "rows": index.total_rows,
        "blocks": len(index.rows),
        "shards": len(index.shards),
        "ranks": epoch_plan.world_size,
        "batch_size": epoch_plan.batch_size,
        "remainder": epoch_plan.remainder,
        "distribution": epoch.distribution,
        "shuffle": epoch_plan.order.shuffle,
        "epoch_rows": epoch_plan.order.rows,
        "left_rows": epoch_plan.remaining.total,
        "lanes": epoch_plan.order.lanes,
        "window_rows": epoch_plan.order.window_rows,
        "memory_holds": "the decoded split" if epoch_plan.keeps_split else "open blocks",
        "steps_per_rank": epoch_plan.steps_per_rank,
        "rows_per_rank": _extremes(epoch_plan.rows_per_rank),
        "bytes_per_rank": _extremes(epoch_plan.bytes_per_rank),
        "overlap_rows": coverage.overlap_rows,
        "missing_rows": coverage.missing_rows,
        "dropped_rows": coverage.dropped_rows,
        "padded_rows": coverage.padded_rows,
        "read_amplification": round(epoch_plan.read_amplification, 3),
        "decoded_again_bytes": epoch_plan.decoded_again_bytes,
        "better_lanes": better,
        **slowest,
        "peak_memory_bytes_per_rank": estimate_peak_bytes(epoch_plan),
        "polars_columns": polars_columns(index),
        "sorted_rows": None if in_classes is None else asdict(in_classes),
        "mixing": _mixing_record(mixing_of_plan(index, epoch_plan)),
        "ok": (
            not (coverage.overlap_rows or coverage.missing_rows) and delivered and len(steps) == 1
        ),
    }


def _better_lanes(epoch: OneEpoch, index: Any, epoch_plan: Plan) -> dict[str, Any] | None:
    """Return lanes that decode less, if there are any."""
    from headrace.stream.order.plan import better_lanes

    def with_lanes(lanes: int) -> Plan:
        return replace(epoch, lanes=lanes).plan(
            index, ranks=epoch_plan.world_size, batch_size=epoch_plan.batch_size
        )

    lanes = better_lanes(epoch_plan, with_lanes)
    if lanes is None:
        return None
    return {"lanes": lanes[0], "read_amplification": round(lanes[1], 3)}


def _mixing_record(mixing_of_batches: Mapping[str, Any]) -> dict[str, Any]:
    record = {}
    for batch_kind, mixing in mixing_of_batches.items():
        record[batch_kind] = {name: round(value, 6) for name, value in asdict(mixing).items()}
    return record


def _extremes(values: Any) -> dict[str, int]:
    return {"min": int(values.min()), "max": int(values.max())}


def _print_record(title: str, record: dict[str, Any]) -> None:
    rows_table = table(title, ["", ""], numbers_from=1)
    for name, value in record.items():
        if name not in ("split", "sorted_rows", "mixing"):
            rows_table.add_row(_LABELS.get(name, name.replace("_", " ")), _text(value))
    printer().print(rows_table)
    if not record["mixing"]:
        return

    from headrace.report.words import KINDS_OF_BATCHES, percentage

    title = (
        "mixing of a sorted column: share of single-class batches with 2 classes, and classes seen"
        " of 100"
    )
    rows_table = table(
        title,
        ("batches", "rows", "single-class", "permuted", "classes seen", "permuted"),
        numbers_from=1,
    )
    for batch_kind, mixing in record["mixing"].items():
        rows_table.add_row(
            KINDS_OF_BATCHES[batch_kind],
            f"{mixing['rows']:,}",
            *(percentage(mixing[name], 1) for name in ("single_class", "permutation_single_class")),
            *(f"{mixing[name]:.1f}" for name in ("classes", "permutation_classes")),
        )
    printer().print(rows_table)


_LABELS = {"read_amplification": "read amplification, at most"}


def _text(value: Any) -> RenderableType:
    from rich.text import Text

    if isinstance(value, bool):
        return Text("yes", "green") if value else Text("NO", "bold red")
    if isinstance(value, dict):
        if "lanes" in value:
            return f"{value['lanes']:,} (amplification {value['read_amplification']:,})"
        return f"{value['min']:,} … {value['max']:,}"
    if value is None:
        return "none"
    if isinstance(value, int | float):
        return f"{value:,}"
    return cell(value)


@with_groups
def where(  # noqa: PLR0913 - the arguments are flags
    path: Source,
    *,
    row: Annotated[
        str | None,
        unless_given(
            metavar="SHARD:ROW", help="Path or name of a shard and a row in it, counted from 0."
        ),
    ] = None,
    seen: Annotated[
        Path | None,
        unless_given(
            metavar="STATE", help="JSON file of a state_dict(): say what this checkpoint has seen."
        ),
    ] = None,
    ranks: Annotated[int | None, unless_given(min=1, max=1 << 20, help="World size.")] = None,
    batch_size: Annotated[
        int | None, unless_given(min=1, help="Rows per batch of one rank.")
    ] = None,
    epoch: OneEpoch,
    shards: PlainShards,
    as_json: Json = False,
) -> None:
    """Say which step, rank and row of the batch a row is. Steps, ranks and rows count from 0.

    With --seen: what a checkpoint has seen of its epoch, rows and share, by shard. Epoch, seed and
    order are those of the state. What earlier epochs saw is not in it: each whole epoch sees every
    row.

    Example:  headrace where out --split train --row part-00003.parquet:17 --epoch 2 --ranks 8
    --batch-size 1024

    Example:  headrace where out --seen state.json
    """
    if seen is not None:
        _refuse_row(row)
        _print_seen(seen, shards.open(path), as_json=as_json)
        return
    if row is None:
        raise SettingsError("no row was given", remedy=f"give {setting('row')} SHARD:ROW")
    if ranks is None:
        raise _missing("ranks")
    if batch_size is None:
        raise _missing("batch_size")
    _print_row(row, shards.open(path), epoch, ranks, batch_size, as_json=as_json)


def _refuse_row(row: str | None) -> None:
    if row is not None:
        raise SettingsError(
            f"{setting('seen')} counts rows of shards",
            remedy=f"leave {setting('row')} out",
        )


def _missing(name: str) -> SettingsError:
    return SettingsError(
        f"{setting_name(name)} is missing", remedy="give those of the training run"
    )


def _print_row(
    row: str, dataset: Any, epoch: OneEpoch, ranks: int, batch_size: int, *, as_json: bool
) -> None:
    """Print which step, rank and row of the batch a row is. row: as SHARD:ROW."""
    from headrace.stream.order.whereabouts import find_row, row_number

    shard, _, number = row.rpartition(":")
    if not shard or not number.isdigit():
        remedy = "give SHARD:ROW with rows counted from 0, e.g. part-00003.parquet:17"
        raise SettingsError(setting="row", value=row, remedy=remedy)
    index = epoch.index_of(dataset)
    block, row_of_block = row_number(index, shard, int(number))
    sighting = find_row(
        epoch.plan(index, ranks=ranks, batch_size=batch_size), block=block, row=row_of_block
    )
    record: dict[str, Any] = {
        "split": index.split,
        "row": row,
        "epoch": epoch.epoch,
        "seen": sighting is not None,
    }
    if sighting is not None:
        record |= {"step": sighting.step, "rank": sighting.rank}
        record |= {"batch_row": sighting.batch_row, "position": sighting.position}
    if as_json:
        emit(record)
    elif sighting is not None:
        if epoch.samples_per_epoch is None:
            total = index.total_rows
        else:
            total = epoch.samples_per_epoch
        say(
            f"{row} in epoch {epoch.epoch}: step {sighting.step} of rank {sighting.rank},"
            f" row {sighting.batch_row} of the batch; position {sighting.position:,} of {total:,}"
        )
    else:
        reason = "another epoch delivers it, or it is dropped"
        if epoch.samples_per_epoch is None:
            reason = in_flags(f"{setting('remainder', 'drop')} leaves it out")
        say(f"{row} is not delivered in epoch {epoch.epoch}: {reason}")


def _print_seen(state: Path, dataset: Any, *, as_json: bool) -> None:
    """Print how many rows of each shard a checkpoint has seen of its epoch."""
    from headrace.stream.order.state import StreamState
    from headrace.stream.order.whereabouts import seen_per_shard

    saved = StreamState.from_dict(read_state(state))
    if saved.balance is None:
        index = dataset.split_index(saved.split)
    else:
        index = dataset.counted_index(saved.split)
    saved.check_index(index)
    counts = seen_per_shard(index, saved).tolist()
    totals = [
        int(index.rows[index.shard_of_block == shard].sum()) for shard in range(len(index.shards))
    ]
    fraction = 1.0
    if saved.rows:
        fraction = round(sum(counts) / saved.rows, 6)
    if as_json:
        by_shard = {}
        for name, count, total in zip(index.shards, counts, totals, strict=True):
            by_shard[name] = {"seen_rows": count, "rows": total}
        record = {
            "split": saved.split,
            "epoch": saved.epoch,
            "rows": saved.rows,
            "seen_rows": sum(counts),
        }
        emit({**record, "share": fraction, "shards": by_shard})
        return
    title = (
        f"{saved.split}, epoch {saved.epoch}: {sum(counts):,} of {saved.rows:,} rows,"
        f" {100 * fraction:.1f} %"
    )
    shards = table(title, ("shard", "seen", "rows"), numbers_from=1)
    for name, count, total in zip(index.shards, counts, totals, strict=True):
        shards.add_row(name, f"{count:,}", f"{total:,}")
    printer().print(shards)


def read_state(path: Path) -> Any:
    """Read the JSON of a saved state from a file."""
    try:
        return loads(path.read_bytes())
    except OSError as error:
        raise SettingsError(
            f"cannot be read ({error.strerror})", path=path, remedy="check the path"
        ) from error
    except (ValueError, RecursionError) as error:
        problem = str(error)
        if isinstance(error, RepeatedKey):
            problem = f"key {short_repr(error.key)} appears twice"
        elif isinstance(error, RecursionError):
            problem = "it is nested too deep"
        raise InputError(
            f"is not JSON ({problem})",
            path=path,
            remedy="give the file that state_dict() was saved to",
        ) from error
