"""Read a pass once for the processes of a machine that read as one rank.

Along the dimensions of a mesh that do not share the rows, processes hold parts of one replica of
the model, and all of them need the same batches. One of them reads and serves, and the others,
its partners, pull:

    reader    threads decode and gather ─▶ batches of a pass, in order ─▶ its own loop
    partner                                     └─ a socket, memory beside it ─▶ its loop

It is the server that workers use (see `serving`); a worker takes its own steps, a partner all. The
first of a machine that begins a pass becomes the reader, and says so in the store of the group:

    headrace/shared/<failures>/<settings>/<stream>/<machine>/<rank>    address and key of its server

**Nobody waits for another loop.** There is no collective, and no request of a loop waits for more
than reading. A batch is freed when every partner has taken it or left; for one that falls far
behind, or has not come yet, so many are kept as `_MOST_STEPS` and `_MOST_BYTES` say. Whoever needs
one that is not kept any more gets the pass read again from there.

**Endings.** An error of reading reaches all who ask for that batch. If the reader ends in order, or
lets its stream go, it hands out what it has, and each partner reads the rest by itself: the batches
are a function of the pass. If the reader dies, the watch over the ranks of the machine names it,
and if a partner dies, the reader hears of it in the same way.
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
import sys
import time
import weakref
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from torch._utils import ExceptionWrapper

from headrace.digest import canonical_json, sha256_hex
from headrace.stream.loader.passes import Pass, Passes, Reading
from headrace.stream.ranks.group import Group, default_group, text_of
from headrace.stream.ranks.stats import Progress
from headrace.stream.read.ahead import check_while_waiting
from headrace.stream.workers.parcel import SocketMessage, UnmadeBatch, share_batch, unmade_batches
from headrace.stream.workers.serving import (
    END,
    MISSED,
    Beginning,
    Client,
    Opened,
    PoolRun,
    Server,
    ServerGone,
    ServerLeft,
)

if TYPE_CHECKING:
    from headrace.stream.ranks.topology import Topology

_MOST_STEPS = 16  # kept for partners that are behind
_LEAST_STEPS = 4  # whatever their bytes
_MOST_BYTES = 1 << 27
_FATE_S = 2.0  # the kernel closes the descriptors of a process one by one
_LOOK_S = 0.05
_SERIALS = itertools.count()
_OWN = (  # options that say how one process reads and uses its batches
    "transform",
    "memory",
    "device",
    "stall_seconds",
    "prefetch_bytes",
    "prefetch_blocks",
    "read_threads",
    "cache",
    "cache_dir",
    "cache_bytes",
    "verify",
    "mask_entities",
)

Member = tuple[int, int]  # a process of the group, and a number of its loop


@dataclass(frozen=True)
class _Joining:
    """What a member brings. start: the state at the beginning of the pass. first: the first step
    that it needs. current: the pass, if the member is in the process of the server.
    """

    start: Mapping[str, Any]
    first: int
    current: Pass | None = None

    def __reduce__(self) -> Any:
        return _Joining, (self.start, self.first)


class Partners:
    """The passes of one stream that the processes of a rank share on this machine.

    reader: the process of the group that reads the present pass for this one; None: nobody but this
    one. error: what its reading raised here.
    """

    def __init__(self, passes: Passes, topology: Topology) -> None:
        self._passes = passes
        self._topology = topology
        self._server: Server | None = None
        self._announced = ""  # what is said of this process's server
        self._named: tuple[weakref.ref[Group], int, str] | None = None
        self.reader: int | None = None
        self.error: Exception | None = None

    def __reduce__(self) -> Any:
        return Partners, (self._passes, self._topology)

    def close(self) -> None:
        """Stop serving; partners read what is left by themselves."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def batches(
        self, current: Pass, reading: Reading, progress: Progress, *, first: int
    ) -> Generator[Any, None, None]:
        """Yield the batches of a pass from number `first` on, as `Pass.batches` does.

        progress: counts the blocks that are read here, for whomever.
        """
        step = first
        start = current.state_after(0)
        while True:
            member = self._joined(_Joining(start, step, current), progress)
            if member is None:
                break
            self.reader = member.reader
            try:
                with closing(member):
                    while True:
                        batch = member.take(step)
                        if batch is END:
                            return
                        if batch is MISSED:
                            break
                        step += 1
                        if isinstance(batch, UnmadeBatch) and reading.make is None:
                            batch = batch.result()
                        yield batch
                        del batch
            except ServerLeft:
                break
            except ServerGone:
                member.await_fate()
                break
            except Exception as error:
                self.error = error
                raise
        self.reader = None
        yield from current.batches(reading, first=step)

    def _joined(self, joining: _Joining, progress: Progress) -> _Here | _There | None:
        """Join the reader of this machine, or become it; None if there can be none."""
        group = default_group()
        if group is None or group.local is None or not group.has_store:
            return None
        key = self._key(group)
        with suppress(RuntimeError):  # the store has gone, which the watch says
            seen = text_of(group.store.get(key)) if group.store.check([key]) else ""
            for _ in range(self._topology.partners + 1):
                if seen and seen == self._announced and self._server is not None:
                    return _Here(self._server, group, self._topology, joining, progress)
                if seen:
                    # where the reader has gone, this process takes its place
                    with suppress(ServerGone, ServerLeft):
                        return _There(seen, group, self._topology, joining)
                server = self._served(group)
                agreed = text_of(group.store.compare_set(key, seen, self._announced))
                if agreed != self._announced:
                    server.close()
                    self._server = None
                seen = agreed
        return None

    def _served(self, group: Group) -> Server:
        """Return the server of this process, which may be new."""
        if self._server is not None and self._server.is_here:
            return self._server
        key = secrets.token_bytes(32)
        server = self._server = Server(_opener(self._passes), run=_SharedRun, key=key)
        weakref.finalize(self, server.close)
        self._announced = json.dumps([os.fsdecode(server.address), key.hex(), group.process])
        return server

    def _key(self, group: Group) -> str:
        """Return where the reader of this machine is named, the same in all partners."""
        named = self._named
        if named is not None and named[0]() is group and named[1] == group.settled:
            return named[2]
        topology = self._topology
        settings = sha256_hex(canonical_json(_settings(self._passes, topology)))[:16]
        group.streams[group.settled, f"shared {settings}"] += 1
        number = group.streams[group.settled, f"shared {settings}"]
        assert group.local is not None
        machine = sha256_hex(group.local.prefix.encode())[:16]
        key = f"headrace/shared/{group.settled}/{settings}/{number}/{machine}/{topology.rank}"
        self._named = weakref.ref(group), group.settled, key
        return key


