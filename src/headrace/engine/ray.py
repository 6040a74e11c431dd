"""Run independent tasks on a Ray cluster over storage that all its nodes share.

A task is sent as bytes (`Packed`); what tasks share lies once in the object store, and each node
keeps one copy. Tasks are spread over the nodes, one core each. A task whose node or process dies is
done again by Ray, elsewhere; tasks publish files that never overwrite and have receipts, so doing
one twice changes nothing. Errors of ours come back as they were raised. On Ctrl-C running tasks are
cancelled before the interrupt goes on.

A worker process loads the shared part once a stage, then one task after the other (`do_task`). This
module imports nothing heavy: a worker sets the thread counts of the libraries before they are
loaded, because Ray gives a task as many cores as it asked for and the libraries would take all of
the machine.
"""

from __future__ import annotations

import functools
import io
import os
import pickle
import platform
import secrets
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, is_dataclass
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, TypeVar

from headrace.engine.engine import Observer
from headrace.engine.local import default_workers
from headrace.errors import (
    EngineError,
    HeadraceError,
    MissingExtra,
    SettingsError,
    first_line,
    setting,
    setting_name,
)
from headrace.machine import LIBRARIES, library_version

Result = TypeVar("Result")

RETRIES = 5  # of a task whose process or node died
_CANCEL_S = 10.0  # time for tasks to remove what they began
_TASK_CORES = 1  # reserved by Ray for a task, and the threads of each library in it
_LARGE_BYTES = 1 << 16  # of a buffer that the object store keeps by itself
_ATOMS = (str, bytes, int, float, complex, bool, type(None), type, ModuleType, BuiltinFunctionType)
_DEPTH = 6  # levels below a task at which shared objects are looked for


