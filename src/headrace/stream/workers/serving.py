"""Serve a rank's batches to its DataLoader workers: the rank's own process reads, and workers fetch
what is ready.

    rank's process   threads decode and gather ─▶ batches of a pass, in order ─▶ a socket per worker
    worker w of W    asks for its next step, w, w + W, … ─▶ transform, collate ─▶ the training loop

Blocks are decoded once for each rank, whatever the number of workers, and no batch depends on that
number. Workers are there for Python code: they receive columns, and make batches of them before
they run it. If there is no code to run, a worker passes on a ticket. The batch then never leaves
the rank's process, and the loop gets the arrays that were gathered there.

The workers that one DataLoader starts together are a pool, and each pass of a pool is read once, by
a `PoolRun`. Two loops over one dataset are two pools, which share nothing. A run reads only
while a worker of its pool is connected, so an abandoned loop leaves no thread and no batch behind.

`Server` is the side of the rank's process, `Client` that of a worker. They exchange pickled tuples
over a local socket. Before anything is unpickled, both prove that they know a key: for workers the
one that multiprocessing gives to a process and its children. A worker raises if the server, or the
process behind it, is gone. Processes that read as one rank are served in the same way, see
`partners`.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401  # registers before `_at_exit`
import gc
import itertools
import os
import pickle
import secrets
import socket
import struct
import sys
import threading
import time
import weakref
from collections.abc import Callable, Generator, Hashable, Iterator
from contextlib import closing, suppress
from multiprocessing import AuthenticationError, current_process
from multiprocessing import connection as sockets
from typing import Any, NamedTuple

from torch._utils import ExceptionWrapper

from headrace.errors import StreamError
from headrace.stream.ranks.stats import Progress
from headrace.stream.read.ahead import CHECK_S, check_while_waiting
from headrace.stream.workers.arrivals import StepMark
from headrace.stream.workers.parcel import (
    SocketMessage,
    arrive_failed,
    receive_message,
    share_batch,
)

_SERVERS: weakref.WeakValueDictionary[int, Server] = weakref.WeakValueDictionary()
_CLIENTS: weakref.WeakSet[Client] = weakref.WeakSet()
_NUMBERS = itertools.count()
END = object()
MISSED = object()  # in place of a batch that is not kept any more; who needs it begins again there
_GONE = "the dataset that it reads for has gone"
_KEEP = "keep the dataset for as long as one loop reads it to its end"

_START_S = 0.2  # seconds that a run waits for the rest of its pool; see `PoolRun._read_ahead`
_LOOK_S = 0.5  # seconds between a waiting client's checks that it is not alone
_COME_S = 60.0  # for all workers of a pool to begin, after one has its last batch
_GOODBYE_S = 1.0  # for a client to receive what is left for it
_frozen_in = 0  # the process that called `freeze_inherited`; a fork has another id
_END_S = 10.0  # for a read to end with the interpreter
_MOST_IDLE_RUNS = 4  # kept for late workers


class ServerLeft(StreamError):
    """The server was closed in order, while its process may go on."""


class ServerGone(StreamError):
    """The connection to the server has ended without a word."""


class Beginning(NamedTuple):
    """The beginning of a pass for a worker: state and epoch at its start, the worker's first step,
    and the number of the `Arrivals` that its batches are noted in; -1: in none.
    """

    start: dict[str, Any]
    epoch: int
    first: int
    arrivals: int = -1


class Opened(NamedTuple):
    """A pass that workers begin, with its first step for them, and the function that reads it.

    read: takes a step and whether workers pass batches on as tickets, and yields the batches from
    that step on; none for a step after the last. progress: where it notes what it reads.
    """

    beginning: Beginning
    read: Callable[[int, bool], Generator[Any, None, None]]
    progress: Progress | None = None


class Server:
    """A server of the batches of passes to workers.

    open_pass: opens a pass, for a worker that may bring progress. run: how a pass is read for those
    that join it. key: what clients must know; None: that of this process and its children.

    Threads and descriptors end with `close`, which the owner must call. Only the process that
    created it serves.
    """

    def __init__(
        self,
        open_pass: Callable[[Any, int, Any], Opened],
        *,
        run: type[PoolRun] | None = None,
        key: bytes | None = None,
    ) -> None:
        self._open_pass = open_pass
        self._run = PoolRun if run is None else run
        self._key = key
        self._process = os.getpid()
        # Also guards the runs. Reentrant: the garbage collector may close this server while the
        # lock is held.
        self.lock = threading.RLock()
        self._runs: dict[Hashable, PoolRun] = {}
        self._connections: set[Any] = set()
        self._tickets: dict[int, tuple[PoolRun | None, Any, int]] = {}
        self._ticket_numbers = itertools.count()
        self._listener = _listener()
        self.address: Any = self._listener.address
        self.number = next(_NUMBERS)
        self._closed = False
        self._threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        _SERVERS[self.number] = self
        self.run_thread(self._accept)

    def close(self) -> None:
        """Stop serving; safe to call twice, and in a forked copy, where it does nothing."""
        if self._closed or not self.is_here:
            return
        self._closed = True
        with suppress(OSError):  # wakes the thread that waits for connections
            sockets.Client(self.address).close()
        self._listener.close()
        self.forget(_GONE)
        self._hang_up()

    @property
    def is_here(self) -> bool:
        """Whether this process made it; a fork has a copy without its threads."""
        return self._process == os.getpid()

    def run_thread(self, target: Callable[..., None], *arguments: Any, reads: bool = False) -> None:
        """Run a thread of this server, which `close` ends and `join` awaits."""
        name = "headrace-serve-read" if reads else "headrace-serve"
        thread = threading.Thread(target=target, args=arguments, name=name, daemon=True)
        thread.start()
        self._threads.add(thread)  # one that has not started cannot be awaited

    def join(self, seconds: float) -> None:
        """Wait until the threads of a closed server have ended, or for so long."""
        until = time.monotonic() + seconds
        for thread in list(self._threads):
            if thread is not threading.current_thread():
                thread.join(max(0.0, until - time.monotonic()))

    def forget(self, reason: str = "its pass was left, and another one has begun") -> None:
        """End all passes: current workers get no more batches, and new ones begin a pass anew."""
        with self.lock:
            runs = list(self._runs.values())
            self._runs = {}
            for run in runs:
                self._end(run, reason)

    def redeem(self, ticket: int) -> Any:
        """Return the batch of a ticket, once; if its pass was abandoned, return a value that raises
        in the loop.

        A DataLoader also unpickles batches of an abandoned pass, only to discard them.
        """
        run, batch, step = self._tickets.pop(ticket, (None, None, 0))
        if run is None:
            return arrive_failed(
                StreamError(
                    "batch: its pass was left, and another one has begun",
                    remedy="read the DataLoader by one loop",
                )
            )
        run.tickets.discard(ticket)
        StepMark(run.opened.beginning.arrivals, step).note()
        return batch

    def close_copy(self) -> None:
        """Close the descriptors that a forked process inherited from its parent's server.

        They would keep the sockets of a dead parent open.
        """
        for connection in list(self._connections):
            connection.close()
        self._listener.close()

    def _end(self, run: PoolRun, reason: str) -> None:
        run.close(reason)
        while run.tickets:
            self._tickets.pop(run.tickets.pop(), None)

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection = self._listener.accept()
            except OSError:  # no descriptor is free, or the listener was closed
                time.sleep(0 if self._closed else 0.05)
                continue
            with self.lock:
                self._connections.add(connection)
            self.run_thread(self._serve, connection)
        self._hang_up()  # connections accepted while closing

    def _serve(self, connection: Any) -> None:
        """Serve one worker until it is gone."""
        position: tuple[PoolRun, Any] | None = None
        key = _key() if self._key is None else self._key
        try:
            sockets.deliver_challenge(connection, key)
            sockets.answer_challenge(connection, key)
            while True:
                request = connection.recv()
                try:
                    if request[0] == "begin":
                        self.leave(position)
                        position = None
                        run, *answer = self.joined(*request[1:])
                        position = run, request[2]
                        SocketMessage(("begun", *answer)).send(connection)
                    else:
                        self._next(position, *request[1:]).send(connection)
                except (EOFError, OSError):
                    raise
                except Exception as error:  # noqa: BLE001  # the worker raises it
                    SocketMessage(("error", _travelling(error))).send(connection)
        except (EOFError, OSError, AuthenticationError):
            pass
        finally:
            if self._closed:
                _say_goodbye(connection, position)
            with self.lock:
                self._connections.discard(connection)
                connection.close()
            self.leave(position)

    def joined(self, key: Hashable, worker: Any, workers: int, progress: Any) -> tuple[Any, ...]:
        """Return the run that a worker joins, and the worker's beginning in it."""
        with self.lock:
            if self._closed:
                raise ServerLeft(f"worker: {_GONE}", remedy=_KEEP)
            run = self._runs.get(key)
            if run is None:
                opened = self._open_pass(worker, workers, progress)
                run = self._runs[key] = self._run(opened, key, workers, self)
            elif not run.admits(progress):  # reopen the same pass for late workers
                run = self._runs[key] = run.reopened(self)
            return run, *run.join(worker, progress)

    def leave(self, position: tuple[PoolRun, Any] | None) -> None:
        """Remove a worker from its run; the last one ends the run."""
        if position is None:
            return
        run, worker = position
        with self.lock:
            if not run.leave(worker):
                return
            self._end(run, "all workers have left it")
            if run.is_complete and self._runs.get(run.key) is run:
                del self._runs[run.key]
            for key in [key for key, other in self._runs.items() if other.closed][
                :-_MOST_IDLE_RUNS
            ]:
                del self._runs[key]

    def _next(
        self, position: tuple[PoolRun, Any] | None, step: int, in_place: bool
    ) -> SocketMessage:
        if position is None:
            raise StreamError(
                "worker: asked for a batch before it began a pass",
                remedy="iterate over the dataset first",
            )
        run, worker = position
        batch = run.get(worker, step, in_place)
        if isinstance(batch, SocketMessage):
            return batch
        if batch is END or batch is MISSED:
            return SocketMessage(("end",) if batch is END else ("missed",))
        if not in_place:
            return SocketMessage(("batch", share_batch(batch)))
        ticket = next(self._ticket_numbers)
        with self.lock:
            if not run.closed:
                self._tickets[ticket] = run, batch, step
                run.tickets.add(ticket)
        return SocketMessage(("ticket", self.number, ticket))

    def _hang_up(self) -> None:
        """End the connections on which other threads wait; closing them would not wake those
        threads.
        """
        with self.lock:  # once a connection is closed, its number may belong to another file
            for connection in self._connections:
                # It may be a Windows pipe. A response in progress still arrives.
                with suppress(OSError, AttributeError):
                    same = socket.socket(fileno=connection.fileno())
                    try:
                        same.shutdown(socket.SHUT_RD)
                    finally:
                        same.detach()


