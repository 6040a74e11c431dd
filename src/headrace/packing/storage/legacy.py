"""Write and read the legacy form of packed bins: a `.npy` file that is a pickled list of
dictionaries of Python lists.

    [{"input_ids": [...], "loss_mask": [...], "seq_start_id": [...]}, …]

It takes about five times the bytes of Parquet and ten times the time, and all of it is in memory at
once, about 40 bytes per token. It is written for trainers that read nothing else, and read as a
source of `headrace pack`.

A pickle is a program: it may import any name and call it. So only a short list of names is allowed,
and each gets a stand-in that records its arguments; the real function is never called. Arrays are
then made from the recorded shape, type and bytes, each checked. Any other name ends the reading. A
hostile file can still make the reader use much memory.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from headrace.arrays import U8
from headrace.bins import Alignment
from headrace.bins.rows import PackedRows, as_type, first_fault
from headrace.errors import InputError
from headrace.packing.storage.packed_parquet import SCHEMA, ParquetShardWriter
from headrace.storage import local
from headrace.storage.places import local_path_of

_ADVICE = "write the file again, one dictionary a bin, or take it from where it was made"


class LegacyPickleWriter:
    """Writer of bins as one pickled `.npy`, which is written at the end and published whole.

    Memory: O(file).
    """

    def __init__(self, output_path: str | os.PathLike[str]) -> None:
        self.output_path = str(local_path_of(os.fspath(output_path), "output_path"))
        self.packed_data: list[dict[str, list[int]]] = []
        self._closed = False

    def write_bin(
        self,
        bin_id: int,
        input_ids: npt.NDArray[Any],
        loss_mask: npt.NDArray[Any],
        seq_start_id: npt.NDArray[Any],
    ) -> None:
        """Add one bin, in memory. Raises `RuntimeError` after `finalize`."""
        if self._closed:
            raise RuntimeError(
                f"{self.output_path}: bin {bin_id} comes after the end; open a new writer"
            )
        values = (input_ids.tolist(), loss_mask.tolist(), seq_start_id.tolist())
        self.packed_data.append(dict(zip(SCHEMA.names, values, strict=True)))

    def write_bins(self, rows: PackedRows) -> None:
        """Add many bins, in memory. Raises `RuntimeError` after `finalize`."""
        for number in range(len(rows)):
            self.write_bin(number, *rows.bin(number))

    def finalize(self) -> dict[str, Any]:
        """Write the file and publish it, replacing a file of that name; return format and
        num_bins.
        """
        if self._closed:
            raise RuntimeError(f"{self.output_path}: was finalized before; open a new writer")
        self._closed = True
        target = Path(self.output_path)
        local.make_directory(target.parent)
        with local.beside(target) as temporary:
            with local.storing(target), temporary.open("xb") as file:
                data = np.empty(len(self.packed_data), object)
                data[:] = self.packed_data
                np.save(file, data, allow_pickle=True)
            local.replace(temporary, target)
        return {"format": "legacy_pickle", "num_bins": len(self.packed_data)}

    def __enter__(self) -> LegacyPickleWriter:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        """Finalize, unless that was done or there was an error."""
        if error_type is None and not self._closed:
            self.finalize()


def read_legacy(path: Path | str, *, bins_at_once: int = 1000) -> Iterator[PackedRows]:
    """Read the bins of a legacy file in checked groups. Nothing that the file names is ever run.

    Raises `InputError` for a file that is not such a `.npy`, that asks for names that packed data
    does not need, or that has a bin that no reader can use; the message names the bin.
    """
    where = Path(path)
    bins = _loaded(where)
    for first in range(0, len(bins), bins_at_once):
        parts = []
        for number in range(first, min(first + bins_at_once, len(bins))):
            try:
                parts.append(_one_bin(bins[number]))
            except (
                ValueError,
                RecursionError,
            ) as error:  # RecursionError: nested too deep to print
                raise InputError(
                    str(error), path=where, row=f"bin {number}", remedy=_ADVICE
                ) from error
            bins[number] = None  # free each bin once it is converted
        rows = PackedRows.concatenate(parts)
        fault = first_fault(rows)
        if fault is not None:
            raise InputError(fault[1], path=where, row=f"bin {first + fault[0]}", remedy=_ADVICE)
        yield rows


def sequences_of_bins(rows: PackedRows, alignment: Alignment) -> list[tuple[npt.NDArray[Any], U8]]:
    """Return the ids of each sequence in bins, and a mask that is 1 on the trained tokens
    themselves.

    The value that alignment lost, of the first token of a sequence or the last of a bin, is 0.
    """
    mask = np.zeros(len(rows.ids), np.uint8)
    if alignment == "shift_left":
        mask[1:] = rows.mask[:-1]
        mask[rows.sequence_starts] = 0
    else:
        mask[:-1] = rows.mask[1:]
        mask[rows.token_offsets[1:] - 1] = 0
    offsets = np.append(rows.sequence_starts, len(rows.ids)).tolist()
    return [(rows.ids[begin:end], mask[begin:end]) for begin, end in pairwise(offsets)]


def convert_legacy_to_parquet(
    legacy_npy_path: str | os.PathLike[str],
    output_path: str | os.PathLike[str],
    row_group_size: int = 1000,
    compression: str | None = "zstd",
    **options: Any,
) -> dict[str, Any]:
    """Write the bins of a legacy file as a Parquet shard, with unchanged masks; return the writer's
    `finalize` result.

    Adds source_bytes, the size of the legacy file. options: see `ParquetShardWriter`. On an error
    nothing is left. Memory: about 40 bytes per token.
    """
    source = local_path_of(os.fspath(legacy_npy_path), "legacy_npy_path")
    with ParquetShardWriter(output_path, row_group_size, compression, **options) as writer:
        for rows in read_legacy(source, bins_at_once=row_group_size):
            writer.write_bins(rows)
        result = writer.finalize()
    return {**result, "source_bytes": source.stat().st_size}


def _loaded(path: Path) -> list[Any]:
    try:
        with path.open("rb") as file:
            counted = _check_header(file, path)
            loaded = _value_of(_Unpickler(file).load())
    except InputError:
        raise
    except OSError as error:
        raise InputError(
            f"cannot be read ({error.strerror})", path=path, remedy="check the path"
        ) from error
    except _Forbidden as error:
        raise InputError(
            f"{error}, which packed data does not need; it was not run. The file may be hostile",
            path=path,
            remedy="ask where it comes from",
        ) from error
    except Exception as error:  # damaged bytes make the unpickler raise almost anything
        raise InputError(
            f"is cut or damaged ({type(error).__name__}: {error})", path=path, remedy=_ADVICE
        ) from error
    if not isinstance(loaded, list):
        raise InputError(
            f"holds {type(loaded).__name__}, not a list of bins", path=path, remedy=_ADVICE
        )
    if len(loaded) != counted:
        raise InputError(
            f"the header counts {counted:,} bins, the pickle holds {len(loaded):,}",
            path=path,
            remedy=_ADVICE,
        )
    if not loaded:
        raise InputError("holds no bins", path=path, remedy=_ADVICE)
    return loaded


def _check_header(file: BinaryIO, path: Path) -> int:
    """Return the number of bins in the file. Raises `InputError`."""
    try:
        version = npy.read_magic(file)
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
        shape, _, dtype = read(file)
    except OSError:
        raise
    except Exception as error:  # numpy's parser of headers raises almost anything
        raise InputError(f"is not a .npy file ({error})", path=path, remedy=_ADVICE) from error
    if dtype != np.dtype(object) or len(shape) != 1:
        raise InputError(f"is an array of {dtype} with shape {shape}", path=path, remedy=_ADVICE)
    return int(shape[0])


def _one_bin(record: Any) -> PackedRows:
    """Build rows of one bin.

    Raises `ValueError`.
    """
    if not isinstance(record, dict):
        raise ValueError(f"it is {type(record).__name__}, not a dictionary")
    columns = []
    for field in SCHEMA:
        if field.name not in record:
            raise ValueError(f"it has no {field.name}, only {', '.join(map(str, record))[:80]}")
        values = _flat(record[field.name], field.name)
        if values.dtype == np.bool_ and field.name == "input_ids":
            raise ValueError("input_ids are bool; give integers")
        columns.append(
            as_type(values, np.dtype(field.type.value_type.to_pandas_dtype()), field.name)
        )
    ids, mask, starts = columns
    if len(ids) and ids.min() < 0:
        raise ValueError(f"input_ids: {ids.min()} is not a token")
    if len(mask) and mask.max() > 1:
        raise ValueError(f"loss_mask: {mask.max()} is neither 0 nor 1")
    if len(mask) != len(ids):
        raise ValueError(f"it has {len(ids)} input_ids and {len(mask)} loss_mask values")
    return PackedRows.of_bin(ids, mask, starts)


def _flat(values: Any, what: str) -> npt.NDArray[Any]:
    """Convert a list, tuple or array of numbers to an array. Raises `ValueError`."""
    try:
        values = _value_of(values)
    except ValueError as error:
        raise ValueError(f"{what} are {error}") from error
    if not isinstance(values, list | tuple | np.ndarray):
        raise ValueError(f"{what} are {type(values).__name__}")
    if not len(values):
        return np.empty(0, np.uint8)
    try:
        array = np.array(values)
        if array.dtype == object:  # numpy scalars, or integers too large for any type
            array = np.array([_value_of(value) for value in values])
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"{what} are not a flat list of integers ({error})") from error
    if array.ndim != 1:
        raise ValueError(f"{what} have shape {array.shape}")
    return array


_PLAIN = {f"{letter}{size}" for letter in "iuf" for size in (1, 2, 4, 8)} - {"f1"} | {"b1"}
_ALLOWED = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),  # how pickles of protocol 2 write bytes
    *(
        (f"numpy.{core}.multiarray", name)
        for core in ("core", "_core")
        for name in ("_reconstruct", "scalar")
    ),
    *((f"numpy.{core}.numeric", "_frombuffer") for core in ("core", "_core")),
}


class _Forbidden(ValueError):
    """The pickle asks for a name that packed data does not need."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise _Forbidden(f"asks for {module}.{name}")
        return _Noted(name)

    def persistent_load(self, pid: Any) -> NoReturn:
        raise _Forbidden(f"asks for an object outside the file ({pid!r:.60})")


