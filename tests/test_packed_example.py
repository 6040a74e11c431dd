"""The example of packed chats: it prepares, trains, and finds every token's loss the same packed and alone."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "examples" / "packed_gsm8k" / "train.py"
SHARED = ROOT.parent / "shared" / "data"
COMPARED = re.compile(
    r"loss (\S+) packed, (\S+) alone; .* of a token (\S+), of a gradient (\S+) \(without the mask (\S+)\)"
)

needs_data = pytest.mark.skipif(
    not ((SHARED / "job5-gsm8k").is_dir() and (SHARED / "job5-tokenizer-qwen3").is_dir()),
    reason="GSM8K and the Qwen3 tokenizer are not beside the project",
)


def run(*arguments):
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False)


@needs_data
def test_losses_of_packed_tokens_are_those_of_their_sequences_alone_before_and_after_training(tmp_path):
    pytest.importorskip("tokenizers", reason="needs headrace[chat]")
    small = ("--limit", "120", "--pack-size", "512", "--steps", "12", "--bins", "2", "--out", str(tmp_path))
    done = run(*small)

    assert done.returncode == 0, done.stderr
    before, after = COMPARED.findall(done.stdout)
    for packed, alone, apart, leaning, leaked in (before, after):
        assert packed == alone
        assert float(apart) < 1e-9 < 1e-4 < float(leaked)
        assert float(leaning) < 1e-9
    assert float(after[0]) < float(before[0]) - 0.5
    assert "120 chats" in done.stdout


def test_without_the_data_the_example_says_what_to_do(tmp_path):
    done = run("--data", str(tmp_path / "nothing.jsonl"), "--out", str(tmp_path))

    assert done.returncode == 1
    assert "nothing.jsonl does not exist; say where GSM8K's JSON lines are with --data" in done.stderr
