"""A part of the jobs that `counted_jobs.py` counts: every row once, in the batches of one process."""

from __future__ import annotations

from pathlib import Path

import pytest
from counted_jobs import Job, every_job, run

JOBS = every_job()
SOME = JOBS[2::7]  # of each trainer one, of both ends and all changes of ranks


def test_there_are_sixty_jobs_and_some_of_each_kind_are_run_here() -> None:
    assert len(set(JOBS)) == 60
    for name in ("trainer", "ranks", "workers", "ends"):
        assert {getattr(job, name) for job in SOME} == {getattr(job, name) for job in JOBS}


@pytest.mark.slow
@pytest.mark.parametrize("job", SOME, ids=str)
def test_a_job_trains_every_row_once_in_the_batches_of_one_process(
    job: Job, tmp_path: Path
) -> None:
    if not job.is_possible:
        pytest.skip(f"needs {job.trainer}")
    found = run(job, tmp_path)
    assert found.is_exact, found
