"""The names that settings of the split had before they were those of all recipes: taken for one release."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import headrace
from commands import headrace as command
from headrace.errors import SettingsError
from tables import small_source

NAMES = {
    "date_column": ("time", "date"),
    "group_column": ("entity", "id"),
    "date_format": ("time_format", "iso"),
    "null_date": ("bad_rows", "drop"),
    "null_group": ("null_entity", "own"),
}
OLD: dict[str, Any] = {old: value for old, (_, value) in NAMES.items()}
NEW: dict[str, Any] = dict(NAMES.values())


def test_python_takes_the_old_names_and_warns_of_each() -> None:
    with pytest.warns(FutureWarning) as warned:
        made = headrace.TemporalSplit(source="in", split_date="2025-01-01", **OLD)

    assert headrace.TemporalSplit(source="in", split_date="2025-01-01", **NEW) == made
    assert [f"TemporalSplit: {old!r} is now {new!r}" for old, (new, _) in NAMES.items()] == [
        str(each.message).partition(";")[0] for each in warned
    ]


def test_both_names_of_a_setting_are_refused() -> None:
    with pytest.raises(SettingsError, match="'date_column' is the old name of 'time'; give only 'time'"):
        headrace.TemporalSplit(source="in", time="date", entity="id", split_date="2025-01-01", date_column="date")


@pytest.fixture
def expected(tmp_path: Path) -> str:
    """The id of the run that the new names make."""
    split = headrace.TemporalSplit(
        source=small_source(tmp_path / "in"), split_date="2025-01-01", train_ratio=0.5, **NEW
    )
    return headrace.prepare(split, tmp_path / "new").manifest.run_id


def warnings_of(stderr: str) -> list[str]:
    lines = stderr.splitlines()

    assert all(line.startswith("warning: TemporalSplit: ") for line in lines)
    return [line.removeprefix("warning: TemporalSplit: ").partition(";")[0] for line in lines]


@pytest.mark.filterwarnings("default::FutureWarning")
def test_a_file_takes_the_old_names_with_a_line_for_each(tmp_path: Path, expected: str) -> None:
    record = {"recipe": "temporal_split", "source": "in", "out": "out", "split_date": "2025-01-01", "train_ratio": 0.5}
    (tmp_path / "old.json").write_text(json.dumps(record | OLD))
    done = command("run", "old.json", "--json", cwd=tmp_path)

    assert (0, expected) == (done.returncode, json.loads(done.stdout)["run_id"])
    assert [f"{old!r} is now {new!r}" for old, (new, _) in NAMES.items()] == sorted(
        warnings_of(done.stderr), key=lambda text: list(NAMES).index(text.split("'")[1])
    )


@pytest.mark.filterwarnings("default::FutureWarning")
def test_flags_take_the_old_names_and_help_shows_the_new_ones(tmp_path: Path, expected: str) -> None:
    flags = [word for old, value in OLD.items() for word in (f"--{old.replace('_', '-')}", value)]
    asked = ("--out", "out", "--split-date", "2025-01-01", "--train-ratio", "0.5", "--json")
    done = command("split", "in", *flags, *asked, cwd=tmp_path)
    shown = command("split", "--help").stdout

    assert (0, expected) == (done.returncode, json.loads(done.stdout)["run_id"])
    assert len(NAMES) == len(warnings_of(done.stderr))
    assert all(f"--{new.replace('_', '-')}" in shown for new in NEW)
    assert not any(f"--{old.replace('_', '-')}" in shown for old in OLD)
