"""Know which processes of a group on this machine are alive, without the group's store.

Any two of them hold a Unix socket to each other, which the kernel closes when one of them ends,
however it ends. Before that, a process that ends in order marks its record, an anonymous file that
it handed to the others through the sockets: what stands there outlives its writer. So

    the socket is open                   alive, even if it is suspended or does not answer
    it ended, the record says "left"     ended in order, or left the group
    it ended, the record says "stopped"  ended because of an error of a rank, which is named already
    it ended, the record says else       died; the record says in which epoch

A PID says none of this: it may be used again, and another container's cannot be seen. A key in the
store would not do either, because the store ends together with the process that keeps it.

Sockets have random names without a place in a file system (Linux), so nothing is left behind and
jobs do not meet. The names stand in the store of the group:

    headrace/here/<machine>             counts the processes of one machine
    headrace/here/<machine>/<i>         number in the group, PID and socket of the i-th of them
    headrace/here/<machine>/<i>/left    set by a process that ends in order
    headrace/here/<machine>/<i>/gone    counts who noticed a death; the first one reports it

A machine is a kernel, its network namespace and a user; a socket of another user is refused. Each
process connects to those that were counted before it, so n of them have n (n - 1) / 2 sockets, and
each process n descriptors more for the records. Afterwards nothing is asked of the store, and a
look costs one system call.

A forked child inherits the sockets and would hold them open when its parent dies. It closes them
before it runs anything else, and no fork happens while one of them is being made. Children that
start in any other way inherit none.

On systems other than Linux nothing is known of the death of a process.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import select
import socket
import struct
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from weakref import WeakSet

from headrace.errors import StreamError
from headrace.machine import boot_id
from headrace.stream.ranks.topology import Topology

log = logging.getLogger("headrace")

_RECORD_BYTES = 256
_MEET_S = 5.0  # between counting itself and naming its socket, a process needs a millisecond
_MOST_WAITING = 1024  # connections that nobody has accepted yet
_END = select.POLLIN | select.POLLHUP | select.POLLERR


class RankGone(StreamError):
    """The process of another rank has died: it ended, and had not said that it would.

    rank: that it read as. process: its number in the process group. pid: on its machine.
    """

    rank: int
    process: int
    pid: int

    def __init__(self, *problems: str, rank: int, process: int, pid: int, remedy: str) -> None:
        super().__init__(*problems, remedy=remedy)
        self.rank = rank
        self.process = process
        self.pid = pid


@dataclass(frozen=True, kw_only=True)
class LastRecord:
    """The last words of a process.

    phase: "pass", "between" passes, "stopped" by an error that the others know, or "left".
    epoch: of the pass that it reads.
    """

    rank: int
    world_size: int
    epoch: int
    phase: str


@dataclass(kw_only=True)
class Peer:
    """Another process of the group on this machine.

    number: among those of the machine; process: in the group. record: descriptor, None until it
    has arrived. last: once it has ended.
    """

    number: int
    process: int
    pid: int
    socket: socket.socket
    record: int | None = None
    last: LastRecord | None = None

    def close(self) -> None:
        self.socket.close()
        if self.record is not None:
            os.close(self.record)
            self.record = None


class LocalPeers:
    """The other processes of a group on this machine.

    died: ended without a word; left: ended in order; by number in the group. Safe to call from any
    thread. Only `join` asks the store, and `look` if a process ended while it joined.
    """

    def __init__(self, store: Any, prefix: str, *, process: int, processes: int) -> None:
        self._store = store
        self.prefix = prefix
        self.process = process
        self.died: dict[int, Peer] = {}
        self.left: dict[int, Peer] = {}
        self._alive: dict[int, Peer] = {}  # by descriptor of the socket
        self._unnamed: dict[int, socket.socket] = {}  # accepted, and not named yet
        self._undecided: set[int] = set()  # processes that ended; another thread asks the store how
        self._passes: dict[int, tuple[Topology, int]] = {}  # those that this process reads
        self._topology = Topology(rank=process, world_size=processes)
        self._idle = "between"
        self._owner = os.getpid()
        self._is_closed = False
        with _FORKING:
            _ALL.add(self)
            self._poll = select.poll()
            self._record = os.memfd_create("headrace-rank")
            self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.address = f"headrace-{secrets.token_hex(16)}"
            self._listener.bind(f"\0{self.address}")
            self._listener.listen(_MOST_WAITING)
            self._listener.setblocking(False)
            self._poll.register(self._listener, _END)
            self._write(self._idle)
        self.number = int(store.add(prefix, 1))
        store.set(f"{prefix}/{self.number}", json.dumps([process, self._owner, self.address]))

    @classmethod
    def join(cls, store: Any, *, process: int, processes: int) -> Self | None:
        """Add this process to those of its machine; None if the machine cannot do it.

        Returns once it is connected to all that were counted before.
        """
        if not sys.platform.startswith("linux"):
            return None
        try:
            namespace = Path("/proc/self/ns/net").readlink()
            prefix = f"headrace/here/{boot_id()}/{namespace}/{os.getuid()}"
            peers = cls(store, prefix, process=process, processes=processes)
        except OSError as error:
            log.warning("the death of a rank on this machine will not be noticed: %s", error)
            return None
        peers.meet()
        return peers

    def __len__(self) -> int:
        """Return how many are alive, without this process."""
        return len(self._alive)

    def knows(self, process: int) -> bool:
        """Return whether a process of the group is, or was, on this machine."""
        if process == self.process:
            return True
        with _FORKING:
            alive = any(peer.process == process for peer in self._alive.values())
            if alive or process in self._undecided:
                return True
        return process in self.died or process in self.left

    def meet(self) -> None:
        """Connect to each process that was counted before this one."""
        deadline = time.monotonic() + _MEET_S
        for number in range(1, self.number):
            key = f"{self.prefix}/{number}"
            while not self._store.check([key]):
                if time.monotonic() > deadline:
                    log.warning("process %d of this machine did not say its name", number)
                    break
                time.sleep(0.002)
            else:
                self._connect(number, *json.loads(self._store.get(key)))

    def enter(self, reading: object, topology: Topology, *, epoch: int) -> None:
        """Note that this process starts a pass. reading: an object that stands for the pass."""
        self._topology = topology
        self._idle = "between"
        self._passes[id(reading)] = topology, epoch
        self._write("pass")

    def stop(self, reading: object) -> None:
        """Note that this process ends a pass because of an error that the others know."""
        self._idle = "stopped"
        self._passes.pop(id(reading), None)
        self._write("pass" if self._passes else self._idle)
        with _FORKING:
            if not self._is_closed:
                self._accept()  # it may end now: who has just connected gets the record

    def leave(self, reading: object) -> None:
        """Note that this process has ended a pass; a second call does nothing."""
        if self._passes.pop(id(reading), None) is not None:
            self._write("pass" if self._passes else self._idle)

    def look(self) -> list[Peer]:
        """Return those that have died since the last look of any thread."""
        unknown: list[Peer] = []
        ended: list[Peer] = []
        with _FORKING:
            if self._is_closed:
                return []
            # a process that connected and died is accepted, then named, then found dead, at once
            for _ in range(3):
                for descriptor, _events in self._poll.poll(0):
                    peer = self._ended(descriptor)
                    if peer is not None:
                        (unknown if peer.last is None else ended).append(peer)
        # it ended before the sockets were named: its record has not arrived
        for peer in unknown:
            if self._has_left(peer.number):
                peer.last = LastRecord(
                    rank=peer.process, world_size=peer.process + 1, epoch=0, phase="left"
                )
            ended.append(peer)
        died = []
        for peer in ended:
            if peer.last is not None and peer.last.phase in ("left", "stopped"):
                self.left[peer.process] = peer
            else:
                self.died[peer.process] = peer
                died.append(peer)
            self._undecided.discard(peer.process)
        return died

    def _ended(self, descriptor: int) -> Peer | None:
        """Read what a socket has to say; return its process if that has ended.

        Its `last` is None if its record has not arrived.
        """
        if descriptor == self._listener.fileno():
            self._accept()
            return None
        if descriptor in self._unnamed:
            self._name(descriptor)
            return None
        peer = self._alive[descriptor]
        if not self._hears(peer):
            return None
        self._poll.unregister(descriptor)
        del self._alive[descriptor]
        self._undecided.add(peer.process)
        peer.last = self._last_of(peer)
        peer.close()
        return peer

    def is_first_to_report(self, peer: Peer) -> bool:
        """Return whether no other process of this machine has told the others of this death."""
        return int(self._store.add(f"{self.prefix}/{peer.number}/gone", 1)) == 1

    def say_goodbye(self) -> None:
        """Tell the store that this process ends in order, and `close`."""
        if not self._is_closed:
            with suppress(RuntimeError):  # the store may have ended before
                self._store.set(f"{self.prefix}/{self.number}/left", "yes")
        self.close()

    def close(self) -> None:
        """Mark the record, and close all sockets; a second call does nothing, nor does one in a
        fork.
        """
        if self._is_closed or self._owner != os.getpid():
            return
        self._write("left")
        with _FORKING:
            if not self._is_closed:
                self._accept()  # they get the record
                self._drop()

    def _drop(self) -> None:
        """Close the descriptors, without a word; also in a fork, where the parent goes on."""
        self._is_closed = True
        self._listener.close()
        os.close(self._record)
        for peer in self._alive.values():
            peer.close()
        for stranger in self._unnamed.values():
            stranger.close()
        self._alive.clear()
        self._unnamed.clear()

    def _write(self, phase: str) -> None:
        topology, epoch = next(iter(self._passes.values()), (self._topology, 0))
        record = json.dumps([topology.rank, topology.world_size, epoch, phase])
        with _FORKING:
            if not self._is_closed:
                os.pwrite(self._record, record.ljust(_RECORD_BYTES).encode(), 0)

    def _connect(self, number: int, process: int, pid: int, address: str) -> None:
        with _FORKING:
            if self._is_closed:
                return
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            peer = Peer(number=number, process=process, pid=pid, socket=connection)
            try:
                connection.connect(f"\0{address}")
                if not _is_of_this_user(connection):
                    raise OSError("its name was taken by another user")
                self._greet(connection, address)
            except OSError:  # it has ended: its socket is as one that was closed
                connection.close()
                connection, other = socket.socketpair()
                other.close()
                peer.socket = connection
            connection.setblocking(False)
            self._alive[connection.fileno()] = peer
            self._poll.register(connection, _END)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # none waits
                return
            connection.setblocking(False)
            if not _is_of_this_user(connection):
                connection.close()
                continue
            with suppress(OSError):  # it has ended already: what it sent can still be read
                self._greet(connection, self.address)
            self._unnamed[connection.fileno()] = connection
            self._poll.register(connection, _END)

    def _greet(self, connection: socket.socket, address: str) -> None:
        """Send who this process is, with its record. address: proves that it knows the group."""
        words = json.dumps([address, self.number, self.process, self._owner])
        socket.send_fds(connection, [words.ljust(_RECORD_BYTES).encode()], [self._record])

    def _greeting(self, connection: socket.socket) -> tuple[list[Any] | None, int | None]:
        """Return what a process said of itself, with its record; None twice once it has ended.

        Raises `BlockingIOError` if it has not said anything yet.
        """
        try:
            words, records, _, _ = socket.recv_fds(connection, _RECORD_BYTES, 1)
        except ConnectionError:
            return None, None
        if len(words) == _RECORD_BYTES and len(records) == 1:
            return json.loads(words), records[0]
        for record in records:
            os.close(record)
        return None, None

    def _name(self, descriptor: int) -> None:
        connection = self._unnamed[descriptor]
        try:
            words, record = self._greeting(connection)
        except BlockingIOError:
            return
        del self._unnamed[descriptor]
        if words is None or record is None or words[0] != self.address:
            self._poll.unregister(descriptor)
            connection.close()
            return
        _, number, process, pid = words
        self._alive[descriptor] = Peer(
            number=number, process=process, pid=pid, socket=connection, record=record
        )

    def _hears(self, peer: Peer) -> bool:
        """Return whether a process has ended; it sends nothing but its greeting."""
        try:
            words, record = self._greeting(peer.socket)
        except BlockingIOError:
            return False
        if words is None:
            return True
        peer.record = record
        return False

    def _last_of(self, peer: Peer) -> LastRecord | None:
        if peer.record is None:
            return None
        text = os.pread(peer.record, _RECORD_BYTES, 0)
        rank, world_size, epoch, phase = json.loads(text)
        return LastRecord(rank=rank, world_size=world_size, epoch=epoch, phase=phase)

    def _has_left(self, number: int) -> bool:
        try:
            return bool(self._store.check([f"{self.prefix}/{number}/left"]))
        except RuntimeError:
            return False


def _is_of_this_user(connection: socket.socket) -> bool:
    size = struct.calcsize("3i")  # process, user, group
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return int(struct.unpack("3i", credentials)[1]) == os.getuid()


# Held while descriptors are made or closed, and by a fork: no child inherits one that it does not
# know of.
_FORKING = threading.RLock()
_ALL: WeakSet[LocalPeers] = WeakSet()


def _in_child() -> None:
    for peers in list(_ALL):
        if not peers._is_closed:
            peers._drop()
    _FORKING.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_FORKING.acquire, after_in_parent=_FORKING.release, after_in_child=_in_child
    )
