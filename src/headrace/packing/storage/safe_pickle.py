"""Read a pickle of numpy arrays, dictionaries, lists and numbers without running anything it names.

A pickle is a program: it may import any name and call it. Here every name it asks for is looked up in a short list,
and what it gets is a stand-in of ours that notes its arguments; neither the real function nor numpy ever sees them.
Arrays are then made from the noted shape, type and bytes, each checked. Any other name ends the reading. What stays
open: a hostile file can make the reader use much memory.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from math import prod
from typing import Any, BinaryIO, NoReturn

import numpy as np
import numpy.typing as npt

_PLAIN = {f"{kind}{size}" for kind in "iuf" for size in (1, 2, 4, 8)} - {"f1"} | {"b1"}
_MULTIARRAY = ("numpy.core.multiarray", "numpy._core.multiarray")
_NUMERIC = ("numpy.core.numeric", "numpy._core.numeric")


class Forbidden(ValueError):
    """The pickle asks for a name that no packed data needs."""


def load(file: BinaryIO) -> Any:
    """What the pickle at the file's position holds; arrays of objects as lists, arrays of numbers as arrays.

    Raises `Forbidden` for a name that is not allowed, `ValueError` for anything else that is no such pickle.
    """
    try:
        loaded = _Unpickler(file).load()
    except Forbidden:
        raise
    except (pickle.UnpicklingError, EOFError, MemoryError, RecursionError) as error:
        raise ValueError(f"is cut or damaged ({error or type(error).__name__})") from error
    except Exception as error:  # damaged bytes make the unpickler raise almost anything
        raise ValueError(f"is damaged ({type(error).__name__}: {error})") from error
    return value_of(loaded)


def value_of(loaded: Any) -> Any:
    """What a stand-in stands for; any other value as it is. Not recursive: ask again for what a list holds.

    Raises `ValueError` if what the pickle said of an array or a number does not fit together.
    """
    if not isinstance(loaded, _Array | _Scalar):
        return loaded
    try:
        return loaded.value()
    except (TypeError, OverflowError) as error:
        raise ValueError(f"an array that is damaged ({error})") from error


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        allowed = _ALLOWED.get((module, name))
        if allowed is None:
            raise Forbidden(f"asks for {module}.{name}")
        return allowed

    def persistent_load(self, pid: Any) -> NoReturn:
        raise Forbidden(f"asks for an object outside the file ({pid!r:.60})")


class _Fixed:
    """A thing that a pickle can neither fill nor change."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        raise Forbidden("sets the state of a function")


class _Stand(_Fixed):
    """Stands for a function or a class: notes what it is called with."""

    __slots__ = ("_make",)
    _make: Callable[..., Any]

    def __init__(self, make: Callable[..., Any]) -> None:
        object.__setattr__(self, "_make", make)

    def __setattr__(self, name: str, value: Any) -> None:
        raise Forbidden(f"sets {name} of a function")

    def __call__(self, *arguments: Any) -> Any:
        return self._make(*arguments)


class _DType:
    """Stands for a dtype: its text, such as "i4", and the byte order its state says."""

    __slots__ = ("order", "text")

    def __init__(self, text: Any, align: Any = False, copy: Any = False) -> None:
        del align, copy
        self.text = str(text).lstrip("<|=")
        self.order = "<"

    def __setstate__(self, state: Any) -> None:
        order = state[1]
        if order not in ("<", ">", "|", "="):
            raise ValueError(f"byte order {order!r}")
        self.order = "<" if order in "|=" else order

    def dtype(self) -> np.dtype[Any]:
        if self.text not in _PLAIN:
            raise ValueError(f"an array of type {self.text!r}")
        return np.dtype(self.order + self.text)


class _Array:
    """Stands for an array until its state is known."""

    __slots__ = ("_state",)

    def __init__(self) -> None:
        self._state: Any = None

    def __setstate__(self, state: Any) -> None:
        self._state = state

    def value(self) -> Any:
        if self._state is None:
            raise ValueError("an array without content")
        _, shape, kind, _, data = self._state
        if not isinstance(kind, _DType) or not isinstance(shape, tuple) or len(shape) != 1:
            raise ValueError(f"an array of shape {shape!r:.60}; packed data has one axis")
        if kind.text == "O8" or kind.text == "O":
            if not isinstance(data, list) or len(data) != shape[0]:
                raise ValueError("an array of objects without its objects")
            return data
        return _numbers(data, kind, shape)


class _Scalar:
    """Stands for one numpy number."""

    __slots__ = ("_data", "_kind")

    def __init__(self, kind: Any, data: Any = b"") -> None:
        self._kind, self._data = kind, data

    def value(self) -> Any:
        if not isinstance(self._kind, _DType):
            raise ValueError("a number without a type")
        return _numbers(self._data, self._kind, (1,))[0].item()


def _numbers(data: Any, kind: _DType, shape: tuple[Any, ...]) -> npt.NDArray[Any]:
    dtype = kind.dtype()
    size = prod(shape) * dtype.itemsize
    if not isinstance(data, bytes | bytearray) or len(data) != size:
        raise ValueError(f"an array of {shape} {dtype.name} whose bytes are not {size}")
    return np.frombuffer(bytes(data), dtype).reshape(shape)


def _reconstructed(kind: Any, shape: Any, code: Any) -> _Array:
    del shape, code
    if kind is not _NDARRAY:
        raise Forbidden("makes an array of another class than numpy.ndarray")
    return _Array()


def _from_buffer(data: Any, kind: Any, shape: Any, order: Any) -> _Array:
    array = _Array()
    array.__setstate__((1, shape, kind, order, data))
    return array


def _encoded(text: Any, encoding: Any) -> bytes:
    """How pickles of protocol 2 write bytes."""
    if encoding != "latin1" or not isinstance(text, str):
        raise Forbidden(f"encodes text as {encoding!r}")
    return text.encode("latin1")


_NDARRAY = _Fixed()
_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _NDARRAY,
    ("numpy", "dtype"): _Stand(_DType),
    ("_codecs", "encode"): _Stand(_encoded),
    **{(module, "_reconstruct"): _Stand(_reconstructed) for module in _MULTIARRAY},
    **{(module, "scalar"): _Stand(_Scalar) for module in _MULTIARRAY},
    **{(module, "_frombuffer"): _Stand(_from_buffer) for module in _NUMERIC},
}
