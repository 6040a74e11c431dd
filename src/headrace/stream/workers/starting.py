"""Start processes that receive no Ctrl-C before they are ready for it."""

from __future__ import annotations

import signal
from collections.abc import Generator
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker

__all__ = ["accept_interrupts", "starting_without_interrupts"]


@contextmanager
def starting_without_interrupts(method: str) -> Generator[None, None, None]:
    """Start processes that never receive SIGINT, unless they call `accept_interrupts`; this process
    receives it when the block is left, at the latest.

    A terminal signals Ctrl-C to all its processes, and this one handles it. A process that Ctrl-C
    interrupts while it imports its libraries dies with half a traceback, or loses the interrupt in
    a callback, and its parent may then wait forever. A fork server is shared, so it is started with
    SIGINT unblocked, and so are its children.
    method: the start method of the processes.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    if method != "fork":
        resource_tracker.ensure_running()  # starting it inside the block would unblock SIGINT again
    if method == "forkserver":
        forkserver.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def accept_interrupts() -> None:
    """Receive SIGINT from now on, and one that came before."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