class _Here:
    """A loop of the process that reads."""

    def __init__(
        self,
        server: Server,
        group: Group,
        topology: Topology,
        joining: _Joining,
        progress: Progress,
    ) -> None:
        self._server = server
        self.reader = group.process
        self._me = group.process, next(_SERIALS)
        self._run: _SharedRun
        self._run, *_ = server.joined(_name(joining), self._me, topology.partners, joining)
        assert self._run.opened.progress is not None
        progress.count_blocks_of(self._run.opened.progress)

    def take(self, step: int) -> Any:
        """Return the batch of a step, END or MISSED."""
        answer = self._run.get(self._me, step, False)
        return answer.batch() if isinstance(answer, _SharedStep) else answer

    def await_fate(self) -> None:
        """A server of this process has no fate of its own."""

    def close(self) -> None:
        """Leave the pass."""
        self._server.leave((self._run, self._me))


class _There:
    """A loop of a process that pulls. announced: what the reader says in the store."""

    def __init__(self, announced: str, group: Group, topology: Topology, joining: _Joining) -> None:
        address, key, self.reader = json.loads(announced)
        self._group = group
        me = group.process, next(_SERIALS)
        self._client = Client(
            address,
            pool="partners",
            worker=me,
            workers=topology.partners,
            key=bytes.fromhex(key),
            look=check_while_waiting,
        )
        try:
            self._client.ask("begin", _name(joining), me, topology.partners, joining)
        except BaseException:
            self._client.close()
            raise

    def take(self, step: int) -> Any:
        """Return the batch of a step, END or MISSED."""
        answer, *values = self._client.ask("next", step, False)
        if answer == "batch":
            if isinstance(values[0], ExceptionWrapper):
                values[0].reraise()  # type: ignore[no-untyped-call]  # torch leaves it so
            return values[0]
        return END if answer == "end" else MISSED

    def await_fate(self) -> None:
        """Wait until it is known whether the reader has died.

        Raises what the watch of this pass does if it has.
        """
        local = self._group.local
        deadline = time.monotonic() + _FATE_S
        while local is not None and time.monotonic() < deadline:
            self._group.tell(self._group.look())
            check_while_waiting()
            if self.reader in local.died or self.reader in local.left:
                return
            time.sleep(_LOOK_S)

    def close(self) -> None:
        """Leave the pass."""
        self._client.close()


class _SharedStep(SocketMessage):
    """A batch that is kept for partners: as they get it, and as it was made."""

    def __init__(self, batch: Any) -> None:
        super().__init__(("batch", share_batch(batch)))
        self._ready_batch = [batch]

    def batch(self) -> Any:
        """Return the batch for a loop of this process, which may write to it."""
        try:
            return self._ready_batch.pop()
        except IndexError:  # another loop has it
            return self.value()[1]


