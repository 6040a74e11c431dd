"""Send batches between a worker process and the training loop in one piece of memory, for any
number of columns.

A DataLoader sends every tensor by its own file descriptor, which costs about a millisecond each. A
batch of 28 columns is then twenty times slower than its bytes. So batches are wrapped here, and
pickled as one buffer: small ones in the message itself, large ones in one block of shared memory.
The receiver gets what was wrapped:

    Parcel         a dict of tensors, arrays, lists of tensors and other values; from a worker to
                   the loop
    TableParcel    the rows of an Arrow table: a pickled slice would bring the whole pool that it is
                   cut from
    UnmadeBatch    columns, to a worker; what arrives is the batch that the worker makes of them

Shared memory is torch's where torch sends the batch. A `SocketMessage` has memory without a name,
whose descriptors travel beside it. A process that is killed leaves nothing behind, and any number
of receivers map it, each with its own writes.

A worker pickles in a thread whose errors are lost, and the loop would wait for that batch forever.
So pickling never fails there. Without room for shared memory, or open files for it, the bytes
travel in the message. A batch that cannot be pickled at all arrives as an error that the DataLoader
raises in the loop.
"""

from __future__ import annotations

import io
import math
import os
import pickle
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing import reduction
from multiprocessing.reduction import ForkingPickler
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from headrace.errors import MissingExtra, StreamError, setting
from headrace.stream.loader.options import StreamOptions
from headrace.stream.read.batch import make_batch
from headrace.stream.read.columns import Column, Columns, cut
from headrace.stream.read.ragged import Ragged
from headrace.stream.workers.arrivals import StepMark

try:
    import torch
    from torch._utils import ExceptionWrapper
    from torch.utils.data import get_worker_info
except ImportError as error:
    raise MissingExtra("torch", "torch") from error

# the bytes themselves, pickled shared memory, or the number of a descriptor beside the message
Sent: TypeAlias = bytearray | bytes | int

_ALIGNED = 64
# measured: a pipe is faster up to about 400 KB, shared memory beyond
_MOST_BYTES_IN_MESSAGE = 1 << 18
_COUNT_BYTES = 2  # of a message over a socket: how many descriptors follow it
_this_thread = threading.local()  # descriptors: of the message that is pickled or unpickled


class SharedBatch(dict[str, Any]):
    """A batch in a worker.

    Unpickled it is a dict with the same tensors, lists of tensors and other values. mark: noted
    when it arrives.
    """

    mark: StepMark | None = None

    def __copy__(self) -> SharedBatch:
        """Return a parcel, because a DataLoader copies a batch before it sends it."""
        copied = SharedBatch(self)
        copied.mark = self.mark
        return copied

    def __reduce_ex__(self, _protocol: Any) -> Any:
        try:
            lists = {}
            for name, value in self.items():
                if isinstance(value, list):
                    lists[name] = _Lists(value)
            return _arrived, (*_sent({**self, **lists}), dict, self.mark)
        except Exception as error:  # noqa: BLE001  # the loop must see any error
            return arrive_failed, (_unsent(self, error),)


class TableParcel:
    """A table that pickles as one buffer and unpickles as a table with the same schema and rows."""

    def __init__(self, table: pa.Table, mark: StepMark | None = None) -> None:
        self.table = table
        self._mark = mark

    def __reduce__(self) -> Any:
        try:
            measured = pa.MockOutputStream()
            self._write(measured)
            return _arrived_table, (_filled(measured.size(), self._fill), self._mark)
        except Exception as error:  # noqa: BLE001  # the loop must see any error
            return arrive_failed, (_unsent(dict.fromkeys(self.table.schema.names), error),)

    def _fill(self, flat: torch.Tensor) -> None:
        with pa.FixedSizeBufferWriter(pa.py_buffer(flat.numpy())) as writer:
            self._write(writer)

    def _write(self, sink: Any) -> None:
        with pa.ipc.new_stream(sink, self.table.schema) as stream:
            stream.write_table(self.table)


