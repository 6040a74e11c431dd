"""What a command imports before it works: nothing that its answer does not need."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import headrace

SPY = "import sys; sys.argv[0] = 'headrace'\nfrom headrace.cli import command\ntry:\n    command()\nexcept SystemExit as end:\n    assert not end.code\n"


def after(code: str, *arguments: str | Path) -> str:
    """What a process says after it was this command."""
    done = subprocess.run([sys.executable, "-c", SPY + code, *map(str, arguments)], capture_output=True, text=True, timeout=250, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "raw").mkdir()
    pl.DataFrame({"who": list("abcd"), "at": ["2024-01-01", "2024-01-02", "2024-01-03", "2025-01-01"]}).write_csv(tmp_path / "raw/a.csv")  # fmt: skip
    split = headrace.TemporalSplit(source=tmp_path / "raw", date_column="at", group_column="who", split_date="2024-06-01")  # fmt: skip
    headrace.prepare(split, tmp_path / "out")
    return tmp_path / "out"


@pytest.mark.slow
def test_arrow_does_not_bring_pandas_into_a_command_and_others_still_may(out: Path) -> None:
    pytest.importorskip("pandas")
    loaded = "print('pandas' in sys.modules, __import__('pandas').DataFrame({'a': [1]}).a.sum())"

    assert "False 1" == after(loaded, "inspect", out)


@pytest.mark.smoke("split --help")
@pytest.mark.parametrize("arguments", [["--help"], ["split", "--help"], ["report", "-h"], ["--version"]], ids=" ".join)
def test_help_needs_no_library_of_data(arguments: list[str]) -> None:
    heavy = "{'numpy', 'pandas', 'polars', 'pyarrow', 'torch'}"

    assert "[]" == after(f"print(sorted({heavy} & set(sys.modules)))", *arguments)


@pytest.mark.slow
def test_histories_need_no_scipy_for_numba(tmp_path: Path) -> None:
    pytest.importorskip("numba", reason="needs numba, which comes with the extra histories")
    pytest.importorskip("scipy")
    pings = {"src_addr": ["10.0.0.1", "2a0e::1"], "event_time": [1_700_000_000, 1_700_000_001], "rtt": [1.5, None]}
    pl.DataFrame(pings).write_parquet(tmp_path / "pings.parquet")
    asked = ["--out", tmp_path / "out", "--time-format", "epoch_s", "--format", "arrow", "--report", "never"]
    kernel = (
        "import pyarrow as pa; from headrace.histories.parse_kernels import parse_texts\n"
        "print(parse_texts(pa.array(['10.0.0.1']))[0].tolist(), {'scipy', 'pandas'} & set(sys.modules))"
    )

    assert "[4] set()" == after(kernel, "histories", tmp_path / "pings.parquet", *asked)


@pytest.mark.smoke("ours")
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs the malloc of glibc")
@pytest.mark.parametrize(("set_up", "again"), [({}, False), ({"MALLOC_ARENA_MAX": "8"}, True)], ids=["ours", "theirs"])
def test_histories_take_freed_memory_again_without_the_kernel(set_up: dict[str, str], again: bool) -> None:
    code = (
        "import sys, resource, numpy as np; from headrace.cli.lean import freed_memory_kept; freed_memory_kept()\n"
        "def faults():\n"
        "    np.ones(3 << 20, np.uint8); return resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "first = faults(); print(faults() - first)"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment | set_up, timeout=60, check=True)  # fmt: skip

    pages = (3 << 20) // os.sysconf("SC_PAGE_SIZE")
    assert (int(done.stdout) > pages // 2) == again
