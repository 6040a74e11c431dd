"""Check a finished run against its manifest, byte for byte and row for row."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from headrace.dataset.html import table_html
from headrace.dataset.manifest import DIGEST, MANIFEST
from headrace.dataset.open import FinishedRun, find_run
from headrace.dataset.pointer import SPLITS, own_links_problem, pointer_of, pointer_problem
from headrace.dataset.published import beside_problem, receipts_problem, whole_receipts
from headrace.digest import sha256_file, sha256_hex
from headrace.engine.local import default_workers, run_tasks
from headrace.errors import CorruptShard, HeadraceError
from headrace.recipe import load, registration_of_run
from headrace.storage.local import TEMP_PREFIX
from headrace.storage.places import path_of, place_of


@dataclass(frozen=True)
class Check:
    """One thing that was checked. problem: None, or what is wrong, with the first offending shard and row."""

    name: str
    detail: str
    problem: str | None = None


@dataclass
class Verdict:
    """The outcome of a verification. checks: all that were made, in their order, with what each found."""

    run_id: str
    checks: list[Check] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        """What is wrong; empty if nothing is."""
        return [check.problem for check in self.checks if check.problem is not None]

    def __repr__(self) -> str:
        failed = "; ".join(self.problems)
        return f"Verdict({self.run_id}: {len(self.checks)} checks, {f'FAILED: {failed}' if failed else 'all hold'})"

    def _repr_html_(self) -> str:
        """For notebooks: every check and what it found."""
        rows = [
            [each.name, "ok" if each.problem is None else "FAILED", each.problem or each.detail] for each in self.checks
        ]
        return table_html(f"verify {self.run_id}", ["check", "result", "found"], rows)


def verify(path: str | Path, *, run: str | None = None, workers: int | None = None) -> Verdict:
    """Check digests, row counts and the recipe's laws of a finished run, all derived again from the output.

    Of a dataset directory it judges what a trainer reads through `splits/`: the run that it points at, seen whole.
    Problems are in the verdict, not raised; only a directory without a finished run raises `InputError`.
    """
    place = path_of(path)
    root, manifest = find_run(place, run)
    finished = FinishedRun(root, manifest)
    verdict = Verdict(manifest.run_id)
    laws = registration_of_run(manifest.recipe).verify
    try:
        verdict.checks += verify_files(finished, workers)
        verdict.checks.append(verify_pointer(finished, place if run is None and place != root else None))
        if not verdict.problems and laws is not None:
            verdict.checks += load(laws)(finished, workers)
    except HeadraceError as error:
        verdict.checks.append(Check("laws", "could be checked", str(error)))
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, pa.ArrowException) as error:
        # Every digest fits, and still a field is missing or of another kind: the run was not made by this recipe.
        problem = f"{root}: its files do not say what a run of {manifest.recipe!r} says ({error!r})"
        verdict.checks.append(Check("laws", "could be checked", problem))
    return verdict


def verify_files(run: FinishedRun, workers: int | None = None) -> list[Check]:
    """Every file has the digest it was published with, every count adds up, and nothing else lies among the shards."""
    checks = [_manifest(run), _config(run), _receipts(run), _index(run)]
    if checks[-1].problem is None:  # without an index there is nothing to compare the shards with
        checks += [_shards(run, workers or default_workers()), _beside(run), _counts(run), _strangers(run)]
    return checks


def verify_pointer(run: FinishedRun, out: Path | None) -> Check:
    """A trainer that reads the paths below `out` sees this run and nothing else; None: only the run's own links."""
    if out is not None:
        pointer = pointer_of(out)
        return Check("splits", f"{pointer} leads to this run", pointer_problem(out, run.root, run.manifest))
    there = place_of(run.root).has_links and (run.root / SPLITS).is_dir()  # earlier versions made none
    return Check("splits", "the run's links lead into it", own_links_problem(run.root, run.manifest) if there else None)


def _manifest(run: FinishedRun) -> Check:
    """Its fields were checked when it was read; here every byte, where it has a digest."""
    path = run.root / MANIFEST
    data = path.read_bytes()
    same = data == run.manifest.to_json() or DIGEST not in json.loads(data)
    return Check(
        "manifest", "is as it was written", None if same else f"{path}: its bytes are not those it was written as"
    )


