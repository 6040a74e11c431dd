"""What a run will write and take, by running a sample of it twice: a small one for what any run costs, a larger one."""

from __future__ import annotations

import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.cli.estimate.reduced import Reduced, reduced
from headrace.errors import HeadraceError
from headrace.run.events import Event, StageBegan
from headrace.run.prepare import prepare

SAMPLE_BYTES = 4 << 20


@dataclass(frozen=True)
class Estimate:
    """rows: that are read; out_bytes: of all shards; cpu_s: seconds of one core. how: what they rest on.

    stages: names of the stages that the run has. entities: of series, in the sample. share: of the source's bytes.
    """

    rows: int
    out_bytes: int
    cpu_s: float
    how: str
    stages: tuple[str, ...]
    share: float


@dataclass(frozen=True)
class _Ran:
    bytes: int
    of: int
    rows: int
    out_bytes: int
    cpu_s: float
    stages: tuple[str, ...]


def estimate(recipe: Any, files: list[tuple[Path, str]], *, sample_bytes: int = SAMPLE_BYTES) -> Estimate | str:
    """Run a sample in a temporary directory, which is removed again; or a sentence why there is no estimate.

    Sizes are scaled by bytes of the source. Of the time, what even a small run costs is counted once.
    """
    try:
        small = _ran(recipe, files, sample_bytes // 4)
        large = small if small.bytes == small.of else _ran(recipe, files, sample_bytes)
    except HeadraceError as error:
        return f"not estimated: {error}"
    if not large.bytes:
        return "not estimated: the source is empty"
    scale = large.of / large.bytes
    rate = large.cpu_s / large.bytes
    if large.bytes > small.bytes:  # bounds keep noise of two short runs from becoming a rate
        rate = min(rate, max(rate / 4, (large.cpu_s - small.cpu_s) / (large.bytes - small.bytes)))
    once = max(0.0, large.cpu_s - rate * large.bytes)
    part = "all of it" if scale == 1 else f"{large.bytes / 1e6:,.1f} MB of it, {100 / scale:.2g} %"
    return Estimate(
        rows=round(large.rows * scale),
        out_bytes=round(large.out_bytes * scale),
        cpu_s=once + rate * large.of,
        how=f"by a run of {part} on this machine, just now",
        stages=large.stages,
        share=1 / scale,
    )


def _ran(recipe: Any, files: list[tuple[Path, str]], sample_bytes: int) -> _Ran:
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
        return _Ran(sample.bytes, sample.of, rows, sum(each.bytes for each in splits), took, tuple(stages))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
