"""Run independent tasks on a Ray cluster over storage that all its nodes share.

A task is sent as bytes (`pickled`); what tasks share lies once in the object store, and each node keeps one copy.
Tasks are spread over the nodes, one core each. A task whose node or process dies is done again by Ray, elsewhere; tasks
publish files that never overwrite and have receipts, so doing one twice changes nothing. Errors of ours come back as
they were raised. On Ctrl-C running tasks are cancelled before the interrupt goes on.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from headrace.engine import ray_task
from headrace.engine.engine import Tell
from headrace.engine.local import default_workers
from headrace.engine.pickled import Packed
from headrace.errors import EngineError, HeadraceError, MissingExtra, SettingsError

Result = TypeVar("Result")

RETRIES = 5  # of a task whose process or node died
_CANCEL_S = 10.0  # time for tasks to remove what they began
_TASK_CORES = 1  # what Ray reserves for a task, and the task is told it has


@contextmanager
def ray_engine(address: str | None, *, workers: int | None = None) -> Iterator[RayEngine]:
    """An engine on a cluster. The connection ends with the block unless it was there before.

    address: of a cluster, "auto" for the one this machine belongs to; None: the one this process is connected to, else
    Ray is started on this machine alone, with `workers` cores. Raises `MissingExtra`, `EngineError`.
    """
    ray = _import()
    if address is not None and address.startswith("ray://"):
        raise SettingsError(
            f"address is {address!r}, of a client outside the cluster; run this on a machine of the cluster, with "
            f'address="auto"'
        )
    if ray.is_initialized():
        if address not in (None, "auto", ray.get_runtime_context().gcs_address):
            raise SettingsError(
                f"address is {address!r}, but this process is connected to the Ray cluster at "
                f"{ray.get_runtime_context().gcs_address} already; leave address out, or call ray.shutdown() first"
            )
        yield RayEngine(ray)
        return
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if address is None:
            # A Ray of our own tells nobody that it was started, unless the user chose otherwise.
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            ray.init(address="local", num_cpus=workers or default_workers(), include_dashboard=False, **quiet)
        else:
            ray.init(address=address, **quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:
        where = "on this machine" if address is None else f"at {address!r}"
        raise EngineError(
            f"Ray {where} cannot be reached ({_first_line(error)}); start a cluster with `ray start --head`, or give "
            f"address="
        ) from error
    try:
        yield RayEngine(ray)
    finally:
        ray.shutdown()


class RayEngine:
    """Tasks on the nodes of the cluster that this process is connected to."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray

    def default_workers(self) -> int:
        """One task per core of the cluster."""
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def machines(self) -> int:
        """The nodes that are alive. Tasks are spread, so each has its part of them on average."""
        return max(1, sum(bool(node["Alive"]) for node in self._ray.nodes()))

    def run(
        self,
        tasks: Sequence[Callable[[Tell], Result]],
        workers: int,
        *,
        hear: Tell,
        done: Callable[[int, Result], None],
    ) -> list[Result]:
        """See `Engine`. What a task says is heard when it has finished, in the caller's thread."""
        if not tasks:
            return []
        from ray import cloudpickle

        ray = self._ray
        packed = Packed(tasks, cloudpickle.Pickler)
        stage = ray_task.Stage(
            token=secrets.token_hex(8),
            shared=ray.put(packed.shared),
            buffers=tuple(ray.put(_bytes_of(buffer)) for buffer in packed.buffers),
            here=os.getcwd(),
            versions=ray_task.library_versions(),
            threads=_TASK_CORES,
        )
        remote = ray.remote(ray_task.do_task).options(
            num_cpus=_TASK_CORES, max_retries=RETRIES, scheduling_strategy="SPREAD", name="headrace"
        )
        results: dict[int, Result] = {}
        errors: dict[int, BaseException] = {}
        running: dict[Any, int] = {}
        following = 0
        try:
            while running or (following < len(tasks) and not errors):
                while following < len(tasks) and len(running) < workers and not errors:
                    running[remote.remote(stage, packed.task(following))] = following
                    following += 1
                finished, _ = ray.wait(list(running), num_returns=1)
                for reference in finished:
                    place = running.pop(reference)
                    try:
                        told = ray.get(reference)
                    except Exception as error:  # noqa: BLE001 - sorted out below, in task order
                        errors[place] = error
                        continue
                    for word in told.said:
                        hear(word)
                    results[place] = told.result
                    done(place, told.result)
        except BaseException:
            self._cancel(list(running))
            raise
        if errors:
            raise self._as_raised(errors[min(errors)], min(errors))
        return [results[place] for place in range(len(tasks))]

    def _cancel(self, running: list[Any]) -> None:
        """End tasks: first as Ctrl-C does, so that they remove what they began, then for good."""
        for force in (False, True):
            running = [reference for reference in running if self._told_to_end(reference, force)]
            until = time.monotonic() + _CANCEL_S
            while running and time.monotonic() < until:
                _, running = self._ray.wait(running, num_returns=len(running), timeout=0.2)
            if not running:
                return

    def _told_to_end(self, reference: Any, force: bool) -> bool:
        """Whether the cluster knows the task; not if the connection that owned it is gone, and the task with it.

        Never raises because of that: what is on its way to the caller is why tasks end.
        """
        if not self._ray.is_initialized():
            return False  # asked now, ray.cancel would start another Ray
        try:
            self._ray.cancel(reference, force=force)
        except (self._ray.exceptions.RayError, TypeError, ValueError):  # TypeError: "No owner found for object."
            return False
        return True

    def _as_raised(self, error: BaseException, place: int) -> BaseException:
        """The task's own error; what Ray has to say of its machines as ours."""
        exceptions, caught = self._ray.exceptions, error
        if isinstance(error, exceptions.RayTaskError):
            cause = error.cause
            if not isinstance(cause, BaseException):
                return caught
            if not isinstance(cause, HeadraceError):
                cause.__cause__ = error  # whose text is the traceback in the worker
            return cause
        if isinstance(error, exceptions.RayError):
            return EngineError(
                f"task {place}: its worker died {RETRIES + 1} times ({type(error).__name__}: {_first_line(error)}); "
                f"give nodes more memory or fewer cores, and run the same command again: finished shards are kept"
            )
        return error


def _import() -> Any:
    try:
        import ray
    except ImportError as error:
        raise MissingExtra("ray", "ray") from error
    return ray


def _bytes_of(buffer: Any) -> Any:
    import numpy as np

    return np.frombuffer(buffer.raw(), np.uint8)


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
