"""A stream of batches for one rank, read by this process with threads that decode ahead.

An epoch is a pass over all rows, as in a torch loop:

- `set_epoch(e)` makes the next pass epoch e. Without it, the next epoch follows once a pass was
read to its end.
- A new iterator before the end restarts the same pass, so looking at one batch on one rank changes
nothing.
- `load_state_dict` makes the next pass the rest of an epoch; `set_epoch` with that same epoch keeps
  the rest. The state of an epoch's end gives an empty pass, because nothing is left.

Batches are counted when the loop receives them, so a state describes what the loop has, not what
was prepared ahead. One counter cannot serve two interleaved passes of one loader, so the older pass
raises. The source of a loader makes its passes; see `passes`.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

from headrace.checks import as_integer
from headrace.dataset.index import SplitIndex
from headrace.errors import SettingsError, StreamError, setting
from headrace.sealed import MOST_EPOCHS
from headrace.stream.loader.check_collation import (
    READ_BY_INDEX,
    refuse_sharing_again,
    refuse_worker,
    report_to_accelerate,
)
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.passes import MakePasses, Pass, Passes, Reading, RowPasses
from headrace.stream.order.layout import BlendIndex
from headrace.stream.order.plan import Plan
from headrace.stream.order.remaining import Remainder
from headrace.stream.order.remixed import CHANGES, Changed
from headrace.stream.order.state import FORMAT_VERSION as ORDER_VERSION
from headrace.stream.ranks.group import join_group
from headrace.stream.ranks.stats import Progress, StreamStats
from headrace.stream.ranks.topology import Topology, capture, confirm, confirm_rank
from headrace.stream.ranks.watch import Watch
from headrace.stream.read.batch import Batch, import_torch
from headrace.stream.read.by_source import loss_by_source
from headrace.stream.read.columns import Columns
from headrace.stream.read.memory import ahead_of_the_loop
from headrace.stream.read.quarantine import Quarantine
from headrace.stream.read.reader import ReadBlock
from headrace.stream.read.transform import Transform, name_of, transformed

if TYPE_CHECKING:
    from headrace.stream.workers.partners import Partners

log = logging.getLogger("headrace")

_ALIKE = (  # options that are equal on all ranks
    "batch_size",
    "seed",
    "shuffle",
    "samples_per_epoch",
    "distribution",
    "batch_format",
    "lists",
    "batch_tokens",
    "group_by_length",
    "global_batch_size",
    "on_bad_block",
)
Given = TypeVar("Given")
_END = object()


class DeliveredCount:
    """Count the batches of the current pass that the loop has received.

    batches: received since the pass began.
    has_ended: whether the last batch of the pass was received; the next pass is then the next
    epoch. is_over: whether the loop also asked for another batch after the last one.
    """

    def __init__(self) -> None:
        self._pass = 0
        self.has_warned = False
        self.forget()

    def forget(self) -> None:
        """Reset for a pass that begins elsewhere; an iterator of the old pass raises at its next
        batch.
        """
        self.begin()
        self.has_ended = self.is_over = False

    def begin(self) -> None:
        """Start counting a pass from its beginning."""
        self._pass += 1
        self.batches = 0

    def counted(
        self, batches: Generator[Given, None, None], *, epoch: int, steps: int | None = None
    ) -> Generator[Given, None, None]:
        """Yield the batches of the pass that began last, and count each as it is received; closes
        `batches` at the end.

        steps: the number of batches, so that the last one ends the pass: a loop that knows len()
        may never ask for more. None: not known yet. Raises `StreamError` at the next batch after
        `begin` or `forget`, if one is left or `steps` is None; and in a fork of the process that
        began the pass, as both would go on with the same batches.
        """
        counted = self._pass
        process = os.getpid()
        delivered_count = 0
        with closing(batches):
            while True:
                if process != os.getpid():
                    raise StreamError(
                        f"epoch {epoch}: process {process} began this loop, and process"
                        f" {os.getpid()}, a fork of it, would get the same batches",
                        remedy=(
                            "begin the loop in the process that goes on with it; for workers of a"
                            " DataLoader use headrace.open(...).torch_dataset(...)"
                        ),
                    )
                # before a batch is taken: passes may share what makes their batches
                if counted != self._pass:
                    if delivered_count == steps:
                        break
                    raise StreamError(
                        f"epoch {epoch}: a newer pass of this stream has begun, and one state"
                        " cannot count two",
                        remedy="finish one before the next, or make a second stream",
                    )
                batch = next(batches, _END)
                if batch is _END:
                    break
                delivered_count += 1
                self.batches = delivered_count
                self.has_ended = self.batches == steps
                yield cast(Given, batch)
        if counted == self._pass:
            self.has_ended = self.is_over = True


class LoopEpochs:
    """What Lightning tells that an epoch begins, in place of the samplers of a DataLoader.

    For Lightning, the epoch of a checkpoint after the last batch is over: the pass that it begins
    then is the next epoch, and not the empty rest that a stream has after `load_state_dict`.
    """

    def __init__(self, stream: StreamLoader) -> None:
        self.batch_size = stream.options.batch_size
        self._stream = stream

    @property
    def sampler(self) -> LoopEpochs:
        """This object, as no cycle: a stream that is dropped ends its threads at once."""
        return self

    def set_epoch(self, epoch: int) -> None:  # noqa: ARG002 - of a loop that may have begun later
        """Go on to the next epoch if a loaded state left nothing of the present one."""
        self._stream.skip_empty_remainder()


class NotADataLoader(SettingsError, AttributeError):
    """An attribute of torch's DataLoader that a stream does not have; `hasattr` is false."""


