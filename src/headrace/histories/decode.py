"""Shards back into measurements, one by one: for people, other programs and tests. Python work per measurement."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headrace.histories.codec.addresses import Addresses, render
from headrace.histories.codec.latency import FAILED, decode
from headrace.histories.codec.rows import decode_row
from headrace.histories.shard_file import read_blobs


@dataclass(frozen=True)
class Measurement:
    """One measurement. event_time: epoch seconds; rtt: ms, None where it failed; dst_addr: None without peers."""

    src_addr: str
    dst_addr: str | None
    event_time: int
    rtt: float | None
    part: int


def decode_shard(path: Path) -> Iterator[Measurement]:
    """The measurements of a shard in its order. Raises `CorruptShard`, `MissingExtra`. O(one row) of memory."""
    for place, blob in enumerate(read_blobs(path)):
        row = decode_row(blob, f"{path}: row {place + 1}")
        entity = Addresses(np.array([row.entity_family], np.uint8), row.entity_bytes.reshape(1, 16))
        (name,) = render(entity, row.entity_kind)
        peers: list[str | None] = [None]
        peers[1:] = render(Addresses(row.peer_family, row.peer_bytes), row.peer_kind)
        of_peer = [0] * row.n if row.peers is None else (row.peers.astype(np.int64) + 1).tolist()
        for time, code, micros, peer in zip(
            row.times.tolist(), row.codes.tolist(), decode(row.codes).tolist(), of_peer, strict=True
        ):
            yield Measurement(name, peers[peer], time, None if code == FAILED else micros / 1000, row.part)
