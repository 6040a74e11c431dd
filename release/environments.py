"""Fresh environments for checks of a release, made by uv from the package index that pip is pointed at."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "release"
CONSTRAINTS = ROOT / "constraints" / "torch-cpu.txt"


def run(*command: str | Path, where: Path = ROOT, quiet: bool = False, **environ: str) -> str:
    """Runs a command and returns what it printed; where it fails, prints that and leaves with its exit code."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=where,
        env={**os.environ, **as_uv_reads(os.environ), "PYTHONDONTWRITEBYTECODE": "1", **environ},
        stdout=subprocess.PIPE if quiet else None,
        stderr=subprocess.STDOUT if quiet else None,
        text=True,
        check=False,
    )
    if done.returncode:
        print(done.stdout or "", "failed:", *command, sep="\n" if quiet else " ", file=sys.stderr)
        sys.exit(done.returncode)
    return done.stdout or ""


def as_uv_reads(environ: Mapping[str, str]) -> dict[str, str]:
    """pip's settings of an index in uv's words, where uv has none of its own; uv does not read pip's."""
    said = {
        "UV_DEFAULT_INDEX": environ.get("PIP_INDEX_URL", ""),
        "UV_INDEX": environ.get("PIP_EXTRA_INDEX_URL", ""),
        "UV_FIND_LINKS": ",".join(environ.get("PIP_FIND_LINKS", "").split()),
        "UV_HTTP_TIMEOUT": environ.get("PIP_DEFAULT_TIMEOUT", "180"),
        "UV_HTTP_RETRIES": environ.get("PIP_RETRIES", "8"),
    }
    return {name: value for name, value in said.items() if value and name not in environ}


def uv() -> str:
    """The uv beside this interpreter."""
    return str(Path(sys.executable).with_name("uv"))


def fresh(name: str) -> Path:
    """The interpreter of a new environment with nothing in it, of this interpreter's version."""
    run(uv(), "venv", "--quiet", "--clear", "--python", sys.executable, BUILD / name)
    return BUILD / name / "bin" / "python"


def install(
    python: Path,
    *what: str,
    constraints: Sequence[Path] = (CONSTRAINTS,),
    how: Sequence[str] = ("--quiet",),
) -> None:
    """Installs into the environment of an interpreter, the newest releases that the constraints allow."""
    limits = [part for each in constraints for part in ("--constraints", each)]
    run(uv(), "pip", "install", "--python", python, *limits, *how, *what, quiet="--dry-run" in how)
