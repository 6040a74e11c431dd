"""Passes whose ranks claim blocks as they are ready for them; experimental, see the package."""

from __future__ import annotations

import logging
import sys
from array import array
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.dataset.index import SplitIndex
from headrace.digest import canonical_json, sha256_hex
from headrace.errors import SettingsError, StreamError
from headrace.sealed import kind_of
from headrace.stream.loader.dynamic.claims import Claims, LocalStore, claim_borders, claim_rows
from headrace.stream.loader.options import IN_ARROW, VALID, StreamOptions
from headrace.stream.loader.passes import Pass, Reading, RowPasses
from headrace.stream.order.epoch import block_identities, epoch_order
from headrace.stream.order.layout import BlendIndex
from headrace.stream.order.plan import Plan
from headrace.stream.order.state import StreamState
from headrace.stream.ranks.group import default_group, own_connection
from headrace.stream.ranks.topology import Topology
from headrace.stream.read.batch import Batch, make_batches
from headrace.stream.read.columns import Columns, cut, from_table, gather, join
from headrace.stream.read.quarantine import filling_rows
from headrace.stream.read.reader import ReadBlock, decode_block
from headrace.stream.read.transform import TransformContext

log = logging.getLogger("headrace")

_KIND = "dynamic stream"
_MADE: Counter[tuple[str, str, int, int]] = Counter()


class DynamicPasses:
    """Passes over the rows of a split; every row once over all ranks, the same number of batches on each.

    store: of torch.distributed; None takes that of the default process group, which several ranks need.
    """

    def __init__(
        self, index: SplitIndex, read_block: ReadBlock, options: StreamOptions, topology: Topology, store: Any = None
    ) -> None:
        if isinstance(index, BlendIndex):
            raise SettingsError('distribution="dynamic" is for one dataset; use "balanced" with blends')
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
        # States, seeds and columns are those of any stream of rows; what differs is who gets which.
        rows = replace(options, remainder="pad", distribution="balanced", lanes=1)
        self._rows = RowPasses(index, read_block, rows, topology)
        self.index, self.read_block, self.topology = index, read_block, topology
        self.options, self.remainder = replace(options, remainder="pad"), self._rows.remainder
        self.store = _find_store(store, topology)
        made = index.split, index.identity, topology.world_size, topology.rank
        _MADE[made] += 1  # ranks build their streams in the same order, so equal numbers are one stream
        self.name = f"headrace/dynamic/{index.split}/{index.identity[:16]}/{topology.world_size}/{_MADE[made]}"
        self.begun = 0  # passes that were read

    def begin(self, epoch: int, after: Pass | None = None) -> DynamicPass:  # noqa: ARG002 - no order to go on in
        return self._of(self._rows.begin(epoch).start)

    def whole(self, of: Pass) -> DynamicPass:
        return self.begin(of.epoch)

    def resume(self, values: Mapping[str, Any]) -> DynamicPass:
        """What a saved state left; the present ranks claim it."""
        if kind_of(values) == "stream":
            raise StreamError(
                'stream state: it is not of distribution="dynamic"; its positions are of another order: load it into a'
                ' stream with distribution="balanced", or begin the epoch anew'
            )
        return self._of(self._rows.checked(StreamState.from_dict(values, _KIND).to_dict()))

    def _of(self, start: StreamState) -> DynamicPass:
        return DynamicPass(self, replace(start, lanes=1, window_rows=1, groups=1))


