"""Track the members of a shared run, the processes that work on it, and whether they are alive. Compares no clocks.

A member has a file whose first 20 bytes count up every `beat_s` seconds. A member whose counter has not changed for
`dead_after_s` seconds of the observer's own clock is dead. A member that leaves removes its file. Members also hold a
lock on their file: on one machine, a free lock proves that its holder died; between machines, locks are not used. In an
object store, the file is an object that is put again with each beat, and there are no locks. Mistaking a live member
for a dead one costs double work, but never gives a wrong result.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from headrace.errors import RunBusy, SettingsError, StoreError
from headrace.machine import boot_id
from headrace.storage import local
from headrace.storage.places import place_of

_COUNTER = 20  # digits before the record, so that a beat replaces bytes in place


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Times that processes of a shared run wait for each other, in seconds.

    beat_s: between two heartbeats. dead_after_s: a process without a heartbeat for this long is dead. straggler_s: an
    idle process also does a task that a live process takes longer over. poll_s: the least time between two looks.
    """

    beat_s: float = 5.0
    dead_after_s: float = 30.0
    straggler_s: float = 600.0
    poll_s: float = 0.5


@dataclass(frozen=True, slots=True)
class Share:
    """Process `index` of `count`: it does its own part of every stage first."""

    index: int
    count: int

    def __post_init__(self) -> None:
        whole = all(isinstance(each, int) and not isinstance(each, bool) for each in (self.index, self.count))
        if not whole or not 0 <= self.index < self.count:
            raise SettingsError(
                f"shard_of is {self.index}/{self.count}; processes are numbered 0 to N-1: of 4 they are 0/4, 1/4, "
                f"2/4 and 3/4"
            )

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


class Members:
    """The members of a run in one directory or prefix; this process is one of them during the `with` block.

    kernel: identifies the machine's running kernel; "" disables the use of locks, None detects it.
    """

    def __init__(
        self,
        directory: Path,
        share: Share,
        patience: Patience,
        *,
        kernel: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.token = secrets.token_hex(8)
        self._directory, self._share, self._patience = directory, share, patience
        self._has_locks = place_of(directory).writes == "in place"
        self._kernel = (boot_id() if self._has_locks else "") if kernel is None else kernel
        self._clock = clock
        self._beats: dict[str, tuple[bytes, float]] = {}  # each member's last counter and when it was first seen
        self._file: int | None = None  # this process's own file, locked; None in a store
        self._record = b""
        self._leaving = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="headrace-heartbeat", daemon=True)

    def __enter__(self) -> Self:
        """Become a member. Raises `RunBusy` if a live process on this machine works on the same share."""
        self._refuse_twin()
        record = {"shard": self._share.index, "of": self._share.count, "host": platform.node(), "pid": os.getpid()}
        self._record = b"\n" + json.dumps(record | {"kernel": self._kernel}).encode() + b"\n"
        if not self._has_locks:
            self._say(_counter(0))
        else:
            local.make_directory(self._directory)
            target = self._path(self.token)
            temporary = local.temporary_for(target)
            with local.storing(target):
                self._file = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
                os.write(self._file, _counter(0) + self._record)
                with suppress(OSError):  # a file system without locks
                    fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.rename(temporary, target)
        self._heart.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Stop the heartbeat and remove the file. This frees the unfinished tasks that this process has claimed."""
        if self._leaving.is_set():
            return
        self._leaving.set()
        self._heart.join()
        with suppress(OSError, StoreError):
            place_of(self._path(self.token)).delete()
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def is_dead(self, token: str) -> bool:
        """Check whether a member has left or died, as far as is known now; a later call may know more."""
        try:
            data = self._path(token).read_bytes()
        except FileNotFoundError:
            return True
        except (OSError, StoreError):
            return False  # unknown, so not dead yet
        if self._lock(token, _record(data)) == "free":
            return True
        beat, now = data[:_COUNTER], self._clock()
        known = self._beats.get(token)
        if known is None or known[0] != beat:
            self._beats[token] = (beat, now)
            return False
        return now - known[1] > self._patience.dead_after_s

    def name(self, token: str) -> str:
        """Describe a member for messages."""
        record = self._record_of(token)
        if not record:
            return "a process that has left"
        return f"{record['shard']}/{record['of']} on {record['host']}, process {record['pid']}"

    def is_last(self) -> bool:
        """Check whether no other member is alive. Waits at most `dead_after_s` seconds for heartbeats."""
        first: dict[str, bytes] = {}
        until: float | None = None
        while True:
            # Taken before the look, so that the last look comes after the deadline.
            late = until is not None and self._clock() > until
            others = [token for token in self._tokens() if token != self.token and not self.is_dead(token)]
            if not others:
                return True
            if any(self._lock(token, self._record_of(token)) == "held" for token in others):
                return False
            for token in others:
                beat = self._beats.get(token, (b"", 0.0))[0]
                if first.setdefault(token, beat) != beat:
                    return False
            if late:
                return False
            if until is None:
                until = self._clock() + self._patience.dead_after_s
            time.sleep(self._patience.poll_s)

    def _refuse_twin(self) -> None:
        if not self._kernel:  # without locks a twin's state is unknown; claims still avoid double work
            return
        run = self._directory.parents[2]
        for token in self._tokens():
            record = self._record_of(token)
            if self._lock(token, record) != "held":
                continue
            if record["of"] != self._share.count:
                raise RunBusy(
                    f"{run}: is shared out over {record['of']} processes, this one would be {self._share}; give all "
                    f"processes the same number"
                )
            if record["shard"] == self._share.index:
                raise RunBusy(
                    f"{run}: process {record['pid']} works on share {self._share} already; start each share once"
                )

    def _beat(self) -> None:
        count = 0
        while not self._leaving.wait(self._patience.beat_s):
            count += 1
            with suppress(OSError, StoreError):  # the next beat may succeed
                self._say(_counter(count))

    def _say(self, counter: bytes) -> None:
        if self._file is None:
            place_of(self._path(self.token)).replace(counter + self._record)
        else:
            os.pwrite(self._file, counter, 0)
            os.fsync(self._file)

    def _lock(self, token: str, record: Mapping[str, Any]) -> Literal["held", "free", "unknown"]:
        """Test the lock on a member's file. Only a lock held under the same kernel is reliable."""
        if not self._kernel or record.get("kernel") != self._kernel or token == self.token:
            return "unknown"
        try:
            descriptor = os.open(self._path(token), os.O_RDONLY)
        except OSError:
            return "unknown"
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return "free"
        except BlockingIOError:
            return "held"
        except OSError:
            return "unknown"
        finally:
            os.close(descriptor)

    def _record_of(self, token: str) -> dict[str, Any]:
        try:
            return _record(self._path(token).read_bytes())
        except (OSError, StoreError):
            return {}

    def _tokens(self) -> list[str]:
        names = (fact.name for fact in place_of(self._directory).children()[1])
        return [name.removesuffix(".member") for name in names if name.endswith(".member")]

    def _path(self, token: str) -> Path:
        return self._directory / f"{token}.member"


def _counter(count: int) -> bytes:
    return str(count).encode().zfill(_COUNTER)


def _record(data: bytes) -> dict[str, Any]:
    try:
        record = json.loads(data[_COUNTER:])
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}
