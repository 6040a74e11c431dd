"""The contexts of prepared histories: as a stream for the ranks of a job, or by position, one or a batch.

    contexts = open_contexts("out", "train", seed=7)
    for batch in contexts.stream(batch_size=32): ...     # int32 [32, 1024]; ranks, epochs, state as of every stream
    contexts.batch(range(32))["inputs"]                  # the first 32 of the same contexts

Position p of an endless run is in epoch p div N, N = len(contexts). Which context is there depends on the run, the
options and p alone, so any process can make any part. Picklable; safe in threads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex, TypedDict, Unpack

import numpy as np

from headrace.arrays import I32, I64
from headrace.dataset.indexed import Verify
from headrace.dataset.local_shards import DISK_BYTES, LocalFiles
from headrace.digest import canonical_json, sha256_hex
from headrace.errors import CorruptShard, MissingExtra, SettingsError
from headrace.histories.contexts.index import ContextIndex, SmallFacts, may_be_small
from headrace.histories.contexts.options import ContextOptions, Kernel, Keys, Shuffle, Weighting
from headrace.histories.contexts.reading import HistoryRows, open_rows
from headrace.histories.contexts.results import longest_measurement
from headrace.histories.contexts.sample import IN_NUMPY, Candidates, Sampling, Segments, candidates
from headrace.histories.contexts.tokens import Tokens, batch_of, tokens_in_python
from headrace.histories.contexts.vocabulary import SIZE, Vocabulary
from headrace.stream.loader.dataset import stream_of
from headrace.stream.loader.items import ItemArguments, ItemPasses, item_index, item_options, no_block
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.stream_loader import Parts, StreamLoader
from headrace.stream.order.lanes import Lanes
from headrace.stream.order.state import StreamState
from headrace.stream.ranks.topology import Topology
from headrace.stream.read.ahead import end_threads, start_threads
from headrace.stream.read.batch import import_torch, in_format

if TYPE_CHECKING:
    from headrace.stream.loader.torch_dataset import StreamingDataset


_ROWS_AT_A_TIME = 1024


class ContextArguments(TypedDict, total=False):
    """The options of contexts, for functions that pass them on; see `ContextOptions`."""

    context_tokens: int
    seed: int
    rows: Weighting
    measurements_per_context: int
    contexts_per_row: int
    shuffle: Shuffle
    vocab: Vocabulary
    keys: Keys
    max_segments: int | None
    kernel: Kernel
    cache_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextPlan:
    """Say what an epoch will be, before it is run. `dataclasses.asdict` is JSON.

    rows, measurements: of the split. small_rows come whole, once an epoch, in small_contexts; large ones are sampled in
    large_contexts. context_bytes: of one context's arrays. Estimated from `sampled` contexts that were really made:
    padding, the share of tokens that is padding; measurements_per_context; coverage, the share of all measurements that
    an epoch is expected to show at least once.
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
                f"{self.rows:,} rows with {self.measurements:,} measurements; {self.small_rows:,} rows are smaller than"
                " a context",
                f"{self.contexts:,} contexts an epoch: {self.small_contexts:,} of whole small rows,"
                f" {self.large_contexts:,} sampled from large ones",
                f"{self.coverage:.1%} of the measurements seen at least once an epoch, {self.padding:.1%} padding,"
                f" {self.measurements_per_context:.1f} measurements a context (from {self.sampled:,} contexts)",
            ]
        )


