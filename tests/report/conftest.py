"""Runs that many tests only look at are made once."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Tab, a_tab
from report_cases import RUNS


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The dataset directory of a finished run of each recipe; not to be written to."""
    return {name: make(tmp_path_factory.mktemp("runs") / name) for name, make in RUNS.items()}


@pytest.fixture(scope="session")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    """One browser for all pages."""
    with a_tab(tmp_path_factory.mktemp("profile")) as found:
        yield found
