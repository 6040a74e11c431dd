"""pyarrow in a process of the command line, where it need not know pandas.

pyarrow imports pandas, where that is installed, with the first Python value it is handed, to see whether the value is
one of pandas'. That takes a quarter of a second of every command. Commands hand it nothing of pandas and ask nothing
of pandas of it; libraries that want pandas for themselves, as scikit-learn may, still get it.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec


class _NoPandas:
    """The first finder of modules: there is no pandas."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:  # noqa: ARG002 - as importlib calls it
        if name == "pandas":
            raise ModuleNotFoundError("no pandas is wanted here", name=name)
        return None


def arrow_alone() -> None:
    """Let pyarrow find no pandas in this process, where it has not yet. For processes of a command only."""
    if "pandas" in sys.modules:
        return
    import pyarrow as pa

    absent = _NoPandas()
    sys.meta_path.insert(0, absent)
    try:
        pa.scalar(0)  # it looks now, and remembers
    finally:
        sys.meta_path.remove(absent)
