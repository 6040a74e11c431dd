"""Run the transform of a stream in worker processes that stay from one pass to the next.

    this process   reads batches in order ─▶ a pipe to each worker ─▶ results, in the same order
    worker w of W  makes batches w, w + W, … and transforms them

A worker knows nothing of passes: it receives numbered batches and returns what the transform made
of them. So a new epoch, a loaded state or a pass that was left costs no process. Results of a pass
that was left are dropped when they arrive.

Each worker has a pipe of its own. A worker that dies ends its pipe and no other, so it alone is
started again, and gets the batches again whose results had not arrived. It is an error if workers
die for the third time without a result in between. The pipe also ends with this process, and then
the workers end.

A thread of the worker receives, so this process never waits for a worker that waits for it.
"""

from __future__ import annotations

import logging
import os
import pickle
import queue
import random
import signal
import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import connection as pipes
from multiprocessing import get_context
from multiprocessing.reduction import ForkingPickler
from typing import Any, Literal, NamedTuple

import numpy as np

from headrace.errors import EngineError, MissingExtra, StreamError, setting_name
from headrace.stream.read.transform import (
    Transform,
    TransformContext,
    check_travels,
    name_of,
    run_transform,
    takes_context,
)
from headrace.stream.workers.deaths import REMEDY, death_of, why_not_again
from headrace.stream.workers.options import WorkerOptions
from headrace.stream.workers.parcel import share_batch
from headrace.stream.workers.serving import freeze_inherited
from headrace.stream.workers.starting import starting_without_interrupts

try:
    import torch
    from torch._utils import ExceptionWrapper
except ImportError as error:
    raise MissingExtra("torch", "torch") from error

log = logging.getLogger("headrace")

_LOOK_S = 0.1  # between looks whether the pass was left
_JOIN_S = 2.0  # for a transform to end; then its process is killed
_ORPHAN_S = 2.0  # between a worker's looks whether its parent lives
_END = object()
_POOLS: weakref.WeakSet[TransformPool] = weakref.WeakSet()

Answer = Literal["ready", "made", "failed"]


class _Raised(NamedTuple):
    """An error at the place of a result."""

    error: BaseException


@dataclass(eq=False)
class _Task:
    """A batch that a worker transforms. number: in its pass."""

    created_for: object  # the pass
    number: int
    batch: Any
    context: TransformContext | None


@dataclass(eq=False)
class _Worker:
    """A worker process as seen from the process that started it.

    tasks: without a result so far, in order; `sent` of them are there.
    """

    number: int
    process: Any
    connection: Any
    is_ready: bool = False
    tasks: deque[_Task] = field(default_factory=deque)
    sent: int = 0


@dataclass(frozen=True, eq=False)
class _Job:
    """What a worker process needs to know."""

    transform: Transform
    reader: str
    worker: int
    init: Callable[[int], object] | None
    seed: int

    def __getstate__(self) -> dict[str, Any]:
        check_travels(self.transform)
        if self.init is not None:
            check_travels(self.init, of="worker_init_fn")
        return self.__dict__


