"""Guard a DataLoader's worker processes: any death is noticed at once, and the loop cannot hang.

Torch notices a death by SIGCHLD, which it raises wherever the main thread happens to be, such as in
the training step, and by a check every five seconds. Neither ends a read of a batch that a killed
worker began to send: other processes hold the same pipe open, so the read waits forever. Nor is it
safe to acquire a lock that a killed worker may hold. So here a thread waits for the ends of the
processes. When one ends unasked, the thread kills the others, because all are restarted anyway. It
then writes zeros into the pipe until the loop has noticed. No pickle ends in a zero, so the zeros
can complete no batch, and they end every read in an error.

Ctrl-C waits until a put into a worker's queue is done. Raised inside `Condition.notify`, it can
leave a waiter behind that swallows the next wake-up; raised after `Condition.__enter__`, it leaves
the lock taken. Either way the worker would never learn that it should end.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import connection
from typing import Any

from torch._C import _remove_worker_pids
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from headrace.errors import HeadraceError
from headrace.stream.read.ahead import CHECK_S, check_while_waiting, is_leaving

_METHODS = (
    "_mark_worker_as_unavailable",
    "_shutdown_workers",
    "_try_get_data",
    "_try_put_index",
)
_FIELDS = (
    "_workers",
    "_workers_status",
    "_index_queues",
    "_worker_result_queue",
    "_worker_pids_set",
    "_shutdown",
)

_JOIN_S = 5.0  # seconds; processes still alive after that are left behind
_ZEROS = bytes(1 << 16)


def check_form(of: Any, names: Sequence[str]) -> None:
    """Raise `ImportError` if another version of torch lacks these names."""
    missing = []
    for name in names:
        if not hasattr(of, name):
            missing.append(name)
    if missing:
        raise ImportError(f"its iterator of workers has no {', '.join(missing)}")


check_form(_MultiProcessingDataLoaderIter, _METHODS)


@contextmanager
def deferred_interrupts() -> Generator[None, None, None]:
    """Hold SIGINT back from the main thread while the block runs, and raise it again after the
    block.

    This replaces the handler because a mask does not help: another thread may take the signal for
    the main thread to handle.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    signals: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: signals.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if signals:
            signal.raise_signal(signal.SIGINT)


class GuardedWorkers(_MultiProcessingDataLoaderIter):
    """The iterator of a DataLoader with workers.

    After an error, `fallen` tells whether a worker's death caused it.

    Raises `ImportError` if the iterator of this torch has another form.
    """

    # still found when the interpreter has emptied this module
    _is_finalizing = staticmethod(sys.is_finalizing)

    def __init__(self, loader: Any) -> None:
        self.abandoned = False  # because another rank has gone
        self._let_go: set[int] = set()  # workers that may end
        self._lost: list[int] = []
        self._noticed = threading.Event()
        self._guard: threading.Thread | None = None
        super().__init__(loader)
        check_form(self, _FIELDS)
        # so that torch raises no error in the middle of the training step
        _remove_worker_pids(id(self))
        self._worker_pids_set = False
        if os.name != "posix":
            return  # torch checks every five seconds, and no read waits for the rest of a batch
        results: Any = self._worker_result_queue
        sending = os.dup(results._writer.fileno())  # duplicated, as the queue may be closed earlier
        self._guard = threading.Thread(
            target=_stand_guard,
            args=(self._workers, self._let_go, self._lost, self._noticed, sending),
            name="headrace-guard",
            daemon=True,
        )
        self._guard.start()

    def fallen(self, patience_s: float = 0) -> list[int]:
        """Return the numbers of the workers that ended unasked, now or while this waits.

        If there are any, the iterator is unusable and is closed.
        """
        if not self._lost:
            watched: dict[Any, int] = {
                process.sentinel: number
                for number, process in enumerate(self._workers)
                if number not in self._let_go
            }
            ready = sorted(
                watched[sentinel] for sentinel in connection.wait(list(watched), patience_s)
            )
            # the guard records the first death before it kills the others
            self._lost[:] = self._lost or ready
        if self._lost:
            self._shutdown_workers()
        return list(self._lost)

    def ending(self, worker: int) -> tuple[int, int | None]:
        """Return the process id and exit status (minus the signal) of a worker that died."""
        process = self._workers[worker]
        return int(process.pid or 0), process.exitcode

    def abandon(self) -> None:
        """End all workers at once, because the pass ends on every rank."""
        self.abandoned = True
        if not self._shutdown:
            self._abandon()

    def _mark_worker_as_unavailable(self, worker_id: int, shutdown: bool = False) -> None:
        # torch's own check found it dead
        if not shutdown and not self._workers[worker_id].is_alive():
            self._lost[:] = self._lost or [worker_id]  # workers that the guard killed do not count
            return
        self._let_go.add(worker_id)  # before the worker can end
        with deferred_interrupts():
            self._index_queues[worker_id].put(None)
        self._workers_status[worker_id] = False

    def _try_get_data(self, timeout: float = CHECK_S) -> Any:
        try:
            check_while_waiting()
        except HeadraceError:
            self.abandon()
            raise
        return super()._try_get_data(timeout)  # type: ignore[no-untyped-call]

    def _try_put_index(self) -> None:
        with deferred_interrupts():
            super()._try_put_index()

    def _shutdown_workers(self) -> None:
        # multiprocessing has ended the processes, and modules are torn down
        if self._is_finalizing():
            return
        if not self._lost and not is_leaving():
            super()._shutdown_workers()
        elif not self._shutdown:
            self._abandon()
        guard = self._guard
        if guard is None or not self._shutdown:
            return
        # the garbage collector may run this in the guard
        if guard is not threading.current_thread():
            guard.join(_JOIN_S)

    def _abandon(self) -> None:
        """Shut down the remaining workers without a lock."""
        self._shutdown = True
        self._noticed.set()
        for process in self._workers:
            process.kill()
        for process in self._workers:
            process.join(_JOIN_S)
        for queue in self._index_queues:
            queue.cancel_join_thread()
            queue.close()
        if hasattr(self, "_pin_memory_thread"):
            self._pin_memory_thread_done_event.set()
            self._pin_memory_thread.join(_JOIN_S)


def _stand_guard(
    processes: Sequence[Any],
    let_go: set[int],
    lost: list[int],
    noticed: threading.Event,
    sending: int,
) -> None:
    """Wait until a process ends unasked, or all have ended; in the first case make the loop
    notice.
    """
    try:
        there = {process.sentinel: number for number, process in enumerate(processes)}
        dead: list[int] = []
        while there and not dead:
            ended = [there.pop(sentinel) for sentinel in connection.wait(list(there))]
            dead = sorted(number for number in ended if number not in let_go)
        if not dead or noticed.is_set():
            return
        lost[:] = lost or dead
        for number in there.values():
            processes[number].kill()
        with suppress(OSError):
            os.set_blocking(sending, False)
            while not noticed.is_set():
                try:
                    os.write(sending, _ZEROS)
                except BlockingIOError:  # full: the loop is not reading now
                    noticed.wait(0.01)
    finally:
        os.close(sending)
