"""Messages of a command name flags as they are typed, and all that is missing at once."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli.output import in_flags, name_flags_of

HEADRACE = Path(sys.executable).parent / "headrace"


class Flag:
    def __init__(self, name: str) -> None:
        self.name, self.opts = name, [f"--{name.replace('_', '-')}"]


class Command:
    params = (Flag("time"), Flag("train_ratio"), Flag("format"), Flag("split_date"))


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("name it with time=, of a, b", "name it with --time, of a, b"),
        ("one output format with format=", "one output format with --format"),
        ('give format="parquet"', "give --format parquet"),
        ("give format='parquet'; or leave it", "give --format parquet; or leave it"),
        ("format='csv' left out 3 rows", "--format csv left out 3 rows"),
        (
            "choose format='csv', 'tsv' or 'jsonl', or time=",
            "choose --format csv, tsv or jsonl, or --time",
        ),
        ('choose format="csv" or "tsv"', "choose --format csv or tsv"),
        (
            "Split: train_ratio is 2: too large\nSplit: time is required",
            "--train-ratio is 2: too large\n--time is required",
        ),
        ("Split: lanes is 2: too large", "Split: lanes is 2: too large"),
        ("set lanes='a' or 'b'", "set lanes='a' or 'b'"),
        ("with train_ratio=0.8: train 5", "with --train-ratio 0.8: train 5"),
        ("with split_date=2024-01-01: train 5", "with --split-date 2024-01-01: train 5"),
        ("a time=2024-01-01/part-0.csv is damaged", "a time=2024-01-01/part-0.csv is damaged"),
        ("time=2024-01-01/part-0.csv: is damaged", "time=2024-01-01/part-0.csv: is damaged"),
        ("leave label= out", "leave label out"),
        ("set lanes=4 there", "set lanes=4 there"),
        (
            "Split: train_ratio is 2; it should be less than 1",
            "--train-ratio is 2; it should be less than 1",
        ),
        ("Split: lanes is 2; it should be 1", "Split: lanes is 2; it should be 1"),
        ("Split: time and format are both 'a'", "--time and format are both 'a'"),
    ],
)
def test_options_are_written_as_flags_of_the_command(message: str, told: str) -> None:
    name_flags_of(Command)

    assert told == in_flags(message)


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
    assert "not given: --out, --time, --split-date; add them" == said("split", tmp_path)


def test_settings_of_a_recipe_are_flags_in_its_command_and_names_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("who,when,bought\n1,2024-01-01,1\n")
    told = "leave it out of types, or leave {} out for values as they are"
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
