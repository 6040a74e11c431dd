"""`headrace pack` and `headrace convert`, and what packing made, for people."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from headrace.cli.commands import execute
from headrace.cli.derived import Given
from headrace.cli.flags import Json, RunOptions
from headrace.cli.output import emit, say
from headrace.errors import InputError, SettingsError
from headrace.recipe import registration_of_run

if TYPE_CHECKING:
    from rich.console import Console

    from headrace.cli.tables import Detail
    from headrace.dataset.manifest import Manifest

_row = partial(typer.Option, rich_help_panel="Rows and tokens", show_default=False)


@dataclass(frozen=True, kw_only=True)
class OneDataset:
    """What plain paths are; a blend file says it itself."""

    layout: Annotated[
        str | None, _row(help="How chats lie in a row; found out unless given. Not with a blend file.")
    ] = None
    mapping: Annotated[
        str | None, _row(help="Which column is which, e.g. user=question,assistant=answer. Not with a blend file.")
    ] = None
    filters: Annotated[
        list[str] | None,
        _row(
            "--filter",
            metavar="COLUMN=WORD,...",
            help="Keep rows whose column holds one of the words; again for other columns. Not with a blend file.",
        ),
    ] = None


def pack(
    blend: Annotated[list[str], typer.Argument(help="A blend file, or files, directories, globs.", show_default=False)],
    *,
    out: Annotated[Path, typer.Option(help="Output directory.", show_default=False)],
    dataset: OneDataset,
    given: Given,
    about: RunOptions,
) -> None:
    """Render, tokenise and pack chats into bins that trainers read as they are.

    BLEND is a JSON file of datasets with weights, or of datasets per split; or a path to data.

    Example:  headrace pack blend.json --out out --tokenizer qwen3 --pack-size 4096 --too-long truncate
    """
    execute(given.recipe(blend=_blend(blend, dataset)), out, about)


def _blend(paths: list[str], asked: OneDataset) -> Any:
    """What was given as BLEND; --layout, --mapping and --filter belong to the one dataset of plain paths."""
    from headrace.packing.blend import blend_of, is_blend_file
    from headrace.storage.places import path_of

    if len(paths) == 1 and is_blend_file(path_of(paths[0])):
        if asked.layout is not None or asked.mapping is not None or asked.filters:
            raise SettingsError(f"{paths[0]}: is a blend file; write layout, mapping and filters into its datasets")
        return paths[0]
    blend: Any = blend_of(paths)
    if asked.layout is not None:
        blend["datasets"][0]["layout"] = asked.layout
    if asked.mapping is not None:
        pairs = [_pair("--mapping", each, "user=question") for each in asked.mapping.split(",") if each.strip()]
        blend["datasets"][0]["mapping"] = dict(pairs)
    if asked.filters:
        found = [_pair("--filter", each, "used_in=sft,chat") for each in asked.filters]
        blend["datasets"][0]["filters"] = {name: words.split(",") for name, words in found}
    return blend


def _pair(option: str, text: str, example: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found:
        raise SettingsError(f"{option}: {text!r} has no =; write e.g. {example}")
    return name.strip(), value.strip()


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
    from headrace.bins.rows import ALIGNMENT_KEY
    from headrace.packing.storage.legacy import convert_legacy_to_parquet
    from headrace.packing.storage.packed_parquet import checked_codec

    try:
        checked_codec(compression, compression_level)
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


def print_packed(console: Console, manifest: Manifest, run: Path, detail: Detail) -> None:
    """Print a line per split and dataset, then what is not in the bins; in full also the facts of packing."""
    from rich.table import Table
    from rich.text import Text

    from headrace.formats.source import told_empty

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
    from rich.table import Table

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
    from rich.table import Table

    from headrace.dataset.manifest import finished_at

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
