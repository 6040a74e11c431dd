"""Every folder of examples/ is one command, a page of the site, and a test that runs its program."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = sorted(
    path.name
    for path in (ROOT / "examples").iterdir()
    if path.is_dir() and path.name != "__pycache__"
)
RUNS = re.compile(r"\$\(\w+\)/bin/python .*examples/(\w+)/(?:train|demo|\$\*)\.py")


def test_make_runs_each_of_them() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")

    assert FOLDERS == sorted(
        {*RUNS.findall(makefile.replace("$(BIN)", "$(VENV)/bin")), "own_recipe"}
    )  # a package


@pytest.mark.parametrize("folder", FOLDERS)
def test_it_has_a_page_and_a_test(folder: str) -> None:
    page = f"examples/{folder}/README.md"
    tests = [path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*example*.py")]
    ci = (ROOT / ".ci/run").read_text("utf-8")  # runs the demo itself

    assert (ROOT / page).is_file()
    assert f": {page}" in (ROOT / "mkdocs.yml").read_text("utf-8")
    assert f"(../{page})" in (ROOT / "docs/examples.md").read_text("utf-8")
    assert (
        any(f'"{folder}"' in text for text in tests)
        or (folder == "flights" and "make demo" in ci)
        or folder == "own_recipe"
    )