class PoolRun:
    """One pass of a pool, read once in a thread that stays slightly ahead of what its workers
    request.
    """

    def __init__(self, opened: Opened, key: Hashable, workers: int, server: Server) -> None:
        self.key = key
        self.tickets: set[int] = set()
        self.opened = opened
        self._workers = workers
        self._ahead = workers  # steps that are read before they are asked for
        self.next: dict[Any, int] = {}  # the next step of each worker that ever joined
        self._there: set[Any] = set()  # workers that are connected
        self._run_thread = server.run_thread
        self._changed = threading.Condition(server.lock)
        self._ready: dict[int, Any] = {}
        self._last_requested = -1
        self._is_reading = self._has_ended = self._is_complete_row = False
        # from the progress of each worker: one that has all its batches begins no pass
        self._is_resumed = False
        self.closed = ""  # why no worker gets a batch any more
        self._error: BaseException | None = None

    def admits(self, progress: Any) -> bool:  # noqa: ARG002 - each has its own steps
        """Return whether a worker can still join; no if the others of its pool have gone."""
        return not self.closed

    def reopened(self, server: Server) -> PoolRun:
        """Return a run of the same pass for those that come late."""
        run = type(self)(self.opened, self.key, self._workers, server)
        run.next = self.next
        return run

    def answers_ahead(self, worker: Any) -> Iterator[SocketMessage]:  # noqa: ARG002 - it asks again elsewhere
        """Yield the answers to what a worker has not asked for yet, as far as they are known."""
        yield from ()

    @property
    def is_complete(self) -> bool:
        """True if every worker of the pool has joined."""
        return len(self.next) == self._workers

    def join(self, worker: Any, progress: Any) -> Beginning:
        """Add a worker and return its beginning: its first step, or the step after its own
        progress.
        """
        beginning = self.opened.beginning
        if progress is None:
            first = beginning.first + worker
        else:
            first = worker + progress.batches * self._workers
            self._is_resumed = True
        with self._changed:
            self.next[worker] = first
            self._there.add(worker)
            self._changed.notify_all()
        return beginning._replace(first=first)

    def leave(self, worker: Any) -> bool:
        """Remove a worker; return whether it was the last one."""
        with self._changed:
            self._there.discard(worker)
            return not self._there

    def get(self, worker: Any, step: int, in_place: bool) -> Any:
        """Return the batch of a step, once for each worker that needs it; `END` after the last
        step, and `MISSED` for one that is not kept any more.

        Raises what reading raised, and what `check_while_waiting` does.
        """
        with self._changed:
            self.next[worker] = step
            self._last_requested = max(self._last_requested, step)
            if not self._is_reading:
                self._is_reading = True
                self._run_thread(self._read_ahead, in_place, reads=True)
            self._changed.notify_all()
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: self._is_known(step), timeout=CHECK_S):
                    answer = self._take_batch(worker, step)
                    break
            check_while_waiting()
        if answer is END:
            self._check_end()
        return answer

    def _check_end(self) -> None:
        """Raise if some workers of the pool never begin the pass, whose batches nobody takes.

        A wrapper that reads in one worker alone would lose them without a word.
        """
        with self._changed:
            if self._changed.wait_for(self._loses_nothing, timeout=_COME_S):
                return
            lost = len(self._ready)
            absent = min(set(range(self._workers)) - self.next.keys())
        raise StreamError(
            f"{lost:,} batches were read for worker {absent} of {self._workers}, which has not"
            " begun the pass: what wraps the dataset reads it in some workers alone",
            remedy="iterate over the dataset in every worker, or read it with num_workers=0",
        )

    def _loses_nothing(self) -> bool:
        """Return whether all batches that were read are those of workers that are there."""
        return bool(self.closed or self._is_resumed or self.is_complete or not self._ready)

    def _is_known(self, step: int) -> bool:
        return step in self._ready or self._has_ended or bool(self.closed)

    def _take_batch(self, worker: Any, step: int) -> Any:
        """Return a batch to its worker, or what is known of it."""
        if step in self._ready:
            self.next[worker] = step + self._workers
            return self._ready.pop(step)
        if self._error is not None:
            raise self._error
        if self.closed:
            raise ServerLeft(f"worker {worker}: {self.closed}", remedy=_KEEP)
        return END

    def close(self, reason: str) -> None:
        """End the run: no worker gets another batch."""
        with self._changed:
            self.closed = self.closed or reason
            self._ready.clear()
            self._changed.notify_all()

    def _read_ahead(self, in_place: bool) -> None:
        try:
            first = self._first_step()
            with closing(self.opened.read(first, in_place)) as batches:
                for step, batch in enumerate(batches, start=first):
                    retained = self._retained(batch)
                    with self._changed:
                        if self.closed:
                            return
                        self._ready[step] = retained
                        self._free()
                        self._changed.notify_all()
                        while not self.closed and step > self._last_requested + self._ahead:
                            self._changed.wait()
                    del batch, retained
            self._is_complete_row = True
        except BaseException as error:  # noqa: BLE001  # raised in the workers
            self._error = error
        finally:
            with self._changed:
                self._has_ended = True
                self._changed.notify_all()

    def _first_step(self) -> int:
        """Return the first step that is read, once the workers are there."""
        with self._changed:
            # Workers are forked one by one. A thread that reads meanwhile could hold a library's
            # lock, which the fork would copy in a locked state. So wait briefly for the last worker
            # before reading.
            self._changed.wait_for(lambda: self.closed or self.is_complete, timeout=_START_S)
            begin = self.opened.beginning.first
            if self.is_complete:
                late = []
            else:
                late = [begin]
            return max(begin, min([*self.next.values(), *late]))

    def _retained(self, batch: Any) -> Any:
        """Return a batch as it is kept for its worker."""
        return batch

    def _free(self) -> None:
        """Drop batches that are not taken; each worker takes its own."""


