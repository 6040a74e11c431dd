"""Ctrl-C that is always heard.

Python raises an interrupt wherever the main thread happens to be. In a callback whose exceptions are ignored – of a
weak reference, as imports make them, or a finaliser – it is reported and lost, and the command would go on.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

_AGAIN_S = 0.05


@contextmanager
def heard() -> Generator[None, None, None]:
    """Inside, an interrupt that is lost in such a callback comes again a moment later, until it is heard."""
    before = sys.unraisablehook

    def hear(lost: Any) -> None:
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            before(lost)
            return
        again = threading.Timer(_AGAIN_S, _interrupt)  # here it would be lost once more
        again.daemon = True
        again.start()

    sys.unraisablehook = hear
    try:
        yield
    finally:
        sys.unraisablehook = before


def _interrupt() -> None:
    """A real signal to the main thread, which also ends what it waits for."""
    identity = threading.main_thread().ident
    if identity is not None and hasattr(signal, "pthread_kill"):
        signal.pthread_kill(identity, signal.SIGINT)
    else:
        signal.raise_signal(signal.SIGINT)
