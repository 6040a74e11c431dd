"""One loader in a process of its own, asked by lines: `python serve.py LOADER FOLDER`.

It says `{"windows", "of", "recognised", "looked_at", ...}` when it is ready; then every line that it reads, a number of
seconds, is answered by `{"pace"}`, windows a second of CPU time of this process. What is no answer goes to stderr.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from given import Given, load

LOOKED_AT = 16


class Loader(NamedTuple):
    """batches: without end or one epoch. count: windows of a batch. seen: those of a batch as our columns.

    windows: how many different ones an epoch has, by what the loader itself says; None: it draws. rule: which of ours
    they should be, see `Given`.
    """

    version: str
    batches: Callable[[], Iterator[Any]]
    count: Callable[[Any], int]
    seen: Callable[[Any], Any]
    windows: int | None
    rule: str = "all"


def touch(value: Any) -> int:
    """Read one number of every tensor, so that nothing lazy gets away with it; how many numbers there are."""
    if isinstance(value, torch.Tensor):
        if value.numel():
            value[(-1,) * value.ndim].item()
        return value.numel()
    if isinstance(value, dict):
        return sum(touch(each) for each in value.values())
    if isinstance(value, list | tuple):
        return sum(touch(each) for each in value)
    if dataclasses.is_dataclass(value):
        return sum(touch(getattr(value, each.name)) for each in dataclasses.fields(value))
    return 0


def pace(loader: Loader, seconds: float) -> float:
    """Windows a second of CPU time, after three batches."""
    batches = loader.batches()
    for batch in islice(batches, 3):
        touch(batch)
    count, begun = 0, time.process_time()
    while time.process_time() - begun < seconds:
        for batch in batches:
            touch(batch)
            count += loader.count(batch)
            if time.process_time() - begun > seconds:
                break
        else:
            batches = loader.batches()
    return count / (time.process_time() - begun)


def metadata(loader: Loader, given: Given) -> dict[str, Any]:
    """What it delivers: how many windows there are, whether some of them are ours, numbers of a window."""
    batch = next(loader.batches())
    ours = given.starts(loader.rule)
    seen = np.asarray(loader.seen(batch))[:LOOKED_AT]
    return {
        "version": loader.version,
        "windows": loader.windows,
        "of": len(ours),
        "looked_at": len(seen),
        "recognised": given.recognised(seen, ours),
        "numbers": touch(batch) / loader.count(batch),
    }


def main() -> None:
    """Make the loader, say what it is, answer."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    given = load(Path(sys.argv[2]))
    begun = time.process_time()
    loader: Loader = importlib.import_module(f"with_{sys.argv[1]}").loader(given)
    start = time.process_time() - begun
    print(json.dumps({**metadata(loader, given), "start": start}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps({"pace": pace(loader, float(line))}), file=answers, flush=True)


if __name__ == "__main__":
    main()
