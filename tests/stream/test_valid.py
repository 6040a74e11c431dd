"""Every batch of every source says in `valid` which of its rows are real, on one rank as on many."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from packing_stream_cases import some_lengths, write_rows
from stream_cases import Numbers, index_of, ranks
from torch.utils.data import DataLoader
from torch_cases import dataset_of, loader_of

import headrace
from headrace.errors import SettingsError
from headrace.stream.loader.map import MapDataset, columns_of
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.tabular.dataset import PipelineIterableDataset
from raised import raised

ROWS = 49
BLOCKS = (20, 20, 9)


def mask_of(batch):
    """The mask of a batch of any form, as a list of truth values."""
    if isinstance(batch, list):
        return [row["valid"] for row in batch]
    mask = batch["valid"]
    return mask.to_pylist() if isinstance(batch, pa.Table) else mask.tolist()


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    root = tmp_path_factory.mktemp("valid")
    pq.write_table(pa.table({"row": np.arange(ROWS)}), root / "part-0.parquet", row_group_size=20)
    return root


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    return write_rows(
        tmp_path_factory.mktemp("valid tokens"), some_lengths(60), shard_rows=30, group_rows=10
    )


@pytest.mark.parametrize("batch_format", ["torch", "numpy", "arrow", "rows"])
@pytest.mark.parametrize(
    ("remainder", "sizes"), [(None, [8] * 6 + [1]), ("exact", [8] * 6 + [1]), ("drop", [8] * 6)]
)
def test_one_rank_that_fills_nothing_has_a_mask_that_is_all_true(
    shards, batch_format, remainder, sizes
):
    stream = headrace.open(shards).stream(
        batch_size=8, shuffle=True, batch_format=batch_format, remainder=remainder
    )

    assert [[True] * size for size in sizes] == [mask_of(batch) for batch in stream]


@pytest.mark.slow
@pytest.mark.smoke("1-2-pad", "2-0-None", "2-2-drop")
@pytest.mark.parametrize("remainder", [None, "pad", "drop"])
@pytest.mark.parametrize(("world_size", "workers"), [(1, 0), (1, 2), (2, 0), (2, 2)])
def test_on_any_topology_the_true_ones_are_as_many_as_the_rows_that_come(
    world_size, workers, remainder
):
    rows = drop = 0
    for topology in ranks(world_size):
        dataset = dataset_of(
            workers, rows=BLOCKS, topology=topology, batch_size=8, remainder=remainder
        )
        drop = dataset.dropped_rows
        rows += sum(sum(mask_of(batch)) for batch in loader_of(dataset))

    assert ROWS - drop == rows


@pytest.mark.smoke("0-padded", "2-varlen")
@pytest.mark.parametrize("packed", ["varlen", "padded"])
@pytest.mark.parametrize("workers", [0, 2])
def test_rows_that_are_packed_while_streaming_have_it_for_bins(tokens, packed, workers):
    settings = {"pack": headrace.PackRows(capacity=100, buffer_rows=64), "packed": packed}
    dataset = headrace.open(tokens).torch_dataset(batch_size=2, num_workers=workers, **settings)
    masks = [mask_of(batch) for batch in loader_of(dataset)]
    alone = [mask_of(batch) for batch in headrace.open(tokens).stream(batch_size=2, **settings)]

    assert all(masks)
    assert {True} == {real for mask in alone for real in mask}
    if not workers:
        assert alone == masks


def test_packed_bins_have_it(tmp_path):
    lines = "".join(
        f'{{"input_ids": {list(range(n, n + 9))}, "loss_mask": {[1] * 9}}}\n' for n in range(40)
    )
    (tmp_path / "raw.jsonl").write_text(lines)
    recipe = headrace.PackedSequences(
        blend=str(tmp_path / "raw.jsonl"), pack_size=32, train_ratio=1, val_ratio=0, test_ratio=0
    )
    headrace.prepare(recipe, tmp_path / "out")
    batches = list(headrace.open(tmp_path / "out").stream("train", batch_size=4))

    assert all("cu_seqlens" in batch for batch in batches)
    assert {True} == {real for batch in batches for real in mask_of(batch)}


def test_blends_and_epochs_of_so_many_samples_have_it(shards):
    blend = headrace.blend([headrace.open(shards), headrace.open(shards)], weights=[2, 1])
    batches = list(blend.stream(batch_size=8, shuffle=True))
    some = list(headrace.open(shards).stream(batch_size=8, samples_per_epoch=20))

    assert 2 * ROWS == sum(sum(mask_of(batch)) for batch in batches)
    assert 20 == sum(sum(mask_of(batch)) for batch in some)


def test_claimed_blocks_have_it(shards):
    batches = list(headrace.open(shards).stream(batch_size=8, distribution="dynamic"))

    assert ROWS == sum(sum(mask_of(batch)) for batch in batches)


@pytest.mark.slow
@pytest.mark.smoke("torch-2", "numpy-0", "arrow-2", "rows-0")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batch_format", ["torch", "numpy", "arrow", "rows"])
def test_the_tabular_dataset_has_it_in_rows_and_in_batches(shards, workers, batch_format):
    rows = list(PipelineIterableDataset({}, file_dir=shards))
    collated = list(
        DataLoader(PipelineIterableDataset({}, file_dir=shards), batch_size=8, num_workers=workers)
    )
    whole = PipelineIterableDataset(
        {}, file_dir=shards, batch_size=8, batch_format=batch_format, num_workers=workers
    ).data_loader(method="fork")

    assert [True] * ROWS == [row["valid"] for row in rows]
    assert ROWS == sum(sum(mask_of(batch)) for batch in collated)
    assert ROWS == sum(sum(mask_of(batch)) for batch in whole)


def test_rows_by_number_have_it():
    rows = MapDataset(index_of(BLOCKS), Numbers(BLOCKS), columns=["row"])
    batches = list(DataLoader(rows, batch_size=8, collate_fn=columns_of))

    assert bool(rows[7]["valid"])
    assert [[True] * 8] * 6 + [[True]] == [mask_of(batch) for batch in batches]
    assert [[True] * 8] * 6 + [[True]] == [
        mask_of(batch) for batch in DataLoader(rows, batch_size=8)
    ]
    assert [] == mask_of(rows.batch([]))


@pytest.mark.parametrize("batch_format", ["torch", "numpy"])
def test_a_loop_may_write_into_the_mask_of_a_batch(batch_format):
    stream = StreamLoader(
        index_of(BLOCKS), Numbers(BLOCKS), StreamOptions(batch_size=8, batch_format=batch_format)
    )
    seen = 0
    for batch in stream:
        seen += sum(mask_of(batch))
        batch["valid"][:] = False
    again = sum(sum(mask_of(batch)) for batch in stream)

    assert (ROWS, ROWS) == (seen, again)


@pytest.mark.parametrize("remainder", [None, "pad", "drop", "exact"])
def test_a_column_of_that_name_is_refused_on_every_topology(tmp_path, remainder):
    pq.write_table(pa.table({"row": [1, 2], "valid": ["a", "b"]}), tmp_path / "part-0.parquet")
    data = headrace.open(tmp_path)
    with raised(SettingsError, column="valid", remedy="leave it out with columns="):
        data.stream(batch_size=1, remainder=remainder)
    with raised(SettingsError, column="valid", remedy="leave it out with columns="):
        data.map_dataset()

    assert [[True], [True]] == [
        mask_of(batch) for batch in data.stream(batch_size=1, columns=["row"])
    ]
