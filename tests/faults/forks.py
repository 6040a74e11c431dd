"""Child processes without a second of imports each: a server that has imported everything forks one per request.

What a child does is a function named "module:function" and JSON arguments. Children are real processes with a pid:
they are killed, starved and measured. The server only imports and forks, so no thread is lost in a fork.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import pkgutil
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import headrace
from places import INSIDE, new_place

TESTS = Path(__file__).parents[1]
IMPORTED = (
    "tests",
    "tests/faults",
    "tests/fuzz",
    "tests/gate",
    "tests/recipes/packed_sequences",
    "tests/recipes/histories",
    "tests/recipes/series",
    "tests/contexts",
    "tests/windows",
)
PATHS = [str(Path(headrace.__file__).parents[1]), *(str(TESTS.parent / each) for each in IMPORTED)]
# What the work of a child would import, each time anew: pyarrow looks for pandas, polars for numpy's generators.
PRELOADED = (
    "fault_recipes",
    "killed_runs",
    "pandas",
    "numpy.random",
    "encodings.latin_1",
    "array_record.python.array_record_module",
    "skops.io",
)
PRELOADED += (
    "headrace.stream.loader.stream_loader",
    "headrace.stream.loader.dataset",
    "headrace.stream.loader.torch_dataset",
    "headrace.packing.read.packed_rows",
    "headrace.cli",
    "hostile_files",
    "pyarrow.dataset",
)
PATIENCE_S = 240


@dataclass(frozen=True)
class Ended:
    """How a child ended. code: exit status, or minus the signal; None: it was still there after `limit_s`, and was
    killed. peak_bytes: of resident memory. output: what it printed, the traceback included."""

    code: int | None
    peak_bytes: int
    cpu_s: float
    wall_s: float
    output: str


class Child:
    """A child that was started."""

    def __init__(self, server: Server, pid: int, output: Path) -> None:
        self._server, self.pid, self._output = server, pid, output

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal; a child that has ended already is not reaped yet, so its pid is nobody else's."""
        os.kill(self.pid, number)

    def wait(self, limit_s: float = PATIENCE_S) -> Ended:
        """Its end."""
        record = self._server.ask({"wait": self.pid, "limit_s": limit_s})
        return Ended(**record, output=self._output.read_text(errors="replace"))


class Server:
    """The process that forks. One of it serves all tests of a process: see `server`."""

    def __init__(self, first: str = "") -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(Path(__file__)), first],
            env=os.environ
            | {
                "PYTHONPATH": os.pathsep.join(PATHS),
                "OPENBLAS_NUM_THREADS": "1",
                INSIDE: str(new_place()),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def ask(self, request: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the server of children has ended"
        return json.loads(answer)

    def start(self, call: str, *arguments: Any, output: Path) -> Child:
        """A child that does this."""
        output.parent.mkdir(parents=True, exist_ok=True)
        output.touch()  # a child may be killed before it opens it
        return Child(
            self, self.ask({"call": call, "arguments": arguments, "output": str(output)}), output
        )

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


@functools.cache
def server(first: str = "") -> Server:
    """The server of this process. first: a function that another one calls before it serves, "module:function", so
    that its children begin with what that has loaded. It ends its threads; pyarrow begins its own anew in a fork."""
    made = Server(first)
    atexit.register(made.close)
    return made


def run_child(call: str, *arguments: Any, output: Path, limit_s: float = PATIENCE_S) -> Ended:
    """A child from its start to its end."""
    return server().start(call, *arguments, output=output).wait(limit_s)


# --- in the server ---


def _serve(first: str) -> None:
    for name in PRELOADED:
        import_module(name)
    for found in pkgutil.walk_packages(headrace.__path__, "headrace."):
        if found.name.startswith(("headrace.recipes.", "headrace.formats.")):
            import_module(found.name)
    if first:
        _function(first)()
    began: dict[int, float] = {}
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            answer: Any = _wait(request["wait"], request["limit_s"], began.pop(request["wait"]))
        else:
            answer = os.fork()
            if answer == 0:
                _work(request)
            began[answer] = time.monotonic()
        print(json.dumps(answer), flush=True)


def _work(request: dict[str, Any]) -> None:
    code = 1
    try:
        nothing = os.open(os.devnull, os.O_RDONLY)
        output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        for old, new in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(old, new)
        _function(request["call"])(*request["arguments"])
        code = 0
    except BaseException:  # noqa: BLE001 - a child never returns into the loop of its server
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _function(call: str) -> Callable[..., Any]:
    module, _, name = call.partition(":")
    return getattr(import_module(module), name)


def _wait(pid: int, limit_s: float, began: float) -> dict[str, Any]:
    until, killed = time.monotonic() + limit_s, False
    while True:
        found, status, usage = os.wait4(pid, 0 if killed else os.WNOHANG)
        if found:
            break
        if time.monotonic() > until:
            os.kill(pid, signal.SIGKILL)
            killed = True
        else:
            time.sleep(0.002)
    return {
        "code": None if killed else os.waitstatus_to_exitcode(status),
        "peak_bytes": usage.ru_maxrss * 1024,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "wall_s": time.monotonic() - began,
    }


def limit_memory(more_bytes: int) -> None:
    """The address space of this process may grow by so much from here."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + more_bytes, resource.RLIM_INFINITY))


if __name__ == "__main__":
    _serve(sys.argv[1])
