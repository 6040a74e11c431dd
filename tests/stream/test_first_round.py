"""How blocks are decoded and kept changes no batch: the first round alone or whole blocks, in parts or as a whole."""

import json
from threading import Event

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather  # noqa: F401 - pa.feather
import pyarrow.parquet as pq
import pytest
from fault_cases import damage
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_cases import Numbers, index_of, ranks

import headrace
from headrace.errors import InputError
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.order import plan
from headrace.stream.read import ahead, reader
from raised import raised

(ALONE,) = ranks(1)

FORMATS = ("parquet", "arrow", "csv")
SHARDS, BLOCKS, BLOCK_ROWS = 6, 4, 160
ROWS = SHARDS * BLOCKS * BLOCK_ROWS
TYPES = {"row": "int64", "half": "float64", "small": "float32", "text": "text"}


def table_of(start, stop):
    rows = range(start, stop)
    return pa.table(
        {
            "row": pa.array(rows, pa.int64()),
            "half": pa.array([None if row % 5 == 0 else row / 2 for row in rows], pa.float64()),
            "small": pa.array([row % 100 for row in rows], pa.float32()),
            "text": pa.array([f"t{row}" for row in rows]),
        }
    )


def write(folder, kind, first=0):
    """Shards of several blocks where the format has blocks of any size, else of one."""
    folder.mkdir(parents=True)
    shard_rows = BLOCK_ROWS if kind == "csv" else BLOCKS * BLOCK_ROWS
    for shard, start in enumerate(range(first, first + ROWS, shard_rows)):
        table, path = table_of(start, start + shard_rows), folder / f"part-{shard:03}.{kind}"
        if kind == "parquet":
            lists = pa.array(
                [[row] * (row % 3) for row in range(start, start + shard_rows)],
                pa.list_(pa.int32()),
            )
            vectors = pa.FixedSizeListArray.from_arrays(
                table["row"].combine_chunks().take(_twice(shard_rows)), 2
            )
            table = table.append_column("ids", lists).append_column("pair", vectors)
            pq.write_table(
                table,
                path,
                row_group_size=BLOCK_ROWS,
                write_page_checksum=True,
                use_dictionary=False,
            )
        elif kind == "arrow":
            with pa.ipc.new_file(path, table.schema) as writer:
                writer.write_table(table, BLOCK_ROWS)
        else:
            pa.csv.write_csv(table, path)
    return headrace.open(
        folder, cache_dir=folder.parent / "cache", **({"types": TYPES} if kind == "csv" else {})
    )


def _twice(rows):
    return pa.array(np.repeat(np.arange(rows), 2))


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    root = tmp_path_factory.mktemp("first-round")
    return {
        kind: write(root / kind, kind, first=place * ROWS) for place, kind in enumerate(FORMATS)
    }


@pytest.fixture(params=[1, 700, 2500])
def small_parts(request, monkeypatch):
    """Blocks are kept in parts of about so many bytes."""
    monkeypatch.setattr(ahead, "_PART_BYTES", request.param)


@pytest.fixture(autouse=True, scope="module")
def small_pools():
    """A pool is a round, though these rounds are small."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "_LEAST_POOL_ROWS", 16)
        yield


SHUFFLED = {"batch_size": 32, "shuffle": True, "seed": 7, "batch_format": "numpy"}
CASES = {
    "whole rounds": {"lanes": 6, "shuffle_rows": 192},
    "many lanes": {"lanes": 12, "shuffle_rows": 384},
    "lanes that share blocks": {"lanes": 48, "shuffle_rows": 192},
    "less than an epoch": {"lanes": 6, "shuffle_rows": 192, "samples_per_epoch": 1000},
    "more than an epoch": {"lanes": 6, "shuffle_rows": 192, "samples_per_epoch": 2 * ROWS + 100},
    "whole shards": {"lanes": 3, "shuffle_rows": 96, "distribution": "by_size"},
    "arrow": {"lanes": 6, "shuffle_rows": 192, "batch_format": "arrow"},
    "little ahead": {"lanes": 6, "shuffle_rows": 192, "prefetch_bytes": 0},
}


def batches_of(source, options, *, world_size=1, skip=0):
    """Every value of every batch, rank after rank, as JSON."""
    found = []
    for topology in ranks(world_size):
        loader = source.stream(topology=topology, **SHUFFLED | options)
        if skip:
            batches = iter(loader)
            for _ in range(skip):
                next(batches)
            state = loader.state_dict()
            batches.close()
            loader = source.stream(topology=topology, **SHUFFLED | options)
            loader.load_state_dict(state)
        for batch in loader:
            columns = batch.to_pydict() if isinstance(batch, pa.Table) else batch
            found.append(
                {
                    name: [np.asarray(value).tolist() for value in column]
                    for name, column in columns.items()
                }
            )
    return [json.dumps(batch) for batch in found]


@pytest.mark.slow
@pytest.mark.smoke(every=6)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", FORMATS)
def test_batches_are_those_of_whole_blocks(datasets, kind, case, small_parts):
    one_round = batches_of(datasets[kind], {**CASES[case], "read_threads": 1})

    assert one_round == whole_blocks(
        lambda options: batches_of(datasets[kind], options), CASES[case]
    )


@pytest.mark.slow
@pytest.mark.smoke(every=3)
@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_and_resumed_passes_have_the_same_batches(datasets, world_size, small_parts):
    def read(options):
        return batches_of(datasets["parquet"], options, world_size=world_size, skip=7)

    assert read({**CASES["many lanes"], "read_threads": 1}) == whole_blocks(
        read, CASES["many lanes"]
    )


@pytest.mark.slow
def test_blends_and_filtered_rows_have_the_same_batches(datasets, small_parts):
    plain = {"columns": ["row", "half", "small", "text"]}
    blend = headrace.blend(
        {kind: datasets[kind] for kind in FORMATS}, weights={"parquet": 2, "arrow": 1, "csv": 1}
    )
    filtered = datasets["parquet"].filter([("small", "<", 60)])
    for source in (blend, filtered):
        options = {**plain, **CASES["many lanes"]}

        def read(options, source=source):
            return batches_of(source, options)

        assert read({**options, "read_threads": 1}) == whole_blocks(read, options)


@pytest.mark.slow
def test_quarantined_rows_are_the_same(tmp_path, small_parts):
    dataset = write(tmp_path / "damaged", "parquet")
    damage(tmp_path / "damaged" / "part-002.parquet", "flipped", group=1)
    options = {**CASES["many lanes"], "on_bad_block": "quarantine", "quarantine_limit": 1.0}
    read = [batches_of(dataset, {**options, "read_threads": threads}) for threads in (1, 64)]

    assert read[0] == read[1]
    assert BLOCK_ROWS == sum(json.loads(batch)["valid"].count(False) for batch in read[0])


def whole_blocks(read, options):
    """The batches with more threads than blocks, so that no first round is read alone, and in parts of any size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ahead, "_PART_BYTES", 1 << 40)
        return read({**options, "read_threads": 64})


