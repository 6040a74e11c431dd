"""`headrace report` and the page at the end of a run, as their users meet them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from report_cases import split_run

from commands import headrace

HEADRACE = Path(sys.executable).parent / "headrace"
NEEDED = ("--time", "time", "--entity", "customer", "--split-date", "2025-01-01")


@pytest.fixture(autouse=True)
def pages_as_users_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_REPORT", raising=False)


def process(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A process of its own, where the environment decides what it can import."""
    env = {**os.environ, "COLUMNS": "200", **environment}
    return subprocess.run(
        [HEADRACE, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=env,
        timeout=250,
    )


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("raw")
    split_run(root)
    return root / "raw"


def test_a_run_ends_with_its_page_and_names_it(raw: Path, tmp_path: Path) -> None:
    done = headrace("split", raw, "--out", tmp_path / "out", *NEEDED)
    (page,) = (tmp_path / "out" / "runs").glob("*/report.html")

    assert done.returncode == 0
    assert f"report  {page}" in done.stdout
    again = headrace("split", raw, "--out", tmp_path / "out", *NEEDED)
    assert f"report  {page}" in again.stdout
    assert "reused" in again.stdout


@pytest.mark.smoke("flag")
@pytest.mark.parametrize("how", ["flag", "environment", "json"])
def test_no_page_where_none_is_wanted(how: str, raw: Path, tmp_path: Path) -> None:
    flags = {"flag": ["--report", "never"], "environment": [], "json": ["--json"]}[how]
    environment = {"HEADRACE_REPORT": "never"} if how == "environment" else {}
    done = headrace("split", raw, "--out", tmp_path / "out", *NEEDED, *flags, env=environment)

    assert done.returncode == 0
    assert "report.html" not in done.stdout + done.stderr
    assert list((tmp_path / "out" / "runs").glob("*/report.html")) == []


def test_a_word_that_is_none_is_refused_before_the_work(raw: Path, tmp_path: Path) -> None:
    done = headrace("split", raw, "--out", tmp_path / "out", *NEEDED, "--report", "sometimes")

    assert done.returncode == 2
    assert "'sometimes' is not one of 'auto', 'never'" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_inspect_writes_the_page_where_it_is_wanted(tmp_path: Path) -> None:
    out = split_run(tmp_path / "one")
    written = json.loads(headrace("inspect", out, "--to", tmp_path / "page.html", "--json").stdout)

    assert {"report": str(tmp_path / "page.html")} == written
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


@pytest.mark.slow
def test_open_starts_the_browser_or_says_that_there_is_none(tmp_path: Path) -> None:
    out, opened = split_run(tmp_path / "one"), tmp_path / "opened"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}\n')
    browser.chmod(0o755)
    page = tmp_path / "page.html"
    shown = process("inspect", out, "--to", page, "--open", BROWSER=f"{browser} %s")
    missing = process(
        "inspect", out, "--to", page, "--open", BROWSER=str(tmp_path / "none"), PATH=""
    )

    assert (0, page.as_uri()) == (shown.returncode, opened.read_text().strip())
    assert "no browser" not in shown.stderr
    assert (0, f"no browser could be started; open {page} yourself\n") == (
        missing.returncode,
        missing.stderr,
    )


def test_folds_and_a_page_are_not_wanted_at_once(tmp_path: Path) -> None:
    done = headrace("inspect", tmp_path, "--folds", "--report")

    assert done.returncode == 2
    assert "--folds prints a table and --report draws a page" in done.stderr
