"""`headrace histories` and `headrace histories decode`, as people type them."""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from pings import SPLITS, dealt, decoded, histories, random_pings, shards_of, write_pings

from commands import headrace

PINGS = random_pings(21, 300)


def test_histories_prepares_and_decode_prints_the_measurements_back(tmp_path: Path) -> None:
    source = write_pings(tmp_path / "in", dealt(PINGS, 2))
    asked = ["--peer", "dst_addr", "--partitions", 1, "--train-ratio", 0.6]
    done = headrace("histories", source, "--out", tmp_path / "out", *asked, "--json")
    same = histories(source, tmp_path / "library", partitions=1)

    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert same.manifest.run_id == record["run_id"]
    assert shards_of(same) == {
        name: (Path(record["run"]) / name).read_bytes() for name in shards_of(same)
    }
    printed = [
        json.loads(line)
        for split in SPLITS
        for path in sorted((tmp_path / "out" / "splits" / split).iterdir())
        for line in headrace("histories", "decode", path, "--json").stdout.splitlines()
    ]
    assert [asdict(each) for split in SPLITS for each in decoded(same)[split]] == printed


def test_decode_prints_columns_and_stops_at_the_limit(tmp_path: Path) -> None:
    prepared = histories(write_pings(tmp_path / "in", [PINGS]), tmp_path / "out", format="arrow")
    path = sorted((prepared.run / "histories" / "train").iterdir())[0]
    done = headrace("histories", "decode", path, "--limit", 3)

    lines = [line.split("\t") for line in done.stdout.splitlines()]
    assert [5] * 3 == [len(line) for line in lines]
    first = decoded(prepared)["train"][0]
    assert [first.src_addr, first.dst_addr, str(first.event_time)] == lines[0][:3]


def test_errors_are_one_message_and_an_exit_code(tmp_path: Path) -> None:
    missing = headrace("histories", "decode", tmp_path / "no.array_record")
    wrong = headrace(
        "histories", tmp_path, "--out", tmp_path / "out", "--dialect", "time_format=dmy"
    )

    assert (1, 2) == (missing.returncode, wrong.returncode)
    assert "no such file" in missing.stderr
    assert "time_format is 'dmy'" in wrong.stderr
    assert "Traceback" not in missing.stderr + wrong.stderr


@pytest.mark.slow
def test_without_the_extra_the_error_names_it(tmp_path: Path) -> None:
    source = write_pings(tmp_path / "in", [PINGS])
    code = (
        "import sys; sys.modules['array_record'] = None; sys.modules['array_record.python'] = None\n"
        "from headrace.cli import main; main()"
    )
    command = [sys.executable, "-c", code, "histories", str(source), "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert "pip install 'headrace[histories]'" in done.stderr


@pytest.mark.parametrize("word", ["prepare", "decode"])
def test_both_commands_have_help_with_an_example(word: str) -> None:
    done = headrace("histories", word, "--help")

    assert done.returncode == 0
    assert "Example:" in done.stdout


def test_a_configuration_file_may_ask_for_histories(tmp_path: Path) -> None:
    source = write_pings(tmp_path / "in", dealt(PINGS, 2))
    (tmp_path / "config.yaml").write_text(
        f"recipe: histories\nsource: {source}\nout: {tmp_path / 'out'}\npeer: dst_addr\npartitions: 3\ntrain_ratio: 0.6\n"
    )
    done = headrace("run", tmp_path / "config.yaml", "--json")

    assert done.returncode == 0, done.stderr
    assert (
        json.loads(done.stdout)["run_id"] == histories(source, tmp_path / "library").manifest.run_id
    )
