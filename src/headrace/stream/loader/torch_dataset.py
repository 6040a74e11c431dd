"""A stream as a torch dataset, for a DataLoader with or without worker processes.

    dataset = headrace.open("out").torch_dataset("train", batch_size=256, shuffle=True)
    loader = DataLoader(dataset, batch_size=None, num_workers=4)
    for epoch in range(epochs):
        dataset.set_epoch(epoch)
        for batch in loader: ...

The dataset yields whole batches, so pass batch_size=None to the DataLoader. The process that owns
the dataset reads. Worker w of W takes steps w, w + W, … of its rank, and a DataLoader takes its
workers in turn, so the batches do not depend on the number of workers. fork, spawn and forkserver
work, with or without persistent workers. See `workers.serving`.

Without workers and in `data_loader()`, the next epoch follows once a pass was read to its end. A
DataLoader of your own with workers does not report what it received. There, every pass reads the
epoch that set_epoch named last, or the rest of it that a loaded state left. A second pass in the
same order logs a warning.

Inside torchdata's StatefulDataLoader each worker saves and loads its own progress; see `stateful`.
"""

from __future__ import annotations

import logging
import os
import sys
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from itertools import count
from multiprocessing.context import get_spawning_popen
from typing import Any, get_args

import pyarrow as pa

from headrace.checks import as_integer, check_word
from headrace.dataset.index import SplitIndex
from headrace.errors import MissingExtra, SettingsError, StreamError, setting
from headrace.stream.loader.options import Memory, StreamOptions
from headrace.stream.loader.passes import MakePasses, Pass, Reading
from headrace.stream.loader.stateful import WorkerProgress, is_worker_state
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.order.remixed import Changed
from headrace.stream.ranks.stats import Progress, StreamStats
from headrace.stream.ranks.topology import Topology, confirm
from headrace.stream.read.batch import Batch
from headrace.stream.read.memory import check_memory
from headrace.stream.read.reader import ReadBlock
from headrace.stream.read.transform import check_travels, transformed

try:
    from torch.utils.data import IterableDataset, default_convert, get_worker_info

    from headrace.stream.loader.check_collation import (
        refuse_batches_of_batches,
        refuse_sharing_again,
        refuse_worker,
    )
    from headrace.stream.loader.watched_loader import WatchedLoader, dead_workers_of, died
    from headrace.stream.workers.arrivals import Arrivals, StepMark
    from headrace.stream.workers.parcel import share_batch, unmade_batches, whole_batch
    from headrace.stream.workers.serving import Beginning, Client, Opened, Server, freeze_inherited
except ImportError as error:
    raise MissingExtra("torch", "torch") from error

log = logging.getLogger("headrace")

_OF_ANY_PROCESS = (
    "topology",
    "passes",
    "num_workers",
    "progress",
    "quarantined",
    "_current_pass",
    "_delivered",
)
# datasets that forked workers may read from
_SERVING: weakref.WeakSet[StreamingDataset] = weakref.WeakSet()


_PREFETCH_FACTOR = 2  # of a DataLoader that is told nothing else


