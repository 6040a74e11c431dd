"""A global batch holds the same rows on any number of ranks, in one batch of each or in several."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace.errors import SettingsError
from headrace.stream.ranks.topology import Topology
from laws import examples
from raised import raised

ROWS = 500


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    rows = tmp_path_factory.mktemp("global") / "rows.parquet"

    pq.write_table(pa.table({"row": np.arange(ROWS)}), rows, row_group_size=20)
    return rows


def stream_of(path, rank, world_size, **options):
    return headrace.open(path, cache_dir=path.parent / "cache").stream(
        topology=Topology(rank=rank, world_size=world_size),
        shuffle=True,
        batch_format="numpy",
        **options,
    )


def steps_of(streams, *, most=None):
    """The rows of each step of the optimizer over all ranks, sorted."""
    steps = []
    passes = [iter(stream) for stream in streams]
    batches = streams[0].batches_per_step
    while most is None or len(steps) < most:
        rows = []
        for _ in range(batches):
            for batch in [next(each, None) for each in passes]:
                if batch is not None:
                    rows += batch["row"][batch["valid"]].tolist()
        if not rows:
            break
        steps.append(sorted(rows))
    return steps


@settings(max_examples=examples(15))
@given(
    st.sampled_from([1, 2, 3, 4, 6, 12]),
    st.one_of(st.none(), st.integers(1, 24)),
    st.sampled_from([None, 12, 24]),
    st.integers(0, 10),
)
def test_a_step_has_the_same_rows_on_any_ranks_in_any_number_of_batches(
    path, ranks, most, lanes, stop
):
    options = {"global_batch_size": 24, "lanes": lanes}
    alone = steps_of([stream_of(path, 0, 1, **options)])
    streams = [stream_of(path, rank, ranks, batch_size=most, **options) for rank in range(ranks)]

    before = steps_of(streams, most=stop)
    state = streams[0].state_dict()
    resumed = stream_of(path, 0, 1, **options)
    resumed.load_state_dict(state)

    assert 24 == streams[0].options.batch_size * ranks * streams[0].batches_per_step
    assert most is None or streams[0].options.batch_size <= most
    assert alone == before + steps_of([resumed])


def test_a_global_batch_that_ranks_cannot_share_is_refused(path):
    remedy = "global_batch_size=20 or 25"
    with raised(SettingsError, setting="global_batch_size", value=24, remedy=remedy):
        stream_of(path, 0, 5, global_batch_size=24)
    with raised(SettingsError, setting="global_batch_size", value=24, remedy="leave one"):
        stream_of(path, 0, 1, global_batch_size=24, batch_tokens=100)


def test_a_blend_and_a_torch_dataset_derive_their_batches(path):
    dataset = headrace.open(path, cache_dir=path.parent / "cache")
    topology = Topology(rank=1, world_size=3)
    both = headrace.blend([dataset, dataset]).stream(
        batch_size=5, global_batch_size=24, topology=topology
    )
    whole = headrace.blend([dataset, dataset]).stream(global_batch_size=24, topology=topology)
    loader = dataset.torch_dataset(global_batch_size=24, topology=topology)

    assert (4, 2) == (both.options.batch_size, both.batches_per_step)
    assert (8, 1) == (whole.options.batch_size, whole.batches_per_step)
    assert 8 == len(next(iter(loader))["row"])
