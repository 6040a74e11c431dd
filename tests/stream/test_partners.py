"""Of the processes that hold one replica of a model, one on each machine reads, and the others get its batches."""

import json
import os
import sys
from itertools import chain

import pytest
import torch
from partner_cases import (
    EVERY,
    STOP,
    kill_one,
    share_on_machines,
    share_passes,
    stream_of,
    write_bins,
)
from partner_cases import real as real_rows
from rank_processes import end_ranks, run_ranks

from headrace.stream.ranks.topology import Topology

pytestmark = [
    pytest.mark.skipif(
        not (torch.distributed.is_available() and torch.distributed.is_gloo_available()),
        reason="needs torch with gloo",
    ),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs sockets of Linux"),
    pytest.mark.slow,
]

PROCESSES = 4
PASSES = ("epoch 0", "a thread that prefetches", "workers", "arrow", "rows")


def told_in(folder):
    return [json.loads(path.read_text()) for path in sorted(folder.glob("process-*.json"))]


def left_behind(records):
    names = os.listdir("/dev/shm")
    return [name for name in names if any(f"_{record['pid']}_" in name for record in records)]


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    folder = tmp_path_factory.mktemp("partners")
    write_bins(folder / "packed")
    run_ranks(share_passes, PROCESSES, PROCESSES, str(folder))
    return told_in(folder)


@pytest.fixture(scope="module")
def alone():
    """The batches of each rank in a process of its own, and the blocks that it reads."""
    streams = [stream_of(Topology(rank=rank, world_size=2)) for rank in range(2)]
    rows = [[real_rows(batch) for batch in stream] for stream in streams]
    return rows, [stream.stats().blocks_read for stream in streams]


@pytest.mark.parametrize("title", PASSES)
def test_a_block_is_decoded_once_for_the_partners_of_a_rank(records, alone, title):
    rows, blocks = alone
    assert [0, 0, 1, 1] == [record["rank"] for record in records]
    for record in records:
        assert record[title] == rows[record["rank"]]
    for rank in range(2):
        pair = sorted(record[f"{title} blocks"] for record in records if record["rank"] == rank)
        assert pair == [0, blocks[rank]]


def test_who_stays_gets_the_rest_of_a_pass_that_its_partner_left(records):
    for left, stayed in (records[:2], records[2:]):
        assert len(left["begun"]) == STOP
        assert left["begun"] == stayed["begun"][:STOP]
    rows = chain.from_iterable(records[1]["begun"] + records[3]["begun"])
    assert sorted(rows) == list(range(EVERY))


def test_who_pulls_reads_the_rest_itself_when_its_reader_has_closed_the_stream(records, alone):
    rows, _ = alone
    for pair in (records[:2], records[2:]):
        left, stayed = sorted((record["closed"] for record in pair), key=len)
        assert left == stayed[:STOP]
        assert stayed == rows[pair[0]["rank"]]


def test_a_state_is_one_for_all_and_resumes_on_another_mesh(records):
    assert all(record["state"] == records[0]["state"] for record in records)
    for record in records:
        stayed = records[2 * record["rank"] + 1]
        assert record["the same replicas"] == stayed["begun"][STOP:]
        rest = chain.from_iterable(records[1]["begun"][STOP:] + records[3]["begun"][STOP:])
        assert sorted(chain.from_iterable(record["one replica"])) == sorted(rest)
    assert sorted(record["one replica blocks"] > 0 for record in records) == [False] * 3 + [True]


def test_an_error_of_reading_reaches_all_partners(records):
    kinds = []
    for record in records:
        kind, row, words = record["torn"]
        kinds.append(kind)
        assert (kind, row) in [("CorruptShard", 17), ("StreamError", None)]
        assert "part-00008.parquet block 0: block 8: row 17: its checksum is another" in words
        # a partner may hear of it from the group before it asks for the batch
        assert words.startswith("rank 0 of 1: " if kind == "CorruptShard" else "process ")
    assert "CorruptShard" in kinds


def test_torch_cuts_whole_sequences_with_labels_that_are_shifted_already(records):
    for record in records:
        for whole, parts in record["cut"]:
            assert whole == parts
            for token, label, place in whole:
                assert label == -100 or (label == token + 1 and token % 100 not in (2, 4))
                assert place == 0 or token % 100 not in (0, 3, 5) or not token
    assert records[0]["cut"] == records[1]["cut"] != records[2]["cut"]


@pytest.mark.parametrize("who", ["reader", "partner"])
def test_a_process_that_is_killed_is_named_and_leaves_nothing(tmp_path, who):
    codes = end_ranks(kill_one, 3, 3, str(tmp_path), who)
    pid = int((tmp_path / "killed").read_text())
    others = told_in(tmp_path)

    assert sorted(codes) == [-9, 0, 0]
    assert [(each["kind"], each["gone"]) for each in others] == [("RankGone", pid)] * 2
    assert left_behind([*others, {"pid": pid}]) == []


def test_one_process_of_each_machine_reads(tmp_path):
    run_ranks(share_on_machines, PROCESSES, PROCESSES, str(tmp_path))
    told = told_in(tmp_path)
    rows = [real_rows(batch) for batch in stream_of(Topology(rank=0, world_size=1))]

    assert [rows] * PROCESSES == [record["rows"] for record in told]
    for machine in (told[:2], told[2:]):
        assert [False, True] == sorted(record["blocks"] > 0 for record in machine)
    assert told[0]["begun"] == told[1]["begun"] == told[2]["begun"]
    assert sorted(chain.from_iterable(told[0]["begun"])) == list(range(EVERY))
    assert told[3]["begun"] == told[0]["begun"][:STOP]
    said = [record["seed"] for record in told]
    assert any("seed is " in each and "1 on process 1" in each for each in said)


def test_nothing_is_left_in_shared_memory(records):
    assert left_behind(records) == []
