"""Rows of tokens packed while they are streamed, as a torch dataset for a DataLoader with or without workers.

    dataset = headrace.open("tokens").torch_dataset(batch_size=4, shuffle=True, pack=4096, num_workers=2)
    for epoch in range(epochs):
        dataset.set_epoch(epoch)
        for batch in dataset.data_loader(): ...

Each (rank, worker) is a reader with windows and bins of its own, and all have as many batches as the one with the most
bins needs. A DataLoader takes its workers in turn. After a resume in the middle of a round the worker whose turn it is
comes first: worker w then goes on as worker (batches + w) mod W, so the batches are those of the uninterrupted pass.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, Literal

from headrace.arrays import I32
from headrace.dataset.index import SplitIndex
from headrace.dataset.indexed import ReadBlock
from headrace.errors import StreamError
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.torch_dataset import StreamingDataset, in_worker
from headrace.stream.order.share import given_by_workers
from headrace.stream.order.state import StreamState
from headrace.stream.packed.passes import PackingPasses
from headrace.stream.packed.plan import PackingPlan, PackingReport
from headrace.stream.packed.state import PackingState
from headrace.stream.ranks.topology import Topology, capture, confirm
from headrace.stream.ranks.watch import Noted, Progress, Watch
from headrace.stream.read.batch import Batch
from headrace.stream.read.memory import check_memory
from headrace.stream.read.transform import check_travels
from headrace.stream.workers.shared_pass import Part


class PackingDataset(StreamingDataset):
    """Batches of bins for one rank, every row with tokens in one of them over all ranks and workers, as many on each.

    lengths: tokens of every row of the index, int32 [N]. The rest is as of a `StreamingDataset`, and the batches are
    those of a `PackingLoader`. Workers save no progress of their own: a StatefulDataLoader needs num_workers=0.
    """

    def __init__(
        self,
        index: SplitIndex,
        read_block: ReadBlock,
        options: StreamOptions,
        *,
        lengths: I32,
        num_workers: int = 0,
        topology: Topology | None = None,
    ) -> None:
        here = capture() if topology is None else topology
        check_memory(options, num_workers)
        consumers = here.world_size * max(1, num_workers)
        self._passes = PackingPasses(index, read_block, options, lengths=lengths, consumers=consumers)
        self._before = 0  # batches of the pass that every rank received before the state that was loaded
        self._planned: tuple[StreamState, PackingPlan] | None = None
        super().__init__(index, self._passes.read_block, self._passes.rows, num_workers=num_workers, topology=here)
        self.remainder = self._passes.remainder
        self._plan_of(self._start).check_lengths()

    @property
    def dropped_rows(self) -> int:
        """Rows that too_long="drop" leaves out of a pass, over all ranks."""
        return self.report().dropped_rows

    def report(self) -> PackingReport:
        """The present pass in numbers, over all ranks, from its beginning to its end."""
        return self._plan_of(self._place()[0]).report()

    def __len__(self) -> int:
        """Batches this rank receives in a pass from all its workers; the same on every rank."""
        confirm(self.topology)
        start, before = self._place()
        return self._plan_of(start).steps * max(1, self.num_workers) - before

    def batches(self, *, makes: Literal["batches", "rows"] = "batches") -> Generator[Batch, None, None]:  # noqa: ARG002 - always batches
        """One pass of this worker, or of the rank if there are none; see `StreamingDataset.batches`."""
        confirm(self.topology)
        worker = self._worker()
        self.begin_next()
        start, before = self._place()
        skip = self._skipped()
        before += skip
        if not skip:
            self._note_beginning(worker)
        self._received.begin()
        turns = max(1, self.num_workers)
        turn = (before + worker) % turns
        progress = Progress(self.index)
        made = self._passes.batches(
            Noted(self._passes.read_block, progress.reading, self._notes(worker)),
            start,
            self._plan_of(start),
            topology=self.topology,
            worker=turn,
            workers=self.num_workers,
            given=int(given_by_workers(before, turns)[turn]),
        )
        steps = None
        if not self.num_workers:
            watch = Watch(self, self._contract(), progress, stall_seconds=self.options.stall_seconds)
            made, steps = watch.over(made), len(self)
        yield from self._received.counted(made, epoch=start.epoch, steps=steps, of="dataset")
        self._note_end(worker)

    def state_dict(self) -> dict[str, Any]:
        """Where the stream is after the batches handed out so far. Needs num_workers=0; else see `state_after`."""
        if self.num_workers or in_worker():
            raise StreamError(
                f"state: with num_workers={self.num_workers} this process does not see what its workers handed out;"
                " count the batches received in the loop and call state_after(batches)"
            )
        return self.state_after(self._received.batches)

    def state_after(self, batches: int) -> dict[str, Any]:
        """The state after so many batches of the present pass, on every rank: arithmetic.

        batches: received from the DataLoader since the pass began. Raises `StreamError` if a pass has fewer.
        """
        if not 0 <= batches <= len(self):
            raise StreamError(f"state: a pass of epoch {self.epoch} has {len(self)} batches on a rank, not {batches}")
        start, before = self._place()
        return self._state(start, before + batches)

    def epoch_start(self) -> dict[str, Any]:
        """The state at the beginning of the present epoch, in the order that the stream has now."""
        return self._state(self._place()[0].fresh(self.epoch), 0)

    @property
    def partial_epoch(self) -> bool:
        """Whether the present pass is what a loaded state left of an epoch."""
        start, before = self._place()
        return bool(before or start.position or start.base)

    def _state(self, start: StreamState, batches: int) -> dict[str, Any]:
        return PackingState(
            start=start,
            batches=batches,
            world_size=self.topology.world_size,
            workers=self.num_workers,
            batch_size=self._passes.options.batch_size,
            identity=self._passes.identity,
        ).to_dict()

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        """Continue from a saved state: exactly on the same ranks, workers and batch size, else with the rows left.

        Call it before the DataLoader starts its workers. Raises `StreamError` if the state is of something else.
        """
        state = PackingState.from_dict(values, self._passes)
        state = state.resumed(self._passes, world_size=self.topology.world_size, workers=self.num_workers)
        self._loads += 1
        self._begin(state.start, part="rest")
        self._before = state.batches

    def __getstate__(self) -> dict[str, Any]:
        check_travels(self._passes.options.transform)
        return {**super().__getstate__(), "_planned": None}

    @property
    def _said_options(self) -> StreamOptions:
        return self._passes.options

    def _begin(self, state: StreamState, *, part: Part) -> None:
        super()._begin(state, part=part)
        self._before = 0

    def _place(self) -> tuple[StreamState, int]:
        """Where the next pass begins as the parent means it now, and how many batches of it were received before."""
        start, _ = self._present_pass()
        return start, self._before if self._shared.is_rest else 0

    def _plan_of(self, start: StreamState) -> PackingPlan:
        if self._planned is None or self._planned[0] != start:
            self._planned = start, self._passes.plan(start)
        return self._planned[1]
