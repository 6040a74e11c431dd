"""Two identical runs have identical files: every byte of every recipe, whatever hash seed, workers or directory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fault_recipes import RECIPES, make, settings_of
from forks import PATHS

from tables import digests

CHILD = """
import json, sys
from pathlib import Path
from fault_recipes import make
for name, settings in json.loads(sys.argv[1]).items():
    make(name, settings, Path(sys.argv[2]) / name, workers=1)
"""


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All recipes again, with one worker, in a process with other hashes."""
    out = tmp_path_factory.mktemp("elsewhere")
    settings = {name: settings_of(name) for name in RECIPES}
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(PATHS),
        "PYTHONHASHSEED": "7",
        "TZ": "Asia/Tokyo",
    }
    command = [sys.executable, "-W", "ignore", "-c", CHILD, json.dumps(settings), str(out)]
    subprocess.run(command, env=environment, check=True, timeout=600)
    return out


@pytest.mark.parametrize("name", RECIPES)
def test_two_runs_have_the_same_bytes_in_every_file(
    tmp_path: Path, elsewhere: Path, name: str
) -> None:
    run = make(name, settings_of(name), tmp_path / "out", workers=4).run
    other = elsewhere / name / "runs" / run.name

    files = digests(run)
    assert files == digests(other)
    assert {"manifest.json", "config.json", "index.parquet"} <= set(files)
    links = {
        each.relative_to(run): os.readlink(each) for each in run.rglob("*") if each.is_symlink()
    }
    assert links == {
        each.relative_to(other): os.readlink(each) for each in other.rglob("*") if each.is_symlink()
    }
