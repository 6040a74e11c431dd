"""Every command of the command line, by its words."""

from collections.abc import Iterator
from typing import Any

import typer.main

from headrace.cli import app


def _below(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    below = getattr(command, "commands", {})
    if not below:
        yield words, command
    for name, each in below.items():
        yield from _below(each, (*words, name))


COMMANDS: dict[tuple[str, ...], Any] = dict(_below(typer.main.get_command(app)))
