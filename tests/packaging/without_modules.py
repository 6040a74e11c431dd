"""Runs uses in an interpreter that lacks some packages: `python without_modules.py PACKAGE,… USE…`; JSON of what came.

The packages are refused by an import hook, so an installation that has them behaves as one that lacks them; where they
are absent anyway, the hook changes nothing.
"""

import json
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path


class Absent:
    """Finds nothing under the names."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = frozenset(names)

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        if name.split(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    sys.meta_path.insert(0, Absent(sys.argv[1].split(",")))

    import extra_uses

    from headrace.errors import MissingExtra

    came = {}
    for use in sys.argv[2:]:
        Path(use).mkdir()
        os.chdir(use)
        try:
            came[use] = getattr(extra_uses, use)()
        except MissingExtra as error:
            came[use] = f"MissingExtra: {error}"
        os.chdir("..")
    print(json.dumps(came))
