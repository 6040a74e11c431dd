"""Random rows for tests of the codec."""

from dataclasses import dataclass

import numpy as np
from history_reference import encode_latencies

from headrace.histories import IdKind
from headrace.histories.codec.addresses import Addresses
from headrace.histories.codec.rows import Measurements


@dataclass(frozen=True)
class Sizes:
    """How large random rows are: measurements of each, peers of each family, seconds between measurements."""

    counts: list[int]
    peers4: int
    peers6: int
    step: int = 300


def random_rows(rng: np.random.Generator, sizes: Sizes, kind: IdKind = "address") -> Measurements:
    """Rows with these sizes; without peers where there are none to choose from."""
    starts = np.concatenate([[0], np.cumsum(sizes.counts)])[:-1].astype(np.int64)
    total = sum(sizes.counts)
    times = np.concatenate(
        [
            rng.integers(-(1 << 32), 1 << 32) + np.cumsum(rng.integers(0, sizes.step, count))
            for count in sizes.counts
        ]
    ).astype(np.int64)
    peers = sizes.peers4 + sizes.peers6
    return Measurements(
        times=times,
        codes=encode_latencies(rng.integers(0, 1 << 30, total), rng.random(total) < 0.1).codes,
        peer=rng.integers(0, peers, total) if peers else None,
        peers=random_addresses(rng, sizes.peers4, sizes.peers6),
        starts=starts,
        entity=random_addresses(rng, len(starts), 0)
        if kind == "number"
        else random_addresses(rng, len(starts) // 2, len(starts) - len(starts) // 2),
        entity_kind=kind,
        part=rng.integers(0, 9, len(starts)),
    )


def random_addresses(rng: np.random.Generator, four: int, six: int) -> Addresses:
    """Distinct ones, ascending by family and bytes."""
    data = np.zeros((four + six, 16), np.uint8)
    data[:four, :4] = (
        np.sort(rng.permutation(max(four, 1) * 7)[:four])
        .astype(">u4")
        .view(np.uint8)
        .reshape(-1, 4)
    )
    data[four:, 8:] = (
        np.sort(rng.permutation(max(six, 1) * 7)[:six]).astype(">u8").view(np.uint8).reshape(-1, 8)
    )
    data[four:, 0] = 0x20
    return Addresses(np.repeat(np.array([4, 6], np.uint8), [four, six]), data)
