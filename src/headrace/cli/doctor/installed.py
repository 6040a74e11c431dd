"""Which libraries are there: those that headrace cannot do without, and those of its extras."""

from __future__ import annotations

import importlib.metadata as metadata
import platform
import re
from collections.abc import Iterable

from headrace.cli.doctor.finding import Finding

_REQUIREMENT = re.compile(r"^\s*([A-Za-z0-9._-]+)\s*(?:\[([^\]]*)\])?")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")
_FOR_DEVELOPERS = ("test", "lint", "docs", "bench", "package")


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


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
