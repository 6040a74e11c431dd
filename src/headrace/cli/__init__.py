"""The command line: parse, call, print. The only place that reads the environment.

Exit codes: 0 done, 1 the data or the run failed, 2 the command was wrong.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import typer

from headrace.cli import (
    commands,
    convert_command,
    doctor_command,
    histories_command,
    init_command,
    pack_command,
    plan_command,
    report_command,
    rewrite_command,
    schema_command,
    series_command,
    split_command,
    stream_command,
    stream_commands,
)
from headrace.cli.for_machines import errors_told
from headrace.cli.help_text import arrange
from headrace.cli.interrupt import heard
from headrace.cli.root import Commands
from headrace.errors import HeadraceError

_INTERRUPTED = "interrupted; finished shards are kept, run the same command again to go on"
_QUICK = {"-h", "--help", "--version", "--install-completion", "--show-completion"}  # need no library of data
_OF_INTERRUPT = 130  # 128 and the number of the signal, as shells count

app = typer.Typer(
    name="headrace",
    cls=Commands,
    help="Leak-free, checksummed training shards from raw tables, streamed exactly once to every rank.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("split", help=split_command.HELP)(split_command.split)
app.command("pack", help=pack_command.HELP)(pack_command.pack)
app.command("rewrite")(rewrite_command.rewrite)
app.add_typer(histories_command.app, name="histories")
app.command("series")(series_command.series)
app.command("convert")(convert_command.convert)
app.add_typer(init_command.app, name="init")
app.command("run")(commands.run)
app.command("inspect")(commands.inspect)
app.command("verify")(commands.verify)
app.command("gc")(commands.gc)
app.command("report")(report_command.report)
app.command("doctor")(doctor_command.doctor)
app.command("schema")(schema_command.schema)
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


def command() -> None:
    """The process of the command `headrace`: the command line, and what only a process of its own may do."""
    _run(_lean)


def main() -> None:
    """Run the command line; errors of ours end in one message and an exit code, not in a traceback."""
    _run(lambda: None)


def _lean() -> None:
    if "_HEADRACE_COMPLETE" not in os.environ and not _QUICK.intersection(sys.argv[1:] or ["--help"]):
        from headrace.cli.lean import arrow_alone, freed_memory_kept, numba_alone

        arrow_alone()
        if sys.argv[1] == "histories":
            numba_alone()
            freed_memory_kept()


def _run(before: Callable[[], None]) -> None:
    try:
        with errors_told(sys.argv[1:]), heard():
            before()
            app()
    except HeadraceError as error:
        _complain(str(error))
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        _complain(_INTERRUPTED)
        sys.exit(_OF_INTERRUPT)
    except SystemExit as end:  # typer makes this of an interrupt inside a command, without a word
        if end.code == _OF_INTERRUPT:
            _complain(_INTERRUPTED)
        raise


def _complain(text: str) -> None:
    from rich.console import Console
    from rich.text import Text

    Console(stderr=True, soft_wrap=True).print(Text.assemble(("error: ", "bold red"), text))
