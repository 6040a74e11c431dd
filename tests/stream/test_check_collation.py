"""A DataLoader with a batch_size of its own over a dataset of batches is refused before its first batch."""

from pathlib import Path

import polars as pl
import pytest
import torch
from torch.utils.data import DataLoader
from torch_cases import dataset_of

from headrace.errors import SettingsError
from headrace.tabular.dataset import PipelineIterableDataset

MESSAGE = "batches of 5 rows, .* batch_size=None"


@pytest.mark.parametrize(
    "more", [{}, {"batch_size": 2}, {"batch_size": 2, "drop_last": True}], ids=str
)
def test_batches_of_batches_are_refused(more: dict[str, int]) -> None:
    with pytest.raises(SettingsError, match=MESSAGE):
        next(iter(DataLoader(dataset_of(0), **more)))


@pytest.mark.slow
def test_they_are_refused_in_workers_too() -> None:
    with pytest.raises(SettingsError, match=MESSAGE):
        next(
            iter(
                DataLoader(
                    dataset_of(1), batch_size=4, num_workers=1, multiprocessing_context="fork"
                )
            )
        )


def test_who_collates_himself_is_let() -> None:
    rows = sum(dataset_of(0).index.rows.tolist())
    by_two = DataLoader(dataset_of(0), batch_size=2, collate_fn=lambda batches: torch.cat([each["row"] for each in batches]))  # fmt: skip
    whole = DataLoader(dataset_of(0), batch_size=None)

    assert list(range(rows)) == sorted(torch.cat(list(by_two)).tolist())
    assert list(range(rows)) == sorted(torch.cat([each["row"] for each in whole]).tolist())
    assert list(range(rows)) == sorted(torch.cat([each["row"] for each in dataset_of(0)]).tolist())


def test_tables_in_batches_are_refused_and_rows_are_not(tmp_path: Path) -> None:
    pl.DataFrame({"x": list(range(20))}).write_csv(tmp_path / "a.csv")
    columns = {"columns": [{"name": "x", "type": "int64"}]}
    with pytest.raises(SettingsError, match="whole batches of 4 rows"):
        next(
            iter(
                DataLoader(
                    PipelineIterableDataset(columns, file_dir=tmp_path, batch_size=4), batch_size=2
                )
            )
        )

    assert 5 == len(
        list(DataLoader(PipelineIterableDataset(columns, file_dir=tmp_path), batch_size=4))
    )
