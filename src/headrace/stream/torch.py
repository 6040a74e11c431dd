"""The stream as a torch dataset, for a DataLoader with or without worker processes.

    dataset = StreamingDataset(index, read_block, StreamOptions(batch_size=256, shuffle=True), num_workers=4)
    loader = DataLoader(dataset, batch_size=None, num_workers=4)
    for epoch in range(epochs):
        dataset.set_epoch(epoch)
        for batch in loader: ...

It yields whole batches, so the DataLoader gets batch_size=None. Worker w of rank r is consumer w * world_size + r; a
DataLoader takes its workers' batches in turn, and every worker has the same number, so the order a rank sees is fixed.
fork, spawn and forkserver work, with persistent workers or without.

Every pass is of the epoch that set_epoch said last: a parent process cannot see when its workers begin a pass, so no
epoch advances by itself here. A loaded state makes each pass the rest of its epoch until set_epoch names another one.

Inside torchdata's StatefulDataLoader each worker saves and loads its own progress; see `stateful`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

from headrace.dataset.index import SplitIndex
from headrace.errors import MissingExtra, SettingsError, StreamError
from headrace.stream.batch import Batch
from headrace.stream.options import StreamOptions
from headrace.stream.passes import (
    check_epoch,
    check_options,
    checked_state,
    dropped_rows,
    first_state,
    plan_pass,
    read_pass,
    state_after,
    steps_of,
)
from headrace.stream.plan import Plan
from headrace.stream.reader import ReadBlock
from headrace.stream.state import StreamState
from headrace.stream.stateful import WorkerProgress, is_worker_state
from headrace.stream.topology import Topology, capture, confirm

try:
    import torch
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info
except ImportError as error:
    raise MissingExtra("torch", "torch") from error

# What of a pass travels in shared memory, so that workers that live on see it: its epoch, whether it is the rest that a
# loaded state left (1) or a whole epoch (0), how many states were loaded so far, whether the parent said an epoch, and
# whether workers go on from progress of their own (the one thing that workers write).
_EPOCH, _REST, _LOADS, _SAID, _OWN = range(5)


class StreamingDataset(IterableDataset[Batch]):
    """Batches of one rank, every row of the split exactly once over all ranks and workers, the same number on each.

    num_workers: that of the DataLoader, which does not tell its dataset before the workers run; checked there.
    topology: this rank; None: found out now, in the process that builds the dataset, and carried to its workers.
    read_block must be picklable for spawn and forkserver.
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
        if isinstance(num_workers, bool) or not isinstance(num_workers, int) or num_workers < 0:
            raise SettingsError(f"num_workers is {num_workers!r}; expected an integer of 0 or more")
        self.index = index
        self.options = options
        self.num_workers = num_workers
        self.topology = capture() if topology is None else topology
        consumers = self.topology.world_size * max(1, num_workers)
        self.remainder = check_options(index, options, consumers=consumers)
        self._read_block = read_block
        self._start = first_state(index, options, consumers=consumers)
        self._loads = 0  # a worker that knows of fewer than the parent is out of date
        self._received = 0
        self._pass = 0
        self._progress: WorkerProgress | None = None  # that of a worker before it was stopped
        self._pass_start, self._given = self._start, 0  # of the present pass: its start, what was given before a stop
        self._shared = torch.zeros(5, dtype=torch.int64)
        self._shared.share_memory_()  # type: ignore[no-untyped-call]  # torch leaves it untyped

    @property
    def epoch(self) -> int:
        """The epoch of the next pass, or of the present one."""
        return int(self._shared[_EPOCH])

    @property
    def dropped_rows(self) -> int:
        """Rows that remainder="drop" leaves out of a pass, over all ranks."""
        return dropped_rows(self._start, self.options, topology=self.topology, workers=self.num_workers)

    def plan(self) -> Plan:
        """The present pass: steps, rows and bytes of every rank and worker."""
        return plan_pass(self.index, self.options, self._start, topology=self.topology, workers=self.num_workers)

    def __len__(self) -> int:
        """Batches this rank receives in a pass from all its workers; the same on every rank."""
        confirm(self.topology)
        return steps_of(self._start, self.options, topology=self.topology, workers=self.num_workers)

    def __iter__(self) -> Iterator[Batch]:
        """One pass of this worker, or of the rank if there are no workers.

        Raises `StreamError` if the DataLoader has another number of workers, if a state was loaded that a living worker
        did not get, or if the captured rank is not the rank of this process.
        """
        confirm(self.topology)
        worker = self._worker()
        start, given = self._present_pass()
        self._pass_start, self._given = start, given
        self._pass += 1
        self._received = 0
        this_pass = self._pass
        batches = read_pass(
            self.index,
            self._read_block,
            self.options,
            self._advanced(start, given * max(1, self.num_workers)),
            topology=self.topology,
            worker=worker,
            workers=self.num_workers,
        )
        with closing(batches):
            for batch in batches:
                if this_pass != self._pass:
                    raise StreamError(
                        f"epoch {start.epoch}: a newer pass of this dataset has begun, and one state cannot count two;"
                        " finish one before the next, or make a second dataset"
                    )
                self._received += 1
                yield batch

    def data_loader(self, *, method: str = "spawn") -> DataLoader[Batch]:
        """A DataLoader over this dataset with its number of workers. method: how workers start."""
        return DataLoader(
            self,
            batch_size=None,
            num_workers=self.num_workers,
            multiprocessing_context=method if self.num_workers else None,
        )

    def set_epoch(self, epoch: int) -> None:
        """Make the following passes this epoch, in persistent workers too; a loaded state of this epoch stays in force.

        Call it between passes, before the loop over the DataLoader begins.
        """
        check_epoch(epoch)
        if epoch != self.epoch:
            self._begin(self._start.fresh(epoch), rest=0)
        self._shared[_SAID] = 1

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
        return self.state_after(self._received)

    def state_after(self, batches: int) -> dict[str, Any]:
        """The state after so many batches of the present pass, on every rank: arithmetic.

        batches: received from the DataLoader since the pass began, by this rank as by every other.
        Raises `StreamError` if a pass has fewer batches, or if the workers went on from progress of their own.
        """
        if self._shared[_OWN]:
            raise StreamError(
                f"state: the workers resumed epoch {self.epoch} from a StatefulDataLoader's state, which this process"
                " did not see; use headrace.stream.stateful.stream_state(loader.state_dict())"
            )
        return self._advanced(self._start, batches).to_dict()

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        """Continue from a saved state, whatever ranks, workers and batch size it was saved with.

        Call it before the DataLoader starts its workers. In a worker, a StatefulDataLoader gives each its own progress
        back, which holds unless set_epoch named another epoch. Raises `StreamError` if the state is not of this split,
        seed and shuffle, or a worker's is of another topology.
        """
        if is_worker_state(values):
            self._load_progress(WorkerProgress.from_dict(values))
            return
        state = checked_state(values, self.index, self.options)
        self._loads += 1
        self._begin(state, rest=1)

    def __getstate__(self) -> dict[str, Any]:
        confirm(self.topology)  # the last moment in the parent: a spawned worker has no torch.distributed to ask
        return self.__dict__.copy()

    def __setstate__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)
        if not self._shared.is_shared():  # type: ignore[no-untyped-call]  # torch leaves it untyped; plain pickle copies
            self._shared.share_memory_()  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def _begin(self, state: StreamState, *, rest: int) -> None:
        self._start = state
        self._received = 0
        self._pass += 1
        for place, value in ((_EPOCH, state.epoch), (_REST, rest), (_LOADS, self._loads), (_OWN, 0)):
            self._shared[place] = value

    def _advanced(self, start: StreamState, batches: int) -> StreamState:
        return state_after(start, batches, self.options, topology=self.topology, workers=self.num_workers)

    def _own_progress(self) -> WorkerProgress:
        start, given = self._present_pass() if not self._received else (self._pass_start, self._given + self._received)
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
                " headrace.stream.stateful.stream_state(saved) of the whole loader's state"
            )
        progress.check(worker=self._worker(), topology=self._topology_of_workers)
        checked_state(progress.start.to_dict(), self.index, self.options)
        if self._shared[_SAID] and self.epoch != progress.start.epoch:
            return
        self._progress = progress
        self._shared[_EPOCH], self._shared[_OWN] = progress.start.epoch, 1

    @property
    def _topology_of_workers(self) -> tuple[int, int, int, str]:
        return self.topology.world_size, self.num_workers, self.options.batch_size, self.remainder

    def _present_pass(self) -> tuple[StreamState, int]:
        """Where the next pass begins as the parent means it now, and how much of it this worker gave already."""
        epoch, rest, loads, _, own = self._shared.tolist()
        if loads != self._loads:
            raise StreamError(
                f"worker: a state was loaded (now in epoch {epoch}) after this worker had started, and did not reach"
                " it; load the state before the first loop over the DataLoader, or make a new DataLoader"
            )
        if own and self._progress is not None and self._progress.start.epoch == epoch:
            return self._progress.start, self._progress.batches
        return (self._start if rest else self._start.fresh(epoch)), 0

    def _worker(self) -> int:
        info = get_worker_info()
        found = 0 if info is None else info.num_workers
        if found != self.num_workers:
            raise StreamError(
                f"workers: the dataset was built with num_workers={self.num_workers}, the DataLoader has {found};"
                " every row must have one reader: pass the same number to both"
            )
        return 0 if info is None else info.id
