"""Which sequences of each dataset go into which split, and why the others go nowhere. Pure.

Per blend with ratios, rows are split as `assign.split_units` says: each dataset for itself, or with a conversation key
all datasets together, so that no key is in two splits whichever datasets it is in. In a blend per split the split is
given; there a key that is in a later split too (test, then valid) is left out of the earlier ones. Then the mix of
weights thins every split.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from headrace.arrays import I64, U8
from headrace.digest import derive_key, hash_words
from headrace.packing.assign import (
    SPLITS,
    TEST,
    TRAIN,
    VALID,
    Split,
    split_units,
    thinned,
)
from headrace.packing.origins import Origins

NOWHERE = 255
KEY_IN_TEST, KEY_IN_VALID, WEIGHT = "key_in_test", "key_in_valid", "weight"
REASONS = (KEY_IN_TEST, KEY_IN_VALID, WEIGHT)


@dataclass(frozen=True)
class Candidate:
    """One dataset of the blend, tokenised. split: where a blend per split puts it, else None."""

    name: str
    split: Split | None
    weight: float
    origins: Origins


@dataclass
class Loss:
    """What is not taken: rows that have nothing in the output, and sequences, tokens and labels."""

    rows: int = 0
    sequences: int = 0
    tokens: int = 0
    labels: int = 0

    def add(self, other: Loss) -> None:
        """Count another loss too."""
        self.rows += other.rows
        self.sequences += other.sequences
        self.tokens += other.tokens
        self.labels += other.labels


@dataclass(frozen=True)
class Choice:
    """The split of every sequence of every dataset (`NOWHERE` for none), what is left out and why, units per split.

    units: one record per independent draw: what was drawn, how many units each split got.
    """

    splits: Sequence[U8]
    left_out: Mapping[str, Loss]
    units: Sequence[tuple[str, Mapping[Split, int]]] = field(default_factory=tuple)


def choose(candidates: Sequence[Candidate], *, ratios: Mapping[Split, float], keyed: bool, seed: int) -> Choice:
    """The split of every sequence. Sequences of one row are never apart. See the module."""
    firsts = [candidate.origins.first_of_row for candidate in candidates]
    losses = {reason: Loss() for reason in REASONS}
    if candidates and candidates[0].split is not None:
        sides = [
            np.full(len(first), SPLITS.index(candidate.split or "train"), np.uint8)
            for candidate, first in zip(candidates, firsts, strict=True)
        ]
        if keyed:
            _keep_keys_apart(candidates, firsts, sides, losses)
        units: list[tuple[str, Mapping[Split, int]]] = []
    else:
        sides, units = _drawn(candidates, firsts, ratios, keyed=keyed)
    for number in (TRAIN, VALID, TEST):
        _thin(candidates, firsts, sides, number, seed, losses)
    spread = [
        np.repeat(side, _row_sizes(first, len(candidate.origins)))
        for candidate, first, side in zip(candidates, firsts, sides, strict=True)
    ]
    return Choice(spread, losses, units)


def _row_sizes(first: I64, sequences: int) -> I64:
    return np.diff(np.append(first, sequences))


def _drawn(
    candidates: Sequence[Candidate], firsts: Sequence[I64], ratios: Mapping[Split, float], *, keyed: bool
) -> tuple[list[U8], list[tuple[str, Mapping[Split, int]]]]:
    high = [each.origins.unit_high[first] for each, first in zip(candidates, firsts, strict=True)]
    low = [each.origins.unit_low[first] for each, first in zip(candidates, firsts, strict=True)]
    if keyed:
        side, counts = split_units(np.concatenate(high), np.concatenate(low), ratios, "conversation keys of the blend")
        ends = np.cumsum([len(first) for first in firsts])[:-1]
        return list(np.split(side, ends)), [("keys", counts)]
    sides: list[U8] = []
    units: list[tuple[str, Mapping[Split, int]]] = []
    for candidate, one, other in zip(candidates, high, low, strict=True):
        side, counts = split_units(one, other, ratios, f"rows of {candidate.name}")
        sides.append(side)
        units.append((candidate.name, counts))
    return sides, units


def _keep_keys_apart(
    candidates: Sequence[Candidate], firsts: Sequence[I64], sides: Sequence[U8], losses: Mapping[str, Loss]
) -> None:
    """Test keeps its keys, valid those that are not in test, train the rest."""
    units = [_pairs(each.origins, first) for each, first in zip(candidates, firsts, strict=True)]
    for keeper, reason, others in ((TEST, KEY_IN_TEST, (VALID, TRAIN)), (VALID, KEY_IN_VALID, (TRAIN,))):
        kept = [unit[side == keeper] for unit, side in zip(units, sides, strict=True)]
        held = np.unique(np.concatenate(kept)) if kept else np.empty(0, units[0].dtype)
        for candidate, first, unit, side in zip(candidates, firsts, units, sides, strict=True):
            doomed = np.isin(side, others) & np.isin(unit, held)
            losses[reason].add(_loss(candidate.origins, first, doomed))
            side[doomed] = NOWHERE


def _pairs(origins: Origins, first: I64) -> npt.NDArray[np.bytes_]:
    """128-bit units as values that numpy can sort and compare: 16 bytes each."""
    pairs = np.empty((len(first), 2), ">u8")
    pairs[:, 0], pairs[:, 1] = origins.unit_high[first], origins.unit_low[first]
    return pairs.view("S16").reshape(-1)


def _thin(
    candidates: Sequence[Candidate],
    firsts: Sequence[I64],
    sides: Sequence[U8],
    number: int,
    seed: int,
    losses: Mapping[str, Loss],
) -> None:
    rows = [np.flatnonzero(side == number) for side in sides]
    here = [place for place, own in enumerate(rows) if len(own)]
    if not here:
        return
    tokens, orders = [], []
    for place in here:
        origins, first = candidates[place].origins, firsts[place]
        tokens.append(np.add.reduceat(origins.lengths, first)[rows[place]])
        orders.append(_order(origins, first[rows[place]], seed))
    masks = thinned([candidates[place].weight for place in here], tokens, orders)
    for place, mask in zip(here, masks, strict=True):
        doomed = np.zeros(len(sides[place]), np.bool_)
        doomed[rows[place][~mask]] = True
        losses[WEIGHT].add(_loss(candidates[place].origins, firsts[place], doomed))
        sides[place][doomed] = NOWHERE


def _order(origins: Origins, firsts: I64, seed: int) -> npt.NDArray[np.uint64]:
    """In which order rows are taken into a mix: a keyed hash of what they are, not of where they were found."""
    words = np.empty((len(firsts), 2), np.uint64)
    words[:, 0] = origins.unit_low[firsts]
    words[:, 1] = origins.row[firsts].astype(np.uint64) ^ (origins.file[firsts].astype(np.uint64) << np.uint64(40))
    return hash_words(derive_key(seed, "packed_sequences.weight"), words)[0]


def _loss(origins: Origins, first: I64, doomed: npt.NDArray[np.bool_]) -> Loss:
    lost = np.repeat(doomed, _row_sizes(first, len(origins)))
    return Loss(int(doomed.sum()), int(lost.sum()), int(origins.lengths[lost].sum()), int(origins.labels[lost].sum()))
