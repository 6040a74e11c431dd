"""Check a finished run against its manifest, byte for byte and row for row.

Receipts list what was published besides the shards of the index: files without rows, which have no
block in the index, and second names for other programs, which are hard links and become separate
files when the run is copied.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from headrace.checks import check_integer
from headrace.dataset.certificate import certificate_of, difference, read_certificate
from headrace.dataset.html import table_html
from headrace.dataset.indexed import ALIASES
from headrace.dataset.manifest import DIGEST, MANIFEST
from headrace.dataset.open import FinishedRun, find_run
from headrace.dataset.pointer import SPLITS, own_links_problem, pointer_of, pointer_problem
from headrace.dataset.sound import is_sound_name
from headrace.digest import canonical_json, sha256_file, sha256_hex
from headrace.engine.local import default_workers, run_tasks
from headrace.errors import CorruptShard, HeadraceError
from headrace.recipe import recipe_of_run
from headrace.storage.local import TEMP_PREFIX
from headrace.storage.places import path_of, place_of


@dataclass(frozen=True)
class Check:
    """The result of one check.

    problem: None, or what is wrong, with the first offending shard and row.

    category: "law", which must hold for the run anywhere; "count", which is reported and never a
    problem; "unchecked", which could not be checked; "here", which concerns this location or
    machine.
    """

    name: str
    detail: str
    problem: str | None = None
    category: Literal["law", "count", "unchecked", "here"] = "law"


@dataclass
class Verdict:
    """The outcome of a verification. checks: all checks in order, with their results."""

    run_id: str
    checks: list[Check] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        """The problems found; empty if there are none."""
        return [check.problem for check in self.checks if check.problem is not None]

    def __repr__(self) -> str:
        failed = "; ".join(self.problems)
        return (
            f"Verdict({self.run_id}: {len(self.checks)} checks,"
            f" {f'FAILED: {failed}' if failed else 'all hold'})"
        )

    def _repr_html_(self) -> str:
        """Show every check and its result, for notebooks."""
        rows = []
        for check in self.checks:
            rows.append(
                [
                    check.name,
                    "ok" if check.problem is None else "FAILED",
                    check.problem or check.detail,
                ]
            )
        return table_html(f"verify {self.run_id}", ["check", "result", "found"], rows)


def verify(
    path: str | Path,
    *,
    run: str | None = None,
    workers: int | None = None,
    against: str | Path | None = None,
) -> Verdict:
    """Check digests, row counts and the recipe's laws of a finished run, all derived again from the
    output.

    For a dataset directory this judges what a trainer reads through `splits/`: the complete run
    that it points at. against: a file from `certify`; one more check compares the run with that
    certificate. Problems are in the verdict, not raised. Only a directory without a finished run,
    and a file that is not a certificate, raise `InputError`.
    """
    if workers is not None:
        check_integer("workers", workers, least=1)
    location = path_of(path)
    certificate = None if against is None else read_certificate(Path(against))
    root, manifest = find_run(location, run)
    finished = FinishedRun(root, manifest)
    verdict = Verdict(manifest.run_id)
    recipe = recipe_of_run(manifest.recipe)
    try:
        verdict.checks += _files(finished, workers or default_workers())
        if run is None and location != root:
            problem, detail = (
                pointer_problem(location, root, manifest),
                f"{pointer_of(location)} leads to this run",
            )
        else:  # only the run's own links
            there = place_of(root).has_links and (root / SPLITS).is_dir()
            problem, detail = (
                (own_links_problem(root, manifest) if there else None),
                "the run's links lead into it",
            )
        verdict.checks.append(Check("splits", detail, problem, "here"))
        if not verdict.problems:
            verdict.checks += recipe.verify(finished, workers)
    except HeadraceError as error:
        verdict.checks.append(Check("laws", "could be checked", str(error)))
    except (
        KeyError,
        IndexError,
        TypeError,
        ValueError,
        AttributeError,
        pa.ArrowException,
    ) as error:
        # Every digest fits, yet a field is missing or has another type: another recipe made the
        # run.
        problem = f"{root}: its files do not say what a run of {manifest.recipe!r} says ({error!r})"
        verdict.checks.append(Check("laws", "could be checked", problem))
    if certificate is not None and not verdict.problems:
        other = difference(certificate, certificate_of(finished, verdict))
        problem = None if other is None else f"{root}: is not what {against} says: {other}"
        verdict.checks.append(
            Check("certificate", f"the run is what {against} says", problem, "here")
        )
    return verdict


def certify(
    path: str | Path, *, run: str | None = None, workers: int | None = None
) -> dict[str, Any]:
    """Verify a finished run and return its certificate, JSON: what was proved, with which settings,
    and what was not.

    The same run gives the same certificate. Raises what `verify` raises, and `CorruptShard` for the
    first problem.
    """
    verdict = verify(path, run=run, workers=workers)
    return certificate_of(FinishedRun(*find_run(path, run)), verdict)


def _files(run: FinishedRun, workers: int) -> list[Check]:
    """Check that every file has its published digest, every count adds up, and no other file is
    among the shards.
    """
    root, manifest = run.root, run.manifest
    path = root / MANIFEST
    # reading checked its fields; this checks every byte if it has a digest
    data = path.read_bytes()
    same = data == manifest.to_json() or DIGEST not in json.loads(data)
    problem = None if same else f"{path}: its bytes are not those it was written as"
    checks = [Check("manifest", "is as it was written", problem)]

    path = root / "config.json"
    same = path.is_file() and sha256_hex(path.read_bytes()) == manifest.config_digest
    problem = None if same else f"{path}: is not the file the manifest names"
    checks.append(Check("configuration", "config.json has its digest", problem))

    receipts = {path: read_receipt(path) for path in sorted((root / "receipts").glob("[!.]*.json"))}
    broken = next((path for path, receipt in receipts.items() if receipt is None), None)
    problem = None if broken is None else f"{broken}: is not the receipt that was written"
    checks.append(Check("receipts", f"{len(receipts):,} receipts are whole", problem))

    try:
        table = run.index.table
    except CorruptShard as error:  # without an index the shards cannot be compared
        return [*checks, Check("index", "index.parquet", str(error))]
    checks.append(Check("index", f"{table.num_rows:,} blocks, digest as in the manifest"))

    indexed: dict[str, str] = dict(
        zip(table["shard"].to_pylist(), table["digest"].to_pylist(), strict=True)
    )
    problems = run_tasks(
        [partial(_file_problem, root / name, {indexed[name]}) for name in sorted(indexed)], workers
    )
    detail = f"{len(indexed):,} shards have the bytes that were published"
    checks.append(Check("digests", detail, next(filter(None, problems), None)))

    complete = [receipt for receipt in receipts.values() if receipt is not None]
    return [
        *checks,
        _beside(run, indexed, complete),
        _counts(run, complete),
        _strangers(run, indexed, complete),
    ]


def _beside(
    run: FinishedRun, indexed: Mapping[str, str], receipts: Sequence[Mapping[str, Any]]
) -> Check:
    """Check the files in receipts but not in the index, and the files in second directories of
    splits.
    """
    named = {}
    for record in receipts:
        for file in record["files"]:
            named[str(file["path"])] = str(file["digest"])
    digests = {}
    for name, digest in named.items():
        if is_sound_name(name) and not name.startswith("stage/"):
            digests[name] = digest
    beside = sorted(set(digests) - set(indexed))
    digests |= indexed
    problems = [_file_problem(run.root / name, {digests[name]}) for name in beside]
    count = len(beside)
    directories = run.manifest.metadata["directories"]
    for alias, directory in sorted(directories.items()):
        twin = directories.get(ALIASES.get(alias, ""))
        if twin is None or twin == directory:
            continue
        files, twins = _files_in(run.root / directory), _files_in(run.root / twin)
        count += len(files)
        if len(files) != len(twins):
            problems.append(
                f"{run.root / directory}: has {len(files)} files, {run.root / twin} has"
                f" {len(twins)}; they are the same ones"
            )
        same = {(path.stat().st_dev, path.stat().st_ino) for path in twins}
        known = {digest for name, digest in digests.items() if name.startswith(f"{twin}/")}
        copies = (path for path in files if (path.stat().st_dev, path.stat().st_ino) not in same)
        problems += (_file_problem(path, known) for path in copies)
    detail = f"{count:,} other files and second names have their bytes"
    return Check("beside the shards", detail, next(filter(None, problems), None))


def _counts(run: FinishedRun, receipts: Sequence[Mapping[str, Any]]) -> Check:
    """Check rows read = rows in splits + rows dropped, by the manifest, the index and the receipts
    alike.
    """
    manifest = run.manifest
    # If output rows are not source rows, the recipe has counted the source rows in each split.
    per_split = manifest.metadata.get("source_rows") or {
        name: totals.rows for name, totals in manifest.splits.items()
    }
    in_splits, dropped = sum(per_split.values()), sum(manifest.dropped.values())
    read = manifest.source["rows"]
    problem = None
    if read != in_splits + dropped:
        problem = f"{read:,} rows read, {in_splits:,} in splits and {dropped:,} dropped"
    for split, totals in manifest.splits.items():
        rows = run.split_index(split).total_rows
        if problem is None and rows != totals.rows:
            problem = (
                f"split {split} has {totals.rows:,} rows by the manifest, {rows:,} by the index"
            )
    counting = [
        receipt for receipt in receipts if receipt["rows_by_split"] or receipt["dropped_by_reason"]
    ]
    counted = sum(
        sum(receipt["rows_by_split"].values()) + sum(receipt["dropped_by_reason"].values())
        for receipt in counting
    )
    if problem is None and counting and counted != read:
        problem = f"the receipts count {counted:,} rows, the manifest {read:,}"
    detail = f"{read:,} rows read = {in_splits:,} in splits + {dropped:,} dropped"
    return Check("rows conserved", detail, problem and f"{run.root}: {problem}")


def _strangers(
    run: FinishedRun, indexed: Mapping[str, str], receipts: Sequence[Mapping[str, Any]]
) -> Check:
    """Check that a split's directory holds only the run's files, because other programs list
    directories.

    A file without rows has no blocks in the index, but a receipt names it.
    """
    real_root = place_of(run.root).real()
    published = {
        str(file["path"]) for receipt in receipts for file in receipt["files"]
    } | indexed.keys()

    def is_known(path: Path) -> bool:
        """Return whether the run has published a file, or for a link its target."""
        real, root = (path.resolve(), real_root) if path.is_symlink() else (path, run.root)
        return real.is_relative_to(root) and real.relative_to(root).as_posix() in published

    directories = [
        run.root / run.manifest.metadata["directories"][split] for split in run.manifest.splits
    ]
    strange = sorted(
        path
        for directory in directories
        for path in directory.rglob("*")
        if path.is_file() and not path.name.startswith(TEMP_PREFIX) and not is_known(path)
    )
    problem = f"{strange[0]}: is not part of this run" if strange else None
    return Check("nothing else", "split directories hold the run's shards only", problem)


def _file_problem(path: Path, known: set[str]) -> str | None:
    if not path.is_file():
        return f"{path}: is missing"
    return (
        None
        if sha256_file(path) in known
        else f"{path}: its bytes are not those that were published"
    )


def _files_in(directory: Path) -> list[Path]:
    return (
        sorted(path for path in directory.glob("[!.]*") if path.is_file())
        if directory.is_dir()
        else []
    )


def read_receipt(path: Path) -> dict[str, Any] | None:
    """Read the receipt in a file; None if it is not as it was written."""
    try:
        record: dict[str, Any] = json.loads(path.read_bytes())
        intact = record.pop("digest") == sha256_hex(canonical_json(record))
        return record if intact else None
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return None
