"""The example of packed chats: it prepares, trains, and finds every token's loss the same packed and alone."""

import importlib.util
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import headrace

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "packed_chats"
SHARED = ROOT.parent / "shared" / "data"
GSM8K, QWEN = SHARED / "job5-gsm8k" / "train.jsonl.gz", SHARED / "job5-tokenizer-qwen3"
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(headrace.__file__).parents[1])}
COMPARED = re.compile(
    r"loss (\S+) packed, (\S+) alone; .* of a token (\S+), of a gradient (\S+) \(without the mask (\S+)\)"
)

needs_package = pytest.mark.skipif(
    importlib.util.find_spec("chatterbot_corpus") is None,
    reason="chatterbot-corpus is not installed",
)
needs_data = pytest.mark.skipif(
    not (GSM8K.is_file() and QWEN.is_dir()),
    reason="GSM8K and the Qwen3 tokenizer are not beside the project",
)


def run(*arguments):
    command = [sys.executable, str(EXAMPLE / "train.py"), *map(str, arguments)]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)


def shows_no_leak_and_learning(done):
    assert done.returncode == 0, done.stderr
    before, after = COMPARED.findall(done.stdout)
    for packed, alone, apart, leaning, leaked in (before, after):
        assert packed == alone
        assert float(apart) < 1e-9 < 1e-4 < float(leaked)
        assert float(leaning) < 1e-9
    assert float(after[0]) < float(before[0]) - 0.5


def written(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.slow
@needs_package
def test_chats_of_the_package_train_a_tokenizer_and_a_model_that_sees_one_chat_at_a_time(tmp_path):
    pytest.importorskip("tokenizers", reason="needs headrace[chat]")
    small = ("--limit", 900, "--pack-size", 512, "--steps", 15, "--bins", 4, "--out", tmp_path)
    done = run(*small)

    shows_no_leak_and_learning(done)
    assert "900 chats" in done.stdout


@needs_package
def test_the_package_gives_each_question_with_its_first_answer_once():
    rows = runpy.run_path(str(EXAMPLE / "corpus.py"))["rows_of"](None)
    pairs = [json.loads(row) for row in rows]

    assert len(rows) == len(set(rows)) > 5000
    assert {("question", "answer")} == {tuple(pair) for pair in pairs}
    assert {"question": "What is the rarest M&M color?", "answer": "Brown"} in pairs


@needs_package
def test_the_same_rows_give_the_same_tokenizer_and_others_another(tmp_path):
    pytest.importorskip("tokenizers", reason="needs headrace[chat]")
    script = runpy.run_path(str(EXAMPLE / "corpus.py"))
    rows = script["rows_of"](None)[:400]
    first, again, fewer = (
        written(script["train_tokenizer"](some, tmp_path / name))
        for name, some in (("first", rows), ("again", rows), ("fewer", rows[:200]))
    )

    assert first == again
    assert first["tokenizer.json"] != fewer["tokenizer.json"]
    assert {"tokenizer.json", "tokenizer_config.json"} == set(first)


@pytest.mark.slow
@needs_data
def test_losses_are_the_same_packed_and_alone_with_data_and_tokenizer_of_ones_own(tmp_path):
    pytest.importorskip("tokenizers", reason="needs headrace[chat]")
    small = ("--limit", 120, "--pack-size", 512, "--steps", 12, "--bins", 2, "--out", tmp_path)
    done = run("--data", GSM8K, "--tokenizer", QWEN, *small)

    shows_no_leak_and_learning(done)
    assert "120 chats" in done.stdout


@pytest.mark.slow
def test_what_is_not_there_is_named_with_what_to_do(tmp_path):
    no_data = run("--data", tmp_path / "nothing.jsonl", "--out", tmp_path)
    no_tokenizer = run("--tokenizer", tmp_path / "nowhere", "--out", tmp_path)

    assert 1 == no_data.returncode == no_tokenizer.returncode
    assert (
        "nothing.jsonl does not exist; say where JSON lines of question and answer are with --data"
        in no_data.stderr
    )
    assert (
        "nowhere does not exist; say where a tokenizer is with --tokenizer" in no_tokenizer.stderr
    )


def test_the_package_is_read_and_never_imported_and_named_where_it_is_missing(
    tmp_path, monkeypatch
):
    rows_of = runpy.run_path(str(EXAMPLE / "corpus.py"))["rows_of"]
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "chatterbot_corpus", raising=False)
    with pytest.raises(SystemExit, match="pip install --no-deps chatterbot-corpus"):
        rows_of(None)
    for name, text in {
        "__init__.py": "raise ImportError('it is not to be imported')",
        "data/b/x.yml": "conversations:\n- - Wer?\n  - ' Ich.'\n- - alone\n",
        "data/a/x.yml": "conversations:\n- - Who?\n  - Me.\n  - And you?\n- - Who?\n  - Me.\n- - Who?\n  - Nobody.\n",
    }.items():
        path = tmp_path / "chatterbot_corpus" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    importlib.invalidate_caches()

    assert [("Who?", "Me."), ("Who?", "Nobody."), ("Wer?", "Ich.")] == [
        tuple(json.loads(row).values()) for row in rows_of(None)
    ]
