"""A rank's batches for its DataLoader workers: the rank's own process reads, and workers fetch what is ready.

    rank's process     threads decode and gather ─▶ batches of a pass, in order ─▶ one socket for each worker
    worker w of W      asks for its next step, w, w + W, … ─▶ transform, collate ─▶ the training loop

Blocks are decoded once for each rank, whatever the number of workers, and no batch depends on it. Workers are there for
Python code. Where there is none to run, a worker hands on a ticket: the batch never leaves the rank's process, and the
loop gets the very arrays that were gathered there.

`Server` is the side of the rank's process, `Client` that of a worker. They speak pickled tuples over a local socket
that only processes of the same parent can open. A worker that cannot reach the server raises; so does one whose batch
could not be read.
"""

from __future__ import annotations

import itertools
import os
import pickle
import threading
import weakref
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from multiprocessing import connection as sockets
from multiprocessing import current_process
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

from headrace.errors import StreamError
from headrace.stream.workers.table_parcel import parcel_of

_SERVERS: weakref.WeakValueDictionary[int, Server] = weakref.WeakValueDictionary()
_NUMBERS = itertools.count()
_END = object()


class Beginning(NamedTuple):
    """What a worker learns when it begins a pass: state and epoch at its start, and the first step that is its own."""

    start: dict[str, Any]
    epoch: int
    first: int


class Opened(NamedTuple):
    """A pass that workers begin: state and epoch at its start, the first step that is read, and its batches."""

    start: dict[str, Any]
    epoch: int
    first: int
    batches: Generator[Any, None, None]


class Server:
    """Hands the batches of the present pass to workers. open_pass: opens it, for a worker that may bring progress.

    Threads and descriptors end with `close`, which whoever made it must call. Only the process that made it serves.
    """

    def __init__(self, open_pass: Callable[[int, int, Any], Opened]) -> None:
        self._open_pass = open_pass
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._run: _Run | None = None
        self._connections: set[sockets.Connection] = set()
        self._tickets: dict[int, Any] = {}
        self._older_tickets: dict[int, Any] = {}  # a DataLoader still unpickles what it will throw away
        self._ticket_numbers = itertools.count()
        self._listener = sockets.Listener(None, "AF_UNIX" if os.name == "posix" else None, backlog=128, authkey=_key())
        self.address: Any = self._listener.address
        self.number = next(_NUMBERS)
        self._closed = False
        _SERVERS[self.number] = self
        threading.Thread(target=self._accept, name="headrace-serve", daemon=True).start()

    def close(self) -> None:
        """End what serves; safe to call twice, and in a forked copy, where it does nothing."""
        if self._closed or self._process != os.getpid():
            return
        self._closed = True
        with suppress(OSError):  # wakes the thread that waits for connections
            sockets.Client(self.address, authkey=_key()).close()
        self._listener.close()
        self.forget()
        for connection in list(self._connections):
            with suppress(OSError):
                connection.close()

    def forget(self) -> None:
        """The next worker begins a pass anew; what was read ahead is dropped."""
        with self._lock:
            run, self._run = self._run, None
            self._older_tickets, self._tickets = self._tickets, {}
        if run is not None:
            run.close()

    def redeem(self, ticket: int) -> Any:
        """The batch that a ticket stands for, once. Raises `StreamError` if it is of a pass long past."""
        for tickets in (self._tickets, self._older_tickets):
            if ticket in tickets:
                return tickets.pop(ticket)
        raise StreamError("batch: it is of a pass that was left before the last one; read the DataLoader by one loop")

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection = self._listener.accept()
            except Exception:  # noqa: BLE001  # a stranger without the key, or the listener was closed
                continue
            self._connections.add(connection)
            threading.Thread(target=self._serve, args=(connection,), name="headrace-serve", daemon=True).start()

    def _serve(self, connection: sockets.Connection) -> None:
        """One worker, until it is gone."""
        run: _Run | None = None
        try:
            while True:
                asked = connection.recv()
                try:
                    if asked[0] == "begin":
                        _, worker, workers, progress = asked
                        run = self._joined(worker, workers, progress)
                        self._answer(connection, ("begun", *run.beginning(worker, progress)))
                    else:
                        self._answer(connection, self._next(run, *asked[1:]))
                except (EOFError, OSError):
                    raise
                except Exception as error:  # noqa: BLE001  # whatever it was, the worker raises it
                    self._answer(connection, ("error", _travelling(error)))
        except (EOFError, OSError):
            pass
        finally:
            self._connections.discard(connection)
            connection.close()
            if run is not None:
                run.left()

    def _joined(self, worker: int, workers: int, progress: Any) -> _Run:
        """The run that a worker takes part in: the present one, unless it was in it already or others have left it."""
        with self._lock:
            run = self._run
            if run is None or not run.admits(worker, workers):
                if run is not None:
                    run.close()
                self._older_tickets, self._tickets = self._tickets, {}
                run = self._run = _Run(self._open_pass(worker, workers, progress), workers)
            run.members.add(worker)
            return run

    def _next(self, run: _Run | None, step: int, in_place: bool) -> tuple[Any, ...]:
        if run is None:
            raise StreamError("worker: asked for a batch before it began a pass; iterate over the dataset first")
        batch = run.get(step)
        if batch is _END:
            return ("end",)
        if not in_place:
            return ("batch", parcel_of(batch))
        ticket = next(self._ticket_numbers)
        with self._lock:
            if run is self._run:
                self._tickets[ticket] = batch
        return ("ticket", self.number, ticket)

    def _answer(self, connection: sockets.Connection, answer: tuple[Any, ...]) -> None:
        connection.send_bytes(ForkingPickler.dumps(answer))


