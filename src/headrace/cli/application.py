"""All commands, and what only a process of the command line may do."""

from __future__ import annotations

import typer

from headrace.cli import (
    commands,
    doctor_command,
    index_command,
    init_command,
    plan_command,
    report_command,
    schema_command,
    stream_command,
    stream_commands,
)
from headrace.cli.derived import add_derived, is_derived
from headrace.cli.help_text import arrange
from headrace.cli.root import Commands
from headrace.recipe import load, registrations

app = typer.Typer(
    name="headrace",
    cls=Commands,
    help="Leak-free, checksummed training shards from raw tables, streamed exactly once to every rank.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for recipe in registrations().values():
    for word, reference in recipe.commands.items():
        if reference == recipe.settings:
            add_derived(app, word, recipe.name, told=recipe.help)
            continue
        command = load(reference)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=word)
        elif is_derived(command):
            add_derived(app, word, recipe.name, command)
        else:
            app.command(word)(command)
app.add_typer(init_command.app, name="init")
app.command("run")(commands.run)
app.command("inspect")(commands.inspect)
app.command("verify")(commands.verify)
app.command("gc")(commands.gc)
app.command("report")(report_command.report)
app.command("doctor")(doctor_command.doctor)
app.command("schema")(schema_command.schema)
app.command("index")(index_command.index)
app.command("peek")(stream_commands.peek)
app.command("plan")(plan_command.plan)
app.command("stream")(stream_command.stream)
app.command("where")(stream_commands.where)
app.command("seen")(stream_commands.seen)
arrange(app)


@app.callback(invoke_without_command=True)
def top(
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> None:
    if version:
        import headrace

        typer.echo(f"headrace {headrace.__version__}")
        raise typer.Exit