class UnmadeBatch:
    """Columns that become a batch when they are unpickled, so the worker that needs the batch makes
    it.

    make: picklable. Its columns have their own memory and may be written to.
    """

    def __init__(self, columns: Columns, make: Callable[[Columns], Any]) -> None:
        self._columns = columns
        self._make = make

    def result(self) -> Any:
        """Return the batch, made here of the same memory."""
        return self._make(self._columns)

    def __reduce__(self) -> Any:
        return _arrived, (
            *_sent({name: _own_rows(column) for name, column in self._columns.items()}),
            self._make,
        )


def unmade_batches(options: StreamOptions) -> Callable[[Columns, int], Iterator[UnmadeBatch]]:
    """Return a function that cuts columns into batches that the receiver makes.

    Arrow batches do not need it: the sender makes them at no cost.
    """
    make = partial(
        make_batch, batch_format=options.batch_format, padding=options.padding, form=options.form
    )

    def unmade(columns: Columns, rows: int) -> Iterator[UnmadeBatch]:
        total = len(next(iter(columns.values())))
        return (
            UnmadeBatch(cut(columns, start, start + rows), make) for start in range(0, total, rows)
        )

    return unmade


def share_batch(batch: Any, mark: StepMark | None = None) -> Any:
    """Return a batch in the form in which a worker should yield it. mark: noted when it arrives."""
    if isinstance(batch, pa.Table):
        return TableParcel(batch, mark)
    if type(batch) is dict:
        shared = SharedBatch(batch)
        shared.mark = mark
        return shared
    return batch


def whole_batch(batch: Any) -> Any:
    """Return the batch as the stream made it, for DataLoader(dataset, batch_size=None,
    collate_fn=whole_batch).

    Without it, a DataLoader turns numpy arrays into tensors, fails at dates, and inspects every
    single text.
    """
    if isinstance(batch, pa.Table) and get_worker_info() is not None:
        return TableParcel(batch)
    return batch


def arrive_failed(error: StreamError) -> ExceptionWrapper:
    """Return the value that a DataLoader in the loop's process raises in place of the batch."""
    raised = (type(error), error, None)
    return ExceptionWrapper(raised, where="in a DataLoader worker")  # type: ignore[no-untyped-call]  # torch leaves it so


class SocketMessage:
    """A value as it is sent over a socket, to any number of receivers; see the module docstring.

    nbytes: of the message and the memory beside it.
    """

    def __init__(self, value: Any) -> None:
        self._descriptors: list[int] = []
        with _beside(self._descriptors):
            self._message = pickle.dumps(value, 5)
        self.nbytes = len(self._message) + sum(
            os.fstat(descriptor).st_size for descriptor in self._descriptors
        )

    def __del__(self) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)

    def send(self, connection: Any) -> None:
        """Send it over a connection of multiprocessing; `receive_message` receives it there."""
        count = len(self._descriptors).to_bytes(_COUNT_BYTES, "little")
        connection.send_bytes(count + self._message)
        for descriptor in self._descriptors:
            reduction.send_handle(connection, descriptor, 0)

    def value(self) -> Any:
        """Return the value as a receiver gets it."""
        with _beside(self._descriptors):
            return pickle.loads(self._message)


def receive_message(connection: Any) -> Any:
    """Return the value that was sent as `SocketMessage`. Raises `EOFError`, `OSError`."""
    message = memoryview(connection.recv_bytes())
    descriptors = list[int]()
    try:
        for _ in range(int.from_bytes(message[:_COUNT_BYTES], "little")):
            descriptors.append(reduction.recv_handle(connection))
        with _beside(descriptors):
            return pickle.loads(message[_COUNT_BYTES:])
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


