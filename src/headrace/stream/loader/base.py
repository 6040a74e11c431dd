"""The rules of passes, which every loader of one rank has; what a pass is made of is its source's business.

An epoch is a pass over everything, as in a torch loop:

- `set_epoch(e)` makes the next pass epoch e; a pass that is taken to its end is followed by the next epoch by itself.
- A new iterator before the end begins the same pass again, so that looking at one batch on one rank moves nothing.
- `load_state_dict` makes the next pass the rest of an epoch; `set_epoch` with that same epoch keeps it so. The state of
  an epoch's end gives an empty pass, as there is nothing left of it.

Batches are counted as they are received, so that a state says what the loop has, and not what was made ahead for it.
Two passes of one loader that are read by turns would be one count of both: the older one raises instead.
"""

from __future__ import annotations

import functools
import logging
import sys
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from typing import Any, Generic, Protocol, TypeVar

from headrace.checks import check_integer
from headrace.errors import StreamError
from headrace.sealed import MOST_EPOCHS
from headrace.stream.loader.rebatched import refuse_sharing_again
from headrace.stream.ranks.stats import StreamStats
from headrace.stream.ranks.topology import Topology, confirm
from headrace.stream.ranks.watch import Progress
from headrace.stream.read.batch import Batch

log = logging.getLogger("headrace")

Given = TypeVar("Given")


class AnyPass(Protocol):
    """What is left of an epoch, for these ranks, whatever it is made of."""

    @property
    def epoch(self) -> int:
        """Which epoch."""

    @property
    def steps(self) -> int | None:
        """Batches that each rank receives; the same for all. None: not known yet."""

    @property
    def is_partial(self) -> bool:
        """Whether something of the epoch was received before."""

    def state_after(self, batches: int) -> dict[str, Any]:
        """The state after so many batches on every rank: JSON. Raises `StreamError` if the pass has fewer."""

    def rows_after(self, batches: int) -> int:
        """Rows that this rank's first `batches` batches hold, without filling ones."""


P = TypeVar("P", bound=AnyPass)
S = TypeVar("S", bound="Source[Any]")


class Source(Protocol[P]):
    """Where passes come from: some data, in some form, for these ranks."""

    def begin(self, epoch: int, after: P | None = None) -> P:
        """An epoch from its beginning; in the order of the pass before, if these ranks can go on in it."""

    def resume(self, values: Mapping[str, Any]) -> P:
        """What a saved state left. Raises `StreamError` if it is not of these data, this seed and shuffle."""

    def whole(self, of: P) -> P:
        """The epoch of a pass from its beginning, in its order."""


class Received:
    """How many batches of its present pass a loader has handed out. batches: received since that pass began.

    has_ended: whether the last batch of the pass was received, after which the next pass is another one. is_over:
    whether the loop has also asked for more and been told that there is none.
    """

    def __init__(self) -> None:
        self._pass = 0
        self.has_warned = False
        self.forget()

    def forget(self) -> None:
        """The next pass begins elsewhere; one that is under way is not counted any more, and raises."""
        self.begin()
        self.has_ended = self.is_over = False

    def begin(self) -> None:
        """A pass begins now, from its beginning: none of it was received."""
        self._pass += 1
        self.batches = 0

    def counted(
        self, batches: Generator[Given, None, None], *, epoch: int, steps: int | None = None
    ) -> Generator[Given, None, None]:
        """The batches of the pass that began last, counted as they are received, and closed with this generator.

        steps: how many they will be, so that the last one ends the pass: a loop that knows len() may never ask for
        more. None: nobody knows yet. Raises `StreamError` at the next batch after `begin` or `forget`.
        """
        counted = self._pass
        with closing(batches):
            for batch in batches:
                if counted != self._pass:
                    raise StreamError(
                        f"epoch {epoch}: a newer pass of this stream has begun, and one state cannot count two;"
                        " finish one before the next, or make a second stream"
                    )
                self.batches += 1
                self.has_ended = self.batches == steps
                yield batch
        if counted == self._pass:
            self.has_ended = self.is_over = True


