"""The picture of the architecture page shows the layers that import-linter holds, from top to bottom."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

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
    others = {
        "storage/bucket.py",
        "stream/ranks/topology.py",
        "engine/ray.py",
        "packing/chats/render_process.py",
    }
    using = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if re.search(r"\bos\.(environ|getenv)\b", path.read_text())
    }

    assert commands | others == {name for name in using if not name.startswith("cli/")}


# What maps a file, or opens one of a format whose offsets nobody vouches for, by the end of its name.
GATED = {
    "mmap", "memmap", "memory_map", "MemoryMappedFile", "create_memory_map",
    "open_file", "open_stream", "RecordBatchFileReader", "RecordBatchStreamReader", "MessageReader",
    "read_message", "read_record_batch", "read_ipc", "read_ipc_stream", "scan_ipc", "read_feather",
    "mmap_mode",
}  # fmt: skip
# (file, name) → why it may do without the gate
AROUND = {
    ("packing/chats/render_process.py", "mmap"): "memory that two processes share; it has no file",
    (
        "stream/workers/parcel.py",
        "open_stream",
    ): "a batch in memory that a worker of this loader wrote",
    ("dataset/contents.py", "memmap"): "a temporary file without a name, of this process alone",
}


def test_untrusted_files_are_read_through_the_gate_alone() -> None:
    package = ROOT / "src/headrace"
    found = {
        (path.relative_to(package).as_posix(), name)
        for path in package.rglob("*.py")
        if path.parent.name != "gate"
        for name in gated(ast.parse(path.read_text()))
    }

    assert set(AROUND) == found


@pytest.mark.parametrize(
    "code",
    [
        "import mmap",
        "import mmap as m",
        "from mmap import mmap as m",
        "import numpy as n; n.memmap('x')",
        "from numpy import memmap as m",
        "import pyarrow; pyarrow.memory_map('x')",
        "from pyarrow import memory_map as m",
        "import pyarrow as pa; ipc = pa.ipc; ipc.open_file('x')",
        "from pyarrow.ipc import open_stream",
        "import pyarrow as pa; getattr(pa, 'memory_map')('x')",
        "import polars as pl; pl.scan_ipc('x')",
        "import numpy as np; np.load('x', mmap_mode='r')",
        "from pyarrow.parquet import read_table; read_table('x', memory_map=True)",
    ],
)
def test_no_other_name_leads_around_the_gate(code: str) -> None:
    assert gated(ast.parse(code))


def test_functions_and_texts_of_our_own_may_have_any_name() -> None:
    assert not gated(
        ast.parse("from headrace.formats.parquet import open_file; open_file('open_file x')")
    )


def gated(tree: ast.Module) -> set[str]:
    """The gated names that code uses: as an attribute of anything, an import from elsewhere, or a text that `getattr`
    could be given."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)
        elif isinstance(node, ast.keyword):
            names.add(node.arg or "")
        elif isinstance(node, ast.Import):
            names.update(part for alias in node.names for part in alias.name.split("."))
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("headrace"):
            names.update([*(node.module or "").split("."), *(alias.name for alias in node.names)])
    return names & GATED
