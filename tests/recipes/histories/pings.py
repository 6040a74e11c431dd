"""Small sources of measurements, and what their histories must be, computed one measurement at a time."""

import ipaddress
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.histories.config import Histories
from headrace.histories.measurements import decode_shard
from headrace.histories.shard_file import Blobs, read_blobs
from headrace.run.prepare import Prepared, prepare

SPLITS = ("train", "test")


@dataclass(frozen=True)
class Ping:
    """A row of a source; time in microseconds."""

    src_addr: str
    dst_addr: str
    event_time: int
    rtt: float | None


@dataclass(frozen=True)
class Measurement:
    """A measurement of a shard; event_time in seconds, rtt in ms, None if it failed."""

    src_addr: str
    dst_addr: str | None
    event_time: int
    rtt: float | None
    part: int


def random_pings(
    seed: int, count: int, *, entities: int = 20, peers: int = 9, span_s: int = 5000
) -> list[Ping]:
    """In no order, with ties in time, doubles, failures of all kinds, and entities of very different sizes."""
    rng = random.Random(seed)
    sources = [_address(rng) for _ in range(entities)]
    targets = [_address(rng) for _ in range(peers)]
    pings = [
        Ping(
            sources[min(int(rng.expovariate(0.3)), entities - 1)],
            rng.choice(targets),
            1_700_000_000_000_000
            + rng.randrange(span_s) * 1_000_000
            + rng.choice([0, 0, 5, 999_999]),
            rng.choice(
                [None, float("nan"), -1.0, 0.0, round(rng.uniform(0, 400), 3), rng.uniform(0, 1e6)]
            ),
        )
        for _ in range(count)
    ]
    pings += rng.choices(pings, k=count // 20)
    rng.shuffle(pings)
    return pings


def _address(rng: random.Random) -> str:
    if rng.random() < 0.5:
        return str(ipaddress.IPv4Address(rng.getrandbits(32)))
    return str(ipaddress.IPv6Address(rng.getrandbits(128)))


def write_pings(directory: Path, shards: Sequence[Sequence[Ping]]) -> Path:
    """A Parquet file per shard."""
    directory.mkdir(parents=True)
    for number, pings in enumerate(shards):
        columns: dict[str, Any] = {
            "rtt": pa.array([ping.rtt for ping in pings], pa.float64()),
            "src_addr": pa.array([ping.src_addr for ping in pings], pa.string()),
            "event_time": pa.array([ping.event_time for ping in pings], pa.timestamp("us", "UTC")),
            "dst_addr": pa.array([ping.dst_addr for ping in pings], pa.string()),
        }
        pq.write_table(
            pa.table(columns), directory / f"part-{number:05d}.parquet", row_group_size=1000
        )
    return directory


def dealt(pings: Sequence[Ping], shards: int) -> list[list[Ping]]:
    """The pings over so many shards."""
    return [list(pings[number::shards]) for number in range(shards)]


def histories(source: Path, out: Path, *, workers: int = 1, **settings: Any) -> Prepared:
    """The run of `Histories` with peers."""
    return prepare(
        Histories(
            source=source, **{"peer": "dst_addr", "partitions": 3, "train_ratio": 0.6, **settings}
        ),
        out,
        workers=workers,
    )


def shards_of(prepared: Prepared) -> dict[str, bytes]:
    """Every shard of the run, and `rows.parquet`."""
    files = [*sorted((prepared.run / "histories").rglob("part-*")), prepared.run / "rows.parquet"]
    return {path.relative_to(prepared.run).as_posix(): path.read_bytes() for path in files}


def decoded(prepared: Prepared) -> dict[str, list[Measurement]]:
    """The measurements of each split, in order."""
    return {
        split: [
            Measurement(**each)
            for path in sorted((prepared.run / "histories" / split).glob("part-*"))
            for each in decode_shard(path)
        ]
        for split in SPLITS
    }


def blobs_of(path: Path) -> list[bytes]:
    """The rows of a shard, as they are stored."""
    return [blob for piece in read_blobs(path) for blob in blobs_in(piece)]


def blobs_in(piece: Blobs) -> list[bytes]:
    """The rows of a piece, as they are stored."""
    return [row.tobytes() for row in np.split(piece.data, np.cumsum(piece.sizes)[:-1])]


def rounded_ms(rtt: float | None) -> float | None:
    """The latency that is stored: 11 bits of whole microseconds, by arithmetic of its own."""
    if rtt is None or not rtt >= 0:
        return None
    micros = max(1, round(rtt * 1000))
    step = 1
    while (micros + step // 2) // step >= 2048:
        step *= 2
    return (micros + step // 2) // step * step / 1000


def expected_measurements(pings: Sequence[Ping]) -> list[dict[str, Any]]:
    """What the histories must hold, without order and parts."""
    return [
        {
            "src_addr": ping.src_addr,
            "dst_addr": ping.dst_addr,
            "event_time": ping.event_time // 1_000_000,
            "rtt": rounded_ms(ping.rtt),
        }
        for ping in pings
    ]


def without_part(measurements: Sequence[Measurement]) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in asdict(each).items() if name != "part"}
        for each in measurements
    ]


def in_order(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(records, key=lambda each: [str(value) for value in each.values()])