class StreamLoader:
    """Batches of one rank: over all ranks every row of the split exactly once, with the same number
    of batches on each.

    Rows come in the global order of the epoch: rank r of R takes places r, r + R, r + 2R, …,
    batch_size at a time. See `batch` for the content of a batch. A block that cannot be read raises
    `CorruptShard`, `InputError` or `StoreError`. index: the blocks of the split.
    read_block: decodes one block; called in threads.
    passes: makes the passes if they are over items, or over bins that `pack=` makes from rows;
    None: over rows. store: a torch.distributed store, for distribution="dynamic"; None: the store
    of the default group. topology: this rank; None: detected now (see `topology.capture`). Memory:
    one pool and what is decoded ahead. quarantined: with on_bad_block="quarantine", the rows and
    blocks that the current pass gave up; else None.
    """

    def __init__(
        self,
        index: SplitIndex,
        read_block: ReadBlock,
        options: StreamOptions,
        passes: MakePasses | None = None,
        *,
        topology: Topology | None = None,
        store: Any = None,
    ) -> None:
        if topology is None:
            self.topology = capture()
        else:
            self.topology = topology
        self._make_passes = passes
        self.passes: Passes
        if passes is not None:
            self.passes = passes(index, read_block, options, self.topology)
        elif options.needs_lengths:
            name = "pack" if options.grouped_column is None else "group_by_length"
            raise SettingsError(
                f"{setting(name)} needs the lengths of all rows",
                remedy=f"use headrace.open(...).stream(..., {setting(name)})",
            )
        elif options.distribution == "dynamic":
            from headrace.stream.loader.dynamic import DynamicPasses

            self.passes = DynamicPasses(index, read_block, options, self.topology, store)
        else:
            self.passes = RowPasses(index, read_block, options, self.topology)
        self.shared = self._find_partners()
        if self.topology.world_size > 1 or self.shared is not None:
            join_group()
        self._delivered = DeliveredCount()
        self._begin(self.passes.begin(0))
        self.quarantined = self.make_quarantine()

    def for_every_rank(self, batch_size: int) -> StreamLoader:
        """Return a stream of the same rows of which every rank receives every batch, of
        `batch_size` rows.

        For loops that share out a batch themselves. Processes of one machine read once.
        """
        ranks = self.topology
        return self._with_topology(
            replace(self.options, batch_size=batch_size, global_batch_size=None),
            Topology(rank=0, world_size=1, partners=ranks.world_size * ranks.partners),
        )

    def _with_topology(self, options: StreamOptions, topology: Topology) -> StreamLoader:
        """Return a stream of the same kind over the same rows."""
        return StreamLoader(
            self.index, self.passes.read_block, options, self._make_passes, topology=topology
        )

    def __repr__(self) -> str:
        batches = f"batches of {self.options.batch_size:,}"
        if self.options.batch_tokens is not None:
            batches = f"batches of at most {self.options.batch_tokens:,} tokens"
        return (
            f"{type(self).__name__}({self.index.split!r}: {batches}, {self.topology}, epoch"
            f" {self.epoch})"
        )

    @property
    def index(self) -> SplitIndex:
        """The blocks that the stream reads."""
        return self.passes.index

    @property
    def options(self) -> StreamOptions:
        """The settings of the stream."""
        return self.passes.options

    @property
    def remainder(self) -> Remainder:
        """The rule for the last, incomplete step."""
        return self.passes.remainder

    @property
    def is_shuffled(self) -> bool:
        """True if every epoch has its own order."""
        return bool(self.options.shuffle or self.options.samples_per_epoch)

    @property
    def current(self) -> Pass:
        """The current pass, or the last one if it has finished."""
        return self._current_pass

    @property
    def epoch(self) -> int:
        """The epoch of the current pass, or of the last one if it has finished."""
        return self._current_pass.epoch

    @property
    def partial_epoch(self) -> bool:
        """True if the current pass is the rest of an epoch, from a loaded state."""
        return self._current_pass.is_partial

    @property
    def dropped_rows(self) -> int:
        """Rows that no rank receives in the current pass, over all ranks, because of "drop" or
        packing.
        """
        return self._current_pass.dropped_rows

    @property
    def delivered_count(self) -> int:
        """Batches that the loop has received since the current pass began."""
        return self._delivered.batches

    def __len__(self) -> int:
        """Return the number of batches of the current epoch: those taken before a loaded state, and
        those of the pass.

        Loops compare it with all that they did of the epoch. See `remaining`.
        """
        self._check_reader()
        return self._current_pass.batches_done + self._steps()

    @property
    def remaining(self) -> int:
        """Batches that the loop has not received yet of the current pass.

        Raises `TypeError` with distribution="dynamic".
        """
        self._check_reader()
        return self._steps() - self.delivered_count

    @property
    def batches_per_step(self) -> int:
        """Batches of this rank that make a global batch: accumulate the gradients of so many.

        1 without global_batch_size. The last step of an epoch may have fewer.
        """
        rank_rows = self.options.rank_step_rows(self.topology.world_size)
        return rank_rows // self.options.batch_size

    def _steps(self) -> int:
        confirm_rank(self.topology)
        if self._current_pass.steps is None:
            raise TypeError(
                'distribution="dynamic": how many batches there are is known when the last block is'
                " claimed"
            )
        return self._current_pass.steps

    def plan(self) -> Plan:
        """Return the plan of the current pass: steps, rows and bytes of every rank."""
        return self.current.plan()

    def report(self) -> Any:
        """Return the metrics that a row source has of the current pass, over all ranks; see
        `PackingReport` and `LengthReport`.

        Raises `SettingsError` if the source has none.
        """
        report = getattr(self._current_pass, "report", None)
        if report is None:
            raise SettingsError(
                "report: it is of rows that are packed or grouped by length",
                remedy=f"set {setting('pack')} or {setting('batch_tokens')}",
            )
        return report()

    def stats(self) -> StreamStats:
        """Return what the current or last pass has cost its loop so far: seconds, rows, blocks
        read.
        """
        return self.progress.stats(self._current_pass.rows_after(self.progress.steps))

    @property
    def blend_sources(self) -> list[str]:
        """The names of the datasets of a blend, which `batch["blend_source"]` numbers; else empty.

        -1 marks what is not valid. In packed batches it has an entry per sequence, filling
        included, parallel to the lengths of `cu_seqlens`.
        """
        if isinstance(self.index, BlendIndex):
            return list(self.index.names)
        return []

    def loss_by_source(
        self, losses: Any, batch: Mapping[str, Any], *, mask: Any = None
    ) -> dict[str, float]:
        """Average losses by source over the batches of all ranks, NaN for a source without any.

        losses: a tensor with a loss of each row or token. batch: of tensors; it may be on another
        device. mask: which losses count, of the same shape; None: those of valid rows, in packed
        batches those of loss_mask. All ranks of the default process group must call it: it reduces
        one vector of sums and counts, of the same length on all. Raises `StreamError` for other
        shapes, and for a batch without sources.
        """
        return loss_by_source(losses, batch, self.blend_sources, mask=mask)

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches of a pass from its beginning.

        Raises `StreamError` if two passes of one loader are interleaved, and `SettingsError` in a
        worker of a DataLoader, or for a loader that would share out this rank's rows again.
        """
        confirm(self.topology)
        self._check_reader()
        refuse_sharing_again(self, world_size=self.topology.world_size, caller=sys._getframe(1))
        self.begin_next()
        self.warn_of_repeat()
        yield from self.counted(self.read())

    def __getitem__(self, index: Any) -> NoReturn:
        """Raise `SettingsError`: this is what a DataLoader asks of a dataset that it takes for a
        sequence.
        """
        raise SettingsError(
            "a stream has batches in one order, and is not read by index", remedy=READ_BY_INDEX
        )

    @property
    def batch_sampler(self) -> LoopEpochs:
        """What Lightning tells that an epoch begins."""
        return LoopEpochs(self)

    @property
    def dataset(self) -> NoReturn:
        """Raise `NotADataLoader`: Accelerate's `skip_first_batches` asks a DataLoader for it, to
        read the same rows again from the beginning.
        """
        raise NotADataLoader(
            "a stream is a loader without a dataset: its order is its own",
            remedy=(
                "to go on after some batches use load_state_dict(state); to leave batches out use"
                " itertools.islice(stream, count, None)"
            ),
        )

    def read(self) -> Generator[Batch, None, None]:
        """Yield the batches of the current pass from its beginning, watched but not counted."""
        progress = self.progress = Progress(self.index)
        watch = self.watch(progress)
        self.quarantined = self.make_quarantine()
        reading = Reading(
            progress.noted(self.passes.read_block),
            self.quarantined,
            watch.check,
            make=self.makes_batches(),
            counts=progress.sources,
        )
        yield from watch.over(self.delivered(self.read_once(self._current_pass, reading, progress)))

    def read_once(
        self, current: Pass, reading: Reading, progress: Progress, *, first: int = 0
    ) -> Generator[Any, None, None]:
        """Return the batches of a pass from number `first` on, read once for all processes of this
        machine that read as this rank.
        """
        if self.shared is None:
            return current.batches(reading, first=first)
        return self.shared.batches(current, reading, progress, first=first)

    def _find_partners(self) -> Partners | None:
        """Return what shares passes with other processes that read as this rank; None without.

        A quarantine counts what one process gave up, so there each reads for itself.
        """
        if self.topology.partners == 1 or self.options.on_bad_block == "quarantine":
            return None
        import_torch()
        from headrace.stream.workers.partners import Partners

        return Partners(self.passes, self.topology)

    def makes_batches(self) -> Callable[[Columns, int], Iterator[Any]] | None:
        """Return what makes batches of columns; None: as the options say."""
        return None

    def counted(
        self, batches: Generator[Given, None, None], *, steps: int | None = None
    ) -> Iterator[Given]:
        """Return an iterator over the current pass from its beginning that counts batches as the
        loop receives them.

        steps: the number of batches; None: that of the pass.
        """
        self._delivered.begin()
        if steps is None:
            steps = self._current_pass.steps
        return report_to_accelerate(
            self._delivered.counted(batches, epoch=self.epoch, steps=steps), steps=steps
        )

    def begin_next(self) -> None:
        """Advance to the next epoch if the last pass was read to its end."""
        if self._delivered.has_ended:
            self._begin(self.passes.begin(self.epoch + 1, self._current_pass))

    def skip_empty_remainder(self) -> None:
        """Make the next epoch the present one if a loaded state left no batch of it."""
        if self._current_pass.is_partial and self._current_pass.steps == 0:
            self._begin(self.passes.begin(self.epoch + 1, self._current_pass))

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass this epoch from its beginning; if a loaded state left a rest of this
        epoch, keep it.

        Raises `SettingsError` unless the epoch is an integer of 0 or more.
        """
        epoch = as_integer("epoch", epoch, least=0, most=MOST_EPOCHS)
        if epoch != self.epoch or self._delivered.has_ended:
            self._begin(self.passes.begin(epoch, self._current_pass))

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the batches handed out so far: JSON, the same on every rank."""
        return self.state_after(self._delivered.batches)

    def state_after(self, batches: int) -> dict[str, Any]:
        """Return the state after this number of batches of the current pass on every rank.

        Raises `StreamError` if the pass has fewer.
        """
        self._check_reader()
        return self._current_pass.state_after(as_integer("batches", batches))

    def _check_reader(self) -> None:
        """Raise `SettingsError` in a worker of a DataLoader, which knows neither the length nor the
        position of a pass of this rank.
        """
        refuse_worker()

    def epoch_start(self) -> dict[str, Any]:
        """Return the state at the beginning of the current epoch, in the current order of the
        stream.
        """
        return self.passes.full(self._current_pass).state_after(0)

    def load_state_dict(self, values: Mapping[str, Any], *, changed: Changed = "nothing") -> None:
        """Continue from a saved state, even one saved with other ranks or another batch size.

        changed: "weights" goes on with other weights, schedule or limits of a blend, "datasets"
        with datasets added or removed, too. Each dataset keeps its place, found by its name. A
        state that is saved later is loaded without it.

        Raises `StreamError` if the state belongs to other data, another seed or another shuffle.
        """
        if changed not in CHANGES:
            raise SettingsError(
                f"it is {changed!r}",
                setting="changed",
                value=changed,
                remedy="give one of " + ", ".join(f'"{word}"' for word in CHANGES),
            )
        self._begin(self.passes.resume(values, changed))

    def close(self) -> None:
        """End the worker processes of a stream that has some, and leave its pass; a later pass
        starts new ones. Processes that read as the same rank go on without this one.
        """
        if self.shared is not None:
            self.shared.close()

    def contract(self, *, workers: int = 0) -> dict[str, Any]:
        """Return the values that must be equal on every rank before the current pass: rows,
        batches, positions.

        workers: the number of DataLoader workers. Options that only change how fast a rank reads
        are left out.
        """
        index = self.index
        options = self.options
        state = self._current_pass.state_after(0)
        start = state.get("start", state)  # a stream that packs rows nests the state of its rows
        return {
            "source": type(self._current_pass).__name__,
            "order_version": ORDER_VERSION,
            "split": index.split,
            "index": index.identity,
            "rows": index.total_rows,
            "filter": index.condition,
            "num_workers": workers,
            "remainder": self.remainder,
            "epoch": self.epoch,
            **{name: getattr(options, name) for name in _ALIKE},
            **{name: start.get(name) for name in ("position", "lanes", "window_rows")},
            "columns": list(index.schema.names if options.columns is None else options.columns),
            # by name: each rank has its own object
            "transform": options.transform and name_of(options.transform),
            "mask": options.mask_digest,
            "packed": repr(options.packed),
            "pack": repr(options.pack),
            "batches": state.get("batches"),
            "steps": self._current_pass.steps,
            "state": state.get("digest"),
        }

    def watch(self, progress: Progress, *, workers: int = 0, ahead: int = 0) -> Watch:
        """Return the watch of a pass: ranks agree before it starts, and an error on one rank is
        published to all.

        ahead: batches that are read before the training loop wants them.
        """
        return Watch(
            self,
            self.contract(workers=workers),
            progress,
            stall_seconds=self.options.stall_seconds,
            ahead=ahead,
        )

    def delivered(self, batches: Generator[Batch, None, None]) -> Generator[Any, None, None]:
        """Return the batches of the current pass in the form that the loop receives.

        If they are transformed, pinned or copied to a device, a thread does that ahead of the loop.
        Other batches are views of a pool; for them a thread would cost more than making them.
        """
        options = self.options
        if options.transform is not None:
            batches = self.transformed(batches, options.transform)
        elif options.memory == "pageable" and options.device is None:
            return batches
        return ahead_of_the_loop(batches, options)

    def transformed(
        self, batches: Generator[Batch, None, None], transform: Transform
    ) -> Generator[Any, None, None]:
        """Return the transform of the batches of the current pass."""
        return transformed(
            batches,
            transform,
            reader=str(self.topology),
            context=self._current_pass.context,
            note=self.progress.note_making,
        )

    def make_quarantine(self) -> Quarantine | None:
        """Create the quarantine of a pass; None if bad blocks raise."""
        if self.options.on_bad_block != "quarantine":
            return None
        return Quarantine(
            index=self.index,
            limit=self.options.quarantine_limit,
            reader=str(self.topology),
            batch_size=self.options.batch_size,
        )

    def warn_of_repeat(self) -> None:
        """Warn once if a pass was abandoned and restarts in the same order, unless at most one
        batch was read.
        """
        count = self._delivered
        if not self.is_shuffled or count.has_warned or count.has_ended or count.batches < 2:
            return
        count.has_warned = True
        log.warning(
            "epoch %d: was left after %d batches and starts again with the same batches; for"
            " another order call set_epoch(epoch) before each loop over the stream, for the rest"
            " load_state_dict(state_dict())",
            self.epoch,
            count.batches,
        )

    def _begin(self, current: Pass) -> None:
        self._current_pass = current
        self.progress = Progress()
        self._delivered.forget()
