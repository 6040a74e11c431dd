"""The recipe's law: as many rows are kept as the step says, of those that were read."""

import json

from headrace.dataset.open import FinishedRun
from headrace.dataset.verify import Check


def verify_thinned(run: FinishedRun, workers: int | None = None) -> list[Check]:
    """Compare the rows of the index with the step."""
    step = json.loads((run.root / "config.json").read_bytes())["step"]
    kept, read = run.manifest.splits["all"].rows, run.manifest.source["rows"]
    most = read // step + run.manifest.source["files"]
    problem = None if kept <= most else f"{run.root}: {kept} rows are kept of {read}; prepare the run again"
    return [Check("one row of so many", f"{kept} of {read} rows, step {step}", problem)]
