"""The public names are what `__all__` says, and importing the package costs next to nothing."""

import functools
import inspect
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import headrace


def test_every_public_name_resolves_and_is_listed() -> None:
    for name in headrace.__all__:
        assert getattr(headrace, name) is not None, name
    assert sorted(headrace.__all__) == headrace.__all__
    assert set(headrace._WHERE) == set(headrace.__all__)
    assert len(headrace.__all__) <= 35


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


SPOKEN = (
    "__call__",
    "__getitem__",
    "__iter__",
    "__len__",
    "__rshift__",
)  # what users write without a name


def said_of(value: object, where: str) -> Iterator[tuple[str, str | None]]:
    """A public function or class, and what is public of the class in any module of ours: where it is, its docstring."""
    yield where, value.__doc__
    for owner in value.__mro__ if inspect.isclass(value) else ():
        if not owner.__module__.startswith("headrace"):
            continue
        for name, member in vars(owner).items():
            function = member.fget if isinstance(member, property) else member
            function = (
                function.func if isinstance(function, functools.cached_property) else function
            )
            function = (
                function.__func__ if isinstance(function, classmethod | staticmethod) else function
            )
            if inspect.isfunction(function) and (name in SPOKEN or not name.startswith("_")):
                yield f"{where}.{name}", function.__doc__


@pytest.mark.parametrize(
    ("module", "needs"),
    [
        ("headrace", "torch"),
        ("headrace.types", "torch"),
        ("headrace.tabular", "torch"),
        ("headrace.windows", "torch"),
        ("headrace.contexts", "numpy"),
        ("headrace.grain", "grain"),
        ("headrace.lightning", "lightning"),
    ],
)
def test_every_public_name_and_method_says_what_it_promises(module: str, needs: str) -> None:
    pytest.importorskip(needs)
    face = import_module(module)

    said = [
        each for name in face.__all__ for each in said_of(getattr(face, name), f"{module}.{name}")
    ]

    assert len(said) > len(face.__all__)
    assert [] == [where for where, words in said if not (words or "").strip()]


@pytest.mark.slow
def test_opening_imports_nothing_that_only_filters_need(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n2\n")
    # pydantic is there: it checks the dialect of text that `open` takes
    code = (
        "import sys, headrace; list(headrace.open(sys.argv[1]).stream(batch_size=1, batch_format='numpy'));"
        " print(*{'pyarrow.acero', 'pyarrow.dataset', 'polars', 'torch'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True
    )
    assert done.stdout == "\n"
