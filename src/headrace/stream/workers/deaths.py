"""DataLoader workers that died: what is said of them, and whether their pass may go on. Pure.

A pass goes on with new workers from where it was, but what kills workers is not tried for ever: the third time that
they died over one block, or without a batch in between, is the last. A machine that is short of memory may well kill
twice over the same block, of which a small set has only a few; a block that always kills does so a third time soon.
"""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.dataset.index import SplitIndex
from headrace.errors import EngineError

_REMEDY = (
    "give the job more memory, or num_workers=, read_threads=, prefetch_bytes= or shuffle_rows= smaller; if it is no"
    " matter of memory, read these shards with num_workers=0"
)
_LAST_TIME = 3
_TOLD_BY_TORCH = re.compile(r"DataLoader worker \(pid(?:\(s\))? ([\d, ]+)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDeath:
    """A worker process that ended without being asked to.

    reader: how messages call it. process: its id. code: its exit status, minus the signal that killed it; None: not
    known. blocks: numbers of the blocks that it was reading, or of the last one it had read. reading: whether it was.
    """

    reader: str
    process: int
    code: int | None
    blocks: tuple[int, ...]
    reading: bool

    def told(self, index: SplitIndex) -> str:
        """What happened to whom, and over which shards."""
        return f"{self.reader}: process {self.process} {_ending(self.code)}, {self._doing(index)}"

    def _doing(self, index: SplitIndex) -> str:
        if not self.blocks:
            return "before it read anything"
        return ("while it read " if self.reading else "after it had read ") + places(self.blocks, index)


def places(blocks: Sequence[int], index: SplitIndex) -> str:
    """The shards of blocks, and their numbers there."""
    return ", ".join(f"{index.shards[index.shard_of_block[block]]} block {index.block[block]}" for block in blocks)


def why_not_again(
    earlier: Sequence[tuple[int, Sequence[WorkerDeath]]], now: Sequence[WorkerDeath], received: int, index: SplitIndex
) -> EngineError | None:
    """Why a pass whose workers died now must not go on; None: it may.

    earlier: (batches received, who died then), each time that workers died. received: batches of the pass so far.
    """
    told = "; ".join(death.told(index) for death in now)
    before = Counter(block for _, deaths in earlier for block in _blocks(deaths))
    again = sorted(block for block in _blocks(now) if before[block] + 1 >= _LAST_TIME)
    if again:
        return EngineError(
            f"{told}; workers died over {places(again, index)} {_LAST_TIME} times, and were begun anew each time;"
            f" {_REMEDY}"
        )
    if sum(batches == received for batches, _ in earlier) + 1 >= _LAST_TIME:
        return EngineError(f"{told}; workers died {_LAST_TIME} times, and no batch came in between; {_REMEDY}")
    return None


def _blocks(deaths: Sequence[WorkerDeath]) -> set[int]:
    """Blocks that workers died over at one time, each once: several may have read the same."""
    return {block for death in deaths for block in death.blocks}


def told_by_torch(error: BaseException) -> list[int]:
    """The processes of the workers that died, as a torch DataLoader's error names them; none if it is another error."""
    match = _TOLD_BY_TORCH.search(str(error)) if type(error) is RuntimeError else None
    return [int(process) for process in match[1].split(",")] if match else []


def not_begun_anew(deaths: Sequence[WorkerDeath], index: SplitIndex) -> EngineError:
    """The error of a loader that is not ours, and whose workers cannot be begun anew."""
    told = "; ".join(death.told(index) for death in deaths)
    return EngineError(
        f"{told}; resume from the last state, or use data_loader(), which begins workers anew; {_REMEDY}"
    )


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