def _receipts(run: FinishedRun) -> Check:
    count, problem = receipts_problem(run.root)
    return Check("receipts", f"{count:,} receipts are whole", problem)


def _config(run: FinishedRun) -> Check:
    path = run.root / "config.json"
    same = path.is_file() and sha256_hex(path.read_bytes()) == run.manifest.config_digest
    return Check(
        "configuration", "config.json has its digest", None if same else f"{path}: is not the file the manifest names"
    )


def _index(run: FinishedRun) -> Check:
    try:
        return Check("index", f"{run.index.table.num_rows:,} blocks, digest as in the manifest")
    except CorruptShard as error:
        return Check("index", "index.parquet", str(error))


def _shards(run: FinishedRun, workers: int) -> Check:
    table = (
        run.index.table.select(["shard", "digest"])
        .group_by("shard", use_threads=False)
        .aggregate([("digest", "first")])
    )
    digests = sorted(zip(table["shard"].to_pylist(), table["digest_first"].to_pylist(), strict=True))

    def check(name: str, digest: str) -> Callable[[], str | None]:
        def look() -> str | None:
            path = run.root / name
            if not path.is_file():
                return f"{path}: is missing"
            return None if sha256_file(path) == digest else f"{path}: its bytes are not those that were published"

        return look

    results = run_tasks([check(name, digest) for name, digest in digests], workers)
    problem = next((result for result in results if result is not None), None)
    return Check("digests", f"{len(digests):,} shards have the bytes that were published", problem)


def _beside(run: FinishedRun) -> Check:
    table = run.index.table
    indexed = dict(zip(table["shard"].to_pylist(), table["digest"].to_pylist(), strict=True))
    count, problem = beside_problem(run.root, indexed, run.manifest.facts["directories"])
    return Check("beside the shards", f"{count:,} other files and second names have their bytes", problem)


def _counts(run: FinishedRun) -> Check:
    """Rows read = rows in splits + rows dropped, by the manifest, the index and the receipts alike."""
    manifest = run.manifest
    # Where output rows are not source rows, the recipe has counted the source rows that are in each split.
    per_split = manifest.facts.get("source_rows") or {name: each.rows for name, each in manifest.splits.items()}
    in_splits = sum(per_split.values())
    dropped = sum(manifest.dropped.values())
    read = manifest.source["rows"]
    detail = f"{read:,} rows read = {in_splits:,} in splits + {dropped:,} dropped"
    if read != in_splits + dropped:
        return Check(
            "rows conserved", detail, f"{run.root}: {read:,} rows read, {in_splits:,} in splits and {dropped:,} dropped"
        )
    for split, totals in manifest.splits.items():
        rows = run.split_index(split).total_rows
        if rows != totals.rows:
            return Check(
                "rows conserved",
                detail,
                f"{run.root}: split {split} has {totals.rows:,} rows by the manifest, {rows:,} by the index",
            )
    receipts = [record["result"] for record in whole_receipts(run.root, "split")]
    counted = sum(sum(each["rows"].values()) + sum(each["dropped"].values()) for each in receipts)
    problem = (
        None
        if not receipts or counted == read
        else f"{run.root}: the receipts count {counted:,} rows, the manifest {read:,}"
    )
    return Check("rows conserved", detail, problem)


def _own_name(path: Path, root: Path) -> str:
    """A file's path relative to the run; of a link that of the file behind it, or "" outside the run."""
    if not path.is_symlink():
        return path.relative_to(root).as_posix()
    real, whole = path.resolve(), root.resolve()
    return real.relative_to(whole).as_posix() if real.is_relative_to(whole) else ""


def _strangers(run: FinishedRun) -> Check:
    """Other programs list directories: what lies in a split's directory must be the split's."""
    known = {str(name) for name in run.index.table["shard"].to_pylist()}
    strange: list[Path] = []
    for split in run.manifest.splits:
        directory = run.root / run.manifest.facts["directories"][split]
        strange += [
            each
            for each in directory.rglob("*")
            if each.is_file() and _own_name(each, run.root) not in known and not each.name.startswith(TEMP_PREFIX)
        ]
    # A file without rows has no blocks: the single layout writes one for an empty test split.
    strange = sorted(each for each in strange if not each.name.startswith("test_processed_data"))
    return Check(
        "nothing else",
        "split directories hold the run's shards only",
        f"{strange[0]}: is not part of this run" if strange else None,
    )
