"""`headrace histories`: measurements into big rows; `headrace histories decode`: rows back into measurements."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from headrace.cli.commands import execute
from headrace.cli.derived import Given, Out, add_derived
from headrace.cli.flags import RunOptions
from headrace.cli.output import emit
from headrace.errors import InputError
from headrace.histories import contexts_command
from headrace.printable import printable

_OWN_WORDS = ("prepare", "decode", "plan", "-h", "--help")


class _PrepareUnlessSaid(TyperGroup):
    """`histories SOURCE …` is `histories prepare SOURCE …`."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]  # typer's own context
        if args and args[0] not in _OWN_WORDS:
            args = ["prepare", *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: typer.Context, incomplete: str) -> list[Any]:  # type: ignore[override]  # as above
        found = list(super().shell_complete(ctx, incomplete))
        if incomplete.startswith("-"):
            known = {each.value for each in found}
            prepare = self.commands["prepare"]
            found += [each for each in prepare.shell_complete(ctx, incomplete) if each.value not in known]
        return found


app = typer.Typer(
    cls=_PrepareUnlessSaid,
    no_args_is_help=True,
    help="Measurements of many entities, in any order, into big rows of one entity in time order.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


app.command("plan")(contexts_command.plan)


def prepare(*, given: Given, out: Out, about: RunOptions) -> None:
    """Gather measurements by entity, order them by time, and write them as big rows.

    `headrace histories SOURCE …` is the same. A run that was killed resumes.

    Example:  headrace histories pings --out out --peer dst_addr
    """
    execute(given.recipe(), out, about)


add_derived(app, "prepare", "histories", prepare)


@app.command("decode")
def decode(
    shard: Annotated[Path, typer.Argument(help="A shard of histories: .array_record or .arrow.")],
    *,
    limit: Annotated[int | None, typer.Option(help="Stop behind so many measurements.", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line instead of columns.")] = False,
) -> None:
    """Print the measurements of a shard: src_addr, dst_addr, event_time (epoch seconds), rtt (ms or null), part.

    Example:  headrace histories decode out/splits/train/part-00000.array_record --json
    """
    from headrace.histories.decode import decode_shard

    if not shard.is_file():
        raise InputError(f"{shard}: no such file; give a shard, e.g. out/splits/train/part-00000.array_record")
    for number, measurement in enumerate(decode_shard(shard)):
        if limit is not None and number >= limit:
            return
        record = asdict(measurement)
        if as_json:
            emit(record)
        else:
            typer.echo("\t".join("" if each is None else printable(str(each)) for each in record.values()))
