"""An Arrow batch on its way from a worker process to the training loop: its own rows in one piece of memory.

A batch is a slice of a pool, and a pickled slice brings the whole pool: thousands of times its bytes. A `TableParcel`
is written as an Arrow stream, which holds the rows of the slice alone, and is read in place where it arrives.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headrace.errors import MissingExtra

try:
    import torch
    from torch.utils.data import get_worker_info

    from headrace.stream.workers.parcel import Parcel, Sent, arrive_failed, filled, opened, unsent
except ImportError as error:
    raise MissingExtra("torch", "torch") from error


class TableParcel:
    """A table that pickles as one buffer and is a table again, with the same schema and rows, when unpickled."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __reduce__(self) -> Any:
        try:
            measured = pa.MockOutputStream()
            _write(self.table, measured)
            return _unpack, (filled(measured.size(), self._fill),)
        except Exception as error:  # noqa: BLE001  # whatever it was, the loop must hear of it
            return arrive_failed, (unsent(dict.fromkeys(self.table.schema.names), error),)

    def _fill(self, flat: torch.Tensor) -> None:
        with pa.FixedSizeBufferWriter(pa.py_buffer(flat.numpy())) as writer:
            _write(self.table, writer)


def parcel_of(batch: Any) -> Any:
    """A batch in the form in which a worker should hand it out."""
    if isinstance(batch, pa.Table):
        return TableParcel(batch)
    return Parcel(batch) if type(batch) is dict else batch


def whole_batch(batch: Any) -> Any:
    """The batch as the stream made it, for DataLoader(dataset, batch_size=None, collate_fn=whole_batch).

    A DataLoader without it makes tensors of numpy arrays, fails at dates, and looks at every single text.
    """
    return TableParcel(batch) if isinstance(batch, pa.Table) and get_worker_info() is not None else batch


def _write(table: pa.Table, sink: Any) -> None:
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)


def _unpack(sent: Sent) -> pa.Table:
    return pa.ipc.open_stream(pa.py_buffer(opened(sent).numpy())).read_all()
