"""Help as terminals of any width show it: paragraphs flow, commands stand under what they are for."""

from __future__ import annotations

import inspect

import typer

from headrace.recipe import registrations

_PANELS = {
    "Prepare": ("init", "run", "schema"),  # behind the commands of the recipes
    "Look at what was prepared": ("inspect", "verify", "report", "gc"),
    "Stream": ("index", "peek", "plan", "stream", "where", "seen"),
    "This machine": ("doctor",),
}


def arrange(app: typer.Typer) -> None:
    """Join the lines of every paragraph of help, which were broken for the source; sort the app's own commands."""
    of_recipes = {word: "Prepare" for recipe in registrations().values() for word in recipe.commands}
    panel_of = {**of_recipes, **{name: panel for panel, names in _PANELS.items() for name in names}}
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
    """The text with a line for each paragraph."""
    return "\n\n".join(" ".join(map(str.strip, each.splitlines())) for each in inspect.cleandoc(text).split("\n\n"))
