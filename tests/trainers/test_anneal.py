"""An anneal on three sources: killed on three ranks and resumed on two, its losses by source are those of one rank."""

import json
import math
from pathlib import Path

import pytest
import torch
from script_processes import run_script

ROOT = Path(__file__).parents[2]
SCRIPT = str(ROOT / "examples" / "trainers" / "anneal.py")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (torch.distributed.is_available() and torch.distributed.is_gloo_available()),
        reason="needs torch with gloo",
    ),
]


def curve(text):
    """Losses by source of each step; a step that was done again counts once."""
    lines = [json.loads(line) for line in text.splitlines()]
    return {line.pop("step"): line for line in lines}


def test_an_anneal_killed_and_resumed_on_other_ranks_has_the_same_curve(tmp_path):
    flags = [SCRIPT, "--out", str(tmp_path / "sources"), "--checkpoint"]
    whole = curve(run_script(tmp_path, 1, [*flags, "alone.pt"]))
    with pytest.raises(torch.multiprocessing.ProcessExitedException, match="SIGKILL"):
        run_script(tmp_path, 3, [*flags, "newest.pt", "--die-at", "63"])
    stopped = curve((tmp_path / "printed-0.txt").read_text())
    resumed = curve(run_script(tmp_path, 2, [*flags, "newest.pt"]))

    assert list(range(61, 85)) == sorted(resumed)  # the anneal began at step 60
    assert list(range(1, 85)) == sorted(whole) == sorted(stopped | resumed)
    for found in (stopped, resumed):
        for step, losses in found.items():
            for source, loss in losses.items():
                assert math.isclose(loss, whole[step][source], rel_tol=1e-4) or math.isnan(loss)
    # what came rarely before the anneal is learned in it
    assert whole[60]["math"] > 2 * whole[84]["math"]
