"""Ranks begin their passes alike: what each begins at, compared through the store of the process group.

    headrace/begin/<stream>/<failures>/<n>    the n-th place at which a rank began a pass of that stream

Ranks that begin at different places of an epoch, or in different epochs, would deliver rows twice and miss others
without a word. Whoever says a place first is right; who finds another one there is stopped, and the others hear of it.
A pass that begins where the one before began is no new place. Nothing is said before the loop asks for a second batch,
so one rank may look at a batch. Streams of other settings are others. After a failure that was caught ranks count anew.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from headrace.digest import canonical_json, sha256_hex
from headrace.errors import StreamError
from headrace.stream.shared_failure import Bulletin
from headrace.stream.topology import Topology

Agreement: TypeAlias = Callable[[Bulletin], None]

_PREFIX = "headrace/begin"
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


def agreement(topology: Topology, stream: object, state: Mapping[str, Any], **settings: Any) -> Agreement | None:
    """What says where a pass of a stream begins, and raises `StreamError` if another rank said otherwise of the same.

    state: of the stream at its beginning; settings: by which the ranks share out what is left. None: one rank.
    """
    if topology.world_size < 2:
        return None
    place = json.dumps([sha256_hex(canonical_json(dict(state)))[:16], _in_words(state)])
    start = state.get("start", state)  # of packing
    own = [start.get("split"), start.get("index"), topology.world_size, settings]
    return partial(_agree, topology, stream, sha256_hex(canonical_json(own))[:16], place)


def _agree(topology: Topology, stream: object, name: str, place: str, bulletin: Bulletin) -> None:
    begun = _BEGUN.setdefault(bulletin, Begun())
    if stream not in begun.passes:
        begun.streams[name] += 1
        begun.passes[stream] = Passes(f"{name}/{begun.streams[name]}")
    passes = begun.passes[stream]
    if passes.failures != bulletin.known:
        passes.failures, passes.places, passes.last = bulletin.known, 0, ""
    if place == passes.last:
        return
    passes.places, passes.last = passes.places + 1, place
    key = f"{_PREFIX}/{passes.stream}/{passes.failures}/{passes.places}"
    with suppress(RuntimeError):  # the store has gone: then there is nobody to agree with
        _check(bulletin.store.compare_set(key, "", place), place, topology)


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
