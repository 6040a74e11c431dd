"""The legacy form of packed bins: a `.npy` file that is a pickled list of dictionaries of Python lists.

    [{"input_ids": [...], "loss_mask": [...], "seq_start_id": [...]}, …]

It takes about five times the bytes of Parquet, ten times the time, and all of it in memory at once, about 40 bytes a
token. Written for trainers that read nothing else; read, with a restricted unpickler, to convert it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Literal

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from headrace.bins.faults import first_fault
from headrace.bins.integers import as_type
from headrace.bins.rows import PackedRows
from headrace.errors import InputError
from headrace.packing.storage import safe_pickle
from headrace.packing.storage.bin_buffer import BinBuffer
from headrace.packing.storage.packed_parquet import Declared
from headrace.packing.storage.parquet_writer import ParquetShardWriter
from headrace.storage import local
from headrace.storage.places import local_path_of

_KEYS = ("input_ids", "loss_mask", "seq_start_id")
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
        self.packed_data.append(dict(zip(_KEYS, values, strict=True)))

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
    """The bins of a legacy file, some at a time, each checked. Nothing that the file names is ever run.

    Raises `InputError`: for a file that is no such `.npy`, that asks for names packed data does not need, or that has a
    bin no reader can use; the message names the bin.
    """
    where = Path(path)
    bins = _loaded(where)
    bins.reverse()  # so that bins can be let go as they are converted
    buffer, number = BinBuffer(), 0
    while bins:
        while bins and len(buffer) < bins_at_once:
            buffer.add(*_arrays(bins.pop(), f"{where}: bin {number}"))
            number += 1
        rows = buffer.rows()
        fault = first_fault(rows)
        if fault is not None:
            raise InputError(f"{where}: bin {number - len(rows) + fault[0]} has {fault[1]}")
        yield rows
        buffer.clear()


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
            loaded = safe_pickle.load(file)
    except safe_pickle.Forbidden as error:
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


def _arrays(record: Any, where: str) -> tuple[Any, Any, Any]:
    if not isinstance(record, dict):
        raise InputError(f"{where} is {type(record).__name__}, no dictionary; {_ADVICE}")
    missing = [key for key in _KEYS if key not in record]
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
    return ids, mask, starts


def _integers(
    values: Any, dtype: np.dtype[Any], what: str, *, bools: Literal["take", "refuse"] = "take"
) -> npt.NDArray[Any]:
    try:
        values = safe_pickle.value_of(values)
    except ValueError as error:
        raise ValueError(f"{what} are {error}") from error
    if not isinstance(values, list | tuple | np.ndarray):
        raise ValueError(f"{what} are {type(values).__name__}")
    if not len(values):
        return np.empty(0, dtype)
    try:
        array = np.array(values)
        if array.dtype == object:  # numpy numbers one by one, or too large for any integer type
            array = np.array([safe_pickle.value_of(value) for value in values])
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"{what} are no flat list of integers ({error})") from error
    if array.ndim != 1:
        raise ValueError(f"{what} have shape {array.shape}")
    if array.dtype == np.bool_ and bools == "refuse":
        raise ValueError(f"{what} are bool; give integers")
    return as_type(array, dtype, what)
