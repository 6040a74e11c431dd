"""Print what is installed and which rank a stream in this process would be: `headrace doctor`."""

from __future__ import annotations

import importlib.metadata as metadata
import os
import platform
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Literal

import typer

from headrace.cli.output import emit, printer, table
from headrace.cli.settings_flags import Json
from headrace.errors import HeadraceError

_REQUIREMENT = re.compile(r"^\s*([A-Za-z0-9._-]+)\s*(?:\[([^\]]*)\])?")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")
_FOR_DEVELOPERS = ("test", "lint", "docs", "bench", "package", "fuzz")
_STYLES = {"ok": "green", "note": "dim", "problem": "bold red"}


@dataclass(frozen=True)
class Finding:
    """The result of one check. advice: what to do; empty if all is well."""

    name: str
    value: str
    verdict: Literal["ok", "note", "problem"] = "ok"
    advice: str = ""


def doctor(*, as_json: Json = False) -> None:
    """Print versions, extras, and how the rank of this process was found.

    Exit 1 if something is wrong.

    Example:  headrace doctor
    """
    findings = [*libraries(), *extras(metadata.requires("headrace") or ()), rank(os.environ)]
    healthy = all(finding.verdict != "problem" for finding in findings)
    if as_json:
        emit({"ok": healthy, "findings": [asdict(finding) for finding in findings]})
    else:
        from rich.text import Text

        rows = table("headrace doctor", ("what", "found", ""))
        for finding in findings:
            advice = Text(finding.advice or finding.verdict, style=_STYLES[finding.verdict])
            rows.add_row(finding.name, Text(finding.value), advice)
        printer().print(rows)
    if not healthy:
        raise typer.Exit(1)


def libraries() -> list[Finding]:
    """Report the versions of Python and the required libraries."""
    findings = [
        Finding("python", f"{platform.python_version()} on {platform.platform(terse=True)}")
    ]
    for name in ("headrace", "pyarrow", "polars", "numpy", "pydantic"):
        version = _version(name)
        findings.append(
            Finding(name, version)
            if version
            else Finding(name, "missing", "problem", f"pip install {name}")
        )
    return findings


def extras(requirements: Iterable[str]) -> list[Finding]:
    """Report the installed libraries of each extra. requirements: from the package's metadata."""
    members = _members_of_extras(requirements)

    def libraries_of(extra: str) -> list[str]:
        names: list[str] = []
        for member in members.get(extra, ()):
            if member.startswith("["):
                names += libraries_of(member[1:-1])
            else:
                names += [member]
        return list(dict.fromkeys(names))

    findings: list[Finding] = []
    absent: list[str] = []
    for extra in sorted(members):
        versions = {name: _version(name) for name in libraries_of(extra)}
        if not any(versions.values()):
            absent.append(extra)
            continue
        text = ", ".join(f"{name} {version or 'missing'}" for name, version in versions.items())
        if all(versions.values()):
            findings.append(Finding(f"extra {extra}", text))
        else:
            advice = f"pip install 'headrace[{extra}]' if you need it"
            findings.append(Finding(f"extra {extra}", text, "note", advice))
    if absent:
        advice = "pip install 'headrace[NAME]' if you need one"
        findings.append(Finding("extras not installed", ", ".join(absent), "note", advice))
    return findings


def _members_of_extras(requirements: Iterable[str]) -> dict[str, list[str]]:
    """Return the libraries of each extra, and the other extras that it holds, in brackets."""
    members: dict[str, list[str]] = {}
    for text in requirements:
        marker = _EXTRA.search(text)
        requirement = _REQUIREMENT.match(text)
        if marker is None or requirement is None or marker[1] in _FOR_DEVELOPERS:
            continue
        name, inner = requirement.groups()
        names = [name]
        if name.lower() == "headrace":
            names = [f"[{extra}]" for extra in inner.replace(" ", "").split(",") if extra]
        members.setdefault(marker[1], []).extend(names)
    return members


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def rank(environ: Mapping[str, str]) -> Finding:
    """Report the rank and world size that a stream in this process would use."""
    from headrace.stream.ranks.topology import capture

    try:
        topology = capture(environ=environ)
    except HeadraceError as error:
        return Finding("rank", "unknown", "problem", str(error))
    sources = {"alone": "no launcher was detected", "environment": "from RANK and WORLD_SIZE"}
    source = sources.get(topology.source, topology.source)
    return Finding("rank", f"{topology.rank} of {topology.world_size}, {source}")
