"""Every command takes --json: then stdout is one JSON object and nothing else, whatever becomes of the command."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from all_commands import COMMANDS
from chats import small_tokenizer

import headrace
from headrace.cli import main
from headrace.cli.output import json_text

NEEDED = ("--time", "time", "--entity", "customer", "--split-date", "2025-01-01")
LINES = {("histories", "decode")}  # an object a line


def no_constant(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


def parsed(text: str) -> Any:
    return json.loads(text, parse_constant=no_constant)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small data of every kind."""
    root = tmp_path_factory.mktemp("json")
    (root / "raw").mkdir()
    for shard in range(2):
        rows = [
            {"customer": f"c{n % 20}", "time": f"202{3 + n % 3}-03-01", "x": n / 2}
            for n in range(60)
        ]
        pl.DataFrame(rows).write_parquet(root / f"raw/part-{shard}.parquet")
    pl.DataFrame({"x": [1.0, float("nan"), float("inf")]}).write_parquet(root / "nan.parquet")
    pings = [
        {"src_addr": f"10.0.0.{n % 7}", "event_time": 1_700_000_000 + n, "rtt": 20.0}
        for n in range(200)
    ]
    pl.DataFrame(pings).write_csv(root / "pings.csv")
    talks = [[{"role": "user", "content": f"what is {n}"}, {"role": "assistant", "content": "it is"}] for n in range(40)]  # fmt: skip
    (root / "chats.jsonl").write_text(
        "".join(json.dumps({"messages": each}) + "\n" for each in talks)
    )
    (root / "asked.jsonl").write_text(
        "".join(json.dumps({"messages": each[:1]}) + "\n" for each in talks)
    )
    days = pl.datetime_range(pl.datetime(2001, 1, 1), pl.datetime(2008, 12, 31), "1d", eager=True)
    for basin in ("a", "b"):
        path = root / f"gauges/{basin}.csv"
        path.parent.mkdir(exist_ok=True)
        pl.DataFrame({"date": days.dt.strftime("%Y-%m-%d"), "rain": range(len(days)), "flow": range(len(days))}).write_csv(path)  # fmt: skip
    small_tokenizer(root / "tokenizer")
    (root / "split.yaml").write_text("recipe: temporal_split\nsource: raw\nout: split\ntime: time\nentity: customer\nsplit_date: 2025-01-01\n")  # fmt: skip
    return root


@pytest.fixture
def run_main(
    place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., Any]:
    """The command in this process, with what it leaves on the descriptors 1 and 2: (exit code, stdout, stderr)."""
    monkeypatch.chdir(place)
    monkeypatch.setenv("HOME", str(place / "home"))

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["headrace", *words])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        return code, *capfd.readouterr()

    return run


# In an order in which each finds what it needs. With {}: a file of the run before it.
WORDS: list[tuple[tuple[str, ...], tuple[str, ...]]] = [
    (("init", "DATA"), ("raw", "--out", "from-init", "--config", "any.yaml")),
    (("init", "split"), ("raw", "--out", "from-init", "--config", "a.yaml")),
    (("init", "histories"), ("pings.csv", "--out", "from-init", "--config", "c.yaml")),
    (("init", "pack"), ("chats.jsonl", "--out", "from-init", "--config", "d.yaml")),
    (("init", "preferences"), ("asked.jsonl", "--out", "from-init", "--config", "p.yaml")),
    (("init", "series"), ("gauges", "--target", "flow", "--out", "series", "--config", "series.yaml")),
    (("split",), ("raw", "--out", "split", *NEEDED)),
    (("split",), ("raw", "--out", "folds", *NEEDED, "--folds", "rolling:n=2,step=1d")),
    (("inspect",), ("folds", "--folds")),
    (("run",), ("split.yaml",)),
    (("run",), ("split.yaml", "--set", "seed=7")),
    (("pack",), ("chats.jsonl", "--out", "bins", "--tokenizer", "tokenizer", "--packed-storage", "legacy_npy_pickle")),
    (("histories", "prepare"), ("pings.csv", "--out", "rows", "--dialect", "time_format=epoch_s", "--format", "arrow")),
    (("histories", "decode"), ("{rows/splits/train/*.arrow}",)),
    (("histories", "plan"), ("rows",)),
    (("run",), ("series.yaml",)),
    (("series",), ("gauges", "--target", "flow", "--out", "series")),
    (("preferences",), ("asked.jsonl", "--out", "prompts", "--tokenizer", "tokenizer", "--kind", "prompts")),
    (("rewrite",), ("split", "--out", "fast")),
    (("run",), ("--schema",)),
    (("inspect",), ("split",)),
    (("inspect",), ("series",)),
    (("verify",), ("split",)),
    (("leaks",), ("split", "--max-share", "1")),
    (("inspect",), ("split", "--report")),
    (("gc",), ("split",)),
    (("doctor",), ()),
    (("index",), ("raw",)),
    (("peek",), ("split", "--split", "train")),
    (("peek",), ("nan.parquet",)),
    (("peek",), ("chats.jsonl", "--mask", "--tokenizer", "tokenizer", "--rows", "2")),
    (("plan",), ("split", "--split", "train", "--ranks", "2", "--batch-size", "4")),
    (("where",), ("split", "--split", "train", "--row", "part-00000.parquet:1", "--ranks", "2", "--batch-size", "4")),
    (("where",), ("split", "--seen", "state.json")),
    (("forget",), ("c1", "none", "split")),
]  # fmt: skip


