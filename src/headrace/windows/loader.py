"""A stream of batches of windows for one rank: this process alone, and a thread that reads the next chunk.

The positions of an epoch are dealt out in turn: rank r of R takes every R-th, batch_size at a time, so a step of all
ranks together is a run of positions, and there are as many steps everywhere. The order of the positions knows nothing
of ranks. The rules of passes are those of rows (see `stream.loader`):

- `set_epoch(e)` makes the next pass epoch e; a pass taken to its end is followed by the next epoch by itself.
- A new iterator before the end begins the same pass again.
- `load_state_dict` makes the next pass the rest of an epoch; `set_epoch` with that same epoch keeps it so.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Mapping
from typing import Any, Literal, get_args

import numpy as np

from headrace.arrays import I64
from headrace.checks import check_integer, check_word
from headrace.errors import SettingsError, StreamError
from headrace.sealed import MOST_EPOCHS, MOST_LANES
from headrace.stream.loader.options import VALID
from headrace.stream.loader.received import Received
from headrace.stream.order.share import Remainder, Share, count_steps, resolve_remainder, share_of
from headrace.stream.ranks.stats import StreamStats, Waits
from headrace.stream.ranks.topology import Topology, capture, confirm
from headrace.stream.ranks.watch import Watch
from headrace.stream.read.batch import import_torch
from headrace.windows.epochs import Epochs
from headrace.windows.options import Layout
from headrace.windows.order import SHUFFLES, InOrder, Shuffle, WindowOrder, everywhere, nearby
from headrace.windows.state import WindowState
from headrace.windows.windows import Places, Windows

log = logging.getLogger("headrace")

BatchFormat = Literal["torch", "numpy"]

_LOCATED = 1 << 14  # windows whose places are looked up at a time


class WindowLoader:
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
        self.epochs, self.batch_size, self.seed, self.shuffle = epochs, batch_size, seed, shuffle
        self.topology = capture() if topology is None else topology
        self.remainder: Remainder = resolve_remainder(remainder, self.topology.world_size)
        self._torch = import_torch() if batch_format == "torch" else None
        self._lanes, self._stretch = lanes, stretch
        self._received, self._waits = Received(), Waits()
        self._start = self._fresh(0)
        if self.remainder == "drop" and self._start.count and not self.fresh_steps(0):
            raise SettingsError(
                f'windows: remainder="drop" leaves no step: the first epoch has {self._start.count} windows, and a step'
                f" of {self.topology.world_size} ranks takes {self.topology.world_size * batch_size}; give a smaller"
                ' batch_size or larger chunks, or pass remainder="pad"'
            )

    @property
    def epoch(self) -> int:
        """The epoch of the present pass, or of the last one if that is finished."""
        return self._start.epoch

    @property
    def received(self) -> int:
        """Batches handed out since the present pass began."""
        return self._received.batches

    def __len__(self) -> int:
        """Batches of the present pass from where it began; once it was taken to its end, of the next one."""
        return self.fresh_steps(self.epoch + 1) if self._received.is_over else self.steps_from(self._start)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """A pass, from its beginning. Raises `StreamError` if two passes of one loader are read at a time."""
        confirm(self.topology)
        if self._received.has_ended:
            self._begin(self._fresh(self._start.epoch + 1))
        if self._start.count and not self.steps_from(self._start) and not self._start.position:
            log.warning(
                'epoch %d has no step: remainder="drop" leaves out its %d windows', self.epoch, self._start.count
            )
        self._received.begin()
        watch = Watch(self, self._contract())
        self._waits = watch.progress.waits
        batches = watch.over(self._batches(self._start))
        yield from self._received.counted(batches, epoch=self.epoch, steps=self.steps_from(self._start))

    def stats(self) -> StreamStats:
        """What the present pass, or the last one, has cost its loop so far; rows are windows, without filling ones."""
        return self._waits.stats(min(self._waits.steps * self.batch_size, self._share(self._start).rows))

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass this epoch, from its beginning; what a loaded state left of it stays so."""
        check_integer("set_epoch: epoch", epoch, least=0, most=MOST_EPOCHS)
        if epoch != self._start.epoch or self._received.has_ended:
            self._begin(self._fresh(epoch))

    def state_dict(self) -> dict[str, Any]:
        """Where the stream is after the batches handed out so far: JSON, the same on every rank."""
        return self.state_after(self.received).to_dict()

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        """Go on from a saved state, in its order, whatever ranks or batch size it was saved with.

        Raises `StreamError` if it is a state of other windows, chunks, seed or shuffle.
        """
        state = WindowState.from_dict(values)
        state.check(self._start)
        self._lanes, self._stretch = state.lanes, state.stretch
        if (state.count, state.pass_number, state.chunk) != (
            self.epochs.count(state.epoch),
            *self.epochs.place(state.epoch),
        ):
            raise StreamError(
                f"window state: epoch {state.epoch} was chunk {state.chunk} of pass {state.pass_number} with"
                f" {state.count} windows; here it is chunk and pass {self.epochs.place(state.epoch)[::-1]} with"
                f" {self.epochs.count(state.epoch)}; begin the epoch anew"
            )
        self._begin(state)

    def state_after(self, batches: int) -> WindowState:
        """The state when every rank has received so many batches since the pass began."""
        step = self.topology.world_size * self.batch_size
        return self._start.at(min(self._start.count, self._start.position + batches * step))

    def steps_from(self, state: WindowState) -> int:
        """Batches that every rank gets of what a state leaves."""
        left = state.count - state.position
        ranks = self.topology.world_size
        return count_steps(left, ranks=ranks, batch_size=self.batch_size, remainder=self.remainder)

    def fresh_steps(self, epoch: int) -> int:
        """Batches that every rank gets of a whole epoch."""
        return self.steps_from(self._fresh(epoch))

    def _contract(self) -> dict[str, Any]:
        """What every rank must say alike before a pass."""
        return {
            "source": "windows",
            "batch_size": self.batch_size,
            "remainder": self.remainder,
            **self._start.to_dict(),
            "steps": self.steps_from(self._start),
        }

    def _batches(self, start: WindowState) -> Generator[dict[str, Any], None, None]:
        share = self._share(start)
        if not share.items:
            return
        windows = self.epochs.windows(start.epoch)
        order = self._order(windows, start)
        piece = max(1, _LOCATED // self.batch_size) * self.batch_size
        for begin in range(0, share.items, piece):
            end = min(begin + piece, share.items)
            places = windows.locate(order.numbers(start.position + _items(share, begin, end)))
            for first in range(begin, end, self.batch_size):
                last = min(first + self.batch_size, end)
                yield self._batch(windows, places.part(first - begin, last - begin), share.rows - first)

    def _batch(self, windows: Windows, places: Places, real: int) -> dict[str, Any]:
        batch = windows.gather(places, None if self._torch is None else "views")
        batch[VALID] = np.arange(len(places.entity)) < real
        return batch if self._torch is None else as_tensors(batch, self._torch, windows.options.layout)

    def _share(self, start: WindowState) -> Share:
        """This rank's part of what is left."""
        return share_of(
            start.count - start.position,
            rank=self.topology.rank,
            ranks=self.topology.world_size,
            batch_size=self.batch_size,
            remainder=self.remainder,
        )

    def _order(self, windows: Windows, state: WindowState) -> WindowOrder:
        if state.shuffle == "none":
            return InOrder()
        if state.shuffle == "everywhere":
            return everywhere(state.count, seed=state.seed, epoch=state.epoch)
        entities = windows.store.entities
        return nearby(
            entities.names, entities.rows, windows.per_entity, seed=state.seed, epoch=state.epoch,
            lanes=state.lanes, stretch=state.stretch,
        )  # fmt: skip

    def _fresh(self, epoch: int) -> WindowState:
        number, chunk = self.epochs.place(epoch)
        return WindowState(
            windows=self.epochs.identity,
            count=self.epochs.count(epoch),
            seed=self.seed,
            epoch=epoch,
            shuffle=self.shuffle,
            lanes=self._lanes,
            stretch=self._stretch,
            pass_number=number,
            chunk=chunk,
        )

    def _begin(self, state: WindowState) -> None:
        self._start, self._waits = state, Waits()
        self._received.forget()


def as_tensors(batch: Mapping[str, Any], torch: Any, layout: Layout = "views") -> dict[str, Any]:
    """Arrays as tensors that share their memory, unless they are to be contiguous; dates become int64 microseconds."""
    tensors = {
        name: torch.from_numpy(values.view(np.int64) if values.dtype.kind == "M" else values)
        for name, values in batch.items()
    }
    return tensors if layout == "views" else {name: each.contiguous() for name, each in tensors.items()}


def _items(share: Share, begin: int, end: int) -> I64:
    """The places of items begin..end-1 of a share, filling ones included."""
    own = share.places(begin, end)
    filling = end - max(begin, share.rows)
    return np.concatenate([own, np.full(filling, share.place_of(share.rows))]) if filling > 0 else own
