"""Every command's help has examples; they are commands that parse, and those that need only a split run as they stand."""

import json
import re
import shlex
from pathlib import Path

import polars as pl
import pytest
from all_commands import COMMANDS
from typer.testing import CliRunner

import headrace
from headrace.cli import app
from headrace.cli.application import flowing

EXAMPLE = re.compile(r"^Example:  (headrace .*)$", re.MULTILINE)
OF_A_SPLIT = ("split", "run", "inspect", "verify", "gc", "rewrite", "peek", "plan", "where", "init split")  # fmt: skip
EXAMPLES = [
    (words, example)
    for words, each in COMMANDS.items()
    for example in EXAMPLE.findall(each.help or "")
]


def arguments_of(example: str) -> list[str]:
    """The words behind `headrace`, without what the shell keeps."""
    words = shlex.split(example)[1:]
    return words[: words.index(">")] if ">" in words else words


def test_every_command_has_an_example() -> None:
    assert len({words[0] for words in COMMANDS}) == 18
    assert set(COMMANDS) == {words for words, _ in EXAMPLES}


@pytest.mark.parametrize(
    ("words", "example"), EXAMPLES, ids=[example[9:50] for _, example in EXAMPLES]
)
def test_an_example_parses(words: tuple[str, ...], example: str) -> None:
    given = arguments_of(example)
    known = (
        [*words, *given[1:]]
        if words[0] == given[0] and words[1:2] in (("prepare",), ("DATA",))
        else given
    )  # the default ones
    assert tuple(known[: len(words)]) == words
    context = COMMANDS[words].make_context(words[-1], known[len(words) :])

    assert context.params


@pytest.mark.slow
def test_examples_about_a_split_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HEADRACE_REPORT", "never")
    (tmp_path / "raw").mkdir()
    for shard in range(4):
        rows = [
            {"customer": f"c{row % 40}", "time": f"202{3 + row % 3}-03-01", "amount": row}
            for row in range(60)
        ]
        pl.DataFrame(rows).write_parquet(tmp_path / f"raw/part-{shard:05d}.parquet")
    (tmp_path / "config.yaml").write_text(
        "recipe: temporal_split\nsource: raw\nout: out\ntime: time\nentity: customer\nsplit_date: 2025-01-01\n"
    )
    ran = []
    for name in OF_A_SPLIT:
        for words, example in EXAMPLES:
            given = arguments_of(example)
            if words != tuple(name.split()) or "--mask" in given:
                continue
            if "state.json" in given:
                state = headrace.open("out").stream("train", batch_size=8).state_dict()
                (tmp_path / "state.json").write_text(json.dumps(state))
            done = CliRunner().invoke(app, [each for each in given if each != "--open"])

            assert done.exit_code == 0, (example, done.output, done.exception)
            ran.append(name)

    assert set(OF_A_SPLIT) == set(ran)


def test_paragraphs_of_help_flow() -> None:
    assert "One line, gone on.\n\nAnother paragraph." == flowing(
        "One line,\n    gone on.\n\n    Another\n    paragraph."
    )
    assert [] == [
        words for words, each in COMMANDS.items() if re.search(r"[^\n]\n[^\n]", each.help or "")
    ]


def test_every_command_stands_under_what_it_is_for() -> None:
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "100"}).output

    assert [panel for panel in ("Prepare", "Inspect prepared data", "Stream", "This machine") if f"─ {panel} ─" not in shown] == []  # fmt: skip
    assert "─ Commands ─" not in shown
