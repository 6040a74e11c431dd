"""Text in a forked process: polars' threads do not survive a fork, and asking for them there waits forever.

A DataLoader forks its workers unless told otherwise, and its process has often used polars before: it prepared the
dataset, or read a text split itself. Such workers parse CSV and TSV with Arrow, one block on one thread, with the same
values; JSON lines, which Arrow reads otherwise, are refused with the remedy.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pc

from headrace.errors import StreamError

_TASKS = Path("/proc/self/task")
_started = False  # polars' threads ran when this process forked
_lost = False  # and this is the forked process


def polars_is_lost() -> bool:
    """Whether polars would wait forever in this process."""
    return _lost


def require_polars(path: Path) -> None:
    """Raise `StreamError` where polars would wait forever."""
    if _lost:
        raise StreamError(
            f"{path}: JSON lines cannot be read in a process that was forked after its parent had used polars, whose"
            ' threads do not survive a fork; start workers with multiprocessing_context="spawn" or "forkserver", or'
            " read with num_workers=0"
        )


def parse_delimited(data: bytes, *, separator: str, width: int, columns: Sequence[int]) -> pa.Table:
    """The columns at these places of whole records as text, without polars; an empty field is null, a quoted one not.

    data: records of `width` fields each, without a header. Raises `pa.ArrowInvalid`.
    """
    while True:
        with suppress(pa.ArrowCancelled):  # a signal came in the main thread; Python's handler has had it, and goes on
            return _parse(data, separator, width, columns)


def _parse(data: bytes, separator: str, width: int, columns: Sequence[int]) -> pa.Table:
    if not data.endswith(b"\n"):  # else Arrow takes an empty field at the end for one in quotes if that before it was
        data += b"\n"
    names = [f"column_{place + 1}" for place in range(width)]
    wanted = [names[place] for place in columns]
    return pc.read_csv(
        pa.BufferReader(data),
        read_options=pc.ReadOptions(use_threads=False, column_names=names, block_size=len(data) + 1),
        parse_options=pc.ParseOptions(delimiter=separator, newlines_in_values=True, ignore_empty_lines=width > 1),
        convert_options=pc.ConvertOptions(
            column_types=dict.fromkeys(wanted, pa.large_string()),
            include_columns=wanted,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )


def _look() -> None:
    global _started
    try:
        tasks = list(_TASKS.iterdir())
    except OSError:  # no such system files: better another parser than one that waits forever
        _started = True
        return
    _started = any(_is_polars(task) for task in tasks)


def _is_polars(task: Path) -> bool:
    try:
        name = (task / "comm").read_text().strip()
    except OSError:  # that thread has ended meanwhile
        return False
    return name.startswith("polars-") and name[7:].isdigit()


def _mark() -> None:
    global _lost
    _lost = _lost or _started


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_look, after_in_child=_mark)