class BaseLoader(ABC, Generic[S, P]):
    """Batches of one rank, pass after pass, and one state that counts them.

    passes: where they come from. topology: this rank.
    """

    def __init__(self, passes: S, topology: Topology) -> None:
        self.topology, self.passes = topology, passes
        self._received = Received()
        self._begin(passes.begin(0))

    @abstractmethod
    def read(self) -> Generator[Batch, None, None]:
        """The batches of the present pass from its beginning, watched but not counted."""

    @abstractmethod
    def contract(self, *, workers: int = 0) -> dict[str, Any]:
        """What every rank must say alike before the present pass. workers: of a DataLoader."""

    @property
    @abstractmethod
    def is_shuffled(self) -> bool:
        """Whether every epoch has an order of its own."""

    @property
    def epoch(self) -> int:
        """The epoch of the present pass, or of the last one if that is finished."""
        return self.present.epoch

    @property
    def present(self) -> P:
        """The present pass, or the last one if that is finished."""
        return self._present

    @property
    def received(self) -> int:
        """Batches that the loop received since the present pass began."""
        return self._received.batches

    def stats(self) -> StreamStats:
        """What the present pass, or the last one, has cost its loop so far: seconds waited, rows, blocks read."""
        waits = self.progress.waits
        return waits.stats(self.present.rows_after(waits.steps))

    @property
    def partial_epoch(self) -> bool:
        """Whether the present pass is what a loaded state left of an epoch."""
        return self.present.is_partial

    def __len__(self) -> int:
        """Batches of a whole pass from where it begins: the epoch, or what a loaded state left of it."""
        confirm(self.topology)
        if self.present.steps is None:
            raise TypeError(
                'distribution="dynamic": how many batches there are is known when the last block is claimed'
            )
        return self.present.steps

    def __iter__(self) -> Iterator[Batch]:
        """A pass, from its beginning. Raises `StreamError` if two passes of one loader are read at a time."""
        confirm(self.topology)
        refuse_sharing_again(self, world_size=self.topology.world_size, caller=sys._getframe(1))
        self.begin_next()
        self.warn_of_repeat()
        yield from self.counted(self.read())

    def begin_next(self) -> None:
        """Go on to the next epoch if the last pass was taken to its end."""
        if self._received.has_ended:
            self._begin(self.passes.begin(self.epoch + 1, self.present))

    def counted(self, batches: Generator[Given, None, None], *, steps: int | None = None) -> Iterator[Given]:
        """The batches of the present pass from its beginning, counted as the loop receives them.

        steps: how many there are; None: the batches of the pass.
        """
        self._received.begin()
        steps = self.present.steps if steps is None else steps
        return told_to_accelerate(self._received.counted(batches, epoch=self.epoch, steps=steps), steps=steps)

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass this epoch, from its beginning; what a loaded state left of it stays so.

        Raises `SettingsError` unless it is an integer of 0 or more.
        """
        check_integer("epoch", epoch, least=0, most=MOST_EPOCHS)
        if epoch != self.epoch or self._received.has_ended:
            self._begin(self.passes.begin(epoch, self.present))

    def state_dict(self) -> dict[str, Any]:
        """Where the stream is after the batches handed out so far: JSON, the same on every rank."""
        return self.state_after(self._received.batches)

    def state_after(self, batches: int) -> dict[str, Any]:
        """The state after so many batches of the present pass on every rank. Raises `StreamError` beyond its end."""
        return self.present.state_after(batches)

    def epoch_start(self) -> dict[str, Any]:
        """The state at the beginning of the present epoch, in the order that the stream has now."""
        state: dict[str, Any] = self.passes.whole(self.present).state_after(0)
        return state

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        """Continue from a saved state, whatever ranks or batch size it was saved with.

        Raises `StreamError` if the state is not of these data, this seed and shuffle.
        """
        self._begin(self.passes.resume(values))

    def warn_of_repeat(self) -> None:
        """Warn, once, where a pass was left inside and begins again in the same order; one batch is but a look."""
        received = self._received
        if not self.is_shuffled or received.has_warned or received.has_ended or received.batches < 2:
            return
        received.has_warned = True
        log.warning(
            "epoch %d: was left after %d batches and begins again, with the same batches; for another order call"
            " set_epoch(epoch) before each loop over the stream, for the rest load_state_dict(state_dict())",
            self.epoch,
            received.batches,
        )

    def _begin(self, present: P) -> None:
        self._present = present
        self.progress = Progress()
        self._received.forget()


def told_to_accelerate(batches: Iterator[Given], *, steps: int | None) -> Iterator[Given]:
    """The same batches; Accelerate, where it is loaded, hears that number `steps` is the last. None: not known.

    `accelerator.accumulate` steps the optimizer every few batches, and after the last batch of a loader, while
    `GradientState().end_of_dataloader` is true.
    """
    return _told(batches, steps) if "accelerate.data_loader" in sys.modules else batches


def _told(batches: Iterator[Given], steps: int | None) -> Generator[Given, None, None]:
    reading = _kind()()
    reading.begin()
    try:
        for number, batch in enumerate(batches, start=1):
            reading.end_of_dataloader = number == steps
            yield batch
    finally:
        reading.end()
        if isinstance(batches, Generator):
            batches.close()


@functools.cache
def _kind() -> Any:
    """What stands for a pass in Accelerate's list of loaders that are being read."""
    loaders: Any = sys.modules["accelerate.data_loader"]

    class Reading(loaders.DataLoaderStateMixin):  # type: ignore[misc]  # Accelerate has no types
        def __init__(self) -> None:
            self.gradient_state = loaders.GradientState()

    return Reading
