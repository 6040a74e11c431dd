"""A run whose output is in an object store: made in a local work directory, published file by file.

The work directory holds an ordinary run. When a task whose files are part of the output has finished, its files are put
under their names in the store, if absent, and read back; then its receipt is. At the end come the other files, the
index, and the manifest as the last. So a store's receipt means that its files are whole there: a run that was killed
goes on from the receipts of both places, in another work directory too, and then fetches what it finds. Nothing in
the store has a temporary name, nothing is listed to decide what is done, nothing is renamed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from headrace.dataset.manifest import INDEX, MANIFEST, Manifest
from headrace.dataset.pointer import POINTER, pointer_record
from headrace.digest import canonical_json, sha256_hex
from headrace.engine.local import run_tasks
from headrace.errors import CorruptShard
from headrace.run.members import Share
from headrace.run.receipts import FileRecord, Receipt, is_as_recorded, parse_receipt, receipt_path, write_receipt
from headrace.storage import local
from headrace.storage.places import place_of

_THREADS = 8
_RECEIPTS, _STAGE, _SUCCESS = "receipts", "stage", "_SUCCESS"


def publish_task(run: Path, target: Path, receipt: Receipt) -> None:
    """Put a finished task's files into the store, then its receipt. Done again, it changes nothing."""
    for record in receipt.files:
        place_of(target / record.path).put_new(run / record.path)
    own = receipt_path(run, receipt.stage, receipt.number)
    place_of(target / own.relative_to(run).as_posix()).put_new(own)


def publish_found(run: Path, target: Path, receipts: Sequence[Receipt | None], workers: int) -> None:
    """The same of tasks that an earlier attempt finished here and may not have put there."""
    there = {fact.name for fact in place_of(target / _RECEIPTS).files_below()}
    left = [
        receipt
        for receipt in receipts
        if receipt is not None and receipt_path(run, receipt.stage, receipt.number).name not in there
    ]
    run_tasks([partial(publish_task, run, target, receipt) for receipt in left], workers)


def adopt(target: Path, run: Path) -> int:
    """Fetch what an unfinished run has in the store and this work directory has not; how many tasks that were.

    Receipts and files are believed later, by their digests; what is damaged is made again.
    """
    there = {fact.name for fact in place_of(target).files_below()}
    missing = [name for name in sorted(there) if name.startswith(f"{_RECEIPTS}/") and not (run / name).exists()]
    return sum(run_tasks([partial(_adopt_task, target, run, name, there) for name in missing], _THREADS))


def _adopt_task(target: Path, run: Path, name: str, there: set[str]) -> int:
    data = (target / name).read_bytes()
    try:
        receipt = parse_receipt(data)
    except (ValueError, KeyError, TypeError, AttributeError):
        return 0
    if any(record.path not in there for record in receipt.files):
        return 0
    for record in receipt.files:
        _fetch(target, run, record)
    local.make_directory((run / name).parent)
    local.write_new(run / name, data, sync="none")
    return 1


def _fetch(target: Path, run: Path, record: FileRecord) -> None:
    place = run / record.path
    if place.exists():
        return
    local.make_directory(place.parent)
    temporary = local.temporary_for(place)
    try:
        place_of(target / record.path).fetch(temporary)
        local.publish(temporary, place, sync="none")
    finally:
        with suppress(OSError):
            temporary.unlink()


def fetch_tasks(target: Path, run: Path, receipts: Sequence[Receipt]) -> None:
    """Fetch the files of finished tasks, and leave the receipts, of those that have no receipt here.

    Raises `CorruptShard` for files that are not what the receipt says.
    """
    left = [each for each in receipts if not receipt_path(run, each.stage, each.number).exists()]
    run_tasks([partial(_fetch_task, target, run, receipt) for receipt in left], _THREADS)


def _fetch_task(target: Path, run: Path, receipt: Receipt) -> None:
    advice = "run `headrace gc --incomplete`, then again"
    for record in receipt.files:
        place, there = run / record.path, target / record.path
        if place.exists():
            if is_as_recorded(place, record):
                continue
            place.unlink()  # what a power failure left of it
        try:
            _fetch(target, run, record)
        except FileNotFoundError:
            raise CorruptShard(f"{there}: is missing, and its receipt is there; {advice}") from None
        if not is_as_recorded(place, record):
            place.unlink()
            raise CorruptShard(f"{there}: its bytes are not those that its receipt names; {advice}")
    write_receipt(run, receipt)


def publish_rest(run: Path, target: Path, published: Callable[[str], None]) -> None:
    """Put into the store what no task has put there: files beside the shards, second names, receipts; the index last.

    `published` hears each name. The manifest is not among them.
    """
    there = {fact.name for fact in place_of(target).files_below()}
    done = {record.path for name in there if (run / name).is_file() for record in _files_of(run, name)}
    first: dict[int, str] = {}
    rest: list[str] = []
    for path in sorted(run.rglob("*")):
        name = path.relative_to(run).as_posix()
        if path.is_symlink() or not path.is_file() or name.startswith((f"{_STAGE}/", ".")) or _is_temporary(path):
            continue
        if name in (MANIFEST, INDEX, _SUCCESS) or (name in there and (name in done or name.startswith(_RECEIPTS))):
            first.setdefault(path.stat().st_ino, name)
            continue
        rest.append(name)

    def put(name: str) -> None:
        twin = first.get((run / name).stat().st_ino)
        if twin is not None and twin in done:
            place_of(target / twin).alias(target / name)
        else:
            place_of(target / name).put_new(run / name)
        published(name)

    run_tasks([partial(put, name) for name in rest], _THREADS)
    place_of(target / INDEX).put_new(run / INDEX)
    published(INDEX)


def _files_of(run: Path, name: str) -> Sequence[FileRecord]:
    if not name.startswith(f"{_RECEIPTS}/"):
        return ()
    with suppress(ValueError, KeyError, TypeError, AttributeError):
        return parse_receipt((run / name).read_bytes()).files
    return ()


def _is_temporary(path: Path) -> bool:
    return path.name.startswith(local.TEMP_PREFIX)


def point(out: Path, run_id: str, manifest: Manifest) -> None:
    """Let `splits.json` name the run as the newest: one PUT, so it names the old one or the new one."""
    record = pointer_record(run_id, manifest)
    place = out / POINTER
    data = (json.dumps(record, indent=1, sort_keys=True) + "\n").encode()
    with suppress(FileNotFoundError):
        if place.read_bytes() == data:
            return
    place_of(place).replace(data)


def finish(target: Path) -> None:
    """The empty file that other tools look for; headrace does not."""
    place_of(target / _SUCCESS).put_new(b"")


def work_directory(base: Path, out: Path, identity: str, share: Share | None = None) -> Path:
    """Where the run is made: named by the run, its place and the share, so that a rerun finds it. On a local disk."""
    own = "" if share is None else f"-{share.index}-of-{share.count}"
    return base / "work" / f"{identity}-{_word(out)}{own}"


def _word(out: Path) -> str:
    return sha256_hex(canonical_json(str(out)))[:12]


def work_directories(base: Path, out: Path) -> list[Path]:
    """Those of this dataset that are there, sorted."""
    return sorted((base / "work").glob(f"*-{_word(out)}*"))
