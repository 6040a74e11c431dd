"""Splits with columns of many kinds, transforms, and what is compared of batches; imported by name in workers."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from stream_cases import index_of

from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.torch_dataset import StreamingDataset
from headrace.stream.ranks.topology import Topology

ALONE = Topology(rank=0, world_size=1)
ROWS = (17, 0, 40, 1, 23)
KINDS = pa.schema(
    [
        pa.field("row", pa.int64(), nullable=False),
        ("text", pa.string()),
        ("half", pa.float64()),
        ("day", pa.date32()),
        ("time", pa.timestamp("us", "UTC")),
        ("ids", pa.list_(pa.int32())),
        ("point", pa.struct([("x", pa.float32()), ("name", pa.string())])),
    ]
)


def values_of(row: int) -> dict:
    """The row of this number in Python values."""
    return {
        "row": row,
        "text": None if row % 7 == 0 else f"t{row}",
        "half": None if row % 5 == 0 else row / 2,
        "day": datetime.date(2020, 1, 1) + datetime.timedelta(days=row),
        "time": datetime.datetime(2021, 1, 1, tzinfo=datetime.UTC)
        + datetime.timedelta(seconds=row, microseconds=row),
        "ids": None if row % 6 == 0 else [row] * (row % 3),
        "point": {"x": row / 4, "name": None if row % 4 == 0 else f"p{row}"},
    }


@dataclass(frozen=True)
class Kinds:
    """Blocks of `values_of` rows."""

    rows: tuple[int, ...] = ROWS

    def __call__(self, block: int, columns: Sequence[str] | None) -> pa.Table:
        first = sum(self.rows[:block])
        rows = [values_of(row) for row in range(first, first + self.rows[block])]
        return pa.Table.from_pylist(rows, schema=KINDS).select(list(columns or KINDS.names))


def kinds_dataset(num_workers, *, rows=ROWS, topology=ALONE, **settings):
    settings = StreamOptions(
        **{"batch_size": 4, "shuffle": True, "shuffle_rows": 32, "lanes": 4, **settings}
    )
    return StreamingDataset(
        index_of(rows, schema=KINDS),
        Kinds(rows),
        settings,
        num_workers=num_workers,
        topology=topology,
    )


def real_rows(batch) -> list[int]:
    """The row numbers of a batch of any form, filling ones left out."""
    if isinstance(batch, list):
        return [row["row"] for row in batch if row.get("valid", True)]
    names = batch.column_names if isinstance(batch, pa.Table) else list(batch)
    row = np.asarray(batch["row"])
    return (row[np.asarray(batch["valid"])] if "valid" in names else row).tolist()


def items_of(batch) -> int:
    """Rows of a batch, filling ones among them."""
    return len(batch) if isinstance(batch, list) else len(batch["row"])


class Doubled:
    """A transform with a setting, as users write them."""

    def __init__(self, column):
        self.column = column

    def __call__(self, batch):
        return {**batch, "twice": batch[self.column] * 2}


def as_pair(batch):
    return batch["row"], batch["half"]


def to_rows_only(table):
    return table.select(["row"])


def forget(batch):
    batch["row"] = batch["row"] + 1


def fail_at_row_fifty(batch):
    if 50 in batch["row"].tolist():
        raise ZeroDivisionError("row 50 is not liked")
    return batch
