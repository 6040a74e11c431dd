"""Names and values of the data never control the terminal, and never make a page of one line."""

import json
import sys
from pathlib import Path

import polars as pl
import pytest

import headrace
from headrace.cli import main
from headrace.errors import HeadraceError, InputError, SettingsError
from headrace.printable import MOST, printable

NASTY = "a\x1b[31mb\x07\x9bc\u202ed[bold]e:smile:\rf"
SHOWN = r"a\x1b[31mb\x07\x9bc\u202ed[bold]e:smile:\rf"


def said(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *arguments: object
) -> str:
    monkeypatch.setattr(sys, "argv", ["headrace", *map(str, arguments)])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        main()
    told = capfd.readouterr()
    for sign in "\x1b\x07\x9b\u202e\r":
        assert sign not in told.out + told.err
    return told.out + told.err


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain – ünïcode 数据 👩‍🔬", "plain – ünïcode 数据 👩‍🔬"),
        (NASTY, SHOWN),
        ("a\nb\tc", r"a\nb\tc"),
        ("caf\udce9", r"caf\xe9"),
        ("\u200bx\u2066y\ufeff", r"\u200bx\u2066y\ufeff"),
        ("\x7f\x85\u2028\U000e0041", r"\x7f\x85\u2028\U000e0041"),
    ],
)
def test_text_is_made_printable(text: str, shown: str) -> None:
    assert shown == printable(text)
    assert shown == printable(shown)


def test_long_text_keeps_its_beginning_and_its_end() -> None:
    shown = printable("part-0.csv: value " + "x" * 5_000_000 + "; correct it")

    assert shown.startswith("part-0.csv: value xxx")
    assert shown.endswith("x; correct it")
    assert "characters left out" in shown
    assert len(shown) < MOST + 60


def test_an_error_is_escaped_and_short_as_text_and_exact_in_its_arguments() -> None:
    error = InputError(NASTY + "x" * 5_000_000)

    assert str(error).startswith(SHOWN)
    assert len(str(error)) < 4_000
    assert error.args[0].startswith(NASTY)
    assert f"{HeadraceError('a', 'b')}" == "a\nb"
    assert len(str(SettingsError(*(f"{number}: {'x' * 1000}" for number in range(1000))))) < 8_000


def nasty_csv(directory: Path) -> Path:
    directory.mkdir()
    path = directory / f"{NASTY}.csv"
    pl.DataFrame({"id": ["x", "y"], NASTY: ["[red]" + NASTY, "z" * 5_000_000], "<script>alert(1)</script>": ["1", "2"], "day": ["2024-01-01", "2025-01-01"]}).write_csv(path)  # fmt: skip
    return path


def test_peek_shows_nasty_names_and_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path = nasty_csv(tmp_path / NASTY)
    shown = said(monkeypatch, capfd, "peek", path, "--cache-dir", tmp_path / "cache")

    assert "[red]" in shown
    assert "[bold]" in shown
    assert ":smile:" in shown
    assert len(shown) < 100_000


def test_json_is_exact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path = nasty_csv(tmp_path / "raw")
    shown = said(monkeypatch, capfd, "peek", path, "--cache-dir", tmp_path / "cache", "--json")

    assert "[red]" + NASTY == json.loads(shown)["rows"][0][NASTY]


@pytest.mark.slow
def test_a_run_over_nasty_names_prints_and_draws_them_safely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    nasty_csv(tmp_path / "raw")
    more = {
        "id": list("abcdefgh"),
        NASTY: ["v"] * 8,
        "<script>alert(1)</script>": ["1"] * 8,
        "day": ["2024-01-01"] * 8,
    }
    pl.DataFrame(more).write_csv(tmp_path / "raw" / "more.csv")
    out = tmp_path / NASTY
    asked = ("--time", "day", "--entity", "id", "--split-date", "2024-06-01", "--out", out)
    shown = said(monkeypatch, capfd, "split", tmp_path / "raw", *asked)
    assert "run" in shown
    for command in (("inspect", out), ("verify", out), ("plan", out, "--split", "train", "--ranks", 1, "--batch-size", 1), ("gc", out)):  # fmt: skip
        assert said(monkeypatch, capfd, *command)
    page = tmp_path / "page.html"
    said(monkeypatch, capfd, "inspect", out, "--to", page)
    if page.exists():
        text = page.read_text()
        assert "<script>alert(1)" not in text
        assert "\x1b" not in text


@pytest.mark.parametrize(
    "arguments",
    [
        ("peek", NASTY),
        ("peek", "a.csv", "--rows", NASTY),
        (NASTY,),
        ("peek", f"--{NASTY}"),
        ("run", NASTY),
        ("where", NASTY, "--seen", NASTY),
        ("inspect", NASTY),
        ("verify", NASTY),
        ("split", NASTY, "--out", NASTY, "--time", NASTY, "--entity", NASTY, "--split-date", NASTY),
        ("plan", NASTY, "--ranks", "1", "--batch-size", "1", "--split", NASTY),
    ],
)
@pytest.mark.parametrize("value", [NASTY, "x" * 50_000])
def test_nasty_arguments_are_shown_escaped_and_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...], value: str
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    shown = said(monkeypatch, capfd, *(each.replace(NASTY, value) for each in arguments))

    assert len(shown) < 10_000


def test_the_html_of_a_notebook_escapes_names(tmp_path: Path) -> None:
    dataset = headrace.open(nasty_csv(tmp_path / "raw"), cache_dir=tmp_path / "cache")

    assert "<script>alert" not in dataset._repr_html_()
