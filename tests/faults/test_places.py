"""What a killed test process leaves is removed by the next one, locked directories too; what a living one has stays."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from places import remove

TESTS = Path(__file__).parents[1]
MAKE = """
import os, sys
from places import new_place
place = new_place()
(place / "locked" / "deep").mkdir(parents=True)
(place / "locked" / "deep" / "file").write_text("x")
(place / "locked").chmod(0o000)
print(place, flush=True)
if sys.argv[1] == "wait":
    sys.stdin.read()
"""


def start(where: Path, how: str) -> tuple[subprocess.Popen, Path]:
    environment = {key: value for key, value in os.environ.items() if key != "HEADRACE_TESTS_PLACE"}
    process = subprocess.Popen(
        [sys.executable, "-c", MAKE, how],
        env=environment | {"TMPDIR": str(where), "PYTHONPATH": str(TESTS)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def end(process: subprocess.Popen) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    process.wait()
    process.stdout.close()


def test_a_process_removes_what_it_made(tmp_path: Path) -> None:
    process, place = start(tmp_path, "end")
    end(process)

    assert tmp_path == place.parent
    assert [] == list(tmp_path.iterdir())


def test_what_a_killed_process_left_is_removed_by_the_next_and_nothing_of_a_living_one(
    tmp_path: Path,
) -> None:
    living, kept = start(tmp_path, "wait")
    killed, left = start(tmp_path, "wait")
    killed.send_signal(signal.SIGKILL)
    end(killed)

    assert left.exists()

    end(start(tmp_path, "end")[0])

    assert [kept] == list(tmp_path.iterdir())
    assert (kept / "locked").exists()
    end(living)
    assert [] == list(tmp_path.iterdir())


def test_a_link_out_of_a_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir(mode=0o500)
    (tmp_path / "place").mkdir()
    (tmp_path / "place" / "link").symlink_to(tmp_path / "other")

    remove(tmp_path / "place")

    assert not (tmp_path / "place").exists()
    assert 0o500 == (tmp_path / "other").stat().st_mode & 0o777
