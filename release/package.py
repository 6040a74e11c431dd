"""Builds the wheel and the sdist and shows that they work: `make package`.

The wheel built from the sdist has the bytes of the one built from the checkout, and every file of src/. Installed alone
it brings the core's dependencies and nothing of an extra, does a real job outside the checkout, and names the extra of
whatever is missing. Every extra resolves beside it.
"""

import re
import sys
import tempfile
import tomllib
import zipfile
from email.parser import Parser
from hashlib import sha256
from pathlib import Path

from environments import BUILD, ROOT, fresh, install, run, uv

DEVELOPERS = {"test", "fuzz", "lint", "docs", "bench", "package"}


def main() -> None:
    """All of it; leaves with an error at the first thing that is not as promised."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    dist, direct = BUILD / "dist", BUILD / "direct"
    for old in (*dist.glob("*"), *direct.glob("*")):
        old.unlink()
    build = (sys.executable, "-m", "build", "--installer", "uv", "--outdir")
    run(*build, dist, ".", quiet=True)  # the sdist, and a wheel out of it
    run(*build, direct, "--wheel", ".", quiet=True)
    run(sys.executable, "-m", "twine", "check", "--strict", *dist.glob("headrace-*"))
    (wheel,) = dist.glob("*.whl")
    same_wheels(wheel, *direct.glob("*.whl"))
    whole_wheel(wheel, project)
    python = core_alone(wheel, project)
    extras = [name for name in project["optional-dependencies"] if name not in DEVELOPERS]
    for extra in extras:
        install(python, f"headrace[{extra}] @ {wheel.as_uri()}", how=["--dry-run"])
    print("extras that resolve alone:", *extras)
    with tempfile.TemporaryDirectory() as where:
        run(
            python,
            ROOT / "release" / "core_job.py",
            python.with_name("headrace"),
            where=Path(where),
        )
    install(python, "hypothesis>=6.100", "pytest>=8.2", "pytest-timeout>=2.3")
    run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/packaging")


def members(wheel: Path) -> dict[str, str]:
    """The digest of every file in it."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: sha256(archive.read(name)).hexdigest() for name in archive.namelist()}


def same_wheels(one: Path, other: Path) -> None:
    """The same files, byte for byte."""
    differing = sorted(name for name, _ in members(one).items() ^ members(other).items())
    if differing:
        sys.exit(f"the wheel out of the sdist differs from the checkout's: {', '.join(differing)}")


def whole_wheel(wheel: Path, project: dict[str, object]) -> None:
    """It has every file of src/ and nothing beside, the mark of its types, its licence and the declared metadata."""
    held = set(members(wheel))
    source = ROOT / "src"
    wanted = {
        str(path.relative_to(source))
        for path in (source / "headrace").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    code = {name for name in held if ".dist-info/" not in name}
    if wanted != code or "headrace/py.typed" not in code:
        sys.exit(
            f"the wheel and src/ differ: {', '.join(sorted(wanted ^ code)) or 'headrace/py.typed is not there'}"
        )
    info = f"headrace-{project['version']}.dist-info"
    with zipfile.ZipFile(wheel) as archive:
        said = Parser().parsestr(archive.read(f"{info}/METADATA").decode())
    if f"{info}/licenses/LICENSE" not in held or said["License-Expression"] != project["license"]:
        sys.exit("the wheel lacks its licence")
    if (
        said["Requires-Python"] != project["requires-python"]
        or said["Version"] != project["version"]
    ):
        sys.exit("the wheel's metadata is not that of pyproject.toml")


def core_alone(wheel: Path, project: dict[str, object]) -> Path:
    """The interpreter of an environment with the wheel and what it needs; nothing of an extra is among that."""
    python = fresh("core")
    install(python, str(wheel))
    listed = run(uv(), "pip", "freeze", "--quiet", "--python", python, quiet=True).splitlines()
    names = {canonical(line) for line in listed}
    extras = project["optional-dependencies"]
    assert isinstance(extras, dict)
    optional = {
        canonical(each)
        for name, group in extras.items()
        if name not in DEVELOPERS
        for each in group
    }
    if unwanted := names & (optional - {"headrace"}):
        sys.exit(f"the core alone brings packages of extras: {', '.join(sorted(unwanted))}")
    print(f"the core alone: {len(names)} packages:", *sorted(names))
    return python


def canonical(requirement: str) -> str:
    """The name of a requirement as indexes spell it."""
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    return re.sub(r"[-_.]+", "-", found[0]).lower() if found else ""


if __name__ == "__main__":
    main()
