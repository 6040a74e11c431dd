"""A recipe in a package of its own works like the built-in ones: an entry point is all that headrace knows of it."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import polars as pl
import pytest
import yaml

from headrace.recipe import GROUP

PACKAGE = Path(__file__).parents[2] / "examples/own_recipe"
HEADRACE = "import sys; sys.argv[0] = 'headrace'; from headrace.cli import command; command()"


def install(site: Path, name: str, reference: str) -> Path:
    """Make what an installer makes of a package with one recipe: its metadata, with the entry point."""
    metadata = site / f"{name}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[headrace.recipes]\n{name} = {reference}\n")
    return site


class Shell:
    """Real processes of the command line, in one directory, that see packages beside headrace."""

    def __init__(self, directory: Path, *packages: Path) -> None:
        self.directory = directory
        path = os.pathsep.join(map(str, packages))
        self.environment = {
            **os.environ,
            "PYTHONPATH": path,
            "HEADRACE_REPORT": "never",
            "HOME": str(directory / "home"),
        }

    def __call__(self, *words: object, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", HEADRACE, *map(str, words)]
        return subprocess.run(command, cwd=self.directory, env={**self.environment, **environment}, capture_output=True, text=True, timeout=250, check=False)  # fmt: skip

    def json(self, *words: object) -> dict:
        done = self(*words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """In a directory with files in `raw`, and a run of every tenth of their rows in `out`."""
    directory = tmp_path_factory.mktemp("own_recipe")
    (directory / "raw").mkdir()
    for shard in range(3):
        frame = pl.DataFrame({"n": range(100), "t": [f"{shard}-{n}" for n in range(100)]})
        frame.write_csv(directory / f"raw/part-{shard}.csv")
    [(name, reference)] = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"][
        "entry-points"
    ][GROUP].items()
    site = install(directory / "site", name, reference)
    shell = Shell(directory, site, PACKAGE)
    shell.json("thin", "raw", "--out", "out")
    return shell


def test_its_command_has_a_flag_for_each_setting_and_makes_the_run(shell: Shell) -> None:
    told = shell("thin", "--help", COLUMNS="200").stdout
    made = shell.json("thin", "raw", "--out", "flags", "--step", 7, "--columns", "t")
    again = shell.json("thin", "raw", "--out", "flags", "--step", 7, "--columns", "t")
    wrong = shell("thin", "raw", "--out", "flags", "--step", 0)

    assert "Keep one row in this many. 10 unless given." in told
    assert ("every_nth", 45, {"between": 255}) == (
        made["recipe"],
        made["splits"]["all"]["rows"],
        made["dropped"],
    )
    assert ["t"] == [column["name"] for column in made["schema"]]
    assert "reused" == again["how"]
    assert (2, True) == (wrong.returncode, "--step is 0" in wrong.stderr)


def test_its_own_tests_pass(shell: Shell) -> None:
    words = ["-m", "pytest", "-q", "-c", os.devnull, "--rootdir", PACKAGE, "-p", "no:cacheprovider"]
    command = [sys.executable, *map(str, words), str(PACKAGE / "tests")]
    tests = subprocess.run(
        command,
        cwd=shell.directory,
        env=shell.environment,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )

    assert 0 == tests.returncode, tests.stdout + tests.stderr


def test_a_stage_may_have_the_name_of_another_recipes_stage(shell: Shell) -> None:
    assert list((shell.directory / "out/runs").glob("*/receipts/split-00000.json"))
    assert shell.json("verify", "out")["ok"]


@pytest.mark.slow
def test_init_writes_what_run_takes(shell: Shell) -> None:
    shell.json("init", "thin", "raw", "--out", "new", "--config", "thin.yaml")
    made = shell.json("run", "thin.yaml")
    wrong = shell("run", "thin.yaml", "--set", "stpe=3")

    assert {"recipe": "every_nth", "source": "raw", "out": "new", "step": 10} == yaml.safe_load((shell.directory / "thin.yaml").read_text())  # fmt: skip
    assert 30 == made["splits"]["all"]["rows"]
    assert "'stpe' is not a setting; did you mean 'step'?" in wrong.stderr


@pytest.mark.slow
def test_verify_checks_its_law_and_a_report_uses_its_words(shell: Shell) -> None:
    checks = shell.json("verify", "out")["checks"]
    page = Path(shell.json("inspect", "out", "--report")["report"])
    told = shell("inspect", "out").stdout

    assert ("one row in this many", "30 of 300 rows, step 10") == (
        checks[-1]["name"],
        checks[-1]["detail"],
    )
    html = (shell.directory / page).read_text("utf-8")
    assert ["30 kept rows", "for between: is between two rows that are kept"] == [text for text in ("30 kept rows", "for between: is between two rows that are kept") if text in html]  # fmt: skip
    assert "between: is between two rows that are kept" in told


@pytest.mark.slow
def test_its_rows_are_shown(shell: Shell) -> None:
    assert 30 == len(shell.json("peek", "out", "--rows", 40)["rows"])


@pytest.mark.slow
def test_schema_and_completion_know_its_settings(shell: Shell) -> None:
    schema = shell.json("run", "--schema")
    flags = {
        "COMP_WORDS": "headrace\nthin\nraw\n--st",
        "COMP_CWORD": "3",
        "_HEADRACE_COMPLETE": "complete_bash",
    }

    assert "every_nth" in schema["properties"]["recipe"]["enum"]
    assert (
        "Keep one row in this many."
        == schema["$defs"]["every_nth"]["properties"]["step"]["description"]
    )
    assert ["--step"] == shell(**flags).stdout.split()
    assert "thin" in shell("--help").stdout.split()


@pytest.mark.slow
def test_a_run_is_read_where_its_recipe_is_not_installed(shell: Shell) -> None:
    elsewhere = Shell(shell.directory)
    (shell.directory / "thin.yaml").write_text("recipe: every_nth")

    assert elsewhere.json("verify", "out")["ok"]
    assert 30 == len(elsewhere.json("peek", "out", "--rows", 40)["rows"])
    assert "dropped: between" in elsewhere("inspect", "out").stdout
    assert "recipe is 'every_nth'; use one of " in elsewhere("run", "thin.yaml").stderr


@pytest.mark.slow
@pytest.mark.smoke("gone-no_such_package.recipe:OwnRecipe-cannot be imported (ModuleNotFoundError")
@pytest.mark.parametrize(
    ("name", "reference", "words"),
    [
        ("gone", "no_such_package.recipe:OwnRecipe", "cannot be imported (ModuleNotFoundError"),
        ("odd", "json:loads", "is not a Recipe of that name"),
        (
            "rewrite",
            "every_nth.recipe:EveryNthRecipe",
            "is registered as headrace.rewriting.capability",
        ),
    ],
)
def test_a_broken_package_is_named_and_leaves_the_other_recipes(tmp_path: Path, name: str, reference: str, words: str) -> None:  # fmt: skip
    shell = Shell(tmp_path, install(tmp_path / "site", name, reference), PACKAGE)
    (tmp_path / "run.yaml").write_text(f"recipe: {name}")
    broken = shell("run", "run.yaml")
    sound = shell("split", "--help")

    assert (2, True) == (broken.returncode, words in broken.stderr), broken.stderr
    assert ("Traceback" in broken.stderr, sound.returncode) == (False, 0)


def test_two_recipes_cannot_have_one_command(tmp_path: Path) -> None:
    (tmp_path / "second.py").write_text(
        "from headrace.recipe import Recipe\nclass Second(Recipe):\n    name = 'second'\n    commands = ('split',)\n"
    )
    shell = Shell(tmp_path, install(tmp_path / "site", "second", "second:Second"), tmp_path)

    (tmp_path / "run.yaml").write_text("recipe: second")

    assert (
        "`headrace split` is a command of 'temporal_split'; uninstall one of them"
        in shell("run", "run.yaml").stderr
    )
