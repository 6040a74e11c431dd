"""Continue the state of a blend with other weights or other datasets. Pure.

Each dataset keeps its own place: its draws go on where they were, so no row comes again before its
own epoch ends. The change begins a leg of the run, as other numbers of ranks do: what is left of
each own epoch keeps its rows, and is cut again behind the rounds in progress.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

from headrace.errors import StreamError, setting
from headrace.stream.order.state import MOST_CHANGES, MixtureState

Changed = Literal["nothing", "weights", "datasets"]
CHANGES: tuple[Changed, ...] = get_args(Changed)


def remixed(
    saved: MixtureState, current: MixtureState, *, row: int, changed: Changed
) -> MixtureState:
    """Return a mixture that is the saved one before a row of the run, and the current one from then
    on; its legs end before that row. The saved one if nothing differs.

    Raises `StreamError` if more differs than `changed` says.
    """
    numbers = {source.name: number for number, source in enumerate(saved.sources)}
    before = set(saved.names)
    now = set(current.names)
    if changed == "weights" and before != now:
        names = sorted(before ^ now)
        raise StreamError(
            f"stream state: the blend was saved with {sorted(before)}, this stream has"
            f" {sorted(now)}",
            setting="changed",
            value=names[0],
            remedy=f"pass {setting('changed', 'datasets')}, or the saved datasets",
        )
    sources = list(saved.sources)
    for source in current.sources:
        if source.name not in numbers:
            numbers[source.name] = len(sources)
            sources.append(source)
    mixtures = [mixture for mixture in saved.mixtures if mixture.begin < row]
    laid = replace(
        current.mixtures[-1],
        begin=row,
        sources=tuple(numbers[source.name] for source in current.sources),
    )
    if mixtures and laid == replace(mixtures[-1], begin=row):
        return saved
    legs = saved.before(row).legs
    if max(len(mixtures), len(legs)) >= MOST_CHANGES:
        raise StreamError(
            f"stream state: the blend has changed {MOST_CHANGES} times",
            setting="changed",
            value=changed,
            remedy="start a run of its own, or pass the saved weights and datasets",
        )
    return MixtureState(sources=tuple(sources), mixtures=(*mixtures, laid), legs=legs)
