"""The identity of a run: what was asked, of which bytes. Pure, but for the stat of the source files."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from headrace.digest import canonical_json, sha256_file, sha256_hex
from headrace.errors import InputError

FORMAT_VERSION = 2
NAMESPACE = uuid.UUID("b6c7d7de-6f0e-5d53-9d0a-0d6c6a4e7a11")

Fingerprint = Literal["stat", "content"]


def fingerprint(files: Sequence[tuple[Path, str]], how: Fingerprint = "stat") -> str:
    """A digest of the source: per file its relative name and size, and its mtime ("stat") or SHA-256 ("content")."""
    parts: list[list[Any]] = []
    for path, name in files:
        try:
            stat = path.stat()
        except FileNotFoundError as error:
            raise InputError(f"{path}: no such file; check the source") from error
        parts.append([name, stat.st_size, sha256_file(path) if how == "content" else stat.st_mtime_ns])
    return sha256_hex(canonical_json(parts))


def run_id(recipe: str, settings: Mapping[str, Any], source_fingerprint: str) -> str:
    """UUIDv5 of the SHA-256 of (recipe, every setting that can change a byte, source fingerprint, format version)."""
    text = canonical_json([recipe, dict(settings), source_fingerprint, FORMAT_VERSION])
    return str(uuid.uuid5(NAMESPACE, hashlib.sha256(text).hexdigest()))
