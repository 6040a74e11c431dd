"""Where each sequence of a spool came from: a file beside the spool, one row a sequence, mapped when read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.run.context import TaskFiles

_TYPES = {
    "file": np.int32,
    "row": np.int64,
    "unit_high": np.uint64,
    "unit_low": np.uint64,
    "lengths": np.int64,
    "labels": np.int64,
    "prints": np.uint64,
}


@dataclass(frozen=True)
class Origins:
    """Sequences [N] in spool order; those of one source row stand together.

    file int32, row int64: the source file's place in its dataset, and the row's number in it from 0.
    unit_high, unit_low uint64: hash of what must stay in one split: the conversation key, else the row itself.
    lengths, labels int64: tokens, and those that are trained and have a token before them.
    prints uint64: fingerprints, see `fingerprint`.
    """

    file: npt.NDArray[np.int32]
    row: npt.NDArray[np.int64]
    unit_high: npt.NDArray[np.uint64]
    unit_low: npt.NDArray[np.uint64]
    lengths: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]
    prints: npt.NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.row)

    @property
    def first_of_row(self) -> npt.NDArray[np.int64]:
        """Place of the first sequence of every row: [rows]."""
        if not len(self):
            return np.empty(0, np.int64)
        new = np.ones(len(self), np.bool_)
        new[1:] = (np.diff(self.file) != 0) | (np.diff(self.row) != 0)
        return np.flatnonzero(new)

    @classmethod
    def joined(cls, parts: Sequence[Origins]) -> Origins:
        """The sequences of several spools end to end."""
        return cls(
            **{
                name: np.concatenate([np.empty(0, kind), *(getattr(part, name) for part in parts)]).astype(kind)
                for name, kind in _TYPES.items()
            }
        )


def write_origins(files: TaskFiles, target: str, origins: Origins) -> None:
    """Write the file of a task; it gets its name with the task's other files."""
    files.write_arrow(target, pa.table({each.name: getattr(origins, each.name) for each in fields(Origins)}))


def read_origins(path: Path) -> Origins:
    """What `write_origins` wrote; arrays are views of the mapped file."""
    with pa.memory_map(str(path)) as source:
        table = pa.ipc.open_file(source).read_all().combine_chunks()
    return Origins(**{each.name: table[each.name].to_numpy() for each in fields(Origins)})
