"""The stream as a torch dataset, for a DataLoader with or without worker processes.

    dataset = StreamingDataset(index, read_block, StreamOptions(batch_size=256, shuffle=True), num_workers=4)
    loader = DataLoader(dataset, batch_size=None, num_workers=4)
    for epoch in range(epochs):
        dataset.set_epoch(epoch)
        for batch in loader: ...

It yields whole batches, so the DataLoader gets batch_size=None. Worker w of rank r is consumer w * world_size + r; a
DataLoader takes its workers' batches in turn, and every worker has the same number, so the order a rank sees is fixed.
fork, spawn and forkserver work, with persistent workers or without.

A pass that is taken to its end is followed by the next epoch, without workers and in `data_loader()`. In a DataLoader
of your own with workers, the dataset's process does not see where a pass begins. Every pass there is of the epoch that
set_epoch named last, or the rest of it that a loaded state left. A second pass in the same order logs a warning.

Inside torchdata's StatefulDataLoader each worker saves and loads its own progress; see `stateful`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, Literal, get_args

from headrace.arrays import I64
from headrace.checks import check_integer, check_word
from headrace.dataset.index import SplitIndex
from headrace.errors import MissingExtra, SettingsError, StreamError
from headrace.stream.loader.options import Memory, StreamOptions
from headrace.stream.loader.passes import (
    check_epoch,
    check_options,
    checked_state,
    dropped_rows,
    first_state,
    make_quarantine,
    next_state,
    plan_pass,
    read_pass,
    reader_name,
    resumed_state,
    state_after,
    steps_of,
)
from headrace.stream.loader.received import Received, warn_of_repeat
from headrace.stream.loader.stateful import WorkerProgress, is_worker_state, turn_after
from headrace.stream.order.plan import Plan
from headrace.stream.order.state import StreamState
from headrace.stream.order.whereabouts import given_per_block
from headrace.stream.ranks.agreement import contract_of
from headrace.stream.ranks.topology import Topology, capture, confirm
from headrace.stream.ranks.watch import Noted, Progress, Watch
from headrace.stream.read.batch import Batch
from headrace.stream.read.memory import check_memory
from headrace.stream.read.quarantine import Quarantine
from headrace.stream.read.reader import KeptSplit, ReadBlock
from headrace.stream.read.transform import check_travels
from headrace.stream.workers.deaths import WorkerDeath, not_begun_anew, told_by_torch
from headrace.stream.workers.inherited import keep_inherited
from headrace.stream.workers.notes import WorkerNotes

try:
    from torch.utils.data import IterableDataset, get_worker_info

    from headrace.stream.loader.rebatched import refuse_batches_of_batches, refuse_sharing_again
    from headrace.stream.loader.watched_loader import WatchedLoader
    from headrace.stream.workers.shared_pass import Part, SharedFindings, SharedPass
    from headrace.stream.workers.table_parcel import parcel_of, whole_batch
except ImportError as error:
    raise MissingExtra("torch", "torch") from error

log = logging.getLogger("headrace")


class StreamingDataset(IterableDataset[Batch]):
    """Batches of one rank, every row of the split exactly once over all ranks and workers, the same number on each.

    num_workers: that of the DataLoader, which does not tell its dataset before the workers run; checked there.
    topology: this rank; None: found out now, in the process that builds the dataset, and carried to its workers.
    read_block must be picklable for spawn and forkserver. Raises `SettingsError` for options that are not for workers.
    """

    def __init__(
        self,
        index: SplitIndex,
        read_block: ReadBlock,
        options: StreamOptions,
        *,
        num_workers: int = 0,
        topology: Topology | None = None,
    ) -> None:
        super().__init__()
        check_integer("num_workers", num_workers, least=0)
        if options.distribution == "dynamic":
            raise SettingsError(
                'distribution="dynamic" claims blocks in the process of its rank, and not in DataLoader workers; use'
                ' headrace.open(...).stream(..., distribution="dynamic"), or distribution="balanced" here'
            )
        if options.pack is not None:
            raise SettingsError("pack= needs the lengths of all rows: use headrace.open(...).torch_dataset(..., pack=)")
        check_memory(options, num_workers)
        self.index = index
        self.options = options
        self.num_workers = num_workers
        self.topology = capture() if topology is None else topology
        consumers = self.topology.world_size * max(1, num_workers)
        self.remainder = check_options(index, options, consumers=consumers)
        self._read_block = read_block
        self._kept = KeptSplit()
        self._start = first_state(index, options, world_size=self.topology.world_size, workers=num_workers)
        self._loads = 0  # a worker that knows of fewer than the parent is out of date
        self._received = Received()
        self._progress: WorkerProgress | None = None  # that of a worker before it was stopped
        self._skip = 0  # batches of the pass that its earlier workers gave; see `going_on_after`
        self._pass_start, self._given = self._start, 0  # of the present pass: its start, what was given before a stop
        self._shared = SharedPass()
        blocks = len(index.rows) if options.on_bad_block == "quarantine" else 0
        self._findings = SharedFindings(workers=num_workers, threads=options.read_threads, blocks=blocks)

    @property
    def epoch(self) -> int:
        """The epoch of the next pass, or of the present one."""
        return self._shared.epoch

    @property
    def dropped_rows(self) -> int:
        """Rows that remainder="drop" leaves out of a pass, over all ranks."""
        return dropped_rows(self._start, self.options, topology=self.topology, workers=self.num_workers)

    @property
    def pass_state(self) -> dict[str, Any]:
        """Where the next pass begins, as `load_state_dict` takes it; a worker sees what its parent means."""
        return self._present_pass()[0].to_dict()

    @property
    def pass_rows(self) -> int:
        """Rows of the next pass over all ranks: those of the split, or what a loaded state left of them."""
        return self._present_pass()[0].remaining.total

    @property
    def quarantined_rows(self) -> int:
        """Filling rows that stand for bad blocks in the present pass so far, over the workers of this rank.

        With workers: of the batches they have made, some of which the loop has yet to receive. Files and reasons are
        in the log.
        """
        return self._findings.given_up

    def plan(self) -> Plan:
        """The present pass: steps, rows and bytes of every rank and worker."""
        start, _ = self._present_pass()
        return plan_pass(self.index, self.options, start, topology=self.topology, workers=self.num_workers)

    def __len__(self) -> int:
        """Batches this rank receives in a pass from all its workers; the same on every rank."""
        confirm(self.topology)
        return steps_of(self._start, self.options, topology=self.topology, workers=self.num_workers)

    def __iter__(self) -> Iterator[Batch]:
        """One pass of this worker, or of the rank if there are no workers; workers give what travels best.

        Raises `SettingsError` in a DataLoader with a batch_size of its own, as batches are whole already, and in what
        would share out this rank's rows again; see `rebatched`.
        """
        caller = sys._getframe(1)  # nothing else tells a dataset how it is read
        refuse_sharing_again(self, world_size=self.topology.world_size, caller=caller)
        refuse_batches_of_batches(caller, self.options.batch_size, "torch_dataset()")
        return self._whole_pass()

    def _whole_pass(self) -> Generator[Batch, None, None]:
        if get_worker_info() is not None:
            keep_inherited()
        with closing(self.batches()) as batches:
            yield from batches if get_worker_info() is None else map(parcel_of, batches)

    def begin_next(self) -> None:
        """Go on to the next epoch if the last pass was taken to its end; in workers nothing, their parent does."""
        if get_worker_info() is None and self._received.has_ended:
            self._begin(self._epoch_state(self.epoch + 1), part="whole")

    def batches(self, *, makes: Literal["batches", "rows"] = "batches") -> Generator[Batch, None, None]:
        """The same pass, as batches in a worker too. makes: what the loop receives of them.

        Raises `StreamError` if the DataLoader has another number of workers, if a state was loaded that a living worker
        did not get, or if the captured rank is not the rank of this process.
        """
        confirm(self.topology)
        worker = self._worker()
        self.begin_next()
        skip = self._skipped()
        turn, begun = turn_after(skip, worker=worker, workers=self.num_workers)
        start, given = self._present_pass()
        given += begun
        self._pass_start, self._given = start, given
        if not skip:
            self._note_beginning(worker)
        self._received.begin()
        progress = Progress(self.index)
        batches = read_pass(
            self.index,
            Noted(self._read_block, progress.reading, self._notes(worker)),
            self.options,
            self._advanced(start, given * max(1, self.num_workers)),
            topology=self.topology,
            worker=turn,
            workers=self.num_workers,
            quarantine=self._quarantine(worker, anew=not skip),
            kept=self._kept,
        )
        steps = None
        if not self.num_workers:
            batches = Watch(self, self._contract(), progress, stall_seconds=self.options.stall_seconds).over(batches)
            steps = len(self) if makes == "batches" else None  # rows of the last piece may be left
        yield from self._received.counted(batches, epoch=start.epoch, steps=steps, of="dataset")
        self._note_end(worker)

    def data_loader(self, *, method: str = "spawn", memory: Memory = "pageable") -> WatchedLoader:
        """A DataLoader over this dataset with its number of workers. method: how workers start.

        memory: "pinned" makes the DataLoader pin what it receives.
        """
        check_word("memory", memory, get_args(Memory))
        return WatchedLoader(
            self,
            batch_size=None,
            num_workers=self.num_workers,
            multiprocessing_context=method if self.num_workers else None,
            pin_memory=memory == "pinned",
            collate_fn=whole_batch,
        )

    def watched(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The batches of a DataLoader over this dataset, one pass: what stops one rank is then known on all.

        For loaders that are not made by `data_loader`. Without worker processes the dataset does it by itself. Raises
        `EngineError` that names what a worker read when it died, where the DataLoader names its process only.
        """
        return self._watched_workers(batches) if self.num_workers else iter(batches)

    def _watched_workers(self, batches: Iterable[Batch]) -> Generator[Batch, None, None]:
        self.begin_next()
        self._received.begin()
        progress = Progress(self.index, shared=self._findings.reading)
        watch = Watch(self, self._contract(), progress, stall_seconds=self.options.stall_seconds)
        over = watch.over(self._named_deaths(batches))
        yield from self._received.counted(over, epoch=self.epoch, steps=len(self), of="dataset")

    @contextmanager
    def going_on_after(self, batches: int) -> Generator[None, None, None]:
        """Workers that start inside begin after so many batches of the present pass, in place of others that died."""
        self._skip = batches
        self._findings.go_on_after(batches, self._given_per_block)
        try:
            yield
        finally:
            self._skip = 0

    def death_of(self, worker: int, process: int, code: int | None = None) -> WorkerDeath:
        """What is known of a worker that died, for `headrace.stream.workers.deaths`."""
        reader = reader_name(self.topology, worker=worker, workers=self.num_workers)
        return self._findings.death_of(worker, reader=reader, process=process, code=code)

    def set_epoch(self, epoch: int) -> None:
        """Make the following passes this epoch, in persistent workers too; a loaded state of this epoch stays in force.

        Call it between passes, before the loop over the DataLoader begins. Raises `SettingsError` unless it is an
        integer of 0 or more.
        """
        check_epoch(epoch)
        if epoch != self.epoch or self._received.has_ended:
            self._begin(self._epoch_state(epoch), part="whole")
        self._shared.name()

    def state_dict(self) -> dict[str, Any]:
        """Where the stream is after the batches handed out so far. Needs num_workers=0; see `state_after` otherwise.

        In a worker process: the progress of that worker alone, for a StatefulDataLoader; see `stateful`.
        """
        if get_worker_info() is not None:
            return self._own_progress().to_dict()
        if self.num_workers:
            raise StreamError(
                f"state: with num_workers={self.num_workers} this process does not see what its workers handed out;"
                " count the batches received in the loop and call state_after(batches)"
            )
        return self.state_after(self._received.batches)

    def state_after(self, batches: int) -> dict[str, Any]:
        """The state after so many batches of the present pass, on every rank: arithmetic.

        batches: received from the DataLoader since the pass began, by this rank as by every other.
        Raises `StreamError` if a pass has fewer batches, or if the workers went on from progress of their own.
        """
        if self._shared.is_workers_own:
            raise StreamError(
                f"state: the workers resumed epoch {self.epoch} from a StatefulDataLoader's state, which this process"
                " did not see; use headrace.stream_state(loader.state_dict())"
            )
        return self._advanced(self._start, batches).to_dict()

    def epoch_start(self) -> dict[str, Any]:
        """The state at the beginning of the present epoch, in the order that the stream has now."""
        return StreamState.from_dict(self.state_after(0)).fresh(self.epoch).to_dict()

    @property
    def partial_epoch(self) -> bool:
        """Whether the present pass is what a loaded state left of an epoch. Raises as `state_after`."""
        start = StreamState.from_dict(self.state_after(0))
        return bool(start.position or start.base)

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        """Continue from a saved state, whatever ranks, workers and batch size it was saved with.

        Call it before the DataLoader starts its workers. In a worker, a StatefulDataLoader gives each its own progress
        back, which holds unless set_epoch named another epoch. Raises `StreamError` if the state is not of this split,
        seed and shuffle, or a worker's is of another topology.
        """
        if is_worker_state(values):
            self._load_progress(WorkerProgress.from_dict(values))
            return
        ranks = {"world_size": self.topology.world_size, "workers": self.num_workers}
        state = resumed_state(values, self.index, self.options, **ranks)
        self._loads += 1
        self._begin(state, part="rest")

    def __getstate__(self) -> dict[str, Any]:
        confirm(self.topology)  # the last moment in the parent: a spawned worker has no torch.distributed to ask
        refuse_sharing_again(self, world_size=self.topology.world_size)
        check_travels(self.options.transform)
        return self.__dict__.copy()

    def _begin(self, state: StreamState, *, part: Part) -> None:
        self._start = state
        self._received.forget()
        self._shared.begin(state.epoch, part=part, loads=self._loads)

    def _note_beginning(self, worker: int) -> None:
        """Warn, once, where a pass begins again as one before it did."""
        if worker or not (self.options.shuffle or self._start.samples_per_epoch or self._shared.is_rest):
            return
        if get_worker_info() is None:
            warn_of_repeat(self._received, self.epoch, of="dataset")
        elif self._shared.is_repeat():
            log.warning(
                "epoch %d: the DataLoader's workers begin it again, with the same batches as before; call"
                " dataset.set_epoch(epoch) before each pass, or loop over dataset.data_loader(), which goes on to the"
                " next epoch by itself",
                self.epoch,
            )

    def _note_end(self, worker: int) -> None:
        if not worker and get_worker_info() is not None:
            self._shared.end()

    def _epoch_state(self, epoch: int) -> StreamState:
        ranks = {"world_size": self.topology.world_size, "workers": self.num_workers}
        return next_state(self._start, epoch, self.index, self.options, **ranks)

    def _advanced(self, start: StreamState, batches: int) -> StreamState:
        return state_after(start, batches, self.options, topology=self.topology, workers=self.num_workers)

    def _own_progress(self) -> WorkerProgress:
        received = self._received.batches
        start, given = (self._pass_start, self._given + received) if received else self._present_pass()
        world_size, workers, batch_size, remainder = self._topology_of_workers
        return WorkerProgress(
            start=start,
            worker=self._worker(),
            batches=given,
            world_size=world_size,
            workers=workers,
            batch_size=batch_size,
            remainder=remainder,
        )

    def _load_progress(self, progress: WorkerProgress) -> None:
        if get_worker_info() is None:
            raise StreamError(
                f"state: it is worker {progress.worker}'s own progress, and this is no worker process; pass"
                " headrace.stream_state(saved) of the whole loader's state"
            )
        progress.check(worker=self._worker(), topology=self._topology_of_workers)
        checked_state(progress.start.to_dict(), self.index, self.options)
        if self._shared.was_named and self.epoch != progress.start.epoch:
            return
        self._progress = progress
        self._shared.go_on_alone(progress.start.epoch)

    def _contract(self) -> dict[str, Any]:
        """What every rank must say alike before a pass."""
        own = self._shared.is_workers_own
        return contract_of(
            self.index,
            self._said_options,
            None if own else self.state_after(0),
            source=type(self).__name__,
            epoch=self.epoch,
            workers=self.num_workers,
            remainder=self.remainder,
            steps=None if own else len(self),
        )

    @property
    def _said_options(self) -> StreamOptions:
        return self.options

    def _quarantine(self, worker: int, *, anew: bool) -> Quarantine | None:
        if anew:
            self._findings.forget(worker)
        slot, workers = self._findings.slot(worker), self.num_workers
        return make_quarantine(
            self.index, self.options, topology=self.topology, worker=worker, workers=workers, slot=slot
        )

    def _given_per_block(self, worker: int, batches: int) -> I64:
        items = batches * self.options.batch_size
        return given_per_block(self.plan(), rank=self.topology.rank, worker=worker, items=items)

    @property
    def _topology_of_workers(self) -> tuple[int, int, int, str]:
        return self.topology.world_size, self.num_workers, self.options.batch_size, self.remainder

    def _present_pass(self) -> tuple[StreamState, int]:
        """Where the next pass begins as the parent means it now, and how much of it this worker gave already."""
        epoch = self._shared.epoch
        if self._shared.loads != self._loads:
            raise StreamError(
                f"worker: a state was loaded (now in epoch {epoch}) after this worker had started, and did not reach"
                " it; load the state before the first loop over the DataLoader, or make a new DataLoader"
            )
        if self._shared.is_workers_own and self._progress is not None and self._progress.start.epoch == epoch:
            return self._progress.start, self._progress.batches
        return (self._start if self._shared.is_rest else self._epoch_state(epoch)), 0

    def _skipped(self) -> int:
        """Batches that workers before these gave of the pass that begins now; the next one begins at its beginning."""
        skip, self._skip = self._skip, 0
        return skip

    def _notes(self, worker: int) -> WorkerNotes | None:
        """Where a worker notes what it reads."""
        return self._findings.notes(worker) if self.num_workers else None

    def _named_deaths(self, batches: Iterable[Batch]) -> Generator[Batch, None, None]:
        """The batches of any DataLoader; an error that names processes names what they read."""
        try:
            yield from batches
        except RuntimeError as error:
            processes = told_by_torch(error)
            if not processes:
                raise
            numbers = self._findings.numbers()
            deaths = [self.death_of(numbers[each], each) for each in processes if each in numbers]
            if not deaths:
                raise
            raise not_begun_anew(deaths, self.index) from error

    def _worker(self) -> int:
        info = get_worker_info()
        found = 0 if info is None else info.num_workers
        if found != self.num_workers:
            raise StreamError(
                f"workers: the dataset was built with num_workers={self.num_workers}, the DataLoader has {found};"
                " every row must have one reader: pass the same number to both"
            )
        return 0 if info is None else info.id


def in_worker() -> bool:
    """Whether this process is a DataLoader's worker."""
    return get_worker_info() is not None
