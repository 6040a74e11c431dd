"""Check arrays for what numpy and Python ask of them: buffers that hold whole numbers, and valid
texts.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

_TEXTS = {pa.string(): 4, pa.binary(): 4, pa.large_string(): 8, pa.large_binary(): 8}
_VIEWS = (pa.string_view(), pa.binary_view())
_UNKNOWN = 0
_OFFSETS = {pa.string(): "<i4", pa.large_string(): "<i8"}
_ASCII = 128


def is_whole(array: pa.Array) -> bool:
    """Return whether each buffer of an array holds a whole number of its values or offsets."""
    if pa.types.is_primitive(array.type):
        values = array.buffers()[1]
        return values is None or values.size % max(1, array.type.bit_width // 8) == 0
    for buffer, width in zip(array.buffers(), _widths(array.type), strict=False):
        if width == _UNKNOWN:
            break
        if buffer is not None and buffer.size % width:
            return False
    return not pa.types.is_dictionary(array.type) or is_whole(array.dictionary)


def is_ascii(array: pa.Array) -> bool:
    """Return whether an array of texts is valid because all are ASCII and lie in order inside their
    buffer. That is seen many times faster than each text is validated.

    array: with buffers of the right sizes, as `validate` sees to. False if it has no texts.
    """
    dtype = _OFFSETS.get(array.type)
    if dtype is None or not len(array):
        return False
    _, positions, data = array.buffers()
    if positions is None or data is None:
        return False
    offsets = np.frombuffer(positions, dtype, array.offset + len(array) + 1)[array.offset :]
    if offsets[0] < 0 or offsets[-1] > data.size or (offsets[1:] < offsets[:-1]).any():
        return False
    used = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]
    return bool(used.max(initial=0) < _ASCII)


def _widths(type_: pa.DataType) -> Iterator[int]:
    """Yield the bytes of an element of each buffer, in Arrow's order.

    1: any size will do. `_UNKNOWN`: Arrow alone knows the number and order of further buffers.
    """
    yield 1  # bits of validity
    if type_ in _TEXTS:
        yield _TEXTS[type_]
        yield 1
    elif type_ in _VIEWS:
        yield 16
        yield _UNKNOWN
    elif pa.types.is_primitive(type_) or pa.types.is_decimal(type_):
        yield max(1, type_.bit_width // 8)
    elif pa.types.is_dictionary(type_):
        yield type_.index_type.bit_width // 8
    else:
        yield from _widths_of_nested(type_)


def _widths_of_nested(type_: pa.DataType) -> Iterator[int]:
    if pa.types.is_list(type_):
        yield 4
    elif pa.types.is_large_list(type_):
        yield 8
    elif not pa.types.is_struct(type_) and not pa.types.is_fixed_size_list(type_):
        yield _UNKNOWN
    for number in range(type_.num_fields):
        yield from _widths(type_.field(number).type)
