"""TAB in bash, zsh and fish: by the protocol that the installed scripts speak, and in a real bash."""

import os
import shutil
import subprocess
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import typer
import typer.main
from all_commands import COMMANDS

import headrace
from headrace.cli import app, completing
from headrace.dataset.plain import Place
from headrace.formats.dates import DATE_WORDS
from headrace.packing.chats.layouts import Layout
from headrace.packing.chats.words import ImageRule
from headrace.recipe import recipes as registered
from headrace.stream.loader import options
from headrace.stream.order import remaining

HEADRACE = "import sys; sys.argv[0] = 'headrace'; from headrace.cli import command; command()"


def offered(words: str, **environment: str) -> list[str]:
    """What a real process offers a bash for the last word."""
    parts = words.split(" ")
    asked = {"COMP_WORDS": "\n".join(parts), "COMP_CWORD": str(len(parts) - 1), "_HEADRACE_COMPLETE": "complete_bash"}
    done = subprocess.run([sys.executable, "-c", HEADRACE], env={**os.environ, **asked, **environment}, capture_output=True, text=True, timeout=250, check=False)  # fmt: skip
    assert "" == done.stderr
    return done.stdout.splitlines()


@pytest.fixture
def tab(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[[str], list[str]]:
    """The same in this process."""

    def ask(words: str) -> list[str]:
        parts = words.split(" ")
        for name, value in {"COMP_WORDS": "\n".join(parts), "COMP_CWORD": str(len(parts) - 1), "_HEADRACE_COMPLETE": "complete_bash"}.items():  # fmt: skip
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit):
            typer.main.get_command(app).main(args=[], prog_name="headrace")
        out, err = capfd.readouterr()
        assert err == ""
        return [line for line in out.splitlines() if line]

    return ask


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "raw").mkdir()
    monkeypatch.chdir(tmp_path)
    pl.DataFrame({"x": range(9)}).write_parquet(tmp_path / "raw/a.parquet")
    headrace.rewrite(tmp_path / "raw", tmp_path / "out")
    (tmp_path / "config.yaml").write_text("recipe: rewrite\nsource: raw\nout: out\n")
    (tmp_path / "notes.txt").write_text("")
    return tmp_path / "out"


@pytest.mark.slow
def test_a_process_answers_bash() -> None:
    assert ["histories"] == offered("headrace his")
    assert ["--null-entity", "--null-values"] == offered("headrace split raw --null")
    assert ["drop", "error", "own"] == offered("headrace split raw --null-entity ")


@pytest.mark.slow
def test_a_process_answers_zsh_and_fish() -> None:
    words = "headrace rewrite raw --compression l"
    for shell in ("zsh", "fish"):
        asked = {"_HEADRACE_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": words, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}  # fmt: skip
        done = subprocess.run([sys.executable, "-c", HEADRACE], env={**os.environ, **asked}, capture_output=True, text=True, timeout=250, check=False)  # fmt: skip

        assert "" == done.stderr
        assert "lz4" in done.stdout
        assert "zstd" not in done.stdout


