"""A stream of rows of tokens, packed while it is read: the loader of one process and threads.

    loader = headrace.open("tokens").stream(batch_size=4, shuffle=True, pack=4096)  # four bins of 4,096 tokens a batch
    for batch in loader: ...                                                        # as of rows packed before

The rows of each reader are read a window of `buffer_rows` at a time, and a window becomes bins of its own, as in
`packing_plan`. Lengths are known before, so the number of batches is arithmetic: every rank has as many as the one with
the most bins needs, and what a rank lacks is filled up with bins that train nothing, false in batch["valid"]. No rank
waits for another. Every row with tokens is in one bin, those of the tail too.

A state is where the pass began and how many batches every rank has received. On as many ranks with the same batch size
the window it stands in is read and packed again, and the next batch is the one that would have come. Elsewhere the rows
that nobody has received are dealt out anew. Memory: a window of rows beside what a stream holds, and lengths, 4 bytes a
row.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

from headrace.arrays import I32
from headrace.dataset.index import SplitIndex
from headrace.dataset.indexed import ReadBlock
from headrace.errors import SettingsError
from headrace.packing.preference import preference_field
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.order.state import StreamState
from headrace.stream.packed.passes import PackingPasses, packing_settings
from headrace.stream.packed.plan import PackingPlan, PackingReport
from headrace.stream.packed.row_lengths import row_lengths
from headrace.stream.packed.state import PackingState
from headrace.stream.ranks.topology import Topology, capture, confirm
from headrace.stream.read.batch import Batch


class PackingLoader(StreamLoader):
    """Batches of bins for one rank, every row with tokens in one of them over all ranks, the same number on each.

    lengths: tokens of every row of the index, int32 [N]. Batches are those of packed rows, see `packed_batch`; other
    columns that were asked for come beside, a value a sequence of the batch's real bins. Raises `InputError` for rows
    that are too long where the settings say so.
    """

    def __init__(
        self,
        index: SplitIndex,
        read_block: ReadBlock,
        options: StreamOptions,
        *,
        lengths: I32,
        topology: Topology | None = None,
    ) -> None:
        here = capture() if topology is None else topology
        self._passes = PackingPasses(index, read_block, options, lengths=lengths, consumers=here.world_size)
        super().__init__(index, self._passes.read_block, self._passes.rows, topology=here)
        self.remainder = self._passes.remainder
        self._packing.check_lengths()

    @property
    def dropped_rows(self) -> int:
        """Rows that too_long="drop" leaves out of the present pass, over all ranks."""
        return self.report().dropped_rows

    def report(self) -> PackingReport:
        """The present pass in numbers, over all ranks, from its beginning to its end."""
        return self._packing.report()

    def __len__(self) -> int:
        """Batches of the present pass from where it goes on; the same on every rank."""
        confirm(self.topology)
        return self._packing.steps - self._given

    def state_dict(self) -> dict[str, Any]:
        """Where the stream is after the batches handed out so far: JSON, the same on every rank."""
        return PackingState(
            start=self._start,
            batches=self._given + self._received.batches,
            world_size=self.topology.world_size,
            workers=0,
            batch_size=self._passes.options.batch_size,
            identity=self._passes.identity,
        ).to_dict()

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        """Continue from a saved state: exactly on as many ranks with the same batch size, else with the rows left.

        Raises `StreamError` if the state is not of this split, seed, shuffle and packing.
        """
        state = PackingState.from_dict(values, self._passes)
        state = state.resumed(self._passes, world_size=self.topology.world_size, workers=0)
        self._begin(state.start)
        self._given = state.batches

    def _begin(self, state: StreamState) -> None:
        super()._begin(state)
        self._given = 0
        self._planned: PackingPlan | None = None

    @property
    def _said_options(self) -> StreamOptions:
        return self._passes.options

    @property
    def _packing(self) -> PackingPlan:
        if self._planned is None:
            self._planned = self._passes.plan(self._start)
        return self._planned

    def _pass_batches(self, read_block: ReadBlock) -> Generator[Batch, None, None]:
        return self._passes.batches(
            read_block, self._start, self._packing, topology=self.topology, worker=0, workers=0, given=self._given
        )


def lengths_for(
    index: SplitIndex,
    read_block: ReadBlock,
    options: StreamOptions,
    *,
    contents: str | None = None,
    cache_dir: Path | None = None,
) -> I32:
    """The lengths that packing with these options needs; settings are looked at before anything is read."""
    assert options.pack_rows is not None
    packing_settings(options)
    judged = preference_field(index.schema, but=(options.pack_rows.tokens,)) if options.columns is None else None
    if judged is not None:
        raise SettingsError(
            f"pack: column {judged} judges answers, so rows that were rejected would be packed; say what to read with "
            f'columns=["{options.pack_rows.tokens}"] if all rows are good, else prepare a dataset of the good ones'
        )
    column = options.pack_rows.lengths or options.pack_rows.tokens
    return row_lengths(index, read_block, column, contents=contents, cache_dir=cache_dir)
