"""A batch on its way from a worker process to the training loop: one piece of memory, whatever the number of columns.

A DataLoader sends every tensor by a file descriptor of its own, which costs about a millisecond each; a batch of 28
columns that way is twenty times slower than its bytes. A `Parcel` is a batch that pickles as one buffer: small ones in
the message itself, large ones in one block of shared memory. What arrives is a plain dict again, whoever unpickles it.
An `UnmadeBatch` goes the other way, as columns, and what arrives is the batch that the worker is to work on.

A worker pickles in a thread whose errors nobody hears: the loop would wait for that batch forever. So pickling a parcel
never fails. Without room for shared memory (or open files for it) the bytes travel in the message, and what cannot be
pickled at all arrives as the error that a DataLoader raises in the loop.
"""

from __future__ import annotations

import math
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing.reduction import ForkingPickler
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from headrace.errors import MissingExtra, StreamError
from headrace.stream.loader.options import StreamOptions
from headrace.stream.read.batch import make_batch
from headrace.stream.read.columns import Column, Columns, cut
from headrace.stream.read.ragged import Ragged

try:
    import torch
    from torch._utils import ExceptionWrapper
except ImportError as error:
    raise MissingExtra("torch", "torch") from error

Sent: TypeAlias = bytearray | bytes  # the bytes themselves, or shared memory pickled
Packed: TypeAlias = tuple[str, torch.dtype, tuple[int, ...], list[int] | None]  # name, type, shape, lengths of a list

_ALIGNED = 64
_MOST_BYTES_IN_MESSAGE = 1 << 18  # measured: a pipe is faster up to about 400 KB, shared memory beyond


class Parcel(dict[str, Any]):
    """A batch in a worker. Unpickled it is a dict with the same tensors, lists of tensors and other values."""

    def __copy__(self) -> Parcel:
        """A DataLoader copies a batch before it sends it; it stays a parcel."""
        return Parcel(self)

    def __reduce_ex__(self, _protocol: Any) -> Any:
        try:
            return self._reduced()
        except Exception as error:  # noqa: BLE001  # whatever it was, the loop must hear of it
            return arrive_failed, (unsent(self, error),)

    def _reduced(self) -> Any:
        packed: list[Packed] = []
        tensors: list[torch.Tensor] = []
        rest: dict[str, Any] = {}
        for name, value in self.items():
            if is_plain(value):
                packed.append((name, value.dtype, tuple(value.shape), None))
                tensors.append(value)
            elif isinstance(value, list) and (ragged := together(value)) is not None:
                flat, lengths = ragged
                packed.append((name, flat.dtype, tuple(flat.shape), lengths))
                tensors.append(flat)
            else:
                rest[name] = value
        # Pickled here, where an error is heard.
        others = bytes(ForkingPickler.dumps(rest)) if rest else None
        total = sum(room(tensor.shape, tensor.dtype) for tensor in tensors)
        sent = filled(total, lambda flat: _fill(flat, packed, tensors))
        return _unpack, (sent, packed, others, list(self))


def _unpack(sent: Sent, packed: list[Packed], others: bytes | None, names: list[str]) -> dict[str, Any]:
    flat = opened(sent)
    batch: dict[str, Any] = {} if others is None else pickle.loads(others)
    for view, (name, _, _, lengths) in zip(views(flat, packed), packed, strict=True):
        batch[name] = view if lengths is None else list(apart(view, lengths))
    return {name: batch[name] for name in names}


class UnmadeBatch:
    """Columns that become a batch where they are unpickled, so that the worker which needs the batch makes it.

    make: picklable. The columns it gets are memory of their own, which may be written to.
    """

    def __init__(self, columns: Columns, make: Callable[[Columns], Any]) -> None:
        self._columns, self._make = columns, make

    def __reduce__(self) -> Any:
        pickled: list[pickle.PickleBuffer] = []
        own = {name: _own_rows(column) for name, column in self._columns.items()}
        data = pickle.dumps((own, self._make), protocol=5, buffer_callback=pickled.append)
        buffers = [np.asarray(buffer.raw()) for buffer in pickled]
        stops = np.cumsum([0, *(room(buffer.shape, torch.uint8) for buffer in buffers)]).tolist()
        places = [(start, start + len(buffer)) for start, buffer in zip(stops, buffers, strict=False)]

        def fill(flat: torch.Tensor) -> None:
            for (start, stop), buffer in zip(places, buffers, strict=True):
                np.copyto(flat.numpy()[start:stop], buffer)

        return _made, (data, filled(stops[-1], fill), places)