def test_every_command_takes_json() -> None:
    assert [] == [
        words
        for words, each in COMMANDS.items()
        if not any("--json" in param.opts for param in each.params)
    ]
    assert set(COMMANDS) == {words for words, _ in WORDS}, "a new command: give it a line in WORDS"


@pytest.mark.slow
def test_with_json_stdout_is_one_object(place: Path, run_main: Callable[..., Any]) -> None:
    for words, rest in WORDS:
        if "--seen" in rest:
            state = headrace.open("split").stream("train", batch_size=8).state_dict()
            (place / "state.json").write_text(json.dumps(state))
        given = [
            str(next(place.glob(each[1:-1]))) if each.startswith("{") else each for each in rest
        ]
        code, out, err = run_main(*words, *given, "--json")

        assert code == 0, (words, err)
        found = [parsed(line) for line in out.splitlines()] if words in LINES else [parsed(out)]
        assert found, words
        assert [] == [each for each in found if not isinstance(each, dict) or "error" in each]


WRONG = {
    ("init", "DATA"): ("none", "--out", "o", "--config", "e.yaml"),
    ("init", "split"): ("none", "--out", "o", "--config", "e.yaml"),
    ("init", "histories"): ("none", "--out", "o", "--config", "e.yaml"),
    ("init", "pack"): ("none", "--out", "o", "--config", "e.yaml"),
    ("init", "preferences"): ("none", "--out", "o", "--config", "e.yaml"),
    ("init", "series"): ("none", "--out", "o", "--config", "e.yaml"),
    ("split",): ("none", "--out", "o", *NEEDED),
    ("pack",): ("none", "--out", "o", "--tokenizer", "tokenizer"),
    ("histories", "prepare"): ("none", "--out", "o"),
    ("series",): ("none", "--out", "o", "--target", "x"),
    ("rewrite",): ("none", "--out", "o"),
    ("doctor",): ("--none",),
    ("plan",): ("none", "--ranks", "1", "--batch-size", "4"),
    ("where",): ("none", "--row", "a:1", "--ranks", "1", "--batch-size", "1"),
}


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_an_error_is_an_object_too(words: tuple[str, ...], run_main: Callable[..., Any]) -> None:
    code, out, err = run_main(*words, *WRONG.get(words, ("none",)), "--json")
    found = parsed(out)

    assert code in (1, 2)
    assert {"error", "exit_code"} == set(found)
    assert code == found["exit_code"]
    assert found["error"]["kind"].endswith("Error")
    told, shown = (" ".join(text.split()) for text in (found["error"]["message"], err))
    assert told
    assert told[:30] in shown
    assert "Traceback" not in err


def test_a_command_line_that_is_wrong_is_told_as_an_object(run_main: Callable[..., Any]) -> None:
    for words in (
        ["split", "--nonsense"],
        ["nonsense"],
        ["histories", "plan"],
        ["peek", "raw", "--rows", "x"],
    ):
        code, out, err = run_main(*words, "--json")

        assert (2, 2, "UsageError") == (
            code,
            parsed(out)["exit_code"],
            parsed(out)["error"]["kind"],
        )
        assert "nonsense" in parsed(out)["error"]["message"] or "nonsense" not in words
        assert "Usage" in err


def test_a_verdict_is_one_object_and_its_exit_code_one(
    place: Path, run_main: Callable[..., Any]
) -> None:
    run_main("rewrite", "raw", "--out", "bent", "--json")
    shard = next(place.glob("bent/splits/all/*.parquet"))
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    code, out, err = run_main("verify", "bent", "--json")

    assert code == 1
    assert parsed(out)["ok"] is False
    assert "error: " in err


def test_without_json_stdout_says_nothing_of_an_error(run_main: Callable[..., Any]) -> None:
    code, out, err = run_main("inspect", "none")

    assert (1, "") == (code, out)
    assert "none" in err


@pytest.mark.slow
def test_progress_on_a_terminal_stays_off_stdout(place: Path) -> None:
    """stderr is a terminal, stdout a pipe: as in `headrace split … --json > record.json`."""
    outer, inner = pty.openpty()
    words = ["split", "raw", "--out", "in-pty", *NEEDED, "--json"]
    code = "import sys; sys.argv[0] = 'headrace'; from headrace.cli import command; command()"
    done = subprocess.run([sys.executable, "-c", code, *words], cwd=place, stdout=subprocess.PIPE, stderr=inner, text=True, timeout=250, check=False)  # fmt: skip
    os.close(inner)
    os.close(outer)

    assert done.returncode == 0
    assert parsed(done.stdout)["run"].startswith("in-pty")


def test_what_json_has_no_word_for_is_null_or_text() -> None:
    record = {
        "a": [1.5, float("nan"), (float("inf"), {"b": -float("inf")})],
        "path": Path("x"),
        "n": None,
    }

    assert {"a": [1.5, None, [None, {"b": None}]], "path": "x", "n": None} == parsed(
        json_text(record)
    )


def test_the_kind_of_an_error_is_one_of_the_documented_classes(
    run_main: Callable[..., Any],
) -> None:
    _, out, _ = run_main("split", *WRONG[("split",)], "--json")  # raises a subclass of InputError

    assert "InputError" == parsed(out)["error"]["kind"]
