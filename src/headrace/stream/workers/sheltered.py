"""Worker processes that Ctrl-C does not reach: a terminal signals all its processes, and one of them decides.

A worker that dies of Ctrl-C while it still imports its libraries says so on the terminal, and makes the DataLoader's
own ending fail: at times the loop's process then waits for ever. A process inherits which signals are held back.
"""

from __future__ import annotations

import signal
from collections.abc import Generator
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker


@contextmanager
def sheltered_start(method: str) -> Generator[None, None, None]:
    """Processes begun inside never see SIGINT; this one sees it at the latest when the block is left.

    method: how they start. A fork server is no one's own: it is started without the shelter, and so are its children.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    if method != "fork":
        resource_tracker.ensure_running()  # starting it inside would let SIGINT through again
    if method == "forkserver":
        forkserver.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
