"""What a packed row must be, and the first one that is not."""

from __future__ import annotations

import numpy as np

from headrace.bins.rows import PackedRows


def first_fault(rows: PackedRows) -> tuple[int, str] | None:
    """The first bin that no reader can use as it is, and what is wrong with it; None if all are sound.

    Sound: at least one token, the first start 0, starts strictly increasing, the last one before the end of the bin.
    """
    sizes, counts = np.diff(rows.token_offsets), np.diff(rows.start_offsets)
    bad = (sizes == 0) | (counts == 0)
    owner = np.repeat(np.arange(len(rows)), counts)
    first = np.zeros(len(rows.starts), np.bool_)
    first[rows.start_offsets[:-1][counts > 0]] = True
    step = np.diff(rows.starts.astype(np.int64), prepend=0)
    wrong = np.where(first, rows.starts != 0, step <= 0) | (rows.starts >= sizes[owner])
    bad[owner[wrong]] = True
    if not bad.any():
        return None
    number = int(bad.argmax())
    starts = rows.starts[rows.start_offsets[number] : rows.start_offsets[number + 1]]
    shown = starts[:8].tolist()
    problem = (
        f"{sizes[number]} tokens and sequence starts {shown}{' …' if len(starts) > 8 else ''}; "
        f"starts must be 0 first, then rise, and stay below the number of tokens"
    )
    return number, problem
