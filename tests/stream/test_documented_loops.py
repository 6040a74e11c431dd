"""The loops of docs/trainers on data that leaves a remainder of one row: no step divides by zero, no row is lost."""

import re
from pathlib import Path

import numpy as np
import pytest
from script_processes import run_script
from stream_cases import ranks
from torch_cases import dataset_of, loader_of

from headrace.lightning import PassLoader

pytestmark = pytest.mark.filterwarnings(
    "ignore:This DataLoader will create"
)  # the number of workers is the subject

PAGES = sorted((Path(__file__).parents[2] / "docs/trainers").glob("*.md"))
ROWS = 49  # six batches of eight, and a row
FINITE = "assert all(getattr(each, 'to_local', lambda each=each: each)().isfinite().all() for each in model.parameters())"


def script_of(name):
    """A script of one of the pages, for 49 rows in batches of 8; each step is checked."""
    (text,) = re.findall(
        rf"```python\n(# {name}\n.*?)\n```",
        "\n".join(page.read_text("utf-8") for page in PAGES),
        re.DOTALL,
    )
    smaller = text.replace("batch_size=32", "batch_size=8").replace("range(1000)", f"range({ROWS})")
    smaller = (
        smaller.replace("steps=10", "steps=2").replace("steps=5", "steps=2").replace("[5:]", "[2:]")
    )
    checked = re.sub(
        r"^( +)optimizer\.step\(\)$",
        rf"\1optimizer.step()\n\1{FINITE}",
        smaller,
        flags=re.MULTILINE,
    )
    assert checked.count(FINITE) == 1
    return checked


@pytest.mark.smoke("ddp.py-2-2 ranks, 4 steps: 49 rows\\n")
@pytest.mark.parametrize(
    ("name", "processes", "printed"),
    [
        ("ddp.py", 1, "1 ranks, 7 steps: 49 rows\n"),
        ("ddp.py", 2, "2 ranks, 4 steps: 49 rows\n"),
        ("fsdp.py", 1, "the same batches: True\n"),
        ("fsdp.py", 2, "the same batches: True\n"),
        ("accelerated.py", 1, "16 rows, and 33 others: True\n"),
        ("accelerated.py", 2, "32 rows, and 17 others: True\n"),
    ],
)
def test_a_script_of_the_page_with_a_remainder_of_one_row(tmp_path, name, processes, printed):
    if name == "accelerated.py":
        pytest.importorskip("accelerate", reason="needs accelerate")
    (tmp_path / "shards").mkdir()
    lines = ["row,x,y", *(f"{n},{n % 13}.5,{n % 2}" for n in range(ROWS))]
    (tmp_path / "shards/part-0.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / name).write_text(script_of(name))

    assert printed == run_script(tmp_path, processes, [name])


@pytest.mark.smoke(every=6)
@pytest.mark.parametrize("rows", [(20, 20, 9), (16, 1), (1,), (32, 16)], ids=sum)
@pytest.mark.parametrize(
    ("world_size", "workers", "remainder"),
    [
        (1, 0, "exact"),
        (1, 1, "exact"),
        *(
            (*consumers, how)
            for consumers in ((1, 0), (1, 2), (2, 0), (2, 2), (3, 0))
            for how in (None, "pad", "drop")
        ),
    ],
)
def test_every_rank_takes_as_many_steps_as_len_says_and_the_documented_loss_is_that_of_all_rows(
    world_size, workers, remainder, rows
):
    passes, dropped = [], 0
    for topology in ranks(world_size):
        dataset = dataset_of(
            workers, rows=rows, topology=topology, batch_size=8, remainder=remainder
        )
        dropped = dataset.dropped_rows
        batches = list(loader_of(dataset))
        assert len(dataset) == len(PassLoader(dataset, None)) == len(batches)
        passes.append(batches)
    total = 0.0
    seen = []
    for step in zip(*passes, strict=True):  # the same number on every rank
        real = sum(int(batch["valid"].sum()) for batch in step)
        loss = sum(float((batch["row"].double() * batch["valid"]).sum()) for batch in step) / max(
            real, 1
        )
        assert np.isfinite(loss)
        total += loss * real
        seen += [row for batch in step for row in batch["row"][batch["valid"]].tolist()]

    assert sum(rows) - dropped == len(seen) == len(set(seen))
    assert sum(seen) == pytest.approx(total)
