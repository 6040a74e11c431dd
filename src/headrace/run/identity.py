"""The identity of a run: what was asked, of which bytes. Pure, but for the stat of the source files."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from headrace.dataset.manifest import FORMAT_VERSION as FORMAT_VERSION
from headrace.digest import canonical_json, sha256_file, sha256_hex
from headrace.engine.local import run_tasks
from headrace.errors import InputError
from headrace.storage.remote_path import RemotePath
from headrace.storage.verbs import stat

_STORE_THREADS = 32  # each waits for an answer
NAMESPACE = uuid.UUID("b6c7d7de-6f0e-5d53-9d0a-0d6c6a4e7a11")

Fingerprint = Literal["stat", "content"]


def fingerprint(files: Sequence[tuple[Path, str]], how: Fingerprint = "stat") -> str:
    """A digest of the source: per file its relative name and size, and its mtime ("stat") or SHA-256 ("content").

    Of an object in a store its tag stands in the place of the mtime.
    """
    parts: list[list[Any]] = []
    remote = any(isinstance(path, RemotePath) for path, _ in files)
    facts = run_tasks([partial(_fact_of, path, how) for path, _ in files], _STORE_THREADS if remote else 1)
    for (_, name), fact in zip(files, facts, strict=True):
        parts.append([name, *fact])
    return sha256_hex(canonical_json(parts))


def _fact_of(path: Path, how: Fingerprint) -> tuple[int, int | str]:
    try:
        fact = stat(path)
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file; check the source") from error
    if how == "content":
        return fact.size, sha256_file(path)
    return fact.size, fact.etag if isinstance(path, RemotePath) else fact.mtime_ns


def run_id(recipe: str, settings: Mapping[str, Any], source_fingerprint: str) -> str:
    """UUIDv5 of the SHA-256 of (recipe, every setting that can change a byte, source fingerprint, format version)."""
    text = canonical_json([recipe, dict(settings), source_fingerprint, FORMAT_VERSION])
    return str(uuid.uuid5(NAMESPACE, hashlib.sha256(text).hexdigest()))