class TransformPool:
    """Worker processes that transform batches, the same from pass to pass.

    They start with the first pass, and end with this object, with an error of a pass, with the
    interpreter, or when `close` is called. reader: names this rank in messages.
    """

    def __init__(self, transform: Transform, options: WorkerOptions, *, reader: str) -> None:
        self._transform = transform
        self._options = options
        self._reader = reader
        self._wants_context = takes_context(transform)
        self._starts = 0
        self._pass: object = None  # the one that is read now
        self._without_workers()
        _POOLS.add(self)

    def _without_workers(self) -> None:
        """Begin without workers, in this process."""
        self._process = os.getpid()
        self._workers: list[_Worker] = []
        self._lock = threading.Lock()  # held while a batch is made, but not between two
        # the finalizer must not keep the pool
        weakref.finalize(self, _end, self._workers, self._process)

    def __reduce__(self) -> Any:
        return partial(TransformPool, reader=self._reader), (self._transform, self._options)

    @property
    def processes(self) -> list[int]:
        """The ids of the worker processes that run."""
        if self._process != os.getpid():
            return []
        return [worker.process.pid for worker in self._workers]

    def start(self) -> None:
        """Start the workers, unless they run."""
        if self._process != os.getpid():  # a fork has copies of what belongs to its parent
            self._without_workers()
        with self._lock:
            while len(self._workers) < self._options.workers:
                self._workers.append(self._started(len(self._workers)))

    def close(self) -> None:
        """End the workers; the next pass starts new ones."""
        if self._process != os.getpid():
            return
        self._pass = None
        with self._lock:
            _end(self._workers, self._process)

    def begin(self) -> object:
        """Begin a pass and return a mark of it; the pass before is left."""
        self._pass = object()
        return self._pass

    def leave(self, mark: object) -> None:
        """Leave a pass, if it is the present one: it yields nothing more."""
        if self._pass is mark:
            self._pass = None

    def over(
        self,
        mark: object,
        batches: Generator[Any, None, None],
        *,
        context: Callable[[int], TransformContext],
        note: Callable[[str], None],
    ) -> Generator[Any, None, None]:
        """Yield the transform of each batch, in order; the batches are closed with this generator.

        mark: of the pass. context: returns the context of a batch by its number. note: is told
        what a result is waited for.
        Raises what reading raised after the results of the batches before it, `StreamError` if the
        transform failed, and `EngineError` if workers keep dying.
        """
        reading = _Reading(mark, context, note)
        with closing(batches):
            while True:
                with self._lock:
                    try:
                        result = self._next(reading, batches)
                    except Exception:
                        if self._pass is mark:
                            self._pass = None
                            _end(self._workers, self._process)
                        raise
                if result is _END:
                    return
                yield result

    def _next(self, reading: _Reading, batches: Generator[Any, None, None]) -> Any:
        """Return the next result of a pass, and have the next batches made."""
        ahead = self._options.workers * self._options.prefetch_factor
        while not reading.has_all and reading.sent < reading.yielded + ahead:
            try:
                batch = next(batches, _END)
            except Exception as error:  # noqa: BLE001  # raised in its place
                reading.results[reading.sent] = _Raised(error)
                batch = _END
                reading.sent += 1
            if batch is _END:
                reading.has_all = True
                break
            self._send_to(reading, batch)
        if reading.yielded == reading.sent:
            return _END
        result = self._awaited(reading)
        reading.yielded += 1
        if isinstance(result, _Raised):
            raise result.error
        return result

    def _send_to(self, reading: _Reading, batch: Any) -> None:
        self._check_current(reading)
        worker = self._workers[reading.sent % len(self._workers)]
        context = reading.context(reading.sent) if self._wants_context else None
        worker.tasks.append(_Task(reading.mark, reading.sent, share_batch(batch), context))
        reading.sent += 1
        _send(worker)

    def _awaited(self, reading: _Reading) -> Any:
        """Wait for the result that is next in order."""
        number = reading.yielded
        worker = self._workers[number % len(self._workers)]
        while number not in reading.results:
            self._check_current(reading)
            if worker.is_ready:
                what = f"transform {name_of(self._transform)} of batch {number}"
            else:
                what = "its start"
            reading.note(f"worker {worker.number}: {what}")
            of_connection = {other.connection: other for other in self._workers}
            for connection in pipes.wait(list(of_connection), _LOOK_S):
                self._receive(of_connection[connection], reading)
        reading.note("")
        return reading.results.pop(number)

    def _check_current(self, reading: _Reading) -> None:
        if self._pass is not reading.mark:
            raise StreamError(
                "batch: its pass was left, and another one may have begun",
                remedy="read the stream by one loop",
            )

    def _receive(self, worker: _Worker, reading: _Reading) -> None:
        """Take an answer of a worker, or start it again if it has died."""
        try:
            message = worker.connection.recv_bytes()
            answer, value = pickle.loads(message)
        except (EOFError, OSError) as error:
            self._start_again(worker, reading, error)
            return
        except Exception as error:  # noqa: BLE001  # what a transform returns may fail to unpickle
            answer = "failed"
            value = StreamError(
                f"worker {worker.number}: a result cannot be received: {type(error).__name__}:"
                f" {error}",
                remedy="return values that can be pickled",
            )
        if answer == "ready":
            worker.is_ready = True
            _send(worker)
            return
        if not worker.is_ready:
            raise value
        task = worker.tasks.popleft()
        worker.sent -= 1
        if task.created_for is not reading.mark:
            return
        if answer == "failed":
            value = _Raised(value)
        elif isinstance(value, ExceptionWrapper):
            value = _Raised(_unwrapped(value))
        reading.results[task.number] = value

    def _start_again(self, worker: _Worker, reading: _Reading, cause: Exception) -> None:
        worker.connection.close()
        worker.process.join(_JOIN_S)
        death = death_of(
            f"{self._reader}, worker {worker.number}", worker.process.pid, worker.process.exitcode
        )
        final = why_not_again(reading.deaths, [death], reading.yielded)
        if final is not None:
            raise EngineError(final, remedy=REMEDY) from cause
        reading.deaths.append(reading.yielded)
        log.warning("%s; it is started again after %d batches of the pass", death, reading.yielded)
        worker.process.kill()  # alive if only its pipe is broken
        begun = self._started(worker.number)
        worker.process, worker.connection = begun.process, begun.connection
        worker.is_ready, worker.sent = False, 0
        for task in list(worker.tasks):
            if task.created_for is not reading.mark:
                worker.tasks.remove(task)

    def _started(self, number: int) -> _Worker:
        method = self._options.multiprocessing_context
        context: Any = get_context(method)  # typed without Process
        here, there = context.Pipe()
        # As torch does, but the loop draws no number: workers must not change what it draws.
        seed = (torch.initial_seed() + self._starts) % (1 << 64)
        self._starts += 1
        job = _Job(self._transform, self._reader, number, self._options.worker_init_fn, seed)
        process = context.Process(
            target=_work,
            args=(there, job, here if method == "fork" else None),
            name=f"headrace-worker-{number}",
            daemon=True,
        )
        with starting_without_interrupts(method):
            process.start()
        there.close()
        return _Worker(number, process, here)