class Contexts:
    """The contexts of some rows: `stream` shares an epoch out among ranks.

    `contexts[p]` is one by its position, int32 [L] arrays; `batch(positions)` are many, int32 [B, L]. Grain and MaxText
    need this random access, as they own the order of what they read, the ranks and the checkpoints.
    """

    def __init__(self, rows: HistoryRows, options: ContextOptions) -> None:
        self.rows = rows
        self.options = options

    @cached_property
    def index(self) -> ContextIndex:
        """Index the contexts of an epoch. Rows that may be smaller than a context are read for it, once."""
        return index_rows(self.rows, self.options)

    def __len__(self) -> int:
        """Count the contexts of an epoch, the same in every epoch: N."""
        return len(self.index)

    @property
    def vocabulary_size(self) -> int:
        """Count the token ids: those of the vocabulary, and one for each value column."""
        return SIZE[self.options.vocab] + len(self.rows.values)

    def __getitem__(self, position: SupportsIndex) -> dict[str, I32]:
        """Make the context at a position of an endless run, 0 or more; int32 [L] arrays. Raises as `batch`."""
        return {name: array[0] for name, array in self.batch([position]).items()}

    def batch(self, positions: Sequence[SupportsIndex] | range | I64) -> dict[str, I32]:
        """Make the contexts at these positions, in this order; each row that they touch is opened once.

        The arrays of a batch may lie in one block of memory, which stays as long as one of them does.
        Raises `IndexError` for negative positions and where an epoch has no context, `CorruptShard` for damaged rows.
        """
        asked = (
            np.arange(positions.start, positions.stop, positions.step, dtype=np.int64)
            if isinstance(positions, range)
            else np.array([int(each) for each in positions], np.int64)
        )
        if len(asked) and (int(asked.min()) < 0 or not len(self)):
            raise IndexError(f"contexts: position {asked.min()}; an epoch has {len(self)} contexts, counted from 0")
        built = build(self.index, self.rows, asked)
        made = chosen_kernels(self.options.kernel).batch
        return made(built.tokens, built.segments, self.options.vocab, self.options.keys)

    def stream(
        self,
        *,
        batch_size: int,
        workers: int = 0,
        topology: Topology | None = None,
        **options: Unpack[ItemArguments],
    ) -> StreamLoader:
        """Stream batches of this rank's share of an epoch: every context once over all ranks, equal steps on each.

        Epoch e has the positions e·N … e·N + N - 1, in this order. A batch has the arrays of `batch` and `valid`, bool
        [B], which is false for contexts that only fill the last step. They are made ahead of the loop in
        `read_threads` threads; workers: processes that run the transform. Members, state and the other options are
        those of a stream of rows, see `StreamOptions`. Raises `SettingsError`, `InputError`, `StreamError`.
        """
        return stream_of(self._parts(batch_size, options), workers=workers, topology=topology)

    def torch_dataset(
        self,
        *,
        batch_size: int,
        num_workers: int = 0,
        topology: Topology | None = None,
        **options: Unpack[ItemArguments],
    ) -> StreamingDataset:
        """Stream the same as a torch `IterableDataset` of whole batches, for `DataLoader(dataset, batch_size=None)`.

        num_workers: that of the DataLoader. Raises as `stream`, and `MissingExtra` without torch.
        """
        import_torch()
        from headrace.stream.loader.torch_dataset import StreamingDataset

        return StreamingDataset(*self._parts(batch_size, options), num_workers=num_workers, topology=topology)

    def _parts(self, batch_size: int, options: ItemArguments) -> Parts:
        index = item_index(ContextItems(self))
        shuffled = self.options.shuffle != "none"
        asked = item_options(batch_size, options, shuffle=shuffled, seed=self.options.seed)
        return index, no_block, asked, ItemPasses

    def plan(self, *, sample: int = 512) -> ContextPlan:
        """Say what an epoch will be; makes at most `sample` contexts, evenly over an epoch, for what is estimated.

        Raises `CorruptShard` for damaged rows.
        """
        index, n = self.index, self.rows.n
        ids = np.unique(np.linspace(0, max(len(self) - 1, 0), min(sample, len(self))).astype(np.int64))
        taken, used, large_taken = [0], [0], [0]
        for part in np.array_split(ids, max(1, len(ids) // 64)):
            built = build(index, self.rows, part)
            used.extend(np.minimum((built.tokens.tokens_BT > 0).sum(axis=1), self.options.context_tokens).tolist())
            taken.extend(np.bincount(built.segments.context, built.tokens.taken, len(part)).tolist())
            large_taken.extend(built.tokens.taken[built.segments.sampled].tolist())
        count = max(len(ids), 1)
        per_row = np.diff(index.ends, prepend=0)
        per_context = sum(large_taken) / max(len(large_taken) - 1, 1)
        large = n[index.large_rows]
        seen = large * -np.expm1(-per_row * per_context / np.maximum(large, 1)) if len(large) else np.zeros(1)
        total = int(n.sum())
        return ContextPlan(
            rows=len(n),
            small_rows=len(index.small_rows),
            measurements=total,
            contexts=len(index),
            small_contexts=index.small_contexts,
            large_contexts=index.large_contexts,
            contexts_per_row={
                "least": float(per_row.min(initial=per_row[0] if len(per_row) else 0)),
                "mean": float(per_row.mean()) if len(per_row) else 0.0,
                "most": float(per_row.max(initial=0)),
            },
            context_bytes=self.options.context_bytes,
            sampled=len(ids),
            padding=1 - sum(used) / (count * self.options.context_tokens),
            measurements_per_context=sum(taken) / count,
            coverage=float((n[index.small_rows].sum() + seen.sum()) / max(total, 1)),
        )


class Built(NamedTuple):
    """The parts of a batch, and its tokens."""

    segments: Segments
    candidates: Candidates
    tokens: Tokens


def index_rows(rows: HistoryRows, options: ContextOptions) -> ContextIndex:
    """Index the contexts that an epoch of these rows has. Rows that may be small are read once, some at a time."""
    maybe = np.flatnonzero(may_be_small(rows.n, options.room))
    facts = np.zeros((len(maybe), 5), np.int64)
    for begin in range(0, len(maybe), _ROWS_AT_A_TIME):
        numbers = maybe[begin : begin + _ROWS_AT_A_TIME].tolist()
        facts[begin : begin + len(numbers)] = rows.facts(numbers)
    is_small = facts[:, 1] <= options.room
    small = np.zeros(len(rows.n), bool)
    small[maybe[is_small]] = True
    return ContextIndex(rows.n, small, SmallFacts(*facts[is_small].T), options)


class Kernels(NamedTuple):
    """The steps that there are compiled and without numba, alike to the bit."""

    sampling: Sampling
    tokens: Callable[[Segments, Candidates, int, int], Tokens]
    batch: Callable[[Tokens, Segments, Vocabulary, Keys], dict[str, I32]]


@cache
def chosen_kernels(kernel: Kernel) -> Kernels:
    """Choose compiled steps or others. Raises `MissingExtra` if numba is asked for and not there."""
    if kernel != "numpy":
        try:
            from headrace.histories.contexts.draw_kernels import IN_NUMBA
            from headrace.histories.contexts.token_kernels import batch_in_numba, tokens_in_numba
        except MissingExtra:
            if kernel == "numba":
                raise
        else:
            return Kernels(IN_NUMBA, tokens_in_numba, batch_in_numba)
    return Kernels(IN_NUMPY, tokens_in_python, batch_of)


def build(index: ContextIndex, rows: HistoryRows, positions: I64) -> Built:
    """Build the contexts at these positions of an endless run; each row is opened once for all of them.

    Raises `CorruptShard` if a row is not what it was when the index was made.
    """
    kernels = chosen_kernels(index.options.kernel)
    segments = index.segments(*index.at(positions, kernels.sampling), kernels.sampling)
    opened = rows.open(np.unique(segments.row).tolist())
    found = candidates(segments, opened, index.options.room, kernels.sampling)
    tokens = kernels.tokens(segments, found, len(positions), index.options.room)
    lost = ~segments.sampled & (tokens.taken != segments.count)
    if lost.any():
        row = int(segments.row[lost.argmax()])
        raise CorruptShard(f"row {row} of the split is longer than it was when it was indexed; open the run again")
    return Built(segments, found, tokens)


class ContextItems:
    """Give contexts as items of a stream."""

    lanes = Lanes(1, 1, 1)  # their order is that of `ContextOptions.shuffle`

    def __init__(self, contexts: Contexts) -> None:
        self.contexts, self.split = contexts, contexts.rows.split
        options = {name: getattr(contexts.options, name) for name in _OF_ORDER}
        self.identity = sha256_hex(canonical_json([contexts.rows.identity, options]))

    def count(self, epoch: int) -> int:  # noqa: ARG002 - every epoch has as many
        """Count the contexts of an epoch."""
        return len(self.contexts)

    def chunk(self, epoch: int) -> None:
        """Every epoch is a pass."""

    def sample(self) -> dict[str, I32]:
        """Make a batch of no contexts."""
        return self.contexts.batch([])

    def batches(
        self, state: StreamState, positions: Iterator[I64], options: StreamOptions
    ) -> Generator[dict[str, Any], None, None]:
        """Make batches in threads, several at a time: as many as `prefetch_bytes` hold, and one in any case."""
        size, first = options.batch_size, state.epoch * state.rows
        held = options.prefetch_bytes // (size * self.contexts.options.context_bytes)
        ahead = max(1, min(options.threads, held))
        threads, coming = start_threads(ahead, name="headrace-contexts"), deque[Future[dict[str, I32]]]()
        end = end_threads  # this module may be empty when the interpreter ends
        try:
            for piece in positions:
                for begin in range(0, len(piece), size):
                    if len(coming) > ahead:
                        yield in_format(coming.popleft().result(), options.batch_format)
                    coming.append(threads.submit(self.contexts.batch, first + piece[begin : begin + size]))
            while coming:
                yield in_format(coming.popleft().result(), options.batch_format)
        finally:
            coming.clear()
            end(threads)


# What decides which contexts an epoch has, and their order, beside the rows and the seed.
_OF_ORDER = ("context_tokens", "rows", "measurements_per_context", "contexts_per_row", "shuffle", "max_segments")


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

    run: a run_id, to choose another. verify: shards are checked against their checksums at the "first_touch" in each
    process, or "never". A run in an object store is read from copies of its shards in cache_dir (None:
    ~/.cache/headrace), which take up to disk_bytes, are checked, and are shared by the processes of a machine.
    Raises `InputError` where there are no histories, `SettingsError` for options that cannot work.
    """
    checked = ContextOptions(**options)
    files = LocalFiles(verify=verify, cache_dir=cache_dir, disk_bytes=disk_bytes)
    rows = open_rows(path, split, run=run, cache_bytes=checked.cache_bytes, files=files)
    longest = longest_measurement(rows.values) if rows.values else 0
    if longest > checked.context_tokens:
        raise SettingsError(
            f"contexts: context_tokens is {checked.context_tokens}, and a measurement of {len(rows.values)} value "
            f"columns takes up to {longest} tokens; give at least as many"
        )
    return Contexts(rows, checked)
