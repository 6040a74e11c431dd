"""What of a pass lies in memory that a torch dataset shares with its DataLoader workers.

`SharedPass` is what the parent means: workers that live on from pass to pass see an epoch or a state that was set after
they had started. `SharedFindings` is what workers met: a killed one cannot tell it any more, and one in its place goes
on from it. Nothing is locked: each field has one writer at a time, and passes begin while no worker reads.

Tensors stay shared where torch's pickler carries them to workers; a plain pickle copies them, and the copy is shared
anew with whatever processes come of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch

from headrace.arrays import I64, U8
from headrace.stream.loader.stateful import turn_after
from headrace.stream.workers.deaths import WorkerDeath
from headrace.stream.workers.notes import WorkerNotes, being_read, notes_shape, process_of, read_last

Part = Literal["whole", "rest"]  # of an epoch

# Places of `SharedPass`: the epoch; 1 where a pass is the rest of it that a loaded state left; how many states were
# loaded so far; 1 once the parent named an epoch; 1 where workers go on from progress of their own; 1 once a worker
# ended the pass, 2 once its second beginning was noticed.
_EPOCH, _REST, _LOADS, _SAID, _OWN, _ENDED = range(6)


class SharedPass:
    """Which pass the workers are to begin. The parent writes it, but for `go_on_alone`, `end` and `is_repeat`."""

    def __init__(self) -> None:
        self._values = _shared(torch.zeros(6, dtype=torch.int64))

    @property
    def epoch(self) -> int:
        """The epoch of the next pass, or of the present one."""
        return int(self._values[_EPOCH])

    @property
    def is_rest(self) -> bool:
        """Whether the next pass is what a loaded state left of its epoch."""
        return bool(self._values[_REST])

    @property
    def loads(self) -> int:
        """States that the parent has loaded: a worker that knows of fewer is out of date."""
        return int(self._values[_LOADS])

    @property
    def was_named(self) -> bool:
        """Whether the parent has said which epoch it means."""
        return bool(self._values[_SAID])

    @property
    def is_workers_own(self) -> bool:
        """Whether workers go on from progress of their own, which the parent does not see."""
        return bool(self._values[_OWN])

    def begin(self, epoch: int, *, part: Part, loads: int) -> None:
        """The next pass is of this epoch: all of it, or the rest that a loaded state left."""
        for place, value in ((_EPOCH, epoch), (_REST, part == "rest"), (_LOADS, loads), (_OWN, 0), (_ENDED, 0)):
            self._values[place] = value

    def name(self) -> None:
        """The parent has said which epoch it means."""
        self._values[_SAID], self._values[_ENDED] = 1, 0

    def end(self) -> None:
        """Worker 0 gave the last batch of the pass."""
        self._values[_ENDED] = max(1, int(self._values[_ENDED]))

    def is_repeat(self) -> bool:
        """Whether the pass that worker 0 begins was taken to its end before; true once."""
        repeats = int(self._values[_ENDED]) == 1
        if repeats:
            self._values[_ENDED] = 2
        return repeats

    def go_on_alone(self, epoch: int) -> None:
        """A worker goes on from progress of its own in this epoch: the one thing that workers write here."""
        self._values[_EPOCH], self._values[_OWN] = epoch, 1

    def __setstate__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)
        _shared(self._values)


class SharedFindings:
    """What each worker of a rank reads and gave up in the present pass; a rank without workers has one reader.

    reading: what readers note, float64 [readers, 1 + 2 × threads], see `reading`. Beside it lie the filling rows given
    so far, int64 [readers, 1], and which of so many blocks are bad, uint8 [readers, blocks], see `Quarantine.slot`.
    """

    def __init__(self, *, workers: int, threads: int, blocks: int) -> None:
        readers = max(1, workers)
        self.reading = _shared(torch.zeros(notes_shape(workers, threads), dtype=torch.float64))
        self._given_up = _shared(torch.zeros(readers, 1, dtype=torch.int64))
        self._bad_blocks = _shared(torch.zeros(readers, blocks, dtype=torch.uint8))

    @property
    def given_up(self) -> int:
        """Filling rows that stand for bad blocks so far, over all readers."""
        return int(self._given_up[:, 0].sum())

    def notes(self, worker: int) -> WorkerNotes:
        """Where this worker notes what it reads; what one before it noted is gone."""
        return WorkerNotes(self.reading[worker].numpy())

    def slot(self, worker: int) -> tuple[I64, U8]:
        """Where this reader counts what it gives up: rows [1] and bad blocks [B]."""
        return self._given_up[worker].numpy(), self._bad_blocks[worker].numpy()

    def forget(self, worker: int) -> None:
        """This reader begins a pass: it has given up nothing."""
        for part in self.slot(worker):
            part[:] = 0

    def go_on_after(self, batches: int, given: Callable[[int, int], I64]) -> None:
        """Workers begin anew after so many batches of the pass: counts of bad rows become those of what was received.

        given: (share of a worker, batches of it) → rows of each block in them, int64 [B]; asked if a block is bad.
        """
        self.reading.zero_()
        bad = self._bad_blocks.numpy().any(axis=0)
        if not bad.any():
            return
        workers = len(self._bad_blocks)
        for worker in range(workers):
            rows, blocks = self.slot(worker)
            counts = bad * given(*turn_after(batches, worker=worker, workers=workers))
            rows[0] = counts.sum()
            blocks[:] = counts > 0

    def numbers(self) -> dict[int, int]:
        """The number of the worker that each process is."""
        return {process_of(slot): number for number, slot in enumerate(self.reading)}

    def death_of(self, worker: int, *, reader: str, process: int, code: int | None) -> WorkerDeath:
        """What is known of a worker that died. reader: how messages call it."""
        slot = self.reading[worker]
        reading = [block for _, block in being_read(slot)]
        last = read_last(slot)
        return WorkerDeath(
            reader=reader,
            process=process,
            code=code,
            blocks=tuple(reading) if reading or last is None else (last,),
            reading=bool(reading),
        )

    def __setstate__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)
        for each in (self.reading, self._given_up, self._bad_blocks):
            _shared(each)


def _shared(values: torch.Tensor) -> torch.Tensor:
    """The same tensor, in shared memory now."""
    if not values.is_shared():  # type: ignore[no-untyped-call]  # torch leaves it untyped
        values.share_memory_()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return values