class _Run:
    """One reading of a pass, in a thread that stays a little ahead of what workers ask for."""

    def __init__(self, opened: Opened, workers: int) -> None:
        self.members: set[int] = set()
        self._opened, self._workers = opened, max(1, workers)
        self._changed = threading.Condition()
        self._ready: dict[int, Any] = {}
        self._asked = opened.first - 1
        self._read = opened.first  # steps read so far
        self._ended = self._closed = self._was_left = False
        self._error: BaseException | None = None
        threading.Thread(target=self._read_ahead, name="headrace-serve-read", daemon=True).start()

    def admits(self, worker: int, workers: int) -> bool:
        """Whether a worker may take part from the beginning."""
        with self._changed:
            return not (self._was_left or self._closed) and worker not in self.members and workers == self._workers

    def beginning(self, worker: int, progress: Any) -> Beginning:
        """Where a worker begins: its first step after what the run skips, or after its own progress."""
        first = self._opened.first + worker if progress is None else worker + progress.batches * self._workers
        return Beginning(self._opened.start, self._opened.epoch, first)

    def get(self, step: int) -> Any:
        """The batch of a step; `_END` behind the last. Raises what reading raised."""
        with self._changed:
            self._asked = max(self._asked, step)
            self._changed.notify_all()
            self._changed.wait_for(lambda: step in self._ready or self._ended or self._closed)
            if step in self._ready:
                return self._ready.pop(step)
            if self._error is not None:
                raise self._error
            if self._closed:
                raise StreamError("worker: its pass was left, and another one has begun")
            return _END

    def left(self) -> None:
        """A worker has gone."""
        with self._changed:
            self._was_left = True

    def close(self) -> None:
        """Nobody takes part any more."""
        with self._changed:
            self._closed = True
            self._ready.clear()
            self._changed.notify_all()

    def _read_ahead(self) -> None:
        try:
            with closing(self._opened.batches) as batches:
                for batch in batches:
                    with self._changed:
                        self._ready[self._read] = batch
                        self._read += 1
                        self._changed.notify_all()
                        self._changed.wait_for(lambda: self._closed or self._read <= self._asked + self._workers + 1)
                        if self._closed:
                            return
                    del batch
        except BaseException as error:  # noqa: BLE001  # raised in the workers
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()


class Client:
    """A worker's side. in_place: whether the loop gets the batches as they are, by ticket."""

    def __init__(self, address: Any, *, worker: int, workers: int) -> None:
        self._worker, self._workers = worker, workers
        try:
            self._connection = sockets.Client(address, authkey=_key())
        except (OSError, EOFError) as error:
            raise StreamError(
                f"worker {worker}: the process that reads for it cannot be reached ({error}); keep the dataset alive in"
                " the process whose DataLoader started the worker"
            ) from error

    def begin(self, progress: Any) -> Beginning:
        """Begin a pass. progress: of this worker before it was stopped; None: none."""
        return Beginning(*self._ask("begin", self._worker, self._workers, progress))

    def batches(self, beginning: Beginning, *, in_place: bool) -> Generator[Any, None, None]:
        """This worker's batches of a pass."""
        for step in itertools.count(beginning.first, max(1, self._workers)):
            kind, *rest = self._asked("next", step, in_place)
            if kind == "end":
                return
            yield Ticket(*rest) if kind == "ticket" else rest[0]

    def close(self) -> None:
        """Leave the pass."""
        self._connection.close()

    def _ask(self, *asked: Any) -> list[Any]:
        return self._asked(*asked)[1:]

    def _asked(self, *asked: Any) -> list[Any]:
        try:
            self._connection.send(asked)
            kind, *rest = pickle.loads(self._connection.recv_bytes())
        except (OSError, EOFError) as error:
            raise StreamError(
                f"worker {self._worker}: the process that reads for it has ended the pass ({type(error).__name__});"
                " resume from the last state"
            ) from error
        if kind == "error":
            raise rest[0]
        return [kind, *rest]


class Ticket:
    """Stands for a batch on its way from a worker to the loop; unpickled there it is the batch."""

    def __init__(self, server: int, ticket: int) -> None:
        self._server, self._ticket = server, ticket

    def __reduce__(self) -> Any:
        return _redeemed, (self._server, self._ticket)


def _redeemed(server: int, ticket: int) -> Any:
    found = _SERVERS.get(server)
    if found is None:
        raise StreamError("batch: it was handed over in another process than the one that read it")
    return found.redeem(ticket)


def _travelling(error: BaseException) -> BaseException:
    """An error that a worker can unpickle: itself, or its text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001  # of whatever kind
        return StreamError(f"{type(error).__name__}: {error}")
    return error


def _key() -> bytes:
    return bytes(current_process().authkey)
