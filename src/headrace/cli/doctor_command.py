"""`headrace doctor`: what is installed, what this process would be taken for, and the usual mistakes."""

from __future__ import annotations

import importlib.metadata as metadata
import json
import os
import platform
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from headrace.errors import HeadraceError

Verdict = Literal["ok", "note", "problem"]

_REQUIREMENT = re.compile(r"^\s*([A-Za-z0-9._-]+)\s*(?:\[([^\]]*)\])?")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")
_FOR_DEVELOPERS = ("test", "lint", "docs", "bench", "package")
_LEAST_FILES, _LEAST_SHARED = 1024, 64 << 20


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. advice: what to do; empty where all is well."""

    name: str
    found: str
    verdict: Verdict = "ok"
    advice: str = ""


def doctor(
    out: Annotated[Path | None, typer.Argument(help="A directory that runs are to be written to.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Print versions, extras, rank detection, disk, memory and limits, and name usual mistakes. Exit 1 if one is found.

    Example:  headrace doctor out
    """
    findings = [
        *libraries(),
        *extras(metadata.requires("headrace") or ()),
        topology(os.environ),
        *limits(),
        *([] if out is None else [writable(out)]),
    ]
    problems = [each for each in findings if each.verdict == "problem"]
    if as_json:
        typer.echo(json.dumps({"ok": not problems, "findings": [asdict(each) for each in findings]}))
    else:
        _print(findings)
    if problems:
        raise typer.Exit(1)


def libraries() -> list[Finding]:
    """Python and what headrace cannot do without."""
    found = [Finding("python", f"{platform.python_version()} on {platform.platform(terse=True)}")]
    for name in ("headrace", "pyarrow", "polars", "numpy", "pydantic"):
        version = _version(name)
        found.append(Finding(name, version) if version else Finding(name, "missing", "problem", f"pip install {name}"))
    return found


def extras(requirements: Iterable[str]) -> list[Finding]:
    """A line for each extra that users choose: which of its libraries are there. requirements: of the metadata."""
    wanted: dict[str, list[str]] = {}
    for text in requirements:
        marker, found = _EXTRA.search(text), _REQUIREMENT.match(text)
        if marker and found and marker[1] not in _FOR_DEVELOPERS:
            inner = [each.strip() for each in (found[2] or "").split(",") if each.strip()]
            own = wanted.setdefault(marker[1], [])
            own += [f"[{each}]" for each in inner] if found[1].lower() == "headrace" else [found[1]]

    def names(extra: str) -> list[str]:
        return [name for each in wanted.get(extra, ()) for name in (names(each[1:-1]) if each[0] == "[" else [each])]

    lines = []
    for extra in sorted(wanted):
        versions = {name: _version(name) for name in dict.fromkeys(names(extra))}
        missing = [name for name, version in versions.items() if not version]
        shown = ", ".join(f"{name} {version or 'missing'}" for name, version in versions.items())
        advice = f"pip install 'headrace[{extra}]' where it is needed" if missing else ""
        lines.append(Finding(f"extra {extra}", shown, "note" if missing else "ok", advice))
    return lines


def topology(environ: Mapping[str, str]) -> Finding:
    """Which rank of how many a stream would take this process for."""
    from headrace.stream.topology import capture

    try:
        found = capture(environ=environ)
    except HeadraceError as error:
        return Finding("rank", "unknown", "problem", str(error))
    where = {"alone": "no launcher is visible", "environment": "from RANK and WORLD_SIZE"}.get(
        found.source, found.source
    )
    return Finding("rank", f"{found.rank} of {found.world_size}, {where}")


def limits() -> list[Finding]:
    """Cores, memory, open files and shared memory, as far as this system tells."""
    found = [
        Finding("cores", f"{len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()}")
    ]
    try:
        import resource

        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        few = 0 <= files < _LEAST_FILES
        advice = "many shards are open at once; raise it with ulimit -n 4096" if few else ""
        found.append(Finding("open files", f"at most {files:,}", "problem" if few else "ok", advice))
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        found.append(Finding("memory", f"{memory / 1e9:,.1f} GB"))
    except (ImportError, OSError, ValueError):
        pass  # not a POSIX system
    shared = Path("/dev/shm")
    if shared.is_dir():
        room = shutil.disk_usage(shared).total
        small = room < _LEAST_SHARED
        advice = "DataLoader workers pass batches through it; docker run --shm-size=1g" if small else ""
        found.append(Finding("shared memory", f"{room / 1e6:,.0f} MB", "problem" if small else "ok", advice))
    return found


def writable(out: Path) -> Finding:
    """Whether a run can be written there: a new name, a link to it, room."""
    import tempfile

    standing = next(each for each in (out.absolute(), *out.absolute().parents) if each.exists())
    try:
        with tempfile.TemporaryDirectory(dir=standing, prefix=".tmp-doctor-") as directory:
            file = Path(directory) / "file"
            file.write_bytes(b"headrace")
            os.link(file, Path(directory) / "link")
            links = "hard links"
    except PermissionError as error:
        return Finding("output", f"{standing}: {error.strerror}", "problem", "choose a directory you may write to")
    except OSError as error:
        links = f"no hard links ({error.strerror}), files are claimed and moved instead"
    free = shutil.disk_usage(standing).free
    return Finding("output", f"{standing}: {free / 1e9:,.1f} GB free, {links}")


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _print(findings: Iterable[Finding]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    styles: dict[str, Any] = {"ok": "green", "note": "dim", "problem": "bold red"}
    table = Table(title="headrace doctor", title_justify="left", header_style="bold")
    for name in ("what", "found", ""):
        table.add_column(name, overflow="fold")
    for each in findings:
        mark = Text(each.advice or each.verdict, style=styles[each.verdict])
        table.add_row(each.name, Text(each.found), mark)
    Console(soft_wrap=not os.isatty(1)).print(table)
