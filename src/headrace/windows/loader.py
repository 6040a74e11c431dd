"""A stream of batches of windows for one rank: this process alone, and a thread that reads the next chunk.

The positions of an epoch are dealt out in turn: rank r of R takes every R-th, batch_size at a time, so a step of all
ranks together is a run of positions, and there are as many steps everywhere. The order of the positions knows nothing
of ranks. Passes and states follow the rules of every loader, see `stream.loader.base`; a state resumes on any
number of ranks and with any batch size.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from headrace.arrays import I64
from headrace.checks import check_integer, check_word
from headrace.errors import SettingsError, StreamError
from headrace.sealed import MOST_LANES
from headrace.stream.loader.base import BaseLoader
from headrace.stream.loader.options import VALID
from headrace.stream.order.remaining import Remainder, Share, check_batches, resolve_remainder, share_of
from headrace.stream.ranks.topology import Topology, capture, confirm
from headrace.stream.ranks.watch import Progress, Watch
from headrace.stream.read.batch import import_torch
from headrace.windows.epochs import Epochs
from headrace.windows.options import Layout
from headrace.windows.order import SHUFFLES, InOrder, Shuffle, WindowOrder, everywhere, nearby
from headrace.windows.state import WindowState
from headrace.windows.windows import Places, Windows

log = logging.getLogger("headrace")

BatchFormat = Literal["torch", "numpy"]

_LOCATED = 1 << 14  # windows whose places are looked up at a time


@dataclass(frozen=True, eq=False, kw_only=True)
class WindowPasses:
    """Passes over windows, as batches of `batch_size` windows on each rank; see `WindowLoader`."""

    epochs: Epochs
    batch_size: int
    shuffle: Shuffle
    seed: int
    remainder: Remainder
    lanes: int
    stretch: int
    batch_format: BatchFormat
    topology: Topology

    def begin(self, epoch: int, after: WindowPass | None = None) -> WindowPass:
        """An epoch from its beginning, in lanes and stretches like those of the pass before."""
        number, chunk = self.epochs.place(epoch)
        order = self if after is None else after.start
        state = WindowState(
            windows=self.epochs.identity,
            count=self.epochs.count(epoch),
            seed=self.seed,
            epoch=epoch,
            shuffle=self.shuffle,
            lanes=order.lanes,
            stretch=order.stretch,
            pass_number=number,
            chunk=chunk,
        )
        return WindowPass(self, state)

    def whole(self, of: WindowPass) -> WindowPass:
        """The epoch of a pass from its beginning, in its order."""
        return replace(of, start=of.start.at(0))

    def resume(self, values: Mapping[str, Any]) -> WindowPass:
        """What a saved state left. Raises `StreamError` if it is of other windows, chunks, seed or shuffle."""
        state = WindowState.from_dict(values)
        state.check(self.begin(0).start)
        here = self.begin(state.epoch).start
        if (state.count, state.pass_number, state.chunk) != (here.count, here.pass_number, here.chunk):
            raise StreamError(
                f"window state: epoch {state.epoch} was chunk {state.chunk} of pass {state.pass_number} with"
                f" {state.count} windows; here it is chunk {here.chunk} of pass {here.pass_number} with {here.count};"
                " begin the epoch anew"
            )
        return WindowPass(self, state)


@dataclass(frozen=True, eq=False)
class WindowPass:
    """What is left of an epoch of windows. start: where it begins."""

    passes: WindowPasses
    start: WindowState

    @property
    def epoch(self) -> int:
        """Which epoch."""
        return self.start.epoch

    @property
    def is_partial(self) -> bool:
        """Whether something of the epoch was received before."""
        return bool(self.start.position)

    @property
    def share(self) -> Share:
        """The windows of this rank."""
        passes = self.passes
        return share_of(
            self.start.count - self.start.position,
            rank=passes.topology.rank,
            ranks=passes.topology.world_size,
            batch_size=passes.batch_size,
            remainder=passes.remainder,
        )

    @property
    def steps(self) -> int:
        """Batches that each rank receives."""
        return self.share.steps

    def state_after(self, batches: int) -> dict[str, Any]:
        """The state after so many batches on every rank. Raises `StreamError` if the pass has fewer."""
        check_batches(batches, self.steps)
        step = self.passes.topology.world_size * self.passes.batch_size
        return self.start.at(min(self.start.count, self.start.position + batches * step)).to_dict()

    def rows_after(self, batches: int) -> int:
        """Windows that this rank's first `batches` batches hold, without filling ones."""
        return min(batches * self.passes.batch_size, self.share.rows)

    def batches(self) -> Generator[dict[str, Any], None, None]:
        """This rank's batches."""
        start, share, batch_size = self.start, self.share, self.passes.batch_size
        if not share.items:
            return
        windows = self.passes.epochs.windows(start.epoch)
        order = _order(windows, start)
        piece = max(1, _LOCATED // batch_size) * batch_size
        for begin in range(0, share.items, piece):
            end = min(begin + piece, share.items)
            places = windows.locate(order.numbers(start.position + _items(share, begin, end)))
            for first in range(begin, end, batch_size):
                last = min(first + batch_size, end)
                yield self._batch(windows, places.part(first - begin, last - begin), share.rows - first)

    def _batch(self, windows: Windows, places: Places, real: int) -> dict[str, Any]:
        in_torch = self.passes.batch_format == "torch"
        batch = windows.gather(places, "views" if in_torch else None)
        batch[VALID] = np.arange(len(places.entity)) < real
        return as_tensors(batch, import_torch(), windows.options.layout) if in_torch else batch


class WindowLoader(BaseLoader[WindowPasses, WindowPass]):
    """Batches of one rank, every window of the epoch exactly once over all ranks, the same number on each.

    remainder: what becomes of the last, incomplete step: "pad" repeats windows that are false in batch["valid"], "drop"
    leaves out less than a step, "exact" is for one rank; None: "exact" alone, else "pad". Every batch has "valid"; of a
    padded step with fewer windows than ranks, some ranks have no valid one. shuffle: see `order`; lanes
    and stretch are of "nearby". topology: this rank; None: found out now. Batches are dicts of torch tensors
    (dates as int64 microseconds) or numpy arrays, shaped as `Windows.gather` says; valid is bool [B].
    Raises `SettingsError` for what cannot work.
    """

    def __init__(
        self,
        epochs: Epochs,
        *,
        batch_size: int,
        shuffle: Shuffle = "everywhere",
        seed: int = 0,
        remainder: Remainder | None = None,
        lanes: int = 16,
        stretch: int = 4096,
        batch_format: BatchFormat = "torch",
        topology: Topology | None = None,
    ) -> None:
        for name, value in (("batch_size", batch_size), ("lanes", lanes), ("stretch", stretch)):
            check_integer(f"windows: {name}", value, least=1, most=MOST_LANES if name == "lanes" else None)
        check_word("windows: shuffle", shuffle, SHUFFLES)
        check_word("windows: batch_format", batch_format, get_args(BatchFormat))
        check_integer("windows: seed", seed)
        if remainder is not None:
            check_word("windows: remainder", remainder, get_args(Remainder))
        if batch_format == "torch":
            import_torch()
        topology = capture() if topology is None else topology
        passes = WindowPasses(
            epochs=epochs,
            batch_size=batch_size,
            shuffle=shuffle,
            seed=seed,
            remainder=resolve_remainder(remainder, topology.world_size),
            lanes=lanes,
            stretch=stretch,
            batch_format=batch_format,
            topology=topology,
        )
        super().__init__(passes, topology)
        count = self.present.start.count
        if passes.remainder == "drop" and count and not self.present.steps:
            raise SettingsError(
                f'windows: remainder="drop" leaves no step: the first epoch has {count} windows, and a step'
                f" of {topology.world_size} ranks takes {topology.world_size * batch_size}; give a smaller"
                ' batch_size or larger chunks, or pass remainder="pad"'
            )

    @property
    def epochs(self) -> Epochs:
        """The windows of every epoch."""
        return self.passes.epochs

    @property
    def is_shuffled(self) -> bool:
        """Whether every epoch has an order of its own."""
        return self.passes.shuffle != "none"

    def __len__(self) -> int:
        """Batches of the present pass from where it began; once it was taken to its end, of the next one."""
        confirm(self.topology)
        following = self.passes.begin(self.epoch + 1, self.present) if self._received.is_over else self.present
        return following.steps

    def read(self) -> Generator[dict[str, Any], None, None]:
        """The batches of the present pass from its beginning, watched but not counted."""
        start = self.present.start
        if start.count and not self.present.steps and not start.position:
            log.warning('epoch %d has no step: remainder="drop" leaves out its %d windows', start.epoch, start.count)
        self.progress = Progress()
        yield from Watch(self, self.contract(), self.progress).over(self.present.batches())

    def contract(self, *, workers: int = 0) -> dict[str, Any]:  # noqa: ARG002 - windows have no workers
        """What every rank must say alike before the present pass."""
        return {
            "source": "windows",
            "batch_size": self.passes.batch_size,
            "remainder": self.passes.remainder,
            **self.present.start.to_dict(),
            "steps": self.present.steps,
        }


def as_tensors(batch: Mapping[str, Any], torch: Any, layout: Layout = "views") -> dict[str, Any]:
    """Arrays as tensors that share their memory, unless they are to be contiguous; dates become int64 microseconds."""
    tensors = {
        name: torch.from_numpy(values.view(np.int64) if values.dtype.kind == "M" else values)
        for name, values in batch.items()
    }
    return tensors if layout == "views" else {name: each.contiguous() for name, each in tensors.items()}


def _order(windows: Windows, state: WindowState) -> WindowOrder:
    if state.shuffle == "none":
        return InOrder()
    if state.shuffle == "everywhere":
        return everywhere(state.count, seed=state.seed, epoch=state.epoch)
    entities = windows.store.entities
    return nearby(
        entities.names, entities.rows, windows.per_entity, seed=state.seed, epoch=state.epoch,
        lanes=state.lanes, stretch=state.stretch,
    )  # fmt: skip


def _items(share: Share, begin: int, end: int) -> I64:
    """The places of items begin..end-1 of a share, filling ones included."""
    own = share.places(begin, end)
    filling = end - max(begin, share.rows)
    return np.concatenate([own, np.full(filling, share.place_of(share.rows))]) if filling > 0 else own
