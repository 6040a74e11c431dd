"""What a command imports before it works: nothing that its answer does not need."""

import subprocess
import sys
from pathlib import Path

import pytest

SPY = "import sys; sys.argv[0] = 'headrace'\nfrom headrace.cli import command\ntry:\n    command()\nexcept SystemExit as end:\n    assert not end.code\n"


def after(code: str, *arguments: str | Path) -> str:
    """What a process says after it was this command."""
    done = subprocess.run([sys.executable, "-c", SPY + code, *map(str, arguments)], capture_output=True, text=True, timeout=250, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.smoke("split --help")
@pytest.mark.parametrize("arguments", [["--help"], ["split", "--help"], ["report", "-h"], ["--version"]], ids=" ".join)
def test_help_needs_no_library_of_data(arguments: list[str]) -> None:
    heavy = "{'numpy', 'pandas', 'polars', 'pyarrow', 'torch'}"

    assert "[]" == after(f"print(sorted({heavy} & set(sys.modules)))", *arguments)
