"""Define receipts: the records of finished tasks, which name the files of a run and their digests.

A run has one file per receipt, `receipts/<stage>-<number>.json`. The stage "publish" has one, which
names the files that no task made: second names of shards, and files beside them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.digest import canonical_json, sha256_hex

RECEIPTS = "receipts"
STAGE_DIRECTORY = "stage"  # of intermediate files, below the run
PUBLISH = "publish"
# raised for bytes that are not a receipt
NO_RECEIPT = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


@dataclass(frozen=True)
class FileRecord:
    """A published file of a task: path relative to the run directory.

    digest: SHA-256; "" for an intermediate file, which only its checksum verifies.
    """

    path: str
    bytes: int
    digest: str
    checksum: str


@dataclass(frozen=True)
class Receipt:
    """A finished task, and the files it made.

    rows_in: read by the task. rows_by_split, dropped_by_reason: where these rows went, if the task
    decided it; the tasks that fill them count every row of the source once. extra: JSON that
    belongs to the recipe.
    """

    stage: str
    number: int
    subject: str
    files: tuple[FileRecord, ...]
    rows_in: int
    rows_by_split: dict[str, int]
    dropped_by_reason: dict[str, int]
    extra: dict[str, Any]

    @classmethod
    def of(
        cls,
        stage: str,
        number: int,
        subject: str,
        files: tuple[FileRecord, ...],
        result: dict[str, Any],
    ) -> Receipt:
        """Make the receipt of a task that returned this result."""
        extra = dict(result)
        rows_in = int(extra.pop("rows_in", 0))
        rows_by_split = extra.pop("rows_by_split", {})
        dropped_by_reason = extra.pop("dropped_by_reason", {})
        return cls(stage, number, subject, files, rows_in, rows_by_split, dropped_by_reason, extra)

    def to_json(self) -> bytes:
        """Return the bytes of the receipt's file: canonical JSON with a digest of the rest."""
        # asdict would copy a large result
        return _sealed({**vars(self), "files": [vars(file) for file in self.files]})

    @property
    def published_files(self) -> tuple[FileRecord, ...]:
        """The files that stay when the run is finished: not those of the stage directory."""
        stage = f"{STAGE_DIRECTORY}/"
        return tuple(file for file in self.files if not file.path.startswith(stage))


def receipt_name(stage: str, number: int) -> str:
    """Return the name of a receipt's file, relative to the run directory."""
    return f"{RECEIPTS}/{stage}-{number:05d}.json"


def receipt_path(run: Path, stage: str, number: int) -> Path:
    """Return the path of a task's receipt."""
    return run / receipt_name(stage, number)


def parse_receipt(data: bytes) -> Receipt:
    """Parse a receipt from the bytes of a file.

    Raises one of `NO_RECEIPT` unless they are exactly as they were written.
    """
    record = json.loads(data)
    del record["digest"]
    if _sealed(record) != data:
        raise ValueError("the receipt is damaged")
    files = tuple(FileRecord(**file) for file in record.pop("files"))
    return Receipt(files=files, **record)


def digest_of_receipts(digests: Iterable[str]) -> str:
    """Digest the SHA-256 of the receipts of a stage, in the order of its tasks."""
    return sha256_hex(canonical_json(list(digests)))


def _sealed(record: dict[str, Any]) -> bytes:
    return canonical_json({**record, "digest": sha256_hex(canonical_json(record))})