def unmade_batches(options: StreamOptions) -> Callable[[Columns, int], Iterator[UnmadeBatch]]:
    """Cuts columns into batches that are made where they arrive. Arrow batches are made here: that costs nothing."""
    make = partial(
        make_batch, batch_format=options.batch_format, padding=options.padding, packed=options.packed_batches
    )

    def unmade(columns: Columns, rows: int) -> Iterator[UnmadeBatch]:
        total = len(next(iter(columns.values())))
        return (UnmadeBatch(cut(columns, start, start + rows), make) for start in range(0, total, rows))

    return unmade


def _made(data: bytes, sent: Sent, places: list[tuple[int, int]]) -> Any:
    flat = opened(sent).numpy()
    columns, make = pickle.loads(data, buffers=[flat[start:stop] for start, stop in places])
    return make(columns)


def _own_rows(column: Column) -> Column:
    """The same rows without the pool around them, which would be pickled too."""
    if isinstance(column, np.ndarray):
        return column
    return column.compact() if isinstance(column, Ragged) else pa.concat_arrays([column])


def unsent(batch: dict[str, Any], error: Exception) -> str:
    """What to say of a batch that cannot be pickled: the column at fault, and what to do."""
    at_fault = [name for name, value in batch.items() if not _can_be_pickled(value)]
    column = f" column {at_fault[0]}" if at_fault else ""
    return (
        f"worker process {os.getpid()}:{column}: a batch cannot be sent to the training loop: {type(error).__name__}:"
        f" {error}; leave the column out with columns=, or read without workers (num_workers=0)"
    )


def _can_be_pickled(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    try:
        ForkingPickler.dumps(value)
    except Exception:  # noqa: BLE001  # any failure means no
        return False
    return True


def arrive_failed(text: str) -> ExceptionWrapper:
    """In the loop's process: what a DataLoader raises in place of the batch."""
    heard = (StreamError, StreamError(text), None)
    return ExceptionWrapper(heard, where="in a DataLoader worker")  # type: ignore[no-untyped-call]  # torch leaves it so


def filled(total: int, fill: Callable[[torch.Tensor], None]) -> Sent:
    """So many bytes, as `fill` writes them: in the message itself, or pickled as shared memory if they are many."""
    if total > _MOST_BYTES_IN_MESSAGE:
        try:
            shared = torch.empty(total, dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call]  # torch's
            fill(shared)
            return bytes(ForkingPickler.dumps(shared))
        except (OSError, RuntimeError):  # no room in shared memory, or no more open files for it
            pass
    message = bytearray(max(1, total))
    fill(torch.frombuffer(message, dtype=torch.uint8))
    return message


def opened(sent: Sent) -> torch.Tensor:
    """Where they arrive: the bytes that were sent, without a copy."""
    if isinstance(sent, bytearray):
        return torch.frombuffer(sent, dtype=torch.uint8)
    shared: torch.Tensor = pickle.loads(sent)
    return shared


def _fill(flat: torch.Tensor, packed: list[Packed], tensors: list[torch.Tensor]) -> None:
    for view, tensor in zip(views(flat, packed), tensors, strict=True):
        view.copy_(tensor.detach())


def views(flat: torch.Tensor, packed: list[Packed]) -> Iterator[torch.Tensor]:
    """The tensors in a buffer, one after the other."""
    place = 0
    for _, dtype, shape, _ in packed:
        size = math.prod(shape) * dtype.itemsize
        yield flat[place : place + size].view(dtype).view(shape) if size else flat.new_empty(shape, dtype=dtype)
        place += room(shape, dtype)


def room(shape: Sequence[int], dtype: torch.dtype) -> int:
    return -(-math.prod(shape) * dtype.itemsize // _ALIGNED) * _ALIGNED


def is_plain(value: Any) -> bool:
    """Whether this is a tensor whose bytes are all there is to it."""
    if type(value) is not torch.Tensor or value.device.type != "cpu" or value.layout != torch.strided:
        return False
    return not (value.is_quantized or value.is_conj() or value.is_neg())


def together(rows: list[Any]) -> tuple[torch.Tensor, list[int]] | None:
    """A list of one-dimensional tensors of one type, None among them, as one tensor and lengths (-1: None)."""
    present = [row for row in rows if row is not None]
    if not present or not all(is_plain(row) and row.dim() == 1 and row.dtype == present[0].dtype for row in present):
        return None
    return torch.cat(present), [-1 if row is None else len(row) for row in rows]


def apart(flat: torch.Tensor, lengths: list[int]) -> Iterator[torch.Tensor | None]:
    """The list again that `together` took: views, None where a length is -1."""
    parts = iter(torch.split(flat, [length for length in lengths if length >= 0]))
    return (None if length < 0 else next(parts) for length in lengths)
