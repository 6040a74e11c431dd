"""Publish a run in an object store: made in a local work directory, published file by file.

The work directory holds an ordinary run. When a task that makes output files has finished, its
files are put under their names in the store, if absent, and read back; then its receipt is put. At
the end come the other files, the index, and finally the manifest. So a receipt in the store means
that its files are complete there. A killed run resumes from the receipts of both the store and the
work directory, even in another work directory, and fetches the files that it finds. The store holds
no temporary names. No listing decides whether work is done, and nothing is renamed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from headrace.dataset.manifest import INDEX, MANIFEST, SUCCESS
from headrace.dataset.receipts import (
    NO_RECEIPT,
    PUBLISH,
    RECEIPTS,
    STAGE_DIRECTORY,
    parse_receipt,
    receipt_name,
    receipt_path,
)
from headrace.digest import canonical_json, checksum_file, sha256_hex
from headrace.engine.local import run_tasks
from headrace.errors import StoreError
from headrace.run.receipts import FileRecord, Receipt, write_receipt
from headrace.storage import local
from headrace.storage.places import place_of

_THREADS = 8
_RECEIPTS = f"{RECEIPTS}/"
_STAGE = f"{STAGE_DIRECTORY}/"
_LAST = receipt_name(PUBLISH, 0)  # names files that no task has published


def copy(source: Path, target: Path, checksum: str) -> None:
    """Let the store copy an object, and read the copy back.

    checksum: XXH3-128 of the source. Raises `StoreError` if the copy does not stay or differs.
    """
    place_of(source).alias(target)
    if place_of(target).checksum() != checksum:
        raise StoreError(
            f"is not the copy of {source} that the store says it made",
            path=target,
            remedy="delete it and run again; what was finished is kept",
        )


def publish_task(run: Path, target: Path, receipt: Receipt) -> None:
    """Put a finished task's files into the store, then its receipt.

    Repeating it changes nothing. Another process that finishes the same run removes its stage
    there, possibly between a put and the read that checks it.
    """
    for record in receipt.files:
        try:
            place_of(target / record.path).put_new(run / record.path)
        except StoreError:
            if not (record.path.startswith(_STAGE) and (target / MANIFEST).is_file()):
                raise
    name = receipt_name(receipt.stage, receipt.number)
    place_of(target / name).put_new(run / name)


def publish_earlier(run: Path, target: Path, receipts: Sequence[Receipt], workers: int) -> None:
    """Publish tasks that an earlier attempt finished locally and may not have put into the
    store.
    """
    there = {fact.name for fact in place_of(target / RECEIPTS).files_below()}
    left = []
    for receipt in receipts:
        if receipt_path(run, receipt.stage, receipt.number).name not in there:
            left.append(receipt)
    run_tasks([partial(publish_task, run, target, receipt) for receipt in left], workers)


def adopt(target: Path, run: Path) -> None:
    """Fetch finished tasks of an unfinished run that are in the store but not in this work
    directory.

    Receipts and files are verified later, by their digests; damaged ones are made again.
    """
    there = {fact.name for fact in place_of(target).files_below()}

    def adopt_task(name: str) -> None:
        # Another process may have finished the run and removed its stage.
        with suppress(FileNotFoundError, *NO_RECEIPT):
            receipt = parse_receipt((target / name).read_bytes())
            if all(record.path in there for record in receipt.files):
                for record in receipt.files:
                    _fetch(target, run, record)
                write_receipt(run, receipt)

    missing = []
    for name in sorted(there - {_LAST}):
        if name.startswith(_RECEIPTS) and not (run / name).exists():
            missing.append(name)
    if missing:
        local.make_directory(run / RECEIPTS)
    run_tasks([partial(adopt_task, name) for name in missing], _THREADS)


def _fetch(target: Path, run: Path, record: FileRecord) -> None:
    """Fetch a file unless it is here already."""
    path = run / record.path
    if path.exists():
        return
    local.make_directory(path.parent)
    with local.beside(path) as temporary:
        place_of(target / record.path).fetch(temporary)
        local.publish(temporary, path, sync="none")


def publish_remaining(run: Path, target: Path, published: Callable[[str], None]) -> None:
    """Put the files that no task has put into the store, the index last.

    These are files beside shards, second names and receipts, but not the manifest. published:
    called with each name.
    """
    there = {fact.name for fact in place_of(target).files_below()}
    done: set[str] = set()  # files named by a receipt in the store
    for name in there - {_LAST}:
        if name.startswith(_RECEIPTS) and (run / name).is_file():
            with suppress(*NO_RECEIPT):
                done.update(
                    record.path for record in parse_receipt((run / name).read_bytes()).files
                )
    first: dict[int, str] = {}
    remaining: list[str] = []
    for path in sorted(run.rglob("*")):
        name = path.relative_to(run).as_posix()
        temporary = path.name.startswith(local.TEMP_PREFIX)
        if path.is_symlink() or not path.is_file() or temporary or name.startswith((_STAGE, ".")):
            continue
        if name in (MANIFEST, INDEX, SUCCESS) or (
            name in there and (name in done or name.startswith(_RECEIPTS))
        ):
            first.setdefault(path.stat().st_ino, name)
            continue
        remaining.append(name)

    def publish(name: str) -> None:
        twin = first.get((run / name).stat().st_ino)
        if twin is not None and twin in done:
            copy(target / twin, target / name, checksum_file(run / name))
        else:
            place_of(target / name).put_new(run / name)
        published(name)

    run_tasks([partial(publish, name) for name in remaining], _THREADS)
    place_of(target / INDEX).put_new(run / INDEX)
    published(INDEX)


def work_directory(base: Path, out: Path, identity: str) -> Path:
    """Return the local directory in which a run is made.

    Its name depends only on run and output, so that a rerun finds it.
    """
    return base / "work" / f"{identity}-{_word(out)}"


def work_directories(base: Path, out: Path) -> list[Path]:
    """Return the existing work directories of this dataset, sorted."""
    return sorted((base / "work").glob(f"*-{_word(out)}*"))


def _word(out: Path) -> str:
    return sha256_hex(canonical_json(str(out)))[:12]
