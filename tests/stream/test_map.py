"""Random access: row i is row i of the files, in batches as alone, on every rank and in workers of any kind."""

import pickle
import random

import numpy as np
import pyarrow as pa
import pytest
import rank_processes  # noqa: F401 - its server starts workers that are no forks at once
import torch
from stream_cases import Numbers, index_of, write_split
from torch.utils.data import DataLoader, DistributedSampler

from headrace.errors import CorruptShard, SettingsError
from headrace.stream.loader.map import MapDataset, columns_of
from raised import raised

pytestmark = pytest.mark.filterwarnings(
    "ignore:This DataLoader will create"
)  # the number of workers is the subject

ROWS = (40, 0, 13, 1, 90, 17)
TOTAL = sum(ROWS)


def dataset_of(**settings):
    return MapDataset(index_of(ROWS), Numbers(ROWS), **settings)


@pytest.mark.parametrize("cache_bytes", [0, 2000, 1 << 20])
def test_rows_come_in_the_order_asked_for_whatever_the_cache(cache_bytes):
    dataset = dataset_of(cache_bytes=cache_bytes)
    dice = random.Random(cache_bytes)
    for _ in range(20):
        wanted = [dice.randrange(-TOTAL, TOTAL) for _ in range(dice.randrange(1, 50))]
        batch = dataset.batch(wanted)

        assert batch["row"].tolist() == [row % TOTAL for row in wanted]
        assert batch["text"] == [str(row % TOTAL) for row in wanted]
        assert dataset._cached_bytes <= cache_bytes


def test_a_row_is_a_dict_of_scalars_and_the_length_that_of_the_split():
    dataset = dataset_of()

    assert len(dataset) == TOTAL
    assert [dataset[row]["row"].item() for row in range(TOTAL)] == list(range(TOTAL))
    assert dataset[-1] == {
        "row": torch.tensor(TOTAL - 1),
        "text": str(TOTAL - 1),
        "valid": torch.tensor(True),
    }
    assert dataset_of(columns=["text"])[3] == {"text": "3", "valid": torch.tensor(True)}
    assert dataset.batch([])["row"].shape == (0,)
    with pytest.raises(IndexError, match=f"row {TOTAL} of split train"):
        dataset[TOTAL]
    with raised(SettingsError, setting="columns", value=["other"]):
        dataset_of(columns=["other"])


@pytest.mark.slow
@pytest.mark.smoke("None-None", "fork-arrays_of")
@pytest.mark.parametrize("collate", [None, columns_of])
@pytest.mark.parametrize("method", [None, "fork", "forkserver"])
def test_under_a_distributed_sampler_every_row_is_delivered_once(method, collate):
    received = []
    for rank in range(2):
        dataset = dataset_of()
        sampler = DistributedSampler(dataset, num_replicas=2, rank=rank, drop_last=False)
        loader = DataLoader(
            dataset,
            batch_size=16,
            sampler=sampler,
            collate_fn=collate,
            num_workers=0 if method is None else 2,
            multiprocessing_context=method,
        )
        for batch in loader:
            assert batch["text"] == [str(row) for row in batch["row"].tolist()]
            received += batch["row"].tolist()

    assert set(received) == set(range(TOTAL))
    assert len(received) - TOTAL == TOTAL % 2  # what the sampler itself repeats


def test_types_lists_and_nulls_are_those_of_a_stream(tmp_path):
    table = pa.table(
        {
            "small": pa.array(np.arange(10), pa.int16()),
            "half": pa.array([None if n % 4 == 0 else n / 2 for n in range(10)], pa.float32()),
            "tokens": pa.array([list(range(n % 3)) for n in range(10)], pa.list_(pa.int32())),
        }
    )
    dataset = MapDataset(*write_split(tmp_path, table, shard_rows=4, group_rows=3))
    batch = dataset.batch([9, 0, 5])

    assert (batch["small"].dtype, batch["half"].dtype) == (torch.int16, torch.float32)
    assert batch["half"].isnan().tolist() == [False, True, False]
    assert [tokens.tolist() for tokens in batch["tokens"]] == [[], [], [0, 1]]
    assert dataset[5]["half"].dtype == torch.float32


def test_a_pickled_dataset_leaves_its_cache_behind():
    dataset = dataset_of()
    dataset.batch(range(TOTAL))
    size = len(pickle.dumps(dataset))
    empty = len(pickle.dumps(dataset_of()))

    assert dataset._cached_bytes > 2000
    assert size < empty + 300
    assert pickle.loads(pickle.dumps(dataset))[7]["text"] == "7"


def test_a_block_of_another_size_than_indexed_is_an_error():
    dataset = MapDataset(index_of(ROWS), Numbers((*ROWS[:-1], 3)))

    with pytest.raises(
        CorruptShard, match=r"part-00005.parquet block 0: has 3 rows, the index says 17"
    ):
        dataset[TOTAL - 1]
