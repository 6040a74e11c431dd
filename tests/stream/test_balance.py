"""Balanced steps: each row once, the blocks that are read anyway, and like costs for all ranks of a step."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packed_cases import made_rows
from pure_order import positions_of_row
from stream_cases import index_of

import headrace
from headrace.bins.bins import Bins
from headrace.bins.pack import pack
from headrace.errors import SettingsError, StreamError
from headrace.packing.storage.packed_parquet import ParquetShardWriter
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.passes import RowPasses
from headrace.stream.order.balance import CostModel, CountedIndex, step_loads
from headrace.stream.order.epoch import natural_rows
from laws import examples
from raised import raised

BLOCK = 32


def chat_lengths(count, longest):
    """Lengths as of chats: many short ones, few that nearly fill a bin."""
    return np.clip(np.random.default_rng(1).lognormal(np.log(700), 1.6, count), 16, longest).astype(
        np.int64
    )


def counted(bins, lengths, *, bin_bytes):
    """The index of bins in row groups of 32, which take so many bytes each when decoded."""
    rows = [BLOCK] * (len(bins) // BLOCK) + [len(bins) % BLOCK] * bool(len(bins) % BLOCK)
    index = index_of(rows)
    index = replace(index, length=index.rows * bin_bytes)
    return CountedIndex.of(index, bins.loads(lengths), bins.loads(lengths**2))


def large(order, *, pack_size=32_768, count=120_000):
    lengths = chat_lengths(count, pack_size)
    bins = pack(lengths, pack_size, seed=1)
    bins = bins.spread(bins.loads(lengths**2), 1) if order == "spread" else bins.shuffled(1)
    return counted(bins, lengths, bin_bytes=5 * pack_size)


def passes(index, *, ranks, batch_size=1, balance="flops", rank=0, **options):
    asked = StreamOptions(
        batch_size=batch_size, shuffle=True, batch_format="numpy", balance=balance, **options
    )
    return RowPasses(index, None, asked, headrace.Topology(rank=rank, world_size=ranks))


def imbalance(index, **asked):
    plan = passes(index, **asked).begin(0).plan()
    return replace(plan, costs=index.costs(CostModel().even_tokens)).imbalance


def rows_in_order(plan):
    return natural_rows(
        plan.index, plan.order, plan.remaining.positions(np.arange(plan.remaining.total))
    )


@pytest.mark.parametrize("ranks", [8, 64])
def test_the_slowest_rank_costs_hardly_more_than_the_mean(ranks):
    index = large("spread")
    assert imbalance(index, ranks=ranks, balance="none") > 1.15
    assert imbalance(index, ranks=ranks) < 1.02


def test_bins_as_they_were_shuffled_are_balanced_nearly_as_well():
    assert imbalance(large("shuffled"), ranks=8) < 1.04


@pytest.mark.parametrize("ranks", [2, 7, 8])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_split_in_memory_has_steps_of_like_cost(ranks, batch_size):
    lengths = chat_lengths(9_000, 4096)
    bins = pack(lengths, 4096, seed=1).shuffled(1)
    index = counted(bins, lengths, bin_bytes=100)

    assert imbalance(index, ranks=ranks, batch_size=batch_size) < 1.01


@pytest.mark.slow
@settings(max_examples=examples(200), deadline=None)
@given(
    blocks=st.lists(st.integers(0, 40), min_size=1, max_size=30),
    lanes=st.sampled_from([1, 2, 4, 6, 12]),
    ranks=st.integers(1, 6),
    batch_size=st.integers(1, 4),
    shuffle_rows=st.integers(1, 400),
    seed=st.integers(0, 9),
    stop=st.integers(0, 9),
    later=st.integers(1, 6),
)
def test_laws(blocks, lanes, ranks, batch_size, shuffle_rows, seed, stop, later):
    index = index_of(blocks)
    rng = np.random.default_rng(seed)
    tokens = rng.integers(1, 5, index.total_rows)  # many are equal
    index = CountedIndex.of(index, tokens, tokens**2)
    asked = {"batch_size": batch_size, "lanes": lanes, "shuffle_rows": shuffle_rows, "seed": seed}
    begun = passes(index, ranks=ranks, **asked).begin(1)
    plan = begun.plan()

    rows = rows_in_order(plan)
    assert sorted(rows) == list(range(index.total_rows))
    found = [
        positions_of_row(plan.order, block, row).tolist()
        for block, count in enumerate(blocks)
        for row in range(count)
    ]
    assert [rows[position] for (position,) in found] == list(range(index.total_rows))

    free = passes(index, ranks=ranks, balance="none", **asked).begin(1).plan()
    np.testing.assert_array_equal(plan.bytes_per_rank, free.bytes_per_rank)

    batches = min(stop, plan.steps_per_rank)
    state = json.loads(json.dumps(begun.state_after(batches)))
    resumed = passes(index, ranks=later, **asked).resume(state).plan()
    received = rows[: batches * ranks * batch_size]
    assert sorted([*received, *rows_in_order(resumed)]) == list(range(index.total_rows))
    if later == ranks and plan.order.groups % ranks == 0:
        assert rows_in_order(resumed).tolist() == rows[len(received) :].tolist()


def test_ranks_that_share_a_global_batch_get_the_same_batches():
    index = large("spread", count=60_000)
    orders = [
        rows_in_order(passes(index, ranks=ranks, batch_size=24 // ranks).begin(2).plan())
        for ranks in (1, 2, 8, 24)
    ]
    assert all(np.array_equal(orders[0], each) for each in orders)


def test_an_epoch_is_another_order():
    index = large("spread", count=60_000)
    first, second = (rows_in_order(passes(index, ranks=8).begin(epoch).plan()) for epoch in (0, 1))
    assert (first == second).mean() < 0.01


def test_the_next_epoch_is_balanced_for_its_own_ranks():
    lengths = chat_lengths(9_000, 4096)
    index = counted(pack(lengths, 4096, seed=1), lengths, bin_bytes=100)
    before = passes(index, ranks=8)
    state = before.begin(0).state_after(3)
    after = passes(index, ranks=6)
    resumed = after.resume(state)

    assert resumed.start.balance[0] == 8
    assert after.begin(1, resumed).start.balance[0] == 6


def test_a_state_is_of_one_cost_model():
    index = large("spread", count=30_000)
    state = passes(index, ranks=2).begin(0).state_after(1)

    assert passes(index, ranks=2).resume(state).start.balance == (2, CostModel().even_tokens)
    for other in ("none", CostModel(linear=1, quadratic=1)):
        with raised(StreamError, setting="balance", remedy="pass the saved setting"):
            passes(index, ranks=2, balance=other).resume(state)
    plain = passes(index, ranks=2, balance="none").begin(0).state_after(1)
    with raised(StreamError, setting="balance", remedy="pass the saved setting"):
        passes(index, ranks=2).resume(plain)


@pytest.mark.parametrize(
    "value", [[1], [0, 5], [8, 0], [8, 1 << 41], [True, 5], "8", [8, "5"], [8, 5, 5]]
)
def test_a_damaged_balance_is_refused(value):
    from headrace.sealed import seal, unseal
    from headrace.stream.order.state import FORMAT_VERSION, StreamState

    state = passes(large("spread", count=30_000), ranks=2).begin(0).state_after(1)
    values = {**unseal(state, subject="stream", version=FORMAT_VERSION), "balance": value}
    with pytest.raises(StreamError, match="balance"):
        StreamState.from_dict(seal("stream", FORMAT_VERSION, values))


@pytest.mark.parametrize(
    "asked",
    [
        {"shuffle": False},
        {"shuffle": True, "samples_per_epoch": 5},
        {"shuffle": True, "distribution": "round_robin"},
        {"shuffle": True, "pack": 64},
        {"shuffle": True, "on_bad_block": "quarantine"},
        {"shuffle": True, "balance": "tokens"},
    ],
)
def test_what_does_not_go_with_balance_is_refused(asked):
    with pytest.raises(SettingsError, match="balance"):
        StreamOptions(batch_size=1, **{"balance": "flops", **asked})


@pytest.mark.parametrize(
    "asked",
    [{"linear": 0}, {"linear": -1}, {"quadratic": -1}, {"linear": float("nan")}, {"linear": "1"}],
)
def test_a_cost_model_is_checked(asked):
    with raised(SettingsError, remedy="give a finite number"):
        CostModel(**asked)


def test_a_transformer_is_costed_by_its_shape():
    model = CostModel.of_transformer(parameters=7.5e9, layers=32, width=4096)
    assert model == CostModel()
    tokens, length = 8192, 4096
    by_hand = 2 * (
        6 * 7.5e9 * length + 32 * 3 * (2 * 2 * length**2 * 4096) / 2
    )  # twice QK and AV, a half is masked
    assert model.linear * tokens + model.quadratic * 2 * length**2 == pytest.approx(by_hand)


@given(costs=st.lists(st.integers(0, 9), max_size=60), seed=st.integers(0, 99))
def test_spread_bins_are_a_permutation(costs, seed):
    bins = Bins.of_lists([[number] for number in range(len(costs))])
    assert sorted(bins.spread(np.array(costs, np.int64), seed).sequences.tolist()) == list(
        range(len(costs))
    )


def test_every_stretch_of_spread_bins_holds_cheap_and_dear_ones():
    costs = np.random.default_rng(0).permutation(6400)
    bins = Bins.of_lists([[number] for number in range(6400)])
    spread, shuffled = (
        costs[each.sequences].reshape(200, 32) for each in (bins.spread(costs, 3), bins.shuffled(3))
    )

    quantiles = (np.sort(spread, axis=1) + 0.5) / 6400 - (np.arange(32) + 0.5) / 32
    assert np.abs(quantiles).max() < 1.5 / 32
    assert np.std(spread.mean(axis=1)) < np.std(shuffled.mean(axis=1)) / 4


def test_loads_are_added_up_by_rank_and_step():
    costs = np.array([1.0, 2, 3, 4, 5, 6, 7, 8, 100])  # the last is of a step that is not whole
    slowest, mean = step_loads(costs, ranks=2, batch_size=2)
    assert slowest.tolist() == [2 + 4, 6 + 8]
    assert mean.tolist() == [(1 + 3 + 2 + 4) / 2, (5 + 7 + 6 + 8) / 2]


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    directory = tmp_path_factory.mktemp("packed")
    rows = {}
    for shard in range(3):
        rows[shard] = made_rows(bins=40 + shard, seed=shard)
        said = {"headrace.loss_mask_alignment": "shift_left"}
        with ParquetShardWriter(directory / f"shard-{shard}.parquet", 8, metadata=said) as writer:
            writer.write_bins(rows[shard])
    return directory, rows


def test_rows_are_counted_from_starts_and_masks(packed, tmp_path):
    directory, rows = packed
    index = headrace.open(directory, cache_dir=tmp_path).counted_index()

    lengths = [np.split(each.sequence_lengths, each.start_offsets[1:-1]) for each in rows.values()]
    by_bin = [one for shard in lengths for one in shard]
    assert index.tokens.tolist() == [int(each.sum()) for each in by_bin]
    assert index.squares.tolist() == [int((each**2).sum()) for each in by_bin]


def test_counts_are_kept(packed, tmp_path, monkeypatch):
    directory, _ = packed
    first = headrace.open(directory, cache_dir=tmp_path).counted_index()
    monkeypatch.setattr("headrace.dataset.counts.run_tasks", lambda tasks, workers: 1 / 0)
    again = headrace.open(directory, cache_dir=tmp_path).counted_index()

    assert first.squares.tolist() == again.squares.tolist()
    (kept,) = tmp_path.glob("counts-*")
    kept.write_bytes(kept.read_bytes()[:-1])
    with pytest.raises(ZeroDivisionError):
        headrace.open(directory, cache_dir=tmp_path).counted_index()


def test_a_stream_delivers_every_bin_once_in_steps_of_like_cost(packed, tmp_path):
    directory, rows = packed
    dataset = headrace.open(directory, cache_dir=tmp_path)
    asked = {"batch_size": 1, "shuffle": True, "balance": CostModel(linear=1, quadratic=1)}
    streams = [
        dataset.stream(topology=headrace.Topology(rank=rank, world_size=4), **asked)
        for rank in range(4)
    ]
    steps = list(zip(*streams, strict=True))

    costs, received = [], []
    for step in steps:
        real = [batch for batch in step if bool(batch["valid"].all())]
        received += [tuple(batch["input_ids"][0].tolist()) for batch in real]
        lengths = [np.diff(batch["cu_seqlens"].numpy()).astype(np.int64) for batch in real]
        costs.append([int((each + each**2).sum()) for each in lengths])
    expected = [
        tuple(each.bin(number)[0].tolist()) for each in rows.values() for number in range(len(each))
    ]
    assert sorted(received) == sorted(expected)
    ratios = [max(each) / (sum(each) / len(each)) for each in costs if len(each) == 4]
    assert np.median(ratios) < 1.1
    assert streams[0].plan().imbalance < 1.1


def test_rows_that_are_not_packed_are_refused(tmp_path):
    (tmp_path / "a.csv").write_text("x\n1\n2\n")
    dataset = headrace.open(tmp_path)
    with raised(SettingsError, setting="balance", remedy="prepare them with PackedSequences"):
        dataset.stream(batch_size=1, shuffle=True, balance="flops")


def test_a_blend_is_refused(packed):
    dataset = headrace.open(packed[0])
    with raised(SettingsError, setting="balance", remedy="as one blend"):
        headrace.blend([dataset, dataset]).stream(batch_size=1, shuffle=True, balance="flops")
