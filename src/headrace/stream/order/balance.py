"""Put rows of equal training cost into the same step. Pure.

All ranks wait for the slowest one in every step. Bins with equal numbers of tokens do not cost the
same: attention is quadratic in each sequence's length, so a bin of one long sequence takes longer
than one of many short ones.

Inside a round, each group sorts its rows by cost and cuts them into runs. A keyed permutation, the
same for all groups, deals the runs to positions, so that all groups have rows of like cost at like
positions. No row leaves its round or group, so a rank reads the same blocks with and without
balance. With one group, a run is a global batch, and steps are balanced for that batch size. With
several, a run is one row, and each step takes the same places of every group.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import isfinite

import numpy as np

from headrace.arrays import F64, I64
from headrace.dataset.index import SplitIndex
from headrace.digest import derive_key
from headrace.errors import SettingsError
from headrace.keyed_hash import permutation
from headrace.stream.order.remaining import count_out

MOST_EVEN_TOKENS = 1 << 40  # attention then costs nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """The floating-point operations of a bin in training: linear · tokens + quadratic · Σ length²
    of its sequences.

    Only their ratio decides the order. The defaults suit a transformer of 8 billion parameters, 32
    layers and width 4,096 (Llama 3 8B). Raises `SettingsError` unless both are finite, linear > 0
    and quadratic >= 0.
    """

    linear: float = 6 * 7.5e9
    quadratic: float = 6 * 32 * 4096

    def __post_init__(self) -> None:
        for name, least in (("linear", "above 0"), ("quadratic", "0 or more")):
            value = getattr(self, name)
            known = isinstance(value, int | float) and not isinstance(value, bool)
            if not known or not isfinite(value) or value < 0 or (name == "linear" and not value):
                raise SettingsError(
                    setting=name,
                    value=value,
                    remedy=f"give a finite number, {least}",
                )
            object.__setattr__(self, name, float(value))

    @classmethod
    def of_transformer(cls, *, parameters: float, layers: int, width: int) -> CostModel:
        """Count the operations of a decoder with causal attention, forward and backward.

        parameters: those that multiply each token, without the embedding table and inactive
        experts. width: heads times head size. Source: 6 operations per parameter and token, and 12
        · layers · width · length for each token's attention (Chowdhery et al. 2022, PaLM, appendix
        B), half of it where a token sees only earlier ones.
        """
        return cls(linear=6.0 * parameters, quadratic=6.0 * layers * width)

    @property
    def even_tokens(self) -> int:
        """Return the length at which attention costs a sequence as much as everything else: linear
        / quadratic.

        Rounded, 1 to 2^40. The order of rows depends on this number alone.
        """
        if self.quadratic:
            even = self.linear / self.quadratic
        else:
            even = MOST_EVEN_TOKENS
        return round(min(max(1.0, even), MOST_EVEN_TOKENS))


@dataclass(frozen=True, kw_only=True)
class CountedIndex(SplitIndex):
    """The blocks of a split with the token counts of each row.

    tokens, squares: the tokens of each row, and the sum of the squared lengths of its sequences;
    int64 [rows].
    """

    tokens: I64
    squares: I64

    @classmethod
    def of(cls, index: SplitIndex, tokens: I64, squares: I64) -> CountedIndex:
        """Add the counts to an index."""
        known = {field.name: getattr(index, field.name) for field in fields(SplitIndex)}
        return cls(**known, tokens=tokens, squares=squares)

    def costs(self, even_tokens: int) -> RowCosts:
        """Compute the cost of every row, in units of one token of a short sequence."""
        return RowCosts(self.first_row, self.tokens + self.squares / even_tokens)


@dataclass(frozen=True, eq=False)
class RowCosts:
    """The cost of each row of an index: float64 [rows].

    first_row: the row at which each block begins, int64 [B].
    """

    first_row: I64
    costs: F64

    def between(self, blocks: I64, starts: I64, stops: I64) -> F64:
        """Return the costs of ranges of rows of blocks, end to end."""
        segment, inside = count_out(stops - starts)
        return np.asarray(self.costs[(self.first_row[blocks] + starts)[segment] + inside])


def balanced(mixed: I64, costs: F64, *, runs: int, run_rows: int, key: tuple[int, int]) -> I64:
    """Reorder the rows of a group's round so that like costs are at like places in all groups;
    int64 [n].

    mixed: a permutation of the rows, which breaks ties. costs: of the rows, [n]. runs: how many
    runs of run_rows rows all groups can fill. key: of the permutation of runs, the same for all
    groups. Rows beyond the runs come last; they are the rows of middling cost, so that steps across
    rounds look like the others.
    """
    spare = len(mixed) - runs * run_rows
    by_cost = mixed[np.argsort(costs[mixed], kind="stable")]
    first = (len(mixed) - spare) // 2
    ranked = np.delete(by_cost, slice(first, first + spare)).reshape(runs, run_rows)
    # a run in the order of `mixed`, not by cost
    inside = np.argsort(np.argsort(mixed)[ranked], axis=1)
    ranked = np.take_along_axis(ranked, inside, axis=1)[permutation(key, runs)]
    return np.concatenate([ranked.ravel(), by_cost[first : first + spare]])


def runs_key(seed: int, epoch: int, round_: int) -> tuple[int, int]:
    """Derive the key that permutes the runs of a round, in every group."""
    return derive_key(seed, "runs of equal cost", epoch, round_)


def step_loads(costs: F64, *, ranks: int, batch_size: int) -> F64:
    """Return the cost of each whole step's slowest rank, and the mean of its ranks: float64 [2,
    steps].

    costs: of rows in the order of their positions, from the start of a step on.
    """
    steps = len(costs) // (ranks * batch_size)
    loads = costs[: steps * ranks * batch_size].reshape(steps, batch_size, ranks).sum(axis=1)
    return np.stack([loads.max(axis=1, initial=0), loads.mean(axis=1)])
