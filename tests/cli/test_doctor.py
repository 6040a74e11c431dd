"""`headrace doctor` finds what is there, what is missing and what is wrong."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from headrace.cli.doctor import Finding, directory, extras, file_system, launcher, limits, mistakes, topology, within

HEADRACE = Path(sys.executable).parent / "headrace"


def doctor(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [HEADRACE, "doctor", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "200", **environment},
        timeout=250,
    )


def test_a_healthy_place_is_ok_and_a_hidden_rank_is_a_problem(tmp_path: Path) -> None:
    record = json.loads(doctor(tmp_path / "out", "--json").stdout)
    lost = doctor(SLURM_NTASKS="4", SLURM_PROCID="2")
    found = {each["name"]: each for each in record["findings"]}

    assert record["ok"]
    assert found["rank"]["found"] == "0 of 1, no launcher was detected"
    assert found["extra torch"]["verdict"] == "ok"
    assert f"{tmp_path}: " in found["place"]["found"]
    assert list(tmp_path.iterdir()) == []
    assert lost.returncode == 1
    assert "SLURM_NTASKS is 4" in lost.stdout
    assert "Traceback" not in lost.stderr


def test_extras_are_those_of_the_package_with_what_they_stand_on() -> None:
    requirements = [
        "numpy>=1.26",
        "pyarrow>=22; extra == 'a'",
        "headrace[a]; extra == 'b'",
        'no-such-library>=1; extra == "b"',
        "ruff; extra == 'lint'",
        "headrace[a]; extra == 'fuzz'",
        "no-such-library; extra == 'c'",
        "nor-such-library; extra == 'd'",
    ]
    found = {each.name: each for each in extras(requirements)}

    assert {"extra a", "extra b", "extras not installed"} == set(found)
    assert "c, d" == found["extras not installed"].found
    assert ("ok", "") == (found["extra a"].verdict, found["extra a"].advice)
    assert found["extra b"].found.startswith("pyarrow ")
    assert "no-such-library missing" in found["extra b"].found
    assert "pip install 'headrace[b]'" in found["extra b"].advice


@pytest.mark.parametrize(
    ("environ", "words", "verdict"),
    [
        ({}, "0 of 1", "ok"),
        ({"RANK": "3", "WORLD_SIZE": "8"}, "3 of 8, from RANK and WORLD_SIZE", "ok"),
        ({"WORLD_SIZE": "8"}, "unknown", "problem"),
    ],
)
def test_ranks_are_found_as_streams_find_them(environ: dict[str, str], words: str, verdict: str) -> None:
    found = topology(environ)

    assert words in found.found
    assert verdict == found.verdict


def test_limits_and_directories_are_named(tmp_path: Path) -> None:
    assert {"cores", "open files", "memory"} <= {each.name for each in limits()}
    found = {each.name: each for each in directory(tmp_path / "not" / "there")}

    assert found["place"].found.startswith(f"{tmp_path}: ")
    assert {"links", "locks", "fsync", "file system"} < found.keys()
    assert [] == list(tmp_path.iterdir())


def test_a_file_is_no_place(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (found,) = directory(tmp_path / "file")

    assert ("problem", "give a directory") == (found.verdict, found.advice)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_place_that_may_only_be_read_is_told_and_no_problem(tmp_path: Path) -> None:
    place = tmp_path / "data"
    place.mkdir(mode=0o500)
    found = directory(place)

    assert "is readable but not writable" in found[0].found
    assert "note" == found[0].verdict


def test_the_file_system_of_a_path_is_that_of_its_nearest_mount(tmp_path: Path) -> None:
    inside = tmp_path / "a b"
    inside.mkdir()
    mounts = tmp_path / "mountinfo"
    spaced = str(inside).replace(" ", "\\040")
    mounts.write_text(
        "1 0 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n"
        f"2 1 0:5 / {spaced} rw - nfs4 server:/export rw\n"
        "3 1 0:6 / /elsewhere rw - tmpfs none rw\n"
        "a broken line\n"
    )

    assert "nfs4" == file_system(inside / "runs", mounts)
    assert "ext4" == file_system(tmp_path, mounts)
    assert file_system(tmp_path, tmp_path / "none") is None


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({}, "none"),
        ({"TORCHELASTIC_RUN_ID": "1", "LOCAL_WORLD_SIZE": "4", "SLURM_JOB_ID": "7"}, "torchrun, inside Slurm, 4 processes on this machine"),
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS_PER_NODE": "2"}, "Slurm, 2 processes on this machine"),
        ({"OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, "Open MPI, 4 processes on this machine"),
        ({"RAY_JOB_ID": "01000000"}, "Ray"),
        ({"LOCAL_RANK": "1", "NODE_RANK": "0"}, "Lightning"),
    ],
)  # fmt: skip
def test_launchers_are_known_by_what_they_set(environ: dict[str, str], words: str) -> None:
    assert words == launcher(environ).found


@pytest.mark.parametrize(
    ("environ", "name", "verdict", "words"),
    [
        ({"OMP_NUM_THREADS": "many"}, "OMP_NUM_THREADS", "problem", "not a valid number of threads"),
        ({"OMP_NUM_THREADS": "8", "LOCAL_WORLD_SIZE": "4"}, "OMP_NUM_THREADS", "note", "set OMP_NUM_THREADS=2"),
        ({"OMP_NUM_THREADS": "1"}, "OMP_NUM_THREADS", "note", "8 cores are free"),
        ({"LOCAL_WORLD_SIZE": "4"}, "OMP_NUM_THREADS", "note", "uses all 8 cores"),
        ({"LOCAL_RANK": "4", "LOCAL_WORLD_SIZE": "4", "OMP_NUM_THREADS": "2"}, "LOCAL_RANK", "problem", "numbered from 0"),
        ({"WORLD_SIZE": "2", "RANK": "0"}, "MASTER_ADDR", "note", "init_process_group"),
        ({"WORLD_SIZE": "3", "SLURM_NTASKS": "2"}, "WORLD_SIZE", "problem", "Slurm started 2 tasks"),
        ({"CUDA_VISIBLE_DEVICES": "0,1", "LOCAL_WORLD_SIZE": "4", "OMP_NUM_THREADS": "2"}, "CUDA_VISIBLE_DEVICES", "note", "share 2 devices"),
    ],
)  # fmt: skip
def test_usual_mistakes_are_named(environ: dict[str, str], name: str, verdict: str, words: str) -> None:
    found = {each.name: each for each in mistakes(environ, 8)}

    assert (verdict, True) == (found[name].verdict, words in found[name].advice)


def test_a_sound_job_has_no_mistakes() -> None:
    sound = {"RANK": "1", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "1", "OMP_NUM_THREADS": "2", "CUDA_VISIBLE_DEVICES": "0,1,2,3", "SLURM_NTASKS": "2"}  # fmt: skip

    assert {"ok"} == {each.verdict for each in mistakes(sound, 8)}


def test_what_does_not_answer_is_told() -> None:
    never = threading.Event()

    def silent() -> list[Finding]:
        never.wait(60)
        return []

    (found,) = within(0.1, "s3://far", silent)
    never.set()

    assert ("problem", "s3://far: no answer in 0.1 s") == (found.verdict, found.found)
