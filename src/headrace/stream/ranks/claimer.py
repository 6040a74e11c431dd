"""One rank's claims of a dynamic pass: a thread that takes the next one when asked, and decodes it ahead.

The thread claims only on request, one claim at a time, so that a slow rank holds no more than the block it is giving
out and the next. Between requests it looks whether all claims are taken: from then on this rank's number of batches is
known, and is told to the others at once, even while the training loop stands in a collective. That is why a rank that
ran out of work can wait for the others' numbers without stopping them.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from headrace.stream.ranks.at_exit import RUNNING
from headrace.stream.ranks.ledger import Ledger
from headrace.stream.read.columns import Columns

_LOOK_SECONDS = 0.05


class Claimer:
    """The claims of one rank; use as a context manager, which ends the thread.

    borders: of all claims, see `claims.claim_borders`; load: places [start, stop) → their rows, called in the thread.
    """

    def __init__(
        self, ledger: Ledger, borders: npt.NDArray[np.int64], load: Callable[[int, int], Columns], *, batch_size: int
    ) -> None:
        self.steps: int | None = None  # of every rank, once all have said theirs
        self._ledger = ledger
        self._borders = borders
        self._load = load
        self._batch_size = batch_size
        self._claimed = self._claimed_rows = 0
        self._held: deque[tuple[int, int]] = deque()  # claimed and not received
        self._loaded: deque[Columns] = deque()
        self._asked = self._ended = self._said = self._stopped = False
        self._error: Exception | None = None
        self._changed = threading.Condition()
        self._claiming = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="headrace-claim", daemon=True)

    def __enter__(self) -> Self:
        RUNNING.add(self)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self, error: Exception | None = None) -> None:  # noqa: ARG002 - the bulletin tells it
        """End the thread; a block that it is reading is read to its end."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._thread.join()

    def ask(self) -> None:
        """Claim one more, ahead of the `take` that will want it; asking twice is asking once."""
        with self._changed:
            self._asked = self._asked or not (self._loaded or self._ended)
            self._changed.notify_all()

    def take(self, wait: Callable[[Callable[[], bool]], None]) -> Columns | None:
        """The rows of the next claim; None when no claim is left. wait: returns once what it is given is true."""
        self.ask()
        wait(lambda: bool(self._loaded) or self._ended)
        with self._changed:
            self._raise()
            return self._loaded.popleft() if self._loaded else None

    def await_steps(self, wait: Callable[[Callable[[], bool]], None]) -> int:
        """The number of batches every rank gives."""
        wait(lambda: self.steps is not None or self._error is not None)
        self._raise()
        assert self.steps is not None, "waited for"
        return self.steps

    def changed(self, seconds: float) -> None:
        """Wait for something to happen, this long at most."""
        with self._changed:
            self._changed.wait(seconds)

    def received(self, rows: int) -> None:
        """So many more rows, in the order of `take`, were handed to the training loop."""
        with self._claiming:
            while rows:
                start, stop = self._held.popleft()
                part = min(rows, stop - start)
                rows -= part
                if start + part < stop:
                    self._held.appendleft((start + part, stop))

    def frozen(self) -> AbstractContextManager[object]:
        """Within this, nothing is claimed and nothing counts as received."""
        return self._claiming

    def holding(self) -> tuple[int, list[tuple[int, int]]]:
        """How many claims were taken, and the places of them that are not received; ask it while `frozen`."""
        return self._claimed, list(self._held)

    def _run(self) -> None:
        try:
            while not self._stopped:
                with self._changed:
                    self._changed.wait_for(lambda: self._asked or self._stopped, _LOOK_SECONDS)
                    asked = self._asked and not self._stopped
                if asked:
                    self._claim()
                self._settle()
        except Exception as error:  # noqa: BLE001 - raised again by whoever takes the next claim
            self._error = error
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _claim(self) -> None:
        if not self._claiming.acquire(timeout=_LOOK_SECONDS):
            return  # frozen, perhaps until another rank has its next batch, for which it may need our steps
        try:
            number = len(self._borders) if self._said else self._ledger.take()
            left = number < len(self._borders) - 1
            if left:
                start, stop = int(self._borders[number]), int(self._borders[number + 1])
                self._claimed, self._claimed_rows = self._claimed + 1, self._claimed_rows + stop - start
                self._held.append((start, stop))
        finally:
            self._claiming.release()
        columns = self._load(start, stop) if left else None
        if not left and not self._said:
            self._ledger.say_empty()
        with self._changed:
            self._asked = False
            if columns is None:
                self._ended = True
            else:
                self._loaded.append(columns)
            self._changed.notify_all()

    def _settle(self) -> None:
        """Say this rank's number of batches once it cannot grow, then learn that of the others."""
        if not self._said and self._ledger.is_empty():
            self._ledger.say_steps(-(-self._claimed_rows // self._batch_size))
            self._said = True
        if self._said and self.steps is None:
            self.steps = self._ledger.steps()
            with self._changed:
                self._changed.notify_all()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error
