"""`headrace pack` and `headrace preferences`, and a summary of packed runs for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.bins import Alignment
from headrace.cli.commands import execute
from headrace.cli.output import table
from headrace.cli.settings_flags import FlagValues, Out, RunOptions, pairs_of
from headrace.errors import SettingsError, setting_name
from headrace.recipe import recipe_of_run
from headrace.report.words import size

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from headrace.cli.tables import Detail
    from headrace.dataset.manifest import Manifest

_row = partial(typer.Option, rich_help_panel="Rows and tokens", show_default=False)

Blend = Annotated[
    list[str],
    typer.Argument(help="A blend file, or files, directories, globs.", show_default=False),
]


@dataclass(frozen=True, kw_only=True)
class OneDataset:
    """Describe the dataset that plain paths are; a blend file says it itself."""

    layout: Annotated[
        str | None, _row(help="How a row holds chats. Default: detected. Not with a blend file.")
    ] = None
    mapping: Annotated[
        str | None,
        _row(
            help=(
                "Which column is which, e.g. user=question,assistant=answer. Not with a blend file."
            )
        ),
    ] = None
    filters: Annotated[
        list[str] | None,
        _row(
            "--filter",
            metavar="COLUMN=WORD,...",
            help=(
                "Keep rows whose column holds one of the words; repeat for other columns. Not with"
                " a blend file."
            ),
        ),
    ] = None


def pack(
    blend: Blend,
    *,
    out: Out,
    dataset: OneDataset,
    alignment: Annotated[
        Alignment | None,
        _row(
            help=(
                "Where loss masks stand in a pickled .npy: legacy_roll_right in most. Not with a"
                " blend file."
            )
        ),
    ] = None,
    flags: FlagValues,
    about: RunOptions,
) -> None:
    """Render, tokenise and pack chats into bins that trainers read as they are.

    BLEND is a JSON file of datasets with weights, or of datasets per split; or a path to data.

    Example:  headrace pack blend.json --out out --tokenizer qwen3 --pack-size 4096 --too-long
    truncate

    Example:  headrace pack bins.npy --out out --alignment legacy_roll_right
    """
    execute(flags.recipe(blend=_read_blend(blend, dataset, alignment)), out, about)


def preferences(
    blend: Blend, *, out: Out, dataset: OneDataset, flags: FlagValues, about: RunOptions
) -> None:
    """Render and tokenise preference pairs, judged answers or prompts, for DPO, KTO and GRPO
    trainers.

    BLEND is a JSON file of datasets with weights, or of datasets per split; or a path to data.

    Example:  headrace preferences pairs.jsonl --out out --tokenizer qwen3

    Example:  headrace preferences prompts.parquet --out out --tokenizer qwen3 --kind prompts
    """
    execute(flags.recipe(blend=_read_blend(blend, dataset)), out, about)


def _read_blend(paths: list[str], options: OneDataset, alignment: Alignment | None = None) -> Any:
    """Read the argument BLEND; the options of a dataset apply only to the one dataset of plain
    paths.
    """
    from headrace.packing.blend import blend_of, is_blend_file
    from headrace.storage.places import path_of

    if len(paths) == 1 and is_blend_file(path_of(paths[0])):
        for name, value in {**vars(options), "alignment": alignment}.items():
            if value:
                raise SettingsError(
                    f"is a blend file, and {setting_name(name)} is for the one dataset of paths",
                    path=paths[0],
                    value=value,
                    remedy="write it into the datasets of the file",
                )
        return paths[0]
    blend: Any = blend_of(paths)
    (dataset,) = blend["datasets"]
    if options.layout is not None:
        dataset["layout"] = options.layout
    if options.mapping is not None:
        dataset["mapping"] = pairs_of(
            "mapping", options.mapping.split(","), "NAME=COLUMN", "user=question"
        )
    if options.filters:
        words_by_column = pairs_of(
            "filters", options.filters, "COLUMN=WORD,...", "used_in=sft,chat", empty="take"
        )
        dataset["filters"] = {name: words.split(",") for name, words in words_by_column.items()}
    if alignment is not None:
        dataset["alignment"] = alignment
    return blend


def print_packed(console: Console, manifest: Manifest, run: Path, detail: Detail) -> None:
    """Print a line per split and dataset, then what is left out of the bins; full detail adds the
    facts of packing.
    """
    from rich.text import Text

    from headrace.cli.tables import print_metadata
    from headrace.formats.source import describe_empty

    metadata = manifest.metadata
    console.print(_table_of_splits(manifest))
    console.print("each: sequences in a bin", style="dim")
    empty = manifest.source.get("empty_shards", [])
    if empty:
        console.print(Text(describe_empty(empty, int(manifest.source["files"])), style="yellow"))
    _print_left_out(console, manifest)
    if detail == "full":
        encoder = dict(metadata["encoder"])
        if "tokenizer" in encoder:  # a tokenizer of the hub
            encoder["tokenizer"] = "{repository}@{commit}".format(**encoder["tokenizer"])
        libraries = manifest.libraries | encoder.pop("libraries")
        units = {}
        for draw in metadata["units"]:
            counts = []
            for name, count in draw.items():
                if name != "of" and count:
                    counts.append(f"{name} {count:,}")
            units[f"split of {draw['of']}"] = ", ".join(counts)
        without = metadata["packed"]["bins_without_label"]
        print_metadata(
            console, run, {**encoder, **units, "bins without a label": without}, libraries
        )


def _table_of_splits(manifest: Manifest) -> Table:
    """Show a line per split and dataset."""
    from rich.table import Table

    from headrace.cli.tables import percent
    from headrace.dataset.manifest import in_usual_order

    metadata = manifest.metadata
    table = Table(
        title=f"{manifest.recipe} {manifest.run_id}", title_justify="left", header_style="bold"
    )
    table.add_column("split")
    named = len({group["dataset"] for group in metadata["groups"]}) > 1 or any(
        "sources" in group for group in metadata["groups"]
    )
    if named:
        table.add_column("dataset", overflow="fold")
    for name in ("rows", "tokens", "trained", "bins", "fill %", "each", "size"):
        table.add_column(name, justify="right", no_wrap=True)
    for split in in_usual_order(manifest.splits):
        groups = [group for group in metadata["groups"] if group["split"] == split]
        for group in groups if len(groups) > 1 else ():
            table.add_row(split, group["dataset"], *_numbers([group]), "", style="dim")
        for source, counts in sorted(
            pair for group in groups for pair in group.get("sources", {}).items()
        ):
            numbers = (
                f"{counts['rows']:,}",
                f"{counts['tokens']:,}",
                percent(counts["labels"], counts["tokens"]),
            )
            share_of_tokens = percent(counts["tokens"], sum(group["tokens"] for group in groups))
            table.add_row(
                split, f"{source}, {share_of_tokens} of the tokens", *numbers, style="dim"
            )
        name = "all"
        if len(groups) == 1:
            name = groups[0]["dataset"]
        stored_size = size(manifest.splits[split].bytes)
        table.add_row(
            split, *((name,) if named else ()), *_numbers(groups), stored_size, end_section=True
        )
    return table


def _numbers(groups: list[dict[str, Any]]) -> list[str]:
    from headrace.cli.tables import percent

    rows, sequences, tokens, labels, bins = (
        sum(group[name] for group in groups)
        for name in ("rows", "sequences", "tokens", "labels", "bins")
    )
    used = sum(group["metrics"]["tokens"] for group in groups)
    room = sum(group["metrics"]["capacity"] * group["bins"] for group in groups)
    if bins:
        fill, per_bin = (f"{100 * used / room:.2f}", f"{sequences / bins:.1f}")
    else:
        fill, per_bin = ("", "")
    return [f"{rows:,}", f"{tokens:,}", percent(labels, tokens), f"{bins:,}", fill, per_bin]


def _print_left_out(console: Console, manifest: Manifest) -> None:
    from headrace.cli.tables import percent

    metadata = manifest.metadata
    read = int(manifest.source["rows"])
    heads = ("reason", "rows", "share", "sequences", "tokens", "trained")
    lost_table = table("not in the bins", heads, numbers_from=1)
    notes = []
    words = recipe_of_run(manifest.recipe).reasons
    for reason in sorted({*manifest.dropped, *metadata["lost"]}):
        rows = manifest.dropped.get(reason, 0)
        lost = metadata["lost"].get(reason, {})
        if rows or any(lost.values()):
            numbers = [
                f"{lost[name]:,}" if lost else "" for name in ("sequences", "tokens", "labels")
            ]
            lost_table.add_row(reason, f"{rows:,}", percent(rows, read), *numbers, style="yellow")
            notes.append(f"{reason}: {words.get(reason, reason)}")
    if notes:
        console.print(lost_table)
        console.print("\n".join(notes), style="dim", highlight=False)
    console.print("\n".join(_token_account(metadata, read)), highlight=False)


def _token_account(metadata: Mapping[str, Any], rows_read: int) -> list[str]:
    """Say what became of the tokens and of the texts of the source, after a line each about cut
    sequences and special texts.
    """
    from headrace.packing.chats.words import sentence_of

    lines = []
    done = {
        "truncated": "truncated",
        "too_long_dropped": "dropped",
        "divided": "divided into pieces",
    }
    cut = ", ".join(
        f"{count:,} {done[name]}" for name, count in metadata["too_long"].items() if count
    )
    if cut:
        lines.append(f"sequences longer than a bin: {cut}")
    typed = metadata["special_text_rows"]
    if typed:
        lines.append(f"{typed:,} rows hold the text of a special token in a message (special_text)")
    in_bins = metadata["packed"]["tokens"]
    encoded = metadata["encoded"]["encoded_tokens"]
    more = sum(repeats["tokens"] for repeats in metadata.get("repeated", {}).values())
    again = f" + {more:,} repeated" if more else ""
    lines.append(
        f"{rows_read:,} rows read, {encoded:,} tokens{again} = {in_bins:,} in bins +"
        f" {encoded + more - in_bins:,} left out"
    )
    if metadata["words"]:
        lines.append(sentence_of(metadata["words"]))
    return lines