class _SharedRun(PoolRun):
    """A pass that each of its members takes whole. Members are those of `_Here` and `_There`."""

    def __init__(self, opened: Opened, key: Any, workers: int, server: Server) -> None:
        super().__init__(opened, key, workers, server)
        self._ahead = 1
        self._floor = -1  # batches before it are not kept any more; -1: nobody has joined

    def admits(self, progress: _Joining) -> bool:
        return not self.closed and self._error is None and progress.first >= self._floor

    def reopened(self, server: Server) -> PoolRun:
        return type(self)(self.opened, self.key, self._workers, server)

    @property
    def is_complete(self) -> bool:
        return len({process for process, _ in self.next}) == self._workers

    def join(self, worker: Member, progress: _Joining) -> Beginning:
        with self._changed:
            if self._floor < 0:
                self._floor = progress.first
            self.next[worker] = progress.first
            self._there.add(worker)
        return self.opened.beginning._replace(first=progress.first)

    def leave(self, worker: Member) -> bool:
        with self._changed:
            is_last = super().leave(worker)
            self._free()
            if is_last:
                self._ready.clear()
            return is_last

    def close(self, reason: str) -> None:
        """End the run, and keep what partners may still get; see `answers_ahead`."""
        with self._changed:
            self.closed = self.closed or reason
            self._changed.notify_all()

    def answers_ahead(self, worker: Member) -> Iterator[SocketMessage]:
        answers = list[SocketMessage]()
        with self._changed:
            step = self.next[worker]
            while step in self._ready:
                answers.append(self._ready[step])
                step += 1
            if self._is_complete_row and step >= self._floor:
                answers.append(SocketMessage(("end",)))
        yield from answers

    def _first_step(self) -> int:
        return self._floor

    def _retained(self, batch: Any) -> _SharedStep:
        return _SharedStep(batch)

    def _check_end(self) -> None:
        """Partners take passes whole: one that is absent loses nothing."""

    def _is_known(self, step: int) -> bool:
        return step < self._floor or super()._is_known(step)

    def _take_batch(self, worker: Member, step: int) -> Any:
        if step in self._ready:
            retained = self._ready[step]
            self.next[worker] = step + 1
            self._free()
            return retained
        if step < self._floor:
            return MISSED
        return super()._take_batch(worker, step)

    def _free(self) -> None:
        """Drop what all partners have taken, and the first batches of too many."""
        needs: dict[int, int] = {}
        for member, step in self.next.items():
            if member in self._there:
                needs[member[0]] = min(step, needs.get(member[0], step))
            else:
                needs.setdefault(member[0], sys.maxsize)
        if len(needs) == self._workers:
            self._floor = max(self._floor, min(needs.values()))
        steps = sorted(step for step in self._ready if step >= self._floor)
        total = sum(self._ready[step].nbytes for step in steps)
        while len(steps) > _MOST_STEPS or (len(steps) > _LEAST_STEPS and total > _MOST_BYTES):
            step = steps.pop(0)
            total -= self._ready[step].nbytes
            self._floor = step + 1
        for step in [step for step in self._ready if step < self._floor]:
            del self._ready[step]


def _opener(passes: Passes) -> Any:
    """Return a function that opens passes for members; it does not keep the stream."""

    def opened(_member: Member, _partners: int, joining: _Joining) -> Opened:
        current = joining.current
        if current is None:
            current = passes.resume(joining.start)
        progress = Progress(passes.index)
        make = None
        if passes.options.batch_format != "arrow":
            make = unmade_batches(passes.options)

        def read(first: int, _in_place: bool) -> Generator[Any, None, None]:
            reading = Reading(progress.noted(passes.read_block), make=make, counts=progress.sources)
            return current.batches(reading, first=first)

        return Opened(Beginning(dict(joining.start), current.epoch, 0), read, progress)

    return opened


def _name(joining: _Joining) -> str:
    """Return the name of a pass, the same in all partners."""
    return sha256_hex(canonical_json(joining.start))


def _settings(passes: Passes, topology: Topology) -> list[Any]:
    """Return what batches depend on besides the pass."""
    index, options = passes.index, passes.options
    named = [field.name for field in fields(options) if field.name not in _OWN]
    return [
        type(passes).__name__,
        index.split,
        index.identity,
        index.condition,
        index.schema.names,
        options.mask_digest,
        passes.remainder,
        topology.world_size,
        *(f"{name} {getattr(options, name)!r}" for name in named),
    ]
