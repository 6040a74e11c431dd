"""The command line in this process, as its entry point runs it: starting Python and its libraries is what costs."""

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from unittest.mock import patch

from headrace.cli import main


def headrace(
    *arguments: object, env: Mapping[str, str] | None = None, cwd: str | Path = "."
) -> subprocess.CompletedProcess[str]:
    """A command in an environment and a directory of its own."""
    with patch.dict(os.environ, {"COLUMNS": "200", **(env or {})}), contextlib.chdir(cwd):
        return ended(lambda: main(), "headrace", *arguments)


def ended(entry: Callable[[], int | None], *command: object) -> subprocess.CompletedProcess[str]:
    """How an entry point ends and what it prints, as a process would tell it."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    before, sys.argv = sys.argv, [str(each) for each in command]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = entry() or 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    finally:
        sys.argv = before
    return subprocess.CompletedProcess(command, code, out.getvalue(), err.getvalue())
