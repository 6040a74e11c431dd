"""Read MDS shards of MosaicML Streaming, in which a binary file holds the columns of each sample in turn.

A shard is [samples: u32] [begin of each sample, and the end: u32] [header] [samples]. A sample is the sizes (u32) of
its columns of varying size, then the bytes of all columns. Integers are little endian. Source:
https://github.com/mosaicml/streaming, base/format/mds, version 2.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from headrace.arrays import borders_of
from headrace.errors import CorruptShard, InputError
from headrace.storage.places import place_of

INDEX = "index.json"
_AS_BYTES = frozenset({"bytes", "jpeg", "png"})
_AS_TEXT = frozenset({"str", "json", "str_decimal"})
_PARSED = {"str_int": pa.int64(), "str_float": pa.float64()}
_DTYPES = {8: "uint8", 16: "uint16", 32: "uint32", 64: "uint64", 9: "int8", 17: "int16", 33: "int32", 65: "int64"}
_DTYPES |= {18: "float16", 34: "float32", 66: "float64"}  # dtype codes in arrays of varying type
_SCALARS = {"int": "int64"} | {name: name for name in _DTYPES.values()}


@dataclass(frozen=True)
class MdsShard:
    """One shard as index.json describes it. compression: the codec's name, None for an uncompressed shard."""

    directory: Path
    columns: tuple[str, ...]
    encodings: tuple[str, ...]
    sizes: tuple[int | None, ...]
    samples: int
    raw: Mapping[str, Any]
    packed: Mapping[str, Any] | None
    compression: str | None

    @property
    def path(self) -> Path:
        """The file that exists: the raw one, or else the compressed one."""
        raw: Path = self.directory / self.raw["basename"]
        return raw if self.packed is None or raw.exists() else self.directory / self.packed["basename"]


def shards_of(directory: Path) -> list[MdsShard]:
    """Read the index of a directory. Raises `InputError` for one other than MDS version 2."""
    index = directory / INDEX
    try:
        every = json.loads(index.read_bytes())["shards"]
        return [_shard(directory, index, each) for each in every]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{index}: is not an index of MDS shards ({error!r}); restore it") from None


def _shard(directory: Path, index: Path, of: Mapping[str, Any]) -> MdsShard:
    if of["format"] != "mds" or of["version"] != 2:
        what = f"{of['format']}, version {of['version']}"
        raise InputError(
            f"{index}: lists shards of {what}, and only mds, version 2, is read; give the files themselves"
        )
    for name, encoding in zip(of["column_names"], of["column_encodings"], strict=True):
        kind, _, given = encoding.partition(":")
        is_array = kind == "ndarray" and (not given or given.partition(":")[0] in _DTYPES.values())
        if not (is_array or kind in _AS_BYTES | _AS_TEXT or encoding in _PARSED or encoding in _SCALARS):
            why = "may run any code when it is read" if kind == "pkl" else "is not read"
            raise InputError(
                f"{index}: column {name!r}: encoding {encoding!r} {why}; write the data again with another, such as"
                " bytes, png, ndarray or json"
            )
    names = [file["basename"] for file in (of["raw_data"], of["zip_data"]) if file is not None]
    if any(Path(name).name != name or "\\" in name for name in names):  # the name is also used for the output
        raise ValueError(f"{names} are not names of files beside it")
    if not isinstance(of["samples"], int) or any(not isinstance(size, int | None) for size in of["column_sizes"]):
        raise TypeError("samples and column_sizes must be whole numbers")
    return MdsShard(
        directory=directory,
        columns=tuple(of["column_names"]),
        encodings=tuple(of["column_encodings"]),
        sizes=tuple(of["column_sizes"]),
        samples=of["samples"],
        raw=of["raw_data"],
        packed=of["zip_data"],
        compression=None if of["compression"] is None else of["compression"].partition(":")[0],
    )


