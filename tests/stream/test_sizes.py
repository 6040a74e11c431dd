"""Small, kept and larger data: how each is cut, that sorted rows mix as stated, and that ranks may change at any step."""

from itertools import islice

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pure_order import make_plan
from stream_cases import Numbers, index_of, ranks

from headrace.arrays import offsets_from_lengths
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.order import epoch
from headrace.stream.order.advice import segment_count, sorted_mixing
from headrace.stream.order.epoch import epoch_order, natural_rows
from headrace.stream.order.lanes import KEPT_LANES, Lanes, choose_lanes
from headrace.stream.order.layout import chained
from headrace.stream.order.remaining import even_parts
from headrace.stream.order.state import Change, StreamState, next_border
from laws import examples

SEED = 5


def sorted_index(rows, blocks, row_bytes):
    """Equal blocks of rows that are sorted by class: a row's number decides its class."""
    return index_of(even_parts(rows, blocks), schema=pa.schema([("x", pa.binary(row_bytes))]))


def classes_of_batches(plan, batch_rows, *, among, classes, count):
    """The rows of each class in batches of one of `among` ranks, spread over the epoch: int64 [batches, classes]."""
    rng = np.random.default_rng(SEED)
    steps = np.unique(rng.integers(0, plan.order.rows // (batch_rows * among), count))
    first = steps * batch_rows * among + rng.integers(0, among, len(steps))
    positions = first[:, None] + np.arange(batch_rows) * among
    rows = natural_rows(plan.index, plan.order, positions.ravel())
    of_class = (
        rows * classes // plan.split_rows + np.repeat(np.arange(len(steps)), batch_rows) * classes
    )
    return np.bincount(of_class, minlength=len(steps) * classes).reshape(-1, classes)


def chi_squared(counts):
    """Chi-squared per degree of freedom, mean over the batches."""
    expected = counts.sum(axis=1, keepdims=True) / counts.shape[1]
    return ((counts - expected) ** 2 / expected).sum(axis=1).mean() / (counts.shape[1] - 1)


# (rows, bytes of a row): what they are, with 512 MiB
SIZES = {
    (4_190_000, 6): "small",
    (4_200_000, 6): "small",
    (8_947_848, 6): "small",  # 30 bytes each, with the order: half of the memory
    (8_947_849, 6): "kept",
    (67_108_864, 6): "kept",  # three quarters of the memory
    (67_108_865, 6): "larger",
    (300, 1_300_000): "kept",
    (300, 1_400_000): "larger",
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("world_size", [1, 7, 64])
def test_three_sizes_of_data_are_told_by_bytes(size, world_size):
    rows, row_bytes = size
    lanes, window_rows, groups = choose_lanes(
        sorted_index(rows, 88, row_bytes), shuffle=True, ranks=world_size, batch_size=16
    )
    found = {1: "small", KEPT_LANES: "kept"}.get(lanes, "larger")

    assert SIZES[size] == found
    if found == "small":
        assert (window_rows, groups) == (rows, 1)
    elif found == "kept":
        order_bytes = lanes * window_rows * 24
        assert groups == 1
        assert order_bytes <= (1 << 29) - rows * row_bytes < order_bytes + lanes * 24
    else:
        assert lanes % world_size == groups % world_size == 0


@pytest.mark.parametrize("times", [1 / 64, 1 / 2, 1, 4])
def test_memory_bytes_scale_all_sizes(times):
    rows = int(4_000_000 * times)
    memory = int(times * (1 << 27))

    def cut(row_bytes):
        return choose_lanes(
            sorted_index(rows, 400, row_bytes),
            shuffle=True,
            ranks=1,
            batch_size=64,
            memory_bytes=memory,
        )

    assert cut(4).lanes == KEPT_LANES if 2 * 28 * rows > memory else 1
    assert cut(25).lanes == KEPT_LANES
    assert cut(26).lanes == 96
    assert cut(60).lanes == 96


@pytest.mark.parametrize("rows", [4_190_000, 4_200_000])
def test_sorted_rows_of_six_bytes_are_a_permutation_on_both_sides_of_four_million(rows):
    """88 files sorted by one of 11 classes: chi-squared of a permutation is 1, here within four standard errors."""
    plan = make_plan(sorted_index(rows, 88, 6), batch_size=1024, shuffle=True, seed=SEED)
    counts = classes_of_batches(plan, 1024, among=1, classes=11, count=300)

    assert abs(chi_squared(counts) - 1) < 4 * (2 / 10 / len(counts)) ** 0.5
    assert counts.min() > 0


@pytest.mark.slow
@pytest.mark.parametrize(("blocks", "world_size"), [(1, 8), (88, 64), (1500, 1)])
@pytest.mark.parametrize(
    ("rows", "row_bytes"), [(100_000, 100), (1_000_000, 300), (9_000_000, 6), (3_000_000, 100)]
)
def test_small_and_kept_sorted_rows_mix_like_a_permutation(rows, row_bytes, blocks, world_size):
    """Of 2 and 100 classes, by a global batch and by one rank's: twelve cases of eight numbers, 4.5 standard errors."""
    index = sorted_index(rows, blocks, row_bytes)
    plan = make_plan(
        index, world_size=world_size, batch_size=1024 // world_size, shuffle=True, seed=SEED
    )
    for batch_rows, among in ((1024, 1), (1024 // world_size, world_size)):
        for classes in (2, 100):
            counts = classes_of_batches(plan, batch_rows, among=among, classes=classes, count=200)
            met = (counts > 0).sum(axis=1)
            expected = classes * (1 - (1 - 1 / classes) ** batch_rows)
            error = max(met.std(), 1e-9) / len(counts) ** 0.5
            spread = (2 / (classes - 1) / len(counts)) ** 0.5

            assert abs(met.mean() - expected) <= 4.5 * error + 0.01
            assert abs(chi_squared(counts) - 1) <= 4.5 * spread * 1.5


@pytest.mark.parametrize("world_size", [1, 8])
def test_larger_sorted_rows_mix_like_stretches_of_its_lanes(world_size):
    """A rank's batch is drawn from its share of the lanes' windows; never more than 6 % below that."""
    index = sorted_index(500_000, 88, 100)
    memory = 25_000_000
    plan = make_plan(
        index,
        world_size=world_size,
        batch_size=1024 // world_size,
        shuffle=True,
        seed=SEED,
        memory_bytes=memory,
    )
    counts = classes_of_batches(plan, 1024 // world_size, among=world_size, classes=100, count=200)
    bound = expected_classes(plan.order, 500_000 / 88, world_size, 1024 // world_size)

    assert plan.order.lanes > 1
    assert (counts > 0).sum(axis=1).mean() >= 0.94 * bound


@pytest.mark.parametrize("memory_bytes", [50_000_000, 80_000_000, 120_000_000])
def test_short_first_and_last_rounds_are_in_the_bound(memory_bytes):
    """Up to half of these rows are in them: chi-squared of a rank's batch is what the bound says, within 4 %."""
    ranks, batch_rows = 64, 16
    plan = make_plan(
        sorted_index(1_000_000, 1_000, 100),
        world_size=ranks,
        batch_size=batch_rows,
        shuffle=True,
        seed=SEED,
        memory_bytes=memory_bytes,
    )
    counts = classes_of_batches(plan, batch_rows, among=ranks, classes=100, count=4_000)
    bound = 1 + (batch_rows - 1) / segments(plan.order, 1_000, ranks)

    assert chi_squared(counts) == pytest.approx(bound, rel=0.04)


def segments(order, block_rows, ranks):
    cut = Lanes(order.lanes, order.window_rows, order.groups)
    return segment_count(cut, rows=order.rows, block_rows=block_rows, ranks=ranks)


def expected_classes(order, block_rows, ranks, batch_rows):
    """Of 100, by a batch from s stretches of one class each."""
    s = segments(order, block_rows, ranks)
    drawn = s * (1 - (1 - 1 / s) ** batch_rows)
    return 100 * (1 - 0.99**drawn)


def advised(rows, row_bytes, blocks, world_size, **settings):
    return make_plan(
        sorted_index(rows, blocks, row_bytes),
        world_size=world_size,
        batch_size=1024 // world_size,
        shuffle=True,
        **settings,
    )


@pytest.mark.parametrize(
    ("rows", "row_bytes", "blocks", "world_size", "classes", "remedy"),
    [
        (4_200_000, 6, 88, 8, 72, None),
        (70_000_000, 6, 88, 8, 3, "memory_bytes=560_000_000 makes it 72"),
        (50_000_000, 100, 1500, 1, 69, "lanes=384 makes it 97"),
        (50_000_000, 100, 1500, 8, 14, "memory_bytes=6_667_000_000 makes it 72"),
        (50_000_000, 2000, 1500, 8, 1, "write the rows shuffled once"),
    ],
)
def test_a_batch_of_few_classes_is_said_with_the_setting_that_mends_it(
    rows, row_bytes, blocks, world_size, classes, remedy
):
    plan = advised(rows, row_bytes, blocks, world_size)
    found = sorted_mixing(plan)

    assert found.rows == 1024 // world_size
    assert round(found.classes) == classes
    if remedy is None:
        assert found.remedies == ()
    else:
        assert found.remedies[0].startswith(remedy)
        assert found.remedies[-1].startswith("write the rows shuffled once")


@pytest.mark.parametrize(("world_size", "row_bytes"), [(1, 100), (8, 100), (8, 6)])
def test_the_setting_that_is_named_gives_the_classes_of_a_permutation(world_size, row_bytes):
    size = (50_000_000 if row_bytes == 100 else 70_000_000, row_bytes, 1500, world_size)
    before = sorted_mixing(advised(*size))
    name, value = before.remedies[0].split()[0].split("=")
    after = sorted_mixing(advised(*size, **{name: int(value)}))

    assert before.classes < 0.95 * before.permutation_classes
    assert after.classes >= 0.95 * after.permutation_classes
    assert after.remedies == ()


def test_the_log_of_a_first_epoch_says_how_sorted_rows_mix(caplog):
    with caplog.at_level("INFO", "headrace"):
        for topology in ranks(2):
            kept_stream(topology, Numbers(KEPT_BLOCKS), 512, memory_bytes=100_000)
    (record,) = [record for record in caplog.records if "sorted" in record.message]

    assert "a rank's batch of 512 meets at least about" in record.message
    assert "a permutation's 99: memory_bytes=3_000_000 makes it 99" in record.message


# ---- the first round -----------------------------------------------------------------------------


@st.composite
def cuts(draw):
    lanes = draw(st.sampled_from([1, 2, 3, 6, 16, 300]))
    groups = draw(st.sampled_from([each for each in range(1, lanes + 1) if lanes % each == 0]))
    return Lanes(lanes, draw(st.sampled_from([1, 3, 9, 50])), groups)


@settings(max_examples=examples(60))
@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=9),
    cuts(),
    st.integers(1, 90),
)
def test_a_round_is_the_next_window_of_every_lane_and_the_first_is_short(rows, cut, first_rows):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(epoch, "FIRST_ROWS", first_rows)
        identities = np.arange(3 * len(rows), dtype=np.uint64).reshape(-1, 3)
        order = epoch_order(
            np.array(rows), identities, seed=1, epoch=0, shuffle=True, **cut._asdict()
        )
        line = order.line_of(np.arange(order.rows))
        short = order.first_window_rows

        assert sorted(line.tolist()) == list(range(order.rows))
        taken = 0
        for window in [short, *[cut.window_rows] * (order.rows + 1)]:
            ends = taken + window
            for group in range(cut.groups):
                lanes = range(group, cut.lanes, cut.groups)
                begin, end = (per * cut.lanes // cut.groups for per in (taken, ends))
                of_group = line[group :: cut.groups][begin:end]
                windows = [
                    row
                    for lane in lanes
                    for row in range(
                        *(
                            int(order.lane_starts[lane] + min(per, order.lane_rows[lane]))
                            for per in (taken, ends)
                        )
                    )
                ]
                assert sorted(of_group.tolist()) == sorted(windows)
            taken = ends
            if taken >= order.lane_rows.max():
                break
        if not (cut.lanes == 1 and cut.window_rows >= order.rows):
            assert short <= max(1, first_rows // cut.lanes)


@settings(max_examples=examples(60))
@given(
    st.lists(st.integers(0, 60), min_size=2, max_size=9).filter(sum),
    cuts(),
    st.integers(1, 90),
    st.data(),
)
def test_lanes_are_cut_again_at_borders_of_rounds_and_every_row_comes_once(rows, cut, first, data):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(epoch, "FIRST_ROWS", first)
        total = sum(rows)
        state = StreamState(
            split="train", index="x", rows=total, seed=1, epoch=0, shuffle=True, **cut._asdict()
        )
        border = next_border(state, None, data.draw(st.integers(0, total)))
        identities = np.arange(3 * len(rows), dtype=np.uint64).reshape(-1, 3)
        order = epoch_order(
            np.array(rows), identities, seed=1, epoch=0, shuffle=True, **cut._asdict()
        )
        whole = [border == total or border % cut.lanes == 0]
        if border < total:
            change = Change(position=border, lanes=6, window_rows=4, groups=3)
            order = chained(order, (change,))
            last = next_border(state, change, data.draw(st.integers(border, total)))
            whole.append(last == total or (last - border) % 6 == 0)
            if last < total:
                order = chained(
                    order.parts[0].order,
                    (change, Change(position=last, lanes=2, window_rows=5, groups=2)),
                )
        blocks, inside = order.locate(order.line_of(np.arange(total)))
        found = offsets_from_lengths(rows)[blocks] + inside

        assert all(whole)
        assert sorted(found.tolist()) == list(range(total))


# ---- kept data -----------------------------------------------------------------------------------

KEPT_BLOCKS = (3000,) * 12 + (0, 1, 3999)  # 40,000 rows of 40 bytes
KEPT = {"shuffle": True, "seed": SEED, "batch_format": "numpy", "memory_bytes": 2_200_000}


class Counted:
    """Numbers, and how often each block was decoded."""

    def __init__(self):
        self.decoded = []

    def __call__(self, block, columns):
        self.decoded.append(block)
        return Numbers(KEPT_BLOCKS)(block, columns)


def kept_stream(topology, read, batch_size, **options):
    values = {**KEPT, "batch_size": batch_size, **options}
    return StreamLoader(index_of(KEPT_BLOCKS), read, StreamOptions(**values), topology=topology)


def rows_of(batch):
    return batch["row"][batch["valid"]].tolist()


def global_steps(world_size, batch_size, *, state=None, steps=None):
    """The rows of each global step, and the state after the last one."""
    by_rank = []
    for topology in ranks(world_size):
        stream = kept_stream(topology, Numbers(KEPT_BLOCKS), batch_size)
        if state is not None:
            stream.load_state_dict(state)
        batches = iter(stream)
        taken = [rows_of(batch) for batch in islice(batches, steps)]
        by_rank.append(taken)
        saved = stream.state_dict()
        batches.close()
    return [sorted(sum(step, [])) for step in zip(*by_rank, strict=True)], saved


def test_kept_data_is_decoded_once_by_each_rank_and_kept_for_later_epochs():
    for topology in ranks(3):
        read = Counted()
        stream = kept_stream(topology, read, 500)
        passes = [sorted(sum(map(rows_of, stream), [])) for _ in range(2)]

        assert len(passes[0]) in (13_333, 13_334)
        assert passes[0] != passes[1]
        assert sorted(read.decoded) == [number for number, rows in enumerate(KEPT_BLOCKS) if rows]
        assert stream.plan().keeps_split
        assert stream.plan().order.lanes == KEPT_LANES


def test_kept_data_has_the_same_global_batches_on_any_ranks_and_after_changes_of_ranks():
    whole, _ = global_steps(1, 420)
    first, state = global_steps(4, 105, steps=17)
    second, changed = global_steps(3, 140, state=state, steps=20)
    third, _ = global_steps(7, 60, state=changed)

    assert sorted(sum(whole, [])) == list(range(sum(KEPT_BLOCKS)))
    assert whole == global_steps(7, 60)[0]
    assert whole == first + second + third
    assert changed["changes"] == []


def test_a_kept_split_that_no_longer_fits_is_read_in_its_order():
    """With less memory after a resume, blocks are decoded again for each round."""
    whole, _ = global_steps(1, 420)
    first, state = global_steps(1, 420, steps=17)
    (topology,) = ranks(1)
    stream = kept_stream(topology, Numbers(KEPT_BLOCKS), 420, memory_bytes=1_000_000)
    stream.load_state_dict(state)

    assert not stream.plan().keeps_split
    assert whole == first + [sorted(rows_of(batch)) for batch in stream]
