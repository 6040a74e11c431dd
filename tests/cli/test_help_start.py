"""What a command imports before it works: nothing that its answer does not need."""

import subprocess
import sys
from pathlib import Path

import pytest

SPY = "import sys; sys.argv[0] = 'headrace'\nfrom headrace.cli import command\ntry:\n    command()\nexcept SystemExit as end:\n    assert not end.code\n"


def after(code: str, *arguments: str | int | Path) -> str:
    """What a process says after it was this command."""
    done = subprocess.run([sys.executable, "-c", SPY + code, *map(str, arguments)], capture_output=True, text=True, timeout=250, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.smoke("split --help")
@pytest.mark.parametrize(
    "arguments", [["--help"], ["split", "--help"], ["inspect", "-h"], ["--version"]], ids=" ".join
)
def test_help_needs_no_library_of_data(arguments: list[str]) -> None:
    heavy = "{'numpy', 'pandas', 'polars', 'pyarrow', 'torch'}"

    assert "[]" == after(f"print(sorted({heavy} & set(sys.modules)))", *arguments)


@pytest.mark.slow
def test_a_question_about_a_row_does_not_wait_for_pandas(tmp_path: Path) -> None:
    shard = tmp_path / "rows" / "part-00000.csv"
    shard.parent.mkdir()
    shard.write_text(
        "customer,amount\n" + "".join(f"c{number % 7},{number}\n" for number in range(100))
    )
    where = ["where", shard.parent, "--row", "part-00000.csv:3", "--ranks", 2, "--batch-size", 8]
    after("print()", *where)  # makes the index

    assert "False" == after("print('pandas' in sys.modules)", *where)


def test_a_split_does_not_load_streams_nor_its_reuse_a_library_of_data(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    shard = tmp_path / "rows" / "part-00000.csv"
    shard.write_text(
        "time,customer\n"
        + "".join(f"2025-01-{1 + number % 28:02},c{number % 7}\n" for number in range(99))
    )
    split = ["split", tmp_path / "rows", "--out", tmp_path / "out", "--time", "time", "--entity", "customer", "--split-date", "2025-01-15", "--report", "never"]  # fmt: skip
    loaded = "print(sorted({'pyarrow.compute', 'headrace.stream.loader.dataset', 'rich.progress', 'headrace.cli.doctor'} & set(sys.modules)))"  # fmt: skip

    data = "print(sorted({'numpy', 'pyarrow', 'polars'} & set(sys.modules)))"  # fmt: skip

    assert "['pyarrow.compute']" == after(loaded, *split)
    assert "[]" == after(loaded, *split)
    assert "[]" == after(data, *split)
