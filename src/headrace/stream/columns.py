"""Rows of a pool, column by column: gathered once from decoded blocks by one index, then cut without copying.

A column is a numpy array where numpy has a type for it, and an Arrow array otherwise (text, lists, and whatever else):

    integer, float, bool           numpy, the same type; a null float is NaN; a null elsewhere is an `InputError`
    date, timestamp, duration      numpy datetime64 / timedelta64 in the column's own unit; a null is NaT
    fixed-size list of numbers     numpy, two axes [rows, list size]; no nulls
    everything else                Arrow, as it is
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import InputError

I64 = npt.NDArray[np.int64]
Column: TypeAlias = npt.NDArray[Any] | pa.Array
Columns: TypeAlias = dict[str, Column]

_INT32_OFFSETS_REACH = (1 << 31) - 1


def gather(pieces: Sequence[pa.Table], index: I64, *, arrow: bool, where: Callable[[int], str]) -> Columns:
    """The rows `index` [n] of the pieces laid end to end, in that order; a fresh copy that may be written to.

    arrow: keep every column in Arrow. where: names the piece of a number, for messages.
    Raises `InputError` for a null that the column's numpy type cannot hold.
    """
    columns: Columns = {}
    for name in pieces[0].schema.names:
        chunks = [piece.column(name) for piece in pieces]
        if not arrow and in_numpy(chunks[0].type):
            arrays = [_to_numpy(chunk, f"{where(piece)}: column {name}") for piece, chunk in enumerate(chunks)]
            columns[name] = np.take(arrays[0] if len(arrays) == 1 else np.concatenate(arrays), index, axis=0)
        else:
            columns[name] = _take(chunks, index)
    return columns


def join(parts: Sequence[Columns]) -> Columns:
    """Columns laid end to end; a single part is returned as it is."""
    if len(parts) == 1:
        return parts[0]
    return {name: _concatenate([part[name] for part in parts]) for name in parts[0]}


def cut(columns: Columns, start: int, stop: int) -> Columns:
    """Rows start..stop-1, as views."""
    return {name: column[start:stop] for name, column in columns.items()}


def in_numpy(kind: pa.DataType) -> bool:
    """Whether columns of this type are numpy arrays."""
    if pa.types.is_fixed_size_list(kind):
        return _is_number(kind.value_type)
    return _is_number(kind) or pa.types.is_boolean(kind) or _is_moment(kind)


def _take(chunks: list[pa.ChunkedArray], index: I64) -> pa.Array:
    kind = chunks[0].type
    narrow = pa.types.is_string(kind) or pa.types.is_binary(kind)
    if narrow and sum(chunk.nbytes for chunk in chunks) > _INT32_OFFSETS_REACH // 2:
        wide = pa.large_string() if pa.types.is_string(kind) else pa.large_binary()
        chunks = [chunk.cast(wide) for chunk in chunks]
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):  # Arrow has no take for views
        wide = pa.large_string() if pa.types.is_string_view(kind) else pa.large_binary()
        chunks = [chunk.cast(wide) for chunk in chunks]
    arrays = [array for chunk in chunks for array in chunk.chunks]
    if pa.types.is_dictionary(kind):
        arrays = [array.dictionary_decode() for array in arrays]
    return pa.concat_arrays(arrays).take(pa.array(index))


def _to_numpy(chunk: pa.ChunkedArray, where: str) -> npt.NDArray[Any]:
    kind = chunk.type
    if pa.types.is_fixed_size_list(kind):
        lists = pa.concat_arrays(chunk.chunks)
        values = lists.flatten()
        if lists.null_count or values.null_count:
            raise _null(where, lists.null_count or values.null_count, kind)
        flat: npt.NDArray[Any] = values.to_numpy(zero_copy_only=False)
        return flat.reshape(-1, kind.list_size)
    if chunk.null_count and not (pa.types.is_floating(kind) or _is_moment(kind)):
        raise _null(where, chunk.null_count, kind)
    converted: npt.NDArray[Any] = chunk.to_numpy()
    return converted


def _null(where: str, count: int, kind: pa.DataType) -> InputError:
    return InputError(
        f"{where} of type {kind} holds {count} nulls, which this type cannot hold outside Arrow; fill them or make the"
        ' column a float when preparing, leave it out with columns=, or use batch_format="arrow"'
    )


def _concatenate(parts: list[Column]) -> Column:
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    arrays: list[Any] = list(parts)
    kinds = {array.type for array in arrays}
    if len(kinds) > 1:  # one pool was wide enough to need 64-bit offsets
        wide = pa.large_string() if kinds == {pa.string(), pa.large_string()} else pa.large_binary()
        arrays = [array.cast(wide) for array in arrays]
    return pa.concat_arrays(arrays)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _is_moment(kind: pa.DataType) -> bool:
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind) or pa.types.is_duration(kind))
