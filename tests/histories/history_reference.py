"""What the compiled steps of histories must give, in plain numpy and Python."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.histories import ID_KINDS
from headrace.histories.codec.addresses import Addresses
from headrace.histories.codec.rows import Measurements
from headrace.histories.codec.values import LARGEST_US


@dataclass(frozen=True)
class Latencies:
    """codes: uint16 [N]; clamped: how many values exceeded `LARGEST_US` and were replaced by it."""

    codes: np.ndarray
    clamped: int


def encode_latencies(microseconds: np.ndarray, failed: np.ndarray) -> Latencies:
    """Encode whole microseconds as exponent << 11 | mantissa, with a mantissa of 1,024 to 2,047 from 2,048 µs on."""
    codes = []
    clamped = 0
    for value, is_failed in zip(microseconds.tolist(), failed.tolist(), strict=True):
        if is_failed:
            codes.append(0)
            continue
        clamped += value > LARGEST_US
        value = max(1, int(min(value, LARGEST_US)))
        exponent = max(0, value.bit_length() - 11)
        mantissa = (value + (1 << exponent >> 1)) >> exponent
        if mantissa == 2048:
            mantissa, exponent = 1024, exponent + 1
        codes.append(exponent << 11 | mantissa)
    return Latencies(np.array(codes, np.uint16), clamped)


def parse_addresses(texts: pa.Array) -> Addresses:
    """Parse texts as the system does, one by one."""
    family, data = [], []
    for text in texts.to_pylist():
        try:
            packed = socket.inet_pton(
                socket.AF_INET6 if ":" in (text or "") else socket.AF_INET, text or ""
            )
        except (OSError, ValueError):
            packed = b""
        family.append({4: 4, 16: 6}.get(len(packed), 0))
        data.append(packed.ljust(16, b"\0"))
    return Addresses(
        np.array(family, np.uint8), np.frombuffer(b"".join(data), np.uint8).reshape(-1, 16)
    )


def measurement_order(
    entity: np.ndarray,
    micros: np.ndarray,
    peer: np.ndarray | None,
    codes: np.ndarray,
    values: np.ndarray | None = None,
) -> np.ndarray:
    """Return indices that sort measurements by entity, time, peer, code and values."""
    columns = [
        entity,
        micros,
        *([] if peer is None else [peer]),
        codes,
        *([] if values is None else values.T),
    ]
    return np.lexsort(columns[::-1])


def encode_rows(rows: Measurements) -> list[bytes]:
    """Encode rows one by one, field by field."""
    ends = np.append(rows.starts[1:], len(rows.times)).tolist()
    blobs = []
    for number, (start, end) in enumerate(zip(rows.starts.tolist(), ends, strict=True)):
        times = rows.times[start:end]
        peers = np.zeros(0, np.int64) if rows.peer is None else np.unique(rows.peer[start:end])
        is_ipv6 = rows.peers.family[peers] == 6
        width = (
            0
            if not len(peers)
            else 1
            if len(peers) <= 1 << 8
            else 2
            if len(peers) <= 1 << 16
            else 4
        )
        body = (times - times[0]).astype("<u4").tobytes() + _padded(
            rows.codes[start:end].astype("<u2").tobytes(), 4
        )
        if rows.peer is not None:
            body += _padded(
                np.searchsorted(peers, rows.peer[start:end]).astype(f"<u{width}").tobytes(), 4
            )
        for peer, is_long in zip(peers.tolist(), is_ipv6.tolist(), strict=True):
            body += rows.peers.bytes[peer, : 16 if is_long else 4].tobytes()
        length = 64 + len(body) + -(64 + len(body)) % 8
        header = struct.pack(
            "<4sHBBIIIIqIBBBB16sQ",
            b"HIST",
            1 if rows.has_latency and "text" not in (rows.entity_kind, rows.peer_kind) else 2,
            ID_KINDS.index(rows.entity_kind),
            int(rows.entity.family[number]),
            end - start,
            int((~is_ipv6).sum()),
            int(is_ipv6.sum()),
            int(rows.part[number]),
            int(times[0]),
            int(times[-1] - times[0]),
            width,
            ID_KINDS.index(rows.peer_kind),
            0,
            not rows.has_latency,
            rows.entity.bytes[number].tobytes(),
            length,
        )
        blobs.append((header + body).ljust(length, b"\0"))
    return blobs


def _padded(data: bytes, multiple: int) -> bytes:
    return data + bytes(-len(data) % multiple)
