"""What packing made, for people: bins and how full they are, tokens and how many are trained, what was left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.cli.tables import Detail
from headrace.dataset.manifest import Manifest, finished_at
from headrace.formats.source import told_empty
from headrace.recipe import registration_of_run


def print_packed(console: Console, manifest: Manifest, run: Path, detail: Detail) -> None:
    """Print a line per split and dataset, then what is not in the bins; in full also the facts of packing."""
    facts = manifest.facts
    table = Table(title=f"{manifest.recipe} {manifest.run_id}", title_justify="left", header_style="bold")
    table.add_column("split")
    table.add_column("dataset", overflow="fold")
    for name in ("rows", "tokens", "trained", "bins", "fill %", "each", "MB"):
        table.add_column(name, justify="right", no_wrap=True)
    for split in ("train", "valid", "test"):
        if split not in manifest.splits:
            continue
        groups = [group for group in facts["groups"] if group["split"] == split]
        size = f"{manifest.splits[split].bytes / 1e6:,.1f}"
        if len(groups) > 1:
            for group in groups:
                table.add_row(split, group["dataset"], *_numbers([group]), "", style="dim")
        name = groups[0]["dataset"] if len(groups) == 1 else "all"
        table.add_row(split, name, *_numbers(groups), size, end_section=True)
    console.print(table)
    console.print("each: sequences in a bin", style="dim")
    empty = manifest.source.get("empty_shards", [])
    if empty:
        console.print(Text(told_empty(empty, int(manifest.source["files"])), style="yellow"))
    _print_left_out(console, manifest)
    if detail == "full":
        _print_facts(console, manifest, run)


def _numbers(groups: list[dict[str, Any]]) -> list[str]:
    total = {name: sum(group[name] for group in groups) for name in ("rows", "sequences", "tokens", "labels", "bins")}
    used = sum(group["metrics"]["tokens"] for group in groups)
    room = sum(group["metrics"]["capacity"] * group["bins"] for group in groups)
    return [
        f"{total['rows']:,}",
        f"{total['tokens']:,}",
        _share(total["labels"], total["tokens"]),
        f"{total['bins']:,}",
        f"{100 * used / room:.2f}" if room else "",
        f"{total['sequences'] / total['bins']:.1f}" if total["bins"] else "",
    ]


def _print_left_out(console: Console, manifest: Manifest) -> None:
    facts, read = manifest.facts, int(manifest.source["rows"])
    table = Table(title="not in the bins", title_justify="left", header_style="bold")
    table.add_column("reason")
    for name in ("rows", "share", "sequences", "tokens", "trained"):
        table.add_column(name, justify="right")
    explained, words = [], registration_of_run(manifest.recipe).reasons
    for reason in sorted({*manifest.dropped, *facts["lost"]}):
        rows, lost = manifest.dropped.get(reason, 0), facts["lost"].get(reason, {})
        if not rows and not any(lost.values()):
            continue
        numbers = [f"{lost[name]:,}" if lost else "" for name in ("sequences", "tokens", "labels")]
        table.add_row(reason, f"{rows:,}", _share(rows, read), *numbers, style="yellow")
        explained.append(f"{reason}: {words.get(reason, reason)}")
    if explained:
        console.print(table)
        console.print("\n".join(explained), style="dim", highlight=False)
    cut = {name: count for name, count in facts["too_long"].items() if count}
    if cut:
        done = {"truncated": "truncated", "too_long_dropped": "dropped", "divided": "divided into pieces"}
        listed = ", ".join(f"{count:,} {done[name]}" for name, count in cut.items())
        console.print(f"sequences longer than a bin: {listed}", highlight=False)
    typed = facts.get("special_text_rows", 0)  # runs made before it was counted have none
    if typed:
        console.print(f"{typed:,} rows hold the text of a special token in a message (special_text)", highlight=False)
    in_bins, encoded = facts["packed"]["tokens"], facts["encoded"]["encoded_tokens"]
    console.print(
        f"{read:,} rows read, {encoded:,} tokens = {in_bins:,} in bins + {encoded - in_bins:,} left out",
        highlight=False,
    )


def _print_facts(console: Console, manifest: Manifest, run: Path) -> None:
    facts = Table(title="facts", title_justify="left", show_header=False)
    facts.add_column()
    facts.add_column(overflow="fold")
    encoder = dict(manifest.facts["encoder"])
    libraries = manifest.libraries | encoder.pop("libraries")
    rows: dict[str, Any] = {"finished": finished_at(run), **encoder}
    for units in manifest.facts["units"]:
        counts = ", ".join(f"{name} {count:,}" for name, count in units.items() if name != "of" and count)
        rows[f"split of {units['of']}"] = counts
    rows["bins without a label"] = manifest.facts["packed"]["bins_without_label"]
    rows["libraries"] = ", ".join(f"{name} {version}" for name, version in sorted(libraries.items()))
    for name, value in rows.items():
        facts.add_row(name.replace("_", " "), f"{value:,}" if isinstance(value, int) else str(value))
    console.print(facts)


def _share(part: int, of: int) -> str:
    return f"{100 * part / of:.1f} %" if of else ""
