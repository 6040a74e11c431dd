"""The picture of the architecture page shows the layers that import-linter holds, from top to bottom."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_picture_has_every_layer_on_a_line_of_its_own_in_their_order() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
    layers = [
        each.split(" | ")
        for each in next(each for each in contracts if each["type"] == "layers")["layers"]
    ]
    lines = (ROOT / "docs/architecture.md").read_text().split("```")[1].splitlines()
    places = [
        [
            number
            for number, line in enumerate(lines)
            if {shown(name) for name in layer} <= set(line.split())
        ][:1]
        for layer in layers
    ]

    assert [] == [layer for layer, place in zip(layers, places, strict=True) if not place]
    assert sorted(set(map(tuple, places))) == list(map(tuple, places))


def shown(name: str) -> str:
    """How the picture writes a module or package."""
    return f"{name}/" if (ROOT / "src/headrace" / name).is_dir() else name


def test_every_file_that_the_page_names_is_there() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    modules = {path.name for path in (ROOT / "src/headrace").rglob("*.py")}
    named = set(re.findall(r"`(?:[\w/]+/)?(\w+\.py)`", page))

    assert named
    assert named <= modules


def test_the_environment_is_read_by_commands_and_by_the_topology() -> None:
    """Others hand variables on to processes of theirs, or set them for libraries that listen to nothing else."""
    package = ROOT / "src/headrace"
    commands = {"validate_sharding.py"}
    others = {"stream/ranks/topology.py", "engine/ray.py", "packing/chats/render_process.py"}
    using = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if re.search(r"\bos\.(environ|getenv)\b", path.read_text())
    }

    assert commands | others == {name for name in using if not name.startswith("cli/")}
