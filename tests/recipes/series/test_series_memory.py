"""Memory is that of a batch, not of all entities."""

import tracemalloc
from pathlib import Path

import pytest
from basins import a_basin, series, write_basins

DAYS = 2_000


def peak(source: Path, out: Path, **more) -> int:
    """The most bytes that arrays and objects took at a time; Arrow's own memory is not counted."""
    tracemalloc.start()
    try:
        series(source, out, batch_size=4, **more)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["files", "packed"])
def test_ten_times_the_entities_take_the_memory_of_a_batch(tmp_path: Path, layout: str) -> None:
    rows = a_basin(1, DAYS, lost_days=0.0)
    few = write_basins(tmp_path / "few", {f"g{place:03d}": rows for place in range(4)})
    many = write_basins(tmp_path / "many", {f"g{place:03d}": rows for place in range(40)})
    series(few, tmp_path / "warm", layout=layout)  # what is imported and cached once
    batch = peak(few, tmp_path / "few_out", layout=layout)

    assert peak(many, tmp_path / "many_out", layout=layout) < batch + 36 * DAYS * 3 * 8 // 4
