"""Start a pass on all ranks together, or on none.

Ranks with different datasets, batches or positions would deliver rows twice, miss others, or take
unequal steps and hang. So no rank gets a batch before all have arrived and agree. Whatever else
happens is an error on every rank: a difference, which all raise in the same words; a rank that
ended or failed; a rank that does not arrive within the timeout of the process group; the end of the
store.

    headrace/begin/<failures>/<stream>/<start>    what the first rank to arrive says of itself
    …/here/<rank>                                 the process that arrived as this rank
    …/came                                        counts the arrivals
    …/unlike, …/unlike/<n>                        counts those that differ from the first; and what
                                                  they say of themselves
    …/twice                                       two processes that arrived as one rank
    …/judged                                      set by the last arrival: the others are complete
    …/read/<rank>                                 this rank has read all that
    …/read, …/read_by_all                         counts them; set by the last one
    …/again, …/again/<n>                          counts the ranks that begin this start once more;
                                                  how often, and whether they got all batches

**Agreement.** The contract of each rank is compared with that of the first to arrive, so that equal
ranks cost the store a few small requests each. If any differs, each rank reads those that do, and
none goes before all have read them: the store may end with one that does. Process 0, which may keep
the store, also waits for all if they agree. Versions of libraries may differ, which is logged.

**Streams** are numbered in the order in which a process first reads them, which must be the same on
all ranks. After a failure that the training loop caught, the numbers begin anew.

**Again.** A pass that starts where the previous pass of its stream started waits for nobody, so one
rank may look at a batch and start anew. A rank that leaves a pass after several batches and begins
it again says so. If another rank, which did not, begins the next pass before the first one has all
its batches, they are out of step, and all are told.

Where fewer ranks than processes share the rows (tensor parallelism, several jobs in one group),
nobody waits, and each process compares itself with the first one. If a mesh says that all processes
take part, that is the first at the same start; else nobody can say which processes belong together,
and it is the first with the same rows and batches.
"""

from __future__ import annotations

import functools
import json
import logging
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NoReturn, Self

from headrace.digest import canonical_json, sha256_hex
from headrace.errors import StreamError, setting
from headrace.machine import LIBRARIES, library_version
from headrace.printable import short_repr
from headrace.stream.ranks.group import Group, default_store, text_of
from headrace.stream.ranks.stats import Progress
from headrace.stream.ranks.topology import Topology

log = logging.getLogger("headrace")

_MOST_PAUSE_S = 0.05
_LOOK_S = 0.25  # at the processes of this machine
_SAY_S = 5.0
_TIMEOUT_S = 1800.0  # of a store that does not say; torch's own collectives wait as long
_READ_S = 60.0  # for those that were here a moment ago
_MOST_FIELDS = 4
_MOST_VALUES = 4
_MOST_RANKS = 8
_MOST_UNLIKE = 64
_LOOK_BATCHES = 1  # a pass that is left after these was looked at
# Equal in all processes of one stream: recognises it where fewer ranks than processes share the
# rows.
_SHARED = ("split", "index", "world_size", "num_workers", "batch_size", "remainder")
_ALONE = (
    "if only one rank reads this stream, open it with topology=headrace.Topology(rank=0,"
    " world_size=1)"
)


class RanksDiffer(StreamError):
    """The ranks are about to read different data. Every rank raises it by itself.

    differences: by field, the value of each rank that is named.
    """

    def __init__(
        self,
        *problems: str,
        differences: Mapping[str, Mapping[int, Any]] | None = None,
        remedy: str,
    ) -> None:
        super().__init__(*problems, remedy=remedy)
        self.differences = differences or {}


@dataclass(frozen=True, kw_only=True)
class _Side:
    """What a rank says of itself when it arrives.

    repeats: how often it began the previous start again, not counting looks.
    """

    rank: int
    process: int
    contract: Mapping[str, Any]
    repeats: int
    versions: Mapping[str, str]

    def text(self) -> str:
        return json.dumps(asdict(self))


