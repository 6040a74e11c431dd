"""The settings of contexts, checked when built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from headrace.checks import check_integer, check_word
from headrace.histories.contexts.vocabulary import Vocabulary

Weighting = Literal["uniform", "measurements"]
Shuffle = Literal["contexts", "rows", "none"]
Keys = Literal["maxtext", "four"]
Kernel = Literal["auto", "numba", "numpy"]
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

    context_tokens: L, the tokens of a context, at least 64 so that any measurement fits. L + 1 are drawn, so that every
    position has a target.
    seed: seed of everything random.
    rows: how many contexts per epoch come from a row that is larger than a context. "uniform": min(⌈n /
    measurements_per_context⌉, contexts_per_row). "measurements": ⌈n / measurements_per_context⌉, so that long histories
    weigh in proportion to their length. Smaller rows come once, with all their measurements.
    shuffle: "contexts", all at random; "rows", rows at random and the contexts of one row one after another, which
    reads each row once; "none".
    vocab: "standard", or "compat" with its 267 ids.
    keys: "maxtext", six arrays; "four", those of the specification.
    max_segments: most rows that share a context, because some attention kernels have a limit; None: as many as fit.
    kernel: "numba"; "numpy", which compiles nothing and suits a few contexts; or "auto", numba if it is installed. The
    tokens are the same.
    cache_bytes: limit on the bytes of rows kept open, per process.

    Raises `SettingsError` when built with invalid values.
    """

    context_tokens: int = 1024
    seed: int = 0
    rows: Weighting = "uniform"
    measurements_per_context: int = 30
    contexts_per_row: int = 16
    shuffle: Shuffle = "contexts"
    vocab: Vocabulary = "standard"
    keys: Keys = "maxtext"
    max_segments: int | None = None
    kernel: Kernel = "auto"
    cache_bytes: int = 1 << 27

    def __post_init__(self) -> None:
        least = {"context_tokens": 64, "measurements_per_context": 1, "contexts_per_row": 1, "cache_bytes": 0}
        if self.max_segments is not None:
            least["max_segments"] = 1
        for name, lowest in least.items():
            check_integer(f"contexts: {name}", getattr(self, name), least=lowest)
        check_integer("contexts: seed", self.seed)
        kinds = {"rows": Weighting, "shuffle": Shuffle, "vocab": Vocabulary, "keys": Keys, "kernel": Kernel}
        for name, kind in kinds.items():
            check_word(f"contexts: {name}", getattr(self, name), get_args(kind))

    @property
    def room(self) -> int:
        """The number of tokens drawn for a context, L + 1."""
        return self.context_tokens + 1

    @property
    def context_bytes(self) -> int:
        """The size in bytes of the arrays of one context, int32 each."""
        return len(ARRAYS[self.keys]) * 4 * self.context_tokens
