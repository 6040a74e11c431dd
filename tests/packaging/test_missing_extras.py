"""An extra that is not installed is named by the error of whatever needs it.

Each use runs in a process of its own from which the extra's packages are kept away; `make package` runs the same tests
in an environment that never had them.
"""

import json
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

HERE = Path(__file__).parent
DEVELOPERS = {"test", "lint", "docs", "bench", "package", "fuzz"}
PACKAGES = {
    "torch": ["torch"],
    "lightning": ["lightning", "torch"],
    "transformers": ["transformers", "accelerate"],
    "chat": ["tokenizers", "jinja2"],
    "fastokens": ["fastokens"],
    "histories": ["array_record", "numba"],
    "grain": ["grain", "absl", "array_record", "numba"],
    "ray": ["ray"],
    "s3": ["obstore"],
    "gs": ["obstore"],
    "az": ["obstore"],
    "series": ["sklearn", "skops"],
    "pandas": ["pandas"],
    "duckdb": ["duckdb"],
    "datasets": ["datasets"],
    "xarray": ["xarray"],
}
ALL = tuple(sorted({name for names in PACKAGES.values() for name in names} | {"torchdata"}))
USES = [
    ("torch", "torch_stream", ["torch"]),
    ("torch", "torch_dataset", ["torch"]),
    ("torch", "torch_map", ["torch"]),
    ("torch", "torch_class", ["torch"]),
    ("torch", "torch_tabular", ["torch"]),
    ("torch", "torch_windows", ["torch"]),
    ("torch", "torch_contexts", ["torch"]),
    ("lightning", "lightning_module", ["lightning"]),
    ("lightning", "lightning_module", ["lightning", "torch"]),
    ("transformers", "transformers_module", ["transformers"]),
    ("chat", "chat_pack", ["tokenizers"]),
    ("chat", "chat_pack", ["jinja2"]),
    ("fastokens", "fastokens_pack", ["fastokens"]),
    ("histories", "histories_write", ["array_record"]),
    ("histories", "histories_kernel", ["numba"]),
    ("grain", "grain_module", ["grain"]),
    ("ray", "ray_engine", ["ray"]),
    ("s3", "s3_open", ["obstore"]),
    ("gs", "gs_open", ["obstore"]),
    ("az", "az_open", ["obstore"]),
    ("series", "series_steps", ["sklearn"]),
    ("series", "series_skops", ["skops"]),
    ("pandas", "pandas_frame", ["pandas"]),
    ("duckdb", "duckdb_relation", ["duckdb"]),
    ("datasets", "datasets_dataset", ["datasets"]),
    ("xarray", "xarray_open", ["xarray"]),
]


@cache
def what_came(packages: tuple[str, ...]) -> dict[str, Any]:
    """What each use gave in one process without the packages, in a directory of its own."""
    uses = [use for _, use, absent in USES if tuple(absent) == packages]
    if packages == ("torch",):
        uses.append("validate_sharding")
    if packages == ALL:
        uses = ["every_module"]
    with TemporaryDirectory() as where:
        command = [sys.executable, str(HERE / "without_modules.py"), ",".join(packages), *uses]
        done = subprocess.run(
            command, cwd=where, capture_output=True, text=True, timeout=250, check=False
        )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.smoke("torch_stream-torch", "chat_pack-jinja2")
@pytest.mark.parametrize(
    ("extra", "use", "packages"), USES, ids=[f"{use}-{'-'.join(each)}" for _, use, each in USES]
)
def test_a_use_without_its_extra_names_the_extra(extra: str, use: str, packages: list[str]) -> None:
    came = what_came(tuple(packages))[use]
    # with the core alone, what these uses need of another extra is missed first
    before = {"torch_contexts": "histories", "fastokens_pack": "chat"}.get(use, extra)

    assert re.fullmatch(
        r"MissingExtra: \S+ is not installed; install it with: pip install"
        rf" 'headrace\[({extra}|{before})\]'",
        str(came),
    ), came


def test_a_job_run_as_a_module_without_torch_is_refused_in_a_sentence() -> None:
    came = what_came(("torch",))["validate_sharding"]

    assert came.startswith("exit 2: ")
    assert "pip install 'headrace[torch]'" in came


@pytest.mark.slow
def test_every_module_imports_unless_a_package_of_an_extra_is_missing() -> None:
    came = what_came(ALL)["every_module"]

    assert came["wrong"] == []
    assert {"chat", "grain", "histories", "lightning", "torch"} <= set(came["named"])


def test_every_extra_has_a_use_here_or_is_imported_by_users_alone() -> None:
    source = HERE.parents[1] / "src" / "headrace"
    project = tomllib.loads((HERE.parents[1] / "pyproject.toml").read_text())["project"]
    extras = set(project["optional-dependencies"]) - DEVELOPERS

    assert extras - {"stateful"} == {extra for extra, _, _ in USES} == set(PACKAGES)
    imports = re.compile(r"^\s*(import|from) torchdata\b", re.MULTILINE)
    assert not [path for path in source.rglob("*.py") if imports.search(path.read_text())]