@contextmanager
def _beside(descriptors: list[int]) -> Iterator[None]:
    """Let this thread pickle to these descriptors, or unpickle from them."""
    outer = getattr(_this_thread, "descriptors", None)
    _this_thread.descriptors = descriptors
    try:
        yield
    finally:
        _this_thread.descriptors = outer


class _WithoutBytes:
    """Leaves the bytes of plain tensors out of a pickle, as for arrays."""

    def reducer_override(self, value: Any) -> Any:
        if not is_plain(value):
            return NotImplemented
        # One axis without gaps. A single value may have any stride, which would prevent a view as
        # bytes.
        flat = (
            value.detach().contiguous().as_strided((value.numel(),), (1,)).view(torch.uint8).numpy()
        )
        return _tensor, (pickle.PickleBuffer(flat), value.dtype, tuple(value.shape))


class _ForChildren(_WithoutBytes, ForkingPickler):
    """Between a process and its children, which may take other tensors as torch shares them."""


class _ForAnyProcess(_WithoutBytes, pickle.Pickler):
    """Between processes that do not know each other's keys."""


def _sent(values: dict[str, Any]) -> tuple[bytes, Sent, list[tuple[int, int]]]:
    """Return a pickle without the bytes of tensors and arrays, those bytes end to end, and the
    position of each.
    """
    pickled = list[pickle.PickleBuffer]()
    file = io.BytesIO()
    pickler: type[_ForChildren | _ForAnyProcess] = _ForChildren
    if getattr(_this_thread, "descriptors", None) is not None:
        pickler = _ForAnyProcess
    pickler(file, 5, True, pickled.append).dump(values)
    buffers = [np.asarray(buffer.raw()) for buffer in pickled]
    stops = np.cumsum([0, *(_aligned(buffer.nbytes) for buffer in buffers)]).tolist()
    ranges = [(start, start + buffer.nbytes) for start, buffer in zip(stops, buffers, strict=False)]

    def fill(flat: torch.Tensor) -> None:
        for (start, stop), buffer in zip(ranges, buffers, strict=True):
            np.copyto(flat.numpy()[start:stop], buffer)

    return file.getvalue(), _filled(stops[-1], fill), ranges


def _arrived(
    data: bytes,
    sent: Sent,
    ranges: list[tuple[int, int]],
    make: Callable[[dict[str, Any]], Any] = dict,
    mark: StepMark | None = None,
) -> Any:
    if mark is not None:
        mark.note()
    flat = _opened(sent).numpy()
    return make(pickle.loads(data, buffers=[flat[start:stop] for start, stop in ranges]))


def _arrived_table(sent: Sent, mark: StepMark | None = None) -> pa.Table:
    if mark is not None:
        mark.note()
    return pa.ipc.open_stream(pa.py_buffer(_opened(sent).numpy())).read_all()


