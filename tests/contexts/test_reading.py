"""Contexts of real runs: every measurement of small rows once, both formats alike, damage is named."""

import json
import pickle
import shutil
from collections import Counter
from dataclasses import asdict

import numpy as np
import pytest
from context_cases import facts_of
from history_cases import Sizes, random_rows
from prepared_histories import prepared
from typer.testing import CliRunner

from headrace.cli.application import app
from headrace.contexts import decode_context, open_contexts
from headrace.dataset.local_shards import LocalFiles
from headrace.errors import CorruptShard, InputError, SettingsError
from headrace.histories.codec.rows import decode_rows, encode_rows
from headrace.histories.contexts.contexts import build
from headrace.histories.contexts.reading import HistoryRows, find_histories, sizes_of_blobs
from headrace.histories.measurements import decode_shard
from raised import raised


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return prepared(tmp_path_factory.mktemp("array_record"))


@pytest.fixture(scope="module")
def mapped(tmp_path_factory):
    return prepared(tmp_path_factory.mktemp("arrow"), format_="arrow")


@pytest.mark.slow
def test_every_entity_is_seen_in_an_epoch(out):
    contexts = open_contexts(out, "train")
    batch = contexts.batch(range(len(contexts)))
    delivered = Counter()
    for number in range(len(contexts)):
        measured = decode_context({name: array[number] for name, array in batch.items()})
        delivered.update(each.entity for segment in measured for each in segment)
    prepared_counts = Counter()
    for shard in contexts.rows._shards:
        prepared_counts.update(
            each["src_addr"] for each in decode_shard(contexts.rows.root / shard)
        )

    assert len(prepared_counts) == len(delivered) > 300
    assert sum(prepared_counts.values()) == contexts.rows.n.sum()


@pytest.mark.slow
@pytest.mark.parametrize("keys", ["maxtext", "four"])
def test_contexts_are_decoded_whole_as_they_are_delivered(out, keys):
    contexts = open_contexts(out, "train", keys=keys, seed=2)
    built = build(contexts.index, contexts.rows, np.arange(len(contexts)))
    taken = [built.segments.context == number for number in range(len(contexts))]
    counts = [built.tokens.measurements[mine].tolist() for mine in taken]
    full = [number for number in range(len(contexts)) if contexts[number]["targets"][-1]]

    assert counts == [
        [len(segment) for segment in decode_context(contexts[number])]
        for number in range(len(contexts))
    ]
    assert full
    with raised(InputError, setting="context", remedy="as it was delivered"):
        decode_context(
            {name: array for name, array in contexts[0].items() if not name.startswith("targets")}
        )


def test_both_formats_give_the_same_contexts(out, mapped):
    first, second = open_contexts(out, "train", seed=3), open_contexts(mapped, "train", seed=3)

    assert len(first) == len(second)
    for name, array in first.batch(range(0, 2 * len(first), 3)).items():
        assert (array == second.batch(range(0, 2 * len(second), 3))[name]).all()


def test_a_pickled_copy_gives_the_same_and_one_context_is_a_row_of_a_batch(out):
    contexts = open_contexts(out, "test", shuffle="rows")
    batch = contexts.batch(range(len(contexts)))
    copy = pickle.loads(pickle.dumps(contexts))

    for place in range(len(contexts)):
        assert all((copy[place][name] == array[place]).all() for name, array in batch.items())


def test_rows_stay_open_within_the_bytes_allowed(out):
    for cache_bytes in (0, 20_000, 1 << 27):
        contexts = open_contexts(out, "train", cache_bytes=cache_bytes)
        contexts.batch(range(50))
        assert contexts.rows._open_bytes <= cache_bytes
        assert contexts.rows._open_bytes == sum(size for _, size in contexts.rows._open.values())
        assert bool(contexts.rows._open) == (cache_bytes > 0)


def test_plan_says_what_an_epoch_is(out):
    contexts = open_contexts(out, "train")
    plan = contexts.plan()
    batch = contexts.batch(range(len(contexts)))

    assert plan.contexts == len(contexts) == plan.small_contexts + plan.large_contexts
    assert plan.measurements == contexts.rows.n.sum()
    assert plan.padding == pytest.approx((batch["inputs_segmentation"] == 0).mean(), abs=1e-9)
    assert 0.3 < plan.coverage < 1
    assert "contexts an epoch" in str(plan)
    assert open_contexts(out, "train", rows="measurements").plan().coverage > plan.coverage


