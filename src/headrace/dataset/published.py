"""What the receipts of a run say was published, beside the shards of the index: files without rows, second names.

The index has no block of a file without rows, and the same file may have a second name for other programs: a hard link,
which is a file of its own once the run was copied.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.dataset.indexed import ALIASES
from headrace.dataset.sound import is_sound_name
from headrace.digest import canonical_json, sha256_file, sha256_hex

_STAGE = "stage/"


def receipts_problem(run: Path) -> tuple[int, str | None]:
    """How many receipts there are, and which is the first that is not as it was written."""
    paths = sorted((run / "receipts").glob("[!.]*.json"))
    broken = (path for path in paths if _read(path) is None)
    first = next(broken, None)
    return len(paths), None if first is None else f"{first}: is not the receipt that was written"


def whole_receipts(run: Path, stage: str = "*") -> list[dict[str, Any]]:
    """The receipts that are as they were written."""
    read = map(_read, sorted((run / "receipts").glob(f"{stage}-*.json")))
    return [record for record in read if record is not None]


def beside_problem(run: Path, indexed: Mapping[str, str], directories: Mapping[str, str]) -> tuple[int, str | None]:
    """How many files are published beside the shards, and the first that does not have its bytes.

    indexed: digest of each shard of the index; directories: of each split and of each other name of one.
    """
    digests = {**_named_by(whole_receipts(run)), **indexed}
    beside = sorted(set(digests) - set(indexed))
    problems = (_problem(run / name, {digests[name]}) for name in beside)
    first = next(filter(None, problems), None)
    count = len(beside)
    for alias, directory in sorted(directories.items()):
        twin = directories.get(ALIASES.get(alias, ""))
        if twin is None or twin == directory:
            continue
        known = {digest for name, digest in digests.items() if name.startswith(f"{twin}/")}
        files, twins = _files(run / directory), _files(run / twin)
        count += len(files)
        if first is None and len(files) != len(twins):
            first = f"{run / directory}: has {len(files)} files, {run / twin} has {len(twins)}; they are the same ones"
        same = {(each.stat().st_dev, each.stat().st_ino) for each in twins}
        own = (path for path in files if (path.stat().st_dev, path.stat().st_ino) not in same)
        first = first or next(filter(None, (_problem(path, known) for path in own)), None)
    return count, first


def _named_by(receipts: list[dict[str, Any]]) -> dict[str, str]:
    named = {str(each["path"]): str(each["digest"]) for record in receipts for each in record["files"]}
    return {name: digest for name, digest in named.items() if is_sound_name(name) and not name.startswith(_STAGE)}


def _files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.glob("[!.]*") if path.is_file()) if directory.is_dir() else []


def _problem(path: Path, known: set[str]) -> str | None:
    if not path.is_file():
        return f"{path}: is missing"
    return None if sha256_file(path) in known else f"{path}: its bytes are not those that were published"


def _read(path: Path) -> dict[str, Any] | None:
    try:
        record: dict[str, Any] = json.loads(path.read_bytes())
        whole = record.pop("digest") == sha256_hex(canonical_json(record))
        return record if whole else None
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return None
