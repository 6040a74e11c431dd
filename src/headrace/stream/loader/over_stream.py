"""What a dataset over a stream shows of it: the members that say the same of both."""

from __future__ import annotations

from typing import Any

from headrace.dataset.index import SplitIndex
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.order.remaining import Remainder
from headrace.stream.packed.plan import PackingReport
from headrace.stream.ranks.topology import Topology


class OverStream:
    """Members of whatever hands on the batches of `stream`."""

    stream: StreamLoader

    @property
    def index(self) -> SplitIndex:
        """The blocks that are read."""
        return self.stream.index

    @property
    def options(self) -> StreamOptions:
        """The settings of the stream."""
        return self.stream.options

    @property
    def topology(self) -> Topology:
        """This rank of how many."""
        return self.stream.topology

    @property
    def remainder(self) -> Remainder:
        """What becomes of the last, incomplete step."""
        return self.stream.remainder

    @property
    def epoch(self) -> int:
        """The epoch of the next pass, or of the present one."""
        return self.stream.epoch

    @property
    def dropped_rows(self) -> int:
        """Rows that nobody receives in a pass, over all ranks."""
        return self.stream.dropped_rows

    @property
    def partial_epoch(self) -> bool:
        """Whether the present pass is what a loaded state left of an epoch."""
        return self.stream.partial_epoch

    def report(self) -> PackingReport:
        """The present pass in numbers where rows are packed while they are streamed."""
        return self.stream.report()

    def epoch_start(self) -> dict[str, Any]:
        """The state at the beginning of the present epoch, in the order that the stream has now."""
        return self.stream.epoch_start()
