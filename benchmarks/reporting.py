"""How every program here ends: its tables are printed, and kept with `--json`, beside machine, versions and date.

Beside each table is kept how busy other processes were meanwhile: ratios of a busy machine differ from those of a quiet
one by more than what is compared, so `performance_page.py` takes no such table.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from figures import Table, as_json, markdown

SHORT_S = 1.0  # in which ticks of processor time say nothing
PATHS = re.compile(
    r"(?<![\w.])/[\w.\-/]*/"
)  # what lies before a file's name says nothing elsewhere


def parser(about: str | None) -> argparse.ArgumentParser:
    """For the docstring of a program; with the option to keep its tables."""
    made = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--json", type=Path, help="keep the tables in this file too")
    return made


def publish(
    tables: Iterable[Table],
    kept: Path | None,
    packages: Sequence[str] = (),
    *,
    others: Callable[[], float] | None = None,
) -> list[Table]:
    """Print each table when it is there; write them all to `kept` when the last one is. Returns them.

    packages: those whose versions matter to the figures, besides headrace, numpy and pyarrow. others: counts the
    seconds of processors of other processes so far, None: as the system tells.
    """
    others = others or seconds_of_others
    busy: dict[str, float] = {}
    began, worked = time.perf_counter(), _cpu_s()
    metadata: dict[str, Any] = {
        "program": Path(sys.argv[0]).stem,
        "command": without_paths(
            " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *_options()])
        ),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": machine(),
        "versions": {
            "Python": platform.python_version(),
            **versions(["headrace", "numpy", "pyarrow", *packages]),
        },
    }
    print(f"{metadata['command']}, {metadata['date']}\n{metadata['machine']}")
    print(
        ", ".join(f"{name} {version}" for name, version in metadata["versions"].items()), flush=True
    )
    made = []
    share = 0.0
    then, before = time.perf_counter(), others()
    for table in tables:
        now, after = time.perf_counter(), others()
        if now - then > SHORT_S or not made:  # else it was measured with the table before it
            share = round((after - before) / max(1e-9, (now - then) * _cores()), 3)
            then, before = now, after
        busy[table.name] = share
        print(f"\n### {table.title}\n\n{markdown(table)}", flush=True)
        made.append(table)
    took = {"wall_s": round(time.perf_counter() - began, 1), "cpu_s": round(_cpu_s() - worked, 1)}
    print(f"\ntook {took['wall_s']:.0f} s, {took['cpu_s']:.0f} s of processors", flush=True)
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(
            as_text({**metadata, **took, "busy": busy, "tables": [as_json(each) for each in made]}),
            "utf-8",
        )
    return made


def as_text(result: dict[str, Any]) -> str:
    """JSON with a line for each row, so that two runs can be compared by their lines."""
    indented = json.dumps(result, indent=1, ensure_ascii=False)
    return re.sub(r"\n {4}\]", "]", re.sub(r"\n {5,}", " ", indented)) + "\n"


def machine() -> str:
    """Processors, memory and system, in words."""
    found = (
        f"{_cores()} cores of {_processor()}, {_memory_gb():.0f} GB of memory, {platform.system()}"
    )
    return f"{found} {platform.machine()}"


def versions(packages: Iterable[str]) -> dict[str, str]:
    """By package; one that is not there is told so."""
    found: dict[str, str] = {}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def seconds_of_others() -> float:
    """Seconds of processors since the system began that were not this process's or its children's; 0 if unknown."""
    told = Path("/proc/stat")
    try:
        import psutil
    except ImportError:
        return 0.0
    if not told.exists():
        return 0.0
    user, nice, system, _idle, _wait, irq, softirq, steal, *_ = map(
        int, told.read_text().split("\n")[0].split()[1:]
    )
    ours = _cpu_s()
    for child in psutil.Process().children(recursive=True):  # that live
        with suppress(psutil.Error):
            ours += sum(child.cpu_times()[:4])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK") - ours


def without_paths(text: str) -> str:
    """Folders of this machine taken out."""
    return PATHS.sub("", text)


def _options() -> list[str]:
    """As given, but for where the tables are kept."""
    given = list(sys.argv[1:])
    if "--json" in given:
        at = given.index("--json")
        del given[at : at + 2]
    return given


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor() -> str:
    told = Path("/proc/cpuinfo")
    if told.exists():
        for line in told.read_text().splitlines():
            if line.startswith("model name"):
                return " ".join(line.partition(":")[2].split())
    return platform.processor() or platform.machine()


def _memory_gb() -> float:
    pages: Any = os.sysconf("SC_PHYS_PAGES")
    return float(pages * os.sysconf("SC_PAGE_SIZE") / 1e9)


def _cpu_s() -> float:
    """Of this process and of its children that were waited for."""
    return sum(os.times()[:4])
