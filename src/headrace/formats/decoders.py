"""Choose who decodes a column of Parquet: Polars where it is faster and its values are equal, else
pyarrow.

A type has a rate here if Polars reads it bit for bit as pyarrow does, which a law tests: the
processor time that a value saves, measured with random numbers, as `pyarrow.parquet` writes them,
on one core. Others are read by pyarrow: lists (slower in Polars), structs, maps, extension types,
times of day and units that Polars widens, dictionaries. A call of Polars costs as much as pyarrow
needs for some 100,000 numbers, so it is made where a block's columns save more than that. Loading
Polars pays for splits whose blocks save more in one epoch.

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
# by Arrow's type id, in nanoseconds
_SAVED_NS = {
    pa.bool_().id: 4.0,
    pa.int8().id: 0.2,
    pa.int16().id: 0.2,
    pa.int32().id: 0.2,
    pa.int64().id: 1.0,
    pa.uint8().id: 0.2,
    pa.uint16().id: 0.2,
    pa.uint32().id: 0.2,
    pa.uint64().id: 1.0,
    pa.float16().id: 10.0,
    pa.float32().id: 1.5,
    pa.float64().id: 2.5,
    pa.string().id: 7.0,
    pa.binary().id: 7.0,
    pa.date32().id: 0.5,
    pa.timestamp("us").id: 1.5,
    pa.duration("us").id: 1.5,
    pa.decimal128(1).id: 20.0,
}
_forked_with_polars = False


def saved_ns(type_: pa.DataType) -> float:
    """Return the time that Polars saves for a value of a type; 0 if pyarrow must read it."""
    if isinstance(type_, pa.BaseExtensionType):
        return 0.0
    if type_.id in (pa.timestamp("s").id, pa.duration("s").id) and type_.unit == "s":
        return 0.0
    return _SAVED_NS.get(type_.id, 0.0)


def pays(ns_of_row: float, rows: int) -> bool:
    """Check whether a block with this many rows saves more than a call of Polars costs."""
    return ns_of_row * rows > _CALL_NS


def decoder_of_split(decoder: Decoder, types: Iterable[pa.DataType], rows: I64) -> Decoder:
    """Return what blocks of a split are read by: "auto" only if loading Polars pays.

    types: of the columns. rows: of each block.
    """
    if decoder != "auto":
        return decoder
    ns_of_row = sum(map(saved_ns, types))
    if np.maximum(ns_of_row * rows - _CALL_NS, 0).sum() > _LOAD_NS:
        return "auto"
    return "pyarrow"


def may_use_polars() -> bool:
    """Check that this process was not forked from one that had loaded Polars."""
    return not _forked_with_polars


def _after_fork() -> None:
    global _forked_with_polars
    _forked_with_polars = _forked_with_polars or "polars" in sys.modules


os.register_at_fork(after_in_child=_after_fork)
