"""Print for people: what comes from data, names and paths never controls the terminal, whoever prints it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from headrace.printable import escape_lines, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.segment import Segment

CELL = 300  # characters of one value in a table


@cache
def _printer_class() -> type[Console]:
    """Made when it is first needed: rich takes a while to import."""
    from rich.console import Console

    class Printer(Console):
        """A console that escapes control characters of all it renders and takes no text for markup or emoji.

        Styles come from `Text` and `style=`.
        """

        def __init__(self, **options: Any) -> None:
            super().__init__(markup=False, emoji=False, **options)

        def render(self, *given: Any, **options: Any) -> Iterator[Segment]:
            for segment in super().render(*given, **options):
                yield segment if segment.control else segment._replace(text=escape_lines(segment.text))

    return Printer


def printer(stream: Literal["out", "err"] = "out", **options: Any) -> Console:
    """The printer of a standard stream. Where stdout is no terminal, lines are not wrapped to its width."""
    if stream == "err":
        return _printer_class()(stderr=True, **options)
    return _printer_class()(**{"soft_wrap": not os.isatty(1), **options})


def say(text: str, stream: Literal["out", "err"] = "out") -> None:
    """Print one line."""
    target = sys.stdout if stream == "out" else sys.stderr
    target.write(printable(text) + "\n")
    target.flush()


def cell(value: object) -> str:
    """A value of the data as one line of a table."""
    return printable(str(value), CELL)