@dataclass
class Starts:
    """Counts the different starts of one stream since failure `failures`.

    contract: that of the last start. repeats: how often it was begun again after more than a look.
    """

    prefix: str
    failures: int
    rank: int
    group: Group
    count: int = 0
    contract: str = ""
    repeats: int = 0
    steps: int | None = None
    _progress: Progress | None = None
    _ahead: int = 0
    _numbers: dict[int, int] = field(default_factory=dict)  # of this rank in …/again, by start
    _repeats_now: bool = False

    def begin(self, progress: Progress, ahead: int) -> Self:
        """Remember a pass whose start was agreed on; see `Watch` for its parts."""
        self._progress = progress
        self._ahead = ahead
        return self

    def got(self, steps: int) -> None:
        """Note that the loop is about to get batch number `steps` of the pass."""
        if self._repeats_now and steps == self.steps:
            self._repeats_now = False
            try:
                self._publish(is_whole=True)
            except RuntimeError:
                log.info("rank %d: no rank can be told that this pass is whole", self.rank)

    def repeat(self, epoch: object) -> None:
        """Begin the last start again.

        Raises `StreamError` if this rank left it and others, which did not, begin another pass.
        """
        if self._progress is None or self._progress.steps <= _LOOK_BATCHES + self._ahead:
            return
        self.repeats += 1
        self._repeats_now = True
        self._publish(is_whole=False)
        key = f"{self.prefix}/{self.count + 1}"
        if not self.group.store.check([key]):
            return
        other = _Side(**json.loads(self.group.store.get(key)))
        if other.repeats < self.repeats:
            raise _out_of_step(self.rank, epoch, other.rank, other.contract.get("epoch"))

    def check_of_others(self, epoch: object) -> Callable[[], None]:
        """Return a function that raises `StreamError` if another rank has begun the last start more
        often than this one, and still reads it.
        """
        key = f"{self.prefix}/{self.count}/again"
        mine = self.repeats
        before = json.loads(self.contract).get("epoch") if self.contract else None

        def check() -> None:
            for number in range(1, 1 + int(self.group.store.add(key, 0))):
                if not self.group.store.check([f"{key}/{number}"]):
                    continue  # it is looking here at this moment
                rank, repeats, is_whole = json.loads(self.group.store.get(f"{key}/{number}"))
                if rank != self.rank and repeats > mine and not is_whole:
                    raise _out_of_step(rank, before, self.rank, epoch)

        return check

    def advance(self) -> str:
        """Go to the next start, and return its key."""
        self.count += 1
        self.contract = ""
        self.repeats = 0
        self._repeats_now = False
        return f"{self.prefix}/{self.count}"

    def _publish(self, *, is_whole: bool) -> None:
        key = f"{self.prefix}/{self.count}/again"
        if self.count not in self._numbers:
            self._numbers = {self.count: int(self.group.store.add(key, 1))}
        values = json.dumps([self.rank, self.repeats, is_whole])
        self.group.store.set(f"{key}/{self._numbers[self.count]}", values)


def _out_of_step(first: int, epoch: object, second: int, other_epoch: object) -> StreamError:
    return StreamError(
        f"the ranks are out of step: rank {first} left epoch {epoch} early and begins it again,"
        f" while rank {second} begins epoch {other_epoch}",
        remedy=(
            "leave a pass after the same number of batches on every rank, and call"
            " set_epoch(epoch) before each"
        ),
    )


