"""`headrace pack`: chats into packed training bins."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli.commands import Json, execute
from headrace.cli.report_command import Report
from headrace.cli.spread import Address, Engine, ShardOf, Spread, WorkDir
from headrace.errors import SettingsError

HELP = """Render, tokenise and pack chats into bins that trainers read as they are.

BLEND is a JSON file of datasets with weights, or of datasets per split; or a path to data.

Example:  headrace pack blend.json --out out --tokenizer qwen3 --pack-size 4096 --too-long truncate
"""

_SOURCE, _PACKING, _SPLITS, _OUTPUT = "Rows and tokens", "Packing", "Splits", "Output"


def pack(
    blend: Annotated[list[str], typer.Argument(help="A blend file, or files, directories, globs.", show_default=False)],
    out: Annotated[Path, typer.Option(help="Output directory.", show_default=False)],
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            help="tokenizer.json or its directory; not for rows that are tokens already.",
            rich_help_panel=_SOURCE,
            show_default=False,
        ),
    ] = None,
    chat_template: Annotated[
        str | None,
        typer.Option(
            help="A Jinja file or template; the tokenizer's own unless given.",
            rich_help_panel=_SOURCE,
            show_default=False,
        ),
    ] = None,
    layout: Annotated[
        str | None,
        typer.Option(
            help="How chats lie in a row; found out unless given. Not with a blend file.",
            rich_help_panel=_SOURCE,
            show_default=False,
        ),
    ] = None,
    mapping: Annotated[
        str | None,
        typer.Option(
            help="Which column is which, e.g. user=question,assistant=answer. Not with a blend file.",
            rich_help_panel=_SOURCE,
            show_default=False,
        ),
    ] = None,
    reasoning: Annotated[
        str | None,
        typer.Option(
            help="template (default): as it has it | every_user_turn: a sequence per user turn.",
            rich_help_panel=_SOURCE,
            show_default=False,
        ),
    ] = None,
    filters: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            metavar="COLUMN=WORD,...",
            help="Keep rows whose column holds one of the words; again for other columns. Not with a blend file.",
            rich_help_panel=_SOURCE,
            show_default=False,
        ),
    ] = None,
    eos: Annotated[
        str | None,
        typer.Option(
            help="Plain text ends with the end token: append (default) | none.",
            rich_help_panel=_SOURCE,
            show_default=False,
        ),
    ] = None,
    date: Annotated[
        str | None,
        typer.Option(
            help="What a template that asks for today is told, e.g. 2026-01-31.",
            rich_help_panel=_SOURCE,
            show_default=False,
        ),
    ] = None,
    nothing_trained: Annotated[
        str | None,
        typer.Option(
            help="Rows without a token to train on: reject (default) | keep.",
            rich_help_panel=_SOURCE,
            show_default=False,
        ),
    ] = None,
    sample: Annotated[
        int | None,
        typer.Option(help="At most so many rows of each dataset.", rich_help_panel=_SOURCE, show_default=False),
    ] = None,
    max_bad_share: Annotated[
        float | None,
        typer.Option(
            help="More bad rows than this share of all fail the run; 0.01 unless given.",
            rich_help_panel=_SOURCE,
            show_default=False,
        ),
    ] = None,
    pack_size: Annotated[
        int | None,
        typer.Option(help="Tokens of a bin; 4096 unless given.", rich_help_panel=_PACKING, show_default=False),
    ] = None,
    algorithm: Annotated[
        str | None,
        typer.Option(
            help="fullest_shuffle (default): best_fit_shuffle or exact_fit_shuffle, which needs fewer bins | "
            "first_fit_decreasing | first_fit_shuffle | concatenative.",
            rich_help_panel=_PACKING,
            show_default=False,
        ),
    ] = None,
    capacity: Annotated[
        str | None,
        typer.Option(
            help="stored (default): all tokens count | runtime: one less a sequence, for readers that drop one.",
            rich_help_panel=_PACKING,
            show_default=False,
        ),
    ] = None,
    too_long: Annotated[
        str | None,
        typer.Option(
            help="Sequences that fit no bin: error (default) | truncate | drop | split; all counted.",
            rich_help_panel=_PACKING,
            show_default=False,
        ),
    ] = None,
    pad_multiple: Annotated[
        int | None,
        typer.Option(help="Pad each sequence to a multiple.", rich_help_panel=_PACKING, show_default=False),
    ] = None,
    pad_id: Annotated[
        int | None,
        typer.Option(
            help="Token to pad with; the end token unless given.", rich_help_panel=_PACKING, show_default=False
        ),
    ] = None,
    max_sequences_per_bin: Annotated[
        int | None, typer.Option(help="No limit unless given.", rich_help_panel=_PACKING, show_default=False)
    ] = None,
    loss_mask_alignment: Annotated[
        str | None,
        typer.Option(
            help="shift_left (default): on the position that predicts | legacy_roll_right.",
            rich_help_panel=_PACKING,
            show_default=False,
        ),
    ] = None,
    empty_bins: Annotated[
        str | None,
        typer.Option(
            help="Bins without a label: drop (default), counted | keep.", rich_help_panel=_PACKING, show_default=False
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Decides splits, samples, mixes and packing; 42 unless given.",
            rich_help_panel=_SPLITS,
            show_default=False,
        ),
    ] = None,
    train_ratio: Annotated[
        float | None, typer.Option(help="0.98 unless given.", rich_help_panel=_SPLITS, show_default=False)
    ] = None,
    valid_ratio: Annotated[
        float | None, typer.Option(help="0.01 unless given.", rich_help_panel=_SPLITS, show_default=False)
    ] = None,
    test_ratio: Annotated[
        float | None, typer.Option(help="0.01 unless given.", rich_help_panel=_SPLITS, show_default=False)
    ] = None,
    split_key: Annotated[
        str | None,
        typer.Option(
            help="Field whose value is in one split only: a task, a conversation.",
            rich_help_panel=_SPLITS,
            show_default=False,
        ),
    ] = None,
    reader: Annotated[
        str | None,
        typer.Option(
            help="megatron (default): 32 bins a row group | headrace: 1000.",
            rich_help_panel=_OUTPUT,
            show_default=False,
        ),
    ] = None,
    row_group_bins: Annotated[
        int | None, typer.Option(help="Another number of bins.", rich_help_panel=_OUTPUT, show_default=False)
    ] = None,
    compression: Annotated[
        str | None,
        typer.Option(help="zstd (default) | snappy | gzip | lz4 | none.", rich_help_panel=_OUTPUT, show_default=False),
    ] = None,
    compression_level: Annotated[
        int | None,
        typer.Option(help="Of zstd (6 unless given) or gzip.", rich_help_panel=_OUTPUT, show_default=False),
    ] = None,
    num_shards: Annotated[
        int | None,
        typer.Option(
            help="Tasks and shards of each dataset; by size unless given.", rich_help_panel=_OUTPUT, show_default=False
        ),
    ] = None,
    packed_storage: Annotated[
        str | None,
        typer.Option(
            help="parquet (default) | legacy_npy_pickle | binary.", rich_help_panel=_OUTPUT, show_default=False
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Tasks at a time; default one per core.", show_default=False)
    ] = None,
    engine: Engine = None,
    address: Address = None,
    shard_of: ShardOf = None,
    work_dir: WorkDir = None,
    report: Report = "auto",
    as_json: Json = False,
) -> None:
    """See HELP; the docstring of a command is its long help."""
    from headrace.recipes.packed_sequences.config import PackedSequences

    given: dict[str, Any] = {
        "tokenizer": tokenizer,
        "chat_template": chat_template,
        "reasoning": reasoning,
        "eos": eos,
        "date": date,
        "nothing_trained": nothing_trained,
        "sample": sample,
        "max_bad_share": max_bad_share,
        "pack_size": pack_size,
        "algorithm": algorithm,
        "capacity": capacity,
        "too_long": too_long,
        "pad_multiple": pad_multiple,
        "pad_id": pad_id,
        "max_sequences_per_bin": max_sequences_per_bin,
        "loss_mask_alignment": loss_mask_alignment,
        "empty_bins": empty_bins,
        "seed": seed,
        "train_ratio": train_ratio,
        "valid_ratio": valid_ratio,
        "test_ratio": test_ratio,
        "split_key": split_key,
        "reader": reader,
        "row_group_bins": row_group_bins,
        "compression": compression,
        "compression_level": compression_level,
        "num_shards": num_shards,
        "packed_storage": packed_storage,
    }
    settings = {name: value for name, value in given.items() if value is not None}
    recipe = PackedSequences(blend=_blend(blend, layout, mapping, filters), **settings)
    execute(recipe, out, workers, "json" if as_json else "text", Spread(engine, address, shard_of, work_dir), report)


def _blend(paths: list[str], layout: str | None, mapping: str | None, filters: list[str] | None) -> Any:
    """What was given as BLEND; --layout, --mapping and --filter belong to the one dataset of plain paths."""
    from headrace.recipes.packed_sequences.blend import blend_of, is_blend_file
    from headrace.storage.remote_path import path_of

    if len(paths) == 1 and is_blend_file(path_of(paths[0])):
        if layout is not None or mapping is not None or filters:
            raise SettingsError(f"{paths[0]}: is a blend file; write layout, mapping and filters into its datasets")
        return paths[0]
    blend: Any = blend_of(paths)
    if layout is not None:
        blend["datasets"][0]["layout"] = layout
    if mapping is not None:
        pairs = [_pair("--mapping", each, "user=question") for each in mapping.split(",") if each.strip()]
        blend["datasets"][0]["mapping"] = dict(pairs)
    if filters:
        found = [_pair("--filter", each, "used_in=sft,chat") for each in filters]
        blend["datasets"][0]["filters"] = {name: words.split(",") for name, words in found}
    return blend


def _pair(option: str, text: str, example: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found:
        raise SettingsError(f"{option}: {text!r} has no =; write e.g. {example}")
    return name.strip(), value.strip()
