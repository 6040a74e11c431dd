"""Know which batches of a pass have arrived from workers, in the process that trains.

A DataLoader with `in_order=False` gives batches in the order in which workers made them. Its loop
then has other batches than the first ones of the pass, and no state describes those. So batches
carry the number of their step, and note it here when they are unpickled.

With the usual order torch unpickles in another order too, but it gives a batch to the loop when all
before it have arrived.
"""

from __future__ import annotations

import itertools
import weakref
from typing import NamedTuple

_NUMBERS = itertools.count()
_ARRIVALS: weakref.WeakValueDictionary[int, Arrivals] = weakref.WeakValueDictionary()


class StepMark(NamedTuple):
    """What a batch carries: the number of its `Arrivals`, and of its step."""

    arrivals: int
    step: int

    def note(self) -> None:
        """Note that the batch has arrived; does nothing in other processes."""
        arrivals = _ARRIVALS.get(self.arrivals)
        if arrivals is not None:
            arrivals.note(self.step)


class Arrivals:
    """The steps of one pass of a pool of workers whose batches have arrived. first: its first."""

    def __init__(self, first: int) -> None:
        self.number = next(_NUMBERS)
        self.without_gap = first  # all steps before it have arrived
        self._later: set[int] = set()
        self.any = False
        _ARRIVALS[self.number] = self

    def note(self, step: int) -> None:
        """Note that the batch of a step has arrived."""
        self.any = True
        self._later.add(step)
        while self.without_gap in self._later:
            self._later.remove(self.without_gap)
            self.without_gap += 1
