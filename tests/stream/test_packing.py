"""Rows packed while they are streamed: every one in one bin, equal steps, a resume like no stop."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from damaged_states import resealed
from hypothesis import given, settings
from hypothesis import strategies as st
from packing_stream_cases import deliver_packed, sequences_of, some_lengths, write_rows
from rank_processes import run_ranks

import headrace
from headrace.errors import CorruptShard, InputError, SettingsError, StreamError
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.stateful import stream_state
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.loader.torch_dataset import StreamingDataset
from headrace.stream.ranks.topology import Topology
from laws import examples
from raised import raised

pytestmark = pytest.mark.filterwarnings(
    "ignore:This DataLoader will create"
)  # the number of workers is the subject

ROWS = 700
PLAIN = headrace.PackedBatches(pad_id=-1)


@pytest.fixture(scope="module")
def lengths():
    return some_lengths(ROWS)


@pytest.fixture(scope="module")
def path(lengths, tmp_path_factory):
    return write_rows(tmp_path_factory.mktemp("rows") / "d", lengths)


def packed(
    path, *, rank=0, world_size=1, cache=None, batch_size=3, shuffle=True, packed=PLAIN, **pack
):
    options = {
        name: pack.pop(name)
        for name in ("columns", "batch_format", "remainder", "seed")
        if name in pack
    }
    pack = headrace.PackRows(**{"capacity": 100, "buffer_rows": 128, **pack})
    return headrace.open(path, cache_dir=cache or path.parent / "cache").stream(
        batch_size=batch_size,
        shuffle=shuffle,
        pack=pack,
        packed=packed,
        topology=Topology(rank=rank, world_size=world_size),
        **options,
    )


def of_rows(lengths, most=1000):
    return sorted(
        list(range(1000 * row, 1000 * row + min(length, most)))
        for row, length in enumerate(lengths)
        if length
    )


def delivered(batches):
    return sorted(sequence for batch in batches for sequence in sequences_of(batch))


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(("world_size", "batch_size"), [(1, 1), (1, 4), (2, 3), (5, 2)])
def test_every_row_is_in_one_bin_and_every_rank_has_as_many_batches(
    path, lengths, world_size, batch_size, shuffle
):
    streams = [
        packed(path, rank=rank, world_size=world_size, batch_size=batch_size, shuffle=shuffle)
        for rank in range(world_size)
    ]
    batches = [list(stream) for stream in streams]

    assert of_rows(lengths) == delivered(batch for of_rank in batches for batch in of_rank)
    assert {len(streams[0])} == {len(of_rank) for of_rank in batches}
    report = streams[0].report()
    assert (ROWS, sum(lengths)) == (report.rows, report.tokens)
    real = sum(
        int(batch["valid"].sum()) if world_size > 1 else 0
        for of_rank in batches
        for batch in of_rank
    )
    if world_size > 1:
        assert report.bins == real
        assert report.filling_bins == world_size * batch_size * len(streams[0]) - real
    assert report.fill > 0.93  # windows of 128 rows are 18 bins, the last of which is what is left


def test_bins_hold_no_more_than_they_may_and_are_apart(path):
    for batch in packed(path, batch_size=1, batch_format="numpy", max_sequences=7):
        assert batch["input_ids"].shape[1] <= 100
        assert len(batch["cu_seqlens"]) <= 8
        for begin, end in zip(batch["cu_seqlens"][:-1], batch["cu_seqlens"][1:], strict=True):
            tokens, labels = batch["input_ids"][0, begin:end], batch["labels"][0, begin:end]
            assert list(range(tokens[0], tokens[0] + len(tokens))) == tokens.tolist()
            assert [*tokens[1:].tolist(), -100] == labels.tolist()
            assert list(range(len(tokens))) == batch["position_ids"][0, begin:end].tolist()


@pytest.mark.parametrize("mask", [pa.int8(), pa.bool_()])
@pytest.mark.parametrize("alignment", ["unshifted", "shift_left"])
def test_masks_train_the_tokens_they_stand_on_or_before(tmp_path, mask, alignment):
    lengths = some_lengths(80)
    path = write_rows(tmp_path / "d", lengths, mask=pa.list_(mask))
    stream = packed(path, mask="trained", mask_alignment=alignment, batch_size=2)

    got = sorted(
        label for batch in stream for label in batch["labels"][batch["labels"] != -100].tolist()
    )

    shift = 0 if alignment == "unshifted" else 1
    trained = [token for row in of_rows(lengths) for token in row[1:] if (token - shift) % 3 == 0]
    assert sorted(trained) == got


@pytest.mark.parametrize("stop", [0, 1, 5, 11, 30, 40])
def test_prefix_and_resumed_suffix_are_the_uninterrupted_pass(path, stop):
    whole = [sequences_of(batch) for batch in packed(path)]
    stream = packed(path)
    batches = iter(stream)
    prefix = [sequences_of(next(batches)) for _ in range(stop)]
    state = json.loads(json.dumps(stream.state_dict()))
    later = packed(path)
    later.load_state_dict(state)

    assert (len(whole), len(whole) - stop) == (len(later), later.remaining)
    assert whole == prefix + [sequences_of(batch) for batch in later]
    assert 40 == len(whole)  # the stops are spread over it


@pytest.mark.slow
def test_a_resumed_pass_is_stopped_and_resumed_again(path):
    whole = [sequences_of(batch) for batch in packed(path)]
    got, state = [], None
    while len(got) < len(whole):
        stream = packed(path)
        if state is not None:
            stream.load_state_dict(state)
        for _, batch in zip(range(4), stream, strict=False):
            got.append(sequences_of(batch))
        state = stream.state_dict()

    assert whole == got
    stream.load_state_dict(state)
    assert [] == list(stream)
    assert [sequences_of(batch) for batch in stream] != whole  # the next epoch


@pytest.mark.slow
@settings(max_examples=examples(12))
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.integers(1, 4), st.data())
def test_a_resume_elsewhere_brings_the_rows_that_nobody_received(
    path, lengths, before, after, size, other, data
):
    first = [packed(path, rank=rank, world_size=before, batch_size=size) for rank in range(before)]
    stop = data.draw(st.integers(0, len(first[0])))
    got = []
    for stream in first:
        batches = iter(stream)
        got += [sequences_of(next(batches)) for _ in range(stop)]
    states = [stream.state_dict() for stream in first]
    assert all(state == states[0] for state in states)
    steps = set()
    for rank in range(after):
        later = packed(path, rank=rank, world_size=after, batch_size=other)
        later.load_state_dict(states[0])
        rest = [sequences_of(batch) for batch in later]
        steps.add(len(rest))
        got += rest

    assert of_rows(lengths) == sorted(sequence for batch in got for sequence in batch)
    assert 1 == len(steps)


@pytest.mark.slow
@settings(max_examples=examples(12))
@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(0, 9)), min_size=2, max_size=4
    ),
    st.booleans(),
)
def test_a_chain_of_resumes_on_other_ranks_brings_every_row_once(path, lengths, chain, shuffle):
    got, state = [], None
    for world_size, batch_size, stop in [*chain, (2, 3, None)]:
        ranks = [
            packed(path, rank=rank, world_size=world_size, batch_size=batch_size, shuffle=shuffle)
            for rank in range(world_size)
        ]
        for stream in ranks:
            if state is not None:
                stream.load_state_dict(json.loads(json.dumps(state)))
        steps = ranks[0].remaining if stop is None else min(stop, ranks[0].remaining)
        for stream in ranks:
            batches = [sequences_of(batch) for batch, _ in zip(stream, range(steps), strict=False)]
            assert steps == len(batches)
            got += batches
        state = ranks[0].state_after(steps)

    assert of_rows(lengths) == sorted(sequence for batch in got for sequence in batch)
    last = packed(path, shuffle=shuffle)
    last.load_state_dict(state)
    assert 0 == last.remaining


def test_epochs_have_orders_of_their_own_and_follow_one_another(path):
    stream = packed(path)
    first, second = [[sequences_of(batch) for batch in stream] for _ in range(2)]
    stream.set_epoch(0)

    assert first == [sequences_of(batch) for batch in stream]
    assert first != second
    assert sorted(s for b in first for s in b) == sorted(s for b in second for s in b)


@pytest.mark.parametrize("too_long", ["truncate", "drop"])
def test_what_is_too_long_is_cut_or_dropped_as_asked_and_counted(tmp_path, too_long):
    lengths = [5, 30, 0, 31, 29, 90, 1, 0, 12]
    path = write_rows(tmp_path / "d", lengths)
    stream = packed(path, capacity=30, too_long=too_long)

    kept = (
        lengths if too_long == "truncate" else [0 if length > 30 else length for length in lengths]
    )
    assert of_rows(kept, 30) == delivered(stream)
    report = stream.report()
    cut = (2, 61, 0, 0) if too_long == "truncate" else (0, 0, 2, 121)
    assert cut == (
        report.truncated_rows,
        report.truncated_tokens,
        report.dropped_rows,
        report.dropped_tokens,
    )
    assert (2, sum(lengths)) == (
        report.empty_rows,
        report.tokens + report.truncated_tokens + report.dropped_tokens,
    )


def test_too_long_rows_are_an_error_before_anything_is_read(path):
    with raised(InputError, remedy='too_long="truncate" or "drop"') as caught:
        packed(path, capacity=20)
    assert caught.value.row >= 1


def test_bins_for_readers_that_drop_a_token_hold_what_is_left(path, lengths):
    dropping = headrace.PackedBatches(
        form="padded", last_token="drop", pad_to=100, ignore_index=None
    )
    keeping = headrace.PackedBatches(form="padded", pad_to=100)
    runtime, stored = packed(path, packed=dropping), packed(path, packed=keeping)

    fed = sum(int((batch["loss_mask"]).sum()) for batch in runtime)

    assert sum(length - 1 for length in lengths) == fed
    assert runtime.report().bins < stored.report().bins


def test_other_columns_are_a_value_a_sequence(path, lengths):
    seen = []
    for batch in packed(path, columns=["input_ids", "row"], batch_size=2, world_size=2, rank=1):
        rows = batch["row"].tolist()
        assert [sequence[0] // 1000 for sequence in sequences_of(batch)] == rows
        seen += rows
    assert len(set(seen)) == len(seen) == ROWS // 2


def test_lengths_are_counted_once_and_kept(path, tmp_path):
    cache = tmp_path / "cache"
    first = packed(path, cache=cache)
    (kept,) = cache.glob("counts-*")
    stamp = kept.stat().st_mtime_ns

    assert len(first) == len(packed(path, cache=cache))
    assert stamp == kept.stat().st_mtime_ns
    kept.write_bytes(kept.read_bytes()[:-70] + b"x" * 70)
    assert len(first) == len(packed(path, cache=cache))
    assert len(first) == len(packed(path, cache=cache, lengths="tokens"))
    assert 2 == len(list(cache.glob("counts-*")))


def test_lengths_that_a_column_says_wrongly_are_found_out(tmp_path):
    path = write_rows(tmp_path / "d", [4, 5, 6])
    with raised(CorruptShard, column="row", remedy="open the dataset again"):
        list(packed(path, lengths="row", capacity=30))


def test_a_mask_of_another_length_is_refused(tmp_path):
    path = write_rows(tmp_path / "d", [4, 5, 6])
    with raised(InputError, column="other", remedy="each mask as long as its tokens"):
        list(packed(path, mask="other", shuffle=False))


def test_a_filtered_set_and_a_blend_are_packed(path, lengths):
    dataset = headrace.open(path, cache_dir=path.parent / "cache")
    pack = headrace.PackRows(capacity=100, buffer_rows=64)
    some = dataset.stream(batch_size=2, pack=pack, packed=PLAIN, filter=[("row", "<", 100)])
    both = headrace.blend([dataset, dataset]).stream(
        batch_size=2, shuffle=True, pack=pack, packed=PLAIN
    )

    assert of_rows(lengths[:100]) == delivered(some)
    assert sorted(of_rows(lengths) * 2) == delivered(both)


def test_a_number_is_the_capacity_and_torch_the_usual_form(path):
    batch = next(
        iter(headrace.open(path, cache_dir=path.parent / "cache").stream(batch_size=2, pack=100))
    )

    assert isinstance(batch["input_ids"], torch.Tensor)
    assert batch["input_ids"].dtype == torch.int64
    assert list(batch) == [
        "input_ids",
        "labels",
        "loss_mask",
        "position_ids",
        "cu_seqlens",
        "max_seqlen",
        "valid",
    ]


def test_fewer_rows_than_ranks_are_bins_of_some_and_filling_of_others(tmp_path):
    path = write_rows(tmp_path / "d", [9])
    batches = [list(packed(path, rank=rank, world_size=3)) for rank in range(3)]

    assert [1, 1, 1] == [len(of_rank) for of_rank in batches]
    assert of_rows([9]) == delivered(batch for of_rank in batches for batch in of_rank)
    assert [1, 0, 0] == sorted(
        (int(of_rank[0]["valid"].sum()) for of_rank in batches), reverse=True
    )
    assert all(
        (of_rank[0]["labels"][of_rank[0]["loss_mask"] == 0] == -100).all() for of_rank in batches
    )


def test_a_rank_with_fewer_windows_than_another_reads_to_its_end(tmp_path):
    lengths = some_lengths(257)
    path = write_rows(tmp_path / "d", lengths)
    batches = [list(packed(path, rank=rank, world_size=2)) for rank in range(2)]

    assert of_rows(lengths) == delivered(batch for of_rank in batches for batch in of_rank)
    assert len(batches[0]) == len(batches[1])


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({"pack": "big"}, {"setting": "pack", "value": "big"}),
        ({"pack": headrace.PackRows(capacity=9, tokens="text")}, {"column": "text"}),
        ({"pack": 100, "packed": "off"}, {"setting": "packed", "value": "off"}),
        ({"pack": 100, "remainder": "drop"}, {"setting": "remainder", "value": "drop"}),
        ({"pack": 100, "batch_format": "rows"}, {"setting": "batch_format", "value": "rows"}),
        ({"pack": 100, "distribution": "by_size"}, {"remedy": 'use distribution="balanced"'}),
        ({"pack": 100, "columns": ["labels"]}, {"setting": "columns", "value": ["labels"]}),
    ],
)
def test_settings_that_do_not_fit_say_so(path, options, fields):
    with raised(SettingsError, **fields):
        headrace.open(path, cache_dir=path.parent / "cache").stream(batch_size=2, **options)


def test_bins_hold_at_least_a_token(path):
    with pytest.raises(SettingsError, match="capacity is 0"):
        headrace.open(path, cache_dir=path.parent / "cache").stream(batch_size=2, pack=0)


@pytest.mark.parametrize("loader", [StreamLoader, StreamingDataset])
def test_loaders_that_do_not_know_lengths_refuse_to_pack(path, loader):
    dataset = headrace.open(path, cache_dir=path.parent / "cache")
    with raised(SettingsError, setting="pack", remedy="headrace.open(...).stream"):
        loader(dataset.split_index(), dataset.block_reader(), StreamOptions(batch_size=2, pack=100))


def in_workers(path, *, rank=0, world_size=1, workers=2, batch_size=3, seed=0):
    return headrace.open(path, cache_dir=path.parent / "cache").torch_dataset(
        batch_size=batch_size,
        num_workers=workers,
        shuffle=True,
        seed=seed,
        packed=PLAIN,
        pack=headrace.PackRows(capacity=100, buffer_rows=64),
        topology=Topology(rank=rank, world_size=world_size),
    )


def test_two_passes_at_a_time_are_an_error_and_not_one_count(path):
    dataset = in_workers(path, workers=0)
    first, second = iter(dataset), iter(dataset)
    next(first)
    next(second)

    with raised(StreamError, remedy="make a second stream"):
        next(first)
    assert dataset.state_after(1) == dataset.state_dict()


def received(dataset):
    """One pass; workers by fork, as what they do is the same however they start."""
    return [sequences_of(batch) for batch in dataset.data_loader(method="fork")]


@pytest.mark.slow
@pytest.mark.parametrize(("world_size", "workers"), [(1, 0), (1, 3), (2, 2)])
def test_workers_deliver_the_batches_of_their_rank(path, lengths, world_size, workers):
    ranks = [
        in_workers(path, rank=rank, world_size=world_size, workers=workers)
        for rank in range(world_size)
    ]
    got = [received(dataset) for dataset in ranks]

    assert of_rows(lengths) == sorted(s for of_rank in got for batch in of_rank for s in batch)
    assert {len(ranks[0])} == {len(of_rank) for of_rank in got}
    alone = [
        packed(path, rank=rank, world_size=world_size, buffer_rows=64) for rank in range(world_size)
    ]
    assert [[sequences_of(batch) for batch in stream] for stream in alone] == got


@pytest.mark.slow
@pytest.mark.smoke("1", "38")
@pytest.mark.parametrize("stop", [0, 1, 5, 6, 38])
def test_a_resume_between_workers_goes_on_with_the_worker_whose_turn_it_is(path, stop):
    whole = received(in_workers(path, workers=3))
    state = json.loads(json.dumps(in_workers(path, workers=3).state_after(stop)))
    later = in_workers(path, workers=3)
    later.load_state_dict(state)

    assert 40 < len(whole) == len(later) == stop + later.remaining
    assert whole[stop:] == received(later)
    assert stop + 1 == later.state_after(1)["batches"]


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "stop"), [(1, 7), (3, 8), (0, 3)])
def test_a_resume_with_other_workers_brings_the_rows_that_are_left(path, lengths, workers, stop):
    first = [in_workers(path, rank=rank, world_size=2) for rank in range(2)]
    got = [s for dataset in first for batch in received(dataset)[:stop] for s in batch]
    state = first[1].state_after(stop)
    assert state == first[0].state_after(stop)
    later = in_workers(path, workers=workers)
    later.load_state_dict(state)
    alone = packed(path, buffer_rows=64, batch_size=2)
    alone.load_state_dict(state)

    assert of_rows(lengths) == sorted(got + [s for batch in received(later) for s in batch])
    assert of_rows(lengths) == sorted(got + [s for batch in alone for s in sequences_of(batch)])


def test_workers_that_live_on_see_the_epoch(path, lengths):
    dataset = in_workers(path)
    loader = torch.utils.data.DataLoader(
        dataset,
        batch_size=None,
        num_workers=2,
        persistent_workers=True,
        multiprocessing_context="fork",
    )
    epochs = []
    for epoch in (0, 3, 0):
        dataset.set_epoch(epoch)
        epochs.append([sequences_of(batch) for batch in loader])

    assert epochs[0] == epochs[2] != epochs[1]
    assert all(of_rows(lengths) == sorted(s for batch in epoch for s in batch) for epoch in epochs)


@pytest.mark.slow
def test_a_spawned_worker_packs_the_same(path):
    one = in_workers(path, workers=1)
    spawned = [sequences_of(batch) for batch in one.data_loader(method="spawn")]

    assert received(in_workers(path, workers=1)) == spawned


@pytest.mark.slow
def test_states_of_workers_are_counted_in_the_loop(path):
    dataset = in_workers(path)
    batches = iter(dataset.data_loader(method="fork"))
    first = [sequences_of(next(batches)) for _ in range(3)]
    later = in_workers(path)
    later.load_state_dict(dataset.state_dict())
    batches.close()

    assert received(in_workers(path)) == first + received(later)
    next(
        iter(
            torch.utils.data.DataLoader(
                dataset, batch_size=None, num_workers=1, multiprocessing_context="fork"
            )
        )
    )
    with raised(StreamError, remedy="call state_after"):
        dataset.state_dict()
    with raised(StreamError, setting="batches", value=1000):
        dataset.state_after(1000)


@pytest.mark.slow
@pytest.mark.smoke("1-0", "3-7")
@pytest.mark.filterwarnings(
    "ignore:'set_vital' is deprecated"
)  # torchdata 0.11 calls it in newer torch
@pytest.mark.parametrize(("workers", "stop"), [(0, 5), (1, 0), (2, 5), (3, 7), (3, 38)])
def test_a_stateful_loader_resumes_with_its_workers_and_on_other_ranks(
    path, lengths, workers, stop
):
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="needs torchdata")

    def loader():
        method = "fork" if workers else None
        return stateful.StatefulDataLoader(
            in_workers(path, workers=workers),
            batch_size=None,
            num_workers=workers,
            multiprocessing_context=method,
        )

    whole = [sequences_of(batch) for batch in loader()]
    stopped = loader()
    batches = iter(stopped)
    before = [sequences_of(next(batches)) for _ in range(stop)]
    saved = json.loads(json.dumps(stopped.state_dict()))
    resumed = loader()
    resumed.load_state_dict(saved)
    middle = iter(resumed)
    then = [sequences_of(next(middle)) for _ in range(2)]
    again = loader()
    again.load_state_dict(json.loads(json.dumps(resumed.state_dict())))
    after = [sequences_of(batch) for batch in again]
    state = stream_state(saved)
    elsewhere = [
        packed(path, rank=rank, world_size=2, batch_size=5, buffer_rows=64) for rank in range(2)
    ]
    for stream in elsewhere:
        stream.load_state_dict(state)
    rest = [[sequences_of(batch) for batch in stream] for stream in elsewhere]

    assert whole == before + then + after
    assert in_workers(path, workers=0).state_after(stop) == state
    assert len(rest[0]) == len(rest[1])
    got = [sequence for batch in [*before, *rest[0], *rest[1]] for sequence in batch]
    assert of_rows(lengths) == sorted(got)


def test_states_of_other_streams_are_refused(path):
    stream = packed(path)
    with pytest.raises(StreamError, match="it is a state of kind 'stream'"):
        stream.load_state_dict(
            headrace.open(path, cache_dir=path.parent / "cache").stream(batch_size=2).state_dict()
        )
    with raised(StreamError, setting="pack", remedy="pass the saved ones"):
        stream.load_state_dict(packed(path, capacity=200).state_dict())
    with raised(StreamError, setting="seed", remedy="pass the saved setting"):
        stream.load_state_dict(packed(path, seed=1).state_dict())
    with pytest.raises(StreamError, match="counts 10000 batches"):
        stream.load_state_dict(resealed(packed(path).state_dict(), batches=10_000))
    with raised(StreamError, remedy="pass it on unchanged"):
        stream.load_state_dict(resealed(packed(path).state_dict(), batches=-1))


@pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch with gloo")
def test_two_ranks_take_equal_steps_and_every_row_once(path, lengths, tmp_path):
    run_ranks(deliver_packed, 2, str(tmp_path), str(path), 2)
    records = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2)]

    assert records[0]["steps"] == records[1]["steps"]
    assert records[0]["state"] == records[1]["state"]
    assert of_rows(lengths) == sorted(
        s for record in records for batch in record["rows"] for s in batch
    )


def test_the_same_bins_for_any_number_of_threads_that_decode(path):
    pack = headrace.PackRows(capacity=100, buffer_rows=64)
    got = [
        [
            np.asarray(batch["input_ids"]).tolist()
            for batch in headrace.open(path, cache_dir=path.parent / "cache").stream(
                batch_size=2, shuffle=True, pack=pack, read_threads=threads, prefetch_blocks=threads
            )
        ]
        for threads in (1, 4)
    ]

    assert got[0] == got[1]


@pytest.mark.parametrize("lengths", [[0, 0, 0], [0]])
@pytest.mark.parametrize("world_size", [1, 2])
def test_rows_without_a_token_make_no_batch(tmp_path, lengths, world_size):
    path = write_rows(tmp_path / "d", lengths)
    stream = packed(path, world_size=world_size)

    assert 0 == len(stream) == len(list(stream))
    assert (0, 0, len(lengths)) == (
        stream.report().bins,
        stream.report().fill,
        stream.report().empty_rows,
    )


def test_a_set_without_rows_makes_no_batch(tmp_path):
    path = write_rows(tmp_path / "d", [3]) / "00000.parquet"
    pq.ParquetWriter(path, pq.read_schema(path)).close()

    assert 0 == len(list(packed(tmp_path / "d", cache=tmp_path / "c")))


@pytest.mark.parametrize(
    "options",
    [
        {"pack": 100, "batch_size": 2},
        {"batch_tokens": 256, "lists": "padded"},
        {"group_by_length": "input_ids", "batch_size": 4, "lists": "padded"},
    ],
)
def test_a_stage_that_begins_at_a_step_of_rows_by_length_is_refused(path, options):
    dataset = headrace.open(path, cache_dir=path.parent / "cache")
    schedule = [(0, [1, 0]), ("5 steps", [0, 1])]
    blend = headrace.blend([dataset, dataset], schedule=schedule)
    with raised(SettingsError, setting="schedule", value="5 steps", remedy="rows or a share"):
        blend.stream(shuffle=True, **options)