def _tensor(flat: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    if len(flat):
        return torch.from_numpy(flat).view(dtype).view(shape)
    return torch.empty(shape, dtype=dtype)


class _Lists:
    """A list that travels as one tensor if it holds tensors with one axis."""

    def __init__(self, rows: list[Any]) -> None:
        self._rows = rows

    def __reduce__(self) -> Any:
        ragged = together(self._rows)
        if ragged is None:
            return (list, (self._rows,))
        return (separate, ragged)


def _own_rows(column: Column) -> Column:
    """Return the same rows without the pool around them, which would be pickled too."""
    if isinstance(column, np.ndarray):
        return column
    if isinstance(column, Ragged):
        return column.compact()
    return pa.concat_arrays([column])


def _unsent(batch: dict[str, Any], error: Exception) -> StreamError:
    """Explain why a batch cannot be pickled: the column at fault, and what to do."""
    column = None
    for name, value in batch.items():
        try:
            ForkingPickler.dumps(None if isinstance(value, torch.Tensor) else value)
        except Exception:  # noqa: BLE001  # any failure is one
            column = name
            break
    return StreamError(
        f"a batch cannot be sent to the training loop: {type(error).__name__}: {error}",
        path=f"worker process {os.getpid()}",
        column=column,
        remedy=(
            f"leave the column out with {setting('columns')}, or read without workers, with"
            f" {setting('num_workers', 0)}"
        ),
    )


def _filled(total: int, fill: Callable[[torch.Tensor], None]) -> Sent:
    """Return `total` bytes that `fill` writes: the message itself or, if they are many, shared
    memory.
    """
    descriptors = getattr(_this_thread, "descriptors", None)
    if total > _MOST_BYTES_IN_MESSAGE:
        try:
            if descriptors is not None and hasattr(os, "memfd_create"):
                descriptors.append(_anonymous(total, fill))
                return len(descriptors) - 1
            shared = torch.empty(total, dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call]  # torch's
            fill(shared)
            return bytes(ForkingPickler.dumps(shared))
        except (OSError, RuntimeError):  # no room in shared memory, or too many open files
            pass
    message = bytearray(max(1, total))
    fill(torch.frombuffer(message, dtype=torch.uint8))
    return message


def _anonymous(total: int, fill: Callable[[torch.Tensor], None]) -> int:
    """Return a descriptor of memory without a name that `fill` has written."""
    descriptor = os.memfd_create("headrace-batch")
    try:
        os.posix_fallocate(descriptor, 0, total)  # without room it fails here, not at a write
        fill(_mapped(descriptor, total, shared=True))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _mapped(descriptor: int, total: int, *, shared: bool) -> torch.Tensor:
    """Map memory; it stays when the descriptor is closed. shared: writes change it for all."""
    return torch.from_file(
        f"/proc/self/fd/{descriptor}", shared=shared, size=total, dtype=torch.uint8
    )


def _opened(sent: Sent) -> torch.Tensor:
    """Return the bytes that arrived, without a copy."""
    if isinstance(sent, bytearray):
        return torch.frombuffer(sent, dtype=torch.uint8)
    if isinstance(sent, int):
        descriptor = _this_thread.descriptors[sent]
        return _mapped(descriptor, os.fstat(descriptor).st_size, shared=False)
    shared: torch.Tensor = pickle.loads(sent)
    return shared


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


# --- tensors of a batch in one piece of memory; see also `memory`


def room(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes that tensors take end to end, each aligned."""
    return sum(_aligned(tensor.nbytes) for tensor in tensors)


def views(flat: torch.Tensor, like: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yield the tensors in a buffer, one after the other, with these types and shapes."""
    offset = 0
    for tensor in like:
        dtype = tensor.dtype
        shape = tensor.shape
        size = math.prod(shape) * dtype.itemsize
        yield (
            flat[offset : offset + size].view(dtype).view(shape)
            if size
            else flat.new_empty(shape, dtype=dtype)
        )
        offset += _aligned(size)


def is_plain(value: Any) -> bool:
    """Check whether a value is a tensor that its bytes, type and shape fully describe."""
    if (
        type(value) is not torch.Tensor
        or value.device.type != "cpu"
        or value.layout != torch.strided
    ):
        return False
    return not (value.is_quantized or value.is_conj() or value.is_neg())


def together(rows: list[Any]) -> tuple[torch.Tensor, list[int]] | None:
    """Join a list of tensors of one axis and type, and None, to one tensor and lengths (-1: None).

    Returns None for any other list.
    """
    rows_with_values = [row for row in rows if row is not None]
    if not rows_with_values or not all(
        is_plain(row) and row.dim() == 1 and row.dtype == rows_with_values[0].dtype
        for row in rows_with_values
    ):
        return None
    return torch.cat(rows_with_values), [-1 if row is None else len(row) for row in rows]


def separate(flat: torch.Tensor, lengths: list[int]) -> list[torch.Tensor | None]:
    """Split what `together` joined: views, None if a length is -1."""
    parts = iter(torch.split(flat, [length for length in lengths if length >= 0]))
    return [None if length < 0 else next(parts) for length in lengths]
