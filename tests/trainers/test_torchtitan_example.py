"""The example in torchtitan itself: three ranks are killed and two go on."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "torchtitan"
INSTALLED = importlib.util.find_spec("torchtitan") is not None
CORPUS = importlib.util.find_spec("chatterbot_corpus") is not None


def run(out: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(EXAMPLE / "train.py"), "--out", str(out)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.skipif(INSTALLED, reason="torchtitan is installed")
def test_without_torchtitan_it_says_what_to_install(tmp_path):
    done = run(tmp_path / "out")

    assert done.returncode == 1
    assert "torchtitan is not installed" in done.stderr
    assert "requirements.txt" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(
    not INSTALLED,
    reason="torchtitan is not installed: it needs an environment of its own, `make titan`",
)
@pytest.mark.skipif(not CORPUS, reason="chatterbot-corpus is not installed")
def test_a_killed_epoch_goes_on_with_fewer_ranks_and_the_same_losses(tmp_path):
    done = run(tmp_path / "out")
    assert done.returncode == 0, done.stdout + done.stderr

    assert "19 steps of 12" in done.stdout
    assert re.search(
        r"3 ranks killed after step \d+, resumed on 2: each bin once; losses differ by \de-0[5-9]",
        done.stdout,
    )
    assert "each of 24 bins once" in done.stdout
    assert "dataloader resharding is not supported yet" in done.stdout