class _Noted:
    """Stand-in for a function or class that a pickle names, or for its result when called; it
    records and runs nothing.

    arguments: of the call; None for the function itself, which a pickle can neither fill nor
    change.
    """

    __slots__ = ("arguments", "name", "state")

    def __init__(self, name: str, arguments: tuple[Any, ...] | None = None) -> None:
        self.name = name
        self.arguments = arguments
        self.state: Any = None

    def __call__(self, *arguments: Any) -> _Noted:
        if self.arguments is not None:
            raise _Forbidden(f"calls what {self.name} returned")
        if self.name == "_reconstruct" and getattr(arguments[0], "name", None) != "ndarray":
            raise _Forbidden("makes an array of another class than numpy.ndarray")
        return _Noted(self.name, arguments)

    def __setstate__(self, state: Any) -> None:
        if self.arguments is None:
            raise _Forbidden("sets the state of a function")
        self.state = state


class _ArrayRecord(NamedTuple):
    """An array as a pickle records it.

    dtype: of its numbers; None for an array of objects, whose data is a list.
    """

    length: int
    dtype: np.dtype[Any] | None
    data: Any


def _value_of(noted: Any) -> Any:
    """Return the result that a recorded call would have had: arrays of objects as lists, any other
    value unchanged.

    Not recursive: call it again for the items of a list. Raises `ValueError` if the recorded
    arguments are inconsistent.
    """
    if not isinstance(noted, _Noted):
        return noted
    record = _array_record(noted)
    data = record.data
    if record.dtype is None:
        if not isinstance(data, list) or len(data) != record.length:
            raise ValueError("an array of objects without its objects")
        return data
    if isinstance(data, _Noted) and data.name == "encode":
        encoded, *encoding = data.arguments or (None,)
        data = None
        if isinstance(encoded, str) and encoding == ["latin1"]:
            data = encoded.encode("latin1")
    size = record.length * record.dtype.itemsize
    if not isinstance(data, bytes | bytearray) or len(data) != size:
        raise ValueError(
            f"an array of {(record.length,)} {record.dtype.name} whose bytes are not {size}"
        )
    numbers = np.frombuffer(bytes(data), record.dtype)
    if noted.name == "scalar":
        return numbers[0].item()
    return numbers


