"""Ctrl-C that is always heard.

Python raises an interrupt wherever the main thread happens to be. In a callback of a weak reference, in a finaliser, or
in an import of a library that goes on without what it could not import, it is lost, and the command would go on. So it
comes again, unless the command is already leaving because of it.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_AGAIN_S = 0.5  # between an interrupt and the next


@contextmanager
def heard() -> Generator[None, None, None]:
    """Inside, an interrupt that was lost is raised again every half second, until it is heard."""
    main = threading.main_thread()
    if threading.current_thread() is not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    done, again = threading.Event(), threading.Event()
    begun: list[threading.Thread] = []

    def remind() -> None:
        while not done.wait(_AGAIN_S) and main.ident is not None:
            again.set()
            signal.pthread_kill(main.ident, signal.SIGINT)  # a real signal: it also ends what is waited for

    def on_interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - a handler's signature
        reminded = again.is_set()
        again.clear()
        if not begun and hasattr(signal, "pthread_kill"):
            begun.append(threading.Thread(target=remind, name="headrace-interrupt", daemon=True))
            begun[0].start()
        if not (reminded and caused_by_interrupt(sys.exc_info()[1])):
            raise KeyboardInterrupt

    def quietly(lost: Any) -> None:
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            report(lost)

    report, sys.unraisablehook = sys.unraisablehook, quietly
    signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield
    finally:
        done.set()
        try:
            for thread in begun:  # lest it reminds whoever comes after
                thread.join()
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            sys.unraisablehook = report


def caused_by_interrupt(error: BaseException | None) -> bool:
    """Whether an interrupt is being handled: blocks are left because of it, or what is raised began with it."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__context__
    return False
