"""Compare the files of a finished run with what its manifest vouches for.

The manifest has the digests of config.json, of index.parquet, and of the receipts of each stage.
The index names the shards and the receipts name all other files, each with its SHA-256. So one rule
covers whatever lies below a run: it is named and has its bytes, or it is in `NOT_VOUCHED`, or it is
a problem. Links inside the run are named with their texts; names of files are followed and
compared.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.dataset.manifest import CONFIG, INDEX, NOT_VOUCHED, SUCCESS
from headrace.dataset.pointer import SPLITS, split_links
from headrace.dataset.receipts import (
    NO_RECEIPT,
    PUBLISH,
    RECEIPTS,
    STAGE_DIRECTORY,
    FileRecord,
    Receipt,
    digest_of_receipts,
    parse_receipt,
    receipt_name,
)
from headrace.dataset.sound import damaged, is_valid_name
from headrace.digest import sha256_file, sha256_hex
from headrace.engine.local import run_tasks
from headrace.storage.local import TEMP_PREFIX
from headrace.storage.places import place_of
from headrace.storage.run_lock import is_busy

if TYPE_CHECKING:
    from headrace.dataset.open import FinishedRun


class Tree(NamedTuple):
    """What lies below a directory, relative to it: files, and links with their texts."""

    files: frozenset[str]
    links: Mapping[str, str]


@dataclass(frozen=True)
class Vouched:
    """What the manifest of a run vouches for.

    records: files that receipts name, by path. digests: SHA-256 of every file, by path. links:
    their texts, by path. receipts: all of them.
    """

    records: Mapping[str, FileRecord]
    digests: Mapping[str, str]
    links: Mapping[str, str]
    receipts: Sequence[Receipt]


def tree_of(root: Path) -> Tree:
    """List the files and links below a directory, hidden ones included; links are not followed.

    Raises `CorruptShard` for a directory that cannot be listed.
    """
    root_place = place_of(root)
    if not root_place.has_links:
        return Tree(frozenset(fact.name for fact in root_place.files_below()), {})

    def fail(error: OSError) -> None:
        raise damaged(error.filename, f"cannot be listed ({error.strerror})") from error

    files: list[str] = []
    links: dict[str, str] = {}
    start = len(str(root)) + 1
    for directory, directories, names in os.walk(root, onerror=fail):
        below = f"{directory[start:]}/" if directory[start:] else ""
        for name in (*directories, *names):
            path = f"{directory}/{name}"
            if os.path.islink(path):
                links[below + name] = os.readlink(path)
        files += [below + name for name in names if below + name not in links]
    return Tree(frozenset(files), links)


def is_leftover(name: str) -> bool:
    """Return whether a name belongs to a run that is being made: temporary or intermediate."""
    first, *_ = parts = name.split("/")
    return first == STAGE_DIRECTORY or any(part.startswith(TEMP_PREFIX) for part in parts)


def read_vouched(run: FinishedRun, tree: Tree, workers: int) -> Vouched:
    """Read what the manifest of a run vouches for.

    Raises `CorruptShard` if the index or a receipt is not what the manifest says.
    """
    manifest = run.manifest
    digests = {CONFIG: manifest.config_digest, INDEX: manifest.index_digest}
    records: dict[str, FileRecord] = {}
    receipts: list[Receipt] = []
    links: dict[str, str] = {}
    table = run.index.table
    digests |= dict(zip(table["shard"].to_pylist(), table["digest"].to_pylist(), strict=True))
    # last those that name the second names of other files
    for stage in sorted(manifest.receipts, key=lambda stage: (stage == PUBLISH, stage)):
        for name, digest, receipt in _receipts_of(run, stage, tree, workers):
            digests[name] = digest
            receipts.append(receipt)
            for record in receipt.published_files:
                if not is_valid_name(record.path):
                    raise damaged(run.root / name, f"names {record.path!r}, out of the run")
                if digests.setdefault(record.path, record.digest) != record.digest:
                    raise damaged(run.root / name, f"and the index differ on {record.path}")
                records[record.path] = record
            if stage == PUBLISH:
                links |= receipt.extra["links"]
    for name, text in split_links(manifest.metadata["directories"]).items():
        links[f"{SPLITS}/{name}"] = text
    return Vouched(records, digests, links, receipts)


class _NamedReceipt(NamedTuple):
    name: str
    digest: str
    receipt: Receipt


def _receipts_of(run: FinishedRun, stage: str, tree: Tree, workers: int) -> Sequence[_NamedReceipt]:
    """Read the receipts of a stage. Raises `CorruptShard` that names the first wrong one."""
    expected = run.manifest.receipts[stage]
    names = []
    for number in range(expected.tasks):
        name = receipt_name(stage, number)
        if name not in tree.files:
            raise damaged(run.root / name, "is missing")
        names.append(name)

    def read(name: str) -> _NamedReceipt:
        path = run.root / name
        try:
            data = path.read_bytes()
            receipt = parse_receipt(data)
        except (OSError, *NO_RECEIPT) as error:
            raise damaged(path, "is not the receipt that was written") from error
        if receipt_name(receipt.stage, receipt.number) != name:
            raise damaged(path, "is the receipt of another task")
        return _NamedReceipt(name, sha256_hex(data), receipt)

    receipts = run_tasks([partial(read, name) for name in names], workers)
    if digest_of_receipts(receipt.digest for receipt in receipts) != expected.digest:
        path = run.root / RECEIPTS / f"{stage}-*.json"
        raise damaged(path, "are not the receipts that the manifest vouches for")
    return receipts


def file_problems(run: FinishedRun, tree: Tree, vouched: Vouched, workers: int) -> list[str]:
    """Compare every file of a run with what its manifest vouches for; return what is wrong."""
    problems = [
        *_byte_problems(run.root, tree, vouched.digests, workers),
        *_link_problems(run.root, tree, vouched),
    ]
    strange = sorted(tree.files - vouched.digests.keys() - NOT_VOUCHED - vouched.links.keys())
    at_work = is_busy(run.root) if strange else False
    for name in strange:
        path = run.root / name
        if not is_leftover(name):
            problems.append(f"{path}: is not part of this run")
        elif not at_work:
            problems.append(
                f"{path}: is left of a process that was killed, and is not part of this run;"
                " `headrace gc` removes it"
            )
    if SUCCESS in tree.files and place_of(run.root / SUCCESS).stat().size:
        problems.append(f"{run.root / SUCCESS}: is not empty, as it was published")
    return problems


def _byte_problems(
    root: Path, tree: Tree, digests: Mapping[str, str], workers: int
) -> Iterable[str]:
    """Name the files that are missing or have other bytes. Several names of one file are read
    once.
    """
    first_names: dict[Any, str] = {}
    identities: dict[str, Any] = {}
    for name in digests:
        if name not in tree.files and name not in tree.links:
            yield f"{root / name}: is missing"
            continue
        identities[name] = _identity(root, name)
        first_names.setdefault(identities[name], name)
    tasks: list[Callable[[], str]] = [
        partial(_digest, root / name) for name in first_names.values()
    ]
    actual = dict(zip(first_names, run_tasks(tasks, workers), strict=True))
    for name, identity in identities.items():
        digest = actual[identity]
        if digest.startswith("cannot"):
            yield f"{root / name}: {digest}"
        elif digest != digests[name]:
            yield f"{root / name}: its bytes are not those that were published"


def _identity(root: Path, name: str) -> Any:
    """Return what two names of one file share."""
    if place_of(root).has_links:
        try:
            stat = os.stat(root / name)
            return stat.st_dev, stat.st_ino
        except OSError:  # reading says why
            pass
    return name


def _digest(path: Path) -> str:
    """Return the SHA-256 of a file, or why it cannot be read."""
    try:
        if not path.is_file():
            return "cannot be read, as it is not a file"
        return sha256_file(path)
    except OSError as error:
        return f"cannot be read ({error.strerror})"


def _link_problems(root: Path, tree: Tree, vouched: Vouched) -> Iterable[str]:
    """Name the links that are missing, lead elsewhere, or are not of the run.

    A run that was copied from an object store has none.
    """
    for name, text in sorted(tree.links.items()):
        if name not in vouched.digests and vouched.links.get(name) != text:
            expected = vouched.links.get(name)
            if expected is None:
                yield f"{root / name}: is not part of this run"
            else:
                yield f"{root / name}: is not a link to {expected}, but to {text}"
    if tree.links or (place_of(root).has_links and (root / SPLITS).is_dir()):
        for name in sorted(vouched.links.keys() - tree.links.keys()):
            yield f"{root / name}: is not a link to {vouched.links[name]}"
