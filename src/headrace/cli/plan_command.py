"""Plan who reads how much when, before anything runs: `headrace plan`. Reads nothing beyond the index."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.flags import Json, OneEpoch, PlainShards, Source, with_groups
from headrace.cli.output import cell, emit, printer, say
from headrace.cli.stream_commands import read_state
from headrace.errors import HeadraceError, SettingsError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from headrace.stream.order.plan import Plan


@with_groups
def plan(
    path: Source,
    *,
    asked: OneEpoch,
    shards: PlainShards,
    state: Annotated[
        Path | None, typer.Option(help="Plan what this saved state leaves, not an epoch.", show_default=False)
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Draw the plan as a page, into this file.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Say who reads how much when, before anything runs. Exit 1 if a row would come twice, be missing, or steps differ.

    Reads nothing beyond the index. Bytes are estimates from it. Read amplification is what all ranks decode over each
    block once; a stream decodes that much or less. Better lanes are other lanes that were computed to decode less.
    Mixing is computed for a column that is sorted in the order of the files, the worst case, on sampled batches: the
    share of batches whose rows are all of one of two equal classes, and how many of 100 equal classes a batch meets.
    What a true permutation gives stands beside it.

    With --state, a JSON file of what state_dict() gave: what the rest of that epoch costs on these ranks. Epoch, seed
    and order are those of the state. Read amplification is how many times what is left is decoded.

    With --html: pictures of who reads what when, what is decoded more than once, and who has nothing to do.

    Example:  headrace plan out --split train --ranks 8 --batch-size 1024

    Example:  headrace plan out --split train --ranks 7 --batch-size 1024 --state state.json
    """
    if state is not None and html is not None:
        raise SettingsError("--html draws a whole epoch, and --state is of what is left of one; leave one of them out")
    index = shards.open(path).split_index(asked.split)
    saved = None if state is None else read_state(state)
    found = asked.plan(index, saved)
    record = _record(asked, index, found, saved)
    if html is not None:
        from headrace.report.lanes import plan_page
        from headrace.report.write import publish

        publish(plan_page(found, index, record), html)
    if as_json:
        emit({**record, "html": str(html)} if html is not None else record)
    else:
        _print_record(f"plan of {index.split}", record)
        if html is not None:
            say(f"page  {html}")
    if not record["ok"]:
        raise HeadraceError(
            f"{path}: split {index.split}: {record['overlap_rows']} rows would come twice and {record['missing_rows']}"
            " be missing; this is a fault of headrace: report it with the output of --json"
        )


def _record(asked: OneEpoch, index: Any, found: Plan, saved: Any) -> dict[str, Any]:
    """Return what the plan says, by names that machines may rely on."""
    from headrace.stream.order.mixing import mixing_of_plan
    from headrace.stream.order.plan import better_lanes, estimate_peak_bytes

    lanes = better_lanes(found, lambda lanes: replace(asked, lanes=lanes).plan(index)) if saved is None else None
    better = None if lanes is None else {"lanes": lanes[0], "read_amplification": round(lanes[1], 3)}
    coverage = found.coverage()
    steps = {found.share(rank).steps for rank in range(asked.ranks)}
    delivered = coverage.delivered_rows + coverage.dropped_rows == found.remaining.total
    return {
        "split": index.split,
        "rows": index.total_rows,
        "blocks": len(index.rows),
        "shards": len(index.shards),
        "ranks": asked.ranks,
        "batch_size": asked.batch_size,
        "remainder": found.remainder,
        "distribution": asked.distribution,
        "epoch_rows": found.order.rows,
        "left_rows": found.remaining.total,
        "lanes": found.order.lanes,
        "window_rows": found.order.window_rows,
        "memory_holds": "the decoded split" if found.keeps_split else "open blocks",
        "steps_per_rank": found.steps_per_rank,
        "rows_per_rank": _extremes(found.rows_per_rank),
        "bytes_per_rank": _extremes(found.bytes_per_rank),
        "overlap_rows": coverage.overlap_rows,
        "missing_rows": coverage.missing_rows,
        "dropped_rows": coverage.dropped_rows,
        "padded_rows": coverage.padded_rows,
        "read_amplification": round(found.read_amplification, 3),
        "decoded_again_bytes": found.decoded_again_bytes,
        "better_lanes": better,
        "peak_memory_bytes_per_rank": estimate_peak_bytes(found),
        "mixing": {
            kind: {name: round(value, 6) for name, value in asdict(mixing).items()}
            for kind, mixing in mixing_of_plan(index, found).items()
        },
        "ok": not (coverage.overlap_rows or coverage.missing_rows) and delivered and len(steps) == 1,
    }


def _extremes(values: Any) -> dict[str, int]:
    return {"min": int(values.min()), "max": int(values.max())}


def _print_record(title: str, record: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, value in record.items():
        if name not in ("split", "mixing"):
            table.add_row(_LABELS.get(name, name.replace("_", " ")), _text(value))
    printer().print(table)
    if not record["mixing"]:
        return

    from headrace.report.words import KINDS_OF_BATCHES, share

    title = "mixing of a sorted column: all of one class of 2, and classes of 100"
    table = Table(title=title, title_justify="left")
    table.add_column("batches")
    for head in ("rows", "of one class", "permuted", "classes met", "permuted"):
        table.add_column(head, justify="right")
    for kind, found in record["mixing"].items():
        table.add_row(
            KINDS_OF_BATCHES[kind],
            f"{found['rows']:,}",
            *(share(found[name], 1) for name in ("single_class", "permutation_single_class")),
            *(f"{found[name]:.1f}" for name in ("classes", "permutation_classes")),
        )
    printer().print(table)


_LABELS = {"read_amplification": "read amplification, at most"}


def _text(value: Any) -> RenderableType:
    from rich.text import Text

    if isinstance(value, bool):
        return Text("yes", "green") if value else Text("NO", "bold red")
    if isinstance(value, dict) and "lanes" in value:
        return f"{value['lanes']:,} (amplification {value['read_amplification']:,})"
    if isinstance(value, dict):
        return f"{value['min']:,} … {value['max']:,}"
    if value is None:
        return "none"
    return f"{value:,}" if isinstance(value, int | float) else cell(value)
