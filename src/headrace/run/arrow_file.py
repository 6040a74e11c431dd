"""Tables that a task of a run leaves for a later stage, as Arrow files that are mapped when they are read."""

from __future__ import annotations

import pyarrow as pa

from headrace.digest import sha256_file
from headrace.formats.write import Written
from headrace.run.context import TaskFiles
from headrace.storage.local import storing


def write_arrow(files: TaskFiles, target: str, table: pa.Table) -> None:
    """Write a table to `target`, relative to the run; it gets its name with the task's other files.

    Raises `StoreError` where it cannot be written.
    """
    temporary = files.temporary(target)
    with (
        storing(temporary.parent),
        pa.OSFile(str(temporary), "wb") as sink,
        pa.ipc.new_file(sink, table.schema) as writer,
    ):
        writer.write_table(table)
    files.finished(temporary, target, Written(table.num_rows, temporary.stat().st_size, sha256_file(temporary), ()))
