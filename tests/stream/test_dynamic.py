"""Claiming blocks: every row once, equal steps, the rest after a stop on any ranks; slow ranks get fewer rows."""

import json
from itertools import chain, pairwise
from threading import Event, Thread

import numpy as np
import pytest
import torch
from dynamic_cases import ROWS, SLOW, TOTAL, claim_on_rank
from hypothesis import given, settings
from hypothesis import strategies as st
from rank_processes import run_ranks
from stream_cases import Numbers, index_of, ranks

from headrace.errors import CorruptShard, SettingsError, StreamError
from headrace.stream.loader.dynamic import Claims, LocalStore, claim_boundaries, claim_rows, left_of
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.loader.torch_dataset import StreamingDataset
from headrace.stream.order.epoch import block_identities, epoch_order
from headrace.stream.order.remaining import Remaining
from headrace.stream.ranks.topology import Topology
from laws import examples
from raised import raised


def order_of(rows, *, shuffle=True):
    identities = block_identities(index_of(rows))
    order = {"seed": 0, "epoch": 0, "lanes": 1, "window_rows": 1, "groups": 1, "shuffle": shuffle}
    return epoch_order(index_of(rows).rows, identities, **order), identities


def loaders(rows, world_size, *, read_block=None, store=None, **options):
    options = {"batch_size": 8, "shuffle": True, "batch_format": "numpy", **options}
    options = StreamOptions(**options, distribution="dynamic")
    store = LocalStore() if store is None else store
    read_block = Numbers(tuple(rows)) if read_block is None else read_block
    return [
        StreamLoader(index_of(rows), read_block, options, topology=each, store=store)
        for each in ranks(world_size)
    ]


def real_rows(batch):
    return batch["row"][batch["valid"]].tolist()


