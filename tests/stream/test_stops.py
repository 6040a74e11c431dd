"""Five hundred stops at random places of a real, uneven dataset; after each the rest arrives, on any topology.

The truth is a list: the rows of the epoch in order, from the shards as they were written. After every stop the rows that
were handed out are taken off it, and what the next readers deliver is compared with what the list says, batch by batch.
Several stops follow one another, so that states with holes inside holes are resumed too.
"""

import json
import random
from functools import cache
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from reference import deliver

import headrace
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.passes import first_state, plan_pass, read_pass, state_after
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.order.state import StreamState
from headrace.stream.ranks.topology import Topology

SHARDS = (97, 1, 0, 40, 211, 3, 64)
STOPS = 18  # of each of the 30 cases, 540 in all
FORMATS = ("parquet", "csv", "jsonl")
TYPES = {"row": "int64", "x": "float32"}


def write_shards(root, kind):
    """Shards of these sizes; Parquet in row groups of 17 rows."""
    row = 0
    for shard, rows in enumerate(SHARDS):
        numbers = range(row, row + rows)
        path = root / f"part-{shard:02d}.{kind}"
        if kind == "parquet":
            columns = {"row": pa.array(numbers, pa.int64()), "x": pa.array([n / 8 for n in numbers], pa.float32())}
            pq.write_table(
                pa.table({**columns, "text": pa.array(map(str, numbers), pa.string())}), path, row_group_size=17
            )
        elif kind == "csv":
            path.write_text("row,x,text\n" + "".join(f"{n},{n / 8},{n}\n" for n in numbers))
        elif rows:  # a JSON lines file without lines has no columns
            path.write_text("".join(json.dumps({"row": n, "x": n / 8, "text": str(n)}) + "\n" for n in numbers))
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
    """The epoch's rows by their numbers, from the blocks themselves."""
    first = np.concatenate([[0], np.cumsum(index.rows)])
    ids = np.concatenate([read_block(block, ["row"])["row"].to_numpy() for block in range(len(index.rows))])
    block, row = plan.order.locate(plan.order.line_of(np.arange(index.total_rows)))
    return ids[first[block] + row].tolist()


def real_rows(batch):
    rows = batch["row"][batch["valid"]] if "valid" in batch else batch["row"]
    whole = rows.tolist()
    values = batch["x"][: len(whole)], batch["text"][: len(whole)]
    assert values[0].tolist() == [row / 8 for row in whole]
    assert values[1].tolist() == [str(row) for row in whole]
    return whole


class Readers:
    """All ranks and workers of one topology, in this process."""

    def __init__(self, dice, index, read_block, *, shuffle):
        self.index, self.read_block = index, read_block
        self.world_size, self.workers = dice.randint(1, 4), dice.choice([0, 0, 1, 2, 3])
        self.batch_size = dice.choice([1, 2, 5, 16, 33, 100])
        consumers = self.world_size * max(1, self.workers)
        batch_least = 1 if consumers == 1 else 4  # many readers of single rows are many batches
        self.options = StreamOptions(
            batch_size=max(batch_least, self.batch_size),
            remainder=dice.choice(["pad", "pad", "drop", *(["exact"] if consumers == 1 else [])]),
            shuffle=shuffle,
            seed=5,
            shuffle_rows=50,
            batch_format="numpy",
            read_threads=1,
        )
        self.batch_size = self.options.batch_size
        self.ranks = [Topology(rank=rank, world_size=self.world_size) for rank in range(self.world_size)]

    def expected(self, left):
        """The batches of each rank, of the rows that are left; its workers' in turn."""
        share = {"consumers": self.world_size * max(1, self.workers), "batch_size": self.batch_size}
        parts = [
            list(deliver(left, consumer=consumer, remainder=self.options.remainder, **share))
            for consumer in range(share["consumers"])
        ]
        return [
            list(chain.from_iterable(zip(*parts[rank :: self.world_size], strict=True)))
            for rank in range(self.world_size)
        ]

    def rest(self, state):
        """The batches that each rank really receives from a state on."""
        start = StreamState.from_dict(state)
        ranks = []
        for topology in self.ranks:
            workers = [
                [real_rows(batch) for batch in self._pass(start, topology, worker)]
                for worker in range(max(1, self.workers))
            ]
            ranks.append(list(chain.from_iterable(zip(*workers, strict=True))))
        return ranks

    def stop(self, state, batches):
        """The state of every rank after so many batches; without workers, by a loader that is left in its loop."""
        if self.workers:
            start = StreamState.from_dict(state)
            after = [
                state_after(start, batches, self.options, topology=topology, workers=self.workers)
                for topology in self.ranks
            ]
            return [state.to_dict() for state in after]
        states = []
        for topology in self.ranks:
            loader = StreamLoader(self.index, self.read_block, self.options, topology=topology)
            loader.load_state_dict(state)
            taken = iter(loader)
            for _ in range(batches):
                next(taken)
            taken.close()
            states.append(loader.state_dict())
        return states

    def _pass(self, start, topology, worker):
        return read_pass(
            self.index, self.read_block, self.options, start, topology=topology, worker=worker, workers=self.workers
        )


@pytest.mark.parametrize("number", range(10))
def test_the_rest_arrives_after_any_stop(opened, number):
    index, read_block = opened
    dice = random.Random(number)
    stops = 0
    while stops < STOPS:
        readers = Readers(dice, index, read_block, shuffle=dice.random() < 0.8)
        first = first_state(index, readers.options, world_size=readers.world_size, workers=readers.workers)
        first = first.fresh(dice.randint(0, 3))
        plan = plan_pass(index, readers.options, first, topology=readers.ranks[0], workers=readers.workers)
        left = ids_in_order(index, read_block, plan)
        state, received = first.to_dict(), []
        for _ in range(dice.randint(1, 4)):
            expected = readers.expected(left)
            batches = dice.randint(0, len(expected[0]))
            (state, *others) = readers.stop(state, batches)
            now = [row for rank in expected for batch in rank[:batches] for row in batch]
            received += now
            gone = set(now)
            left = [row for row in left if row not in gone]
            stops += 1

            assert all(state == other for other in others)
            state = json.loads(json.dumps(state))
            whole_rounds = batches % max(1, readers.workers) == 0
            rest = readers.rest(state)
            if whole_rounds:  # else the rows of the round that was left are dealt out anew
                assert rest == [rank[batches:] for rank in expected]
            assert rest == readers.expected(left)
            readers = Readers(dice, index, read_block, shuffle=first.shuffle)
            rest = readers.rest(state)
            assert rest == readers.expected(left)
            dropped = 0
            if readers.options.remainder == "drop":
                dropped = len(left) % (len(readers.ranks) * max(1, readers.workers) * readers.batch_size)
            taken = [row for rank in rest for batch in rank for row in batch]
            assert len(taken) == len(set(taken)) == len(left) - dropped
            assert sorted(received + (taken if not dropped else left)) == list(range(sum(SHARDS)))