@dataclass(eq=False)
class DynamicPass:
    """What is left of an epoch, to be claimed; see `Pass`. claims: those of this rank, once it is read.

    Batches may be made before the loop takes them, so claims hear what was received when a state asks for it.
    """

    passes: DynamicPasses
    start: StreamState
    claims: Claims | None = None
    _calls: int = field(default=0, repr=False)
    _rows: array[int] = field(default_factory=lambda: array("q", [0]), repr=False)  # made, after each batch
    _said: int = field(default=0, repr=False)  # batches that the claims know to be received

    _is_finalizing = staticmethod(sys.is_finalizing)  # still found when the interpreter has emptied this module

    @property
    def epoch(self) -> int:
        return self.start.epoch

    @property
    def is_partial(self) -> bool:
        return bool(self.start.position or self.start.holes)

    @property
    def steps(self) -> None:
        """Not known before the last block is claimed."""
        return None

    @property
    def dropped_rows(self) -> int:
        return 0

    def plan(self) -> Plan:
        """Raise `StreamError`: there is no plan."""
        raise StreamError(
            f'split "{self.passes.index.split}": distribution="dynamic" decides who reads what while it reads; plan'
            ' with distribution="balanced"'
        )

    def state_after(self, batches: int) -> dict[str, Any]:
        """What no rank has received yet: JSON, equal on all ranks. Collective once a batch was received.

        Every rank calls it, after the same number of batches. It resumes on any number of ranks with any batch size.
        """
        if self.claims is None or not batches:
            return self.start.to_dict(_KIND)
        self.claims.received(self.rows_after(batches) - self.rows_after(self._said))
        self._calls, self._said = self._calls + 1, batches
        return self.start.at(self.claims.left_over(self._calls, self.start.remaining)).to_dict(_KIND)

    def rows_after(self, batches: int) -> int:
        return self._rows[min(batches, len(self._rows) - 1)]

    def context(self, batch: int) -> TransformContext:
        """Which batch of this rank it is; its rows have no positions, as claims are not repeated."""
        options, rank = self.passes.options, self.passes.topology.rank
        return TransformContext(seed=options.seed, epoch=self.epoch, step=batch, rank=rank, positions=None)

    def batches(self, reading: Reading, *, first: int = 0) -> Generator[Batch, None, None]:
        """This rank's batches; if it ends early, that is published to the other ranks."""
        assert not first, "nobody knows what the first batches of others hold"
        passes, start, topology = self.passes, self.start, self.passes.topology
        index, options, size = passes.index, passes.options, passes.options.batch_size
        passes.begun, self._calls, self._said, self._rows = passes.begun + 1, 0, 0, array("q", [0])
        log.info("%s: epoch %d is claimed block by block: its order will not repeat", topology, self.epoch)
        identities = block_identities(index)
        order = epoch_order(
            index.rows, identities, seed=start.seed, epoch=start.epoch, lanes=1, window_rows=1, groups=1,
            shuffle=start.shuffle,
        )  # fmt: skip
        arrow = options.batch_format in IN_ARROW
        names: tuple[str, ...] = tuple(options.check_columns(index.schema.names))
        quarantine = reading.quarantine
        read_block = reading.read_block if quarantine is None else quarantine.around(reading.read_block)
        decoded_names = names if quarantine is None else (*names, VALID)

        def load(first: int, last: int) -> Columns:
            places = start.remaining.positions(np.arange(first, last, dtype=np.int64))
            pool = claim_rows(order, identities, places)
            decoded = {
                block: decode_block(index, read_block, block, decoded_names, str(topology), arrow=arrow)
                for block in pool.blocks
            }
            return gather([cut(decoded[block], low, high) for block, low, high in pool.pieces], pool.index)

        def batch(parts: list[Columns], real: int) -> Batch:
            if real < size:
                filling = filling_rows(index.schema, [*names], size - real)
                empty = gather([from_table(filling, arrow=arrow, where="filling rows")], None)
                if quarantine is not None:
                    ones = np.ones(size - real, np.bool_)
                    empty[VALID] = pa.array(ones) if arrow else ones
                parts = [*parts, empty]
            whole, own = dict(join(parts)), np.arange(size) < real
            whole[VALID] = own if quarantine is None else quarantine.sift(whole, own)
            return next(make_batches(whole, size, options.batch_format, options.padding, options.packed_batches))

        claims = Claims(
            store=passes.store,
            prefix=f"{passes.name}/{passes.begun}",
            topology=topology,
            epoch=self.epoch,
            borders=claim_borders(order, start.remaining, batch_size=size, ranks=topology.world_size),
            batch_size=size,
            load=load,
            check=reading.check,
        )
        claims.arrive(sha256_hex(canonical_json([start.to_dict(_KIND), size]))[:16])
        self.claims = claims
        finished = False
        try:
            given = 0
            for columns, real in _batches(claims, size):
                given += 1
                self._rows.append(self._rows[-1] + real)
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


def _find_store(store: Any, topology: Topology) -> Any:
    if store is not None:
        return own_connection(store)
    if topology.world_size == 1:
        return LocalStore()
    group = default_group()
    if group is None:
        raise SettingsError(
            f'distribution="dynamic" on {topology.world_size} ranks needs a store that they share;'
            " initialise torch.distributed first, or pass store="
        )
    if group.processes != topology.world_size:
        raise SettingsError(
            f'distribution="dynamic": topology says {topology}, the process group has {group.processes}'
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
