"""Canonical JSON and its strict reading, digests and the keys of hashes. Pure.

This module loads no data libraries, because a command that reuses a finished run needs nothing else
of them.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import xxhash


def canonical_json(value: Any) -> bytes:
    """Serialize a JSON value in its one canonical form: sorted keys, no spaces, UTF-8.

    Raises `ValueError` on NaN.
    """
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


class RepeatedKey(ValueError):
    """An object repeats a key."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the key {key!r} appears twice in an object")
        self.key = key


def no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object from pairs, as an `object_pairs_hook` of `json`. Raises `RepeatedKey`."""
    record = dict(pairs)
    if len(record) != len(pairs):
        names = [key for key, _ in pairs]
        raise RepeatedKey(next(key for index, key in enumerate(names) if key in names[:index]))
    return record


def refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not a JSON number")


DECODER = json.JSONDecoder(object_pairs_hook=no_repeats, parse_constant=refuse_constant)


def loads(text: str | bytes) -> Any:
    """Parse JSON without repeated keys, NaN and Infinity. Raises `ValueError`."""
    return json.loads(text, object_pairs_hook=no_repeats, parse_constant=refuse_constant)


def sha256_hex(data: bytes | memoryview) -> str:
    """Return the SHA-256 of bytes in memory, as 64 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file, as 64 hexadecimal digits, in O(1) memory."""
    # file_digest reads 256 KiB at a time, which stay in the cache
    with path.open("rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class FileDigest:
    """Both digests of a file, updated piece by piece: SHA-256 for trust, XXH3-128 for fast checks
    on reading.
    """

    def __init__(self) -> None:
        self._sha256, self._xxh3 = hashlib.sha256(), xxhash.xxh3_128()

    def update(self, data: bytes | memoryview) -> None:
        """Add the next bytes of the file."""
        self._sha256.update(data)
        self._xxh3.update(data)

    @property
    def sha256(self) -> str:
        """Return the SHA-256, as 64 hexadecimal digits."""
        return self._sha256.hexdigest()

    @property
    def checksum(self) -> str:
        """Return the XXH3-128, as 32 hexadecimal digits."""
        return self._xxh3.hexdigest()


def checksum_file(path: Path) -> str:
    """Return the XXH3-128 of a file, as 32 hexadecimal digits, in O(1) memory.

    It detects damage by storage and networks, ten times faster than SHA-256. It does not protect
    against an attacker. The file is read rather than mapped, because a mapped file that is
    truncated meanwhile kills the process.
    """
    with path.open("rb", buffering=0) as file:
        return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()


def checksum_bytes(data: memoryview) -> str:
    """Return the XXH3-128 of the content of a file; see `checksum_file`."""
    return xxhash.xxh3_128(data).hexdigest()


def digest_file(path: Path) -> FileDigest:
    """Compute both digests of a file in one pass, in O(1) memory."""
    digest = FileDigest()
    both: Any = digest  # typed as a digest of hashlib, of which only `update` is called
    with path.open("rb", buffering=0) as file:
        hashlib.file_digest(file, lambda: both)
    return digest


def derive_key(seed: int, purpose: str, *parts: int) -> tuple[int, int]:
    """Derive a 128-bit key, as two 64-bit halves, for one purpose under one seed.

    `parts` refine the purpose (epoch, lane, window). Different purposes give unrelated keys.
    """
    text = canonical_json([seed, purpose, *parts])
    digest = hashlib.blake2b(text, digest_size=16).digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")
