"""Measure what arrays become once each value stands for itself."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headrace.arrays import I64

_VIEW_BYTES = 16


def decoded_bytes(array: pa.Array) -> int:
    """Return about the bytes of an array once it has no dictionaries, runs and shared views, at any
    depth; its own bytes if it has none.

    A dictionary of one long text and a million indices is a million long texts once it is written
    out. array: validated.
    """
    if shares_values(array.type):
        return int(_sizes(array).sum())
    return int(array.nbytes)


def shares_values(type_: pa.DataType) -> bool:
    """Return whether values of this type, or in it, may be used many times."""
    if isinstance(type_, pa.BaseExtensionType):
        return shares_values(type_.storage_type)
    if pa.types.is_dictionary(type_) or _is_list_view(type_) or _is_view(type_):
        return True
    if pa.types.is_run_end_encoded(type_):
        return True
    return any(shares_values(type_.field(number).type) for number in range(type_.num_fields))


def _is_view(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string_view(type_) or pa.types.is_binary_view(type_))


def _is_list_view(type_: pa.DataType) -> bool:
    return bool(pa.types.is_list_view(type_) or pa.types.is_large_list_view(type_))


def _sizes(array: pa.Array) -> I64:
    """Return about the bytes of each value, int64 [N]."""
    type_ = array.type
    if isinstance(type_, pa.BaseExtensionType):
        return _sizes(array.storage)
    if pa.types.is_dictionary(type_):
        sizes = _sizes(array.dictionary)
        is_null = _integers(array.indices.is_null().cast(pa.uint8())) != 0
        indices = np.where(is_null, len(sizes), _integers(array.indices))
        return np.asarray(np.append(sizes, 0)[indices], np.int64)
    if pa.types.is_run_end_encoded(type_):
        ends = _integers(array.run_ends)
        lengths = np.diff(np.clip(ends - array.offset, 0, len(array)), prepend=0)
        return np.asarray(_sizes(array.values) * lengths, np.int64)
    if _is_view(type_):
        views = np.frombuffer(array.buffers()[1] or b"", "<i4")[::4]
        used = views[array.offset : array.offset + len(array)]
        return used.astype(np.int64) + _VIEW_BYTES
    return _sizes_of_parts(array)


def _sizes_of_parts(array: pa.Array) -> I64:
    type_ = array.type
    if _is_list_view(type_):
        starts = _integers(array.offsets)
        ends = starts + _integers(array.sizes)
        return _between(_sizes(array.values), starts, ends)
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_map(type_):
        offsets = _integers(array.offsets)
        values = array.values
        if pa.types.is_map(type_):
            parts = _sizes(array.keys) + _sizes(array.items)
        else:
            parts = _sizes(values)
        return _between(parts, offsets[:-1], offsets[1:])
    if pa.types.is_fixed_size_list(type_):
        parts = _sizes(array.values)
        first = array.offset * type_.list_size
        used = parts[first : first + len(array) * type_.list_size]
        return np.asarray(used.reshape(len(array), type_.list_size).sum(axis=1), np.int64)
    if pa.types.is_struct(type_):
        columns = [_sizes(array.field(number)) for number in range(type_.num_fields)]
        return np.asarray(np.sum(columns, axis=0), np.int64)
    return np.full(len(array), array.nbytes // max(1, len(array)), np.int64)


def _integers(array: pa.Array) -> I64:
    """Return integers; those of nulls are undefined.

    Arrow's own conversions, also of a number for `fill_null`, would import pandas.
    """
    dtype = np.dtype(str(array.type))
    buffer = array.buffers()[1]
    values = np.frombuffer(buffer or b"", dtype, len(buffer or b"") // dtype.itemsize)
    return values[array.offset : array.offset + len(array)].astype(np.int64)


def _between(sizes: I64, starts: I64, ends: I64) -> I64:
    sums = np.concatenate([[0], np.cumsum(sizes)])
    return np.asarray(sums[ends] - sums[starts], np.int64)
