"""Print the results of a run: tables for people, JSON for machines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.cli.output import cell, record_table, table
from headrace.dataset.manifest import Manifest, finished_at, in_usual_order
from headrace.recipe import recipe_of_run
from headrace.report.words import size

Detail = Literal["short", "full"]

# Folds have their own table, and dates are drawn in the report.
_TOLD_ELSEWHERE = ("directories", "folds", "dates")


def print_run(console: Console, manifest: Manifest, run: Path, detail: Detail) -> None:
    """Print the results of a run in the format of its recipe."""
    common = partial(print_manifest, console, manifest, run, detail)
    recipe_of_run(manifest.recipe).summary(console, manifest, run, detail, common)


def print_manifest(console: Console, manifest: Manifest, run: Path, detail: Detail) -> None:
    """Print rows per split and per drop reason; in full also schema, facts, time and libraries."""
    full = detail == "full"
    folds = manifest.folds
    empty = manifest.source.get("empty_shards", [])
    console.print(_rows_table(manifest, full=full))
    if folds:
        console.print(folds_table(manifest))
    if empty and not full:
        from headrace.formats.source import describe_empty  # imports all formats

        console.print(Text(describe_empty(empty, int(manifest.source["files"])), style="dim"))
    reasons = recipe_of_run(manifest.recipe).reasons
    for reason, lost in manifest.dropped.items():
        if lost and reason in reasons:
            console.print(f"{reason}: {reasons[reason]}", style="dim", highlight=False)
    if full:
        schema = table("columns", ("name", "type", "nulls"))
        for column in manifest.schema:
            nulls = "may contain nulls" if column["nullable"] else "none"
            schema.add_row(cell(column["name"]), cell(column["type"]), nulls)
        console.print(schema)
        remaining = {}
        for name, value in manifest.metadata.items():
            if name not in _TOLD_ELSEWHERE:
                remaining[name] = value
        remaining["empty source shards"] = ", ".join(manifest.source["empty_shards"]) or "none"
        print_metadata(console, run, remaining, manifest.libraries)


def _rows_table(manifest: Manifest, *, full: bool) -> Table:
    """Make a table of the rows of each split, of those dropped for each reason, and of all."""
    read = int(manifest.source["rows"])
    # set by recipes whose rows combine several source rows
    gathered = manifest.metadata.get("source_rows", {})
    blank = [""] if gathered else []
    folds = manifest.folds
    heads = ("split", "rows", *(["source rows"] if gathered else []), "share", "shards", "size")
    rows_table = table(f"{manifest.recipe} {manifest.run_id}", heads, numbers_from=1)
    for split in in_usual_order(manifest.splits) if full or not folds else ():
        totals = manifest.splits[split]
        rows = f"{totals.rows:,}"
        source = []
        if gathered:
            source = [f"{gathered[split]:,}"]
        part = percent(gathered.get(split, totals.rows), read)
        rows_table.add_row(split, rows, *source, part, f"{totals.shards:,}", size(totals.bytes))
    if folds and not full:
        rows_table.add_row(*_row_of_all_folds(manifest, read))
    rows_table.add_section()
    for reason, lost in manifest.dropped.items():
        if lost or full:
            style = "yellow" if lost else "dim"
            rows_table.add_row(
                f"dropped: {reason}", *blank, f"{lost:,}", percent(lost, read), "", "", style=style
            )
    rows_table.add_section()
    files = f"{manifest.source['files']:,}"
    total_bytes = size(manifest.source["bytes"])
    rows_table.add_row("read", *blank, f"{read:,}", percent(read, read), files, total_bytes)
    empty = manifest.source.get("empty_shards", [])
    if empty:
        rows_table.add_row(
            "empty source files", *blank, "0", "", f"{len(empty):,}", "", style="yellow"
        )
    return rows_table


def _row_of_all_folds(manifest: Manifest, read: int) -> tuple[str, ...]:
    totals = manifest.splits.values()
    rows = sum(part.rows for part in totals)
    shards = sum(part.shards for part in totals)
    total_bytes = sum(part.bytes for part in totals)
    return ("all folds", f"{rows:,}", percent(rows, read), f"{shards:,}", size(total_bytes))


def folds_table(manifest: Manifest) -> Table:
    """Make a table of the rows of each fold, by split, and of the rows that a fold leaves out."""
    folds = [manifest.fold(number) for number in range(len(manifest.folds))]
    every = sum(totals.rows for totals in manifest.splits.values())
    rolls = "cutoff_us" in manifest.metadata["folds"][0]
    rows_table = table(
        "folds",
        ("fold", *(["cut"] if rolls else []), *folds[0].splits, "left out"),
        numbers_from=1 + rolls,
    )
    for number, fold in enumerate(folds):
        rows = [totals.rows for totals in fold.splits.values()]
        cut = []
        if rolls:
            cut = [cell(fold.metadata["split_date"])]
        rows_table.add_row(
            str(number), *cut, *(f"{count:,}" for count in (*rows, every - sum(rows)))
        )
    return rows_table


def folds_record(manifest: Manifest, run: Path) -> dict[str, Any]:
    """Return the folds of a run as JSON: the cut of each, and its rows by split."""
    folds = []
    for number in range(len(manifest.folds)):
        fold = manifest.fold(number)
        rows = {split: totals.rows for split, totals in fold.splits.items()}
        folds.append({"fold": number, "split_date": fold.metadata.get("split_date"), "rows": rows})
    return {"run": str(run), "folds": folds}


def print_metadata(
    console: Console, run: Path, rows: Mapping[str, Any], libraries: Mapping[str, str]
) -> None:
    """Print when a run finished, those of the facts that are not None, and the libraries used."""
    lines: dict[str, Any] = {"finished": finished_at(run)}
    for name, value in rows.items():
        if name.endswith("_us") and isinstance(value, int):
            lines[name.removesuffix("_us")] = _moment(value)
        elif value is not None:
            lines[name] = value
    lines["libraries"] = ", ".join(
        f"{name} {version}" for name, version in sorted(libraries.items())
    )
    console.print(record_table("metadata", lines))


def _moment(microseconds: int) -> str:
    """Format a time for people, or as a number if Python does not support its year."""
    try:
        return f"{datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)}"
    except OverflowError:
        return f"{microseconds:,} µs"


def percent(rows: int, of: int) -> str:
    """Format a share in percent; "" if the total is 0."""
    if of:
        return f"{100 * rows / of:.1f} %"
    return ""


def manifest_record(manifest: Manifest, run: Path, how: str) -> dict[str, Any]:
    """Return a manifest as JSON, with the run's path and whether it was computed or reused."""
    return {"run": str(run), "how": how, **asdict(manifest)}
