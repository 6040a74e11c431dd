"""The legacy form of packed bins: a `.npy` file that is a pickled list of dictionaries of Python lists.

    [{"input_ids": [...], "loss_mask": [...], "seq_start_id": [...]}, …]

It takes about five times the bytes of Parquet, ten times the time, and all of it in memory at once, about 40 bytes a
token. Written for trainers that read nothing else; read to convert it.

A pickle is a program: it may import any name and call it. So every name that a file asks for is looked up in a short
list, and what it gets is a stand-in of ours that notes its arguments; neither the real function nor numpy ever sees
them. Arrays are then made from the noted shape, type and bytes, each checked. Any other name ends the reading. What
stays open: a hostile file can make the reader use much memory.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Literal, NoReturn

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from headrace.bins.rows import PackedRows, as_type, first_fault
from headrace.errors import InputError
from headrace.packing.storage.packed_parquet import SCHEMA, Declared, ParquetShardWriter
from headrace.storage import local
from headrace.storage.places import local_path_of

_ADVICE = "a packed .npy holds one dictionary a bin; write the file again, or take it from where it was made"


class LegacyPickleWriter:
    """Writes bins as one pickled `.npy`, all of it at the end. Memory: O(file). The file is published whole."""

    def __init__(self, output_path: str | os.PathLike[str]) -> None:
        self.output_path = str(local_path_of(os.fspath(output_path), "output_path"))
        self.packed_data: list[dict[str, list[int]]] = []
        self._closed = False

    def write_bin(
        self, bin_id: int, input_ids: npt.NDArray[Any], loss_mask: npt.NDArray[Any], seq_start_id: npt.NDArray[Any]
    ) -> None:
        """Keep one bin. Raises `RuntimeError` after `finalize`."""
        if self._closed:
            raise RuntimeError(f"{self.output_path}: bin {bin_id} comes after the end; open a new writer")
        values = (input_ids.tolist(), loss_mask.tolist(), seq_start_id.tolist())
        self.packed_data.append(dict(zip(SCHEMA.names, values, strict=True)))

    def write_bins(self, rows: PackedRows) -> None:
        """Keep many bins."""
        for number in range(len(rows)):
            self.write_bin(number, *rows.bin(number))

    def finalize(self) -> dict[str, Any]:
        """Write the file and give it its name, replacing one that is there; returns format and num_bins."""
        if self._closed:
            raise RuntimeError(f"{self.output_path}: was finalized before; open a new writer")
        self._closed = True
        target = Path(self.output_path)
        local.make_directory(target.parent)
        temporary = local.temporary_for(target)
        try:
            with local.storing(target), temporary.open("xb") as file:
                data = np.empty(len(self.packed_data), object)
                data[:] = self.packed_data
                np.save(file, data, allow_pickle=True)
            local.replace(temporary, target)
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
        return {"format": "legacy_pickle", "num_bins": len(self.packed_data)}

    def __enter__(self) -> LegacyPickleWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Finalize, unless that was done or there was an error."""
        if kind is None and not self._closed:
            self.finalize()


def read_legacy(path: Path | str, *, bins_at_once: int = 1000) -> Iterator[PackedRows]:
    """Read the bins of a legacy file, some at a time, each checked. Nothing that the file names is ever run.

    Raises `InputError`: for a file that is no such `.npy`, that asks for names packed data does not need, or that has a
    bin no reader can use; the message names the bin.
    """
    where = Path(path)
    bins = _loaded(where)
    for first in range(0, len(bins), bins_at_once):
        parts = []
        for number in range(first, min(first + bins_at_once, len(bins))):
            parts.append(_one_bin(bins[number], f"{where}: bin {number}"))
            bins[number] = None  # let go as it is converted
        rows = PackedRows.concatenate(parts)
        fault = first_fault(rows)
        if fault is not None:
            raise InputError(f"{where}: bin {first + fault[0]} has {fault[1]}")
        yield rows


