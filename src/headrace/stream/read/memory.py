"""Batches where a GPU needs them: in pinned (page-locked) memory, or on the device.

    for batch in ds.stream("train", batch_size=1024, device="cuda"):  # tensors on the device, ready to be used
    for batch in ds.stream("train", batch_size=1024, memory="pinned"):
        x = batch["x"].to("cuda", non_blocking=True)

Both happen ahead of the loop, in the thread that also runs a transform. With `device=` the tensors of a batch are laid
end to end in one piece of pinned memory, which is copied at once, on a stream of its own. The loop's stream waits for
that copy, not the loop. The tensors of a batch are views of one piece, 64 bytes aligned.

Pinned memory and CUDA streams belong to one process, so the rank's own process does this. Batches of DataLoader workers
are pinned by their DataLoader, with pin_memory=True. Without CUDA the same path gives tensors in ordinary memory, after
a warning; `device="cpu"` asks for that.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, nullcontext
from functools import cache
from typing import Any, NamedTuple

from headrace.errors import SettingsError
from headrace.stream.loader.options import StreamOptions
from headrace.stream.read.ahead import made_ahead
from headrace.stream.read.batch import import_torch

Pin = Callable[[Any], Any]
Rebuild = Callable[[Sequence[Any]], Any]

_BATCHES_AHEAD = 4  # a transform that takes longer now and then is hidden by as many steps
_BYTES_OF_AN_OBJECT = 64  # roughly, of a text or another Python object


def ahead_of_the_loop(batches: Generator[Any, None, None], options: StreamOptions) -> Generator[Any, None, None]:
    """Yield the batches, made ahead in a thread and placed as the options say; closed with this generator.

    At most four wait, and no more than `options.prefetch_bytes` hold, but one in any case.
    """
    if options.device is not None:
        copies = DeviceCopies(import_torch(), options.device)
        return _each(_ahead(_each(batches, copies.begin), options), copies.finish)
    if options.memory == "pinned":
        torch = import_torch()
        if torch.cuda.is_available():
            return _ahead(_each(batches, lambda batch: pinned(batch, torch.Tensor.pin_memory)), options)
        _warn_once('memory="pinned"')
        if options.transform is None:
            return batches
    return _ahead(batches, options)


class Copied(NamedTuple):
    """A batch on its way to a device. rebuild: makes the batch of `tensors`, which are views of `arena`.

    done: the event after the copy; None: the tensors are there.
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
    """Copies batches to a device, each as one piece.

    Built, and asked to `finish`, in the loop's thread; `begin` runs in the thread that makes batches. Raises
    `SettingsError` if the device is not there; without any CUDA it warns, and tensors stay in ordinary memory.
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
        if self._device.index is None:  # the loop's, as the thread that copies has a current device of its own
            self._device = torch.device("cuda", torch.cuda.current_device())
        if self._device.index >= torch.cuda.device_count():
            raise SettingsError(f'device="{device}": CUDA shows {torch.cuda.device_count()} devices, numbered from 0')
        self._stream = torch.cuda.Stream(self._device)

    def begin(self, batch: Any) -> Copied:
        """Lay the CPU tensors of a batch end to end, and begin to copy them."""
        from headrace.stream.workers.parcel import room, views

        tensors: list[Any] = []
        # Anything but a plain CPU tensor moves itself, in the loop's thread and stream.
        rebuild = taken_apart(batch, tensors, lambda value: value.to(self._device) if hasattr(value, "to") else value)
        cuda = self._stream is not None
        # The stream makes its device the present one of this thread, too.
        with self._torch.cuda.stream(self._stream) if cuda else nullcontext():
            arena, done = self._torch.empty(room(tensors), dtype=self._torch.uint8, pin_memory=cuda), None
            for view, tensor in zip(views(arena, tensors), tensors, strict=True):
                view.copy_(tensor.detach())
            if cuda:  # pinned memory that is dropped while it is copied from stays torch's until the copy is done
                arena = arena.to(self._device, non_blocking=True)
                done = self._stream.record_event()
        return Copied(rebuild, list(views(arena, tensors)), arena, done)

    def finish(self, copied: Copied) -> Any:
        """The batch, for the loop's present stream: what that stream does from now on finds the tensors ready."""
        if copied.done is not None:
            present = self._torch.cuda.current_stream(self._device)
            present.wait_event(copied.done)
            copied.arena.record_stream(present)  # its memory, of the copying stream, is not reused before
        return copied.rebuild(copied.tensors)


