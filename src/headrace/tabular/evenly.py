"""Rows one by one, evenly: how many each rank and each of its workers gives, for any number of workers.

The stream gives rank r of R the places r, r + R, r + 2R, … of what is left, whatever its workers, and of those every
W-th to each of W workers. A rank's rows are cut where all ranks have the same number; the stream's own filling rows, of
whole batches, lie behind that.
"""

from __future__ import annotations

from headrace.dataset.indexed import ReadBlock
from headrace.stream.loader.torch_dataset import StreamingDataset
from headrace.stream.order.share import Remainder


def rows_of_rank(rows: int, *, ranks: int, remainder: Remainder | None) -> int:
    """Rows of a pass over `rows` on each rank; but for "drop" the last one of some ranks repeats another."""
    return rows // ranks if remainder == "drop" else -(-rows // ranks)


def rows_of_worker(rank_rows: int, *, worker: int, workers: int) -> int:
    """Of a rank's rows those of one worker: every so many-th. No worker processes count as one."""
    return max(0, -(-(rank_rows - worker) // max(1, workers)))


def for_workers(stream: StreamingDataset, read_block: ReadBlock, workers: int) -> StreamingDataset:
    """The same stream in its present pass, for a DataLoader with this number of workers: the same order of rows."""
    same = StreamingDataset(stream.index, read_block, stream.options, num_workers=workers, topology=stream.topology)
    same.load_state_dict(stream.pass_state)
    return same
