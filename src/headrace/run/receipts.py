"""Read and write the receipts of a run that is being made: they prove that the files of finished
tasks are unchanged.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from headrace.dataset.manifest import CONFIG, INDEX, NOT_VOUCHED, StageReceipts
from headrace.dataset.pointer import SPLITS
from headrace.dataset.receipts import (
    NO_RECEIPT,
    PUBLISH,
    RECEIPTS,
    digest_of_receipts,
    parse_receipt,
    receipt_name,
    receipt_path,
)
from headrace.dataset.receipts import FileRecord as FileRecord
from headrace.dataset.receipts import Receipt as Receipt
from headrace.dataset.vouched import is_leftover, tree_of
from headrace.digest import checksum_file, digest_file, sha256_file, sha256_hex
from headrace.engine.local import run_tasks
from headrace.storage import local


def write_receipt(run: Path, receipt: Receipt) -> None:
    """Publish a receipt; an existing one is replaced. It is not synced before the run is."""
    path = receipt_path(run, receipt.stage, receipt.number)
    local.write_new(path, receipt.to_json(), sync="none")


def read_receipt(run: Path, stage: str, number: int) -> Receipt | None:
    """Return the receipt of a task if it and every file it names are undamaged, else None.

    An invalid receipt is removed, so that the task is done again.
    """
    path = receipt_path(run, stage, number)
    try:
        receipt = parse_receipt(path.read_bytes())
        if (receipt.stage, receipt.number) != (stage, number):
            raise ValueError("it is the receipt of another task")
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


def has_recorded_bytes(run: Path, record: FileRecord) -> bool:
    """Check whether the file of a record has the bytes that were published."""
    path = run / record.path
    if not path.is_file() or path.stat().st_size != record.bytes:
        return False
    if not record.digest:
        return checksum_file(path) == record.checksum
    return sha256_file(path) == record.digest


class Others(NamedTuple):
    """What the tasks of a run have not made.

    shards: of its index, which names them. retained: files of another run, which this one has too.
    links: of its splits.
    """

    shards: Collection[str]
    retained: Collection[FileRecord]
    links: Collection[str]


def vouch_for(
    run: Path,
    stages: Mapping[str, int],
    others: Others,
    workers: int,
) -> dict[str, StageReceipts]:
    """Make the receipts of a run that is about to be published name all its files; return what its
    manifest says of them.

    The files that no task has made get a receipt too. Receipts of other stages are removed. When
    this returns, all receipts are on the disk. stages: executed ones, with the numbers of their
    tasks.
    """
    digests: dict[str, list[str]] = {}
    records = {record.path: record for record in others.retained}
    for stage, tasks in stages.items():
        digests[stage] = []
        for number in range(tasks):
            data = receipt_path(run, stage, number).read_bytes()
            digests[stage].append(sha256_hex(data))
            records |= {record.path: record for record in parse_receipt(data).published_files}
    last = _last_receipt(run, records, others)
    write_receipt(run, last)
    digests[PUBLISH] = [sha256_hex(last.to_json())]
    names = {
        receipt_name(stage, number) for stage in digests for number in range(len(digests[stage]))
    }
    for path in (run / RECEIPTS).iterdir():
        if f"{RECEIPTS}/{path.name}" not in names:
            path.unlink(missing_ok=True)
    run_tasks([partial(local.sync_file, run / name) for name in sorted(names)], workers)
    local.sync_directory(run / RECEIPTS)
    return {
        stage: StageReceipts(tasks=len(stage_digests), digest=digest_of_receipts(stage_digests))
        for stage, stage_digests in digests.items()
    }


def _last_receipt(run: Path, records: Mapping[str, FileRecord], others: Others) -> Receipt:
    """Return the receipt of the files and links that no task has made."""
    tree = tree_of(run)
    same: dict[tuple[int, int], FileRecord] = {}  # a second name has the bytes of the first
    for name in sorted(tree.files & records.keys()):
        stat = os.stat(run / name)
        same.setdefault((stat.st_dev, stat.st_ino), records[name])
    files = {record.path: record for record in others.retained}
    for name in tree.files - records.keys() - set(others.shards) - NOT_VOUCHED - {CONFIG, INDEX}:
        if is_leftover(name) or name.startswith(f"{RECEIPTS}/"):
            continue
        stat = os.stat(run / name)
        first = same.get((stat.st_dev, stat.st_ino))
        if first is not None:
            files[name] = FileRecord(name, first.bytes, first.digest, first.checksum)
        else:
            digest = digest_file(run / name)
            files[name] = FileRecord(name, stat.st_size, digest.sha256, digest.checksum)
    published = {f"{SPLITS}/{name}" for name in others.links}
    links = {}
    for name, text in sorted(tree.links.items()):
        if name not in published and not is_leftover(name):
            links[name] = text
    return Receipt.of(
        PUBLISH,
        0,
        "files that no task made",
        tuple(files[name] for name in sorted(files)),
        {"links": links},
    )
