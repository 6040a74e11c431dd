"""What every loader starts from, as plain files: the rows, which of them windows start at, and the attributes.

A peer lives in an environment of its own, where headrace is not installed. Needs numpy alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]
_CLOSE = 1e-4  # peers that scale by themselves and are scaled back


class Run(NamedTuple):
    """Rows [begin, end) of one entity without a missing value."""

    entity: int
    begin: int
    end: int


@dataclass(frozen=True)
class Given:
    """rows: float32 [R, 1 + F], the target first, scaled, NaN where missing; entity e has those from begins[e] on.

    Rows at which windows start whose forcing is whole: starts_all, of those whose horizon has all its targets;
    starts_any, at least one; starts_whole, those whose past has all of them as well. static: float32 [E, S]. run: the
    prepared run, for those that read it themselves.
    """

    folder: Path
    run: str
    names: list[str]
    features: list[str]
    attributes: list[str]
    input: int
    horizon: int
    batch: int
    rows: F32
    begins: I64
    starts_all: I64
    starts_any: I64
    starts_whole: I64
    static: F32

    @property
    def ends(self) -> I64:
        """The row behind each entity's last."""
        return np.append(self.begins[1:], len(self.rows))

    @property
    def window(self) -> int:
        """Rows of a window."""
        return self.input + self.horizon

    def runs(self) -> Iterator[Run]:
        """All that are long enough for a window, in order: for loaders that do not look for what is missing."""
        bad = np.isnan(self.rows).any(axis=1)
        for entity, (begin, end) in enumerate(
            zip(self.begins.tolist(), self.ends.tolist(), strict=True)
        ):
            edges = [begin - 1, *(np.flatnonzero(bad[begin:end]) + begin).tolist(), end]
            for before, after in pairwise(edges):
                if after - before - 1 >= self.window:
                    yield Run(entity, before + 1, after)

    def starts(self, rule: str) -> I64:
        """The starts of a rule: "all", "any", "whole"."""
        found = {"all": self.starts_all, "any": self.starts_any, "whole": self.starts_whole}
        return found[rule]

    def recognised(self, windows: npt.NDArray[Any], starts: I64) -> int:
        """How many of these windows [B, input + horizon, 1 + F] are ours, value by value; NaN: was not delivered."""
        return sum(self._start_of(each, starts) is not None for each in windows)

    def _start_of(self, window: npt.NDArray[Any], starts: I64) -> int | None:
        first = np.flatnonzero((np.abs(self.rows[starts, 1:] - window[0, 1:]) < _CLOSE).all(axis=1))
        told = ~np.isnan(window)
        for start in starts[first].tolist():
            ours = self.rows[start : start + self.window]
            here = told & ~np.isnan(ours)
            if (
                (np.abs(ours - window)[here] < _CLOSE).all()
                and here[:, 1:].all()
                and here[self.input :, 0].any()
            ):
                return int(start)
        return None


_ARRAYS = ("rows", "begins", "starts_all", "starts_any", "starts_whole", "static")


def save(given: Given) -> None:
    """As files of its folder."""
    for name in _ARRAYS:
        np.save(given.folder / f"{name}.npy", getattr(given, name))
    words = ("run", "names", "features", "attributes", "input", "horizon", "batch")
    (given.folder / "given.json").write_text(
        json.dumps({name: getattr(given, name) for name in words})
    )


def load(folder: Path) -> Given:
    """What `save` wrote."""
    words = json.loads((folder / "given.json").read_text())
    return Given(
        folder=folder, **words, **{name: np.load(folder / f"{name}.npy") for name in _ARRAYS}
    )
