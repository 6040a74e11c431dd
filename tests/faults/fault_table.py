"""What the full fault kit counted: trials of each fault, added to a file where `HEADRACE_FAULT_TABLE` names one."""

from __future__ import annotations

import json
import os
from pathlib import Path


def note(fault: str, of: str = "", **counts: float) -> None:
    """One trial that held. A trial that fails ends its test, and is no line of this table."""
    table = os.environ.get("HEADRACE_FAULT_TABLE")
    if table:
        with Path(table).open("a") as file:
            file.write(json.dumps({"fault": fault, "of": of, **counts}) + "\n")
