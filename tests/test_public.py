"""The public names are what `__all__` says, and importing the package costs next to nothing."""

import subprocess
import sys

import pytest

import headrace


def test_every_public_name_resolves_and_is_listed() -> None:
    for name in headrace.__all__:
        assert getattr(headrace, name) is not None, name
    assert sorted(headrace.__all__) == headrace.__all__
    assert set(headrace._WHERE) == set(headrace.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        headrace.nonsense  # noqa: B018 - the access is the test


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = "import sys, headrace; print(*sorted({'numpy', 'pyarrow', 'polars', 'pydantic', 'torch', 'rich'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == ""


def test_preparing_needs_no_torch() -> None:
    code = "import sys, headrace; headrace.prepare, headrace.TemporalSplit, headrace.verify, headrace.open; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "False"
