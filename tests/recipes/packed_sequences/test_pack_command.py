"""`headrace pack`: what people type, what they see, what machines get, and the exit codes."""

import contextlib
import io
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from chats import small_tokenizer
from recipe_cases import all_sequences, token_rows, write_jsonl

from headrace.cli import main

SPLIT = ["--train-ratio", "0.8", "--val-ratio", "0.1", "--test-ratio", "0.1"]


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


def run(*arguments: Any) -> Done:
    """The command in this process: starting one takes longer than packing so little."""
    out, errors, code = io.StringIO(), io.StringIO(), 0
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(errors),
    ):
        patch.setattr(sys, "argv", ["headrace", *map(str, arguments)])
        patch.setenv("COLUMNS", "120")
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0
    return Done(code, out.getvalue(), errors.getvalue())


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_jsonl(
        tmp_path_factory.mktemp("tokens") / "in.jsonl", [*token_rows(200, 1), "{broken"]
    )


def test_a_plain_path_is_packed_and_summed_up(tmp_path: Path, tokens: Path) -> None:
    done = run(
        "pack",
        tokens,
        "--out",
        tmp_path / "out",
        "--pack-size",
        256,
        "--too-long",
        "truncate",
        *SPLIT,
    )

    assert done.returncode == 0, done.stderr
    for word in (
        "train",
        "valid",
        "test",
        "fill",
        "trained",
        "broken_json",
        "too_long",
        "sequences longer than a bin",
    ):
        assert word in done.stdout
    counts = re.findall(r"│ (train|valid|test) +│ +([0-9]+) │", done.stdout)
    assert [("train", "160"), ("valid", "20"), ("test", "20")] == counts
    assert done.stderr.startswith("warning: ")
    assert "in: train" not in done.stderr  # a pipe is spared what is no warning
    assert 200 == sum(all_sequences(tmp_path / "out").values())


def test_the_second_time_nothing_is_computed(tmp_path: Path, tokens: Path) -> None:
    arguments = ("pack", tokens, "--out", tmp_path / "out", "--json")
    first, second = json.loads(run(*arguments).stdout), json.loads(run(*arguments).stdout)

    assert ("computed", "reused") == (first["how"], second["how"])
    assert first["metadata"]["packed"]["sequences"] == 200
    assert 1 == first["dropped"]["broken_json"]


@pytest.mark.slow
def test_chats_with_a_mapping_a_tokenizer_and_a_blend_file(tmp_path: Path) -> None:
    rows = [{"q": f"question {number}", "a": f"the answer is {number}"} for number in range(60)]
    write_jsonl(tmp_path / "data" / "qa.jsonl.gz", rows)
    source = {"name": "qa", "path": "data/qa.jsonl.gz", "mapping": {"user": "q", "assistant": "a"}}
    blend = tmp_path / "blend.json"
    blend.write_text(json.dumps({"datasets": [source]}))
    tokenizer = small_tokenizer(tmp_path / "tokenizer")
    common = ("--tokenizer", tokenizer, "--pack-size", 256, *SPLIT, "--json")

    by_blend = run("pack", blend, "--out", tmp_path / "one", *common)
    plain = run("pack", tmp_path / "data" / "qa.jsonl.gz", "--out", tmp_path / "two", "--mapping", "user=q,assistant=a", *common)  # fmt: skip

    assert by_blend.returncode == plain.returncode == 0, by_blend.stderr + plain.stderr
    assert json.loads(by_blend.stdout)["run_id"] == json.loads(plain.stdout)["run_id"]
    assert all_sequences(tmp_path / "one") == all_sequences(tmp_path / "two")
    assert 0 == run("verify", tmp_path / "one").returncode
    inspected = run("inspect", tmp_path / "one")
    assert "bins without a label" in inspected.stdout
    assert "split of qa" in inspected.stdout


def test_filters_leave_rows_out_and_count_them(tmp_path: Path) -> None:
    rows = [
        {**row, "used_in": ["sft", "rl"][number % 2]}
        for number, row in enumerate(token_rows(60, 4))
    ]
    path = write_jsonl(tmp_path / "in.jsonl", rows)

    record = json.loads(
        run(
            "pack",
            path,
            "--out",
            tmp_path / "out",
            "--filter",
            "used_in=sft,chat",
            *SPLIT,
            "--json",
        ).stdout
    )

    assert (30, 30) == (
        record["dropped"]["filtered"],
        sum(record["metadata"]["source_rows"].values()),
    )
    assert "" == (tmp_path / "out" / "rejected.jsonl").read_text()


def test_a_configuration_file_gives_the_same_run(tmp_path: Path, tokens: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"recipe": "packed_sequences", "blend": str(tokens), "out": str(tmp_path / "out"), "pack_size": 512}))  # fmt: skip

    first = run("run", config, "--json")
    second = run("pack", tokens, "--out", tmp_path / "out", "--pack-size", 512, "--json")

    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    assert "reused" == json.loads(second.stdout)["how"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--pack-size", "1"], 2, "--pack-size is 1"),
        (["--too-long", "shorten"], 2, "'shorten' is not one of"),
        (["--train-ratio", "0.5"], 2, "make them add up to 1"),
        (["--pack-size", "64"], 1, "--too-long truncate"),
        (["--max-bad-share", "0"], 1, "1 of 201 rows are bad"),
        (["--tokenizer", "/nowhere"], 2, "--tokenizer is '/nowhere': it is not there"),
        (["--mapping", "user"], 2, "--mapping is 'user': expected NAME=COLUMN"),
    ],
)
def test_what_is_wrong_is_said_in_one_message_with_its_exit_code(
    tmp_path: Path, tokens: Path, arguments: list[str], code: int, message: str
) -> None:
    done = run("pack", tokens, "--out", tmp_path / "out", *arguments)

    assert code == done.returncode, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out" / "splits").exists()


def test_a_missing_path_is_an_error_of_the_data(tmp_path: Path) -> None:
    done = run("pack", tmp_path / "none.jsonl", "--out", tmp_path / "out")

    assert 1 == done.returncode
    assert "no such file, directory or match" in done.stderr
