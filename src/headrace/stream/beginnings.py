"""Ranks begin their passes alike: what each begins at, compared through the store of the process group.

    headrace/begin/<stream>/<failures>/<n>    the n-th place at which a rank began a pass of that stream

Ranks that begin at different places of an epoch, or in different epochs, would deliver rows twice and miss others
without a word. Whoever says a place first is right; who finds another one there is stopped, and the others hear of it.
A pass that begins where the one before began is no new place. Nothing is said before the loop asks for a second batch,
so one rank may look at a batch. Streams of other settings are others. After a failure that was caught ranks count anew.

A rank that leaves a pass early and begins it again, while the others take it to its end and go on to the next epoch, is
at its end one place behind. That is logged and no error: a rank that looks at some batches alone, and then reads the
epoch slower than others who do not wait for it, looks the same from here, and has done nothing wrong.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from headrace.digest import canonical_json, sha256_hex
from headrace.errors import StreamError
from headrace.stream.shared_failure import Bulletin
from headrace.stream.topology import Topology

log = logging.getLogger("headrace")

_PREFIX = "headrace/begin"
_BEHIND = (
    "rank %d of %d: left this pass after %d batches and began it again at %s, and another rank has begun the next one"
    " since; if the loop was left early on some ranks only, ranks are in different epochs now, and rows come twice:"
    " call set_epoch before each pass"
)
_BEGUN: WeakKeyDictionary[Bulletin, Begun] = WeakKeyDictionary()


@dataclass(eq=False)
class Begun:
    """The passes that began in this process, as members of one group. Ranks read their streams in the same order."""

    streams: Counter[str] = field(default_factory=Counter)
    passes: WeakKeyDictionary[Any, Passes] = field(default_factory=WeakKeyDictionary)


@dataclass(eq=False)
class Passes:
    """Those of one stream. places: how many different ones followed each other since so many failures."""

    stream: str
    failures: int = -1
    places: int = 0
    last: str = ""

    def key(self, place: int) -> str:
        """Under which the first rank says where the place of this number is."""
        return f"{_PREFIX}/{self.stream}/{self.failures}/{place}"


@dataclass(frozen=True, eq=False, kw_only=True)
class Agreement:
    """What a rank says of a pass when it begins, and asks when it ends.

    name: of all streams of these settings; place: where the pass begins. left_after: batches after which the pass
    before, from the same place, was left; 0: it was taken to its end.
    """

    topology: Topology
    stream: object
    name: str
    place: str
    left_after: int

    def begin(self, bulletin: Bulletin) -> None:
        """Raises `StreamError` if another rank began the same pass elsewhere."""
        passes = self._passes(bulletin)
        if passes.failures != bulletin.known:
            passes.failures, passes.places, passes.last = bulletin.known, 0, ""
        if self.place == passes.last:
            return
        passes.places, passes.last = passes.places + 1, self.place
        with suppress(RuntimeError):  # the store has gone: then there is nobody to agree with
            agreed = bulletin.store.compare_set(passes.key(passes.places), "", self.place)
            _check(agreed, self.place, self.topology)

    def end(self, bulletin: Bulletin) -> None:
        """Logs it if this rank began the pass again, and another one has gone on to the next place since."""
        passes = self._passes(bulletin)
        if self.left_after < 2 or passes.last != self.place:
            return
        with suppress(RuntimeError):
            if bulletin.store.check([passes.key(passes.places + 1)]):
                rank, world_size = self.topology.rank, self.topology.world_size
                _, place = json.loads(self.place)
                log.warning(_BEHIND, rank, world_size, self.left_after, place)

    def _passes(self, bulletin: Bulletin) -> Passes:
        begun = _BEGUN.setdefault(bulletin, Begun())
        if self.stream not in begun.passes:
            begun.streams[self.name] += 1
            begun.passes[self.stream] = Passes(f"{self.name}/{begun.streams[self.name]}")
        return begun.passes[self.stream]


def agreement(
    topology: Topology,
    stream: object,
    state: Mapping[str, Any],
    *,
    settings: Mapping[str, Any],
    left_after: int = 0,
) -> Agreement | None:
    """What is to be said of a pass of a stream; None: there is one rank.

    state: of the stream at its beginning; settings: by which the ranks share out what is left; left_after: see above.
    """
    if topology.world_size < 2:
        return None
    place = json.dumps([sha256_hex(canonical_json(dict(state)))[:16], _in_words(state)])
    start = state.get("start", state)  # of packing
    own = [start.get("split"), start.get("index"), topology.world_size, dict(settings)]
    name = sha256_hex(canonical_json(own))[:16]
    return Agreement(topology=topology, stream=stream, name=name, place=place, left_after=left_after)


def _check(agreed: Any, place: str, topology: Topology) -> None:
    agreed = agreed.decode() if isinstance(agreed, bytes) else str(agreed)
    if agreed == place:
        return
    (_, theirs), (_, own) = json.loads(agreed), json.loads(place)
    raise StreamError(
        f"rank {topology.rank} of {topology.world_size}: this pass begins at {own}, another rank's at {theirs};"
        " load the same state and set the same epoch on every rank; a stream that one rank alone reads is to be"
        " opened with topology=headrace.Topology(0, 1)"
    )


def _in_words(state: Mapping[str, Any]) -> str:
    start = state.get("start", state)
    named = {name: start.get(name) for name in ("epoch", "position", "seed", "lanes")}
    return ", ".join(f"{name} {value}" for name, value in named.items()) + (
        f", {state['batches']} batches" if "batches" in state else ""
    )
