"""Read and write receipts: records of finished tasks that prove that their files are unchanged."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.digest import canonical_json, checksum_file, sha256_file, sha256_hex
from headrace.storage import local

STAGE_DIRECTORY = "stage"  # of intermediate files, below the run
# raised for bytes that are not a receipt
NO_RECEIPT = (ValueError, KeyError, TypeError, AttributeError)


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


def receipt_path(run: Path, stage: str, number: int) -> Path:
    """Return the path of a task's receipt."""
    return run / "receipts" / f"{stage}-{number:05d}.json"


def write_receipt(run: Path, receipt: Receipt) -> None:
    """Publish a receipt; an existing one is kept."""
    # asdict would copy a large result
    record = {**vars(receipt), "files": [vars(file) for file in receipt.files]}
    data = canonical_json({**record, "digest": sha256_hex(canonical_json(record))})
    local.write_new(receipt_path(run, receipt.stage, receipt.number), data, sync="none")


def read_receipt(run: Path, stage: str, number: int) -> Receipt | None:
    """Return the receipt of a task if it and every file it names are undamaged, else None.

    An invalid receipt is removed, so that the task is done again.
    """
    path = receipt_path(run, stage, number)
    try:
        receipt = parse_receipt(path.read_bytes())
    except FileNotFoundError:
        return None
    except NO_RECEIPT:
        path.unlink(missing_ok=True)
        return None
    broken = [file for file in receipt.files if not has_recorded_bytes(run, file)]
    if not broken:
        return receipt
    path.unlink(missing_ok=True)
    for file in broken:
        (run / file.path).unlink(missing_ok=True)
    return None


def parse_receipt(data: bytes) -> Receipt:
    """Parse a receipt from the bytes of a file. Raises one of `NO_RECEIPT` if it is invalid."""
    record = json.loads(data)
    if record.pop("digest") != sha256_hex(canonical_json(record)):
        raise ValueError("the receipt is damaged")
    files = tuple(FileRecord(**file) for file in record.pop("files"))
    return Receipt(files=files, **record)


def has_recorded_bytes(run: Path, record: FileRecord) -> bool:
    """Check whether the file of a record has the bytes that were published."""
    path = run / record.path
    if not path.is_file() or path.stat().st_size != record.bytes:
        return False
    if not record.digest:
        return checksum_file(path) == record.checksum
    return sha256_file(path) == record.digest
