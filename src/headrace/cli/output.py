"""Print the output of commands: text for people, JSON for machines.

Texts from data, names and paths never control the terminal. With --json, a command prints exactly
one JSON object on stdout, even if it ends in an error.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from headrace.errors import spell
from headrace.printable import escape_lines, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.segment import Segment
    from rich.table import Table
    from rich.text import Text

CELL = 300  # characters of one value in a table
_INTERRUPTED = 130  # the exit code
_emitted: set[str] = set()  # empty until this process has printed a record
_usage_errors: list[str] = []  # messages of the command-line parser
_running: list[Callable[[], Any]] = []  # returns the command that runs, or ran last


@cache
def _printer_class() -> type[Console]:
    """Define the printer class on first use, because importing rich takes a while."""
    from rich.console import Console

    class Printer(Console):
        """A console that escapes control characters in everything it renders and ignores markup and
        emoji.

        Styles come only from `Text` and `style=`.
        """

        def __init__(self, **options: Any) -> None:
            super().__init__(markup=False, emoji=False, **options)

        def render(self, *arguments: Any, **options: Any) -> Iterator[Segment]:
            for segment in super().render(*arguments, **options):
                yield (
                    segment
                    if segment.control
                    else segment._replace(text=escape_lines(segment.text))
                )

    return Printer


def printer(stream: Literal["out", "err"] = "out", **options: Any) -> Console:
    """Return the printer of a standard stream. If it is not a terminal, lines are not wrapped."""
    number = 1
    if stream == "err":
        number = 2
    return _printer_class()(
        **{"stderr": number == 2, "soft_wrap": not os.isatty(number), **options}
    )


def table(title: str | None, heads: Sequence[str], *, numbers_from: int | None = None) -> Table:
    """Make a table without rows.

    numbers_from: columns from this one on are right-aligned. heads: if all are "", there is no
    header.
    """
    from rich.table import Table

    rows_table = Table(
        title=title, title_justify="left", header_style="bold", show_header=any(heads)
    )
    for number, head in enumerate(heads):
        rows_table.add_column(
            head,
            overflow="fold",
            justify="left" if numbers_from is None or number < numbers_from else "right",
        )
    return rows_table


def fitting_tables(
    title: str, heads: Sequence[tuple[str, str]], columns: Sequence[Sequence[Text]], width: int
) -> Iterator[Table]:
    """Yield rows as one table or, if that is too wide, as tables with a line for each column.

    heads: name and type of each column. A cell may take a few lines, but a column is at least as
    wide as its name or 12 characters. Transposed tables have as many rows side by side as fit with
    24 characters each.
    """
    widths = []
    for (name, type_word), column in zip(heads, columns, strict=True):
        widths.append(max(len(name), len(type_word), min(12, *map(len, column), 12)))
    rows = 0
    if columns:
        rows = len(columns[0])
    if not rows or sum(widths) + 3 * len(widths) + 1 <= width:
        rows_table = table(title, [f"{name}\n{type_word}" for name, type_word in heads])
        for row in zip(*columns, strict=True):
            rows_table.add_row(*row)
        yield rows_table
        return
    beside = max(
        1,
        (
            width
            - max(len(name) for name, _ in heads)
            - max(len(type_word) for _, type_word in heads)
            - 7
        )
        // 27,
    )
    for first in range(0, rows, beside):
        numbers = range(first, min(first + beside, rows))
        rows_table = table(
            None if first else title, ["column", "type", *(f"row {number}" for number in numbers)]
        )
        for (name, type_word), column in zip(heads, columns, strict=True):
            rows_table.add_row(name, type_word, *(column[number] for number in numbers))
        yield rows_table


def record_table(title: str, record: Mapping[str, object]) -> Table:
    """Make a table of names and values, without a header."""
    rows_table = table(title, ("", ""))
    for name, value in record.items():
        rows_table.add_row(name.replace("_", " "), cell(in_words(value)))
    return rows_table


def in_words(value: object) -> str:
    """Format a JSON value for people: whole numbers grouped, lists and mappings without
    brackets.
    """
    if isinstance(value, Mapping):
        separator = ", "
        if any(isinstance(part, Mapping | list) for part in value.values()):
            separator = "; "
        return separator.join(f"{name} {in_words(part)}" for name, part in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(map(in_words, value)) or "none"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)


def name_flags_of(command: Callable[[], Any]) -> None:
    """From now on, let `in_flags` write settings as flags of this command."""
    _running[:] = [command]


def in_flags(text: str) -> str:
    """Write the settings of a message as flags of the running command; see
    `headrace.errors.spell`.
    """
    flags = {}
    if _running and "\ufdee" in text:
        flags = _flags_of(_running[0]())
    return spell(text, flags)


def _flags_of(command: Any) -> dict[str, str]:
    inner = getattr(command, "commands", {}).values()
    flags: dict[str, str] = {}
    for subcommand in inner:
        flags |= _flags_of(subcommand)
    for parameter in command.params:
        if parameter.opts[0].startswith("--"):
            flags[parameter.name] = parameter.opts[0]
    return flags


def say(text: str, stream: Literal["out", "err"] = "out") -> None:
    """Print one line, with settings as flags."""
    if stream == "out":
        target = sys.stdout
    else:
        target = sys.stderr
    target.write(printable(in_flags(text)) + "\n")
    target.flush()


def cell(value: object) -> str:
    """Format a value of the data as one line of a table."""
    return printable(str(value), CELL)


def emit(record: Any, *, indent: int | None = None) -> None:
    """Print a record as strictly valid JSON, as `json_text` writes it."""
    sys.stdout.write(json_text(record, indent=indent) + "\n")
    sys.stdout.flush()
    _emitted.add("record")


def json_text(record: Any, *, indent: int | None = None) -> str:
    """Write the record as JSON; NaN and infinities become null, and types that JSON lacks become
    text.
    """
    try:
        return json.dumps(record, default=str, indent=indent, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(record), default=str, indent=indent)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return None
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return value


@contextmanager
def json_errors(
    arguments: list[str], explain: Callable[[BaseException], tuple[str, str, int]]
) -> Generator[None]:
    """Within the block, print an error that ends a command with --json on stdout too, as one JSON
    object.

    It has the form `{"error": {"kind", "message"}, "exit_code"}`. It is not printed if the command
    has printed a record already, which describes the error or is one line of many. explain: returns
    an error's kind, message and exit code.
    """
    for memory in (_emitted, _usage_errors, _running):
        memory.clear()
    try:
        yield
    except BaseException as error:
        name, message, code = explain(error)
        if "--json" in arguments and code and not _emitted:
            if isinstance(error, SystemExit) and code != _INTERRUPTED and _usage_errors:
                message = _usage_errors[-1]
            emit({"error": {"kind": name, "message": message}, "exit_code": code})
        raise


@contextmanager
def collected_usage_errors() -> Generator[None]:
    """Within the block, keep the parser's messages about a wrong command line for `json_errors`."""
    try:
        yield
    except Exception as error:
        if hasattr(error, "format_message"):
            _usage_errors.append(str(error.format_message()))
            # the texts that typer shows in a panel
            for name in ("message", "option_name", "param_hint"):
                if isinstance(getattr(error, name, None), str):
                    setattr(error, name, printable(getattr(error, name)))
        raise
