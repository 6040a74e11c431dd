"""Declare the commands with their help, and parse or complete every command line."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import typer
from typer.core import TyperGroup

from headrace.cli.output import collected_usage_errors, name_flags_of
from headrace.cli.settings_flags import add_derived, is_derived
from headrace.credentials import refuse_credentials
from headrace.printable import short_repr
from headrace.recipe import load, recipe_of_command, recipes

# By panel of the help. Those of the recipes are in "Prepare" too, before these.
_COMMANDS = {
    "Prepare": {
        "init": "headrace.cli.init.options:init_app",
        "run": "headrace.cli.commands:run",
    },
    "Inspect prepared data": {
        "inspect": "headrace.cli.commands:inspect",
        "verify": "headrace.cli.commands:verify",
        "leaks": "headrace.cli.leaks_command:leaks",
        "forget": "headrace.cli.commands:forget",
        "gc": "headrace.cli.commands:gc",
    },
    "Stream": {
        "index": "headrace.cli.stream_commands:index",
        "peek": "headrace.cli.stream_commands:peek",
        "plan": "headrace.cli.stream_commands:plan",
        "where": "headrace.cli.stream_commands:where",
    },
    "This machine": {"doctor": "headrace.cli.doctor:doctor"},
}


class CommandsOnUse(Mapping[str, Any]):
    """All commands by their words. Each is imported and declared when it is looked up.

    So a command waits for its own imports alone. Lists of all words also read which recipes other
    packages have.
    """

    def __init__(self) -> None:
        self._commands: dict[str, Any] = {}

    def __getitem__(self, word: str) -> Any:
        if word not in self._commands:
            self._commands[word] = _command_of(word)
        return self._commands[word]

    def __iter__(self) -> Iterator[str]:
        words: list[str] = []
        for recipe in recipes().values():
            words += recipe.commands
        return iter(
            dict.fromkeys([*words, *(word for commands in _COMMANDS.values() for word in commands)])
        )

    def __len__(self) -> int:
        return len(list(iter(self)))


def _command_of(word: str) -> Any:
    """Declare one command, whose help text flows.

    Raises `KeyError` for a word that is not a command.
    """
    app = typer.Typer(add_completion=False, rich_markup_mode="rich")
    panel = next((panel for panel, words in _COMMANDS.items() if word in words), None)
    if panel is not None:
        generic = load(_COMMANDS[panel][word])
        if word == "init":
            app.add_typer(generic(), name=word)
        else:
            app.command(word)(generic)
    else:
        panel = "Prepare"
        _add_command_of_recipe(app, word)
    _flow(app)
    command: Any = typer.main.get_group(app).commands[word]
    command.rich_help_panel = panel
    return command


def _add_command_of_recipe(app: typer.Typer, word: str) -> None:
    """Declare a command that belongs to a recipe.

    Raises `KeyError` for a word that is not a command.
    """
    recipe = recipe_of_command(word)
    if recipe is None:
        raise KeyError(word)
    command = recipe.command(word)
    if command is None:
        from headrace.cli.commands import prepare_run

        add_derived(app, word, recipe.settings, prepare_run, recipe.help)
    elif isinstance(command, typer.Typer):
        app.add_typer(command, name=word)
    elif is_derived(command):
        add_derived(app, word, recipe.flags, command)
    else:
        app.command(word)(command)


class Commands(TyperGroup):
    """The commands of headrace, with usage errors as JSON on request and completion in shells."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "commands": CommandsOnUse()})

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the signature of click
        return sorted(self.commands, key=lambda word: isinstance(self.commands[word], TyperGroup))

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        self.arguments = list(options["args"] if "args" in options else arguments[1])
        if not options.get("resilient_parsing"):  # a shell asks for completions
            refuse_credentials(self.arguments)  # here, because messages may repeat arguments
        with collected_usage_errors():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        name_flags_of(lambda: self.get_command(ctx, ctx.invoked_subcommand))
        with collected_usage_errors():
            try:
                return super().invoke(ctx)
            except Exception as error:
                if type(error).__name__ == "MissingParameter":
                    _name_all_missing(error, self.arguments)
                elif type(error).__name__ == "BadParameter":
                    _name_value(error)
                raise


def _name_value(error: Any) -> None:
    """Add the value to an error about a flag that pydantic converts; others name it."""
    from pydantic import ValidationError

    if not isinstance(error.__cause__, ValidationError):
        return
    details = error.__cause__.errors()[0]
    rule = details["msg"].replace("Input should", "it should").removeprefix("Value error, ")
    value = short_repr(details["input"])
    if rule.startswith(value):
        error.message = rule
    else:
        error.message = f"{value}; {rule}"


def _name_all_missing(error: Any, arguments: list[str]) -> None:
    """Add all other missing options and arguments to an error about the first missing one.

    arguments: of the whole command line, starting with the names of commands.
    """
    parents = 0
    above = error.ctx.parent
    while above is not None:
        parents = parents + 1
        above = above.parent
    parsed, _, _ = error.ctx.command.make_parser(error.ctx).parse_args(arguments[parents:])
    also = []
    for parameter in error.ctx.command.get_params(error.ctx):
        if (
            parameter.required
            and parameter is not error.param
            and not isinstance(parsed.get(parameter.name), str | list | tuple)
        ):
            also.append(f"'{parameter.opts[0]}'")
    if also:
        error.message = f"Also missing: {', '.join(also)}."


def _flow(app: typer.Typer) -> None:
    for command in app.registered_commands:
        command.help = flowing(command.help or inspect.getdoc(command.callback) or "")
    for group in app.registered_groups:
        if group.typer_instance is not None:
            _flow(group.typer_instance)


def flowing(text: str) -> str:
    """Return the text with each paragraph on one line, so that a terminal of any width can
    wrap it.
    """
    return "\n\n".join(
        " ".join(map(str.strip, paragraph.splitlines()))
        for paragraph in inspect.cleandoc(text).split("\n\n")
    )


app = typer.Typer(
    name="headrace",
    cls=Commands,
    help=(
        "Leak-free, checksummed training shards from raw tables; each row to exactly one rank,"
        " once per epoch."
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def top(
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> None:
    if version:
        import headrace

        typer.echo(f"headrace {headrace.__version__}")
        raise typer.Exit
