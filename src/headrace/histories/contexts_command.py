"""`headrace histories plan`: what an epoch of contexts will be, before a run."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli.completing import datasets
from headrace.cli.flags import Json
from headrace.cli.output import emit, say


def plan(
    path: Annotated[
        Path,
        typer.Argument(help="The --out directory of prepared histories, or a run of it.", autocompletion=datasets),
    ],
    *,
    split: Annotated[str, typer.Option(help="train | test.")] = "train",
    rows: Annotated[
        str, typer.Option(help="Contexts of a large row: uniform, up to the cap | measurements, as it is long.")
    ] = "uniform",
    contexts_per_row: Annotated[int, typer.Option(help="The cap of uniform.")] = 16,
    measurements_per_context: Annotated[int, typer.Option(help="A row of n has n divided by this, rounded up.")] = 30,
    context_tokens: Annotated[int, typer.Option(help="Tokens of a context.")] = 1024,
    max_segments: Annotated[
        int | None, typer.Option(help="Most small rows in a context; as many as fit unless given.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the contexts.")] = 0,
    sample: Annotated[int, typer.Option(help="Contexts that are really made, for padding and coverage.", min=1)] = 512,
    as_json: Json = False,
) -> None:
    """Say how many contexts an epoch has, how much of the measurements they show, and how much is padding.

    Example:  headrace histories plan out --rows measurements
    """
    from headrace.histories.contexts.contexts import open_contexts

    options: dict[str, Any] = {
        "rows": rows,
        "contexts_per_row": contexts_per_row,
        "measurements_per_context": measurements_per_context,
        "context_tokens": context_tokens,
        "max_segments": max_segments,
        "seed": seed,
    }
    found = open_contexts(path, split, **options).plan(sample=sample)
    if as_json:
        emit(asdict(found))
        return
    for line in str(found).split("\n"):
        say(line)
