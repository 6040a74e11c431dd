"""What torchrun starts for test_elastic: examples/trainers/elastic.py, held at the steps that the test allows.

`elastic_cases.py FOLDER FLAGS ...`. Each life of a rank writes FOLDER/life-PID.jsonl: its place, then its steps.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

FOLDER = Path(sys.argv.pop(1))


def main() -> None:
    """One life of a rank."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "trainers"))
    import elastic
    import rows

    # each start of the job has a store, and so a port, of its own
    names = ("RANK", "WORLD_SIZE", "MASTER_PORT")
    place = {name.lower(): int(os.environ[name]) for name in names}
    with (FOLDER / f"life-{os.getpid()}.jsonl").open("w") as log:

        def on_step(step, batch, loss) -> None:
            numbers = batch["row"][batch["valid"]].tolist()
            line = {"step": step, "rows": numbers, "batch": len(batch["row"]), "loss": loss}
            print(json.dumps({**place, **line}), file=log, flush=True)
            while step >= int((FOLDER / "allowed").read_text()):
                time.sleep(0.02)

        print(json.dumps({**place, "pid": os.getpid()}), file=log, flush=True)
        elastic.main(on_step)
    rows.leave_group()


if __name__ == "__main__":
    main()
