"""DataLoader workers that died: what is said of them, and whether their pass may go on. Pure.

A pass goes on with new workers from where it was, but not for ever: the third time that workers died and no batch came
in between is the last. What the workers run is the transform and the collate function, as they read nothing.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

_REMEDY = (
    "give the job more memory, or use fewer workers; if it is no matter of memory, run the transform with num_workers=0"
    " to see what it does"
)
_LAST_TIME = 3
_TOLD_BY_TORCH = re.compile(r"DataLoader worker \(pid(?:\(s\))? ([\d, ]+)\)")


def death_of(reader: str, process: int, code: int | None) -> str:
    """What happened to a worker. reader: how messages call it. code: its exit status, minus a signal; None: unknown."""
    return f"{reader}: process {process} {_ending(code)}"


def why_not_again(earlier: Sequence[int], deaths: Sequence[str], received: int) -> str | None:
    """Why a pass whose workers died now must not go on; None: it may.

    earlier: batches received when workers died before, each time. received: batches of the pass so far.
    """
    if list(earlier).count(received) + 1 < _LAST_TIME:
        return None
    told = "; ".join(deaths)
    return f"{told}; workers died {_LAST_TIME} times, and no batch came in between; {_REMEDY}"


def told_by_torch(error: BaseException) -> list[int]:
    """The processes of the workers that died, as a torch DataLoader's error names them; none if it is another error."""
    match = _TOLD_BY_TORCH.search(str(error)) if type(error) is RuntimeError else None
    return [int(process) for process in match[1].split(",")] if match else []


def died(rank: str, processes: Sequence[int]) -> str:
    """What is said of a DataLoader that is not ours, whose workers are not begun anew."""
    told = "; ".join(death_of(f"{rank}, a worker", process, None) for process in processes)
    return f"{told}; resume from the last state, or use data_loader(), which begins workers anew; {_REMEDY}"


def _ending(code: int | None) -> str:
    if code is None:
        return "died"
    if code >= 0:
        return f"ended with status {code} unasked"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was killed by {name}" + (", as when memory ends" if name == "SIGKILL" else "")
