"""Grade a finished run in one line, pass, warn or fail: by what it lost, and by doubts about it.

Only what its manifest says counts, so a run that is reused is graded as when it was made, and no
library of data is loaded for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from headrace.errors import setting

if TYPE_CHECKING:
    from headrace.dataset.manifest import Manifest

MOST_DROPPED = 0.5
NOTED = 0.25  # a smaller share is usual

Word = Literal["pass", "warn", "fail"]


@dataclass(frozen=True)
class Doubt:
    """What to know of a run before training on it.

    fraction: of the rows or entities of the source that it lacks; 0 if nothing is lost.
    """

    sentence: str
    fraction: float = 0.0


@dataclass(frozen=True)
class Grade:
    """How a run came out.

    most: the share that may be lost; above it the word is "fail". doubts: the gravest first.
    """

    word: Word
    doubts: Sequence[Doubt]
    most: float

    def line(self) -> str:
        """Return it as a line for people, with settings marked as in errors."""
        if self.word == "pass":
            return "pass: nothing to note"
        words = "; ".join(doubt.sentence for doubt in self.doubts)
        if self.word == "warn":
            return f"warn: {words}"
        enough = f"{min(1.0, self.doubts[0].fraction + 0.01):.2g}"
        return f"fail: {words}; correct that, or give {setting('max_dropped', enough)}"


def grade_of(manifest: Manifest, most: float = MOST_DROPPED, *, warnings: int = 0) -> Grade:
    """Grade a run. most: see `Grade`. warnings: how many it gave while it was made."""
    from headrace.recipe import recipe_of_run

    recipe = recipe_of_run(manifest.recipe)
    doubts = []
    for doubt in (*_dropped(manifest, recipe.requested_drops), *recipe.doubts(manifest)):
        if not doubt.fraction or doubt.fraction > min(NOTED, most):
            doubts.append(doubt)
    doubts.sort(key=lambda doubt: -doubt.fraction)
    if warnings:
        doubts.append(Doubt("the warning above" if warnings == 1 else f"{warnings} warnings above"))
    word: Word = "warn" if doubts else "pass"
    if doubts and doubts[0].fraction > most:
        word = "fail"
    return Grade(word, doubts, most)


def _dropped(manifest: Manifest, requested: frozenset[str]) -> Iterator[Doubt]:
    """Yield how many rows were dropped, but for the reasons that settings ask for."""
    rows = int(manifest.source["rows"])
    dropped = {}
    for reason, count in manifest.dropped.items():
        if count and reason not in requested:
            dropped[reason] = count
    fraction = sum(dropped.values()) / max(1, rows)
    if fraction:
        most = max(dropped, key=lambda reason: dropped[reason])
        yield Doubt(f"{100 * fraction:.0f} % of the rows are dropped, most as {most}", fraction)
