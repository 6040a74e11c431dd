"""Progress below a notebook's cell, as a real IPython displays it; none where no notebook runs the process."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from headrace.run.events import CellProgress, Note, StageBegan, Step, TaskDone, listener_here

# A shell as a kernel has it, but for the kernel: what it displays is kept.
CELL = """
import json
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
shell.display_pub = CapturingDisplayPublisher(parent=shell)
shell.kernel = {kernel}
done = shell.run_cell("import headrace; headrace.rewrite('raw', 'out', cache_dir='cache');")
done.raise_error()
print(json.dumps([(each["data"].get("text/html"), each["update"]) for each in shell.display_pub.outputs]))
"""


def shown(where: Path, kernel: str) -> list[tuple[str, bool]]:
    """What the cell displays: HTML, and whether it is a drawing in the place of an earlier one."""
    (where / "raw").mkdir()
    for shard in range(5):
        pl.DataFrame({"x": range(40)}).write_parquet(where / f"raw/part-{shard}.parquet")
    environment = {**os.environ, "HOME": str(where), "IPYTHONDIR": str(where / "ipython")}
    command = [sys.executable, "-c", CELL.format(kernel=kernel)]
    done = subprocess.run(
        command,
        cwd=where,
        env=environment,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [(html, update) for html, update in json.loads(done.stdout.splitlines()[-1])]


@pytest.mark.slow
def test_a_cell_shows_one_drawing_that_ends_with_all_tasks(tmp_path: Path) -> None:
    pytest.importorskip("IPython")
    drawings = shown(tmp_path, "object()")
    last, _ = drawings[-1]
    bars = re.findall(r'value="(\d+)" max="(\d+)"', last)

    assert [False, *[True] * (len(drawings) - 1)] == [update for _, update in drawings]
    assert "rewrite shards" in last
    assert bars
    assert all(done == tasks for done, tasks in bars)


@pytest.mark.slow
def test_ipython_without_a_notebook_shows_nothing(tmp_path: Path) -> None:
    pytest.importorskip("IPython")

    assert [] == shown(tmp_path, "None")


def test_a_process_without_ipython_has_no_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)

    assert listener_here("temporal_split") is None


def test_every_end_of_a_stage_is_drawn_and_texts_stay_texts() -> None:
    drawn: list[str] = []
    hear = CellProgress("temporal_split", drawn.append)
    hear(StageBegan("split", 3, 1))
    for number in range(2):
        hear(TaskDone("split", f"shard {number}", 50, 500))
    hear(Step("shard.linked", "not drawn"))
    before = len(drawn)
    hear(Note("warning", "<b>test</b> is empty"))

    assert "1 of 3 shards" in drawn[0]
    assert "3 of 3 shards" in drawn[before - 1]
    assert "warning: &lt;b&gt;test&lt;/b&gt; is empty" in drawn[before]
    assert before + 1 == len(drawn)
