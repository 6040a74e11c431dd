"""The settings of a stream, checked when built."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, get_args

from headrace.errors import SettingsError
from headrace.stream.share import Remainder

BatchFormat = Literal["torch", "numpy", "arrow"]

VALID = "valid"


class StreamArguments(TypedDict, total=False):
    """The options of a stream beside its batch size, for functions that pass them on; see `StreamOptions`."""

    shuffle: bool
    seed: int
    shuffle_rows: int | None
    lanes: int | None
    remainder: Remainder | None
    columns: Sequence[str] | None
    batch_format: BatchFormat
    prefetch_bytes: int
    prefetch_blocks: int
    read_threads: int
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """How a split is streamed.

    batch_size: rows in a batch of one rank (of one worker, where there are workers).
    shuffle, seed: a keyed order of rows, the same on every machine; without shuffle, files in order.
    shuffle_rows: rows a consumer shuffles among at a time, over all its lanes; None: 262144, or as many as a quarter of
        memory_bytes holds.
    lanes: logical readers, which decide the order; None: chosen from the first topology. Set it to get one order on
        different world sizes from the start; a resumed stream keeps the lanes of its state in any case.
    remainder: "pad" fills the last step with rows that are false in batch["valid"]; "drop" leaves out less than one
        global batch; "exact" gives one consumer a shorter last batch. None: "exact" for one consumer, else "pad".
    columns: which to read, in this order; None: all.
    batch_format: "torch" tensors, "numpy" arrays or an "arrow" table.
    prefetch_bytes, prefetch_blocks: bounds of what is decoded ahead; read_threads: threads that decode.
    memory_bytes: what the open blocks of a consumer may take when lanes are chosen.
    """

    batch_size: int
    shuffle: bool = False
    seed: int = 0
    shuffle_rows: int | None = None
    lanes: int | None = None
    remainder: Remainder | None = None
    columns: Sequence[str] | None = None
    batch_format: BatchFormat = "torch"
    prefetch_bytes: int = 1 << 28
    prefetch_blocks: int = 256
    read_threads: int = 4
    memory_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        for name in ("batch_size", "read_threads", "memory_bytes"):
            _at_least(1, name, getattr(self, name))
        for name in ("shuffle_rows", "lanes"):
            if getattr(self, name) is not None:
                _at_least(1, name, getattr(self, name))
        for name in ("prefetch_bytes", "prefetch_blocks"):
            _at_least(0, name, getattr(self, name))
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise SettingsError(f"seed is {self.seed!r}; expected an integer")
        if not isinstance(self.shuffle, bool):
            raise SettingsError(f"shuffle is {self.shuffle!r}; expected True or False")
        if self.remainder is not None:
            _one_of(get_args(Remainder), "remainder", self.remainder)
        _one_of(get_args(BatchFormat), "batch_format", self.batch_format)
        if self.columns is not None:
            object.__setattr__(self, "columns", _column_names(self.columns))

    def check_columns(self, available: list[str], remainder: Remainder) -> tuple[str, ...]:
        """The columns to read, in order. Raises `SettingsError` for unknown ones and for a name the batch needs."""
        columns = tuple(available if self.columns is None else self.columns)
        unknown = [name for name in columns if name not in available]
        if unknown:
            raise SettingsError(f"columns {unknown} are not in the dataset; it has {available}")
        if remainder == "pad" and VALID in columns:
            raise SettingsError(
                f'a column is named "{VALID}", and remainder="pad" puts its mask of real rows there;'
                f' leave it out with columns=, rename it when preparing, or use remainder="drop"'
            )
        return columns


def _column_names(columns: Any) -> tuple[str, ...]:
    if isinstance(columns, str):
        raise SettingsError(f'columns is the text {columns!r}; pass a list of names, e.g. ["{columns}"]')
    names = tuple(columns)
    if not names or not all(isinstance(name, str) for name in names):
        raise SettingsError(f"columns is {columns!r}; expected at least one column name, all of them text")
    if len(set(names)) < len(names):
        raise SettingsError(f"columns names a column twice: {list(names)}; name each once")
    return names


def _at_least(least: int, name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise SettingsError(f"{name} is {value!r}; expected an integer of {least} or more")


def _one_of(choices: tuple[str, ...], name: str, value: Any) -> None:
    if value not in choices:
        raise SettingsError(f"{name} is {value!r}; expected one of {', '.join(choices)}")
