"""Give a check many random inputs, all made from one seed, and cut an input that fails down to a small one.

    def make_dates(random_): return [random_.choice(FORMATS) for _ in range(9)]   # any sequence: bytes, list, str
    def check_dates(texts): ...                                                   # raises Difference, or returns

    fuzz("dates", make_dates, check_dates, seed=0, inputs=300)

Input number n depends on name, seed and n alone, so a failure is found again by them whatever ran before. A check that
returns, or raises an error of headrace's own, is content. Whatever else it raises ends the run, with name, seed, number
and the smallest failing input on standard output. `run_fuzz` does the same in a child process of limited memory, for
checks that may crash or hang; `seconds_in_full` and `seed_in_full` are what `make fuzz` asked for.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from forks import limit_memory, run_child

from headrace.errors import HeadraceError

Input = TypeVar("Input", bound=Sequence[Any])
ENDLESS = 1 << 60
HANG_S = 20  # of a child's own processor time for one input
SHRINK_S = 30


class Difference(AssertionError):
    """Two readers read one input differently, and both would be believed."""


def fuzz(
    name: str,
    make_input: Callable[[random.Random], Input],
    check: Callable[[Input], object],
    *,
    seed: int,
    inputs: int = ENDLESS,
    seconds: float = 86_400,
    hang_s: float = 0,
) -> int:
    """Check up to `inputs` inputs for up to `seconds`; returns how many were checked.

    hang_s: end this process by SIGVTALRM once one input has taken so much processor time; 0: never.
    """
    until, tried = time.monotonic() + seconds, 0
    while tried < inputs and time.monotonic() < until:
        made = make_input(random.Random(f"{name} {seed} {tried}"))
        signal.setitimer(signal.ITIMER_VIRTUAL, hang_s)
        failure = _failure_of(check, made)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        if failure is not None:
            kind = type(failure)
            small = smallest(made, lambda part: type(_failure_of(check, part)) is kind)  # noqa: B023 - the loop ends here
            again = _failure_of(check, small)
            print(f"{name}: input {tried} of seed {seed} fails: {str(failure)[:2000]}", flush=True)
            print(f"smallest input that fails: {small!r:.3000}", flush=True)
            raise failure if again is None else again
        tried += 1
    return tried


def smallest(whole: Input, fails: Callable[[Input], bool], limit_s: float = SHRINK_S) -> Input:
    """A part of a sequence that still fails: slices are left out, long ones first, until none can be."""
    until, size = time.monotonic() + limit_s, len(whole)
    while (size := size // 2) or len(whole):
        size, at, before = max(size, 1), 0, len(whole)
        while at < len(whole) and time.monotonic() < until:
            part: Any = whole[:at] + whole[at + size :]  # type: ignore[operator]  # bytes, texts, lists and tuples add
            if fails(part):
                whole = part
            else:
                at += size
        if time.monotonic() >= until or (size == 1 and len(whole) == before):
            break
    return whole


def _failure_of(check: Callable[[Input], object], made: Input) -> BaseException | None:
    try:
        check(made)
    except HeadraceError:
        return None
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 - a panic of polars is no Exception
        return error
    return None


# --- in a child process ---


def run_fuzz(
    parser: str, directory: Path, *, seed: int, inputs: int = ENDLESS, seconds: float = 600
) -> dict[str, int]:
    """Fuzz a parser in a child process. parser: "module:function", where the function takes a directory for its files
    and returns name, make_input, check and a dict of counts, which is returned with "tried" beside it."""
    ended = run_child(
        "fuzz_run:child",
        *(parser, str(directory / "files"), seed, inputs, seconds),
        output=directory / "told.txt",
        limit_s=seconds + 240,
    )
    assert 0 == ended.code, f"{ended.output[-6000:]}\nended by {ended.code}"
    found: dict[str, int] = json.loads(ended.output.splitlines()[-1])
    return found


def child(parser: str, directory: str, seed: int, inputs: int, seconds: float) -> None:
    """What `run_fuzz` runs. Prints the counts."""
    os.environ["POLARS_MAX_THREADS"] = "1"  # threads cost more than a small file
    module, _, function = parser.partition(":")
    Path(directory).mkdir(parents=True)
    name, make_input, check, counts = getattr(import_module(module), function)(Path(directory))
    limit_memory(8 << 30)
    tried = fuzz(name, make_input, check, seed=seed, inputs=inputs, seconds=seconds, hang_s=HANG_S)
    print(json.dumps({"tried": tried, **counts}))


def seconds_in_full() -> float:
    """How long each parser is fuzzed by `make fuzz` and `make faults`."""
    return float(os.environ.get("HEADRACE_FUZZ_S", "600"))


def seed_in_full() -> int:
    """The seed of `make fuzz` and `make faults`."""
    return int(os.environ.get("HEADRACE_FUZZ_SEED", "1"))
