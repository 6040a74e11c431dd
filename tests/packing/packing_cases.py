"""Lengths to pack, and plain packers to compare with: what the algorithms are by definition, one sequence at a time."""

import numpy as np
from hypothesis import strategies as st


@st.composite
def problems(draw):
    """(lengths, capacity, max_sequences): short lists of any shape, few different lengths as often as many."""
    capacity = draw(st.integers(1, 80))
    longest = draw(st.integers(1, capacity))
    lengths = draw(st.lists(st.integers(1, longest), max_size=120))
    return np.array(lengths, np.int64), capacity, draw(st.none() | st.integers(1, 6))


def lognormal(count, capacity=4096, mean=600.0, seed=0):
    """Lengths as chats have them, clipped to the capacity."""
    drawn = np.random.default_rng(seed).lognormal(np.log(mean) - 0.5, 1.0, count)
    return np.clip(drawn, 4, capacity).astype(np.int64)


def plain_first_fit(order, lengths, capacity, max_sequences=None):
    """Each sequence of `order` into the first bin with room; lists of indices."""
    bins, room = [], []
    for index in order:
        for place, free in enumerate(room):
            if free >= lengths[index] and len(bins[place]) != max_sequences:
                bins[place].append(index)
                room[place] -= lengths[index]
                break
        else:
            bins.append([index])
            room.append(capacity - lengths[index])
    return bins


def plain_best_fit(order, lengths, capacity, max_sequences=None):
    """Each sequence into the fullest bin with room, of equals the one that became so last; lists of indices."""
    bins, room = [], []
    touched = []
    for time, index in enumerate(order):
        fitting = [
            b
            for b, free in enumerate(room)
            if free >= lengths[index] and len(bins[b]) != max_sequences
        ]
        if fitting:
            place = min(fitting, key=lambda b: (room[b], -touched[b]))
        else:
            place = len(bins)
            bins.append([])
            room.append(capacity)
            touched.append(0)
        bins[place].append(index)
        room[place] -= lengths[index]
        touched[place] = time
    return bins


def as_lists(bins):
    return [bins.bin(number).tolist() for number in range(len(bins))]
