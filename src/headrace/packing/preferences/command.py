"""`headrace preferences`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.commands import execute
from headrace.cli.derived import Given
from headrace.cli.flags import RunOptions
from headrace.packing.command import OneDataset, blend_given


def preferences(
    blend: Annotated[list[str], typer.Argument(help="A blend file, or files, directories, globs.", show_default=False)],
    *,
    out: Annotated[Path, typer.Option(help="Output directory.", show_default=False)],
    dataset: OneDataset,
    given: Given,
    about: RunOptions,
) -> None:
    """Render and tokenise preference pairs, judged answers or prompts, for DPO, KTO and GRPO trainers.

    BLEND is a JSON file of datasets with weights, or of datasets per split; or a path to data.

    Example:  headrace preferences pairs.jsonl --out out --tokenizer qwen3

    Example:  headrace preferences prompts.parquet --out out --tokenizer qwen3 --kind prompts
    """
    execute(given.recipe(blend=blend_given(blend, dataset)), out, about)
