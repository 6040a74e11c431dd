"""What a command prints with --json: one JSON object on stdout and nothing else, also where it ends in an error."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from headrace.printable import printable

_FLAG = "--json"
_told: set[str] = set()  # of this process: empty until something was printed
_refused: list[str] = []  # what the parser of the command line said of it


def tell(record: Any, *, indent: int | None = None) -> None:
    """Print a record as JSON that any reader takes, as `as_json` writes it."""
    sys.stdout.write(as_json(record, indent=indent) + "\n")
    sys.stdout.flush()
    _told.add("record")


def as_json(record: Any, *, indent: int | None = None) -> str:
    """The record as JSON text; NaN and infinities are null, values that JSON has no word for are text."""
    try:
        return json.dumps(record, default=str, indent=indent, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(record), default=str, indent=indent)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value


@contextmanager
def errors_told(arguments: list[str], explain: Callable[[BaseException], tuple[str, str, int]]) -> Generator[None]:
    """Inside, what ends a command with --json is told on stdout too: `{"error": {"kind", "message"}, "exit_code"}`.

    Not where the command has printed its record already: that says what was wrong, or is a line of many.
    explain: gives the kind, the message and the exit code of an error.
    """
    _told.clear()
    _refused.clear()
    try:
        yield
    except BaseException as error:
        kind, message, code = explain(error)
        if _FLAG in arguments and code and not _told:
            if isinstance(error, SystemExit) and code != _OF_INTERRUPT and _refused:
                message = _refused[-1]
            tell({"error": {"kind": kind, "message": message}, "exit_code": code})
        raise


_OF_INTERRUPT = 130


@contextmanager
def complaints_kept() -> Generator[None]:
    """Inside, what the parser says of a wrong command line is kept for `errors_told`."""
    try:
        yield
    except Exception as error:
        if hasattr(error, "format_message"):
            _refused.append(str(error.format_message()))
            for name in ("message", "option_name", "param_hint"):  # what typer makes a panel of
                if isinstance(getattr(error, name, None), str):
                    setattr(error, name, printable(getattr(error, name)))
        raise
