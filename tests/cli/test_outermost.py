"""Whatever ends a command, its last word is a message and an exit code, never a traceback."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import headrace

COMMAND = "import sys; sys.argv[0] = 'headrace'\nfrom headrace.cli import command\ncommand()\n"
FAILING = """
import sys
sys.argv[0] = "headrace"
from headrace import cli

class Panic(BaseException):
    pass

def fail() -> None:
    raise {error}

import headrace.cli.commands
headrace.cli.commands.read_config = lambda path: fail()
cli.command()
"""
INTERRUPTED = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r} and not sent:
            sent.append(name)
            os.kill(os.getpid(), signal.SIGINT)

sent = []
sys.meta_path.insert(0, Interrupting())
"""


def ended(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
        env={**os.environ, **environment},
    )


@pytest.mark.slow
@pytest.mark.smoke(
    "flags0-RecursionError('maximum recursion depth exceeded')-RecursionError",
    "flags1-ImportError('no metadata of package x')-no metadata of package x",
)
@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("KeyError('x')", "KeyError: 'x'"),
        ("Panic('called Option::unwrap() on a None value')", "Panic: called Option::unwrap()"),
        ("RecursionError('maximum recursion depth exceeded')", "RecursionError"),
        ("AssertionError", "AssertionError"),
        ("ImportError('no metadata of package x')", "no metadata of package x"),
        ("ValueError('\\x1b[31m' + 'x' * 5_000_000)", r"\x1b[31m"),
        ("ValueError('https://me:PASSWORD@host/x?sig=SIGNATURE')", "https://…@host"),
    ],
)
@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_any_error_ends_in_a_message_with_a_hint_for_a_report(
    error: str, said: str, flags: tuple[str, ...]
) -> None:
    done = ended(FAILING.format(error=error), "run", "config.yaml", "--out", "secret-place", *flags)

    assert 1 == done.returncode
    assert "Traceback" not in done.stderr
    assert said in done.stderr
    assert "headrace run" in done.stderr
    assert f"headrace {headrace.__version__}" in done.stderr
    assert "HEADRACE_TRACEBACK=1" in done.stderr
    assert len(done.stderr) < 4_000
    for secret in ("\x1b", "PASSWORD", "SIGNATURE", "secret-place"):
        assert secret not in done.stderr + done.stdout
    if flags:
        record = json.loads(done.stdout)
        assert 1 == record["exit_code"]
        assert error.partition("(")[0] == record["error"]["kind"]


@pytest.mark.slow
def test_the_traceback_is_shown_on_request_without_secrets() -> None:
    done = ended(
        FAILING.format(error="ValueError('s3://me:PASSWORD@x')"),
        "run",
        "a.yaml",
        HEADRACE_TRACEBACK="1",
    )

    assert 1 == done.returncode
    assert "Traceback" in done.stderr
    assert "in fail" in done.stderr
    assert "PASSWORD" not in done.stderr


@pytest.mark.smoke("MemoryError-memory")
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            "FileNotFoundError(2, 'No such file or directory', 'gone.csv')",
            "gone.csv: No such file or directory",
        ),
        ("OSError(28, 'No space left on device')", "No space left on device"),
        ("MemoryError", "memory"),
    ],
)
def test_what_the_machine_refuses_is_no_bug(error: str, said: str) -> None:
    done = ended(FAILING.format(error=error), "run", "config.yaml")

    assert 1 == done.returncode
    assert said in done.stderr
    assert "bug" not in done.stderr


@pytest.mark.slow
@pytest.mark.smoke("polars")
@pytest.mark.parametrize(
    "module", ["typer", "rich", "headrace.cli.commands", "pydantic", "polars", "pyarrow", "numpy"]
)
def test_an_interrupt_while_libraries_are_imported_ends_in_a_message(
    module: str, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("id\n1\n")
    asked = ["peek", str(tmp_path / "a.csv"), "--cache-dir", str(tmp_path / "cache")]
    done = ended(INTERRUPTED.format(module=module) + COMMAND, *asked)
    if done.returncode == 0:
        pytest.skip(f"the command does not import {module}")

    assert 130 == done.returncode, done.stderr
    assert "Traceback" not in done.stderr
    assert "interrupted" in done.stderr


@pytest.mark.slow
def test_an_interrupt_while_libraries_are_imported_is_told_as_json() -> None:
    done = ended(INTERRUPTED.format(module="typer") + COMMAND, "peek", "x.csv", "--json")

    assert 130 == done.returncode
    assert {
        "error": {"kind": "Interrupted", "message": "interrupted"},
        "exit_code": 130,
    } == json.loads(done.stdout)


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_a_warning_is_one_line_without_secrets_and_not_part_of_the_record(
    flags: tuple[str, ...],
) -> None:
    warning = "__import__('warnings').warn('two\\nlines https://me:PASSWORD@host/x', FutureWarning) or SystemExit(0)"
    done = ended(FAILING.format(error=warning), "run", "config.yaml", *flags)

    assert (0, "") == (done.returncode, done.stdout)
    assert done.stderr.startswith(r"warning: two\nlines https://…@host")
    assert 1 == len(done.stderr.splitlines())
