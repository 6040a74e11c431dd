"""The flags of `headrace pack` that are settings of `PackedSequences`, by what they are about."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

_row = partial(typer.Option, rich_help_panel="Rows and tokens", show_default=False)
_packing = partial(typer.Option, rich_help_panel="Packing", show_default=False)
_split = partial(typer.Option, rich_help_panel="Splits", show_default=False)
_output = partial(typer.Option, rich_help_panel="Output", show_default=False)


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


@dataclass(frozen=True, kw_only=True)
class RowsAndTokens:
    """How rows become sequences of tokens."""

    tokenizer: Annotated[
        Path | None, _row(help="tokenizer.json or its directory; not for rows that are tokens already.")
    ] = None
    chat_template: Annotated[str | None, _row(help="A Jinja file or template; the tokenizer's own unless given.")] = (
        None
    )
    reasoning: Annotated[
        str | None, _row(help="template (default): as it has it | every_user_turn: a sequence per user turn.")
    ] = None
    eos: Annotated[str | None, _row(help="Plain text ends with the end token: append (default) | none.")] = None
    date: Annotated[str | None, _row(help="What a template that asks for today is told, e.g. 2026-01-31.")] = None
    nothing_trained: Annotated[str | None, _row(help="Rows without a token to train on: reject (default) | keep.")] = (
        None
    )
    special_text: Annotated[
        str | None,
        _row(help="Text of a special token in a message: text (default) | reject the row | control: the token."),
    ] = None
    sample: Annotated[int | None, _row(help="At most so many rows of each dataset.")] = None
    max_bad_share: Annotated[
        float | None, _row(help="More bad rows than this share of all fail the run; 0.01 unless given.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class Packing:
    """How sequences become bins."""

    pack_size: Annotated[int | None, _packing(help="Tokens of a bin; 4096 unless given.")] = None
    algorithm: Annotated[
        str | None,
        _packing(
            help="fullest_shuffle (default): best_fit_shuffle or exact_fit_shuffle, which needs fewer bins | "
            "first_fit_decreasing | concatenative."
        ),
    ] = None
    capacity: Annotated[
        str | None,
        _packing(help="stored (default): all tokens count | runtime: one less a sequence, for readers that drop one."),
    ] = None
    too_long: Annotated[
        str | None, _packing(help="Sequences that fit no bin: error (default) | truncate | drop | split; all counted.")
    ] = None
    pad_multiple: Annotated[int | None, _packing(help="Pad each sequence to a multiple.")] = None
    pad_id: Annotated[int | None, _packing(help="Token to pad with; the end token unless given.")] = None
    max_sequences_per_bin: Annotated[int | None, _packing(help="No limit unless given.")] = None
    loss_mask_alignment: Annotated[
        str | None, _packing(help="shift_left (default): on the position that predicts | legacy_roll_right.")
    ] = None
    empty_bins: Annotated[str | None, _packing(help="Bins without a label: drop (default), counted | keep.")] = None


@dataclass(frozen=True, kw_only=True)
class Splits:
    """Which rows train, validate and test."""

    seed: Annotated[int | None, _split(help="Decides splits, samples, mixes and packing; 42 unless given.")] = None
    train_ratio: Annotated[float | None, _split(help="0.98 unless given.")] = None
    valid_ratio: Annotated[float | None, _split(help="0.01 unless given.")] = None
    test_ratio: Annotated[float | None, _split(help="0.01 unless given.")] = None
    split_key: Annotated[str | None, _split(help="Field whose value is in one split only: a task, a conversation.")] = (
        None
    )


@dataclass(frozen=True, kw_only=True)
class Output:
    """What is written."""

    reader: Annotated[str | None, _output(help="megatron (default): 32 bins a row group | headrace: 1000.")] = None
    row_group_bins: Annotated[int | None, _output(help="Another number of bins.")] = None
    compression: Annotated[str | None, _output(help="zstd (default) | snappy | gzip | lz4 | none.")] = None
    compression_level: Annotated[int | None, _output(help="Of zstd (6 unless given) or gzip.")] = None
    num_shards: Annotated[int | None, _output(help="Tasks and shards of each dataset; by size unless given.")] = None
    packed_storage: Annotated[str | None, _output(help="parquet (default) | legacy_npy_pickle.")] = None