def start_together(
    stream: object,
    contract: Mapping[str, Any],
    topology: Topology,
    group: Group,
    *,
    check: Callable[[], None],
) -> Starts:
    """Wait until all ranks start this pass of a stream, and compare their contracts.

    contract: JSON by name, equal on all ranks, of `StreamLoader.contract`. check: raises when
    another rank has failed. Raises `RanksDiffer` if contracts differ, `RankGone` if a rank has
    died, and `StreamError` if one does not arrive, has left, or the store is gone.
    """
    contract = {**contract, "world_size": topology.world_size}
    complete = group.processes == topology.world_size
    if group.processes == topology.world_size * topology.partners:
        name = "all"
    else:
        name = sha256_hex(canonical_json([contract.get(field) for field in _SHARED]))[:16]
    starts = group.starts.get(stream)
    if starts is None or starts.failures != group.settled:
        group.streams[group.settled, name] += 1
        prefix = f"headrace/begin/{group.settled}/{name}/{group.streams[group.settled, name]}"
        starts = group.starts[stream] = Starts(prefix, group.settled, topology.rank, group)
    text = canonical_json(contract).decode()
    if not group.has_store:
        raise group.store_gone()
    try:
        if text == starts.contract:
            if complete:
                starts.repeat(contract.get("epoch"))
            return starts
        check_of_others = starts.check_of_others(contract.get("epoch"))
        side = _Side(
            rank=topology.rank,
            process=group.process,
            contract=contract,
            repeats=starts.repeats,
            versions=versions(),
        )
        start = _Start(side, topology, group, starts.advance(), check)
        if complete:
            start.meet(check_of_others)
        else:
            start.compare([start.arrive_first(), side], StreamError)
    except RuntimeError as lost:
        group.has_store = False
        check()
        raise group.store_gone() from lost
    starts.contract = text
    starts.steps = contract.get("steps")
    return starts


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions of the libraries that this process runs on."""
    named = {name: library_version(name) for name in LIBRARIES}
    torch = sys.modules.get("torch")
    return {
        **named,
        "torch": str(getattr(torch, "__version__", "none")),
        "python": platform.python_version(),
    }


@functools.cache
def _warn_once(sentence: str) -> None:
    log.warning("%s", sentence)


@dataclass(frozen=True)
class _Start:
    """One rank at one start barrier."""

    side: _Side
    topology: Topology
    group: Group
    key: str
    check: Callable[[], None]

    def arrive_first(self) -> _Side:
        """Return the side that arrived first, perhaps this one."""
        text = self.group.store.compare_set(self.key, "", self.side.text())
        first = _Side(**json.loads(text_of(text)))
        self._compare_versions(first)
        return first

    def meet(self, check_of_others: Callable[[], None]) -> None:
        """Arrive, wait for all others, and compare what all say of themselves."""
        store, key, mine = self.group.store, self.key, self.side
        first = self.arrive_first()
        check_of_others()  # after the arrival, which they look for
        holder = int(text_of(store.compare_set(f"{key}/here/{mine.rank}", "", str(mine.process))))
        if holder != mine.process:
            store.compare_set(f"{key}/twice", "", json.dumps([mine.rank, holder, mine.process]))
        if first.contract != mine.contract:
            number = int(store.add(f"{key}/unlike", 1))
            store.set(f"{key}/unlike/{number}", mine.text())
        if int(store.add(f"{key}/came", 1)) == self.topology.world_size:
            store.set(f"{key}/judged", "yes")
        self._await_arrivals()
        twice = store.check([f"{key}/twice"])
        if twice:
            rank, one, other = json.loads(store.get(f"{key}/twice"))
        sides = self._unlike(first)
        differs = twice or len(sides) > 1
        store.set(f"{key}/read/{mine.rank}", "yes")
        if int(store.add(f"{key}/read", 1)) == self.topology.world_size:
            store.set(f"{key}/read_by_all", "yes")
        silent = ""
        if differs or mine.process == 0:
            silent = self._await_readers(differs=differs)
        if twice:
            raise RanksDiffer(
                f"processes {one} and {other} both read as rank {rank}{silent}",
                remedy=f"give each process its own rank, or leave {setting('topology')} out",
            )
        self.compare(sides, RanksDiffer, silent)

    def _unlike(self, first: _Side) -> list[_Side]:
        """Return the sides that differ, with one rank for all those that agree with the first."""
        store = self.group.store
        count = int(store.add(f"{self.key}/unlike", 0))
        sides = []
        for number in range(1, 1 + min(count, _MOST_UNLIKE)):
            sides.append(_Side(**json.loads(store.get(f"{self.key}/unlike/{number}"))))
        others = {side.rank for side in sides}
        alike = [rank for rank in range(self.topology.world_size) if rank not in others]
        return sorted(
            [replace(first, rank=min(alike, default=first.rank)), *sides],
            key=lambda side: side.rank,
        )

    def _await_arrivals(self) -> None:
        timeout = getattr(default_store(), "timeout", None)  # as init_process_group was told
        timeout_s = _TIMEOUT_S
        if timeout is not None:
            timeout_s = float(timeout.total_seconds())
        start = (
            f"start epoch {self.side.contract.get('epoch')} of"
            f" {short_repr(self.side.contract.get('split', 'windows'))}"
        )
        clock = _Clock()
        logged = False
        while not self._is_set("judged"):
            if clock.is_time_to_look():
                self._look()
                absent = self._absent()
                # the last arrival may have come and gone in this moment
                if absent and not self._is_set("judged"):
                    self._raise_absent(next(iter(absent.values())))
            self.check()
            if clock.waited_s > timeout_s:
                raise StreamError(
                    f"{self.topology}: waited {clock.waited_s:.0f} s for"
                    f" {ranks_in_words(self._missing('here'))} to {start}",
                    remedy=(
                        "start the same passes on every rank, and check there what stopped them;"
                        f" {_ALONE}"
                    ),
                )
            if clock.waited_s > _SAY_S and not logged:
                logged = True
                missing = ranks_in_words(self._missing("here"))
                log.warning("%s: waits for %s to %s", self.topology, missing, start)
            clock.pause()

    def _await_readers(self, *, differs: bool) -> str:
        """Wait until all ranks have read what all say; return who has not, in words.

        Raises `StreamError` if a rank did not, and this one would go on.
        """
        clock = _Clock()
        try:
            while not self._is_set("read_by_all"):
                absent = {}
                if clock.is_time_to_look():
                    self._look()
                    absent = self._absent()
                gone = [rank for rank in self._missing("read") if rank in absent] if absent else []
                if gone and not differs:
                    self._raise_absent(absent[gone[0]])
                if gone or clock.waited_s > _READ_S:
                    break
                clock.pause()
            else:
                return ""
            silent = f"{ranks_in_words(self._missing('read'))} did not answer"
        except RuntimeError:
            if differs:  # known to this rank, whatever became of the store
                return ""
            raise
        if differs:
            return f"; {silent}"
        raise StreamError(
            f"{self.topology}: {silent} for {clock.waited_s:.0f} s after all ranks had arrived",
            remedy="look for the cause there, then resume all ranks from the last saved state",
        )

    def _look(self) -> None:
        self.group.tell(self.group.look())

    def _absent(self) -> dict[int, StreamError]:
        """Return an error for each rank that has ended, by rank."""
        absent = self.group.absent()
        ended = "headrace/ended"
        if not absent and self.group.has_remote and self.group.store.check([ended]):
            rank = int(text_of(self.group.store.get(ended)))
            absent[rank] = StreamError(
                f"rank {rank} has ended, or has left the process group",
                remedy="read the same number of passes on every rank",
            )
        return absent

    def _raise_absent(self, error: StreamError) -> NoReturn:
        """Raise what a process posted before it ended, else that it has ended.

        The thread that reads messages may not have run since: on a busy machine it waits for
        seconds.
        """
        self.group.read_posted()
        self.check()
        raise error

    def _is_set(self, name: str) -> bool:
        return bool(self.group.store.check([f"{self.key}/{name}"]))

    def _missing(self, name: str) -> list[int]:
        missing = []
        for rank in range(self.topology.world_size):
            if not self._is_set(f"{name}/{rank}"):
                missing.append(rank)
        return missing

    def _compare_versions(self, first: _Side) -> None:
        for name, version in self.side.versions.items():
            other = first.versions.get(name)
            if other != version:
                _warn_once(
                    f"{self.topology} has {name} {version}, rank {first.rank} has {other}; the"
                    " ranks go on, as only the version of the order must agree"
                )

    def compare(
        self, sides: Sequence[_Side], error_type: type[StreamError], silent: str = ""
    ) -> None:
        """Raise an error of this kind, with the fields and the values, if any sides differ.

        silent: who has not read them, in words.
        """
        differences = differing(sides)
        if not differences:
            return
        sentences = []
        word = "process" if _have_equal_ranks(sides) else "rank"
        for name, values in list(differences.items())[:_MOST_FIELDS]:
            parts = [f"{short_repr(value)} on {word} {number}" for number, value in values.items()]
            sentences.append(f"{name} is {', '.join(parts[:-1])} and {parts[-1]}")
        more = ""
        if len(differences) > _MOST_FIELDS:
            more = f", and {len(differences) - _MOST_FIELDS} more differ"
        problem = (
            f"{self.topology}: the ranks are about to read different data:"
            f" {', '.join(sentences)}{more}{silent}"
        )
        remedy = (
            "open the same data with the same settings, load the same state and set the same"
            f" epoch on every rank; {_ALONE}"
        )
        if issubclass(error_type, RanksDiffer):
            raise error_type(problem, differences=differences, remedy=remedy)
        raise error_type(problem, remedy=remedy)


def _have_equal_ranks(sides: Sequence[_Side]) -> bool:
    return len({side.rank for side in sides}) < len({side.process for side in sides})


def differing(sides: Sequence[_Side]) -> dict[str, dict[int, Any]]:
    """Return the fields that differ between contracts, each with its values by their first rank; by
    their first process where several read as one rank.
    """
    of_processes = _have_equal_ranks(sides)
    differences = {}
    for name in dict.fromkeys(name for side in sides for name in side.contract):
        values: dict[int, Any] = {}
        for side in sides:
            value = side.contract.get(name)
            if value not in values.values() and len(values) < _MOST_VALUES:
                values[side.process if of_processes else side.rank] = value
        if len(values) > 1:
            differences[name] = values
    return differences


def ranks_in_words(ranks: Sequence[int]) -> str:
    """Return "rank 1", or "ranks 1, 2 and 3 more"."""
    more = ""
    if len(ranks) > _MOST_RANKS:
        more = f" and {len(ranks) - _MOST_RANKS} more"
    return f"rank{'s' if len(ranks) != 1 else ''} {', '.join(map(str, ranks[:_MOST_RANKS]))}{more}"


class _Clock:
    """Times a wait: it pauses longer the longer it has waited."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._looked = self._began

    @property
    def waited_s(self) -> float:
        return time.monotonic() - self._began

    def is_time_to_look(self) -> bool:
        now = time.monotonic()
        if now - self._looked < _LOOK_S:
            return False
        self._looked = now
        return True

    def pause(self) -> None:
        time.sleep(min(_MOST_PAUSE_S, max(0.001, self.waited_s / 10)))
