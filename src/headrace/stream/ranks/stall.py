"""Who is waiting for data, in one line: from a moment of each rank to the sentences worth logging. Pure.

a rank waits                   longer than stall_seconds for one batch
a rank is behind               the foremost by 16 batches and by stall_seconds of its own pace, without a collective
a rank's share of waiting      three times that of the others and a fifth of its time: it delays every step
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from statistics import median

from headrace.stream.ranks.progress import Snapshot

AGAIN_SECONDS = 30.0
_BATCHES_BEHIND = 16  # fewer come of reading ahead alone
_SHARE, _TIMES_THE_OTHERS = 0.2, 3.0
_WAITING = ("decode", "gather")

Complaint = tuple[str, int, str]


@dataclass
class Said:
    """What was logged of a stream, and when: of each kind and rank one complaint in `AGAIN_SECONDS`, over all passes.

    Whatever block it is: a slow source makes a rank wait for one after the other.
    """

    at: dict[tuple[str, int], float] = field(default_factory=dict)

    def due(self, found: Mapping[Complaint, str], *, now: float) -> list[str]:
        """The sentences to log now, which are then said. now: monotonic seconds."""
        sentences = []
        for (kind, rank, _), sentence in found.items():
            if now - self.at.get((kind, rank), -AGAIN_SECONDS) >= AGAIN_SECONDS:
                self.at[kind, rank] = now
                sentences.append(sentence)
        return sentences


def to_text(epoch: int, moment: Snapshot) -> str:
    """A moment as it travels through a store."""
    return json.dumps([epoch, asdict(moment)])


def from_text(text: str | bytes) -> tuple[int, Snapshot]:
    """The epoch and the moment that `to_text` was given."""
    epoch, values = json.loads(text)
    return epoch, Snapshot(**values)


def complaints(moments: Mapping[int, Snapshot], *, stall_seconds: float) -> dict[Complaint, str]:
    """What is wrong with which rank: (kind, rank, block) → a sentence; nothing where all is well.

    moments: of the ranks that are known, at about the same time and of the same epoch; who is done is left out.
    """
    found: dict[Complaint, str] = {}
    moments = {rank: moment for rank, moment in moments.items() if moment.phase != "done"}
    foremost = max(moments, key=lambda rank: (moments[rank].batches, -rank), default=0)
    for rank, moment in sorted(moments.items()):
        lag = moments[foremost].batches - moment.batches
        others = [_share(other) for each, other in moments.items() if each != rank]
        if moment.phase in _WAITING and moment.seconds >= stall_seconds:
            ahead = f"; rank {foremost} is {lag} batches ahead" if lag else ""
            found["waits", rank, moment.place] = f"rank {rank} waits {moment.seconds:.0f} s for {_what(moment)}{ahead}"
        elif lag > _BATCHES_BEHIND and lag * moment.elapsed >= stall_seconds * max(1, moment.batches):
            found["behind", rank, ""] = (
                f"rank {rank} is {lag} batches behind rank {foremost}; of its time it waited"
                f" {_share(moment):.0%} for data, and is now at {_what(moment)}"
            )
        elif (
            others
            and moment.elapsed >= 2 * stall_seconds
            and _share(moment) >= max(_SHARE, _TIMES_THE_OTHERS * median(others))
        ):
            found["share", rank, ""] = (
                f"rank {rank} waited {_share(moment):.0%} of its time for data, the other ranks"
                f" {median(others):.0%}; it is now at {_what(moment)}"
            )
    return found


def _share(moment: Snapshot) -> float:
    return moment.waited / moment.elapsed if moment.elapsed else 0.0


def _what(moment: Snapshot) -> str:
    """The phase, and the block where there is one."""
    if moment.place:
        return f"{moment.place} ({moment.phase})"
    return {"loop": "a batch in the training loop (loop)", "gather": "rows being put together (gather)"}.get(
        moment.phase, f"its end ({moment.phase})"
    )
