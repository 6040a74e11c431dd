"""Verify a dataset directory: the contract that all recipes share, then the laws of its recipe."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from headrace.dataset.open import FinishedRun, find_run
from headrace.dataset.verify import Check, Verdict, verify_files, verify_pointer
from headrace.errors import HeadraceError
from headrace.recipes.histories.verify import verify_histories
from headrace.recipes.packed_sequences.verify import verify_packed
from headrace.recipes.series.verify import verify_series
from headrace.recipes.temporal_split.verify import verify_split
from headrace.storage.places import path_of, place_of

_LAWS = {
    "histories": verify_histories,
    "packed_sequences": verify_packed,
    "series": verify_series,
    "temporal_split": verify_split,
}


def _laws(run: FinishedRun, workers: int | None) -> list[Check]:
    check = _LAWS[run.manifest.recipe]
    if run.manifest.recipe != "series":
        return check(run, workers)
    with place_of(run.root).local_tree() as here:  # many small files, mapped and compared with each other
        found = check(FinishedRun(here, run.manifest), workers)
        return [
            replace(each, problem=each.problem and each.problem.replace(str(here), str(run.root))) for each in found
        ]


def verify(path: str | Path, *, run: str | None = None, workers: int | None = None) -> Verdict:
    """Check digests, row counts and the recipe's laws of a finished run, all derived again from the output.

    Of a dataset directory it judges what a trainer reads through `splits/`: the run that it points at, seen whole.
    Problems are in the verdict, not raised; only a directory without a finished run raises `InputError`.
    """
    place = path_of(path)
    root, manifest = find_run(place, run)
    finished = FinishedRun(root, manifest)
    verdict = Verdict(manifest.run_id)
    try:
        verdict.checks += verify_files(finished, workers)
        verdict.checks.append(verify_pointer(finished, place if run is None and place != root else None))
        if not verdict.problems and manifest.recipe in _LAWS:
            verdict.checks += _laws(finished, workers)
    except HeadraceError as error:
        verdict.checks.append(Check("laws", "could be checked", str(error)))
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, pa.ArrowException) as error:
        # Every digest fits, and still a field is missing or of another kind: the run was not made by this recipe.
        problem = f"{root}: its files do not say what a run of {manifest.recipe!r} says ({error!r})"
        verdict.checks.append(Check("laws", "could be checked", problem))
    return verdict
