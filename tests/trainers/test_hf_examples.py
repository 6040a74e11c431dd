"""The examples of Hugging Face's Trainer and of TRL: stopped inside the epoch, and resumed on other ranks."""

import re
from pathlib import Path

import pytest
from script_processes import run_script

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "examples" / "trainers"
CHATS = ROOT.parent / "shared" / "data" / "job5-gsm8k"
TOKENIZER = CHATS.with_name("job5-tokenizer-qwen3")


@pytest.mark.slow
def test_the_trainer_stops_and_goes_on_on_other_ranks(tmp_path):
    pytest.importorskip("transformers", reason="needs transformers")
    command = [str(SCRIPTS / "hf_trainer.py"), "--checkpoint", "saved"]

    assert "2 ranks, 2 steps: 32 of 49 rows, none twice\n" in run_script(
        tmp_path, 2, [*command, "--stop-after", "2"]
    )
    assert "1 ranks, 3 steps: 49 of 49 rows, none twice\n" in run_script(tmp_path, 1, command)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(
    not CHATS.is_dir() or not TOKENIZER.is_dir(),
    reason="chats and tokenizer are not beside the project",
)
def test_packed_chats_are_trained_once_by_trl(tmp_path):
    pytest.importorskip("trl", reason="needs trl")
    command = [str(SCRIPTS / "trl_sft.py"), "--data", str(CHATS), "--tokenizer", str(TOKENIZER)]
    small = ["--limit", "20", "--pack-size", "256"]
    stopped = run_script(tmp_path, 2, [*command, *small, "--stop-after", "1"])
    resumed = run_script(tmp_path, 1, [*command, *small])
    counts = r"trained tokens ([\d,]+) of the split's ([\d,]+), evaluation loss \d"

    ((some, split),) = re.findall(counts, stopped)
    assert int(some.replace(",", "")) < int(split.replace(",", ""))
    assert [(split, split)] == re.findall(counts, resumed)
