"""How many batches of its present pass a loader has handed out: one count, for the one state that a loader has.

Batches are counted as they are received, so that a state says what the loop has, and not what was made ahead for it.
Two passes of one loader that are read by turns would be one count of both: the older one raises instead.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import closing
from typing import TypeVar

from headrace.errors import StreamError

Given = TypeVar("Given")

log = logging.getLogger("headrace")


class Received:
    """The count. batches: received since the present pass began.

    has_ended: whether the last batch of the pass was received, after which the next pass is another one. is_over:
    whether the loop has also asked for more and been told that there is none.
    """

    def __init__(self) -> None:
        self._pass = 0
        self.has_warned = False
        self.forget()

    def forget(self) -> None:
        """The next pass begins elsewhere; one that is under way is not counted any more, and raises."""
        self._pass += 1
        self.batches = 0
        self.has_ended = self.is_over = False

    def begin(self) -> None:
        """A pass begins now, from its beginning: none of it was received."""
        self._pass += 1
        self.batches = 0

    def counted(
        self, batches: Generator[Given, None, None], *, epoch: int, steps: int | None = None, of: str = "stream"
    ) -> Generator[Given, None, None]:
        """The batches of the pass that began last, counted as they are received, and closed with this generator.

        steps: how many they will be, so that the last one ends the pass: a loop that knows len() may never ask for
        more. None: nobody knows yet. of: what messages call the loader. Raises `StreamError` at the next batch after
        `begin` or `forget`.
        """
        counted = self._pass
        with closing(batches):
            for batch in batches:
                if counted != self._pass:
                    raise StreamError(
                        f"epoch {epoch}: a newer pass of this {of} has begun, and one state cannot count two;"
                        f" finish one before the next, or make a second {of}"
                    )
                self.batches += 1
                self.has_ended = self.batches == steps
                yield batch
        if counted == self._pass:
            self.has_ended = self.is_over = True


def warn_of_repeat(received: Received, epoch: int, *, of: str) -> None:
    """Warn, once, where a pass was left inside and begins again at its beginning; a look at one batch is no pass."""
    if received.has_warned or received.has_ended or received.batches < 2:
        return
    received.has_warned = True
    log.warning(
        "epoch %d: was left after %d batches and begins again, with the same batches; for another order call"
        " set_epoch(epoch) before each loop over the %s, for the rest load_state_dict(state_dict())",
        epoch,
        received.batches,
        of,
    )
