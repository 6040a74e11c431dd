"""Before the first batch of a pass all ranks compare what they are about to read, through the store of their group.

    headrace/begin/<failures>/<stream>/<place>     rank and contract of whoever came first
    …/here/<rank>                                  the process that came as this rank
    …/came                                         how many came
    …/unlike                                       rank and contract of one that is not the same
    …/judged                                       set by the last to come: from here on all know all

Ranks that read other datasets, batches or places would deliver rows twice, miss others, or take unequal steps and hang.
So nobody gets a batch before all have come, and what differs is an error on every rank. A rank that does not come is an
error after as long as the store of the group waits (`timeout=` of init_process_group).

Streams are numbered as they are first read: ranks read their streams in the same order. A pass that begins where the
one before began is not compared again, so one rank may leave a pass and begin it anew. After a failure that was caught
ranks count anew. Cost is a few small requests for each rank and pass.

Where the ranks that share out rows are fewer than the processes of the group (tensor parallelism, several jobs in one
group) nobody can say who belongs together. Streams of the same rows and batches then compare where they begin, with
whoever came first, and nobody waits.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from headrace.dataset.index import SplitIndex
from headrace.digest import canonical_json, sha256_hex
from headrace.errors import StreamError
from headrace.sealed import shown
from headrace.stream.loader.options import StreamOptions
from headrace.stream.ranks.present_group import group_patience_s, text_of
from headrace.stream.ranks.shared_failure import Bulletin, group_bulletin, in_short
from headrace.stream.ranks.topology import Topology

log = logging.getLogger("headrace")

_PREFIX = "headrace/begin"
_LOOK_SECONDS = 0.05
_SAY_SECONDS = 5.0
_MOST_FIELDS, _MOST_RANKS = 4, 8
_ALONE = "a stream that one rank reads alone is opened with topology=headrace.Topology(rank=0, world_size=1)"
_BEGUN: WeakKeyDictionary[Bulletin, Begun] = WeakKeyDictionary()


class RanksDiffer(StreamError):
    """Ranks are about to read different things; every rank raises it by itself."""


@dataclass(eq=False)
class Begun:
    """The passes that began in this process, as a member of one group, since so many failures."""

    failures: int = -1
    streams: Counter[str] = field(default_factory=Counter)
    passes: WeakKeyDictionary[Any, Passes] = field(default_factory=WeakKeyDictionary)


@dataclass(eq=False)
class Passes:
    """Those of one stream. places: how many different ones followed each other; last: the contract of the last."""

    prefix: str
    places: int = 0
    last: str = ""

    def key(self, place: int) -> str:
        """Where the ranks meet before the pass of this number."""
        return f"{self.prefix}/{place}"


@dataclass(frozen=True, eq=False, kw_only=True)
class Agreement:
    """What a rank says of a pass when it begins, and asks when it ends.

    contract: what every rank must say alike, JSON by name.
    """

    topology: Topology
    stream: object
    contract: Mapping[str, Any]

    def begin(self, bulletin: Bulletin, check: Callable[[], None]) -> None:
        """Wait for all ranks. check: raises where another rank has failed.

        Raises `RanksDiffer` if they differ, `StreamError` if one does not come.
        """
        passes, whole = self._passes(bulletin), self._is_of_all(bulletin)
        text = canonical_json(dict(self.contract)).decode()
        if text == passes.last:
            return
        passes.places, passes.last = passes.places + 1, ""
        key = passes.key(passes.places)
        with suppress(RuntimeError):  # the store has gone: then there is nobody to agree with
            if whole:
                self._meet(bulletin, key, check)
            else:
                rank, first = json.loads(text_of(bulletin.store.compare_set(key, "", self._said)))
                self._compare(first, rank, self.contract, self.topology.rank, StreamError)
        passes.last = text

    def _passes(self, bulletin: Bulletin) -> Passes:
        begun = _BEGUN.setdefault(bulletin, Begun())
        if begun.failures != bulletin.known:
            begun.failures = bulletin.known
            begun.streams.clear()
            begun.passes.clear()
        if self.stream not in begun.passes:
            name = "all" if self._is_of_all(bulletin) else self._name
            begun.streams[name] += 1
            begun.passes[self.stream] = Passes(f"{_PREFIX}/{begun.failures}/{name}/{begun.streams[name]}")
        return begun.passes[self.stream]

    def _is_of_all(self, bulletin: Bulletin) -> bool:
        """Whether every process of the group is one rank."""
        return bulletin.others + 1 == self.topology.world_size

    @property
    def _name(self) -> str:
        """Of all streams of the same rows and batches."""
        names = ("split", "index", "windows", "world_size", "num_workers", "batch_size", "remainder")
        return sha256_hex(canonical_json([self.contract.get(name) for name in names]))[:16]

    @property
    def _said(self) -> str:
        return json.dumps([self.topology.rank, dict(self.contract)])

    def _meet(self, bulletin: Bulletin, key: str, check: Callable[[], None]) -> None:
        store, rank = bulletin.store, self.topology.rank
        _, first = json.loads(text_of(store.compare_set(key, "", self._said)))
        process = str(bulletin.process)
        holder = text_of(store.compare_set(f"{key}/here/{rank}", "", process))
        if holder != process:
            store.compare_set(f"{key}/twice", "", json.dumps([rank, int(holder), bulletin.process]))
        if first != self.contract:
            store.compare_set(f"{key}/unlike", "", self._said)
        if int(store.add(f"{key}/came", 1)) == self.topology.world_size:
            store.set(f"{key}/judged", "yes")
        self._wait(bulletin, key, check)
        if store.check([f"{key}/twice"]):
            rank, one, other = json.loads(text_of(store.get(f"{key}/twice")))
            raise RanksDiffer(
                f"{self._here}: processes {one} and {other} both read as rank {rank}; give each its own rank, or leave"
                " topology= out"
            )
        if store.check([f"{key}/unlike"]):
            sides = [json.loads(text_of(store.get(each))) for each in (key, f"{key}/unlike")]
            (one, theirs), (other, others) = sorted(sides, key=lambda side: side[0])
            self._compare(theirs, one, others, other, RanksDiffer)

    def _wait(self, bulletin: Bulletin, key: str, check: Callable[[], None]) -> None:
        began, pause, said = time.monotonic(), 0.001, False
        patience_s = group_patience_s()
        while not bulletin.store.check([f"{key}/judged"]):
            check()
            waited_s = time.monotonic() - began
            if waited_s > patience_s:
                raise StreamError(
                    f"{self._here}: waited {waited_s:.0f} s for {self._missing(bulletin, key)} to begin {self._what};"
                    f" begin the same passes on every rank, and see what stopped them there; {_ALONE}"
                )
            if waited_s > _SAY_SECONDS and not said:
                said = True
                log.warning("%s: waits for %s to begin %s", self._here, self._missing(bulletin, key), self._what)
            time.sleep(pause)
            pause = min(_LOOK_SECONDS, 2 * pause)

    def _missing(self, bulletin: Bulletin, key: str) -> str:
        ranks = range(self.topology.world_size)
        missing = [str(rank) for rank in ranks if not bulletin.store.check([f"{key}/here/{rank}"])]
        more = f" and {len(missing) - _MOST_RANKS} more" if len(missing) > _MOST_RANKS else ""
        return f"rank{'s' if len(missing) != 1 else ''} {', '.join(missing[:_MOST_RANKS])}{more}"

    @property
    def _here(self) -> str:
        return f"rank {self.topology.rank} of {self.topology.world_size}"

    @property
    def _what(self) -> str:
        return f"epoch {self.contract.get('epoch')} of {shown(self.contract.get('split', 'windows'))}"

    def _compare(
        self, one: Mapping[str, Any], rank: int, other: Mapping[str, Any], other_rank: int, kind: type[StreamError]
    ) -> None:
        names = [name for name in dict.fromkeys((*one, *other)) if one.get(name) != other.get(name)]
        if not names:
            return
        told = [
            f"{name} is {shown(one.get(name))} on rank {rank} and {shown(other.get(name))} on rank {other_rank}"
            for name in names[:_MOST_FIELDS]
        ]
        more = f", and {len(names) - _MOST_FIELDS} more differ" if len(names) > _MOST_FIELDS else ""
        raise kind(
            f"{self._here}: ranks are about to read different things: {', '.join(told)}{more}; open the same data with"
            f" the same settings, load the same state and set the same epoch on every rank; {_ALONE}"
        )


def agree_now(agreement: Agreement | None) -> None:
    """Meet the other ranks, for a loader that no `watch` stands beside. Raises as `Agreement.begin`."""
    bulletin = group_bulletin() if agreement is not None else None
    if agreement is None or bulletin is None:
        return
    bulletin.rank = agreement.topology.rank, agreement.topology.world_size
    try:
        agreement.begin(bulletin, partial(_hear, bulletin))
    except RanksDiffer:
        raise
    except StreamError as error:
        with suppress(RuntimeError):
            bulletin.await_all(bulletin.post(bulletin.failure(in_short(error))))
        raise


def _hear(bulletin: Bulletin) -> None:
    failure = bulletin.unread()
    if failure is not None:
        raise StreamError(f"{failure}; mend it there, then resume all ranks from the last state")


def agreement(topology: Topology, stream: object, contract: Mapping[str, Any]) -> Agreement | None:
    """What is to be said of a pass of a stream; None: there is one rank. contract: see `contract_of`."""
    if topology.world_size < 2:
        return None
    whole = {**contract, "world_size": topology.world_size}
    return Agreement(topology=topology, stream=stream, contract=whole)


def contract_of(
    index: SplitIndex,
    options: StreamOptions,
    state: Mapping[str, Any] | None,
    *,
    source: str,
    epoch: int,
    workers: int,
    remainder: str,
    steps: int | None,
) -> dict[str, Any]:
    """What every rank must say alike of a pass over rows: which rows, in which batches, from where, in what form.

    state: of the stream at the beginning of the pass; None: workers have their own. source: the kind of stream.
    steps: of each rank, None where nobody knows. Of what decides only how fast a rank reads nothing is in it.
    """
    state = {} if state is None else state
    start = state.get("start", state)  # of packing
    columns = index.schema.names if options.columns is None else options.columns
    return {
        "source": source,
        "split": index.split,
        "index": index.identity,
        "rows": index.total_rows,
        "filter": index.condition,
        "batch_size": options.batch_size,
        "num_workers": workers,
        "remainder": remainder,
        "columns": list(columns),
        "seed": options.seed,
        "epoch": epoch,
        "shuffle": options.shuffle,
        "position": start.get("position"),
        "batches": state.get("batches"),
        "lanes": start.get("lanes"),
        "window_rows": start.get("window_rows"),
        "samples_per_epoch": options.samples_per_epoch,
        "distribution": options.distribution,
        "transform": _name_of(options.transform),
        "batch_format": options.batch_format,
        "lists": options.lists,
        "packed": repr(options.packed),
        "pack": repr(options.pack),
        "on_bad_block": options.on_bad_block,
        "steps": steps,
        "state": state.get("digest"),
    }


def _name_of(transform: Any) -> str | None:
    """Where the code of a transform is; ranks may have different objects of it."""
    while isinstance(transform, partial):
        transform = transform.func
    if transform is None:
        return None
    named = transform if hasattr(transform, "__qualname__") else type(transform)
    return f"{named.__module__}.{named.__qualname__}"
