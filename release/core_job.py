"""A real job with the core alone, in the working directory: CSV shards are split, verified, streamed and resumed.

`make package` runs it with an installed wheel, outside the checkout: `python core_job.py HEADRACE_COMMAND`.
"""

import contextlib
import io
import json
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

HEAVY = {"numpy", "polars", "pyarrow", "torch", "pandas", "sklearn", "ray"}
ROWS, CUTOFF = 4000, "2025-01-01"


def main(command: str) -> None:
    """Does the job; stops with an AssertionError at the first thing that is not as promised."""
    check_imports()
    write_shards()
    with_library()
    with_commands(command)
    print("split, verified, streamed and resumed by library and command line")


def check_imports() -> None:
    """`import headrace` and `headrace --help` load no heavy package; the latter prints its commands."""
    import headrace

    assert not HEAVY & set(sys.modules), HEAVY & set(sys.modules)
    assert "site-packages" in str(headrace.__file__), headrace.__file__
    from headrace.cli import main as command_line

    sys.argv, said = ["headrace", "--help"], io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        command_line()
    assert "verify" in said.getvalue(), said.getvalue()
    assert not HEAVY & set(sys.modules), HEAVY & set(sys.modules)


def write_shards() -> None:
    """Four CSV shards of events of 300 customers, on both sides of the cutoff."""
    Path("raw").mkdir()
    start = datetime(2024, 7, 1)
    for shard in range(4):
        rows = ["event,customer,time,amount"]
        for n in range(shard, ROWS, 4):
            rows.append(f"{n},{n * 7919 % 300:05d},{start + timedelta(minutes=83 * n)},{n % 97}.50")
        Path(f"raw/part-{shard:05d}.csv").write_text("\n".join(rows) + "\n")


def with_library() -> None:
    """Every row is in one split or one reason; a stream gives each row of train once, also when it is resumed."""
    import headrace
    from headrace.types import StreamLoader

    split = headrace.TemporalSplit(
        source="raw", time="time", entity="customer", split_date=CUTOFF, types={"event": "int64"}
    )
    manifest = headrace.prepare(split, "out").manifest
    assert headrace.verify("out").problems == []

    def stream() -> StreamLoader:
        return headrace.open("out").stream(
            "train", batch_size=64, shuffle=True, seed=7, batch_format="numpy"
        )

    def events(batches: Any) -> list[int]:
        return [number for batch in batches for number in batch["event"].tolist()]

    whole, first, rest = events(stream()), stream(), stream()
    begun = events([batch for _, batch in zip(range(5), first, strict=False)])
    rest.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert len(set(whole)) == len(whole) == manifest.splits["train"].rows > 0
    assert begun + events(rest) == whole


def with_commands(command: str) -> None:
    """The same by the command line, which finds the library's rows again in a run of its own."""
    asked = ["--time", "time", "--entity", "customer", "--split-date", CUTOFF]
    for arguments in (
        ["split", "raw", "--out", "out2", *asked],
        ["verify", "out2"],
        ["inspect", "out2"],
        ["plan", "out2", "--split", "train", "--ranks", "2", "--batch-size", "64"],
    ):
        done = subprocess.run(
            [command, *arguments, "--json"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done
        json.loads(done.stdout.splitlines()[-1] if arguments[0] == "split" else done.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
