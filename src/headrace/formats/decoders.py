"""Choose who decodes a column of Parquet: Polars where its values are equal and it is safe and
faster, else pyarrow.

Polars reads the types of `_EQUAL` bit for bit as pyarrow does, which a law tests. Others are read
by pyarrow: lists (slower in Polars), structs, maps, extension types, times of day and units that
Polars widens, dictionaries.

It is safe where the bytes of a file were verified. A flipped bit in other files can end the
process: Polars reserves the memory that levels and lengths claim, and Rust aborts where there is
none. pyarrow raises. So such files are read by Polars only if the setting asks for it.

It is faster for the types of `_SAVED_NS`, in files as headrace writes them: plain, LZ4, and
nullable only if there are nulls. There pyarrow takes 0.85 of Polars' processor time for numbers
without nulls, and 0.7 for texts. A call of Polars costs as much as pyarrow needs for some 100,000
numbers, and loading it as much as 400 calls.

The threads of Polars do not survive a fork. A child that was forked after its parent had loaded
Polars reads with pyarrow, whatever is set.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Literal

import numpy as np
import pyarrow as pa

from headrace.arrays import I64

Decoder = Literal["auto", "pyarrow", "polars"]

_CALL_NS = 350_000.0
_LOAD_NS = 150_000_000.0
_NULLABLE_NS = 2.5  # that a nullable number or time saves
# by Arrow's type id
_NUMBERS = frozenset(
    type_.id
    for type_ in (
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
        *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.float32(), pa.float64(), pa.timestamp("us"), pa.duration("us"), pa.date32()),
    )
)
_SAVED_NS = {pa.bool_().id: 4.0, pa.float16().id: 10.0, pa.decimal128(1).id: 20.0}
_EQUAL = _NUMBERS | _SAVED_NS.keys() | {pa.string().id, pa.binary().id}


def polars_reads(type_: pa.DataType) -> bool:
    """Check whether Polars reads values of a type as pyarrow does."""
    if isinstance(type_, pa.BaseExtensionType) or type_.id not in _EQUAL:
        return False
    has_unit = pa.types.is_timestamp(type_) or pa.types.is_duration(type_)
    return not (has_unit and type_.unit == "s")


def saved_ns(field: pa.Field) -> float:
    """Return the nanoseconds of processor time that Polars saves for a value of a column."""
    if not polars_reads(field.type):
        return 0.0
    if field.nullable and field.type.id in _NUMBERS:
        return _NULLABLE_NS
    return _SAVED_NS.get(field.type.id, 0.0)


def pays(ns_of_row: float, rows: int) -> bool:
    """Check whether a block of so many rows saves more than a call of Polars costs."""
    return ns_of_row * rows > _CALL_NS


def faster(schema: pa.Schema) -> list[str]:
    """Return the names of columns that "auto" takes Polars for, if their bytes are verified."""
    return [field.name for field in schema if saved_ns(field)]


def decoder_of_split(decoder: Decoder, fields: Iterable[pa.Field], rows: I64) -> Decoder:
    """Return what reads the blocks of a split: "auto" becomes "pyarrow" unless loading Polars pays
    within an epoch.

    rows: of each block.
    """
    if decoder != "auto":
        return decoder
    ns_of_row = sum(map(saved_ns, fields))
    if np.maximum(ns_of_row * rows - _CALL_NS, 0).sum() > _LOAD_NS:
        return "auto"
    return "pyarrow"


def may_use_polars() -> bool:
    """Check that this process was not forked from one that had loaded Polars."""
    return not _forked_with_polars


_forked_with_polars = False


def _after_fork() -> None:
    global _forked_with_polars
    _forked_with_polars = _forked_with_polars or "polars" in sys.modules


os.register_at_fork(after_in_child=_after_fork)