@pytest.mark.parametrize("format_", ["array_record", "arrow"])
def test_damage_is_named(out, mapped, tmp_path, format_):
    source = out if format_ == "array_record" else mapped
    shutil.copytree(source, tmp_path / "out", symlinks=True)
    histories = find_histories(tmp_path / "out", "train", None)
    rows = HistoryRows(*histories, cache_bytes=0, files=LocalFiles(verify="never"))
    shard = rows.root / rows._shards[0]
    shard.chmod(0o644)
    data = bytearray(shard.read_bytes())
    middle = len(data) // 3
    data[middle : middle + 3000] = bytes(each ^ 0x55 for each in data[middle : middle + 3000])
    shard.write_bytes(data)

    with pytest.raises(CorruptShard, match="not those that were published"):
        open_contexts(tmp_path / "out", "train").plan()
    shard.unlink()
    with raised(CorruptShard, path=shard):
        open_contexts(tmp_path / "out", "train").plan()


def test_what_is_no_histories_is_refused(out, tmp_path):
    with pytest.raises(InputError, match="no such directory"):
        open_contexts(tmp_path / "nothing")
    with raised(InputError, setting="split", value="dev"):
        open_contexts(out, "dev")
    with pytest.raises(SettingsError, match="context_tokens"):
        open_contexts(out, context_tokens=1)
    with pytest.raises(
        SettingsError, match="verify is 'sometimes'; expected one of first_touch, never"
    ):
        open_contexts(out, verify="sometimes")
    with pytest.raises(IndexError, match="position -1"):
        open_contexts(out).batch([-1])


@pytest.mark.parametrize("format_", ["array_record", "arrow"])
def test_facts_of_many_blobs_are_those_of_opened_rows(out, mapped, format_):
    rows = open_contexts(out if format_ == "array_record" else mapped, "train").rows
    numbers = np.random.default_rng(0).permutation(len(rows)).tolist()
    opened = rows.open(numbers)

    assert rows.row_sizes(numbers).tolist() == [
        list(facts_of(opened[number])) for number in numbers
    ]
    assert rows.row_sizes([]).shape == (0, 5)


@pytest.mark.parametrize("peers", [(0, 0), (3, 2), (200, 100), (0, 4), (70_000, 0)])
def test_facts_of_any_blobs_are_those_of_opened_rows(peers):
    encoded = encode_rows(
        random_rows(np.random.default_rng(0), Sizes([5, 1, 30, 2000, 7, 3], *peers))
    )
    blobs = encoded.blobs(np.arange(6))
    opened = decode_rows(blobs, ["row"] * len(blobs))

    assert sizes_of_blobs(blobs, ["row"] * 6).tolist() == [list(facts_of(row)) for row in opened]


def test_blobs_that_are_no_rows_are_named():
    encoded = encode_rows(random_rows(np.random.default_rng(0), Sizes([5, 9, 30], 4, 2)))
    blobs = encoded.blobs(np.arange(3))

    for damaged in (
        blobs[1][:40],
        blobs[1][:-8],
        b"",
        b"X" + blobs[1][1:],
        blobs[1] + bytes(8),
        bytes(64),
    ):
        with raised(CorruptShard, path="b"):
            sizes_of_blobs([blobs[0], damaged, blobs[2]], ["a", "b", "c"])


def test_the_command_says_the_same_as_the_plan(out):
    def said(*arguments):
        return CliRunner().invoke(app, ["histories", "plan", *map(str, arguments)])

    plan = open_contexts(out, "train", rows="measurements").plan()
    assert json.loads(said(out, "--rows", "measurements", "--json").stdout) == asdict(plan)
    assert said(out, "--rows", "measurements").stdout.strip() == str(plan)
    wrong = said(out, "--rows", "all")
    assert isinstance(wrong.exception, SettingsError)
    assert "rows is 'all'; expected one of uniform, measurements" in str(wrong.exception)
