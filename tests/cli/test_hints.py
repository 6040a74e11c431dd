"""Messages of a command name flags as they are typed, and all that is missing at once."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from commands import headrace
from headrace.cli.output import in_flags, name_flags_of
from headrace.errors import setting

HEADRACE = Path(sys.executable).parent / "headrace"


class Flag:
    def __init__(self, name: str) -> None:
        self.name, self.opts = name, [f"--{name.replace('_', '-')}"]


class Command:
    params = (Flag("time"), Flag("train_ratio"))


def test_options_are_written_as_flags_of_the_command() -> None:
    name_flags_of(Command)

    assert "give --train-ratio 0.8, or --time" == in_flags(
        f"give {setting('train_ratio', 0.8)}, or {setting('time')}"
    )
    assert "leave label out" == in_flags(f"leave {setting('label')} out")
    assert "a time=2024-01-01/part-0.csv" == in_flags("a time=2024-01-01/part-0.csv")


def said(*arguments: str | Path) -> str:
    done = subprocess.run(
        [HEADRACE, *map(str, arguments), "--json"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    return str(json.loads(done.stdout)["error"]["message"])


@pytest.mark.slow
def test_a_command_line_names_all_that_is_missing(tmp_path: Path) -> None:
    assert "Missing option '--config'. Also missing: '--out'." == said("init", "split", tmp_path)
    assert "Also missing: '--config', '--out'." in said("init", "split")
    assert "Also missing: '--batch-size'." in said("plan", tmp_path)
    assert "not given: --out; add it" == said("split", tmp_path)
    assert "not given: --out, --split-date; add them" == said("split", tmp_path, "--time", "when")


def test_settings_of_a_recipe_are_flags_in_its_command_and_names_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("who,when,bought\n1,2024-01-01,1\n")
    told = "or leave {} out for values as they are"
    flags = (
        "--time",
        "when",
        "--split-date",
        "2024-01-02",
        "--label",
        "bought",
        "--types",
        "bought=int8",
    )
    (tmp_path / "a.yaml").write_text(
        "{recipe: temporal_split, source: a.csv, time: when, split_date: 2024-01-02, label: bought, types: {bought: int8}}"
    )

    assert told.format("--label") in said(
        "split", tmp_path / "a.csv", "--out", tmp_path / "out", *flags
    )
    assert told.format("label") in said("run", tmp_path / "a.yaml", "--out", tmp_path / "out")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ranks", "many"], "'many'; it should be a valid integer"),
        (["--ranks", "0"], "'0'; it should be greater than or equal to 1"),
        (["--ranks", "2", "--remainder", "keep"], "'keep' is not one of 'pad', 'drop', 'exact'"),
    ],
)
def test_a_flag_that_cannot_be_converted_is_shown_with_its_value(
    arguments: list[str], message: str, tmp_path: Path
) -> None:
    done = headrace("plan", tmp_path, *arguments, "--json")

    assert done.returncode == 2
    assert message in json.loads(done.stdout)["error"]["message"]