def pinned(batch: Any, pin: Pin) -> Any:
    """The batch with `pin` of each CPU tensor, inside dicts, lists and tuples too; a new container, the rest as it is.

    What has a `pin_memory` of its own is asked for it. Lists of tensors are pinned as one piece.
    """
    tensors: list[Any] = []
    rebuild = taken_apart(batch, tensors, _pinned_itself)
    return rebuild([pin(tensor) for tensor in tensors])


def taken_apart(batch: Any, tensors: list[Any], other: Callable[[Any], Any]) -> Rebuild:
    """Append the plain CPU tensors of a batch; return what makes the same batch of others in their places.

    other: makes something of tensors that are not plain, and of objects that know `to` or `pin_memory`.
    """
    from headrace.stream.workers.parcel import apart, is_plain, together

    number = len(tensors)
    if is_plain(batch):
        tensors.append(batch)
        return lambda given: given[number]
    if isinstance(batch, import_torch().Tensor) or hasattr(batch, "to") or hasattr(batch, "pin_memory"):
        return lambda _: other(batch)
    if type(batch) is dict:
        parts = {name: taken_apart(value, tensors, other) for name, value in batch.items()}
        return lambda given: {name: part(given) for name, part in parts.items()}
    if type(batch) is list and (ragged := together(batch)) is not None:
        flat, lengths = ragged
        tensors.append(flat)
        return lambda given: apart(given[number], lengths)
    # Texts and numbers hold no tensors, and a batch may have thousands of them.
    if type(batch) is list and any(not isinstance(value, str | bytes | int | float | None) for value in batch):
        values = [taken_apart(value, tensors, other) for value in batch]
        return lambda given: [value(given) for value in values]
    if isinstance(batch, tuple):
        members = [taken_apart(value, tensors, other) for value in batch]
        make: Any = type(batch)._make if hasattr(batch, "_make") else tuple
        return lambda given: make([member(given) for member in members])
    return lambda _: batch


def check_memory(options: StreamOptions, num_workers: int) -> None:
    """Raise `SettingsError` if workers are to give pinned memory, or tensors of a device, which they cannot."""
    if not num_workers or (options.memory == "pageable" and options.device is None):
        return
    asked = 'memory="pinned"' if options.device is None else f'device="{options.device}"'
    raise SettingsError(
        f"{asked} with num_workers={num_workers}: pinned memory and copies to a device belong to the process that"
        " trains; leave it out and let the DataLoader pin, with DataLoader(..., pin_memory=True) or"
        ' data_loader(memory="pinned"), and copy with batch["x"].to(device, non_blocking=True), or stream without'
        " workers"
    )


def bytes_of(batch: Any) -> int:
    """About how many bytes a batch holds; of long lists, the first value speaks for all."""
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


def _ahead(batches: Generator[Any, None, None], options: StreamOptions) -> Generator[Any, None, None]:
    most, most_bytes = _BATCHES_AHEAD, options.prefetch_bytes
    return made_ahead(batches, thread_name="headrace-batch", most=most, most_bytes=most_bytes, size_of=bytes_of)


def _each(batches: Generator[Any, None, None], make: Callable[[Any], Any]) -> Generator[Any, None, None]:
    with closing(batches):
        for batch in batches:
            yield make(batch)


def _pinned_itself(value: Any) -> Any:
    """A tensor on a device already, or of a layout that cannot be pinned, stays; another object pins itself."""
    return value if isinstance(value, import_torch().Tensor) or not hasattr(value, "pin_memory") else value.pin_memory()


@cache
def _warn_once(asked: str) -> None:
    warnings.warn(f"{asked}: CUDA is not available here, so batches stay in pageable memory", UserWarning, stacklevel=2)
