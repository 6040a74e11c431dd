"""Put batches where a GPU needs them: in pinned (page-locked) memory, or on the device.

    # tensors on the device, ready to be used
    for batch in ds.stream("train", batch_size=1024, device="cuda"): ...
    for batch in ds.stream("train", batch_size=1024, memory="pinned"):
        x = batch["x"].to("cuda", non_blocking=True)

Both happen ahead of the loop, in the thread that also runs a transform. With `device=` the tensors
of a batch are laid end to end in one piece of pinned memory, which is copied in one transfer on its
own CUDA stream. The loop's stream waits for that copy; the loop itself does not. The tensors of a
batch are views of one piece, aligned to 64 bytes.

Pinned memory and CUDA streams belong to one process, so the rank's own process does this. The
DataLoader pins batches of its workers, with pin_memory=True. Without CUDA the same path warns and
gives tensors in ordinary memory; `device="cpu"` requests ordinary memory without a warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, nullcontext
from functools import cache
from typing import Any, NamedTuple

from headrace.errors import SettingsError, setting
from headrace.stream.loader.options import StreamOptions
from headrace.stream.read.ahead import prefetched
from headrace.stream.read.batch import import_torch

Pin = Callable[[Any], Any]
Rebuild = Callable[[Sequence[Any]], Any]

_BATCHES_AHEAD = 4  # this many steps hide an occasional slow transform
_BYTES_OF_AN_OBJECT = 64  # roughly, for a text or another Python object


def ahead_of_the_loop(
    batches: Generator[Any, None, None], options: StreamOptions
) -> Generator[Any, None, None]:
    """Yield the batches, made ahead in a thread and placed as the options say; closed with this
    generator.

    At most four batches wait, limited to `options.prefetch_bytes` but always at least one.
    """
    if options.device is not None:
        copies = DeviceCopies(import_torch(), options.device)
        return _mapped(_ahead(_mapped(batches, copies.begin), options), copies.finish)
    if options.memory == "pinned":
        torch = import_torch()
        if torch.cuda.is_available():
            return _ahead(
                _mapped(batches, lambda batch: pinned(batch, torch.Tensor.pin_memory)), options
            )
        _warn_once('memory="pinned"')
        if options.transform is None:
            return batches
    return _ahead(batches, options)


class Copied(NamedTuple):
    """A batch on its way to a device.

    rebuild: makes the batch from `tensors`, which are views of `arena`.
    done: the event after the copy; None: the tensors are already there.
    """

    rebuild: Rebuild
    tensors: list[Any]
    arena: Any
    done: Any

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return int(self.arena.nbytes)


class DeviceCopies:
    """Copies of batches to a device, each in one piece.

    Create it and call `finish` in the loop's thread; `begin` runs in the thread that makes batches.
    Raises `SettingsError` if the device does not exist. Without any CUDA it warns, and tensors stay
    in ordinary memory.
    """

    def __init__(self, torch: Any, device: str) -> None:
        self._torch, self._device = torch, torch.device(device)
        self._stream: Any = None
        if self._device.type != "cuda":
            return
        if not torch.cuda.is_available():
            _warn_once(f'device="{device}"')
            self._device = torch.device("cpu")
            return
        # the loop's device, as the copying thread has its own current device
        if self._device.index is None:
            self._device = torch.device("cuda", torch.cuda.current_device())
        if self._device.index >= torch.cuda.device_count():
            raise SettingsError(
                f"CUDA shows {torch.cuda.device_count()} devices",
                setting="device",
                value=device,
                remedy="count them from 0",
            )
        self._stream = torch.cuda.Stream(self._device)

    def begin(self, batch: Any) -> Copied:
        """Lay the CPU tensors of a batch end to end, and start to copy them."""
        from headrace.stream.workers.parcel import room, views

        tensors: list[Any] = []
        # Other objects than plain CPU tensors move themselves, in the loop's thread and stream.
        rebuild = disassembled(
            batch, tensors, lambda value: value.to(self._device) if hasattr(value, "to") else value
        )
        cuda = self._stream is not None
        # The stream also sets its device as the current one of this thread.
        with self._torch.cuda.stream(self._stream) if cuda else nullcontext():
            arena = self._torch.empty(room(tensors), dtype=self._torch.uint8, pin_memory=cuda)
            done = None
            for view, tensor in zip(views(arena, tensors), tensors, strict=True):
                view.copy_(tensor.detach())
            if cuda:  # torch keeps dropped pinned memory until its copy is done
                arena = arena.to(self._device, non_blocking=True)
                done = self._stream.record_event()
        return Copied(rebuild, list(views(arena, tensors)), arena, done)

    def finish(self, copied: Copied) -> Any:
        """Return the batch for the loop's current stream; later work on that stream sees the
        tensors ready.
        """
        if copied.done is not None:
            loop_stream = self._torch.cuda.current_stream(self._device)
            loop_stream.wait_event(copied.done)
            # so the copying stream does not reuse its memory too early
            copied.arena.record_stream(loop_stream)
        return copied.rebuild(copied.tensors)


def pinned(batch: Any, pin: Pin) -> Any:
    """Return the batch with every CPU tensor replaced by `pin` of it, inside dicts, lists and
    tuples too.

    The containers are new and other values unchanged. An object with its own `pin_memory` pins
    itself. A list of tensors is pinned as one piece.
    """
    tensors: list[Any] = []
    rebuild = disassembled(batch, tensors, _pinned_itself)
    return rebuild([pin(tensor) for tensor in tensors])


def disassembled(batch: Any, tensors: list[Any], other: Callable[[Any], Any]) -> Rebuild:
    """Append the plain CPU tensors of a batch to `tensors`; return a function that rebuilds the
    batch.

    The function takes replacements for these tensors. other: converts tensors that are not plain,
    and objects with `to` or `pin_memory`.
    """
    from headrace.stream.workers.parcel import is_plain, separate, together

    number = len(tensors)
    if is_plain(batch):
        tensors.append(batch)
        return lambda copied_values: copied_values[number]
    if (
        isinstance(batch, import_torch().Tensor)
        or hasattr(batch, "to")
        or hasattr(batch, "pin_memory")
    ):
        return lambda _: other(batch)
    if type(batch) is dict:
        parts = {name: disassembled(value, tensors, other) for name, value in batch.items()}
        return lambda copied_values: {name: part(copied_values) for name, part in parts.items()}
    if type(batch) is list and (ragged := together(batch)) is not None:
        flat, lengths = ragged
        tensors.append(flat)
        return lambda copied_values: separate(copied_values[number], lengths)
    # Skip texts and numbers: they hold no tensors, and a batch may have thousands.
    if type(batch) is list and any(
        not isinstance(value, str | bytes | int | float | None) for value in batch
    ):
        make: Any = list
    elif isinstance(batch, tuple):
        make = getattr(batch, "_make", tuple)
    else:
        return lambda _: batch
    members = [disassembled(value, tensors, other) for value in batch]
    return lambda copied_values: make([member(copied_values) for member in members])


def check_memory(options: StreamOptions, num_workers: int) -> None:
    """Raise `SettingsError` if workers would have to give pinned memory or device tensors, which
    they cannot.
    """
    if not num_workers or (options.memory == "pageable" and options.device is None):
        return
    raise SettingsError(
        f"{options.memory_option} with {setting('num_workers', num_workers)}: pinned memory and"
        " copies to a device belong to the process that trains",
        remedy=(
            "leave it out and let the DataLoader pin, with DataLoader(..., pin_memory=True)"
            f" or data_loader({setting('memory', 'pinned')}), and copy with"
            ' batch["x"].to(device, non_blocking=True), or stream without workers'
        ),
    )


def bytes_of(batch: Any) -> int:
    """Estimate the bytes of a batch; long lists are estimated from their first value."""
    size = getattr(batch, "nbytes", None)
    if isinstance(size, int):
        return size
    if isinstance(batch, dict):
        return sum(map(bytes_of, batch.values()))
    if isinstance(batch, list) and batch:
        return len(batch) * bytes_of(next((value for value in batch if value is not None), None))
    if isinstance(batch, tuple):
        return sum(map(bytes_of, batch))
    return _BYTES_OF_AN_OBJECT


def _ahead(
    batches: Generator[Any, None, None], options: StreamOptions
) -> Generator[Any, None, None]:
    most = _BATCHES_AHEAD
    most_bytes = options.prefetch_bytes
    return prefetched(
        batches, thread_name="headrace-batch", most=most, most_bytes=most_bytes, size_of=bytes_of
    )


def _mapped(
    batches: Generator[Any, None, None], make: Callable[[Any], Any]
) -> Generator[Any, None, None]:
    with closing(batches):
        for batch in batches:
            yield make(batch)


def _pinned_itself(value: Any) -> Any:
    """Return the object pinned by its own method; a tensor on a device, or one that cannot be
    pinned, is unchanged.
    """
    if isinstance(value, import_torch().Tensor) or not hasattr(value, "pin_memory"):
        return value
    return value.pin_memory()


@cache
def _warn_once(option: str) -> None:
    warnings.warn(
        f"{option}: CUDA is not available here, so batches stay in pageable memory",
        UserWarning,
        stacklevel=2,
    )
