"""Save the digests of the rows that a task wrote, and count repeated rows over all tasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa

from headrace.arrays import U64
from headrace.formats.content import Repeated, count_sorted
from headrace.run.context import TaskFiles, read_arrow


def keep_words(files: TaskFiles, target: str, words: U64) -> None:
    """Save tagged digests for `count_stored`, ascending; sorts `words` in place.

    target: relative to the run.
    """
    words.sort()
    files.write_arrow(target, pa.table({"content": words}))


def count_stored(run: Path, targets: Iterable[str], splits: Sequence[str]) -> Repeated:
    """Count the repeats among the digests that tasks saved in these files."""
    return count_sorted(
        [read_arrow(run / target)["content"].to_numpy() for target in targets], splits
    )
