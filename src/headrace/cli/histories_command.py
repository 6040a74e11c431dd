"""`headrace histories`: measurements into big rows; `headrace histories decode`: rows back into measurements."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from headrace.cli import contexts_command
from headrace.cli.about_run import AboutRun
from headrace.cli.commands import execute
from headrace.cli.flags import with_groups
from headrace.cli.for_machines import tell
from headrace.errors import InputError
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


@app.command("prepare")
@with_groups
def prepare(
    source: Annotated[list[str], typer.Argument(help="Files, directories or glob patterns, in any order.")],
    *,
    out: Annotated[Path, typer.Option(help="Output directory.", show_default=False)],
    entity: Annotated[str, typer.Option(help="Column of the entity.")] = "src_addr",
    entity_from: Annotated[str, typer.Option(help="column | file_name: the name of its file.")] = "column",
    entity_kind: Annotated[str, typer.Option(help="address (IPv4, IPv6) | number.")] = "address",
    time: Annotated[str, typer.Option(help="Column of the time.")] = "event_time",
    time_format: Annotated[
        list[str] | None,
        typer.Option(help="iso | epoch_s | epoch_ms | a strptime pattern; several are tried in turn.  [default: iso]"),
    ] = None,
    peer: Annotated[
        str | None, typer.Option(help="Column of the other end; none unless given.", show_default=False)
    ] = None,
    peer_kind: Annotated[str, typer.Option(help="address | number.")] = "address",
    value: Annotated[str, typer.Option(help="Column of the latency.")] = "rtt",
    value_unit: Annotated[str, typer.Option(help="us | ms | s.")] = "ms",
    missing: Annotated[str, typer.Option(help="Nulls and NaN are: failed | drop | error.")] = "failed",
    negative: Annotated[str, typer.Option(help="Values below 0 are: failed | drop | error.")] = "failed",
    zero: Annotated[str, typer.Option(help="0 is: value | failed | drop | error.")] = "value",
    bad_rows: Annotated[str, typer.Option(help="What cannot be read is: error | drop, and counted.")] = "error",
    sample_rate: Annotated[float, typer.Option(help="Share of rows to keep, by keyed hash.")] = 1.0,
    train_ratio: Annotated[float, typer.Option(help="Share of entities that train; the others test.")] = 0.9,
    seed: Annotated[int, typer.Option(help="Of sample, split and order.")] = 42,
    max_row_bytes: Annotated[str, typer.Option(help="Largest row, e.g. 8MiB.")] = "8MiB",
    memory_limit: Annotated[str, typer.Option(help="What the work may take, e.g. 2GiB.")] = "2GiB",
    partitions: Annotated[
        int | None, typer.Option(help="Shards of a split; as the memory limit asks unless given.", show_default=False)
    ] = None,
    format_: Annotated[str, typer.Option("--format", help="array_record | arrow.")] = "array_record",
    about: AboutRun,
) -> None:
    """Gather measurements by entity, order them by time, and write them as big rows.

    `headrace histories SOURCE …` is the same. A killed run goes on where it was.

    Example:  headrace histories pings --out out --peer dst_addr
    """
    from headrace.recipes.histories.config import Histories

    recipe = Histories(
        source=source,
        entity=entity,
        entity_from=entity_from,
        entity_kind=entity_kind,
        time=time,
        time_format=time_format or ["iso"],
        peer=peer,
        peer_kind=peer_kind,
        value=value,
        value_unit=value_unit,
        missing=missing,
        negative=negative,
        zero=zero,
        bad_rows=bad_rows,
        sample_rate=sample_rate,
        train_ratio=train_ratio,
        seed=seed,
        max_row_bytes=max_row_bytes,
        memory_limit=memory_limit,
        partitions=partitions,
        format=format_,
    )
    execute(recipe, out, about)


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
    from headrace.recipes.histories.decode import decode_shard

    if not shard.is_file():
        raise InputError(f"{shard}: no such file; give a shard, e.g. out/splits/train/part-00000.array_record")
    for number, measurement in enumerate(decode_shard(shard)):
        if limit is not None and number >= limit:
            return
        record = asdict(measurement)
        if as_json:
            tell(record)
        else:
            typer.echo("\t".join("" if each is None else printable(str(each)) for each in record.values()))
