"""The settings of contexts, checked when built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from headrace.checks import check_integer, check_word
from headrace.histories.contexts.tokeniser import DEFAULT, Tokeniser

Weighting = Literal["uniform", "measurements"]
Shuffle = Literal["contexts", "rows", "none"]
Keys = Literal["maxtext", "four"]
ARRAYS: dict[Keys, tuple[str, ...]] = {
    "maxtext": (
        *("inputs", "inputs_position", "inputs_segmentation"),
        *("targets", "targets_position", "targets_segmentation"),
    ),
    "four": ("inputs", "targets", "segmentation", "positions"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextOptions:
    """Choose how contexts are made from rows, and their layout.

    context_tokens: L, the tokens of a context, at least 64 so that any measurement fits. L + 1 are
    drawn, so that every position has a target.
    seed: seed of everything random.
    rows: how many contexts per epoch come from a row that is larger than a context. "uniform":
    min(⌈n / measurements_per_context⌉, contexts_per_row). "measurements": ⌈n /
    measurements_per_context⌉, so that long histories weigh in proportion to their length. Smaller
    rows come once, with all their measurements.
    shuffle: "contexts", all at random; "rows", rows at random and the contexts of one row one after
    another, which reads each row once; "none".
    keys: "maxtext", six arrays; "four", those of the specification.
    max_segments: most rows that share a context, because some attention kernels have a limit; None:
    as many as fit. cache_bytes: limit on the bytes of rows that stay open, per process.
    tokeniser: what of a measurement becomes tokens.

    Raises `SettingsError` when built with invalid values.
    """

    context_tokens: int = 1024
    seed: int = 0
    rows: Weighting = "uniform"
    measurements_per_context: int = 30
    contexts_per_row: int = 16
    shuffle: Shuffle = "contexts"
    keys: Keys = "maxtext"
    max_segments: int | None = None
    cache_bytes: int = 1 << 27
    tokeniser: Tokeniser = DEFAULT

    def __post_init__(self) -> None:
        check_integer("contexts: context_tokens", self.context_tokens, least=64)
        check_integer("contexts: seed", self.seed)
        check_word("contexts: rows", self.rows, get_args(Weighting))
        check_integer("contexts: measurements_per_context", self.measurements_per_context, least=1)
        check_integer("contexts: contexts_per_row", self.contexts_per_row, least=1)
        check_word("contexts: shuffle", self.shuffle, get_args(Shuffle))
        check_word("contexts: keys", self.keys, get_args(Keys))
        if self.max_segments is not None:
            check_integer("contexts: max_segments", self.max_segments, least=1)
        check_integer("contexts: cache_bytes", self.cache_bytes, least=0)

    @property
    def room(self) -> int:
        """The number of tokens drawn for a context, L + 1."""
        return self.context_tokens + 1

    @property
    def context_bytes(self) -> int:
        """The size in bytes of the arrays of one context, int32 each."""
        return len(ARRAYS[self.keys]) * 4 * self.context_tokens
