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
from headrace.run.source_state import SourceState
from headrace.storage.places import parallel_reads, place_of

NAMESPACE = uuid.UUID("b6c7d7de-6f0e-5d53-9d0a-0d6c6a4e7a11")

Fingerprint = Literal["stat", "content"]


def fingerprint(files: Sequence[tuple[Path, str]], how: Fingerprint = "stat") -> str:
    """A digest of the source: per file its relative name and size, and its mtime ("stat") or SHA-256 ("content").

    Of an object in a store its tag stands in the place of the mtime.
    """
    return fingerprint_of(files, SourceState.of([path for path, _ in files]), how)


def fingerprint_of(files: Sequence[tuple[Path, str]], state: SourceState, how: Fingerprint) -> str:
    """The same of files that have been looked at."""
    told = _sha256s(files) if how == "content" else [place_of(path).version(state.facts[path]) for path, _ in files]
    parts = [[name, state.facts[path].size, each] for (path, name), each in zip(files, told, strict=True)]
    return sha256_hex(canonical_json(parts))


def _sha256s(files: Sequence[tuple[Path, str]]) -> list[str]:
    return run_tasks([partial(sha256_file, path) for path, _ in files], parallel_reads(path for path, _ in files))


def run_id(recipe: str, settings: Mapping[str, Any], source_fingerprint: str) -> str:
    """UUIDv5 of the SHA-256 of (recipe, every setting that can change a byte, source fingerprint, format version)."""
    text = canonical_json([recipe, dict(settings), source_fingerprint, FORMAT_VERSION])
    return str(uuid.uuid5(NAMESPACE, hashlib.sha256(text).hexdigest()))