@contextmanager
def ray_engine(address: str | None, *, workers: int | None = None) -> Iterator[RayEngine]:
    """Yield an engine on a Ray cluster.

    The connection ends with the block unless it existed before.

    address: of a cluster, or "auto" for the one this machine belongs to. None: the one this process
    is connected to, else Ray is started on this machine alone, with `workers` cores. Raises
    `MissingExtra`, `EngineError`.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingExtra("ray", "ray") from error
    if address is not None and address.startswith("ray://"):
        raise SettingsError(
            "this is a client outside the cluster",
            setting="address",
            value=address,
            remedy=f"run on a machine of the cluster, with {setting('address', 'auto')}",
        )
    if ray.is_initialized():
        if address not in (None, "auto", ray.get_runtime_context().gcs_address):
            raise SettingsError(
                "this process is already connected to the Ray cluster at"
                f" {ray.get_runtime_context().gcs_address}",
                setting="address",
                value=address,
                remedy=f"leave {setting_name('address')} out, or call ray.shutdown() first",
            )
        yield RayEngine(ray)
        return
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if address is None:
            # A Ray of our own does not report that it was started, unless the user chose otherwise.
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            ray.init(
                address="local",
                num_cpus=workers or default_workers(),
                include_dashboard=False,
                **quiet,
            )
        else:
            ray.init(address=address, **quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:
        if address is None:
            where = "on this machine"
        else:
            where = f"at {address!r}"
        raise EngineError(
            f"Ray {where} cannot be reached ({first_line(error)})",
            remedy=f"start a cluster with `ray start --head`, or give {setting('address')}",
        ) from error
    try:
        yield RayEngine(ray)
    finally:
        ray.shutdown()


class RayEngine:
    """An engine that runs tasks on the nodes of the cluster that this process is connected to."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray

    def default_workers(self) -> int:
        """Return one task per core of the cluster."""
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def machines(self) -> int:
        """Return the number of live nodes.

        Tasks are spread, so each node runs an equal share on average.
        """
        return max(1, sum(bool(node["Alive"]) for node in self._ray.nodes()))

    def run(
        self, tasks: Sequence[Callable[[Observer], Result]], workers: int, *, on_event: Observer
    ) -> list[Result]:
        """Run tasks as `Engine.run` does.

        A task's events arrive when it has finished, in the caller's thread.
        """
        if not tasks:
            return []
        import numpy as np  # in the driver only
        from ray import cloudpickle

        ray = self._ray
        packed = Packed(tasks, cloudpickle.Pickler)
        stage = Stage(
            token=secrets.token_hex(8),
            shared=ray.put(packed.shared),
            buffers=tuple(
                ray.put(np.frombuffer(buffer.raw(), np.uint8)) for buffer in packed.buffers
            ),
            here=os.getcwd(),
            versions=library_versions(),
        )
        remote = ray.remote(do_task).options(
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
                    number = running.pop(reference)
                    try:
                        results[number], events = ray.get(reference)
                    except Exception as error:  # noqa: BLE001 - sorted out below, in task order
                        errors[number] = error
                        continue
                    for event in events:
                        on_event(event)
        except BaseException:
            self._cancel(list(running))
            raise
        if errors:
            raise self._as_raised(errors[min(errors)], min(errors))
        return [results[number] for number in range(len(tasks))]

    def _cancel(self, running: list[Any]) -> None:
        """Cancel tasks: first as Ctrl-C does, so that they remove what they began, then by force.

        Never raises if the connection is gone, because the tasks are gone too and the caller's own
        error matters more.
        """
        for force in (False, True):
            known = []
            # else ray.cancel would start another Ray
            for reference in running if self._ray.is_initialized() else ():
                # "No owner found for object."
                with suppress(self._ray.exceptions.RayError, TypeError, ValueError):
                    self._ray.cancel(reference, force=force)
                    known.append(reference)
            running = known
            until = time.monotonic() + _CANCEL_S
            while running and time.monotonic() < until:
                _, running = self._ray.wait(running, num_returns=len(running), timeout=0.2)
            if not running:
                return

    def _as_raised(self, error: BaseException, number: int) -> BaseException:
        """Return the task's own error, or an `EngineError` for a failure of Ray or its machines."""
        exceptions = self._ray.exceptions
        raised = error
        if isinstance(error, exceptions.RayTaskError):
            cause = error.cause
            if not isinstance(cause, BaseException):
                return raised
            if not isinstance(cause, HeadraceError):
                cause.__cause__ = error  # whose text is the traceback in the worker
            return cause
        if isinstance(error, exceptions.RayError):
            return EngineError(
                f"task {number}: its worker died {RETRIES + 1} times ({type(error).__name__}:"
                f" {first_line(error)})",
                remedy=(
                    "give nodes more memory or fewer cores, and run the same command again:"
                    " finished shards are kept"
                ),
            )
        return error


@dataclass(frozen=True)
class Stage:
    """References into Ray's object store to what the tasks of a stage share.

    token: names the stage in its driver. here: the driver's directory, which relative paths are
    relative to. versions: of the libraries in the driver; a worker with others would write other
    bytes.
    """

    token: str
    shared: Any
    buffers: tuple[Any, ...]
    here: str
    versions: Mapping[str, str]


_KEEP_S = 30.0  # how long what tasks share outlives the last of them in a process that Ray keeps

_loading = threading.Lock()
_loaded: tuple[str, list[Any]] = ("", [])
_letting_go: threading.Timer | None = None


def library_versions() -> dict[str, str]:
    """Return the versions of the libraries that decide which bytes are written."""
    versions = {"python": ".".join(platform.python_version_tuple()[:2])}
    return versions | {name: library_version(name) for name in LIBRARIES}


def do_task(stage: Stage, task: bytes) -> tuple[Any, list[Any]]:
    """Run one task in this process; return its result and its events.

    Raises the error of the task.
    """
    events: list[Any] = []
    try:
        return load_task(task, _shared(stage))(events.append), events
    finally:
        _let_go_later()


def _shared(stage: Stage) -> list[Any]:
    global _loaded
    with _loading:
        if _loaded[0] != stage.token:
            import ray

            _prepare_process(stage)
            _loaded = ("", [])  # let go of the stage before, so that the store may
            shared, *buffers = ray.get([stage.shared, *stage.buffers])
            _loaded = (stage.token, load_shared(shared, buffers))
        if _letting_go is not None:
            _letting_go.cancel()
        return _loaded[1]


def _let_go_later() -> None:
    """Release the shared arrays later, because Ray may keep this process for other work.

    The object store could not free them otherwise.
    """
    global _letting_go

    def let_go() -> None:
        global _loaded
        with _loading:
            if _letting_go is timer:
                _loaded = ("", [])

    timer = threading.Timer(_KEEP_S, let_go)
    timer.daemon = True
    with _loading:
        if _letting_go is not None:
            _letting_go.cancel()
        _letting_go = timer
    timer.start()


def _prepare_process(stage: Stage) -> None:
    installed = library_versions()
    for name, expected in stage.versions.items():
        if installed[name] != expected:
            raise EngineError(
                f"{platform.node()} has {name} {installed[name]}, the driver has {expected}",
                remedy="install the same on all nodes: other versions write other bytes",
            )
    with suppress(OSError):  # where paths are absolute, the directory is not needed
        os.chdir(stage.here)
    if "polars" not in sys.modules:
        # polars has no other way to be told
        os.environ.setdefault("POLARS_MAX_THREADS", str(_TASK_CORES))
    if "pyarrow" not in sys.modules:
        import pyarrow as pa

        pa.set_cpu_count(_TASK_CORES)


class Packed:
    """Tasks as bytes for other processes.

    pickler: the class that pickles (cloudpickle's, as tasks are closures).

    Tasks are closures or partials. An object that more than one of them refers to – from a cell, an
    argument or a field of a dataclass in one – goes into one shared part, and a task's own bytes
    only name its place there. Large buffers of the shared part (arrays of numpy and Arrow) stay out
    of its bytes, so that a store can keep one copy of each and readers map it. O(tasks) time; a
    task's bytes do not grow with what is shared.

    shared: bytes of all that tasks share; buffers: its large arrays, which belong with it, in this
    order.
    """

    def __init__(self, tasks: Sequence[Callable[..., Any]], pickler: type[pickle.Pickler]) -> None:
        self._tasks = tasks
        self._pickler = pickler
        counts: Counter[int] = Counter()
        self._objects: dict[int, Any] = {}  # kept, so that no id is used twice
        for task in tasks:
            parts = {id(part): part for part in _parts(task, _DEPTH)}
            counts.update(parts.keys())
            self._objects |= parts
        common = [self._objects[key] for key, count in counts.items() if count > 1]
        self._indices = {id(part): index for index, part in enumerate(common)}
        self.buffers: list[pickle.PickleBuffer] = []

        def keep_inside(buffer: pickle.PickleBuffer) -> bool:
            with buffer.raw() as raw:
                small = raw.nbytes < _LARGE_BYTES
            if not small:
                self.buffers.append(buffer)
            return small

        stream = io.BytesIO()
        pickler(stream, protocol=5, buffer_callback=keep_inside).dump(common)
        self.shared = stream.getvalue()

    def task(self, number: int) -> bytes:
        """Return the bytes of one task, in which shared objects are indices."""
        indices = self._indices

        class Naming(self._pickler):  # type: ignore[name-defined,misc]  # a class that is given
            def persistent_id(self, obj: Any) -> int | None:
                return indices.get(id(obj))

        stream = io.BytesIO()
        Naming(stream, protocol=5).dump(self._tasks[number])
        return stream.getvalue()


def load_shared(shared: bytes, buffers: Sequence[Any]) -> list[Any]:
    """Load the objects that tasks share.

    Arrays are views of the buffers, read-only if these are.
    """
    objects: list[Any] = pickle.loads(shared, buffers=buffers)
    return objects


def load_task(task: bytes, shared: Sequence[Any]) -> Callable[..., Any]:
    """Load one task; its own parts are copies, and shared objects are used as they are."""
    unpickler = pickle.Unpickler(io.BytesIO(task))
    unpickler.persistent_load = shared.__getitem__  # type: ignore[method-assign]  # documented: an attribute will do
    loaded: Callable[..., Any] = unpickler.load()
    return loaded


def _parts(value: Any, depth: int) -> Iterator[Any]:
    """Return the objects that a task refers to and that could be shared: cells, arguments, fields
    of dataclasses.
    """
    if depth == 0 or isinstance(value, _ATOMS):
        return
    inner: list[Any] = []
    if isinstance(value, functools.partial):
        inner = [value.func, *value.args, *value.keywords.values()]
    elif isinstance(value, FunctionType):
        inner = list(value.__defaults__ or ())
        for cell in value.__closure__ or ():
            with suppress(ValueError):  # nothing is in it yet
                inner.append(cell.cell_contents)
    else:
        yield value
        if is_dataclass(value):
            inner = []
            for field in fields(value):
                if hasattr(value, field.name):
                    inner.append(getattr(value, field.name))
    for part in inner:
        yield from _parts(part, depth - 1)
