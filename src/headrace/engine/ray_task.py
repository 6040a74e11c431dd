"""What runs in a Ray worker process: load what tasks share, once a stage, then one task.

Imports nothing heavy: the thread counts of the libraries are set before they are loaded, because Ray gives a task as
many cores as it asked for and the libraries would take all of the machine.
"""

from __future__ import annotations

import os
import platform
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from headrace.engine.pickled import load_shared, load_task
from headrace.errors import EngineError

LIBRARIES = ("pyarrow", "polars", "numpy")


@dataclass(frozen=True)
class Stage:
    """Where the shared part of a stage's tasks lies: references into Ray's object store.

    token: names the stage in its driver. here: the driver's directory, which relative paths are relative to.
    versions: of the libraries in the driver; a worker with others would write other bytes. threads: of each library,
    as many as a task has cores.
    """

    token: str
    shared: Any
    buffers: tuple[Any, ...]
    here: str
    versions: Mapping[str, str]
    threads: int


@dataclass(frozen=True)
class Done:
    """What a task returned, and what it said while it worked."""

    result: Any
    said: tuple[Any, ...]


_KEEP_S = 30.0  # what tasks share outlives a task so long in a process that Ray keeps

_loading = threading.Lock()
_loaded: tuple[str, list[Any]] = ("", [])
_letting_go: threading.Timer | None = None


def library_versions() -> dict[str, str]:
    """The versions that decide which bytes are written."""
    found = {"python": ".".join(platform.python_version_tuple()[:2])}
    for name in ("headrace", *LIBRARIES):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def do_task(stage: Stage, task: bytes) -> Done:
    """Do one task in this process. Raises what the task raises."""
    said: list[Any] = []
    try:
        result = load_task(task, _shared(stage))(said.append)
    finally:
        _let_go_later()
    return Done(result, tuple(said))


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
    """Ray may keep this process for other work; the object store must not keep our arrays because of it."""
    global _letting_go

    def let_go() -> None:
        global _loaded
        with _loading:
            if _letting_go is own:
                _loaded = ("", [])

    own = threading.Timer(_KEEP_S, let_go)
    own.daemon = True
    with _loading:
        if _letting_go is not None:
            _letting_go.cancel()
        _letting_go = own
    own.start()


def _prepare_process(stage: Stage) -> None:
    own = library_versions()
    different = [name for name, asked in stage.versions.items() if own.get(name) != asked]
    if different:
        name = different[0]
        raise EngineError(
            f"{platform.node()}: has {name} {own.get(name, 'not installed')}, the driver has {stage.versions[name]}; "
            f"other versions write other bytes: install the same on all nodes"
        )
    with suppress(OSError):  # where paths are absolute, nobody needs the directory
        os.chdir(stage.here)
    if "polars" not in sys.modules:
        os.environ.setdefault("POLARS_MAX_THREADS", str(stage.threads))  # polars has no other way to be told
    if "pyarrow" not in sys.modules:
        import pyarrow as pa

        pa.set_cpu_count(stage.threads)
