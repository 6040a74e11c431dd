"""`headrace histories`: measurements into big rows; `decode`: back into measurements; `plan`: an
epoch of contexts.

Also prints a finished run.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from headrace.cli.commands import execute
from headrace.cli.output import emit, in_flags, say
from headrace.cli.settings_flags import FlagValues, Json, Out, RunOptions, add_derived
from headrace.cli.tables import Detail, print_manifest
from headrace.dataset.manifest import Manifest
from headrace.errors import InputError, setting
from headrace.printable import printable
from headrace.report.words import pluralise

_WORDS = ("prepare", "decode", "plan", "-h", "--help")
_FAILED = {"missing": "have no value", "negative": "are below 0", "zero": "are 0"}


class _PrepareByDefault(TyperGroup):
    """`histories SOURCE …` is `histories prepare SOURCE …`."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]  # typer's own context
        if args and args[0] not in _WORDS:
            args = ["prepare", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_PrepareByDefault,
    no_args_is_help=True,
    help="Gather the measurements of each entity into one long row, in time order.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command("plan")
def plan(  # noqa: PLR0913 - the arguments are flags
    path: Annotated[
        Path,
        typer.Argument(help="The --out directory of prepared histories, or a run of it."),
    ],
    *,
    split: Annotated[str, typer.Option(help="train | test.")] = "train",
    rows: Annotated[
        str,
        typer.Option(
            help="Contexts of a large row: uniform, up to the cap | measurements, by its length."
        ),
    ] = "uniform",
    contexts_per_row: Annotated[int, typer.Option(help="The cap for uniform.")] = 16,
    measurements_per_context: Annotated[
        int,
        typer.Option(help="A row of n measurements has n divided by this contexts, rounded up."),
    ] = 30,
    context_tokens: Annotated[int, typer.Option(help="Tokens of a context.")] = 1024,
    max_segments: Annotated[
        int | None,
        typer.Option(
            help="Most small rows in a context. Default: as many as fit.", show_default=False
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the contexts.")] = 0,
    sample: Annotated[
        int, typer.Option(help="Contexts to make for padding and coverage.", min=1)
    ] = 512,
    as_json: Json = False,
) -> None:
    """Print how many contexts an epoch has, how much of the measurements they show, and how much is
    padding.

    Example:  headrace histories plan out --rows measurements
    """
    from headrace.histories.contexts.contexts import open_contexts

    contexts = open_contexts(
        path,
        split,
        rows=rows,
        contexts_per_row=contexts_per_row,
        measurements_per_context=measurements_per_context,
        context_tokens=context_tokens,
        max_segments=max_segments,
        seed=seed,
    )
    epoch = contexts.plan(sample=sample)
    if as_json:
        emit(asdict(epoch))
        return
    for line in str(epoch).split("\n"):
        say(line)


def prepare(*, flags: FlagValues, out: Out, about: RunOptions) -> None:
    """Gather measurements by entity, order them by time, and write them as big rows.

    `headrace histories SOURCE …` is the same. A run that was killed resumes.

    Example:  headrace histories pings --out out --peer dst_addr
    """
    execute(flags.recipe(), out, about)


def _settings() -> Any:
    from headrace.histories.config import (
        Histories,
    )  # loads pydantic, which a list of commands does not need

    return Histories


add_derived(app, "prepare", _settings, prepare)


@app.command("decode")
def decode(
    shard: Annotated[Path, typer.Argument(help="A shard of histories: .array_record or .arrow.")],
    *,
    limit: Annotated[
        int | None, typer.Option(help="Stop after this many measurements.", show_default=False)
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line instead of columns.")
    ] = False,
) -> None:
    """Print the measurements of a shard: src_addr, dst_addr, event_time (epoch seconds), rtt (ms or
    null), part.

    Histories of texts, or with value columns, have the columns that their settings name.

    Example:  headrace histories decode out/splits/train/part-00000.array_record --json
    """
    from headrace.histories.measurements import decode_shard

    if not shard.is_file():
        raise InputError(
            "no such file",
            path=shard,
            remedy="give a shard, e.g. out/splits/train/part-00000.array_record",
        )
    for record in islice(decode_shard(shard), limit):
        for name, value in record.items():
            if isinstance(value, datetime):
                record[name] = value.isoformat()
        if as_json:
            emit(record)
            continue
        texts = ["" if value is None else printable(str(value)) for value in record.values()]
        typer.echo("\t".join(texts))


def print_histories(console: Console, manifest: Manifest, run: Path, detail: Detail) -> None:
    """Print a run, and its failed measurements: how many, why, where the first is and some of their
    values.
    """
    print_manifest(console, manifest, run, detail)
    clamped = manifest.metadata.get("clamped", 0)
    if clamped:
        latencies = pluralise(clamped, "latency is", "latencies are")
        advice = f"check {setting('value_unit')}"
        _print_hint(console, f"{latencies} above 51 days and stored as 51 days; {advice}")
    reasons = []
    for word, failed in manifest.metadata.get("failed_by", {}).items():
        values = ""
        if failed["values"]:
            values = ", such as " + ", ".join(f"{value:g}" for value in failed["values"])
        first = printable(failed["first"])
        reasons.append(f"{failed['rows']:,} {_FAILED[word]}{values}, first in {first}")
    if reasons:
        measurements = sum(manifest.metadata["source_rows"].values())
        _print_hint(
            console,
            f"{manifest.metadata['failed']:,} of {measurements:,} measurements are kept as failed:"
            f" {'; '.join(reasons)}. To change this, set {setting('missing')},"
            f" {setting('negative')} or {setting('zero')}, or name a column of other values in"
            f" {setting('values')}",
        )


def _print_hint(console: Console, text: str) -> None:
    console.print(Text(in_flags(text), style="yellow"))
