"""Save and load the progress of DataLoader workers, for torchdata's StatefulDataLoader. Pure.

    loader = StatefulDataLoader(dataset, batch_size=None, num_workers=4)
    saved = loader.state_dict()     # each worker's progress, for the same topology and batch size
    state = stream_state(saved)     # one state for any others: dataset.load_state_dict(state)

A worker knows only the batches that it gave itself. For each worker, the loader keeps the progress
as of the last batch that the loop received. The sum over workers is therefore what the rank
received, and determines the portable state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, cast, get_args

from headrace.errors import StreamError
from headrace.sealed import is_marked, kind_of, seal, short_repr, unseal
from headrace.stream.order.remaining import Remainder
from headrace.stream.order.state import (
    COUNTED,
    FORMAT_VERSION,
    CountedState,
    StreamState,
    check_keys,
)

_KIND = "worker"
_MOST_DEPTH = 100  # of the containers that other libraries put around our states
_NUMBERS = {"epoch": 0, "worker": 0, "batches": 0, "world_size": 1, "workers": 0, "batch_size": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerProgress:
    """The progress of worker `worker` of `workers`, on each of `world_size` ranks.

    It gave `batches` batches of the pass that began at `start`, a state of the stream in epoch
    `epoch`.
    """

    start: dict[str, Any]
    epoch: int
    worker: int
    batches: int
    world_size: int
    workers: int
    batch_size: int
    remainder: str

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON object; `from_dict` restores an equal progress."""
        return seal(_KIND, FORMAT_VERSION, asdict(self))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> WorkerProgress:
        """Restore a progress. Raises `StreamError` if the values are not one, or were changed."""
        values = unseal(values, subject=_KIND, version=FORMAT_VERSION)
        check_keys("worker state", values, _NUMBERS, others=("start", "remainder"))
        if values["remainder"] not in get_args(Remainder) or not isinstance(
            values["start"], Mapping
        ):
            raise StreamError(
                f"worker state: {short_repr(values)} is not what a worker saved",
                remedy="pass it on unchanged",
            )
        return cls(
            **{name: values[name] for name in (*_NUMBERS, "remainder")}, start=dict(values["start"])
        )

    @property
    def topology(self) -> tuple[int, int, int, str]:
        """The values that must be equal for a worker to continue from here."""
        return self.world_size, self.workers, self.batch_size, self.remainder

    def check(self, *, worker: int, topology: tuple[int, int, int, str]) -> None:
        """Raise `StreamError` unless this worker of this topology can continue from here."""
        if (self.worker, self.topology) != (worker, topology):
            raise StreamError(
                f"worker state: it was saved by worker {self.worker} with (world_size, workers,"
                f" batch_size, remainder) = {self.topology}, this is worker {worker} with"
                f" {topology}",
                remedy=(
                    "for another topology load headrace.stream_state(saved) into the dataset before"
                    " the loop, not into the loader"
                ),
            )


def is_worker_state(values: Any) -> bool:
    """Check whether a worker saved this state, rather than a stream."""
    return kind_of(values) == _KIND


def stream_state(loader_state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the portable state inside a StatefulDataLoader's state, for `load_state_dict` of any
    stream.

    loader_state: the result of StatefulDataLoader.state_dict(). Raises `StreamError` if it has no
    state of a stream, or lacks workers.
    """
    states = list(_inside(loader_state))
    if states and not any(map(is_worker_state, states)):  # one process: the dataset's own state
        if any(state != states[0] for state in states):
            raise StreamError(
                f"loader state: it holds {len(states)} states of different streams",
                remedy="pass one of them",
            )
        return dict(states[0])
    parts = sorted(
        (WorkerProgress.from_dict(values) for values in states), key=lambda part: part.worker
    )
    if not parts:
        raise StreamError(
            f"loader state: no state of a headrace stream in {short_repr(loader_state)}",
            remedy="pass what StatefulDataLoader.state_dict() gave during a pass",
        )
    first = parts[0]
    workers = [part.worker for part in parts]
    same = all((part.start, part.topology) == (first.start, first.topology) for part in parts)
    # workers take turns, so no other counts can exist at one moment
    batches = [part.batches for part in parts]
    same = same and batches == [
        (sum(batches) - number + len(batches) - 1) // len(batches) for number in range(len(batches))
    ]
    if workers != list(range(first.workers)) or not same:
        raise StreamError(
            f"loader state: it holds workers {workers} of {first.workers}, or of different passes",
            remedy="pass what StatefulDataLoader.state_dict() gave, unchanged",
        )
    if kind_of(first.start) == COUNTED:
        counted = CountedState.from_dict(first.start)
        return replace(counted, batches=counted.batches + sum(batches)).to_dict()
    # `from_dict` checked it
    start = StreamState.from_dict(first.start)
    remainder = cast(Remainder, first.remainder)
    return start.after(
        sum(batches), ranks=first.world_size, batch_size=first.batch_size, remainder=remainder
    ).to_dict()


def _inside(values: Any, depth: int = 0) -> Iterator[Mapping[str, Any]]:
    """Yield every headrace state inside nested mappings."""
    if depth > _MOST_DEPTH:
        raise StreamError(
            f"loader state: it is more than {_MOST_DEPTH} levels deep",
            remedy="pass what state_dict() gave",
        )
    if not isinstance(values, Mapping):
        return
    if is_marked(values):
        yield values
        return
    for value in values.values():
        yield from _inside(value, depth + 1)
