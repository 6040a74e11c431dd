"""Before the first batch of a pass, make sure that all ranks are about to read the same data: the start barrier.

    headrace/begin/<failures>/<stream>/<start>    rank and contract of the first rank to arrive
    …/here/<rank>                                 the process that arrived as this rank
    …/came                                        counts the arrivals
    …/unlike                                      rank and contract of a rank that differs from the first
    …/twice                                       two processes that arrived as the same rank
    …/judged                                      set by the last arrival: the keys above are complete

Ranks with different datasets, batches or positions would deliver rows twice, miss others, or take unequal steps and
hang. So no rank gets a batch before all have arrived, and a difference is an error on every rank. A rank that does not
arrive within the timeout of the process group is an error too. A pass costs each rank a few small requests.

Streams are numbered in the order in which a process first reads them, which must be the same on all ranks. A pass that
starts where the previous pass of its stream started is not compared again, so one rank may leave a pass and start it
anew. After a failure that the training loop caught, the numbers begin anew.

Where fewer ranks than processes share the rows (tensor parallelism, several jobs in one group), nobody can say which
processes belong together. There, each stream is compared with the first one of the same rows and batches, and nobody
waits.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from headrace.digest import canonical_json, sha256_hex
from headrace.errors import StreamError
from headrace.sealed import shown
from headrace.stream.ranks.group import Group, default_store, text_of
from headrace.stream.ranks.topology import Topology

log = logging.getLogger("headrace")

_LOOK_S, _SAY_S = 0.05, 5.0
_TIMEOUT_S = 1800.0  # of a store that does not say; torch's own collectives wait as long
_MOST_FIELDS, _MOST_RANKS = 4, 8
# Equal in all processes of one stream: recognises it where fewer ranks than processes share the rows.
_SHARED = ("split", "index", "world_size", "num_workers", "batch_size", "remainder")
_ALONE = "if only one rank reads this stream, open it with topology=headrace.Topology(rank=0, world_size=1)"


class RanksDiffer(StreamError):
    """The ranks are about to read different data. Every rank raises it by itself."""


def start_together(
    stream: object, contract: Mapping[str, Any], topology: Topology, group: Group, *, check: Callable[[], None]
) -> None:
    """Wait until all ranks start this pass of a stream, and compare their contracts.

    contract: JSON by name, equal on all ranks, of `StreamLoader.contract`. check: raises when another rank has failed.
    Raises `RanksDiffer` if contracts differ, `StreamError` if a rank does not arrive.
    """
    if topology.world_size < 2:
        return
    contract = {**contract, "world_size": topology.world_size}
    whole = group.processes == topology.world_size
    name = "all" if whole else sha256_hex(canonical_json([contract.get(field) for field in _SHARED]))[:16]
    starts = group.starts.get(stream)
    if starts is None or starts.failures != group.settled:
        group.streams[group.settled, name] += 1
        prefix = f"headrace/begin/{group.settled}/{name}/{group.streams[group.settled, name]}"
        starts = group.starts[stream] = _Starts(prefix, group.settled)
    text = canonical_json(contract).decode()
    if text == starts.contract:
        return
    starts.count, starts.contract = starts.count + 1, ""
    start = _Start(contract, topology, group, f"{starts.prefix}/{starts.count}")
    with suppress(RuntimeError):  # the store has gone: no other rank can answer
        if whole:
            start.meet(check)
        else:
            start.compare(start.arrive_first(), start.mine, StreamError)
    starts.contract = text


@dataclass
class _Starts:
    """Counts the different starts of one stream since failure `failures`. contract: that of the last start."""

    prefix: str
    failures: int
    count: int = 0
    contract: str = ""


@dataclass(frozen=True)
class _Start:
    """One rank at one start barrier. A side is a rank with its contract."""

    contract: Mapping[str, Any]
    topology: Topology
    group: Group
    key: str

    @property
    def mine(self) -> tuple[int, Mapping[str, Any]]:
        return self.topology.rank, self.contract

    def arrive_first(self) -> Any:
        """Return the side that arrived first, perhaps this one."""
        return json.loads(text_of(self.group.store.compare_set(self.key, "", json.dumps(self.mine))))

    def meet(self, check: Callable[[], None]) -> None:
        store, key, (rank, _), process = self.group.store, self.key, self.mine, self.group.process
        first = self.arrive_first()
        holder = int(text_of(store.compare_set(f"{key}/here/{rank}", "", str(process))))
        if holder != process:
            store.compare_set(f"{key}/twice", "", json.dumps([rank, holder, process]))
        if first[1] != self.contract:
            store.compare_set(f"{key}/unlike", "", json.dumps(self.mine))
        if int(store.add(f"{key}/came", 1)) == self.topology.world_size:
            store.set(f"{key}/judged", "yes")
        self._wait(check)
        if store.check([f"{key}/twice"]):
            rank, one, other = json.loads(text_of(store.get(f"{key}/twice")))
            raise RanksDiffer(
                f"{self.topology}: processes {one} and {other} both read as rank {rank}; give each process its own"
                " rank, or leave topology= out"
            )
        if store.check([f"{key}/unlike"]):
            self.compare(*sorted([first, json.loads(text_of(store.get(f"{key}/unlike")))], key=lambda side: side[0]))

    def _wait(self, check: Callable[[], None]) -> None:
        began, pause, said = time.monotonic(), 0.001, False
        timeout = getattr(default_store(), "timeout", None)  # as init_process_group was told
        timeout_s = _TIMEOUT_S if timeout is None else float(timeout.total_seconds())
        start = f"start epoch {self.contract.get('epoch')} of {shown(self.contract.get('split', 'windows'))}"
        while not self.group.store.check([f"{self.key}/judged"]):
            check()
            waited_s = time.monotonic() - began
            if waited_s > timeout_s:
                raise StreamError(
                    f"{self.topology}: waited {waited_s:.0f} s for {self._missing()} to {start}; start the same passes"
                    f" on every rank, and check there what stopped them; {_ALONE}"
                )
            if waited_s > _SAY_S and not said:
                said = True
                log.warning("%s: waits for %s to %s", self.topology, self._missing(), start)
            time.sleep(pause)
            pause = min(_LOOK_S, 2 * pause)

    def _missing(self) -> str:
        ranks = range(self.topology.world_size)
        missing = [str(rank) for rank in ranks if not self.group.store.check([f"{self.key}/here/{rank}"])]
        more = f" and {len(missing) - _MOST_RANKS} more" if len(missing) > _MOST_RANKS else ""
        return f"rank{'s' if len(missing) != 1 else ''} {', '.join(missing[:_MOST_RANKS])}{more}"

    def compare(
        self,
        one: tuple[int, Mapping[str, Any]],
        other: tuple[int, Mapping[str, Any]],
        kind: type[StreamError] = RanksDiffer,
    ) -> None:
        """Raise an error of this kind, with the fields and both values, if two sides differ."""
        (rank, values), (other_rank, others) = one, other
        names = [name for name in dict.fromkeys((*values, *others)) if values.get(name) != others.get(name)]
        if not names:
            return
        differences = ", ".join(
            f"{name} is {shown(values.get(name))} on rank {rank} and {shown(others.get(name))} on rank {other_rank}"
            for name in names[:_MOST_FIELDS]
        )
        more = f", and {len(names) - _MOST_FIELDS} more differ" if len(names) > _MOST_FIELDS else ""
        raise kind(
            f"{self.topology}: the ranks are about to read different data: {differences}{more}; open the same data with"
            f" the same settings, load the same state and set the same epoch on every rank; {_ALONE}"
        )
