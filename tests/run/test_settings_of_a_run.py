"""Settings of a finished run are read where its manifest vouches for them, whoever reads."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

import headrace
from headrace.contexts import open_contexts
from headrace.errors import CorruptShard
from headrace.histories.measurements import read_measurements


@pytest.fixture
def histories(tmp_path: Path) -> Path:
    """A run of histories whose settings have another name for one of them, so that they are JSON
    and no settings."""
    (tmp_path / "raw").mkdir()
    count = 400
    frame = pl.DataFrame(
        {
            "sensor": [f"s{number % 20}" for number in range(count)],
            "time": pl.Series(
                1_600_000_000_000_000 + np.arange(count) * 60_000_000, dtype=pl.Datetime("us")
            ),
            "value": np.linspace(1, 2, count),
        }
    )
    frame.write_parquet(tmp_path / "raw" / "part-0.parquet")
    settings = headrace.Histories(
        source=tmp_path / "raw", entity="sensor", entity_kind="text", time="time", value="value"
    )
    run = headrace.prepare(settings, tmp_path / "out", workers=1).run
    config = run / "config.json"
    config.write_bytes(config.read_bytes().replace(b'"entity_kind"', b'"entity_kinf"'))
    return run


def test_changed_settings_are_refused_by_whoever_reads_them(histories: Path) -> None:
    for read in (
        lambda: open_contexts(histories, context_tokens=64),
        lambda: next(read_measurements(histories)),
        lambda: headrace.open(histories).stream("train", batch_size=1, mask_entities=["s1"]),
    ):
        with pytest.raises(CorruptShard) as error:
            read()

        assert Path(error.value.path or "").name == "config.json"


def test_config_is_named_in_one_module() -> None:
    package = Path(headrace.__file__).parent
    naming = [
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if '"config.json"' in path.read_text(encoding="utf-8")
    ]

    assert naming == ["dataset/manifest.py"]
