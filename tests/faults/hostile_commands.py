"""Command lines whose writer means harm, or is tired: every command, wrong in every way, each in a process of its own.

    python hostile_commands.py PLACE CASES RESULTS

runs the cases of a JSON file in forks of one process that has imported the commands, and writes how each ended.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

PASSWORD = "PASSWORD-a1b2c3"
LIMIT_S = 60
_IMPORTED = ("polars", "pyarrow.parquet", "pyarrow.csv", "pyarrow.compute", "headrace.stream.loader.dataset", "headrace.stream.order.plan", "headrace.dataset.verify", "headrace.run.prepare", "headrace.split.recipe", "rich.table")  # fmt: skip
_SPLIT = ("--time", "day", "--entity", "id", "--split-date", "2024-06-01", "--out", "made")
_EPOCH = ("--ranks", "1", "--batch-size", "2", "--cache-dir", "cache")
WITH_A_PATH: dict[str, tuple[str, ...]] = {
    "peek": ("peek", "{}", "--cache-dir", "cache"),
    "plan": ("plan", "{}", *_EPOCH),
    "where": ("where", "{}", "--row", "a.csv:1", *_EPOCH),
    "inspect": ("inspect", "{}"),
    "verify": ("verify", "{}"),
    "gc": ("gc", "{}"),
    "report": ("inspect", "{}", "--to", "page.html"),
    "run": ("run", "{}", "--out", "made"),
    "seen": ("where", "raw", "--seen", "{}"),
    "seen of": ("where", "{}", "--seen", "state.json"),
    "split": ("split", "{}", *_SPLIT),
    "split to": ("split", "raw", *_SPLIT[:-1], "{}"),
    "rewrite": ("rewrite", "{}", "--out", "made", "--cache-dir", "cache"),
    "pack": ("pack", "{}", "--pack-size", "8", "--out", "made"),
    "histories": ("histories", "{}", "--entity", "id", "--time", "day", "--out", "made"),
    "series": ("series", "{}", "--out", "made"),
    "init split": ("init", "split", "{}"),
    "init series": ("init", "series", "{}"),
    "init pack": ("init", "pack", "{}"),
    "init preferences": ("init", "preferences", "{}"),
    "mask": ("peek", "{}", "--mask", "--tokenizer", "{}"),
}
PATHS = (
    "", "missing", "notes.txt", "empty", "pipe.csv", "/dev/null", "loop", "dir.csv", "bytes.csv", "bytes.parquet",
    "zero.csv", "nul.jsonl", "deep.json", "utf16.csv", "pointer.csv", "a\x1b[31mb", "byte-\udcff", "x" * 5_000,
    "y/" * 3_000, "s3://", f"s3://user:{PASSWORD}@bucket/key", f"https://user:{PASSWORD}@host/x.csv", "~nobody-here/x",
    "*", "[", "**", "{raw}", "raw/a.csv/b", "config.yaml", "bomb.yaml", "/proc/self/mem", "state.json", "manifest",
)  # fmt: skip
NUMBERS = ("-1", "0", "nan", "inf", "", "1e400", "9" * 40, "-" + "9" * 40, "0x10", "\u0663", "1.5", "\x1b[31m", "9223372036854775807")  # fmt: skip
NUMERIC: tuple[tuple[str, ...], ...] = (
    ("plan", "raw", "--ranks", "{}", "--batch-size", "2", "--cache-dir", "cache"),
    ("plan", "raw", "--ranks", "1", "--batch-size", "{}", "--cache-dir", "cache"),
    ("plan", "raw", *_EPOCH, "--seed", "{}"),
    ("plan", "raw", *_EPOCH, "--epoch", "{}"),
    ("plan", "raw", *_EPOCH, "--samples-per-epoch", "{}"),
    ("where", "raw", *_EPOCH, "--row", "a.csv:{}"),
    ("peek", "raw", "--cache-dir", "cache", "--rows", "{}"),
    ("split", "raw", *_SPLIT, "--train-ratio", "{}"),
    ("split", "raw", *_SPLIT, "--seed", "{}"),
    ("split", "raw", *_SPLIT, "--workers", "{}"),
    ("split", "raw", *_SPLIT, "--split-date", "{}"),
    ("verify", "out", "--workers", "{}"),
    ("rewrite", "raw", "--out", "made", "--cache-dir", "cache", "--shard-bytes", "{}"),
    ("pack", "chats.jsonl", "--out", "made", "--pack-size", "{}"),
)
WORDS: tuple[tuple[str, ...], ...] = (
    (), ("",), ("--",), ("nonsense",), ("\x1b[31m",), ("--nonsense",), ("peek",), ("peek", "raw", "raw"), ("split",),
    ("run", "config.yaml", "--set", "="), ("run", "config.yaml", "--set", "\x1b"), ("run", "config.yaml", "--set", "seed={{"),
    ("peek", "raw", "--types", "="), ("peek", "raw", "--types", "id=decimal(99,99)"), ("peek", "raw", "--types", "\x1b=int64"),
    ("peek", "raw", "--split", "\x1b"), ("where", "raw", *_EPOCH, "--row", ""), ("where", "raw", *_EPOCH, "--row", ":"),
    ("inspect", "out", "--run", "../../.."), ("inspect", "out", "--run", "\x1b"), ("doctor", "\x1b"), ("run", "--schema", "\x1b"),
    ("peek", "raw", "--cache-dir", "notes.txt"), ("peek", "raw", "--cache-dir", "/proc/nope"), ("x" * 100_000,),
    ("peek", "x" * 100_000), ("inspect", "out", "--to", "/proc/nope/page.html"), ("inspect", "out", "--to", "empty"),
    ("split", "raw", *_SPLIT[:-1], "/proc/nope"), ("split", "raw", *_SPLIT[:-1], "notes.txt"),
    ("split", "raw", *_SPLIT, "--dialect", "time_format=%"), ("split", "raw", *_SPLIT, "--dialect", "time_format=%Q\x1b"),
    ("split", "--from-env",), ("init", "series", "raw", "--config", "/proc/nope/c.yaml"),
)  # fmt: skip
SURROUNDINGS: dict[str, dict[str, str | None]] = {
    "no HOME": {"HOME": None},
    "HOME is a file": {"HOME": "/dev/null"},
    "LANG=C": {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"},
    "narrow": {"COLUMNS": "1", "FORCE_COLOR": None},
    "nonsense": {
        "COLUMNS": "nan",
        "LINES": "-1",
        "TERM": "\x1b",
        "TZ": "nowhere/land",
        "WORLD_SIZE": "x",
        "RANK": "-1",
    },
    "stdout closed": {"_CLOSED": "1"},
    "stderr closed": {"_CLOSED": "2"},
    "all closed": {"_CLOSED": "012"},
    "nobody reads": {"_PIPE": "1"},
}
SURROUNDED = (("peek", "raw"), ("peek", "missing"), ("plan", "raw", "--ranks", "1", "--batch-size", "2"), ("inspect", "out"), ("verify", "out"), ("nonsense",), ("split", "raw", *_SPLIT))  # fmt: skip


def cases() -> dict[str, dict[str, Any]]:
    """Every case by name: its arguments and what its environment differs in."""
    found: dict[str, dict[str, Any]] = {}
    for name, words in WITH_A_PATH.items():
        for path in PATHS:
            if path == "pipe.csv" and name in ("run", "seen", "series"):
                continue  # a pipe may be meant, as in `headrace run <(…)`, and is waited for as any command does
            found[f"{name} {path[:20]!r}"] = {
                "arguments": [word.replace("{}", path) for word in words]
            }
    for words in NUMERIC:
        for number in NUMBERS:
            flag = words[words.index(next(word for word in words if "{}" in word)) - 1]
            found[f"{words[0]} {flag} {number[:10]!r}"] = {
                "arguments": [word.replace("{}", number) for word in words]
            }
    for words in WORDS:
        found[f"words {' '.join(words)[:40]!r}"] = {"arguments": list(words)}
    for name, environment in SURROUNDINGS.items():
        for words in SURROUNDED:
            found[f"{name}: {' '.join(words[:2])}"] = {
                "arguments": list(words),
                "environment": environment,
            }
    return found


def lay_out(place: Path) -> None:
    """What the command lines name, below a directory."""
    place.mkdir(parents=True)
    (place / "raw").mkdir()
    rows = "".join(f"{number % 9},2024-0{1 + number % 9}-01,{number}\n" for number in range(90))
    (place / "raw" / "a.csv").write_text("id,day,x\n" + rows)
    for name in ("empty", "dir.csv"):
        (place / name).mkdir()
    (place / "notes.txt").write_text("notes")
    os.mkfifo(place / "pipe.csv")
    (place / "loop").symlink_to("loop")
    for name in ("bytes.csv", "bytes.parquet"):
        (place / name).write_bytes(bytes(range(256)) * 20)
    (place / "zero.csv").touch()
    (place / "nul.jsonl").write_text('{"\\u0000": 1, "id": "a"}\n')
    (place / "deep.json").write_text("[" * 100_000)
    (place / "utf16.csv").write_bytes("id,day\n1,2\n".encode("utf-16"))
    (place / "pointer.csv").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\n"
    )
    (place / "config.yaml").write_text("recipe: temporal_split\nsource: raw\ntime: day\nentity: id\nsplit_date: 2024-06-01\n")  # fmt: skip
    (place / "bomb.yaml").write_text("a: &a [1,1,1,1,1,1,1,1,1]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\nrecipe: [*c,*c,*c,*c,*c,*c]\n")  # fmt: skip
    (place / "state.json").write_text('{"chain": [' * 3_000 + "0" + "]}" * 3_000)
    (place / "manifest" / "receipts").mkdir(parents=True)
    (place / "manifest" / "manifest.json").write_text("{")
    (place / "chats.jsonl").write_text('{"messages": [{"role": "user", "content": "hi"}]}\n')


def _child(case: dict[str, Any], out: Path, err: Path) -> None:
    """Become the command. Never returns."""
    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    environment = case.get("environment", {})
    for name, value in environment.items():
        os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)
    encoding = environment.get("PYTHONIOENCODING", "utf-8")
    sys.stdin, sys.stdout, sys.stderr = (open(number, mode, encoding=encoding, errors="strict" if number < 2 else "backslashreplace", closefd=False) for number, mode in ((0, "r"), (1, "w"), (2, "w")))  # fmt: skip  # noqa: SIM115
    for digit in environment.get("_CLOSED", ""):
        os.close(int(digit))
        setattr(sys, ("stdin", "stdout", "stderr")[int(digit)], None)
    if "_PIPE" in environment:
        read, write = os.pipe()
        os.dup2(write, 1)
        os.close(read)
        os.close(write)
    sys.argv = ["headrace", *case["arguments"]]
    from headrace.cli import command

    code: Any = 0
    try:
        command()
    except SystemExit as end:
        code = end.code
    except BaseException:  # noqa: BLE001 - as Python itself would
        import traceback

        traceback.print_exc()
        code = 1
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = 120
    os._exit(code if isinstance(code, int) else 1)


def run_all(place: Path, named: dict[str, dict[str, Any]], results: Path) -> None:
    """Write how each case ended: exit code (negative: by a signal), seconds, what it printed."""
    for module in ("headrace.cli.application", *_IMPORTED):  # the forks have them
        import_module(module)

    ended: dict[str, Any] = {}
    for number, (name, case) in enumerate(named.items()):
        out, err = place / f"told-{number}.out", place / f"told-{number}.err"
        begun = time.monotonic()
        child = os.fork()
        if child == 0:
            _child(case, out, err)
        status = _waited(child)
        told = [path.read_bytes().decode("utf-8", "surrogateescape") for path in (out, err)]
        ended[name] = {"code": status, "s": round(time.monotonic() - begun, 1), "out": told[0][:20_000], "err": told[1][:20_000], "size": len(told[0]) + len(told[1])}  # fmt: skip
        out.unlink()
        err.unlink()
        results.write_text(json.dumps(ended))


def _waited(child: int) -> int:
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -999


def problem(name: str, ended: dict[str, Any]) -> str | None:
    """What is wrong with how a case ended; None: nothing is."""
    said = ended["out"] + ended["err"]
    if ended["code"] not in (0, 1, 2, 130):
        return f"{name}: exit code {ended['code']}: {said[-400:]}"
    if "Traceback" in said or "This is a bug" in said or "Exception ignored" in said:
        return f"{name}: {said[-900:]}"
    if any(sign in said for sign in ("\x1b", "\x07", PASSWORD)):
        return f"{name}: control character or secret: {said[-400:]!r}"
    if ended["code"] and ended["size"] > 8_000:
        return f"{name}: {ended['size']} characters"
    return None


if __name__ == "__main__":
    at, wanted, results = map(Path, sys.argv[1:])
    os.chdir(at)
    run_all(at, json.loads(wanted.read_text()), results)