def together(group, what):
    """what(loader) of every rank at the same time; raises what any of them raised."""
    results, errors = [None] * len(group), []

    def run(rank):
        try:
            results[rank] = what(group[rank])
        except Exception as error:  # noqa: BLE001 - raised again below
            errors.append(error)

    threads = [Thread(target=run, args=(rank,), daemon=True) for rank in range(len(group))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    if errors:
        raise errors[0]
    return results


def whole(loader):
    return [real_rows(batch) for batch in loader]


block_rows = st.lists(st.integers(0, 60), min_size=1, max_size=12)


@given(
    block_rows,
    st.lists(st.integers(0, 300), max_size=6),
    st.integers(1, 40),
    st.integers(1, 5),
    st.booleans(),
)
def test_claims_cut_what_remains_into_every_row_once(rows, cuts, batch_size, world_size, shuffle):
    order, identities = order_of(rows, shuffle=shuffle)
    cuts = sorted({min(cut, order.rows) for cut in cuts})
    ends = np.array(cuts[: len(cuts) // 2 * 2], np.int64).reshape(-1, 2)
    remaining = (
        Remaining.everything(order.rows).keep(ends[:, 0], ends[:, 1])
        if len(ends)
        else Remaining.everything(order.rows)
    )
    borders = claim_boundaries(order, remaining, batch_size=batch_size, ranks=world_size)
    first = np.concatenate([[0], np.cumsum(rows)])
    delivered = []
    for start, stop in pairwise(borders.tolist()):
        pool = claim_rows(order, identities, remaining.positions(np.arange(start, stop)))
        pieces = [
            np.arange(first[block] + low, first[block] + high) for block, low, high in pool.spans
        ]
        delivered += np.concatenate(pieces)[pool.index].tolist()

    assert borders[0] == 0
    assert borders[-1] == remaining.total
    assert (np.diff(borders) > 0).all()
    assert len(borders) - 1 <= remaining.total // batch_size + 1
    assert len(delivered) == len(set(delivered)) == remaining.total
    if not len(ends):
        assert sorted(delivered) == list(range(sum(rows)))
        assert shuffle or delivered == list(range(sum(rows)))


@given(block_rows, st.integers(0, 12), st.lists(st.integers(0, 20), min_size=2, max_size=4))
def test_what_is_left_is_all_that_nobody_received(rows, claimed, used):
    order, _ = order_of(rows)
    remaining = Remaining.everything(order.rows)
    borders = claim_boundaries(order, remaining, batch_size=10, ranks=1)
    claimed = min(claimed, len(borders) - 1)
    held = [
        (
            min(int(borders[claimed - 1 - back]) + part, int(borders[claimed - back])),
            int(borders[claimed - back]),
        )
        for back, part in enumerate(used[:claimed])
    ]
    left = left_of(remaining, borders, claimed=claimed, undelivered=held)
    expected = set(range(int(borders[claimed]), order.rows)).union(*(range(*each) for each in held))

    assert set(chain.from_iterable(range(*each) for each in left.ranges)) == expected


@settings(max_examples=examples(25))
@given(block_rows, st.integers(1, 4), st.integers(1, 30))
def test_ranks_receive_every_row_once_in_equal_steps(rows, world_size, batch_size):
    got = together(loaders(rows, world_size, batch_size=batch_size), whole)

    assert sorted(chain.from_iterable(chain.from_iterable(got))) == list(range(sum(rows)))
    assert len({len(batches) for batches in got}) == 1
    for batches in got:  # short batches come last, then empty ones
        assert [len(batch) for batch in batches] == sorted(
            (len(batch) for batch in batches), reverse=True
        )


@settings(max_examples=examples(25))
@given(block_rows, st.integers(1, 3), st.integers(1, 3), st.integers(0, 9), st.integers(0, 4))
def test_the_rest_after_a_stop_comes_once_on_any_ranks(rows, before, after, stop, again):
    def some(batches):
        def run(loader):
            got, stream = [], iter(loader)
            for _ in range(batches):
                batch = next(stream, None)
                if batch is None:
                    break
                got += real_rows(batch)
            state = loader.state_dict()
            stream.close()
            return got, state

        return run

    first = together(loaders(rows, before), some(stop))
    states = [state for _, state in first]
    second = loaders(rows, after, batch_size=5)
    for loader in second:
        loader.load_state_dict(json.loads(json.dumps(states[0])))
    middle = together(second, some(again))
    third = loaders(rows, before)
    for loader in third:
        loader.load_state_dict(middle[0][1])
    last = together(third, whole)

    assert states == [states[0]] * before
    parts = [got for got, _ in first] + [got for got, _ in middle] + list(chain.from_iterable(last))
    assert sorted(chain.from_iterable(parts)) == list(range(sum(rows)))


def test_epochs_advance_and_blocks_change_their_order():
    (loader,) = loaders([30] * 8, 1)
    first, second = list(chain(*whole(loader))), list(chain(*whole(loader)))
    loader.set_epoch(0)

    assert loader.epoch == 0
    assert list(chain(*whole(loader))) == first != second
    assert sorted(first) == sorted(second) == list(range(240))
    assert [row // 30 for row in first] != sorted(row // 30 for row in first)
    assert loader.state_dict()["position"] == 240


def test_a_slow_rank_claims_fewer_rows_and_holds_at_most_two_blocks():
    group, done, most = loaders([50] * 24, 2, batch_size=10), Event(), []

    def read(loader):
        rows = 0
        for batch in loader:
            rows += len(real_rows(batch))
            if loader.topology.rank == 1:
                done.wait(100)  # as slow as can be: the other rank ends its pass meanwhile
                most.append(len(loader.current.claims._undelivered))
        done.set()
        return rows

    fast, slow = together(group, read)

    assert fast + slow == 1200
    assert slow <= 2 * 50
    assert max(most) <= 2


def test_a_rank_that_leaves_early_stops_those_that_wait_for_it():
    group, left = loaders([40] * 6, 2), Event()

    def read(loader):
        if loader.topology.rank == 0:
            for _ in loader:
                break
            left.set()
            return
        left.wait(100)
        whole(loader)

    with raised(StreamError, remedy="end a pass on all ranks after the same number of batches"):
        together(group, read)


def test_ranks_that_begin_at_different_places_are_told():
    group = loaders([40] * 6, 2)
    group[1].set_epoch(4)

    with raised(StreamError, remedy="load the same state and set the same epoch on every rank"):
        together(group, whole)


def test_a_rank_that_waits_for_one_that_began_elsewhere_is_told_the_same():
    one = {
        "store": LocalStore(),
        "prefix": "pass",
        "epoch": 0,
        "boundaries": np.array([0, 8]),
        "batch_size": 8,
    }
    claims = [Claims(**one, topology=each, check=lambda: None) for each in ranks(2)]
    claims[0].arrive("a")
    with pytest.raises(
        StreamError, match="rank 1 of 2: this pass starts at b, another rank's at a; load the same"
    ):
        claims[1].arrive("b")

    with pytest.raises(
        StreamError, match="rank 0 of 2: this pass starts at a, another rank's at b; load the same"
    ):
        claims[0].await_steps()


def test_a_bad_block_raises_or_goes_into_quarantine():
    def read_block(block, columns):
        if block == 2:
            raise CorruptShard("page 3 is damaged")
        return Numbers((40,) * 6)(block, columns)

    with pytest.raises(CorruptShard, match=r"rank 0 of 1: part-00002.parquet block 0: page 3"):
        whole(loaders([40] * 6, 1, read_block=read_block)[0])

    (loader,) = loaders(
        [40] * 6, 1, read_block=read_block, on_bad_block="quarantine", quarantine_limit=0.2
    )
    assert sorted(chain(*whole(loader))) == [row for row in range(240) if row // 40 != 2]
    assert loader.quarantined.rows == 40


def test_what_does_not_go_together_is_refused():
    options = StreamOptions(batch_size=4, distribution="dynamic")
    with raised(SettingsError, setting="distribution", remedy="pass store="):
        StreamLoader(index_of([4]), Numbers((4,)), options, topology=ranks(2)[0])
    partners = Topology(rank=0, world_size=1, partners=2)
    with raised(SettingsError, setting="distribution", remedy='use distribution="balanced"'):
        StreamLoader(index_of([9]), Numbers((9,)), options, topology=partners)
    with raised(SettingsError, setting="remainder", remedy="leave remainder= out"):
        loaders([4], 1, remainder="drop")
    with raised(SettingsError, setting="lanes", remedy='use distribution="balanced"'):
        loaders([4], 1, lanes=4)
    with raised(SettingsError, setting="distribution", remedy="headrace.open(...).stream(...)"):
        StreamingDataset(index_of([4]), Numbers((4,)), options, topology=ranks(1)[0])
    (loader,) = loaders([4], 1)
    with pytest.raises(TypeError, match="known when the last block is claimed"):
        len(loader)
    with raised(StreamError, setting="distribution", remedy='plan with distribution="balanced"'):
        loader.plan()
    balanced = StreamLoader(
        index_of([4]), Numbers((4,)), StreamOptions(batch_size=4), topology=ranks(1)[0]
    )
    with raised(StreamError, setting="distribution", remedy="start the epoch again"):
        loader.load_state_dict(balanced.state_dict())
    with pytest.raises(StreamError, match="it is a state of kind 'dynamic stream'"):
        balanced.load_state_dict(loader.state_dict())


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed")
def test_three_processes_share_an_epoch_in_step_and_out_of_step(tmp_path):
    world_size = 3
    run_ranks(claim_on_rank, world_size, world_size, str(tmp_path))
    got = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(world_size)]

    for job in ("free", "lockstep"):
        assert sorted(chain.from_iterable(each[job]["rows"] for each in got)) == list(range(TOTAL))
        assert len({each[job]["batches"] for each in got}) == 1
    assert len(got[SLOW]["free"]["rows"]) <= sum(
        sorted(ROWS)[-2:]
    )  # no more than two blocks while others had the rest
    assert [each["stopped"]["state"] for each in got] == [got[0]["stopped"]["state"]] * world_size
    parts = [each["stopped"]["rows"] for each in got] + [each["rest"]["rows"] for each in got]
    assert sorted(chain.from_iterable(parts)) == list(range(TOTAL))
