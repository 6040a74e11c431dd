"""Read fields of flatbuffers, the metadata of Arrow files.

Reading outside the bytes raises `pa.ArrowInvalid`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


@dataclass(frozen=True, slots=True)
class FlatTable:
    """A table at a position in some bytes, whose fields are numbered from 0."""

    data: bytes
    at: int

    def number(self, field: int, form: str) -> int:
        """Return a scalar field, 0 if the table lacks it. form: as of `struct`."""
        at = self._find(field)
        return _number(form, self.data, at) if at else 0

    def has(self, field: int) -> bool:
        """Return whether the table has a field."""
        return bool(self._find(field))

    def table(self, field: int) -> FlatTable:
        """Return a field that is a table."""
        at = self._find(field)
        if not at:
            raise pa.ArrowInvalid("its metadata lack a part")
        return FlatTable(self.data, at + _number("<I", self.data, at))

    def structs(self, field: int, dtype: np.dtype[Any]) -> npt.NDArray[np.void]:
        """Return a vector of structs, none if the table lacks it."""
        at = self._find(field)
        if not at:
            return np.empty(0, dtype)
        vector = at + _number("<I", self.data, at)
        count = _number("<I", self.data, vector)
        if vector + 4 + count * dtype.itemsize > len(self.data):
            raise pa.ArrowInvalid("its metadata are damaged: a list ends outside them")
        return np.frombuffer(self.data, dtype, count, vector + 4)

    def _find(self, field: int) -> int:
        """Return the position of a field, 0 if the table lacks it."""
        fields = self.at - _number("<i", self.data, self.at)
        entry = 4 + 2 * field
        if entry >= _number("<H", self.data, fields):
            return 0
        offset = _number("<H", self.data, fields + entry)
        return self.at + offset if offset else 0


def root_table(data: bytes) -> FlatTable:
    """Return the table that a flatbuffer is."""
    return FlatTable(data, _number("<I", data, 0))


def _number(form: str, data: bytes, at: int) -> int:
    # `unpack_from` counts a negative position from the end
    if not 0 <= at <= len(data) - struct.calcsize(form):
        raise pa.ArrowInvalid("its metadata are damaged: they end early")
    return int(struct.unpack_from(form, data, at)[0])