class Client:
    """The worker's side of a connection.

    pool: identifies the workers of one DataLoader. key: what the server wants to be known; None:
    that of this process. look: called while it waits; raises `EOFError` if it waits in vain. None:
    looks whether the parent lives.
    """

    def __init__(
        self,
        address: Any,
        *,
        pool: Hashable,
        worker: Any,
        workers: int,
        key: bytes | None = None,
        look: Callable[[], None] | None = None,
    ) -> None:
        self._pool = pool
        self._worker = worker
        self._workers = workers
        self._passes = 0
        self._process, self._parent = os.getpid(), os.getppid()
        self._look = self._look_for_parent if look is None else look
        try:
            self._connection = sockets.Client(address, authkey=_key() if key is None else key)
        except (OSError, EOFError, AuthenticationError) as error:
            raise ServerGone(
                f"worker {worker}: the process that reads for it cannot be reached"
                f" ({type(error).__name__}: {error})",
                remedy="keep the dataset alive in the process whose DataLoader started the worker",
            ) from error
        _CLIENTS.add(self)

    def begin(self, progress: Any) -> Beginning:
        """Begin a pass. progress: that of this worker before it was stopped, or None."""
        self._passes += 1
        _, *beginning = self.ask(
            "begin", (self._pool, self._passes), self._worker, self._workers, progress
        )
        return Beginning(*beginning)

    def batches(self, beginning: Beginning, *, in_place: bool) -> Generator[Any, None, None]:
        """Yield this worker's batches of a pass. in_place: as tickets; see the module docstring."""
        for step in itertools.count(beginning.first, self._workers):
            answer, *values = self.ask("next", step, in_place)
            if answer == "end":
                return
            # the server could not send it
            if answer == "batch" and isinstance(values[0], ExceptionWrapper):
                values[0].reraise()  # type: ignore[no-untyped-call]  # torch leaves it so
            yield Ticket(*values) if answer == "ticket" else values[0]

    def close(self) -> None:
        """Leave the pass."""
        self._connection.close()

    def hang_up(self) -> None:
        """End a wait for an answer in another thread."""
        with suppress(OSError), socket.socket(fileno=os.dup(self._connection.fileno())) as same:
            same.shutdown(socket.SHUT_RDWR)

    def ask(self, *request: Any) -> list[Any]:
        """Return the answer to a request.

        Raises what the server answers with, `ServerLeft` for one that was closed, and `ServerGone`
        if the connection has ended.
        """
        if self._process != os.getpid():
            raise StreamError(
                f"worker {self._worker}: process {os.getpid()} is a fork of the worker, and"
                " cannot read for it",
                remedy="iterate over the dataset in the worker itself",
            )
        try:
            with suppress(BrokenPipeError):  # a server that has left answered in advance
                self._connection.send(request)
            while not self._connection.poll(_LOOK_S):
                self._look()
            answer, *values = receive_message(self._connection)
        except (OSError, EOFError) as error:
            raise ServerGone(
                f"worker {self._worker}: the process that reads for it has ended or left the"
                f" pass ({type(error).__name__})",
                remedy="resume from the last state",
            ) from error
        if answer == "error":
            raise values[0]
        return [answer, *values]

    def _look_for_parent(self) -> None:
        # another process may hold the parent's end of the socket open
        if os.getppid() != self._parent:
            raise EOFError


