"""Contexts as a plain Python loop makes them: one measurement after another, lists of tokens. The same rules.

The arrays of a batch are then made of the lists by numpy, all contexts at once: a loop over tokens would be slower.
"""

from __future__ import annotations

import math
import random

import numpy as np

from headrace.arrays import I32
from headrace.histories.codec.rows import RowColumns


def plain_context(row: RowColumns, generator: random.Random, room: int) -> list[int]:
    """One context of a large row: window, random subset by real token lengths, mode, fields shuffled."""
    assert row.peers is not None
    source = bytes(row.entity_bytes[: 4 if row.entity_family == 4 else 16])
    low = min(row.n, room // (2 * len(source) + 4) + 1)
    window = int(math.exp(math.log(low) + generator.random() * (math.log(row.n) - math.log(low))))
    begin = generator.randint(0, row.n - window)
    chance = generator.random()
    mode = "full" if chance < 0.4 else "partial" if chance < 0.7 else "none"
    fraction = generator.uniform(0.1, 0.9)
    chosen: list[tuple[int, bool]] = []
    total = (
        0 if mode == "none" else 4
    )  # the first timestamp is absolute, and 4 tokens longer than those counted below
    for index in generator.sample(range(begin, begin + window), min(window, low)):
        stamped = mode == "full" or (mode == "partial" and generator.random() >= fraction)
        destination = 17 if row.peer_family[row.peers[index]] == 6 else 5
        size = (
            2 + len(source) + destination + (3 if row.codes[index] else 1) + (5 if stamped else 0)
        )
        if total + size > room:
            break
        chosen.append((index, stamped))
        total += size
    timed = sorted(each for each in chosen if each[1])
    untimed = [each for each in chosen if not each[1]]
    places = set(generator.sample(range(len(chosen)), len(untimed)))
    tokens: list[int] = []
    previous = None
    for place in range(len(chosen)):
        index, stamped = untimed.pop() if place in places else timed.pop(0)
        tokens += measurement(row, source, index, previous, stamped, generator)
        if stamped:
            previous = int(row.offsets[index])
    return tokens[:room] + [0] * (room - len(tokens))


def plain_arrays(texts: list[list[int]]) -> dict[str, I32]:
    """The six arrays that MaxText names, int32 [B, room - 1], of contexts of one segment each."""
    drawn = np.array(texts, np.int32)
    inputs, following = drawn[:, :-1], drawn[:, 1:]
    segment = (inputs > 0).astype(np.int32)
    position = np.arange(inputs.shape[1], dtype=np.int32) * segment
    return {
        "inputs": np.ascontiguousarray(inputs),
        "inputs_position": position,
        "inputs_segmentation": segment,
        "targets": np.ascontiguousarray(following),
        "targets_position": position.copy(),
        "targets_segmentation": (following > 0).astype(np.int32),
    }


def measurement(
    row: RowColumns,
    source: bytes,
    index: int,
    previous: int | None,
    stamped: bool,
    generator: random.Random | None = None,
) -> list[int]:
    """The tokens of one measurement."""
    assert row.peers is not None
    peer = int(row.peers[index])
    family = int(row.peer_family[peer])
    destination = bytes(row.peer_bytes[peer, : 4 if family == 4 else 16])
    code = int(row.codes[index])
    fields = [
        [2 if len(source) == 4 else 3, *(12 + each for each in source)],
        [4 if family == 4 else 5, *(12 + each for each in destination)],
        [9, 12 + (code >> 8), 12 + (code & 255)] if code else [11],
    ]
    if stamped:
        now = int(row.offsets[index])
        if previous is None:
            fields.append([6, *(12 + each for each in (row.first_time + now).to_bytes(8, "big"))])
        elif now - previous < 256:
            fields.append([7, 12 + now - previous])
        else:
            fields.append([8, *(12 + each for each in (now - previous).to_bytes(4, "big"))])
    if generator is not None:
        generator.shuffle(fields)
    return [1, *(token for field in fields for token in field)]
