"""Run the command line: parse, call, print. Only this package reads the environment.

Exit codes: 0 done, 1 the data or the run failed, 2 the command was wrong, 130 interrupted.

This module imports very little, so that an interrupt is handled from the first moment on. The
commands are in `cli.application`, which imports everything they need.
"""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING, Any

from headrace.cli.outermost import quiet_process, run_guarded

if TYPE_CHECKING:
    from headrace.cli.application import app as app


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(f"module 'headrace.cli' has no attribute {name!r}")
    from headrace.cli.application import app

    return app


def command() -> None:
    """Run the command line in its own process, and end the process with the exit code."""
    # objects made by imports stay; collecting among them takes a tenth of the startup time
    gc.set_threshold(50_000)
    with quiet_process():
        try:
            run_guarded(_work, sys.argv[1:])
        finally:
            gc.freeze()  # else the interpreter looks through all of them once more when it ends


def main() -> None:
    """Run the command line and raise `SystemExit`; every error ends in a message, never in a
    traceback.
    """
    run_guarded(_work, sys.argv[1:])


def _work() -> None:
    from headrace.cli.application import app

    app()
