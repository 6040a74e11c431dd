"""Say how worker processes ended, and decide whether a pass may start them again."""

from __future__ import annotations

import signal
from collections.abc import Sequence

REMEDY = (
    "give the job more memory, or use fewer workers; if memory is not the cause, run the transform"
    " without workers to see what it does"
)
_LAST_TIME = 3


def death_of(reader: str, process: int, code: int | None) -> str:
    """Describe how a worker ended. code: its exit status, or minus a signal; None: unknown."""
    if code is None:
        ending = "died"
    else:
        ending = f"ended with status {code} unasked"
    if code is not None and code < 0:
        known = -code in {int(number) for number in signal.Signals}
        if known:
            name = signal.Signals(-code).name
        else:
            name = f"signal {-code}"
        ending = f"was killed by {name}" + (", as when memory ends" if name == "SIGKILL" else "")
    return f"{reader}: process {process} {ending}"


def why_not_again(earlier: Sequence[int], deaths: Sequence[str], delivered: int) -> str | None:
    """Return why a pass whose workers died must not restart them; None if it may.

    earlier: batches received at each earlier death. delivered: batches of the pass so far.
    """
    if list(earlier).count(delivered) + 1 < _LAST_TIME:
        return None
    message = "; ".join(deaths)
    return f"{message}; workers died {_LAST_TIME} times, and no batch came in between"
