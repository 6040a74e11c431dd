"""Check a finished run against its manifest, byte for byte and row for row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from headrace.checks import check_integer
from headrace.dataset.certificate import certificate_of
from headrace.dataset.html import table_html
from headrace.dataset.manifest import MANIFEST
from headrace.dataset.open import FinishedRun, find_run
from headrace.dataset.pointer import pointer_of, pointer_problem
from headrace.dataset.receipts import Receipt
from headrace.dataset.vouched import file_problems, read_vouched, tree_of
from headrace.engine.local import default_workers
from headrace.errors import CorruptShard, HeadraceError
from headrace.recipe import recipe_of_run
from headrace.shortage import shortage
from headrace.storage.places import path_of


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


def verify(path: str | Path, *, run: str | None = None, workers: int | None = None) -> Verdict:
    """Check digests, row counts and the recipe's laws of a finished run, all derived again from the
    output.

    For a dataset directory this judges what a trainer reads through `splits/`: the complete run
    that it points at. Problems are in the verdict, not raised. Only a directory without a finished
    run raises `InputError`.
    """
    if workers is not None:
        check_integer("workers", workers, least=1)
    location = path_of(path)
    root, manifest = find_run(location, run)
    finished = FinishedRun(root, manifest)
    verdict = Verdict(manifest.run_id)
    recipe = recipe_of_run(manifest.recipe)
    try:
        verdict.checks += _files(finished, workers or default_workers())
        if run is None and location != root:
            detail = f"{pointer_of(location)} leads to this run"
            problem = pointer_problem(location, root, manifest)
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
        if shortage(error) is not None:
            raise
        # Every digest fits, yet a field is missing or has another type: another recipe made the
        # run.
        problem = f"{root}: its files do not say what a run of {manifest.recipe!r} says ({error!r})"
        verdict.checks.append(Check("laws", "could be checked", problem))
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
    """Check that every file is the one that the manifest vouches for, that there is no other, and
    that every count adds up.
    """
    path = run.root / MANIFEST
    # reading checked its fields; this checks every byte
    same = path.read_bytes() == run.manifest.to_json()
    problem = None if same else f"{path}: its bytes are not those it was written as"
    checks = [Check("manifest", "is as it was written", problem)]
    try:
        tree = tree_of(run.root)
        vouched = read_vouched(run, tree, workers)
    except CorruptShard as error:  # what the files are compared with
        return [*checks, Check("files", "", str(error))]
    problems = file_problems(run, tree, vouched, workers)
    detail = f"{len(vouched.digests):,} files have the published bytes, and there is no other"
    more = f" (and {len(problems) - 1:,} more)" if len(problems) > 1 else ""
    checks.append(Check("files", detail, problems[0] + more if problems else None))
    checks.append(_counts(run, vouched.receipts))
    return checks


def _counts(run: FinishedRun, receipts: Sequence[Receipt]) -> Check:
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
        receipt for receipt in receipts if receipt.rows_by_split or receipt.dropped_by_reason
    ]
    counted = sum(
        sum(receipt.rows_by_split.values()) + sum(receipt.dropped_by_reason.values())
        for receipt in counting
    )
    if problem is None and counting and counted != read:
        problem = f"the receipts count {counted:,} rows, the manifest {read:,}"
    detail = f"{read:,} rows read = {in_splits:,} in splits + {dropped:,} dropped"
    return Check("rows conserved", detail, problem and f"{run.root}: {problem}")
