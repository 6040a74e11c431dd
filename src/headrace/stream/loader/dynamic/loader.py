"""Batches and states of a stream whose ranks claim blocks; experimental, see the package."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.dataset.index import SplitIndex
from headrace.dataset.indexed import ReadBlock
from headrace.digest import canonical_json, sha256_hex
from headrace.errors import SettingsError, StreamError
from headrace.sealed import kind_of
from headrace.stream.loader.dynamic.claims import Claims, LocalStore, claim_borders, claim_rows
from headrace.stream.loader.options import IN_ARROW, VALID, StreamOptions
from headrace.stream.loader.passes import checked_state, delivered, make_quarantine
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.order.epoch import block_identities, epoch_order
from headrace.stream.order.plan import Plan
from headrace.stream.order.state import StreamState
from headrace.stream.ranks.group import default_group, own_connection
from headrace.stream.ranks.topology import Topology, confirm
from headrace.stream.ranks.watch import Noted, Progress, Watch
from headrace.stream.read.batch import Batch, make_batches
from headrace.stream.read.columns import Columns, cut, from_table, gather, join
from headrace.stream.read.quarantine import filling_rows
from headrace.stream.read.reader import decode_block

log = logging.getLogger("headrace")

_KIND = "dynamic stream"
_MADE: Counter[tuple[str, str, int, int]] = Counter()


class DynamicLoader(StreamLoader):
    """Batches of one rank, claimed block by block; every row once over all ranks, the same number of batches on each.

    store: of torch.distributed; None takes that of the default process group, which several ranks need.
    Passes, epochs and states follow the rules of `StreamLoader`.
    """

    _is_finalizing = staticmethod(sys.is_finalizing)  # still found when the interpreter has emptied this module

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
        self._claims: Claims | None = None

    def __repr__(self) -> str:
        return (
            f"DynamicLoader({self.index.split!r}, {self.topology}: who gets which row is not reproducible, each row"
            " comes once)"
        )

    def __len__(self) -> int:
        raise TypeError('distribution="dynamic": how many batches there are is known when the last block is claimed')

    def plan(self) -> Plan:
        """Raise `StreamError`: there is no plan."""
        raise StreamError(
            f'split "{self.index.split}": distribution="dynamic" decides who reads what while it reads; plan with'
            ' distribution="balanced"'
        )

    @property
    def dropped_rows(self) -> int:
        """None are dropped."""
        return 0

    def __iter__(self) -> Iterator[Batch]:
        """Read a pass from its start; collective. Raises `StreamError` if ranks start at different places."""
        confirm(self.topology)
        if self._received.has_ended:
            self._begin(self._start.fresh(self._start.epoch + 1))
        self._received.begin()
        self._passes, self._calls = self._passes + 1, 0
        log.info("%s: epoch %d is claimed block by block: its order will not repeat", self.topology, self.epoch)
        progress = Progress(self.index)
        watch = Watch(self, self._contract(None), progress, stall_seconds=self.options.stall_seconds)
        made = delivered(self._read(progress, watch.check), self.options, reader=str(self.topology))
        yield from self._received.counted(watch.over(made), epoch=self.epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return what no rank has received yet: JSON, equal on all ranks. Collective from the first batch of a pass on.

        Every rank calls it, after the same number of batches. It resumes on any number of ranks with any batch size.
        """
        if self._claims is None:
            return self._start.to_dict(_KIND)
        self._calls += 1
        return self._start.at(self._claims.left_over(self._calls, self._start.remaining)).to_dict(_KIND)

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        """Resume from a saved state: the present ranks claim what is left of its epoch.

        Raises `StreamError` if the state is of another split, seed or shuffle, or not of distribution="dynamic".
        """
        if kind_of(values) == "stream":
            raise StreamError(
                'stream state: it is not of distribution="dynamic"; its positions are of another order: load it into a'
                ' stream with distribution="balanced", or begin the epoch anew'
            )
        state = StreamState.from_dict(values, _KIND).to_dict()
        self._begin(checked_state(state, self.index, self.options))

    def _begin(self, state: StreamState) -> None:
        super()._begin(replace(state, lanes=1, window_rows=1, groups=1))
        self._claims = None

    def _read(self, progress: Progress, check: Callable[[], None]) -> Generator[Batch, None, None]:
        """Yield the batches of a pass; if it ends early, publish that to the other ranks."""
        start, size, world_size = self._start, self.options.batch_size, self.topology.world_size
        identities = block_identities(self.index)
        order = epoch_order(
            self.index.rows, identities, seed=start.seed, epoch=start.epoch, lanes=1, window_rows=1, groups=1,
            shuffle=start.shuffle,
        )  # fmt: skip
        arrow = self.options.batch_format in IN_ARROW
        names: tuple[str, ...] = tuple(self.options.check_columns(self.index.schema.names))
        quarantine = self.quarantined = make_quarantine(
            self.index, self.options, topology=self.topology, worker=0, workers=0
        )
        read_block: ReadBlock = Noted(self._read_block, progress.reading)
        if quarantine is not None:
            read_block = quarantine.around(read_block)
        decoded_names = names if quarantine is None else (*names, VALID)

        def load(first: int, last: int) -> Columns:
            places = start.remaining.positions(np.arange(first, last, dtype=np.int64))
            pool = claim_rows(order, identities, places)
            decoded = {
                block: decode_block(self.index, read_block, block, decoded_names, str(self.topology), arrow=arrow)
                for block in pool.blocks
            }
            return gather([cut(decoded[block], low, high) for block, low, high in pool.pieces], pool.index)

        def batch(parts: list[Columns], real: int) -> Batch:
            if real < size:
                filling = filling_rows(self.index.schema, [*names], size - real)
                empty = gather([from_table(filling, arrow=arrow, where="filling rows")], None)
                if quarantine is not None:
                    ones = np.ones(size - real, np.bool_)
                    empty[VALID] = pa.array(ones) if arrow else ones
                parts = [*parts, empty]
            whole, own = dict(join(parts)), np.arange(size) < real
            whole[VALID] = own if quarantine is None else quarantine.sift(whole, own)
            options = self.options
            return next(make_batches(whole, size, options.batch_format, options.padding, options.packed_batches))

        claims = Claims(
            store=self._store,
            prefix=f"{self._name}/{self._passes}",
            topology=self.topology,
            epoch=self.epoch,
            borders=claim_borders(order, start.remaining, batch_size=size, ranks=world_size),
            batch_size=size,
            load=load,
            check=check,
        )
        claims.arrive(sha256_hex(canonical_json([start.to_dict(_KIND), size]))[:16])
        self._claims = claims
        finished = False
        try:
            given = 0
            for columns, real in _batches(claims, size):
                claims.received(real)
                given += 1
                yield batch([columns], real)
            for _ in range(claims.await_steps() - given):
                yield batch([], 0)
            finished = True
        finally:
            if not self._is_finalizing():  # then Python has joined the thread, and emptied the modules
                claims.end()
                with suppress(RuntimeError):  # the store may have gone first
                    if not finished:
                        claims.leave()

    def _find_store(self, store: Any) -> Any:
        if store is not None:
            return own_connection(store)
        if self.topology.world_size == 1:
            return LocalStore()
        group = default_group()
        if group is None:
            raise SettingsError(
                f'distribution="dynamic" on {self.topology.world_size} ranks needs a store that they share;'
                " initialise torch.distributed first, or pass store="
            )
        if group.processes != self.topology.world_size:
            raise SettingsError(
                f'distribution="dynamic": topology says {self.topology}, the process group has {group.processes}'
                " processes; where several of them are one rank, each would get other rows: use"
                ' distribution="balanced" there. Where some read nothing, pass store= of those that do'
            )
        return group.store


def _batches(claims: Claims, size: int) -> Iterator[tuple[Columns, int]]:
    """Cut this rank's claims into batches of `size` rows, the last one shorter; each with its number of rows."""
    left: list[Columns] = []
    rows = 0
    while (columns := claims.take()) is not None:
        total = len(next(iter(columns.values())))
        at = 0
        while total - at >= size - rows:
            stop = at + size - rows
            if total - stop <= max(size, total // 2):
                claims.ask()  # the next block, when half of this one is gone
            yield join([*left, cut(columns, at, stop)]), size
            left, rows, at = [], 0, stop
        if at < total:
            left, rows = [*left, cut(columns, at, total)], rows + total - at
    if rows:
        yield join(left), rows
