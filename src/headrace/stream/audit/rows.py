"""Count what a loader really delivers: each key once, nothing missing, equal steps on every rank.

`audit` wraps any iterable of batches, from headrace or another library, and yields them unchanged.
Keys are kept as 64-bit numbers (8 bytes per row): whole numbers, dates and floats as their bits,
texts as keyed 64-bit hashes. Under torch.distributed the report gathers all ranks' keys on every
rank, so all reach the same verdict. It is a collective call that every rank must make.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.arrays import I64, concatenated, distinct
from headrace.digest import derive_key
from headrace.errors import InputError, SettingsError, setting
from headrace.formats.types import is_text
from headrace.keyed_hash import hash_texts
from headrace.stream.loader.options import VALID
from headrace.stream.ranks.topology import gather

_TEXT_KEY = derive_key(0, "audit key")
_EXAMPLES = 10
_ANOTHER_KEY = f"pass another {setting('key')}"


@dataclass(frozen=True, kw_only=True)
class AuditReport:
    """Counts of what was delivered over all ranks.

    rows: delivered, without filling rows. duplicates: rows beyond the first of their key.
    missing: expected keys that were not delivered; None if nothing was expected.
    unexpected: delivered keys that were not expected; None if nothing was expected.
    examples: up to ten keys that were delivered more than once, if keys are whole numbers.
    """

    rows: int
    distinct: int
    duplicates: int
    missing: int | None
    unexpected: int | None
    batches_per_rank: tuple[int, ...]
    examples: tuple[int, ...]

    @property
    def batches(self) -> int:
        """Batches over all ranks."""
        return sum(self.batches_per_rank)

    @property
    def equal_steps(self) -> bool:
        """True if all ranks received the same number of batches."""
        return len(set(self.batches_per_rank)) <= 1

    @property
    def ok(self) -> bool:
        """True if every key came once, none is missing or unexpected, and steps are equal."""
        return not (self.duplicates or self.missing or self.unexpected) and self.equal_steps


class Audit:
    """A loader whose batches are counted as they pass; a new iteration restarts the count.

    Created by `audit`.
    """

    def __init__(self, loader: Iterable[Any], key: str | int, expected: Any) -> None:
        self.loader = loader
        self._key = key
        self._expected = expected
        self._keys: list[I64] = []
        self._batches = 0
        self._exact = True

    def __len__(self) -> int:
        """Return the loader's number of batches. Raises `TypeError` if the loader has no length."""
        return len(self.loader)  # type: ignore[arg-type]  # its TypeError is intended

    def __iter__(self) -> Iterator[Any]:
        """Yield the loader's batches unchanged.

        Raises `InputError` at a batch whose keys cannot be read.
        """
        self._keys = []
        self._batches = 0
        for batch in self.loader:
            column, valid = _column(batch, self._key)
            keys, exact = _as_int64(
                column, {"path": f"audit: batch {self._batches}", "column": str(self._key)}
            )
            self._keys.append(keys if valid is None else keys[valid])
            self._exact &= exact
            self._batches += 1
            yield batch

    def report(self) -> AuditReport:
        """Return the verdict on the last pass, the same on every rank.

        Collective under torch.distributed: call it on all ranks.
        """
        all_keys = concatenated(self._keys, np.int64)
        parts = gather((self._batches, all_keys, self._exact))
        keys = np.sort(np.concatenate([part[1] for part in parts]))
        different, counts = np.unique(keys, return_counts=True)
        missing = unexpected = None
        if isinstance(self._expected, int):
            missing = max(0, self._expected - len(different))
            unexpected = max(0, len(different) - self._expected)
        elif self._expected is not None:
            expected = distinct(_as_int64(self._expected, {"setting": "expected"})[0])
            missing = len(np.setdiff1d(expected, different, assume_unique=True))
            unexpected = len(np.setdiff1d(different, expected, assume_unique=True))
        exact = all(part[2] for part in parts)
        return AuditReport(
            rows=len(keys),
            distinct=len(different),
            duplicates=len(keys) - len(different),
            missing=missing,
            unexpected=unexpected,
            batches_per_rank=tuple(part[0] for part in parts),
            examples=tuple(different[counts > 1][:_EXAMPLES].tolist()) if exact else (),
        )


