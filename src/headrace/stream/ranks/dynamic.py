"""distribution="dynamic": ranks claim the next block of the epoch when they are ready for it, so a slow one gets fewer.

    loader = headrace.open("out").stream("train", batch_size=256, shuffle=True, distribution="dynamic")
    for batch in loader:
        if batch["valid"].any(): ...

Every row is delivered once over all ranks, and every rank gets the same number of batches. Which rank gets which row
is decided by who is faster: no run repeats another's order. Choose it for work that is not in step at every batch
(evaluation, embedding, local updates); a loop with a collective at every batch works too, and goes at the pace of its
slowest rank as ever. Blocks come in their keyed order, rows permuted inside each block: a batch is of one block or two,
so this mixes less than "balanced" does.

A rank that finds no claim left finishes its rows, waits until it knows how many batches the others' claims make, and
gives batches without a valid row up to the largest of these numbers. How many that is, is known only then: there is no
`len`. `batch["valid"]` is always there.

The agreement goes through a store (`ledger`): that of torch.distributed's default group, or `store=`. A pass, and
`state_dict` during or after one, are collective: every rank begins the same passes, and calls it after the same number
of batches. Memory: the block that is given out and the next.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.dataset.index import SplitIndex
from headrace.dataset.indexed import ReadBlock
from headrace.digest import canonical_json, sha256_hex
from headrace.errors import SettingsError, StreamError
from headrace.sealed import kind_of
from headrace.stream.loader.options import IN_ARROW, VALID, StreamOptions
from headrace.stream.loader.passes import checked_state, delivered, make_quarantine, reader_name
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.order.epoch import block_identities, epoch_order
from headrace.stream.order.plan import Plan
from headrace.stream.order.remaining import Remaining
from headrace.stream.order.state import StreamState
from headrace.stream.ranks.beginnings import agreement
from headrace.stream.ranks.claimer import Claimer
from headrace.stream.ranks.claims import claim_borders, claim_rows, left_of
from headrace.stream.ranks.ledger import Ledger, LocalStore
from headrace.stream.ranks.present_group import group_connection, group_size, group_store, own_connection
from headrace.stream.ranks.progress import Noted, Progress
from headrace.stream.ranks.topology import Topology, confirm
from headrace.stream.ranks.watch import Watch
from headrace.stream.read.batch import Batch, make_batches
from headrace.stream.read.columns import Columns, cut, from_table, gather, join
from headrace.stream.read.quarantine import filling_rows
from headrace.stream.read.reader import decode_block

log = logging.getLogger("headrace")

_KIND = "dynamic stream"
_LOOK_SECONDS = 0.5
_PATIENCE_SECONDS = 1800.0  # as long as torch's own collectives wait

_MADE: Counter[tuple[str, str, int, int]] = Counter()


class DynamicLoader(StreamLoader):
    """Batches of one rank, claimed block by block; every row once over all ranks, the same number of batches on each.

    store: of torch.distributed; None: that of the default process group, which several ranks need.
    Passes, epochs and states follow the rules of `StreamLoader`.
    """

    _is_finalizing = staticmethod(sys.is_finalizing)  # found here even when the interpreter has emptied this module

    def __init__(
        self,
        index: SplitIndex,
        read_block: ReadBlock,
        options: StreamOptions,
        *,
        topology: Topology | None = None,
        store: Any = None,
    ) -> None:
        for name in ("lanes", "shuffle_rows", "samples_per_epoch"):
            if getattr(options, name) is not None:
                raise SettingsError(
                    f'{name} is {getattr(options, name)}, and distribution="dynamic" gives every row once, blocks and'
                    f' the rows inside them shuffled; leave {name} out, or use distribution="balanced"'
                )
        if options.remainder not in (None, "pad"):
            raise SettingsError(
                f'remainder="{options.remainder}" and distribution="dynamic" do not go together: ranks that run out of'
                ' rows fill their batches; leave remainder out, and see batch["valid"]'
            )
        super().__init__(index, read_block, replace(options, remainder="pad"), topology=topology)
        self._store = self._find_store(store)
        made = index.split, index.identity, self.topology.world_size, self.topology.rank
        _MADE[made] += 1  # ranks build their streams in the same order, so equal numbers are one stream
        self._name = f"headrace/dynamic/{index.split}/{index.identity[:16]}/{self.topology.world_size}/{_MADE[made]}"
        self._passes = self._calls = 0
        self._claims: tuple[Ledger, Claimer, npt.NDArray[np.int64]] | None = None

    def __repr__(self) -> str:
        place = f"rank {self.topology.rank} of {self.topology.world_size}"
        return (
            f"DynamicLoader({self.index.split!r}, {place}: who gets which row is not reproducible, each row comes once)"
        )

    def __len__(self) -> int:
        raise TypeError('distribution="dynamic": how many batches there are is known when the last block is claimed')

    def plan(self) -> Plan:
        """There is none. Raises `StreamError`."""
        raise StreamError(
            f'split "{self.index.split}": distribution="dynamic" decides who reads what while it reads; plan with'
            ' distribution="balanced"'
        )

    @property
    def dropped_rows(self) -> int:
        """None are."""
        return 0

    def __iter__(self) -> Iterator[Batch]:
        """A pass, from its beginning; collective. Raises `StreamError` if ranks disagree on where it begins."""
        confirm(self.topology)
        if self._received.has_ended:
            self._begin(self._start.fresh(self._start.epoch + 1))
        self._received.begin()
        self._passes += 1
        self._calls = 0
        log.info("%s: epoch %d is claimed block by block: its order will not repeat", self._reader, self.epoch)
        progress = Progress()
        watch = Watch(
            self.index,
            self.topology,
            progress,
            epoch=self.epoch,
            stall_seconds=self.options.stall_seconds,
            agree=agreement(self.topology, self, self._contract(None)),
            said=self._said,
        )
        made = delivered(self._read(progress, watch.check), self.options, reader=self._reader)
        yield from self._received.counted(watch.over(made), epoch=self.epoch)

    def state_dict(self) -> dict[str, Any]:
        """What no rank has received yet: JSON, the same on every rank. Collective from the first batch of a pass on.

        Every rank calls it, after the same number of batches. It resumes on any number of ranks with any batch size.
        """
        if self._claims is None:
            return _to_dict(self._start)
        ledger, claimer, borders = self._claims
        self._calls += 1
        with claimer.frozen():  # until all have said what they hold: no claim is missed or counted twice
            ledger.say_held(self._calls, *claimer.holding())
            waited = 0.0
            while (said := ledger.held(self._calls)) is None:
                time.sleep(0.01)
                waited += 0.01
                if waited > _PATIENCE_SECONDS:
                    raise self._gave_up(f"call {self._calls} of state_dict on every rank", waited)
        claimed, held = said
        rest = left_of(self._start.remaining, borders, claimed=claimed, not_received=held)
        return _to_dict(self._start.at(rest))

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        """Continue from a saved state: what is left of its epoch is claimed by the ranks there are now.

        Raises `StreamError` if the state is not of this split, seed and shuffle, or not of distribution="dynamic".
        """
        self._begin(checked_state(_from_dict(values), self.index, self.options))

    def _begin(self, state: StreamState) -> None:
        super()._begin(replace(state, lanes=1, window_rows=1, groups=1))
        self._claims = None

    @property
    def _reader(self) -> str:
        return reader_name(self.topology, worker=0, workers=0)

    def _read(self, progress: Progress, check: Callable[[], None]) -> Generator[Batch, None, None]:
        """The batches of a pass; what is left unfinished is said to the other ranks."""
        start, size = self._start, self.options.batch_size
        order = epoch_order(
            self.index.rows,
            block_identities(self.index),
            seed=start.seed,
            epoch=start.epoch,
            lanes=1,
            window_rows=1,
            groups=1,
            shuffle=start.shuffle,
        )
        borders = claim_borders(order, start.remaining, batch_size=size, ranks=self.topology.world_size)
        ledger = Ledger(self._store, f"{self._name}/{self._passes}", self.topology.rank, self.topology.world_size)
        rows = _Rows(self, order, start.remaining, progress)
        claimer = Claimer(ledger, borders, rows.load, batch_size=size)
        ledger.arrive()
        self._claims = ledger, claimer, borders
        finished = False

        def wait(ready: Callable[[], bool]) -> None:
            self._wait(ready, claimer, ledger, check)

        try:
            ledger.begin(sha256_hex(canonical_json([_to_dict(start), size]))[:16])
            with claimer:
                given = 0
                for columns, real in _batches(claimer, size, wait):
                    claimer.received(real)
                    given += 1
                    yield rows.batch(columns, real)
                progress.otherwise = "others"
                for _ in range(claimer.await_steps(wait) - given):
                    yield rows.batch(None, 0)
                finished = True
        finally:
            if not finished and not self._is_finalizing():  # then the store has gone, and so has `suppress`
                with suppress(RuntimeError):  # the store may have gone first
                    ledger.say_left()

    def _wait(self, ready: Callable[[], bool], claimer: Claimer, ledger: Ledger, check: Callable[[], None]) -> None:
        began = looked = time.monotonic()
        patience = self.options.stall_seconds
        while not ready():
            claimer.changed(_LOOK_SECONDS / 10)
            check()
            now = time.monotonic()
            if now - looked < _LOOK_SECONDS or not ledger.is_empty():
                continue
            looked = now
            if ready():
                return
            if (rank := ledger.left()) is not None:
                self._raise_left(rank)
            if patience is not None and now - began > patience and (silent := ledger.silent()):
                patience *= 6
                message = "%s: has no rows left, and waits %.0f s for ranks %s to say how many batches theirs make"
                log.warning(message, self._reader, now - began, silent)
            if now - began > _PATIENCE_SECONDS:
                raise self._gave_up(f"the number of batches of ranks {ledger.silent()}", now - began)

    def _raise_left(self, rank: int) -> NoReturn:
        raise StreamError(
            f"{self._reader}: rank {rank} left epoch {self.epoch} before its end, with blocks that only it has; end a"
            " pass on all ranks after the same number of batches, and resume all from one state"
        )

    def _gave_up(self, what: str, seconds: float) -> StreamError:
        return StreamError(
            f"{self._reader}: waited {seconds:.0f} s for {what}; begin the same passes and call state_dict on every"
            " rank"
        )

    def _find_store(self, store: Any) -> Any:
        if store is not None:
            return own_connection(store)
        if self.topology.world_size == 1:
            return LocalStore()
        found = group_store()
        if found is None:
            raise SettingsError(
                f'distribution="dynamic" on {self.topology.world_size} ranks needs a store that they share;'
                " initialise torch.distributed first, or pass store="
            )
        if (processes := group_size()) != self.topology.world_size:
            raise SettingsError(
                f'distribution="dynamic": topology says rank {self.topology.rank} of {self.topology.world_size}, the'
                f" process group has {processes} processes; where several of them are one rank, each would get other"
                ' rows: use distribution="balanced" there. Where some read nothing, pass store= of those that do'
            )
        return group_connection(found)


class _Rows:
    """From places of a pass to columns, and from columns to batches."""

    def __init__(self, loader: DynamicLoader, order: Any, remaining: Remaining, progress: Progress) -> None:
        self._index, self._options, self._reader = loader.index, loader.options, loader._reader
        self._order, self._remaining = order, remaining
        self._identities = block_identities(loader.index)
        self._names = loader.options.check_columns(loader.index.schema.names)
        self._quarantine = loader.quarantined = make_quarantine(
            loader.index, loader.options, topology=loader.topology, worker=0, workers=0
        )
        read_block: ReadBlock = Noted(loader._read_block, progress.reading)
        self._read_block = read_block if self._quarantine is None else self._quarantine.around(read_block)
        self._arrow = loader.options.batch_format in IN_ARROW

    def load(self, start: int, stop: int) -> Columns:
        """The rows at these places of what remains, in order."""
        places = self._remaining.positions(np.arange(start, stop, dtype=np.int64))
        pool = claim_rows(self._order, self._identities, places)
        names = self._names if self._quarantine is None else (*self._names, VALID)
        decoded = {
            block: decode_block(self._index, self._read_block, block, names, self._reader, arrow=self._arrow)
            for block in pool.blocks
        }
        return gather([cut(decoded[block], first, last) for block, first, last in pool.pieces], pool.index)

    def batch(self, columns: Columns | None, real: int) -> Batch:
        """A batch of these rows, made full with filling ones."""
        size = self._options.batch_size
        own = np.arange(size) < real
        parts = [] if columns is None else [columns]
        if real < size:
            names = [*self._names]
            table = filling_rows(self._index.schema, names, size - real)
            empty = gather([from_table(table, arrow=self._arrow, where="filling rows")], None)
            if self._quarantine is not None:
                ones = np.ones(size - real, np.bool_)
                empty[VALID] = pa.array(ones) if self._arrow else ones
            parts.append(empty)
        whole = dict(join(parts))
        whole[VALID] = own if self._quarantine is None else self._quarantine.sift(whole, own)
        options = self._options
        return next(make_batches(whole, size, options.batch_format, options.padding, options.packed_batches))


def _batches(claimer: Claimer, size: int, wait: Callable[[Callable[[], bool]], None]) -> Iterator[tuple[Columns, int]]:
    """This rank's claims cut into batches of `size` rows, the last one shorter; each with its number of rows."""
    left: list[Columns] = []
    rows = 0
    while (columns := claimer.take(wait)) is not None:
        total = len(next(iter(columns.values())))
        at = 0
        while total - at >= size - rows:
            stop = at + size - rows
            if total - stop <= max(size, total // 2):
                claimer.ask()  # the next block, when half of this one is gone
            yield join([*left, cut(columns, at, stop)]), size
            left, rows, at = [], 0, stop
        if at < total:
            left, rows = [*left, cut(columns, at, total)], rows + total - at
    if rows:
        yield join(left), rows


def _to_dict(state: StreamState) -> dict[str, Any]:
    return state.to_dict(_KIND)


def _from_dict(values: Mapping[str, Any]) -> dict[str, Any]:
    if kind_of(values) == "stream":
        raise StreamError(
            'stream state: it is not of distribution="dynamic"; its positions are of another order: load it into a'
            ' stream with distribution="balanced", or begin the epoch anew'
        )
    return StreamState.from_dict(values, _KIND).to_dict()