def convert_legacy_to_parquet(
    legacy_npy_path: str | os.PathLike[str],
    output_path: str | os.PathLike[str],
    row_group_size: int = 1000,
    compression: str | None = "zstd",
    *,
    compression_level: int | None = None,
    declared: Declared = "nullable",
    metadata: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Write the bins of a legacy file as a Parquet shard, the masks as they are; what `finalize` of the writer returns.

    Adds source_bytes, the size of the legacy file. On an error nothing is left. Memory: about 40 bytes a token.
    """
    source = local_path_of(os.fspath(legacy_npy_path), "legacy_npy_path")
    with ParquetShardWriter(
        output_path,
        row_group_size,
        compression,
        compression_level=compression_level,
        declared=declared,
        metadata=metadata,
    ) as writer:
        for rows in read_legacy(source, bins_at_once=row_group_size):
            writer.write_bins(rows)
        result = writer.finalize()
    return {**result, "source_bytes": source.stat().st_size}


def _loaded(path: Path) -> list[Any]:
    try:
        with path.open("rb") as file:
            counted = _check_header(file, path)
            loaded = _unpickled(file)
    except _Forbidden as error:
        raise InputError(
            f"{path}: {error}, which packed data does not need; it was not run. The file may be hostile: "
            f"ask where it comes from"
        ) from error
    except ValueError as error:
        raise InputError(f"{path}: {error}; {_ADVICE}") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    if not isinstance(loaded, list):
        raise InputError(f"{path}: holds {type(loaded).__name__}, no list of bins; {_ADVICE}")
    if len(loaded) != counted:
        raise InputError(f"{path}: the header counts {counted:,} bins, the pickle holds {len(loaded):,}; {_ADVICE}")
    if not loaded:
        raise InputError(f"{path}: holds no bins; {_ADVICE}")
    return loaded


def _check_header(file: BinaryIO, path: Path) -> int:
    """How many bins the file counts. Raises `InputError`."""
    try:
        version = npy.read_magic(file)
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
        shape, _, dtype = read(file)
    except OSError:
        raise
    except Exception as error:  # numpy's parser of headers raises almost anything
        raise InputError(f"{path}: is no .npy file ({error}); {_ADVICE}") from error
    if dtype != np.dtype(object) or len(shape) != 1:
        raise InputError(f"{path}: is an array of {dtype} with shape {shape}; {_ADVICE}")
    return int(shape[0])


def _one_bin(record: Any, where: str) -> PackedRows:
    if not isinstance(record, dict):
        raise InputError(f"{where} is {type(record).__name__}, no dictionary; {_ADVICE}")
    missing = [key for key in SCHEMA.names if key not in record]
    if missing:
        raise InputError(f"{where} has no {missing[0]}, only {', '.join(map(str, record))[:80]}; {_ADVICE}")
    try:
        ids = _integers(record["input_ids"], np.dtype(np.int32), f"{where}: input_ids", bools="refuse")
        mask = _integers(record["loss_mask"], np.dtype(np.uint8), f"{where}: loss_mask")
        starts = _integers(record["seq_start_id"], np.dtype(np.int32), f"{where}: seq_start_id")
    except ValueError as error:
        raise InputError(f"{error}; {_ADVICE}") from error
    if len(ids) and ids.min() < 0:
        raise InputError(f"{where}: input_ids: {ids.min()} is no token; {_ADVICE}")
    if len(mask) and mask.max() > 1:
        raise InputError(f"{where}: loss_mask: {mask.max()} is neither 0 nor 1; {_ADVICE}")
    if len(mask) != len(ids):
        raise InputError(f"{where} has {len(ids)} input_ids and {len(mask)} loss_mask values; {_ADVICE}")
    return PackedRows.of_bin(ids, mask, starts)


def _integers(
    values: Any, dtype: np.dtype[Any], what: str, *, bools: Literal["take", "refuse"] = "take"
) -> npt.NDArray[Any]:
    try:
        values = _value_of(values)
    except ValueError as error:
        raise ValueError(f"{what} are {error}") from error
    if not isinstance(values, list | tuple | np.ndarray):
        raise ValueError(f"{what} are {type(values).__name__}")
    if not len(values):
        return np.empty(0, dtype)
    try:
        array = np.array(values)
        if array.dtype == object:  # numpy numbers one by one, or too large for any integer type
            array = np.array([_value_of(value) for value in values])
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"{what} are no flat list of integers ({error})") from error
    if array.ndim != 1:
        raise ValueError(f"{what} have shape {array.shape}")
    if array.dtype == np.bool_ and bools == "refuse":
        raise ValueError(f"{what} are bool; give integers")
    return as_type(array, dtype, what)


_PLAIN = {f"{kind}{size}" for kind in "iuf" for size in (1, 2, 4, 8)} - {"f1"} | {"b1"}
_MULTIARRAY = ("numpy.core.multiarray", "numpy._core.multiarray")
_NUMERIC = ("numpy.core.numeric", "numpy._core.numeric")


class _Forbidden(ValueError):
    """The pickle asks for a name that no packed data needs."""


def _unpickled(file: BinaryIO) -> Any:
    """What the pickle at the file's position holds; arrays of objects as lists, arrays of numbers as arrays.

    Raises `_Forbidden` for a name that is not allowed, `ValueError` for anything else that is no such pickle.
    """
    try:
        loaded = _Unpickler(file).load()
    except _Forbidden:
        raise
    except (pickle.UnpicklingError, EOFError, MemoryError, RecursionError) as error:
        raise ValueError(f"is cut or damaged ({error or type(error).__name__})") from error
    except Exception as error:  # damaged bytes make the unpickler raise almost anything
        raise ValueError(f"is damaged ({type(error).__name__}: {error})") from error
    return _value_of(loaded)


def _value_of(loaded: Any) -> Any:
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
            raise _Forbidden(f"asks for {module}.{name}")
        return allowed

    def persistent_load(self, pid: Any) -> NoReturn:
        raise _Forbidden(f"asks for an object outside the file ({pid!r:.60})")


class _Fixed:
    """A thing that a pickle can neither fill nor change."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        raise _Forbidden("sets the state of a function")


class _Stand(_Fixed):
    """Stands for a function or a class: notes what it is called with."""

    __slots__ = ("_make",)
    _make: Callable[..., Any]

    def __init__(self, make: Callable[..., Any]) -> None:
        object.__setattr__(self, "_make", make)

    def __setattr__(self, name: str, value: Any) -> None:
        raise _Forbidden(f"sets {name} of a function")

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
        raise _Forbidden("makes an array of another class than numpy.ndarray")
    return _Array()


def _from_buffer(data: Any, kind: Any, shape: Any, order: Any) -> _Array:
    array = _Array()
    array.__setstate__((1, shape, kind, order, data))
    return array


def _encoded(text: Any, encoding: Any) -> bytes:
    """How pickles of protocol 2 write bytes."""
    if encoding != "latin1" or not isinstance(text, str):
        raise _Forbidden(f"encodes text as {encoding!r}")
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
