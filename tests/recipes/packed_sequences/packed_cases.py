"""Small spools, and packed rows made of them one token at a time."""

import numpy as np
from hypothesis import strategies as st

from headrace.bins.rows import PackedRows
from headrace.packing.storage.spool import SequenceSpool


def made_spool(lengths, seed=0):
    """Random tokens and masks for sequences of these lengths."""
    rng = np.random.default_rng(seed)
    total = int(np.sum(lengths))
    return SequenceSpool.of_arrays(
        rng.integers(0, 151_936, total), rng.integers(0, 2, total), lengths
    )


@st.composite
def spools(draw):
    """A spool of up to 20 short sequences."""
    lengths = draw(st.lists(st.integers(1, 9), max_size=20))
    return made_spool(np.array(lengths, np.int64), draw(st.integers(0, 5)))


def made_rows(bins=25, seed=0, longest=40):
    """Packed rows of random content that are sound."""
    rng = np.random.default_rng(seed)
    lengths = [rng.integers(1, longest, rng.integers(1, 6)) for _ in range(bins)]
    tokens = np.array([0, *np.cumsum([each.sum() for each in lengths])])
    starts = np.concatenate([np.empty(0, np.int64), *(np.cumsum(each) - each for each in lengths)])
    return PackedRows(
        rng.integers(0, 151_936, tokens[-1]).astype(np.int32),
        rng.integers(0, 2, tokens[-1]).astype(np.uint8),
        starts.astype(np.int32),
        tokens,
        np.array([0, *np.cumsum([len(each) for each in lengths])]),
    )


def as_lists(rows):
    return [tuple(part.tolist() for part in rows.bin(number)) for number in range(len(rows))]


def table_lists(table):
    """A packed Parquet table as the same lists."""
    names = ("input_ids", "loss_mask", "seq_start_id")
    return list(zip(*(table[name].to_pylist() for name in names), strict=True))


def plain_bin(spool, sequences, alignment, pack_size=None):
    """One bin by definition: (ids, mask, starts)."""
    ids, mask, starts = [], [], []
    for sequence in sequences:
        tokens, learned = (part.tolist() for part in spool.read_sequence(int(sequence)))
        room = len(tokens) if pack_size is None else pack_size - len(ids)
        tokens, learned = tokens[:room], learned[:room]
        if not tokens:
            break
        starts.append(len(ids))
        ids += tokens
        mask += [*learned[1:], 0] if alignment == "shift_left" else learned
    if alignment == "legacy_roll_right" and mask:
        mask = [0, *mask[:-1]]
    return ids, mask, starts