def audit(loader: Iterable[Any], *, key: str | int = "id", expected: Any = None) -> Audit:
    """Wrap a loader to count what it delivers: iterate over the result, then call its `report()`.

    loader: any iterable of batches: dicts of tensors, arrays or lists, Arrow tables, lists of rows
    as dicts, or tuples. key: the column that identifies rows, or its index in tuples. If a batch
    has batch["valid"], it marks the real rows. expected: the number of keys there should be, or the
    keys themselves.
    Raises `InputError` at a batch without the key, or with a key that is null or not a single
    value.
    """
    if isinstance(expected, bool) or (isinstance(expected, int) and expected < 0):
        raise SettingsError(
            setting="expected", value=expected, remedy="give the number of rows, or their keys"
        )
    return Audit(loader, key, expected)


def _column(batch: Any, key: str | int) -> tuple[Any, npt.NDArray[np.bool_] | None]:
    """Return the key column of a batch, and its mask of real rows."""
    if isinstance(batch, pa.Table | pa.RecordBatch | Mapping):
        if isinstance(batch, Mapping):
            names = list(batch)
        else:
            names = batch.schema.names
        if key not in names:
            raise InputError(
                f"a batch lacks it, and has {names}",
                path="audit",
                column=str(key),
                remedy=_ANOTHER_KEY,
            )
        return batch[key], _mask(batch[VALID]) if VALID in names else None
    if (
        isinstance(batch, list)
        and isinstance(key, str)
        and all(isinstance(row, Mapping) for row in batch)
    ):
        lacking = next((row for row in batch if key not in row), None)
        if lacking is not None:
            raise InputError(
                f"a row lacks it, and has {list(lacking)}",
                path="audit",
                column=key,
                remedy=_ANOTHER_KEY,
            )
        masked = bool(batch) and all(VALID in row for row in batch)
        return [row[key] for row in batch], _mask([row[VALID] for row in batch]) if masked else None
    if isinstance(batch, tuple | list) and isinstance(key, int):
        if not -len(batch) <= key < len(batch):
            raise InputError(
                f"a batch has {len(batch)} parts",
                setting="key",
                value=key,
                remedy="pass the index of the key column",
            )
        return batch[key], None
    raise InputError(
        f"a batch is a {type(batch).__name__}",
        setting="key",
        value=key,
        remedy="give dicts or Arrow tables and a column name, or tuples and the index of the key",
    )


def _mask(values: Any) -> npt.NDArray[np.bool_] | None:
    """Return the mask as booleans; None if the column of that name holds other values, and so is
    not a mask.
    """
    array = np.asarray(values)
    if array.dtype == np.bool_:
        return array
    return None


def _as_int64(values: Any, location: Mapping[str, Any]) -> tuple[I64, bool]:
    """Convert keys to 64-bit numbers, equal for equal keys; also return whether the numbers are the
    keys themselves.

    location: fields of the error for values that cannot be keys.
    """
    column = _as_arrow(values, location)
    dtype = column.type
    if pa.types.is_null(dtype) and not len(column):
        return np.empty(0, np.int64), True
    nulls = len(column) if pa.types.is_null(dtype) else column.null_count
    if nulls:
        raise InputError(
            f"{nulls} nulls, which do not identify rows", **location, remedy=_ANOTHER_KEY
        )
    if is_text(dtype) or pa.types.is_binary(dtype) or pa.types.is_large_binary(dtype):
        return hash_texts(_TEXT_KEY, column)[0].view(np.int64), False
    array = np.asarray(column)
    if array.dtype.kind in "iub":
        return array.astype(np.int64), array.dtype != np.uint64
    if array.dtype.kind in "mM":
        return array.view(np.int64), False
    if array.dtype.kind != "f":
        raise InputError(
            f"its type is {dtype}, but a key is a number, a time or a text",
            **location,
            remedy=_ANOTHER_KEY,
        )
    if np.isnan(array).any():
        raise InputError(
            f"{int(np.isnan(array).sum())} NaN, which do not identify rows",
            **location,
            remedy=_ANOTHER_KEY,
        )
    return (array.astype(np.float64) + 0.0).view(np.int64), False


def _as_arrow(values: Any, location: Mapping[str, Any]) -> pa.Array | pa.ChunkedArray:
    """Return keys as plain Arrow values, without a dictionary."""
    if not isinstance(values, pa.Array | pa.ChunkedArray):
        if not isinstance(values, list | tuple):
            values = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
            if values.ndim != 1:
                raise InputError(
                    f"it has {values.ndim} axes, a key is one value a row",
                    **location,
                    remedy=_ANOTHER_KEY,
                )
        try:
            values = pa.array(values)
        except (pa.ArrowException, OverflowError) as error:
            raise InputError(
                f"it holds values that cannot be keys ({error})", **location, remedy=_ANOTHER_KEY
            ) from error
    while pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    return values
