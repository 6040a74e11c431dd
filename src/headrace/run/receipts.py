"""Receipts: the record of one finished task, and the proof that its files are still what it made."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.digest import canonical_json, checksum_file, sha256_file, sha256_hex
from headrace.storage import local


@dataclass(frozen=True)
class FileRecord:
    """One published file of a task: path relative to the run directory.

    digest: SHA-256; "" for an intermediate file that its checksum tells alone.
    """

    path: str
    bytes: int
    digest: str
    checksum: str


@dataclass(frozen=True)
class Receipt:
    """What a task read, made and found out. `result` is JSON and belongs to the recipe."""

    stage: str
    number: int
    subject: str
    files: tuple[FileRecord, ...]
    result: dict[str, Any]


def receipt_path(run: Path, stage: str, number: int) -> Path:
    """Where the receipt of a task lies."""
    return run / "receipts" / f"{stage}-{number:05d}.json"


def write_receipt(run: Path, receipt: Receipt) -> None:
    """Publish a receipt; one that is there already is kept."""
    record = {**vars(receipt), "files": [vars(each) for each in receipt.files]}  # asdict would copy a large result
    data = canonical_json({**record, "digest": sha256_hex(canonical_json(record))})
    local.write_new(receipt_path(run, receipt.stage, receipt.number), data, sync="none")


def read_receipt(run: Path, stage: str, number: int) -> Receipt | None:
    """The receipt of a task if there is one and it is undamaged, as every file it names is; else None.

    A receipt that no longer holds is removed, so that the task is done again.
    """
    path = receipt_path(run, stage, number)
    try:
        receipt = _parsed(path)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError):
        path.unlink(missing_ok=True)
        return None
    if all(_holds(run, each) for each in receipt.files):
        return receipt
    path.unlink(missing_ok=True)
    for each in receipt.files:
        if not _holds(run, each):
            (run / each.path).unlink(missing_ok=True)
    return None


def peek_receipt(run: Path, stage: str, number: int) -> Receipt | None:
    """The receipt of a task if it is undamaged and its files have their sizes. Reads no file and removes nothing."""
    try:
        receipt = _parsed(receipt_path(run, stage, number))
        if all((run / each.path).stat().st_size == each.bytes for each in receipt.files):
            return receipt
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return None


def receipts_of(run: Path, stage: str) -> set[int]:
    """The numbers of the tasks of a stage that have a receipt, whole or not."""
    names = (name.removesuffix(".json").rpartition("-") for name in os.listdir(run / "receipts"))
    return {int(number) for own, _, number in names if own == stage}


def _parsed(path: Path) -> Receipt:
    return parse_receipt(path.read_bytes())


def parse_receipt(data: bytes) -> Receipt:
    """The receipt in a file's bytes. Raises `ValueError`, `KeyError`, `TypeError` or `AttributeError` if it is none."""
    record = json.loads(data)
    if record.pop("digest") != sha256_hex(canonical_json(record)):
        raise ValueError("the receipt is damaged")
    files = tuple(FileRecord(**each) for each in record["files"])
    return Receipt(record["stage"], record["number"], record["subject"], files, record["result"])


def _holds(run: Path, record: FileRecord) -> bool:
    path = run / record.path
    return path.is_file() and path.stat().st_size == record.bytes and is_as_recorded(path, record)


def is_as_recorded(path: Path, record: FileRecord) -> bool:
    """Whether the bytes of a file are those that were published."""
    if not record.digest:
        return checksum_file(path) == record.checksum
    return sha256_file(path) == record.digest
