"""Positions of a run into contexts: the one place where index, rows and token builders meet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import NamedTuple, Protocol

import numpy as np

from headrace.arrays import I32, I64
from headrace.errors import CorruptShard, MissingExtra
from headrace.histories.codec.rows import RowColumns
from headrace.histories.contexts.batch import batch_of
from headrace.histories.contexts.index import ContextIndex
from headrace.histories.contexts.options import ContextOptions, Keys
from headrace.histories.contexts.sample import IN_NUMPY, Candidates, Sampling, Segments, candidates
from headrace.histories.contexts.small import SmallFacts, may_be_small
from headrace.histories.contexts.tokens import Kernel, Tokens, tokens_in_numpy
from headrace.histories.contexts.vocabulary import Vocabulary

Builder = Callable[[Segments, Candidates, int, int], Tokens]


class Batcher(Protocol):
    """`batch_of`, or the same compiled."""

    def __call__(self, tokens: Tokens, segments: Segments, *, vocab: Vocabulary, keys: Keys) -> dict[str, I32]: ...


class Rows(Protocol):
    """The rows of a split by number, 0..R-1."""

    split: str

    @property
    def identity(self) -> str:
        """A word that changes whenever the rows may."""

    @property
    def n(self) -> I64:
        """Measurements of each row; int64 [R]."""

    def open(self, numbers: Sequence[int]) -> Mapping[int, RowColumns]:
        """These rows, each once. Raises `CorruptShard` for those that cannot be read."""

    def facts(self, numbers: Sequence[int]) -> I64:
        """The columns of `SmallFacts` of these rows; int64 [len(numbers), 5]."""


class Built:
    """What one batch was made of, and its tokens."""

    __slots__ = ("candidates", "segments", "tokens")

    def __init__(self, segments: Segments, found: Candidates, tokens: Tokens) -> None:
        self.segments, self.candidates, self.tokens = segments, found, tokens


def index_rows(rows: Rows, options: ContextOptions) -> ContextIndex:
    """The contexts that an epoch of these rows has. Rows that may be small are read once, some at a time."""
    maybe = np.flatnonzero(may_be_small(rows.n, options.room))
    facts = np.zeros((len(maybe), 5), np.int64)
    for begin in range(0, len(maybe), _ROWS_AT_A_TIME):
        numbers = maybe[begin : begin + _ROWS_AT_A_TIME].tolist()
        facts[begin : begin + len(numbers)] = rows.facts(numbers)
    is_small = facts[:, 1] <= options.room
    small = np.zeros(len(rows.n), bool)
    small[maybe[is_small]] = True
    return ContextIndex(rows.n, small, SmallFacts(*facts[is_small].T), options)


_ROWS_AT_A_TIME = 1024


class Kernels(NamedTuple):
    """Every step that there is in numpy and compiled, alike to the bit."""

    sampling: Sampling
    tokens: Builder
    batch: Batcher


@cache
def chosen_kernels(kernel: Kernel) -> Kernels:
    """Those of numba or numpy. Raises `MissingExtra` if numba is asked for and not there."""
    if kernel != "numpy":
        try:
            from headrace.histories.contexts.kernels import IN_NUMBA
        except MissingExtra:
            if kernel == "numba":
                raise
        else:
            return Kernels(*IN_NUMBA)
    return Kernels(IN_NUMPY, tokens_in_numpy, batch_of)


def build(index: ContextIndex, rows: Rows, positions: I64) -> Built:
    """The contexts at these positions of an endless run; each row is opened once, whatever the number of contexts.

    Raises `CorruptShard` if a row is not what it was when the index was made.
    """
    kernels = chosen_kernels(index.options.kernel)
    segments = index.segments(*index.at(positions, kernels.sampling), kernels.sampling)
    opened = rows.open(np.unique(segments.row).tolist())
    found = candidates(segments, opened, index.options.room, kernels.sampling)
    tokens = kernels.tokens(segments, found, len(positions), index.options.room)
    lost = ~segments.sampled & (tokens.taken != segments.count)
    if lost.any():
        row = int(segments.row[lost.argmax()])
        raise CorruptShard(f"row {row} of the split is longer than it was when it was indexed; open the run again")
    return Built(segments, found, tokens)