class Ticket:
    """A reference to a batch on its way from a worker to the loop; unpickled there it is
    the batch.
    """

    def __init__(self, server: int, ticket: int) -> None:
        self._server = server
        self._ticket = ticket

    def __reduce__(self) -> Any:
        return _redeemed, (self._server, self._ticket)


def _redeemed(server: int, ticket: int) -> Any:
    running = _SERVERS.get(server)
    if running is None:
        return arrive_failed(
            StreamError(
                "batch: the dataset that read it is gone or belongs to another process",
                remedy=_KEEP,
            )
        )
    return running.redeem(ticket)


def _say_goodbye(connection: Any, position: tuple[PoolRun, Any] | None) -> None:
    """Send a client the answers to what it has not asked for yet: it may need no more."""
    client = "worker"
    seconds = struct.pack("ll", int(_GOODBYE_S), 0)
    with suppress(OSError, AttributeError):
        with socket.socket(fileno=os.dup(connection.fileno())) as same:
            same.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, seconds)
        if position is not None:
            run, worker = position
            client = f"worker {worker}"
            for answer in run.answers_ahead(worker):
                answer.send(connection)
        goodbye = ServerLeft(f"{client}: {_GONE}", remedy=_KEEP)
        SocketMessage(("error", goodbye)).send(connection)


