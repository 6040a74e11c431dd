"""--engine, --address and --shard-of on the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import headrace
from headrace.cli import app
from headrace.cli.flags import RunOptions
from headrace.errors import SettingsError
from tables import digests, small_source

PATHS = os.pathsep.join([str(Path(headrace.__file__).parents[1]), str(Path(__file__).parents[1])])
COLUMNS = ("--time", "date", "--entity", "id", "--split-date", "2025-01-01", "--train-ratio", "0.5")


def command(*arguments: object) -> subprocess.Popen[str]:
    asked = [sys.executable, "-c", "from headrace.cli import main; main()", *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": PATHS}
    return subprocess.Popen(asked, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_two_commands_make_one_run(tmp_path: Path) -> None:
    source = small_source(tmp_path / "in", count=5)
    alone = command("split", source, "--out", tmp_path / "one", *COLUMNS, "--json")
    out, errors = alone.communicate()
    assert alone.returncode == 0, errors
    both = [
        command("split", source, "--out", tmp_path / "two", *COLUMNS, "--shard-of", f"{index}/2", "--json")
        for index in range(2)
    ]
    told = [each.communicate() for each in both]

    assert [0, 0] == [each.returncode for each in both], told
    assert {json.loads(out)["run_id"]} == {json.loads(text)["run_id"] for text, _ in told}
    (one,), (two,) = [list((tmp_path / name / "runs").iterdir()) for name in ("one", "two")]
    assert digests(one) == digests(two)


@pytest.mark.smoke("--engine ray --shard-of 0/2-")
@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (("--shard-of", "3"), "--shard-of: expected I/N, got '3'; write e.g. 0/4 for the first of 4"),
        (("--shard-of", "4/4"), "shard_of is 4/4; processes are numbered 0 to N-1"),
        (("--engine", "dask"), "engine is 'dask'; give one of local, ray"),
        (("--address", "auto"), "address is 'auto', which is of a Ray cluster"),
        (("--engine", "ray", "--shard-of", "0/2"), "shard_of is 0/2 and engine is 'ray'; give one of them"),
    ],
    ids=lambda each: "" if isinstance(each, str) else " ".join(each),
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, asked: tuple[str, ...], told: str) -> None:
    pairs = {asked[place][2:].replace("-", "_"): asked[place + 1] for place in range(0, len(asked), 2)}
    recipe = headrace.TemporalSplit(
        source=small_source(tmp_path / "in"), time="date", entity="id", split_date="2025-01-01"
    )

    with pytest.raises(SettingsError) as caught:
        headrace.prepare(recipe, tmp_path / "out", **RunOptions(**pairs).options())

    assert told in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_config_file_names_its_engine(tmp_path: Path) -> None:
    source = small_source(tmp_path / "in")
    settings = {"recipe": "temporal_split", "source": str(source), "time": "date", "entity": "id"}
    settings |= {"split_date": "2025-01-01", "out": str(tmp_path / "out"), "engine": "dask"}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    refused = command("run", tmp_path / "config.json")
    told = refused.communicate()[1]
    overruled = command("run", tmp_path / "config.json", "--engine", "local", "--shard-of", "1/3")
    _, errors = overruled.communicate()

    assert "engine is 'dask'; give one of local, ray" in told.replace("\n", " ")
    assert (2, 0) == (refused.returncode, overruled.returncode), errors


@pytest.mark.parametrize("name", ["split", "pack", "rewrite", "histories prepare", "series", "run"])
def test_every_command_that_prepares_takes_the_flags(name: str) -> None:
    told = CliRunner().invoke(app, [*name.split(), "--help"], env={"COLUMNS": "200"}).output

    assert all(flag in told for flag in ("--engine", "--address", "--shard-of"))