@dataclass(eq=False)
class _Reading:
    """How far one pass is. sent: batches given to workers; yielded: results given to the loop;
    deaths: how many were yielded when a worker died.
    """

    mark: object
    context: Callable[[int], TransformContext]
    note: Callable[[str], None]
    sent: int = 0
    yielded: int = 0
    has_all: bool = False
    results: dict[int, Any] = field(default_factory=dict)
    deaths: list[int] = field(default_factory=list)


def _send(worker: _Worker) -> None:
    """Send a worker the batches that it does not have yet, once it receives."""
    while worker.is_ready and worker.sent < len(worker.tasks):
        task = worker.tasks[worker.sent]
        message = ForkingPickler.dumps((task.number, task.batch, task.context))
        try:
            worker.connection.send_bytes(message)
        except OSError:  # it has died, which reading from it will show
            return
        worker.sent += 1


def _unwrapped(wrapped: ExceptionWrapper) -> BaseException:
    try:
        wrapped.reraise()  # type: ignore[no-untyped-call]  # torch leaves it so
    except Exception as error:  # noqa: BLE001  # that of the batch
        return error
    raise AssertionError("a wrapped exception raises")


def _end(workers: list[_Worker], process: int) -> None:
    """End worker processes: each finishes its batch, within two seconds for all."""
    if process != os.getpid():
        return
    ending = list(workers)
    workers.clear()
    for worker in ending:
        worker.connection.close()
    until = time.monotonic() + _JOIN_S
    for worker in ending:
        worker.process.join(max(0.0, until - time.monotonic()))
    for worker in ending:
        worker.process.kill()
        worker.process.join(_JOIN_S)


# --- in the worker


def _work(connection: Any, job: _Job, parents_end: Any) -> None:
    """Transform the batches that arrive, until the pipe ends. parents_end: a fork's copy of it."""
    if parents_end is not None:
        parents_end.close()
    # Ctrl-C is for the parent, whose own handlers a fork has
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    freeze_inherited()
    torch.set_num_threads(1)
    torch.manual_seed(job.seed)
    random.seed(job.seed)
    np.random.seed(job.seed % (1 << 32))  # transforms may draw from it
    with suppress(OSError, EOFError):
        if job.init is not None:
            try:
                job.init(job.worker)
            except Exception as error:  # noqa: BLE001  # the loop raises it
                failure = StreamError(
                    f"worker {job.worker}: {setting_name('worker_init_fn')} raised"
                    f" {type(error).__name__}: {error}"
                )
                _answer(connection, "failed", _with_trace(failure, error))
                return
        _answer(connection, "ready", None)
        arrived: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        threading.Thread(target=_receive_all, args=(connection, arrived), daemon=True).start()
        while (message := arrived.get()) is not None:
            _answer(connection, *_make_answer(message, job))
            del message


def _receive_all(connection: Any, arrived: queue.SimpleQueue[bytes | None]) -> None:
    """Receive all messages, and None at the end of the pipe or of the parent."""
    parent = os.getppid()
    with suppress(OSError, EOFError):
        while True:
            while not connection.poll(_ORPHAN_S):
                # another process may hold the parent's end of the pipe open
                if os.getppid() != parent:
                    raise EOFError
            arrived.put(connection.recv_bytes())
    arrived.put(None)


def _make_answer(message: bytes, job: _Job) -> tuple[Answer, Any]:
    number = "?"
    try:
        number, batch, context = pickle.loads(message)
        arguments: Sequence[Any] = (batch,) if context is None else (batch, context)
        where = f"{job.reader}, worker {job.worker}: batch {number}"
        return "made", share_batch(run_transform(job.transform, arguments, where))
    except Exception as error:  # noqa: BLE001  # the loop raises it
        return "failed", _with_trace(error, error.__cause__ or error)


def _answer(connection: Any, answer: Answer, value: Any) -> None:
    try:
        message = ForkingPickler.dumps((answer, value))
    except Exception as error:  # noqa: BLE001  # the loop raises it
        failure = StreamError(
            f"what the transform returned cannot be sent: {type(error).__name__}: {error}",
            remedy="return values that can be pickled",
        )
        message = ForkingPickler.dumps(("failed", failure))
    connection.send_bytes(message)


def _with_trace(failure: BaseException, cause: BaseException) -> Any:
    """Return an error that shows the worker's traceback as its cause, once it has arrived."""
    return _Traced(failure, "".join(traceback.format_exception(cause)))


class _Traced:
    """An error on its way; unpickled it is the error, caused by its traceback in words."""

    def __init__(self, failure: BaseException, text: str) -> None:
        self._failure = failure
        self._text = text

    def __reduce__(self) -> Any:
        return _caused, (self._failure, self._text)


class WorkerTraceback(Exception):
    """What an error was raised by in a worker process, in words."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def _caused(failure: BaseException, text: str) -> BaseException:
    failure.__cause__ = WorkerTraceback(text)
    return failure


def _after_fork() -> None:
    for pool in list(_POOLS):
        for worker in pool._workers:
            # a child that holds a parent's end keeps workers of a dead parent alive
            worker.connection.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
