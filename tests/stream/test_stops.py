"""Five hundred stops at random places of a real, uneven dataset; after each the rest arrives, on any ranks.

The truth is a list: the rows of the epoch in order, from the shards as they were written. After every stop the rows that
were handed out are taken off it, and what the next ranks deliver is compared with what the list says, batch by batch.
Where the next ranks cut what is left anew, it is their order of the rows that the list must still hold.
"""

import json
import random
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from reference import deliver

import headrace
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.ranks.topology import Topology
from laws import examples

SHARDS = (97, 1, 0, 40, 211, 3, 64)
STOPS = 18  # of each of the 30 cases, 540 in all; a fifth in `make test`
FORMATS = ("parquet", "csv", "jsonl")
TYPES = {"row": "int64", "x": "float32"}


def write_shards(root, kind):
    """Shards of these sizes; Parquet in row groups of 17 rows."""
    row = 0
    for shard, rows in enumerate(SHARDS):
        numbers = range(row, row + rows)
        path = root / f"part-{shard:02d}.{kind}"
        if kind == "parquet":
            columns = {
                "row": pa.array(numbers, pa.int64()),
                "x": pa.array([n / 8 for n in numbers], pa.float32()),
            }
            pq.write_table(
                pa.table({**columns, "text": pa.array([f"n{n}" for n in numbers], pa.string())}),
                path,
                row_group_size=17,
            )
        elif kind == "csv":
            path.write_text("row,x,text\n" + "".join(f"{n},{n / 8},n{n}\n" for n in numbers))
        elif rows:  # a JSON lines file without lines has no columns
            path.write_text(
                "".join(json.dumps({"row": n, "x": n / 8, "text": f"n{n}"}) + "\n" for n in numbers)
            )
        row += rows


@pytest.fixture(scope="module", params=FORMATS)
def opened(request, tmp_path_factory):
    """(index, reader) of a dataset of one format; each block is read once and kept."""
    root = tmp_path_factory.mktemp(request.param)
    (root / "data").mkdir()
    write_shards(root / "data", request.param)
    types = TYPES if request.param == "csv" else None
    dataset = headrace.open(root / "data", types=types, cache_dir=root / "cache")
    read = dataset.block_reader()
    kept = cache(lambda block: read(block, None))
    assert dataset.split_index().total_rows == sum(SHARDS)
    return dataset.split_index(), lambda block, columns: kept(block).select(columns)


def ids_in_order(index, read_block, plan):
    """The rows that are left, by their numbers in the shards, from the blocks themselves."""
    first = np.concatenate([[0], np.cumsum(index.rows)])
    ids = np.concatenate(
        [read_block(block, ["row"])["row"].to_numpy() for block in range(len(index.rows))]
    )
    positions = plan.remaining.positions(np.arange(plan.remaining.total))
    block, row = plan.order.locate(plan.order.line_of(positions))
    return ids[first[block] + row].tolist()


def real_rows(batch):
    rows = batch["row"][batch["valid"]] if "valid" in batch else batch["row"]
    whole = rows.tolist()
    values = batch["x"][: len(whole)], batch["text"][: len(whole)]
    assert values[0].tolist() == [row / 8 for row in whole]
    assert values[1].tolist() == [f"n{row}" for row in whole]
    return whole


class Readers:
    """All ranks of a job, in this process."""

    def __init__(self, dice, index, read_block, *, shuffle):
        self.index, self.read_block = index, read_block
        self.world_size = dice.randint(1, 6)
        self.options = StreamOptions(
            batch_size=max(1 if self.world_size == 1 else 4, dice.choice([1, 2, 5, 16, 33, 100])),
            remainder=dice.choice(
                ["pad", "pad", "drop", *(["exact"] if self.world_size == 1 else [])]
            ),
            shuffle=shuffle,
            seed=5,
            shuffle_rows=50,
            batch_format="numpy",
            read_threads=1,
        )
        self.ranks = [
            Topology(rank=rank, world_size=self.world_size) for rank in range(self.world_size)
        ]

    def loaders(self, state):
        """Those of all ranks, at the place of a state; None: at the beginning of an epoch."""
        loaders = [
            StreamLoader(self.index, self.read_block, self.options, topology=each)
            for each in self.ranks
        ]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
        return loaders

    def left(self, loaders):
        """What is left, in the order of these ranks."""
        return ids_in_order(self.index, self.read_block, loaders[0].plan())

    def expected(self, left):
        """The batches of each rank, of the rows that are left."""
        share = {
            "ranks": self.world_size,
            "batch_size": self.options.batch_size,
            "remainder": self.options.remainder,
        }
        return [list(deliver(left, rank=rank, **share)) for rank in range(self.world_size)]


@pytest.mark.smoke(every=3)
@pytest.mark.parametrize("number", range(10))
def test_the_rest_arrives_after_any_stop(opened, number):
    index, read_block = opened
    dice = random.Random(number)
    stops = 0
    while stops < examples(STOPS):
        readers = Readers(dice, index, read_block, shuffle=dice.random() < 0.8)
        loaders = readers.loaders(None)
        epoch = dice.randint(0, 3)
        for loader in loaders:
            loader.set_epoch(epoch)
        received, wanted = [], set(range(sum(SHARDS)))
        for _ in range(dice.randint(1, 4)):
            left = readers.left(loaders)
            assert (
                set(left) == wanted
            )  # in whatever order these ranks have it, it is what nobody has received
            assert len(left) == len(wanted)
            expected = readers.expected(left)
            batches = dice.randint(0, len(expected[0]))
            states = []
            for loader, own in zip(loaders, expected, strict=True):
                taken = iter(loader)
                assert [real_rows(next(taken)) for _ in range(batches)] == own[:batches]
                taken.close()
                states.append(loader.state_dict())
            assert all(state == states[0] for state in states)
            stops += 1
            now = [row for rank in expected for batch in rank[:batches] for row in batch]
            received += now
            wanted -= set(now)
            state = json.loads(json.dumps(states[0]))

            rest = [[real_rows(batch) for batch in loader] for loader in readers.loaders(state)]
            assert rest == [
                rank[batches:] for rank in expected
            ]  # on the same ranks as if there had been no stop
            readers = Readers(dice, index, read_block, shuffle=readers.options.shuffle)
            loaders = readers.loaders(state)
        rest = [[real_rows(batch) for batch in loader] for loader in loaders]
        assert rest == readers.expected(readers.left(readers.loaders(state)))
        dropped = 0
        if readers.options.remainder == "drop":
            dropped = len(wanted) % (readers.world_size * readers.options.batch_size)
        taken = [row for rank in rest for batch in rank for row in batch]
        assert len(taken) == len(set(taken)) == len(wanted) - dropped
        assert sorted(received + (taken if not dropped else list(wanted))) == list(
            range(sum(SHARDS))
        )
