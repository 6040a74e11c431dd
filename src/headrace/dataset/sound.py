"""Validate a manifest and an index before use, because their author may be malicious.

Names are relative and stay below the run, counts are counts, digests are digests. Nothing here
opens a file. Reading checks that the bytes of shards match the digests.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import CorruptShard
from headrace.gate import RESTORE
from headrace.printable import short_repr

if TYPE_CHECKING:
    import pyarrow as pa

# Matches names that are absolute, or have a drive, an empty part, "." or "..", or a zero byte.
_UNSOUND = r"^[/\\]|^[A-Za-z]:[/\\]|(^|[/\\])\.\.([/\\]|$)|(^|/)\.?(/|$)|\x00"
_UNSOUND_NAME = re.compile(_UNSOUND)
_RUN = re.compile(r"(?!\w+://).*/runs/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(?=/)", re.DOTALL)
_SHA256, _XXH3 = r"^[0-9a-f]{64}$", r"^[0-9a-f]{32}$"
LARGEST = 1 << 48  # rows and bytes; sums of them stay inside 64 bits


def is_valid_name(name: object) -> bool:
    """Return whether this names a path below a directory, ignoring links."""
    return isinstance(name, str) and _UNSOUND_NAME.search(name) is None


def manifest_problem(record: Mapping[str, Any]) -> str | None:
    """Describe what is wrong with the fields of a manifest, or None.

    Its splits are still plain dicts.
    """
    problem = (
        _types_problem(record)
        or _counts_problem(record)
        or _receipts_problem(record)
        or _paths_problem(record)
    )
    if problem is not None:
        return problem
    metadata, splits = record.get("metadata", {}), record["splits"]
    missing = sorted(set(splits) - set(metadata.get("directories", splits)))
    if missing:
        return f"split {short_repr(missing[0])} has no directory"
    return _folds_problem(metadata.get("folds", []), splits)


def _types_problem(record: Mapping[str, Any]) -> str | None:
    for name in ("run_id", "recipe"):
        if not isinstance(record[name], str):
            return f"{name} is {short_repr(record[name])}, not text"
    for name in ("index_digest", "config_digest"):
        if not isinstance(record[name], str) or not re.fullmatch(_SHA256, record[name]):
            return f"{name} is {short_repr(record[name])}, not a digest"
    for name in ("libraries", "source", "splits", "dropped", "receipts", "metadata"):
        if not isinstance(record.get(name, {}), dict):
            return f"{name} is {short_repr(record[name])}, not an object"
    if not isinstance(record["schema"], list):
        return f"schema is {short_repr(record['schema'])}, not a list"
    return None


def _counts_problem(record: Mapping[str, Any]) -> str | None:
    counts = {f"rows dropped as {reason}": count for reason, count in record["dropped"].items()}
    counts["rows of the source"] = record["source"].get("rows", 0)
    for split, totals in record["splits"].items():
        counts |= {f"{name} of {split}": totals[name] for name in ("rows", "shards", "bytes")}
    for name, count in counts.items():
        if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count < LARGEST:
            return f"{name} is {short_repr(count)}, not a count"
    return None


def _receipts_problem(record: Mapping[str, Any]) -> str | None:
    for stage, receipts in record["receipts"].items():
        if "/" in stage or not is_valid_name(stage):
            return f"receipts has {short_repr(stage)}, which may lead out of the run"
        tasks, digest = receipts["tasks"], receipts["digest"]
        if not isinstance(tasks, int) or isinstance(tasks, bool) or not 0 <= tasks < LARGEST:
            return f"tasks of {stage} is {short_repr(tasks)}, not a count"
        if not isinstance(digest, str) or not re.fullmatch(_SHA256, digest):
            return f"digest of {stage} is {short_repr(digest)}, not a digest"
    return None


def _paths_problem(record: Mapping[str, Any]) -> str | None:
    for name in ("directories", "published"):
        paths = record.get("metadata", {}).get(name, {})
        if not isinstance(paths, dict):
            return f"{name} is {short_repr(paths)}, not an object"
        for key, path in paths.items():
            if "/" in key or not is_valid_name(key) or not is_valid_name(path):
                return (
                    f"{name} has {short_repr(key)}: {short_repr(path)}, which may lead out of"
                    " the run"
                )
    return None


def _folds_problem(folds: Any, splits: Mapping[str, Any]) -> str | None:
    """Describe what is wrong with the folds of a run: each must list splits of the run, and all the
    same names.
    """
    if not isinstance(folds, list):
        return f"folds has {short_repr(folds)}, which are not lists of its splits"
    for fold in folds:
        cells = fold.get("splits") if isinstance(fold, dict) else None
        if not isinstance(cells, dict) or not all(
            _lists_splits(names, splits) for names in cells.values()
        ):
            return f"folds has {short_repr(fold)}, which are not lists of its splits"
        if cells.keys() != folds[0]["splits"].keys():
            return f"folds has {short_repr(fold)}, with other splits than the first"
    return None


def _lists_splits(names: Any, splits: Mapping[str, Any]) -> bool:
    return isinstance(names, list) and all(
        isinstance(name, str) and name in splits for name in names
    )


def index_problem(table: pa.Table) -> str | None:
    """Describe what is wrong with names, positions, counts or digests in the index of a finished
    run, or None.
    """
    import pyarrow.compute as pc  # a manifest alone needs no library

    for name in ("block", "first_row", "rows", "offset", "length"):
        values = table[name]
        wrong = pc.or_(pc.less(values, 0), pc.greater_equal(values, LARGEST))
        if pc.any(wrong).as_py():
            return f"{name} is {values.filter(wrong)[0].as_py()}, not a place or a count"
    for name, form in (("digest", _SHA256), ("checksum", _XXH3)):
        values = pc.unique(table[name])
        wrong = pc.invert(pc.match_substring_regex(values, form))
        if pc.any(wrong).as_py():
            return f"{name} is {short_repr(values.filter(wrong)[0].as_py())}, not a digest"
    shards = pc.unique(table["shard"])
    wrong = pc.match_substring_regex(shards, _UNSOUND)
    if pc.any(wrong).as_py():
        return (
            f"shard is {short_repr(shards.filter(wrong)[0].as_py())}, which may lead out of the run"
        )
    return None


def damaged(
    path: Path | str, problem: str = "its bytes are not those that were published"
) -> CorruptShard:
    """Return the error for a file of a run that does not match the run's records.

    It says so if the whole run is gone, which nobody should restore if its entities were erased.
    """
    run = _RUN.match(str(path))
    if run is not None and not os.path.isdir(run[0]):
        return CorruptShard(
            "its run was removed, perhaps because entities were erased from it",
            path=path,
            remedy="open the dataset again",
        )
    return CorruptShard(problem, path=path, remedy=RESTORE)