@pytest.fixture(scope="module", autouse=True)
def few_blocks_are_enough():
    """The first round is read alone where its blocks are few of all; here any number will do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "_MANY_TIMES", 1)
        yield


class Counting:
    """Numbers that count which blocks were decoded; one of them holds a null in its last row."""

    def __init__(self, rows, bad=None):
        self.numbers, self.bad, self.decoded = Numbers(tuple(rows)), bad, []

    def __call__(self, block, columns):
        self.decoded.append(block)
        table = self.numbers(block, columns)
        if block != self.bad:
            return table
        rows = table["row"].to_pylist()
        return table.set_column(0, "row", pa.array([*rows[:-1], None], pa.int64()))


def options(**settings):
    return StreamOptions(
        **{"batch_size": 8, "shuffle": True, "batch_format": "numpy", "read_threads": 1, **settings}
    )


def first_batch(read_block, rows):
    loader = StreamLoader(
        index_of(rows), read_block, options(lanes=6, shuffle_rows=60), topology=ranks(1)[0]
    )
    batches = iter(loader)
    next(batches)
    batches.close()


def test_a_null_in_rows_that_the_first_round_leaves_out_is_told_at_once():
    rows = [1000] * 24
    sound = Counting(rows)
    first_batch(sound, rows)

    for bad in sound.decoded[:6]:
        with raised(InputError, column="row", path=f"rank 0 of 1: part-{bad:05}.parquet block 0"):
            first_batch(Counting(rows, bad), rows)


def test_the_first_batch_waits_for_one_decoding_of_each_open_block():
    rows = [1000] * 24
    counting = Counting(rows)
    loader = StreamLoader(
        index_of(rows), counting, options(lanes=6, shuffle_rows=60), topology=ranks(1)[0]
    )
    got = [batch["row"] for batch in loader]

    assert sorted(np.concatenate(got).tolist()) == list(range(24_000))
    again = len(counting.decoded) - len(rows)
    assert 6 <= again <= 6 + 7  # the blocks of the first round, and a block that two lanes share


@pytest.mark.slow
@settings(deadline=None)
@given(
    st.lists(st.integers(0, 90), min_size=1, max_size=30).filter(any),
    st.sampled_from([1, 2, 3, 5, 12]),
    st.integers(1, 200),
    st.integers(1, 3),
    st.sampled_from([1, 64, 300, 1 << 21]),
)
def test_blocks_of_any_size_give_the_batches_of_whole_blocks(
    rows, lanes, shuffle_rows, world_size, part_bytes
):
    asked = {"lanes": lanes, "shuffle_rows": shuffle_rows}

    def read(**settings):
        return [
            [
                batch["row"].tolist()
                for batch in StreamLoader(
                    index_of(rows),
                    Numbers(tuple(rows)),
                    options(**asked, **settings),
                    topology=topology,
                )
            ]
            for topology in ranks(world_size)
        ]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ahead, "_PART_BYTES", part_bytes)
        in_parts = read(read_threads=1)

    assert in_parts == read(read_threads=64)


def test_the_first_batch_of_many_small_files_reads_its_own_files_only():
    rows = (1,) * 400
    read, has_first = [], Event()

    def counted(block, columns):
        if len(read) >= 4:  # the rest is read while the first batch is used
            assert has_first.wait(120)
        read.append(block)
        return Numbers(rows)(block, columns)

    options = {"shuffle": True, "batch_format": "numpy", "read_threads": 1}
    batches = iter(
        StreamLoader(
            index_of(rows), counted, StreamOptions(batch_size=4, **options), topology=ALONE
        )
    )
    ids = next(batches)["row"].tolist()
    has_first.set()
    ids += [row for batch in batches for row in batch["row"].tolist()]
    assert sorted(ids) == list(range(400))
    assert len(read) == 404
    whole = StreamLoader(
        index_of(rows), Numbers(rows), StreamOptions(batch_size=100, **options), topology=ALONE
    )
    assert ids == [row for batch in whole for row in batch["row"].tolist()]
