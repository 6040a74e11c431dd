"""Assemble all commands with their help, and parse or complete every command line."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperGroup

from headrace.cli import (
    commands,
    config_file,
    doctor,
    entities,
    leaks_command,
    report_command,
    stream_command,
    stream_commands,
)
from headrace.cli.derived import add_derived, is_derived
from headrace.cli.flags import in_flags, told_in_flags
from headrace.cli.init.asked import init_app
from headrace.cli.output import usage_errors_kept
from headrace.credentials import refuse_credentials
from headrace.errors import HeadraceError
from headrace.recipe import load, registrations

_PANELS = {
    "Prepare": ("init", "run", "schema"),  # after the commands of the recipes
    "Inspect prepared data": ("inspect", "folds", "verify", "leaks", "report", "card", "forget", "gc"),
    "Stream": ("index", "peek", "plan", "stream", "where", "seen"),
    "This machine": ("doctor",),
}


class Commands(TyperGroup):
    """The commands of headrace, with usage errors as JSON on request and completion in shells."""

    def make_context(self, *given: Any, **options: Any) -> Any:
        if options.get("resilient_parsing"):  # a shell asks for completions
            from headrace.cli.completing import attach

            attach(self)
        else:
            # Refused here, because messages may repeat arguments.
            refuse_credentials(list(options["args"] if "args" in options else given[1]))
        self.arguments = list(options["args"] if "args" in options else given[1])
        with usage_errors_kept():
            return super().make_context(*given, **options)

    def invoke(self, ctx: Any) -> Any:
        with usage_errors_kept(), told_in_flags(lambda: self.get_command(ctx, ctx.invoked_subcommand)):
            try:
                return super().invoke(ctx)
            except Exception as error:
                if type(error).__name__ == "MissingParameter":
                    _name_all_missing(error, self.arguments)
                elif isinstance(error, HeadraceError):
                    error.args = tuple(in_flags(str(line)) for line in error.args)
                raise


def _name_all_missing(error: Any, arguments: list[str]) -> None:
    """Add all other missing options and arguments to an error about the first missing one.

    arguments: of the whole command line, starting with the names of commands.
    """
    parents, above = 0, error.ctx.parent
    while above is not None:
        parents, above = parents + 1, above.parent
    given, _, _ = error.ctx.command.make_parser(error.ctx).parse_args(arguments[parents:])
    also = [
        f"'{each.opts[0]}'"
        for each in error.ctx.command.get_params(error.ctx)
        if each.required and each is not error.param and not isinstance(given.get(each.name), str | list | tuple)
    ]
    if also:
        error.message = f"Also missing: {', '.join(also)}."


def _arrange(app: typer.Typer) -> None:
    """Sort the commands into panels, and join the lines of help texts, which are wrapped for the source."""
    panel_of = dict.fromkeys((word for recipe in registrations().values() for word in recipe.commands), "Prepare")
    panel_of |= {name: panel for panel, names in _PANELS.items() for name in names}
    order = list(panel_of)
    _flow(app)
    for command in app.registered_commands:
        command.rich_help_panel = panel_of[str(command.name)]
    for group in app.registered_groups:
        group.rich_help_panel = panel_of[str(group.name)]
    app.registered_commands.sort(key=lambda each: order.index(str(each.name)))


def _flow(app: typer.Typer) -> None:
    for command in app.registered_commands:
        command.help = flowing(command.help or inspect.getdoc(command.callback) or "")
    for group in app.registered_groups:
        if group.typer_instance is not None:
            _flow(group.typer_instance)


def flowing(text: str) -> str:
    """Return the text with each paragraph on one line, so that a terminal of any width can wrap it."""
    return "\n\n".join(" ".join(map(str.strip, each.splitlines())) for each in inspect.cleandoc(text).split("\n\n"))


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
        own = load(reference)
        if isinstance(own, typer.Typer):
            app.add_typer(own, name=word)
        elif is_derived(own):
            add_derived(app, word, recipe.name, own)
        else:
            app.command(word)(own)
app.add_typer(init_app(), name="init")
_OWN: tuple[Callable[..., Any], ...] = (
    commands.run,
    commands.inspect,
    commands.folds,
    commands.verify,
    leaks_command.leaks,
    entities.forget,
    commands.gc,
    report_command.report,
    report_command.card,
    doctor.doctor,
    config_file.schema,
    stream_commands.index,
    stream_commands.peek,
    stream_commands.plan,
    stream_command.stream,
    stream_commands.where,
    stream_commands.seen,
)
for function in _OWN:
    app.command(function.__name__)(function)
_arrange(app)


@app.callback(invoke_without_command=True)
def top(
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> None:
    if version:
        import headrace

        typer.echo(f"headrace {headrace.__version__}")
        raise typer.Exit
