"""The command line: parse, call, print. The only place that reads the environment.

Exit codes: 0 done, 1 the data or the run failed, 2 the command was wrong, 130 interrupted.

This module imports next to nothing, so that an interrupt is answered from the first moment on; the commands are in
`cli.application`, which imports all they need.
"""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING, Any

from headrace.cli.outermost import own_process, run_guarded

if TYPE_CHECKING:
    from headrace.cli.application import app as app


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(f"module 'headrace.cli' has no attribute {name!r}")
    from headrace.cli.application import app

    return app


def command() -> None:
    """Run the command line in a process of its own, and leave it with the exit code."""
    gc.set_threshold(50_000)  # what imports make stays: looking through it for garbage is a tenth of a start
    with own_process():
        run_guarded(_work, sys.argv[1:])


def main() -> None:
    """Run the command line and raise `SystemExit`; every error ends in a message, none in a traceback."""
    run_guarded(_work, sys.argv[1:])


def _work() -> None:
    from headrace.cli.application import app

    app()
