"""Nothing behind a cut of a series changes a byte before it: many sources, each prepared with other later rows."""

import random
from pathlib import Path

import pytest
from cut_cases import CONFIGS, differences
from fault_table import note

TRIALS = 100  # of each way to scale


@pytest.mark.faults
@pytest.mark.parametrize("name", CONFIGS)
def test_other_rows_behind_a_cut_change_nothing_before_it(tmp_path: Path, name: str) -> None:
    for trial in range(TRIALS):
        draw = random.Random(f"{name} {trial}")
        how = {
            "seed": draw.randrange(2**32),
            "values": draw.random() < 0.5,
            "missing": draw.choice([None, 0.0, 0.2, 0.9]),
            "lengths": [
                (draw.randint(0, 12), draw.randint(1, 20)) for _ in range(draw.randint(0, 3))
            ],
            "beginning": draw.randint(0, 8),
            "rows": draw.random() < 0.5,
        }
        where = draw.choice(["val", "test"]), draw.randint(0, 4)

        assert [] == differences(tmp_path / str(trial), CONFIGS[name], trial, *where, how), (
            f"trial {trial}: {how}"
        )
        note("other rows behind a cut", f"series, {name}", silent=0)
