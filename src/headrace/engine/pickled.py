"""Tasks as bytes for other processes: what tasks share is pickled once, and large arrays are handed over once.

Tasks are closures or partials. An object that more than one of them refers to – from a cell, an argument or a field of
a dataclass in one – goes into one shared part, and a task's own bytes only name its place there. Large buffers of the
shared part (arrays of numpy and Arrow) stay out of its bytes, so that a store can keep one copy of each and readers
map it. O(tasks) time; a task's bytes do not grow with what is shared.
"""

from __future__ import annotations

import functools
import io
import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

_ATOMS = (str, bytes, int, float, complex, bool, type(None), type, ModuleType, BuiltinFunctionType)
_DEPTH = 6  # levels below a task at which shared objects are looked for


class Packed:
    """Tasks, ready to be sent. pickler: the class that pickles (cloudpickle's, as tasks are closures).

    shared: bytes of all that tasks share; buffers: its large arrays, which belong with it, in this order.
    """

    def __init__(
        self, tasks: Sequence[Callable[..., Any]], pickler: type[pickle.Pickler], *, large_bytes: int = 1 << 16
    ) -> None:
        self._tasks, self._pickler = tasks, pickler
        counts: Counter[int] = Counter()
        self._objects: dict[int, Any] = {}  # kept, so that no id is used twice
        for task in tasks:
            found = {id(each): each for each in _parts(task, _DEPTH)}
            counts.update(found.keys())
            self._objects |= found
        common = [self._objects[key] for key, count in counts.items() if count > 1]
        self._places = {id(each): place for place, each in enumerate(common)}
        self.buffers: list[pickle.PickleBuffer] = []

        def keep_inside(buffer: pickle.PickleBuffer) -> bool:
            with buffer.raw() as raw:
                small = raw.nbytes < large_bytes
            if not small:
                self.buffers.append(buffer)
            return small

        stream = io.BytesIO()
        pickler(stream, protocol=5, buffer_callback=keep_inside).dump(common)
        self.shared = stream.getvalue()

    def __len__(self) -> int:
        return len(self._tasks)

    def task(self, number: int) -> bytes:
        """The bytes of one task; of what is shared its places."""
        places = self._places

        class Naming(self._pickler):  # type: ignore[name-defined,misc]  # a class that is given
            def persistent_id(self, obj: Any) -> int | None:
                return places.get(id(obj))

        stream = io.BytesIO()
        Naming(stream, protocol=5).dump(self._tasks[number])
        return stream.getvalue()


def load_shared(shared: bytes, buffers: Sequence[Any]) -> list[Any]:
    """The objects that tasks share. Arrays are views of the buffers, read-only if these are."""
    found: list[Any] = pickle.loads(shared, buffers=buffers)
    return found


def load_task(task: bytes, shared: Sequence[Any]) -> Callable[..., Any]:
    """One task, with its own parts made anew and what is shared as it is."""
    unpickler = pickle.Unpickler(io.BytesIO(task))
    unpickler.persistent_load = shared.__getitem__  # type: ignore[method-assign]  # documented: an attribute will do
    found: Callable[..., Any] = unpickler.load()
    return found


def _parts(value: Any, depth: int) -> Iterator[Any]:
    """The objects that a task refers to and that could be shared: cells, arguments, fields of dataclasses."""
    if depth == 0 or isinstance(value, _ATOMS):
        return
    inner: list[Any] = []
    if isinstance(value, functools.partial):
        inner = [value.func, *value.args, *value.keywords.values()]
    elif isinstance(value, FunctionType):
        inner = list(value.__defaults__ or ())
        for cell in value.__closure__ or ():
            with suppress(ValueError):  # nothing is in it yet
                inner.append(cell.cell_contents)
    else:
        yield value
        if is_dataclass(value):
            inner = [getattr(value, field.name) for field in fields(value) if hasattr(value, field.name)]
    for each in inner:
        yield from _parts(each, depth - 1)