def test_a_real_shell_completes(tmp_path: Path) -> None:
    """The script that --install-completion writes, sourced by the shell it is for."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash")
    command = tmp_path / "bin/headrace"
    command.parent.mkdir()
    command.write_text(f"#!{sys.executable}\nfrom headrace.cli import command\ncommand()\n")
    command.chmod(0o755)
    environment = {**os.environ, "HOME": str(tmp_path), "PATH": f"{command.parent}:{os.environ['PATH']}", "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}  # fmt: skip
    installed = subprocess.run(["headrace", "--install-completion", "bash"], env=environment, capture_output=True, text=True, timeout=250, check=False)  # fmt: skip
    assert installed.returncode == 0, installed.stderr
    script = next((tmp_path / ".bash_completions").iterdir())
    assert str(script) in (tmp_path / ".bashrc").read_text()
    asked = f'source "{script}"; COMP_WORDS=(headrace verify --wor); COMP_CWORD=2; _headrace_completion headrace; printf "%s\\n" "${{COMPREPLY[@]}}"; complete -p headrace'  # fmt: skip
    done = subprocess.run([bash, "--norc", "-c", asked], env=environment, capture_output=True, text=True, timeout=250, check=False)  # fmt: skip

    assert ["--workers", "complete -o default -F _headrace_completion headrace"] == done.stdout.splitlines()


@pytest.mark.parametrize(
    ("words", "offers", "loads"),
    [
        ("headrace\nhis", "histories", set()),
        ("headrace\nverify\n--wor", "--workers", set()),
        ("headrace\nschema\nrew", "rewrite", set()),
        ("headrace\nsplit\n--null-entity\n", "drop error own", {"pydantic"}),  # the words are those of the settings
    ],
)
def test_a_tab_loads_nothing_that_it_could_do_without(words: str, offers: str, loads: set[str]) -> None:
    code = HEADRACE.replace("command()", "\ntry:\n    command()\nfinally:\n    print(*{'numpy', 'polars', 'pyarrow', 'torch', 'rich', 'pydantic'} & set(sys.modules), file=sys.stderr)")  # fmt: skip
    asked = {"COMP_WORDS": words, "COMP_CWORD": str(words.count("\n")), "_HEADRACE_COMPLETE": "complete_bash"}
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, **asked}, capture_output=True, text=True, timeout=250, check=False)  # fmt: skip

    assert offers.split() == done.stdout.split()
    assert loads == set(done.stderr.split())


def test_runs_datasets_splits_and_configurations_are_offered(out: Path, tab: Callable[[str], list[str]]) -> None:
    run = next((out / "runs").iterdir()).name
    (out / "runs/begun").mkdir()

    assert ["out"] == tab("headrace inspect ")
    assert [f"out/runs/{run}"] == tab("headrace verify out/runs/")
    assert ["out"] == tab("headrace report --compare out ")
    assert [run] == tab("headrace verify out --run ")
    assert ["all"] == tab("headrace plan out --split ")
    assert ["config.yaml"] == tab("headrace run ")
    assert ["config.yaml"] == tab("headrace series conf")


def test_where_nothing_is_known_the_shell_offers_files(out: Path, tab: Callable[[str], list[str]]) -> None:
    assert out.is_dir()
    for words in ("split ", "run no", "inspect ra", "inspect none/", "verify none --run ", "verify --run ", "plan raw --split ", "peek "):  # fmt: skip
        assert [] == tab(f"headrace {words}")


def test_the_command_that_may_be_left_out_completes(tab: Callable[[str], list[str]]) -> None:
    assert ["--peer", "--peer-kind"] == tab("headrace histories --pe")
    assert ["--peer", "--peer-kind"] == tab("headrace histories pings --pe")
    assert ["address", "number", "text"] == tab("headrace histories pings --peer-kind ")


def test_a_setting_of_any_text_offers_its_words(tab: Callable[[str], list[str]]) -> None:
    assert ["epoch_days", "epoch_ms", "epoch_ns", "epoch_s", "epoch_us", "excel_days"] == tab(
        "headrace split raw --time-format e"
    )


def words_in(annotation: Any) -> set[str]:
    """Of a Literal, or of what one stands in."""
    if typing.get_origin(annotation) is typing.Literal:
        return {str(each) for each in typing.get_args(annotation)}
    return set().union(*map(words_in, typing.get_args(annotation)))


def test_the_words_are_those_that_settings_take() -> None:
    recipes = {("split",): "temporal_split", ("pack",): "packed_sequences", ("preferences",): "preferences", ("histories", "prepare"): "histories", ("series",): "series", ("rewrite",): "rewrite"}  # fmt: skip
    others = {"layout": words_in(Layout), "distribution": words_in(options.Distribution) - {"local", "dynamic"}, "remainder": words_in(remaining.Remainder), "batch_format": words_in(options.BatchFormat), "report": {"auto", "never"}, "engine": {"local", "ray"}, "fingerprint_by": {"stat", "content"}, "time_format": set(DATE_WORDS), "recipe": set(registered()), "reasoning": {"template", "every_user_turn"}, "images": words_in(ImageRule), "rows": {"uniform", "measurements"}, "place": words_in(Place), "split": {"train", "test"}}  # fmt: skip
    for words, command in COMMANDS.items():
        fields = registered()[recipes[words]].settings().model_fields if words in recipes else {}
        names = {str(each.name) for each in command.params}
        known = {name: found for name in names if (found := completing.words_of(words, name))}
        own = {str(each.name): tuple(item.value for item in each.shell_complete(typer.Context(command), "")) for each in command.params if each.name in others}  # fmt: skip
        known |= {name: found for name, found in own.items() if found and type(command).__name__ != "Derived"}
        of_settings = {name: words_in(fields[name.rstrip("_")].annotation) for name in names if name.rstrip("_") in fields}  # fmt: skip
        of_settings = {name: found for name, found in of_settings.items() if found and name != "lineage"}
        of_settings = {} if type(command).__name__ == "Derived" else of_settings  # flags of settings bring their words

        assert set(of_settings) <= set(known), words
        for name, given in known.items():
            assert len(given) == len(set(given))
            assert set(given) == of_settings.get(name, others.get(name)), (words, name)
