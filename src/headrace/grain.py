"""Read contexts of histories as a Grain `MapDataset`. Needs the extra `grain`.

    import headrace.grain

    dataset = headrace.grain.contexts("out", "train", batch_size=32, seed=7)
    for batch in dataset.to_iter_dataset(headrace.grain.read_options(dataset)):
        ...

Element i is context i, so Grain's own `repeat`, slices `[host::hosts]`, `map`, `batch`, checkpoints
and `mp_prefetch` work as documented, and a process reads only the rows of its own elements.
`repeat` gives new contexts in every epoch. Do not `shuffle` again: the dataset is in random order
already (`shuffle=`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.arrays import I32
from headrace.checks import as_integer
from headrace.errors import MissingExtra, SettingsError

try:  # before contexts, which need less: where both are missing, this extra has both
    import grain
    from absl import flags
except ImportError as error:
    raise MissingExtra("grain", "grain") from error

from headrace.histories.contexts.contexts import ContextPlan, Contexts, open_contexts

_MapDataset: Any = grain.MapDataset

__all__ = ["ContextMapDataset", "contexts", "elastic", "read_options"]


class ContextMapDataset(_MapDataset):  # type: ignore[misc]  # Grain has no types
    """Contexts or batches of contexts by index, as many as an epoch has.

    It offers random access, because Grain owns the order of the indices, the shares of hosts and
    the checkpoints of a job. Without Grain, `Contexts.stream` does all of that, with the same
    contexts at the same positions. Indices of len and above are later epochs, as `repeat` asks for
    them. Batch b starts at context b × batch_size. Contexts left over at the end of an epoch start
    the next one, and are dropped after the last.
    Raises `SettingsError` for a batch_size below 1, or above the contexts of an epoch.
    """

    _MUTATES_ELEMENT_SPEC = True

    def __init__(self, source: Contexts, batch_size: int | None = None) -> None:
        super().__init__()
        if batch_size is not None:
            batch_size = as_integer("batch_size", batch_size, least=1)
        if batch_size is not None and len(source) < batch_size:
            raise SettingsError(
                f"an epoch has {len(source)} contexts",
                setting="batch_size",
                value=batch_size,
                remedy="give at most that",
            )
        self.source = source
        self.batch_size = batch_size

    def __len__(self) -> int:
        """Return the number of elements in an epoch."""
        return len(self.source) // (self.batch_size or 1)

    def __str__(self) -> str:
        return f"ContextMapDataset(batch_size={self.batch_size})"

    def __getitem__(self, index: Any) -> Any:
        """Return one context, int32 [L] arrays, or batch, int32 [B, L]; for a slice, the dataset of
        its elements.
        """
        if isinstance(index, slice):
            return self.slice(index)
        if self.batch_size is None:
            return self.source[index]
        return self.source.batch(range(index * self.batch_size, (index + 1) * self.batch_size))

    def _getitems(self, indices: Sequence[int]) -> list[dict[str, I32]]:
        """Return elements for Grain's own batches, opening rows that several contexts share
        once.
        """
        if self.batch_size is not None:
            return [self[index] for index in indices]
        arrays = self.source.batch(indices)
        return [
            {name: array[number] for name, array in arrays.items()}
            for number in range(len(indices))
        ]

    def plan(self, *, sample: int = 512) -> ContextPlan:
        """Describe an epoch: contexts, coverage, padding. See `ContextPlan`."""
        return self.source.plan(sample=sample)

    @property
    def element_bytes(self) -> int:
        """Bytes of one element."""
        return self.source.options.context_bytes * (self.batch_size or 1)


def contexts(
    path: str | Path, split: str = "train", batch_size: int | None = None, **options: Any
) -> ContextMapDataset:
    """Open the contexts of a split of prepared histories as a Grain `MapDataset`, in random order.

    batch_size: None for single contexts, else batches, whose rows are opened once each. options:
    those of `open_contexts`. Raises `InputError`, `SettingsError`, `MissingExtra`.
    """
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()  # mp_prefetch reads flags, which a plain script never parses
    return ContextMapDataset(open_contexts(path, split, **options), batch_size)


def read_options(
    dataset: ContextMapDataset, *, buffer_bytes: int = 1 << 26, num_threads: int = 4
) -> Any:
    """Make Grain's `ReadOptions` for elements of this size: a bounded buffer with at least one
    element per thread.

    buffer_bytes: for each reading process. Grain's own default is 500 elements, whatever their
    size.
    """
    elements = max(num_threads, 1, min(500, buffer_bytes // dataset.element_bytes))
    return grain.ReadOptions(num_threads=num_threads, prefetch_buffer_size=elements)


def elastic(  # noqa: PLR0913 - all are settings
    dataset: ContextMapDataset,
    global_batch_size: int,
    *,
    host: int = 0,
    hosts: int = 1,
    epochs: int | None = None,
    workers: int = 0,
    buffer_bytes: int = 1 << 26,
    num_threads: int = 4,
) -> Any:
    """Make one host's part of global batches: Grain's `ElasticIterator`, whose state resumes on any
    number of hosts.

    Step k of all hosts together starts at context k × global_batch_size. Each host gets every
    hosts-th context, as int32 [global_batch_size / hosts, L]. The state is the number of contexts
    that all hosts have seen, so the next step starts there after a change of hosts or batch size.
    epochs: None repeats forever; else contexts that do not fill the last batch are dropped.
    workers: processes that make batches; 0 for threads of this process. buffer_bytes: size of the
    read-ahead. Raises `SettingsError`.
    """
    hosts = as_integer("hosts", hosts, least=1)
    host = as_integer("host", host, least=0)
    global_batch_size = as_integer("global_batch_size", global_batch_size, least=1)
    if host >= hosts:
        raise SettingsError(
            f"there are {hosts} hosts", setting="host", value=host, remedy="count them from 0"
        )
    if global_batch_size % hosts:
        raise SettingsError(
            f"{hosts} hosts cannot share it alike",
            setting="global_batch_size",
            value=global_batch_size,
            remedy=f"give a multiple of {hosts}",
        )
    if dataset.batch_size is not None:
        raise SettingsError(
            "the dataset has batches already, and this makes batches of contexts",
            setting="batch_size",
            value=dataset.batch_size,
            remedy="leave it out where the dataset is made",
        )
    per_host = global_batch_size // hosts
    return grain.experimental.ElasticIterator(
        dataset.repeat(epochs),
        global_batch_size,
        grain.sharding.ShardOptions(shard_index=host, shard_count=hosts),
        read_options=read_options(
            dataset, buffer_bytes=buffer_bytes // per_host, num_threads=num_threads
        ),
        multiprocessing_options=(
            grain.MultiprocessingOptions(num_workers=workers) if workers else None
        ),
    )
