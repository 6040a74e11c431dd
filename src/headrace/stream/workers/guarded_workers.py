"""A DataLoader's worker processes with a guard: whichever of them dies is known at once, and the loop cannot hang.

Torch notices a death by SIGCHLD, which it raises wherever the main thread happens to be – in the training step, say –,
and by looking every five seconds. Neither ends a read of a batch that a killed worker began to send: other processes
hold the same pipe open, so it waits for ever. Nor may a lock be asked for that a killed worker may hold. So here a
thread waits for the ends of the processes. When one ends that was not asked to, the others are killed, as they are
begun anew anyway, and zeros are written into the pipe until the loop has noticed: no pickle ends in a zero, so they can
complete no batch, and end every read in an error.

Ctrl-C waits until a put into a worker's queue is done. Raised inside `Condition.notify`, it can leave a waiter behind
that swallows the next wake-up, and raised behind `Condition.__enter__` it leaves the lock taken. Either way the worker
never hears that it should end.
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

_METHODS = ("_mark_worker_as_unavailable", "_shutdown_workers", "_try_put_index")
_FIELDS = ("_workers", "_workers_status", "_index_queues", "_worker_result_queue", "_worker_pids_set", "_shutdown")

_JOIN_S = 5.0  # seconds; what has not ended by then is left behind
_ZEROS = bytes(1 << 16)


def check_form(of: Any, names: Sequence[str]) -> None:
    """Raise `ImportError` where a torch of another version has no such names."""
    missing = [name for name in names if not hasattr(of, name)]
    if missing:
        raise ImportError(f"its iterator of workers has no {', '.join(missing)}")


check_form(_MultiProcessingDataLoaderIter, _METHODS)


@contextmanager
def held_interrupts() -> Generator[None, None, None]:
    """Hold SIGINT back from the main thread while the block runs, and raise it again behind the block.

    The handler is replaced, as a mask does not help: another thread may take the signal for the main thread to handle.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    held: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: held.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if held:
            signal.raise_signal(signal.SIGINT)


class GuardedWorkers(_MultiProcessingDataLoaderIter):
    """The iterator of a DataLoader with workers. After an error, `fallen` says whether a death is behind it.

    Raises `ImportError` under a torch whose own iterator has another form.
    """

    def __init__(self, loader: Any) -> None:
        self._let_go: set[int] = set()  # workers that may end
        self._lost: list[int] = []
        self._noticed = threading.Event()
        self._guard: threading.Thread | None = None
        super().__init__(loader)
        check_form(self, _FIELDS)
        _remove_worker_pids(id(self))  # no error in the midst of the training step
        self._worker_pids_set = False
        if os.name != "posix":
            return  # torch looks every five seconds, and no read waits for the rest of a batch
        results: Any = self._worker_result_queue
        sending = os.dup(results._writer.fileno())  # its own: the queue may be closed before
        self._guard = threading.Thread(
            target=_stand_guard,
            args=(self._workers, self._let_go, self._lost, self._noticed, sending),
            name="headrace-guard",
            daemon=True,
        )
        self._guard.start()

    def fallen(self, patience_s: float = 0) -> list[int]:
        """Numbers of the workers that ended unasked, now or while this waits; the iterator is of no use then, and is
        closed.
        """
        if not self._lost:
            watched: dict[Any, int] = {
                each.sentinel: number for number, each in enumerate(self._workers) if number not in self._let_go
            }
            ready = sorted(watched[sentinel] for sentinel in connection.wait(list(watched), patience_s))
            self._lost[:] = self._lost or ready  # the guard says who was first, before it kills the others
        if self._lost:
            self._shutdown_workers()
        return list(self._lost)

    def ending(self, worker: int) -> tuple[int, int | None]:
        """Process and exit status (minus the signal) of a worker that has fallen."""
        process = self._workers[worker]
        return int(process.pid or 0), process.exitcode

    def _mark_worker_as_unavailable(self, worker_id: int, shutdown: bool = False) -> None:
        if not shutdown and not self._workers[worker_id].is_alive():  # torch looked by itself
            self._lost[:] = self._lost or [worker_id]  # those that the guard killed are not lost
            return
        self._let_go.add(worker_id)  # before it hears of it
        with held_interrupts():
            self._index_queues[worker_id].put(None)
        self._workers_status[worker_id] = False

    def _try_put_index(self) -> None:
        with held_interrupts():
            super()._try_put_index()

    def _shutdown_workers(self) -> None:
        if not self._lost:
            super()._shutdown_workers()
        elif not self._shutdown:
            self._abandon()
        guard = self._guard
        if guard is None or not self._shutdown or sys.is_finalizing():
            return
        if guard is not threading.current_thread():  # where the garbage collector may run
            guard.join(_JOIN_S)

    def _abandon(self) -> None:
        """End what is left without a lock."""
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
    processes: Sequence[Any], let_go: set[int], lost: list[int], noticed: threading.Event, sending: int
) -> None:
    """Wait until a process ends unasked, or all have ended; then see to it that the loop notices."""
    try:
        there = {process.sentinel: number for number, process in enumerate(processes)}
        found: list[int] = []
        while there and not found:
            ended = [there.pop(sentinel) for sentinel in connection.wait(list(there))]
            found = sorted(number for number in ended if number not in let_go)
        if not found or noticed.is_set():
            return
        lost[:] = lost or found
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