def table_of(shard: MdsShard) -> pa.Table:
    """Decode a whole shard, in its order. Raises `CorruptShard` if size, digest or structure are wrong."""
    data = _bytes_of(shard)
    words = np.frombuffer(data, "<u4", len(data) // 4)
    count = shard.samples
    if not words.size or int(words[0]) != count or words.size < count + 2:
        raise CorruptShard(f"{shard.path}: does not hold the {count:,} samples of {INDEX}; restore the file")
    begins = words[1 : count + 2].astype(np.int64)
    sized = [number for number, size in enumerate(shard.sizes) if not size]  # 0 means varying, as in MosaicML's reader
    lengths = np.empty((count, len(shard.columns) + 1), np.int64)
    lengths[:, 0] = 4 * len(sized)
    for number, size in enumerate(shard.sizes):
        lengths[:, number + 1] = size or 0
    octets = np.frombuffer(data, np.uint8)
    if count and (begins[0] < 4 * (count + 2) or begins[-1] > octets.size or (np.diff(begins) < 4 * len(sized)).any()):
        raise CorruptShard(f"{shard.path}: samples lie outside of the file; restore it")
    for place, number in enumerate(sized):
        at = begins[:-1] + 4 * place
        lengths[:, number + 1] = octets[at[:, None] + np.arange(4)].copy().view("<u4")[:, 0]
    edges = begins[:-1, None] + np.cumsum(lengths, axis=1)
    if count and (edges[:, -1] != begins[1:]).any():
        bad = int(np.flatnonzero(edges[:, -1] != begins[1:])[0])
        raise CorruptShard(f"{shard.path}: sample {bad:,} does not end where the next begins; restore the file")
    bounds = np.append(np.column_stack([begins[:-1], edges[:, :-1]]).ravel(), begins[-1])
    step = len(shard.columns) + 1
    values = [_every(bounds, data, number, step) for number in range(1, step)]
    columns = [
        _decoded(value, encoding, f"{shard.path}: column {name!r}")
        for value, encoding, name in zip(values, shard.encodings, shard.columns, strict=True)
    ]
    return pa.table(dict(zip(shard.columns, columns, strict=True)))


def _bytes_of(shard: MdsShard) -> bytes:
    path = shard.path
    data: bytes = place_of(path).read()
    raw = shard.packed is None or path.name == shard.raw["basename"]
    facts: Mapping[str, Any] = shard.raw if raw or shard.packed is None else shard.packed
    if len(data) != facts["bytes"]:
        raise CorruptShard(f"{path}: has {len(data):,} bytes, and {INDEX} says {facts['bytes']:,}; restore the file")
    for name, digest in facts["hashes"].items():  # others are not checked
        module = hashlib if name in hashlib.algorithms_guaranteed else xxhash
        known = module is hashlib or name in xxhash.algorithms_available
        found = getattr(module, name)(data).hexdigest() if known else digest
        if found != digest:
            raise CorruptShard(f"{path}: its {name} is {found}, and {INDEX} says {digest}; restore the file")
    if raw:
        return data
    codec, size = str(shard.compression), shard.raw["bytes"]
    names = {"br": "brotli", "bz2": "bz2", "gz": "gzip", "snappy": "snappy", "zstd": "zstd"}
    if codec not in names:
        raise InputError(f"{path}: is compressed by {codec!r}, which is not read; use {', '.join(sorted(names))}")
    try:
        if codec in ("br", "snappy"):
            return pa.Codec(names[codec]).decompress(data, size, asbytes=True)  # type: ignore[no-any-return]
        with pa.CompressedInputStream(pa.BufferReader(data), names[codec]) as stream:
            unpacked: bytes = stream.read()
    except (OSError, pa.ArrowException) as error:
        raise CorruptShard(f"{path}: cannot be decompressed ({error}); restore the file") from None
    if len(unpacked) != size:
        raise CorruptShard(f"{path}: decompresses to {len(unpacked):,} bytes, not {size:,}; restore the file")
    return unpacked


def _decoded(values: pa.LargeBinaryArray, encoding: str, where: str) -> pa.Array:
    name, _, given = encoding.partition(":")
    if name in _AS_BYTES:
        return values
    if name == "ndarray":
        dtype, _, text = given.partition(":")
        shape = tuple(map(int, text.split(","))) if text else None
        _check_sizes(values, None if shape is None else math.prod(shape) * np.dtype(dtype).itemsize, where)
        return _arrays(values, dtype or None, shape, where)
    if name in _SCALARS:
        _check_sizes(values, np.dtype(_SCALARS[name]).itemsize, where)
        return pa.array(np.frombuffer(_joined(values), _SCALARS[name]))
    try:
        text = values.cast(pa.large_string())
        return text if name in _AS_TEXT else pc.cast(text, _PARSED[name])
    except pa.ArrowInvalid as error:
        raise InputError(
            f"{where}: is not what its encoding {encoding!r} says ({error}); write the data again"
        ) from None


def _check_sizes(values: pa.LargeBinaryArray, size: int | None, where: str) -> None:
    """Raise `InputError` for a value of another size than declared, or an empty value of varying size."""
    sizes = pc.binary_length(values).to_numpy()
    wrong = sizes[sizes < 1] if size is None else sizes[sizes != size]
    if len(wrong):
        wanted = "" if size is None else f", and its encoding says {size}"
        raise InputError(f"{where}: has a value of {int(wrong[0])} bytes{wanted}; write the data again")


def _joined(values: pa.LargeBinaryArray) -> memoryview:
    """Concatenate the bytes of all values."""
    offsets, data = _laid_out(values)
    return data[int(offsets[0]) : int(offsets[-1])]


def _laid_out(values: pa.LargeBinaryArray) -> tuple[npt.NDArray[np.int64], memoryview]:
    """Return the offset at which each value begins, and the end of the last, in the bytes of `_joined`."""
    _, offsets, data = values.buffers()
    return np.frombuffer(offsets, np.int64)[values.offset :][: len(values) + 1], memoryview(data or b"")


def _heads(values: pa.LargeBinaryArray) -> npt.NDArray[np.uint8]:
    """Return the first byte of each value; none may be empty."""
    offsets, data = _laid_out(values)
    return np.frombuffer(data, np.uint8)[offsets[:-1]]


def _arrays(values: pa.LargeBinaryArray, dtype: str | None, shape: tuple[int, ...] | None, where: str) -> pa.Array:
    """Decode arrays: those of fixed shape as nested fixed-size lists, one-dimensional ones as lists."""
    if dtype is None:
        codes = np.unique(_heads(values))
        if codes.size > 1 or not {int(code) for code in codes} <= _DTYPES.keys():
            found = ", ".join(_DTYPES.get(int(code), f"code {code}") for code in codes)
            raise InputError(f"{where}: has arrays of several types ({found}); write the data again with one")
        dtype = _DTYPES[int(codes[0])] if codes.size else "int64"
        values = _tails(values, np.ones(len(values), np.int64))
    if shape is None:
        heads = _heads(values)
        dimensions = heads >> 2
        if (dimensions != 1).any():
            many = int(dimensions[dimensions != 1][0])
            raise InputError(
                f"{where}: has arrays of {many} dimensions whose shape varies; write the data again with a fixed shape"
            )
        skipped = 1 + (1 << (heads & 3).astype(np.int64))  # head and length of each array
        lengths = pc.binary_length(values).to_numpy() - skipped
        pieces = _tails(values, skipped)
        offsets = borders_of(lengths // np.dtype(dtype).itemsize)
        return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(np.frombuffer(_joined(pieces), dtype)))
    flat: pa.Array = pa.array(np.frombuffer(_joined(values), dtype))
    for size in reversed(shape):
        flat = pa.FixedSizeListArray.from_arrays(flat, size)
    return flat


def _tails(values: pa.LargeBinaryArray, skipped: npt.NDArray[np.int64]) -> pa.LargeBinaryArray:
    """Return each value without its first bytes."""
    offsets, data = _laid_out(values)
    cut = np.append(np.stack([offsets[:-1], offsets[:-1] + skipped], axis=1).ravel(), offsets[-1:])
    return _every(cut, data, 1, 2)


def _every(bounds: npt.NDArray[np.int64], data: Any, first: int, step: int) -> pa.LargeBinaryArray:
    """Cut bytes at bounds, and return every step-th piece from the first on."""
    pieces = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), bounds.size - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    )
    return pieces.take(pa.array(np.arange(first, bounds.size - 1, step)))
