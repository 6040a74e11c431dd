"""Cleaned entities between the two passes of a run: what is known of them as JSON lines, their values as one flat file.

`stage/clean/part-N.json` has a line per entity of batch N, failed ones too; `part-N.values` the float64 [rows, C] of
the passed ones end to end, `part-N.filled` bool of the same shape where masks are asked for. Values are mapped when
they are read, so a batch costs the memory of what is touched.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headrace.arrays import F64, Bools
from headrace.digest import canonical_json
from headrace.formats.write import HashingFile
from headrace.run.context import STAGE_DIRECTORY, TaskFiles
from headrace.series.arrays.axis import Axis, Frequency


@dataclass(frozen=True)
class Passed:
    """A retained entity: its place in the spool and on its axis, and where its splits begin."""

    entity: str
    source: str
    first_row: int
    rows: int
    first_time: int
    anchor: str
    val_row: int
    test_row: int
    targets: tuple[int, int, int]

    def axis(self, frequency: Frequency) -> Axis:
        """Its time axis."""
        return Axis(frequency, self.first_time, self.rows, "end" if self.anchor == "end" else "start")

    def bounds(self) -> dict[str, tuple[int, int]]:
        """Of each split, the rows [start, stop) of the entity."""
        return {"train": (0, self.val_row), "val": (self.val_row, self.test_row), "test": (self.test_row, self.rows)}


def spool_name(number: int, what: str) -> str:
    """A spool file of batch `number`, relative to the run: what is "json", "values" or "filled"."""
    return f"{STAGE_DIRECTORY}/clean/part-{number:05d}.{what}"


class SpoolWriter:
    """The spool of one batch. Use as a context manager; the files are the task's when `finish` is called."""

    def __init__(self, files: TaskFiles, number: int, *, masks: bool) -> None:
        self._files, self._number = files, number
        self._open: dict[str, tuple[Path, HashingFile]] = {}
        self._stack = ExitStack()
        for what in ("json", "values", *(["filled"] if masks else [])):
            path = files.temporary(spool_name(number, what))
            self._open[what] = path, self._stack.enter_context(HashingFile(path))
        self.rows = 0

    def append(self, record: dict[str, Any], values: F64 | None = None, filled: Bools | None = None) -> None:
        """Add an entity: a JSON record, and values if it passed."""
        self._open["json"][1].write(canonical_json(record) + b"\n")
        if values is None:
            return
        self._open["values"][1].write(np.ascontiguousarray(values).data)
        if "filled" in self._open and filled is not None:
            self._open["filled"][1].write(np.ascontiguousarray(filled).data)
        self.rows += len(values)

    def finish(self) -> None:
        """Hand the files over."""
        for what, (path, file) in self._open.items():
            file.close()
            written = file.holding(self.rows)
            self._files.finished(path, spool_name(self._number, what), written)

    def __enter__(self) -> SpoolWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()


@dataclass(frozen=True)
class Spool:
    """The spool of one batch, to be read."""

    run: Path
    number: int
    columns: int

    def records(self) -> Iterator[dict[str, Any]]:
        """What was written of each entity, in order."""
        with (self.run / spool_name(self.number, "json")).open("rb") as file:
            for line in file:
                yield json.loads(line)

    def passed(self) -> list[Passed]:
        """The retained entities, in order."""
        found = [record["passed"] for record in self.records() if "passed" in record]
        return [Passed(**{**each, "targets": tuple(each["targets"])}) for each in found]

    def values(self) -> F64:
        """All rows, mapped: [rows, C]."""
        return np.asarray(_mapped(self.run / spool_name(self.number, "values"), np.float64, self.columns), np.float64)

    def filled(self) -> Bools:
        """Which values were carried forward, mapped: [rows, C]."""
        return np.asarray(_mapped(self.run / spool_name(self.number, "filled"), np.bool_, self.columns), np.bool_)


def _mapped(path: Path, kind: type[np.generic], columns: int) -> Any:
    if path.stat().st_size == 0:
        return np.empty((0, columns), kind)
    return np.memmap(path, kind, mode="r").reshape(-1, columns)
