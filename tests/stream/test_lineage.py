"""Where rows are delivered is what streams deliver."""

from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from stream_cases import ranks

import headrace
from headrace.stream.order.whereabouts import find_rows, row_in_shard, row_number

ROWS = 260
ASKED = [3, 11, 4]
ORDERS = {
    "a permutation": {"shuffle": True},
    "rounds": {"shuffle": True, "shuffle_rows": 40, "lanes": 6},
    "in order": {"shuffle": False},
    "a part": {"shuffle": True, "shuffle_rows": 30, "lanes": 3, "samples_per_epoch": 170},
    "more than all": {"shuffle": True, "samples_per_epoch": 300},
    "whole shards": {"shuffle": True, "distribution": "round_robin"},
}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    root = tmp_path_factory.mktemp("lineage")
    entity = np.random.default_rng(1).integers(0, 25, ROWS)
    for part, rows in enumerate(np.split(np.arange(ROWS), [90, 100, 171])):
        table = pa.table({"row": rows})
        pq.write_table(table, root / f"part-{part}.parquet", row_group_size=24)
    return headrace.open(root, cache_dir=root / ".cache"), entity


def deliveries(dataset, world_size, epoch, steps=None, **options):
    """(row, rank, step, place) of every real row of an epoch, or of its first steps, and the states then."""
    found, states = [], []
    for topology in ranks(world_size):
        loader = dataset.stream(
            batch_size=8, seed=5, batch_format="numpy", topology=topology, **options
        )
        loader.set_epoch(epoch)
        for step, batch in enumerate(islice(loader, steps)):
            found += [
                (row, topology.rank, step, place)
                for place, (row, valid) in enumerate(
                    zip(batch["row"].tolist(), batch["valid"].tolist(), strict=True)
                )
                if valid
            ]
        states.append(loader.state_dict())
    return found, states


def told(sightings, rows):
    columns = (rows[sightings.row], sightings.rank, sightings.step, sightings.batch_row)
    return sorted(zip(*(each.tolist() for each in columns), strict=True))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_rows_are_delivered_where_it_is_said(dataset, order, world_size):
    data, entity = dataset
    rows = np.flatnonzero(np.isin(entity, ASKED))
    for epoch in (0, 2):
        expected, _ = deliveries(data, world_size, epoch, **ORDERS[order])
        loader = data.stream(batch_size=8, seed=5, topology=ranks(world_size)[0], **ORDERS[order])
        loader.set_epoch(epoch)

        wanted = sorted(each for each in expected if each[0] in set(rows.tolist()))
        assert wanted == told(find_rows(loader.plan(), rows), rows)


def test_rows_are_named_by_shard_and_place(dataset):
    index = dataset[0].split_index()
    shard, inside = row_in_shard(index, np.arange(ROWS))

    for row in range(ROWS):
        block, place = row_number(index, index.shards[int(shard[row])], int(inside[row]))
        assert row == index.first_row[block] + place
