"""Record a job on two ranks that is killed and goes on with three, as the picture docs/pictures/recording.svg.

    python docs/site/recording.py

What the picture shows was printed by `job.py` beside this file, at these times, made faster to fit ten seconds.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from html import escape
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROOT = Path(__file__).parents[2]
JOB = Path(__file__).resolve().with_name("job.py")
PICTURE = ROOT / "docs/pictures/recording.svg"
ROWS, SHARDS = 100_000, 4
KILLED_AFTER = "step 40:"
LASTS = 10.0  # seconds of the recording
HELD = 5.0  # seconds of its last picture, which is also the first
TYPED = 0.8  # seconds that a command takes to be typed
WIDTH, LINE, TOP, LEFT = 560, 24, 58, 24

Line = tuple[float, str, str]  # second, class, text


def run(directory: Path, ranks: int, killed_after: str | None) -> list[tuple[float, str]]:
    """Run the job, and kill it after a line that begins so. Returns (second, line)."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={ranks}",
    ]
    job = subprocess.Popen(
        [*command, str(JOB)],
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert job.stdout is not None
    printed, begun = [], time.monotonic()
    for line in job.stdout:
        printed.append((time.monotonic() - begun, line.rstrip()))
        if killed_after is not None and line.startswith(killed_after):
            subprocess.run(
                ["pkill", "-KILL", "-f", str(JOB)], check=True
            )  # the launcher and all ranks
            break
    job.wait()
    if killed_after is None and job.returncode:
        sys.exit("the job on three ranks failed")
    return printed


def record() -> list[Line]:
    """Run both jobs. Returns what the terminal shows, from second 0 on."""
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        (directory / "shards").mkdir()
        for number, ids in enumerate(np.array_split(np.arange(ROWS), SHARDS)):
            pq.write_table(pa.table({"id": ids}), directory / f"shards/part-{number}.parquet")
        first, second = run(directory, 2, KILLED_AFTER), run(directory, 3, None)
    shown: list[Line] = []
    now = 0.3
    for ranks, printed in ((2, first), (3, second)):
        shown.append((now, "typed", f"torchrun --nproc-per-node {ranks} job.py"))
        now += TYPED
        start = printed[0][0]  # from its first line on: importing torch is cut
        shown += [(now + second - start, "printed", text) for second, text in printed]
        now += printed[-1][0] - start + 0.3
        if ranks == 2:
            shown.append((now, "killed", "kill -9"))
            now += 1.0
    return [(at * LASTS / now, kind, text) for at, kind, text in shown]


def drawn(lines: list[Line]) -> str:
    """Draw a terminal: whole at first, then each line appears at its second, again and again."""
    whole = HELD + LASTS
    cleared = 100 * HELD / whole
    height = TOP + LINE * len(lines) + 8
    rows = []
    css = [
        "text { font: 15px ui-monospace, 'SF Mono', Menlo, Consolas, monospace; fill: #d7e0e2; white-space: pre }",
        ".prompt { fill: #5ec9b8 } .killed { fill: #ff8a7a } .end { fill: #a9e5a0; font-weight: 600 }",
    ]
    for number, (at, kind, text) in enumerate(lines):
        y = TOP + LINE * number + 12
        shown = 100 * (HELD + at) / whole
        css.append(
            f"@keyframes l{number} {{ 0%, {cleared:.2f}% {{ opacity: 1 }}"
            f" {cleared + 0.01:.2f}%, {shown:.2f}% {{ opacity: 0 }}"
            f" {shown + 0.01:.2f}%, 100% {{ opacity: 1 }} }}"
            f" .l{number} {{ animation: l{number} {whole:g}s infinite }}"
        )
        if kind == "typed":
            spans = f'<tspan class="prompt">$ </tspan>{escape(text)}'
        elif kind == "killed":
            spans = f'<tspan class="killed">✗ {escape(text)}</tspan>'
        else:
            spans = (
                f'<tspan class="end">{escape(text)}</tspan>'
                if text.startswith("end of")
                else escape(text)
            )
        rows.append(f'<text class="l{number}" x="{LEFT}" y="{y}">{spans}</text>')
    css.append("@media (prefers-reduced-motion: reduce) { text { animation: none !important } }")
    told = "; ".join(text for _, _, text in lines if not text.startswith("step "))
    colours = ("#ff6159", "#febc2e", "#28c840")
    dots = "".join(
        f'<circle cx="{22 + 18 * n}" cy="20" r="5.5" fill="{colour}"/>'
        for n, colour in enumerate(colours)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
        f' role="img"><title>{escape(told)}</title><style>{" ".join(css)}</style>'
        f'<rect width="{WIDTH}" height="{height}" rx="10" fill="#16232a"/>{dots}{"".join(rows)}</svg>\n'
    )


if __name__ == "__main__":
    PICTURE.write_text(drawn(record()), "utf-8")
