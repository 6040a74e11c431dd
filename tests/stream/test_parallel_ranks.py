"""Where several processes make one replica of a model: they read the same batches, and replicas share out the rows."""

import json
from itertools import chain

import pytest
import torch
from parallel_rank_cases import deliver_on_process
from rank_processes import run_ranks
from torch_cases import ROWS

pytestmark = pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()),
    reason="needs torch with gloo",
)

PROCESSES = 4
EVERY = list(range(sum(ROWS)))


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    run_ranks(deliver_on_process, PROCESSES, str(folder), PROCESSES)
    return [
        json.loads((folder / f"process-{process}.json").read_text()) for process in range(PROCESSES)
    ]


def flat(parts):
    return list(chain.from_iterable(parts))


@pytest.mark.smoke("workers")
@pytest.mark.parametrize("title", ["before", "after", "same", "workers"])
def test_processes_of_one_replica_read_the_same_batches(records, title):
    assert [0, 0, 1, 1] == [record["replica"] for record in records]
    assert records[0][title] == records[1][title]
    assert records[2][title] == records[3][title]
    assert set(flat(records[0][title])).isdisjoint(flat(records[2][title]))


def test_replicas_share_out_every_row_once(records):
    replicas = [records[0], records[2]]

    assert EVERY == sorted(
        row for each in replicas for row in flat(each["before"]) + flat(each["after"])
    )
    assert EVERY == sorted(row for each in replicas for row in flat(each["workers"]))
    assert len({len(record["before"]) + len(record["after"]) for record in records}) == 1


def test_a_checkpoint_is_the_same_on_every_process_and_resumes_exactly(records):
    assert all(record["one state"] for record in records)
    assert [record["after"] for record in records] == [record["same"] for record in records]


def test_a_mesh_that_the_stream_is_not_told_of_is_refused_on_every_process(records):
    for record in records:
        assert "of dimension 'tp' of a device mesh hold one replica" in record["forgotten"]
        assert 'data_dims="dp"' in record["forgotten"]


@pytest.mark.slow
def test_a_checkpoint_resumes_with_other_sizes_of_replicas(records):
    seen = sorted(flat(records[0]["before"]) + flat(records[2]["before"]))
    rest = sorted(set(EVERY) - set(seen))

    assert rest == sorted(row for record in records for row in flat(record["no pairs"]))
    for record in records:  # all four are one replica now: each reads all that is left
        assert rest == sorted(flat(record["one replica"]))
