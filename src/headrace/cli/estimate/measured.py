"""What a run will write and take, by running a sample of it twice: a small one for what any run costs, a larger one."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.cli.estimate.reduced import Reduced, reduced
from headrace.cli.estimate.sized import SizedFile
from headrace.errors import HeadraceError
from headrace.run.events import Event, StageBegan
from headrace.run.prepare import prepare
from headrace.storage.places import place_of

SAMPLE_BYTES = 4 << 20
_SMALLER = 16  # times the small sample is
_SLOW_S = 1.0  # a small sample that takes longer, as of chats to be tokenised, is only doubled: people wait for this
SAMPLED_OUT = "sampled_out"  # the reason of recipes that take a sample themselves


@dataclass(frozen=True)
class Estimate:
    """rows: that are read; out_bytes: of all shards; cpu_s: seconds of one core. how: what they rest on.

    stages: names of the stages that the run has. share: of the source's bytes. entities: of series, None of others.
    """

    rows: int
    out_bytes: int
    cpu_s: float
    how: str
    stages: tuple[str, ...]
    share: float
    entities: int | None = None


@dataclass(frozen=True)
class _Ran:
    """A sample that was run. kept_rows: those of its rows that its own sample took."""

    sample: Reduced
    rows: int
    kept_rows: int
    out_bytes: int
    cpu_s: float
    stages: tuple[str, ...]


def estimate(recipe: Any, files: Sequence[SizedFile], *, sample_bytes: int = SAMPLE_BYTES) -> Estimate | str:
    """Run a sample in a temporary directory, which is removed again; or a sentence why there is no estimate.

    Sizes are scaled by bytes of the source. Of the time, what even a small run costs is counted once.
    """
    try:
        small = _ran(recipe, files, sample_bytes // _SMALLER)
        whole = small.sample.bytes == small.sample.of
        room = sample_bytes if small.cpu_s < _SLOW_S else 2 * (sample_bytes // _SMALLER)
        large = small if whole else _ran(recipe, files, room)
    except HeadraceError as error:
        return f"not estimated: {error}"
    taken, of = large.sample.bytes, large.sample.of
    if not taken:
        return "not estimated: the source is empty"
    scale, more = of / taken, taken - small.sample.bytes
    rate = large.cpu_s / taken
    if more > 0:  # bounds keep noise of two short runs from becoming a rate
        rate = min(rate, max(rate / 4, (large.cpu_s - small.cpu_s) / more))
    once = max(0.0, large.cpu_s - rate * taken)
    rows = large.sample.rows or round(large.rows * scale)
    kept = None if large.sample.kept is None else large.sample.kept(rows)
    out_bytes = large.out_bytes * (scale if kept is None else kept / max(1, large.kept_rows))
    part = "all of it" if scale == 1 else f"{taken / 1e6:,.1f} MB of it, {100 / scale:.2g} %"
    remote = any(place_of(file.path).reads == "requests" for file in files)
    return Estimate(
        rows=rows,
        out_bytes=round(out_bytes),
        cpu_s=once + rate * of,
        how=f"by a run of {part} on this machine, just now{', without the time to fetch the rest' if remote else ''}",
        stages=large.stages,
        share=1 / scale,
        entities=large.sample.entities,
    )


def _ran(recipe: Any, files: Sequence[SizedFile], sample_bytes: int) -> _Ran:
    stages: list[str] = []

    def hear(event: Event) -> None:
        if isinstance(event, StageBegan):
            stages.append(event.stage)

    directory = Path(tempfile.mkdtemp(prefix="headrace-sample-"))
    try:
        sample: Reduced = reduced(recipe, files, directory / "source", max(1, sample_bytes))
        began = time.process_time()
        made = prepare(sample.recipe, directory / "out", workers=1, on_event=hear)
        took = time.process_time() - began
        splits = made.manifest.splits.values()
        rows = int(made.manifest.source["rows"])
        kept = rows - made.manifest.dropped.get(SAMPLED_OUT, 0)
        return _Ran(sample, rows, kept, sum(each.bytes for each in splits), took, tuple(stages))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