def _array_record(noted: _Noted) -> _ArrayRecord:
    """Read the arguments of a call that makes an array or a number.

    Raises `ValueError` for what numpy would not have recorded, and for other shapes and types than
    packed data has.
    """
    try:
        if noted.name == "_reconstruct":
            _, shape, type_record, _, data = noted.state
        elif noted.name == "_frombuffer":
            data, type_record, shape, _ = noted.arguments or ()
        else:
            shape = (1,)
            arguments: Any = ()
            if noted.name == "scalar":
                arguments = noted.arguments or ()
            type_record, data = arguments
        text = type_record.arguments[0].lstrip("<|=")
        order = "<"
        if type_record.state:
            order = type_record.state[1]
        if type_record.name != "dtype" or order not in ("<", ">", "|", "="):
            raise ValueError(f"byte order {order!r:.60}")
    except (AttributeError, TypeError, ValueError, LookupError) as error:
        raise ValueError(f"an array that is damaged ({error})") from error
    length = _only_axis(shape)
    if text in ("O", "O8"):
        return _ArrayRecord(length, None, data)
    if text not in _PLAIN:
        raise ValueError(f"an array of type {text!r:.60}")
    if order != ">":
        order = "<"
    return _ArrayRecord(length, np.dtype(order + text), data)


def _only_axis(shape: Any) -> int:
    if not isinstance(shape, tuple) or len(shape) != 1 or not isinstance(shape[0], int):
        raise ValueError(f"an array of shape {shape!r:.60}; packed data has one axis")
    return shape[0]
