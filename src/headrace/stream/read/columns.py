"""Columns of rows: decoded once from a block, gathered once from the blocks of a pool, then cut
without copying.

A column is a numpy array if numpy has a type for it, `Ragged` for lists of numbers, and an Arrow
array otherwise:

    integer, float, bool          numpy, the same type; a null float is NaN; a null elsewhere is an
                                  `InputError`, but for columns known to have gaps: float64, NaN
    date, timestamp, duration     numpy datetime64 / timedelta64 in the column's own unit; a null is
                                  NaT
    fixed-size list of numbers    numpy, two axes [rows, list size]; no nulls
    list of numbers               Ragged; a null list is kept; a null inside a list of integers is
                                  an `InputError`
    everything else               Arrow, as it is; dictionaries decoded, string views as large
                                  strings
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import I64, offsets_from_lengths
from headrace.dataset.index import int64_array
from headrace.errors import InputError, setting
from headrace.gate.mapped import check_mapped
from headrace.stream.read.buffers import Buffers
from headrace.stream.read.ragged import Ragged

Column: TypeAlias = npt.NDArray[Any] | Ragged | pa.Array
Columns: TypeAlias = dict[str, Column]

_ALIGNED_BYTES = 64
_PLAIN = {  # types whose buffers numpy can view, by Arrow's type id
    pa.from_numpy_dtype(code).id: np.dtype(code)
    for code in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
}
_INT32_OFFSETS_REACH = (1 << 31) - 1
_LOCKED_COPY_BYTES = 1 << 18


def from_table(table: pa.Table, *, arrow: bool, where: str, gaps: Collection[str] = ()) -> Columns:
    """Return the columns of a decoded block, without a copy if the types allow; do not write to
    them.

    arrow: keep every column in Arrow. where: names the block in messages. gaps: columns of whole
    numbers or truths that lack a value in some rows of the data, delivered as float64 with NaN.
    Raises `InputError` for a null that the column's type cannot hold, and for a number in a column
    with gaps that float64 cannot hold.
    """
    columns = {}
    for name in table.schema.names:
        try:
            column = table.column(name)
            if name in gaps and not arrow:
                column = _with_nan(column)
            columns[name] = _from_arrow(column, arrow=arrow)
        except InputError as error:
            error.at(path=where, column=name)
            raise
    return columns


def gather(
    sources: Sequence[Columns], index: I64 | None, buffers: Buffers | None = None
) -> Columns:
    """Return rows `index` [n] of the pieces laid end to end, in that order; None: all rows in their
    stored order.

    The result is a copy that may be written to, except Arrow arrays. buffers: the source of its
    memory. Raises `CorruptShard` for a mapped file that was cut.
    """
    check_mapped()
    if buffers is None:
        memory = Buffers()
    else:
        memory = buffers
    gathered: Columns = {}
    arrow: dict[str, pa.Array] = {}
    for name, first in sources[0].items():
        parts = [part[name] for part in sources]
        if isinstance(first, np.ndarray | Ragged):
            gathered[name] = _gather(parts, index, memory)
        else:
            gathered[name] = arrow[name] = _concatenate_arrays(parts)
    # one call: with thousands of columns, a call for each would dominate
    if arrow and index is not None:
        batch = pa.RecordBatch.from_arrays(
            list(arrow.values()), [str(number) for number in range(len(arrow))]
        )
        gathered.update(zip(arrow, batch.take(int64_array(index)).columns, strict=True))
    return gathered


def join(parts: Sequence[Columns]) -> Columns:
    """Concatenate the rows of all parts; a single part is returned as it is."""
    if len(parts) == 1:
        return parts[0]
    return {name: concatenate([part[name] for part in parts]) for name in parts[0]}


def cut(columns: Columns, start: int, stop: int) -> Columns:
    """Return rows start..stop-1, as views."""
    return {name: column[start:stop] for name, column in columns.items()}


def copied(columns: Columns, memory: Callable[[int], npt.NDArray[np.uint8]]) -> Columns:
    """Copy the rows into their own memory, so that they keep nothing else alive.

    memory: allocates bytes; called once for all arrays together.
    """
    plain: dict[str, npt.NDArray[Any]] = {}
    lists: dict[str, Ragged] = {}
    copies: Columns = {}
    for name, column in columns.items():
        if isinstance(column, np.ndarray):
            plain[name] = column
        elif isinstance(column, Ragged):
            lists[name] = column.narrow()
            plain[name] = lists[name].values
        else:
            copies[name] = pa.concat_arrays([column])
    offsets = offsets_from_lengths(
        [-(-array.nbytes // _ALIGNED_BYTES) * _ALIGNED_BYTES for array in plain.values()]
    ).tolist()
    block = memory(offsets[-1])
    for at, (name, array) in zip(offsets, plain.items(), strict=False):
        copy = block[at : at + array.nbytes].view(array.dtype).reshape(array.shape)
        _lay([array], copy)
        if name in lists:
            copies[name] = lists[name].with_values(copy)
        else:
            copies[name] = copy
    return {name: copies[name] for name in columns}


def size_of(columns: Columns) -> int:
    """Return the bytes that the columns hold."""
    return sum(int(column.nbytes) for column in columns.values())


def _from_arrow(chunks: pa.ChunkedArray, *, arrow: bool) -> Column:
    arrow_type = chunks.type
    if not arrow:
        column = _in_numpy(chunks)
        if column is not None:
            return column
    if pa.types.is_dictionary(arrow_type) or pa.types.is_run_end_encoded(arrow_type):
        joined = joined_array(chunks)
        if pa.types.is_dictionary(arrow_type):
            return joined.dictionary_decode()
        return pc.run_end_decode(joined)
    # Arrow has no take for views
    if pa.types.is_string_view(arrow_type):
        chunks = chunks.cast(pa.large_string())
    elif pa.types.is_binary_view(arrow_type):
        chunks = chunks.cast(pa.large_binary())
    joined = joined_array(chunks)
    error = _no_take(joined)
    if error is not None:  # views inside lists and structs
        raise InputError(
            f"its type {arrow_type} cannot be read by row ({error})",
            remedy=(
                "write it as another type, for example string in place of string_view, or leave"
                f" the column out with {setting('columns')}"
            ),
        )
    return joined


def _in_numpy(chunks: pa.ChunkedArray) -> Column | None:
    """Return numbers, truths, times and lists of numbers for numpy; None for other types."""
    arrow_type = chunks.type
    if arrow_type.id in _PLAIN and chunks.num_chunks == 1 and not chunks.null_count:
        array = chunks.chunk(0)
        dtype = _PLAIN[arrow_type.id]
        # viewed, as `to_numpy` would release the interpreter lock for each column
        values = array.buffers()[1]
        if values is None:
            return np.empty(0, dtype)
        return np.frombuffer(values, dtype, len(array), array.offset * dtype.itemsize)
    if pa.types.is_fixed_size_list(arrow_type) and _is_number(arrow_type.value_type):
        lists = joined_array(chunks)
        numbers = lists.flatten()
        if lists.null_count or numbers.null_count:
            raise _null(lists.null_count or numbers.null_count, arrow_type)
        return numbers.to_numpy(zero_copy_only=False).reshape(len(lists), arrow_type.list_size)
    if _is_number(arrow_type) or pa.types.is_boolean(arrow_type) or _is_moment(arrow_type):
        if chunks.null_count and not (pa.types.is_floating(arrow_type) or _is_moment(arrow_type)):
            raise _null(chunks.null_count, arrow_type)
        return chunks.to_numpy()
    if (pa.types.is_list(arrow_type) or pa.types.is_large_list(arrow_type)) and _is_number(
        arrow_type.value_type
    ):
        return _ragged(joined_array(chunks))
    return None


_TRIED: dict[pa.DataType, str | None] = {}


def _no_take(array: pa.Array) -> str | None:
    """Return why Arrow cannot take rows of arrays of this type; None if it can.

    Tried once for each type.
    """
    dtype = array.type
    if dtype not in _TRIED:
        try:
            array[:0].take(pa.nulls(0, pa.int64()))
            _TRIED[dtype] = None
        except pa.ArrowNotImplementedError as error:
            _TRIED[dtype] = str(error)
    return _TRIED[dtype]


def joined_array(chunks: pa.ChunkedArray) -> pa.Array:
    """Return the chunks as one array; a single chunk is not copied."""
    if chunks.num_chunks == 1:
        return chunks.chunk(0)
    if chunks.num_chunks:
        return _concatenate_arrays(chunks.chunks)
    return pa.array([], chunks.type)


def _ragged(lists: pa.Array) -> Ragged:
    values = lists.values
    if values.null_count and not pa.types.is_floating(values.type):
        inside = lists.flatten().null_count  # nulls in null lists and outside a slice do not count
        if inside:
            raise InputError(
                f"it holds {inside} nulls inside lists of {values.type}, which only floats can"
                " hold",
                remedy=(
                    f"fill them when preparing, leave the column out with {setting('columns')}, or"
                    f" use {setting('batch_format', 'arrow')}"
                ),
            )
        values = pc.fill_null(values, 0)
    offsets = lists.offsets.to_numpy().astype(np.int64, copy=False)
    missing = None
    lengths = np.diff(offsets)
    if lists.null_count:
        missing = lists.is_null().to_numpy(zero_copy_only=False)
        lengths = np.where(missing, 0, lengths)
    if len(offsets):
        first, last = (int(offsets[0]), int(offsets[-1]))
    else:
        first, last = (0, 0)
    flat = values.to_numpy(zero_copy_only=False)[first:last]
    return Ragged(values=flat, starts=offsets[:-1] - first, lengths=lengths, missing=missing)


def _lay(parts: Sequence[npt.NDArray[Any]], out: npt.NDArray[Any]) -> None:
    """Copy the parts end to end into `out`.

    numpy releases the interpreter lock in every copy. For small copies, regaining it from the other
    threads of a stream takes longer than the copy itself: with it, shuffled epochs took 15 %
    longer.
    """
    if max(part.nbytes for part in parts) > _LOCKED_COPY_BYTES or not all(
        part.flags.c_contiguous for part in parts
    ):
        np.concatenate(parts, out=out)
        return
    room = out.reshape(-1).view(np.uint8).data
    at = 0
    for part in parts:
        data = part.reshape(-1).view(np.uint8).data
        room[at : at + data.nbytes] = data
        at += data.nbytes


def _gather(columns: list[Any], index: I64 | None, buffers: Buffers) -> Column:
    first = columns[0]
    if isinstance(first, np.ndarray):
        laid = first
        if index is None or len(columns) > 1:
            laid = buffers.empty((sum(map(len, columns)), *first.shape[1:]), first.dtype)
            _lay(columns, laid)
        if index is None:
            return laid
        gathered = buffers.empty((len(index), *first.shape[1:]), first.dtype)
        np.take(laid, index, axis=0, out=gathered, mode="clip")  # "raise" would make one more copy
        return gathered
    return Ragged.gather(columns, index, buffers)


def concatenate(parts: list[Any]) -> Column:
    """Concatenate parts of one column."""
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    if isinstance(parts[0], Ragged):
        return Ragged.concatenate(parts)
    return _concatenate_arrays(parts)


def _concatenate_arrays(arrays: Sequence[pa.Array]) -> pa.Array:
    """Concatenate arrays of one type, or of types that differ in the width of their offsets.

    Texts and lists that 32-bit offsets do not reach, at any depth, get offsets of 64 bits.
    """
    types = {array.type for array in arrays}
    wide = _with_long_offsets(arrays[0].type)
    if types != {wide}:
        most = _INT32_OFFSETS_REACH // 2
        # a tenth of the cost of `nbytes`
        is_long = sum(int(array.get_total_buffer_size()) for array in arrays) > most
        is_long = is_long and sum(int(array.nbytes) for array in arrays) > most
        if is_long or len(types) > 1:
            arrays = [array.cast(wide) for array in arrays]
    if len(arrays) == 1:
        return arrays[0]
    return pa.concat_arrays(arrays)


def _with_long_offsets(dtype: pa.DataType) -> pa.DataType:
    """Return the type with offsets of 64 bits at every depth; there are none for maps."""
    if pa.types.is_string(dtype):
        return pa.large_string()
    if pa.types.is_binary(dtype):
        return pa.large_binary()
    if pa.types.is_list(dtype):
        value = dtype.value_field
        return pa.large_list(value.with_type(_with_long_offsets(value.type)))
    if pa.types.is_struct(dtype):
        return pa.struct([field.with_type(_with_long_offsets(field.type)) for field in dtype])
    return dtype


def _with_nan(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert whole numbers or truths to float64; texts stay as they are."""
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    if not pa.types.is_integer(column.type):
        return column
    try:
        return column.cast(pa.float64())
    except pa.ArrowInvalid:
        raise InputError(
            "it lacks a value in some rows, which only float64 can show in a tensor, and holds a"
            " whole number that float64 cannot hold",
            remedy=(
                f"leave it out with {setting('columns')}, or use {setting('batch_format', 'arrow')}"
            ),
        ) from None


def _null(count: int, dtype: pa.DataType) -> InputError:
    return InputError(
        f"it holds {count} nulls, which its type {dtype} cannot hold outside Arrow",
        remedy=(
            "fill them or make the column a float when preparing, leave it out with"
            f" {setting('columns')}, or use {setting('batch_format', 'arrow')}"
        ),
    )


def _is_number(dtype: pa.DataType) -> bool:
    return bool(pa.types.is_integer(dtype) or pa.types.is_floating(dtype))


def _is_moment(dtype: pa.DataType) -> bool:
    return bool(
        pa.types.is_date(dtype) or pa.types.is_timestamp(dtype) or pa.types.is_duration(dtype)
    )