def _travelling(error: BaseException) -> BaseException:
    """Return an error that a worker can unpickle: the error itself, or its text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001  # any error may fail to pickle
        return StreamError(f"{type(error).__name__}: {error}")
    return error


def _listener() -> sockets.Listener:
    """Open a local socket; it does not authenticate connections.

    On Linux it has no file, and ends with its process however that ends. Elsewhere it is in a
    directory that only this user may enter.
    """
    if os.name != "posix":
        return sockets.Listener(None, backlog=128)
    if not sys.platform.startswith("linux"):
        return sockets.Listener(None, "AF_UNIX", backlog=128)
    return sockets.Listener(
        f"\0headrace-{os.getpid()}-{secrets.token_hex(16)}", "AF_UNIX", backlog=128
    )


def _key() -> bytes:
    return bytes(current_process().authkey)


def freeze_inherited() -> None:
    """Freeze all current objects of this worker, including its parent's garbage, against
    collection; once per process.

    A training process holds garbage in cycles, such as the DDP model of an earlier training, and a
    fork has a copy of it. Once the worker's collector frees that, its finalizers run in the worker.
    A gloo process group then waits forever for threads that do not survive a fork, or crashes.
    """
    global _frozen_in
    if _frozen_in != os.getpid():
        _frozen_in = os.getpid()
        gc.freeze()


def _after_fork() -> None:
    for server in list(_SERVERS.values()):
        server.close_copy()
    for client in list(_CLIENTS):
        client.close()


def _at_exit() -> None:
    """End all servers of this process, and wait for their threads; a fork has none of them.

    The interpreter ends daemon threads wherever they are. Inside C++ code of pyarrow or torch that
    ends the process with "terminate called without an active exception". This must come before the
    interpreter ends the pools of threads that decode, or a read fails for want of them.
    """
    for client in list(_CLIENTS):
        client.hang_up()
    servers = [server for server in _SERVERS.values() if server.is_here]
    for server in servers:
        server.close()
    for server in servers:
        server.join(_END_S)


# `concurrent.futures` ends its pools in the same way; the last that registers is called first
getattr(threading, "_register_atexit", atexit.register)(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