class StreamingDataset(StreamLoader, IterableDataset[Batch]):
    """A `StreamLoader` that DataLoader workers can read, with the same members, errors and batches.

    index, read_block, options, passes, topology: as for `StreamLoader`. The topology is detected in
    the process that builds the dataset and sent to workers. read_block must be picklable for spawn
    and forkserver. num_workers: workers of `data_loader`; a DataLoader of your own may use another
    number.
    Raises `SettingsError` for options that cannot work.
    """

    def __init__(
        self,
        index: SplitIndex,
        read_block: ReadBlock,
        options: StreamOptions,
        passes: MakePasses | None = None,
        *,
        num_workers: int = 0,
        topology: Topology | None = None,
    ) -> None:
        super().__init__(index, read_block, options, passes, topology=topology)
        num_workers = as_integer("num_workers", num_workers, least=0)
        check_memory(options, num_workers)
        if options.distribution == "dynamic":
            raise SettingsError(
                f"{setting('distribution', 'dynamic')} claims blocks in the loop of its rank, and"
                " not for DataLoader workers",
                remedy=(
                    "use it in headrace.open(...).stream(...), or"
                    f" {setting('distribution', 'balanced')} here"
                ),
            )
        self.num_workers = num_workers
        self._serve_nothing()

    def _serve_nothing(self) -> None:
        """Initialise the state of a dataset that serves no workers yet, which is also its state in
        every worker.
        """
        # In the process that reads: the server of the workers and the process that started it.
        self._server: Server | None = None
        self._address: Any = None
        self._process = os.getpid()
        # workers that have received a copy so far; in a worker, the number before it
        self._copies = 0
        self._skip = 0  # batches of the watched pass from workers that died; see `go_on_after`
        # the progress of a pass that is watched here
        self._reading: Callable[[], Progress | None] = lambda: None
        self._is_unseen = False  # whether workers read for a loop that is not watched here
        self._was_named = False  # whether set_epoch named the epoch
        self._own_epoch: int | None = None  # the epoch that workers resume from their own progress
        self._read_to_end: Pass | None = None  # the pass that workers read to its end
        self._has_warned = False  # about a pass that workers restart
        # the pass that workers began last, and which of its batches have arrived
        self._arrivals: tuple[Pass | None, Arrivals | None] = (None, None)
        # In a worker: its connection, its current pass, and the batches it gave.
        self._client: Client | None = None
        self._beginning: Beginning | None = None
        self._has_begun = False
        self._batches_given = 0
        self._progress: WorkerProgress | None = None  # a worker's progress before it was stopped
        _SERVING.add(self)

    @property
    def quarantined_rows(self) -> int:
        """Filling rows that replace bad blocks in the current pass so far; the log has files and
        reasons.

        With workers this counts batches that were read for them, some of which the loop has not
        received yet.
        """
        if self.quarantined is None:
            return 0
        return self.quarantined.rows

    @property
    def current(self) -> Pass:
        """The current pass; in a worker, the pass whose steps it delivers."""
        if get_worker_info() is None:
            return self._current_pass
        return self.passes.resume(self._begun().start)

    def stats(self) -> StreamStats:
        """Return what the current pass has cost its loop so far, without workers or in
        `data_loader()`.

        Raises `StreamError` if workers of a DataLoader of your own read, because this process does
        not see that loop.
        """
        if self._is_unseen:
            raise StreamError(
                "stats: this process does not see how long the loop waits for the workers of a"
                " DataLoader of your own",
                remedy="loop over data_loader(), or over dataset.watched(loader)",
            )
        return super().stats()

    def __iter__(self) -> Iterator[Batch]:
        """Yield one pass of this worker, or of the rank if there are no workers.

        Workers yield batches in the form that is cheapest to send. Raises `SettingsError` in a
        DataLoader with its own batch_size, because batches are already whole, and in a loader that
        would shard this rank's rows again; see `rebatched`.
        """
        caller = sys._getframe(1)  # torch does not tell a dataset how it is read
        refuse_sharing_again(self, world_size=self.topology.world_size, caller=caller)
        refuse_batches_of_batches(caller, self.options.batch_size, "torch_dataset()")
        info = get_worker_info()
        if info is None:
            return super().__iter__()
        check_memory(self.options, info.num_workers)
        collate: Any = getattr(caller.f_locals.get("self"), "collate_fn", None)
        return self._served(collate)

    def _served(self, collate: Any) -> Generator[Any, None, None]:
        """Yield batches in the form that is cheapest to send from a worker.

        collate: the DataLoader's collate_fn, which the loop applies; None: unknown.
        """
        freeze_inherited()
        # torch's own conversion changes only arrays, which become tensors.
        is_as_it_is = collate is whole_batch or (
            collate is default_convert and self.options.batch_format != "numpy"
        )
        in_place = is_as_it_is and self.options.transform is None
        with closing(self.batches(in_place=in_place)) as batches:
            for number, batch in enumerate(batches):
                # A collate_fn of the user receives tables as tables.
                is_reported = collate in (default_convert, whole_batch) or not isinstance(
                    batch, pa.Table
                )
                if is_reported and not in_place:
                    yield share_batch(batch, self._mark_of(number))
                else:
                    yield batch

    def _mark_of(self, number: int) -> StepMark:
        """Return what a batch of this worker carries. number: in its pass of the worker."""
        info = get_worker_info()
        assert info is not None
        begun = self._begun()
        return StepMark(begun.arrivals, begun.first + number * info.num_workers)

    def batches(self, *, in_place: bool = False) -> Generator[Any, None, None]:
        """Yield the same pass as `__iter__`, but as real batches in a worker too.

        Raises `StreamError` if this process is not the captured rank, or if the worker cannot be
        served.
        """
        info = get_worker_info()
        if info is None:
            yield from super().__iter__()
            return
        confirm(self.topology)
        if self._has_begun:  # the previous pass is kept until now, in case its state is requested
            self._beginning = None
        begun = self._begun()
        self._has_begun = True
        assert self._client is not None
        worker_batches = self._client.batches(begun, in_place=in_place)
        if self.options.transform is not None:
            worker_batches = transformed(
                worker_batches,
                self.options.transform,
                reader=f"{self.topology}, worker {info.id}",
                context=self.passes.resume(begun.start).context,
                numbers=count(begun.first, info.num_workers),
            )
        with closing(worker_batches) as batches:
            for batch in batches:
                self._batches_given += 1
                yield batch

    def _begun(self) -> Beginning:
        """Return the start of this worker's current pass; begin a pass if there is none."""
        info = get_worker_info()
        assert info is not None
        if self._beginning is None:
            if self._client is None:
                if self._address is None:
                    refuse_worker()
                # The workers of one DataLoader share a base seed and are copied in order, so this
                # pair identifies it.
                pool = info.seed - info.id, self._copies - info.id
                self._client = Client(
                    self._address, pool=pool, worker=info.id, workers=info.num_workers
                )
            self._beginning = self._client.begin(self._progress)
            self._batches_given = 0
            self._progress = None
        return self._beginning

    def data_loader(self, *, method: str = "spawn", memory: Memory = "pageable") -> WatchedLoader:
        """Return a DataLoader over this dataset with its number of workers.

        method: the start method of workers. memory: "pinned" makes the DataLoader pin the batches
        it receives.
        """
        check_word("memory", memory, get_args(Memory))
        if memory == "pinned" and self.options.device is not None:
            raise SettingsError(
                f"{setting('memory', 'pinned')} with {setting('device', self.options.device)}: only"
                " CPU tensors can be pinned, and copies to a device are made from pinned memory",
                remedy=f"leave {setting('memory')} out",
            )
        return WatchedLoader(
            self,
            batch_size=None,
            num_workers=self.num_workers,
            multiprocessing_context=method if self.num_workers else None,
            pin_memory=memory == "pinned",
            collate_fn=whole_batch,
        )

    def watched(self, batches: Iterable[Batch], *, workers: int | None = None) -> Iterator[Batch]:
        """Return the batches of one pass of a DataLoader over this dataset, and publish errors of
        one rank to all.

        workers: workers of the DataLoader; None: `num_workers`. Without workers the dataset does
        this itself. Raises `EngineError` that names the dead worker if the DataLoader names only
        its process.
        """
        if workers is None:
            workers = self.num_workers
        if not workers:
            return iter(batches)
        self.begin_next()
        self.warn_of_repeat()
        progress = Progress(self.index)
        # Set now, as workers start before the loop requests a batch. The weak reference lets an
        # unused loop vanish.
        self._reading = weakref.ref(progress)
        self._is_unseen = False
        self._skip = 0

        def over_workers() -> Generator[Batch, None, None]:
            self.progress = progress
            watch = self.watch(progress, workers=workers)
            try:
                yield from self.counted(watch.over(self._named_deaths(batches)))
            finally:
                if self._reading() is progress:
                    self._reading = lambda: None
                    self._skip = 0

        return over_workers()

    def go_on_after(self, batches: int) -> None:
        """Make workers that start now begin after this number of batches, to replace workers that
        died.
        """
        self._skip = batches
        self._forget_run()

    def set_epoch(self, epoch: int) -> None:
        """Make the following passes this epoch, in persistent workers too; a loaded state of this
        epoch stays in force.

        Call it between passes, before the loop over the DataLoader begins. Raises `SettingsError`
        unless the epoch is an integer of 0 or more.
        """
        super().set_epoch(epoch)
        epoch = int(epoch)
        self._was_named = True
        self._read_to_end = None
        self._is_unseen = False
        if self._own_epoch != epoch:
            self._own_epoch = None

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the batches handed out so far, without workers or in
        `data_loader()`.

        With workers in a DataLoader of your own, this process does not see what the loop received,
        and it raises `StreamError`; see `state_after`. In a worker process it returns the progress
        of that worker alone, for a StatefulDataLoader; see `stateful`.
        """
        if (info := get_worker_info()) is not None:
            self._check_reader()
            begun = self._begun()
            return WorkerProgress(
                start=begun.start,
                epoch=begun.epoch,
                worker=info.id,
                batches=(begun.first - info.id) // info.num_workers + self._batches_given,
                world_size=self.topology.world_size,
                workers=info.num_workers,
                batch_size=self.options.batch_size,
                remainder=self.remainder,
            ).to_dict()
        if self._is_unseen:
            raise StreamError(
                "state: this process does not see what the workers of a DataLoader of your own"
                " handed out",
                remedy=(
                    "count the batches received in the loop and call state_after(batches), or loop"
                    " over data_loader()"
                ),
            )
        return self.state_after(self.delivered_count)

    def _check_reader(self) -> None:
        """Raise `SettingsError` in a worker that reads this dataset inside another one, which may
        hold batches back, leave some out, or make others of them.
        """
        info = get_worker_info()
        if info is None or info.dataset is self:
            return
        raise SettingsError(
            f"worker {info.id} reads {type(info.dataset).__name__}, and this dataset inside it"
            " knows neither how many batches the loop gets from it nor which it has",
            remedy=(
                "give the DataLoader the dataset itself, or count the batches in the loop and call"
                " state_after(batches) in the process of the loop"
            ),
        )

    def state_after(self, batches: int) -> dict[str, Any]:
        """Compute the state after this number of batches of the current pass on every rank.

        batches: received from the DataLoader since the pass began, the same number on every rank.
        Raises `StreamError` if the pass has fewer batches, if the workers resumed from their own
        progress, or if the loop received other batches than the first ones: those of a DataLoader
        with in_order=False come in any order.
        """
        if self._own_epoch is not None:
            raise StreamError(
                f"state: the workers resumed epoch {self.epoch} from a StatefulDataLoader's"
                " state, which this process did not see",
                remedy="use headrace.stream_state(loader.state_dict())",
            )
        state = super().state_after(batches)  # refuses more batches than the pass has
        current, arrivals = self._arrivals
        if (
            arrivals is not None
            and current is self._current_pass
            and arrivals.any
            and arrivals.without_gap < as_integer("batches", batches)
        ):
            raise StreamError(
                f"state: {batches} batches were received, and batch {arrivals.without_gap} (from 0)"
                " of this pass is not among them, as a DataLoader with in_order=False gives them in"
                " any order; resumed, the rows of some would come again, and those of others never",
                remedy="leave in_order=False out",
            )
        return state

    def load_state_dict(self, values: Mapping[str, Any], *, changed: Changed = "nothing") -> None:
        """Continue from a saved state, even one saved with other ranks, workers or batch size.

        In a worker, a StatefulDataLoader gives each worker its own progress back; it holds unless
        set_epoch named another epoch.
        Raises `StreamError` if the state belongs to another split, seed or shuffle, or a worker's
        state to another topology, or is asked to change.
        """
        if not is_worker_state(values):
            super().load_state_dict(values, changed=changed)
            self._own_epoch = None
            self._read_to_end = None
            self._is_unseen = False
            self._forget_run()
            return
        if changed != "nothing":
            raise StreamError(
                "state: it is one worker's own progress, which goes on with what was saved alone",
                setting="changed",
                value=changed,
                remedy="pass headrace.stream_state(saved) of the whole loader's state",
            )
        progress = WorkerProgress.from_dict(values)
        info = get_worker_info()
        if info is None:
            raise StreamError(
                f"state: it is worker {progress.worker}'s own progress, and this is not a worker"
                " process",
                remedy="pass headrace.stream_state(saved) of the whole loader's state",
            )
        here = self.topology.world_size, info.num_workers, self.options.batch_size, self.remainder
        progress.check(worker=info.id, topology=here)
        self._progress = progress
        self._beginning = None
        self._has_begun = False

    def __getstate__(self) -> dict[str, Any]:
        confirm(self.topology)  # check in the parent: a spawned worker has no torch.distributed
        refuse_sharing_again(self, world_size=self.topology.world_size)
        check_travels(self.options.transform)
        values = {name: getattr(self, name) for name in _OF_ANY_PROCESS}
        # pickled for a worker, or for a process that may start workers
        if get_spawning_popen() is not None:
            values |= {"_address": self._serve(), "_copies": self._copies}
            self._copies += 1
        return values

    def __setstate__(self, values: dict[str, Any]) -> None:
        self._serve_nothing()
        self.shared = None  # the process that reads pulls
        self.__dict__.update(values)

    def _serve(self) -> Any:
        """Return the address that serves workers; in a worker or a copy of one, the address of its
        parent.
        """
        if get_worker_info() is not None:
            return self._address
        if self._server is None or self._process != os.getpid():
            owner = weakref.ref(self)
            self._process = os.getpid()
            self._server = Server(
                lambda worker, workers, progress: _alive(owner)._opened(worker, workers, progress)
            )
            self._address = self._server.address
            weakref.finalize(self, self._server.close)
        return self._address

    def _forget_run(self) -> None:
        if self._server is not None:
            self._server.forget()

    def _opened(self, worker: int, workers: int, progress: WorkerProgress | None) -> Opened:
        """Return the pass that workers begin now."""
        confirm(self.topology)
        refuse_sharing_again(self, world_size=self.topology.world_size)
        first = self._skip
        if progress is not None and not (self._was_named and self.epoch != progress.epoch):
            super().load_state_dict(progress.start)
            self.quarantined = self.make_quarantine()
            self._own_epoch = progress.epoch
            # Other workers may be one batch behind this one or ahead of it.
            first = 0
            if progress.batches:
                first = max(0, (progress.batches - 1) * workers + worker + 1)
        current = self._current_pass
        if self._read_to_end is current and not first and not self._has_warned:
            self._has_warned = True
            log.warning(
                "epoch %d: the DataLoader's workers start it again with the same batches; call"
                " dataset.set_epoch(epoch) before each pass, or loop over dataset.data_loader(),"
                " which moves on to the next epoch itself",
                self.epoch,
            )
        owner = weakref.ref(self)
        arrivals = Arrivals(first)
        self._arrivals = current, arrivals
        return Opened(
            Beginning(current.state_after(0), current.epoch, first, arrivals.number),
            lambda first, in_place: _alive(owner)._read(current, workers, first, in_place),
        )

    def _read(
        self, current: Pass, workers: int, first: int, in_place: bool
    ) -> Generator[Any, None, None]:
        # the other workers have read all batches
        if current.steps is not None and first > current.steps:
            return
        watched = self._reading()
        self._is_unseen = watched is None
        if watched is None:
            progress = Progress(self.index)
        else:
            progress = watched
        if self.quarantined is None or not first:
            self.quarantined = self.make_quarantine()
        else:
            self.quarantined.go_back(first)
        if in_place or self.options.batch_format == "arrow":
            make = None
        else:
            make = unmade_batches(self.options)
        reading = Reading(
            progress.noted(self.passes.read_block),
            self.quarantined,
            make=make,
            counts=progress.sources,
        )
        batches = self.read_once(current, reading, progress, first=first)
        # If no process watches the loop itself, ranks agree and exchange errors here.
        if watched is None:
            ahead = _PREFETCH_FACTOR * workers
            batches = self.watch(progress, workers=workers, ahead=ahead).over(batches)
        yield from batches
        if watched is None and (self.is_shuffled or current.is_partial):
            self._read_to_end = current

    def _named_deaths(self, batches: Iterable[Batch]) -> Generator[Batch, None, None]:
        """Yield the batches of any DataLoader; turn its error about dead workers into one that
        names a remedy.
        """
        try:
            yield from batches
        except RuntimeError as error:
            processes = dead_workers_of(error)
            if not processes:
                raise
            raise died(str(self.topology), processes) from error


def _alive(owner: weakref.ref[StreamingDataset]) -> StreamingDataset:
    """Return the dataset behind a weak reference; the server of a dataset must not keep it
    alive.
    """
    dataset = owner()
    if dataset is None:
        raise StreamError(
            "worker: the dataset it reads for has gone",
            remedy="keep it for as long as the loop runs",
        )
    return dataset


def _before_fork() -> None:
    if get_worker_info() is not None:
        return
    for dataset in list(_SERVING):
        dataset._serve()
        dataset._copies += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork)
