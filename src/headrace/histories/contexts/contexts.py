"""Make contexts from prepared histories, as a stream for the ranks of a job or by position, singly
or in batches.

    contexts = open_contexts("out", "train", seed=7)
    # int32 [32, 1024]; ranks, epochs and state as of every stream
    for batch in contexts.stream(batch_size=32): ...
    contexts.batch(range(32))["inputs"]  # the first 32 of the same contexts

Position p of an endless run is in epoch p div N, where N = len(contexts). The context at p depends
only on the run, the options and p, so any process can make any part. `Contexts` is picklable and
thread-safe.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex, Unpack

import numpy as np

from headrace.arrays import I32, I64
from headrace.dataset.indexed import Verify
from headrace.dataset.local_shards import DISK_BYTES, LocalFiles
from headrace.digest import canonical_json, sha256_hex
from headrace.errors import CorruptShard, SettingsError
from headrace.histories.contexts.index import ContextIndex, index_rows
from headrace.histories.contexts.options import ContextOptions
from headrace.histories.contexts.reading import HistoryRows, find_histories
from headrace.histories.contexts.sample import ContextSegments, find_candidates
from headrace.histories.contexts.tokeniser import PLAIN, Layout, layout_of
from headrace.histories.contexts.tokens import Tokens, make_tokens, to_arrays
from headrace.histories.contexts.vocabulary import SIZE
from headrace.stream.loader.items import ItemArguments, LoopItemArguments, item_source
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.source import StreamSource
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.order.lanes import Lanes
from headrace.stream.order.state import StreamState
from headrace.stream.ranks.topology import Topology
from headrace.stream.read.ahead import end_threads, result_of, start_threads
from headrace.stream.read.batch import in_format
from headrace.stream.workers.options import split_worker_options

if TYPE_CHECKING:
    from headrace.stream.loader.torch_dataset import StreamingDataset


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextPlan:
    """Describe an epoch before it runs. `dataclasses.asdict` is JSON.

    rows, measurements: totals of the split. Small rows appear whole, once per epoch, in
    small_contexts; large rows are sampled in large_contexts.
    context_bytes: size of the arrays of one context. The rest is estimated from `sampled` contexts
    that were actually made.
    padding: fraction of tokens that are padding.
    measurements_per_context: mean over the sampled contexts.
    coverage: fraction of all measurements that an epoch is expected to show at least once.
    """

    rows: int
    small_rows: int
    measurements: int
    contexts: int
    small_contexts: int
    large_contexts: int
    contexts_per_row: dict[str, float]
    context_bytes: int
    sampled: int
    padding: float
    measurements_per_context: float
    coverage: float

    def __str__(self) -> str:
        return "\n".join(
            [
                (
                    f"{self.rows:,} rows with {self.measurements:,} measurements;"
                    f" {self.small_rows:,} rows are smaller than a context"
                ),
                (
                    f"{self.contexts:,} contexts an epoch: {self.small_contexts:,} of whole small"
                    f" rows, {self.large_contexts:,} sampled from large ones"
                ),
                (
                    f"{self.coverage:.1%} of the measurements seen at least once an epoch,"
                    f" {self.padding:.1%} padding, {self.measurements_per_context:.1f} measurements"
                    f" a context (from {self.sampled:,} contexts)"
                ),
            ]
        )


class Contexts:
    """The contexts of some rows; `stream` divides an epoch among ranks.

    `contexts[p]` is the context at position p, as int32 [L] arrays. `batch(positions)` makes
    several, int32 [B, L]. Grain and MaxText need this random access, because they manage reading
    order, ranks and checkpoints themselves.
    """

    def __init__(self, rows: HistoryRows, options: ContextOptions, layout: Layout = PLAIN) -> None:
        self.rows = rows
        self.options = options
        self.layout = layout

    @cached_property
    def index(self) -> ContextIndex:
        """The index of the contexts of an epoch.

        Building it reads, once, each row that may be smaller than a context.
        """
        return index_rows(self.rows, self.options, self.layout)

    def __len__(self) -> int:
        """Return N, the number of contexts per epoch, which is the same for every epoch."""
        return len(self.index)

    @property
    def vocabulary_size(self) -> int:
        """The number of token ids: the vocabulary, plus one for each value column."""
        return SIZE + len(self.rows.values)

    def __getitem__(self, position: SupportsIndex) -> dict[str, I32]:
        """Return the context at a position of an endless run, 0 or more, as int32 [L] arrays.

        Raises as `batch`.
        """
        return {name: array[0] for name, array in self.batch([position]).items()}

    def batch(self, positions: Sequence[SupportsIndex] | range | I64) -> dict[str, I32]:
        """Return the contexts at these positions, in this order.

        Each row is opened once, even if several contexts use it. The arrays of a batch may share
        one block of memory, which is freed once none of them is in use. Raises `IndexError` for
        negative positions and if an epoch has no contexts, `CorruptShard` for damaged rows.
        """
        requested = np.fromiter(map(int, positions), np.int64, len(positions))
        if len(requested) and (int(requested.min()) < 0 or not len(self)):
            raise IndexError(
                f"contexts: position {requested.min()}; an epoch has {len(self)} contexts, counted"
                " from 0"
            )
        built = build(self.index, self.rows, requested)
        return to_arrays(built.tokens, built.segments, self.options.keys)

    def stream(
        self,
        *,
        batch_size: int,
        workers: int = 0,
        topology: Topology | None = None,
        **options: Unpack[LoopItemArguments],
    ) -> StreamLoader:
        """Stream batches of this rank's part of an epoch.

        Over all ranks every context comes once, and all ranks make the same number of steps. Epoch
        e has the positions e·N … e·N + N - 1, in this order. A batch has the arrays of `batch` and
        `valid`, bool [B], which is False for contexts that only fill the last step. Contexts are
        made ahead of the loop in `read_threads` threads. workers: processes that run the transform;
        see `WorkerOptions` for their settings. Members, state and the other options are those of a
        stream of rows, see `StreamOptions`.
        Raises `SettingsError`, `InputError`, `StreamError`.
        """
        of_workers, others = split_worker_options(workers, options)
        return self._source(batch_size, others).stream(workers=of_workers, topology=topology)

    def torch_dataset(
        self,
        *,
        batch_size: int,
        num_workers: int = 0,
        topology: Topology | None = None,
        **options: Unpack[ItemArguments],
    ) -> StreamingDataset:
        """Return the stream as a torch `IterableDataset` of whole batches, for `DataLoader(dataset,
        batch_size=None)`.

        num_workers: that of the DataLoader. Raises as `stream`, and `MissingExtra` without torch.
        """
        return self._source(batch_size, options).torch_dataset(
            num_workers=num_workers, topology=topology
        )

    def _source(self, batch_size: int, options: ItemArguments) -> StreamSource:
        shuffled = self.options.shuffle != "none"
        return item_source(
            ContextItems(self), batch_size, options, shuffle=shuffled, seed=self.options.seed
        )

    def plan(self, *, sample: int = 512) -> ContextPlan:  # noqa: PLR0914 - the figures of an epoch
        """Describe an epoch before it runs.

        Estimates are based on at most `sample` contexts, spread evenly over an epoch. Raises
        `CorruptShard` for damaged rows.
        """
        index = self.index
        n = self.rows.n
        last = max(len(self) - 1, 0)
        positions = np.unique(np.linspace(0, last, min(sample, len(self))).astype(np.int64))
        count = max(len(positions), 1)
        measurements = sampled_measurements = large_segments = tokens = 0
        for part in np.array_split(positions, max(1, len(positions) // 64)):
            built = build(index, self.rows, part)
            inputs = built.tokens.tokens_BT[:, : self.options.context_tokens]
            tokens += int(np.count_nonzero(inputs))
            measurements += int(built.tokens.measurements.sum())
            sampled_measurements += int(built.tokens.measurements[built.segments.sampled].sum())
            large_segments += int(built.segments.sampled.sum())
        per_row = np.diff(index.ends, prepend=0)
        per_context = sampled_measurements / max(large_segments, 1)
        large = n[index.large_rows]
        seen = large * -np.expm1(-per_row * per_context / np.maximum(large, 1))
        total = int(n.sum())
        return ContextPlan(
            rows=len(n),
            small_rows=len(index.small_rows),
            measurements=total,
            contexts=len(index),
            small_contexts=index.small_contexts,
            large_contexts=index.large_contexts,
            contexts_per_row=_summary(per_row),
            context_bytes=self.options.context_bytes,
            sampled=len(positions),
            padding=1 - tokens / (count * self.options.context_tokens),
            measurements_per_context=measurements / count,
            coverage=float((n[index.small_rows].sum() + seen.sum()) / max(total, 1)),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Built:
    """The segments of a batch, and its tokens."""

    segments: ContextSegments
    tokens: Tokens


def build(index: ContextIndex, rows: HistoryRows, positions: I64) -> Built:
    """Build the contexts at these positions of an endless run; each row is opened once for all of
    them.

    Raises `CorruptShard` if a row has changed since the index was made.
    """
    segments = index.segments(index.at(positions))
    opened = rows.open(np.unique(segments.row).tolist())
    room = index.options.room
    candidates = find_candidates(segments, opened, room, index.layout)
    tokens = make_tokens(segments, candidates, len(positions), room, index.layout)
    lost = ~segments.sampled & (tokens.measurements != segments.count)
    if lost.any():
        row = int(segments.row[lost.argmax()])
        raise CorruptShard(
            "is longer than it was when the split was indexed",
            row=row + 1,
            remedy="open the run again",
        )
    return Built(segments, tokens)


class ContextItems:
    """Contexts as items of a stream."""

    lanes = Lanes(1, 1, 1)  # one lane: `ContextOptions.shuffle` decides the order

    def __init__(self, contexts: Contexts) -> None:
        self.contexts = contexts
        self.split = contexts.rows.split
        options = {name: getattr(contexts.options, name) for name in _OF_ORDER}
        options["tokeniser"] = asdict(contexts.options.tokeniser)
        self.identity = sha256_hex(canonical_json([contexts.rows.identity, options]))

    def count(self, epoch: int) -> int:  # noqa: ARG002 - the same in every epoch
        """Return the number of contexts per epoch."""
        return len(self.contexts)

    def chunk(self, epoch: int) -> None:
        """Return None: an epoch is one pass, not several chunks."""

    def sample(self) -> dict[str, I32]:
        """Return an empty batch of contexts."""
        return self.contexts.batch([])

    def batches(
        self, state: StreamState, positions: Iterator[I64], options: StreamOptions
    ) -> Generator[dict[str, Any], None, None]:
        """Make batches in threads, several at a time: at least one, and no more than fit in
        `prefetch_bytes`.
        """
        size = options.batch_size
        first = state.epoch * state.rows
        most = options.prefetch_bytes // (size * self.contexts.options.context_bytes)
        ahead = max(1, min(options.threads, most))
        threads = start_threads(ahead, name="headrace-contexts")
        pending = deque[Future[dict[str, I32]]]()
        end = end_threads  # module globals may be gone when the interpreter exits
        try:
            for chunk in positions:
                for begin in range(0, len(chunk), size):
                    if len(pending) > ahead:
                        yield in_format(result_of(pending.popleft()), options.batch_format)
                    batch = first + chunk[begin : begin + size]
                    pending.append(threads.submit(self.contexts.batch, batch))
            while pending:
                yield in_format(result_of(pending.popleft()), options.batch_format)
        finally:
            pending.clear()
            end(threads)


def _summary(counts: I64) -> dict[str, float]:
    """Return the least, the mean and the most of some counts, 0 if there are none."""
    if not len(counts):
        return {"least": 0.0, "mean": 0.0, "most": 0.0}
    return {"least": float(counts.min()), "mean": float(counts.mean()), "most": float(counts.max())}


# The options that, with the rows and the seed, decide the contexts of an epoch and their order.
_OF_ORDER = (
    "context_tokens",
    "rows",
    "measurements_per_context",
    "contexts_per_row",
    "shuffle",
    "max_segments",
)


def open_contexts(
    path: str | Path,
    split: str = "train",
    *,
    run: str | None = None,
    verify: Verify = "first_touch",
    cache_dir: str | Path | None = None,
    disk_bytes: int = DISK_BYTES,
    **options: Any,
) -> Contexts:
    """Open the contexts of a split of prepared histories. options: see `ContextOptions`.

    run: a run_id, to choose another run.
    verify: "first_touch" compares each shard with its checksum when a process first uses it;
    "never" does not. If the run is in an object store, its shards are copied to cache_dir (None:
    ~/.cache/headrace). The copies take up to disk_bytes, are verified, and are shared by the
    processes of a machine.
    Raises `InputError` if there are no histories, `SettingsError` for invalid options.
    """
    checked = ContextOptions(**options)
    files = LocalFiles(verify=verify, cache_dir=cache_dir, disk_bytes=disk_bytes)
    rows = HistoryRows(
        *find_histories(path, split, run), cache_bytes=checked.cache_bytes, files=files
    )
    layout = layout_of(checked.tokeniser, rows.columns)
    if layout.values and layout.longest > checked.context_tokens:
        raise SettingsError(
            f"a measurement of {len(layout.values)} value columns takes up to {layout.longest}"
            " tokens",
            setting="context_tokens",
            value=checked.context_tokens,
            remedy="give at least as many",
        )
    return Contexts(rows, checked, layout)
