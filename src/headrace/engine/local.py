"""Run independent tasks on threads of this process.

The work of a task happens in pyarrow, polars and numpy, which release the interpreter lock, so
threads use all cores and share one copy of everything. Results come back in task order. When tasks
fail, the error of the first failing task in task order is raised, whatever the timing: tasks start
in order, and those that started are waited for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from headrace.engine.engine import Observer

Result = TypeVar("Result")


def default_workers() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_tasks(tasks: Sequence[Callable[[], Result]], workers: int) -> list[Result]:
    """Return the results of all tasks, in task order.

    Raises the error of the first failing task.
    """
    with ThreadPoolExecutor(
        max_workers=max(1, workers), thread_name_prefix="headrace-task"
    ) as pool:
        futures: list[Future[Result]] = [pool.submit(task) for task in tasks]

        def stop_at_failure(future: Future[Result]) -> None:
            if not future.cancelled() and future.exception() is not None:
                for other in futures:
                    other.cancel()

        for future in futures:
            future.add_done_callback(stop_at_failure)
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


class LocalEngine:
    """An engine that runs tasks on threads of this process."""

    def default_workers(self) -> int:
        """Return one task per core."""
        return default_workers()

    def machines(self) -> int:
        """Return 1, for this machine."""
        return 1

    def run(
        self, tasks: Sequence[Callable[[Observer], Result]], workers: int, *, on_event: Observer
    ) -> list[Result]:
        """See `Engine`. Events arrive in the threads of the tasks."""
        return run_tasks([partial(task, on_event) for task in tasks], workers)
