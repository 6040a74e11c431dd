"""A batch that was sent from a worker is the batch that was made there, in one piece of memory."""

import copy
import multiprocessing
import os
import pickle
import resource
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from headrace.errors import StreamError
from headrace.stream.read.columns import cut, from_table, gather
from headrace.stream.workers.parcel import SharedBatch, TableParcel, UnmadeBatch


def batch_of(rows):
    return {
        "id": torch.arange(rows),
        "small": torch.arange(rows, dtype=torch.int8),
        "matrix": torch.arange(rows * 3, dtype=torch.float64).view(rows, 3),
        "every_other": torch.arange(rows * 2)[::2],
        "flag": torch.arange(rows) % 2 == 0,
        "text": [str(row) for row in range(rows)],
        "lists": [None if row % 5 == 0 else torch.arange(row % 4) for row in range(rows)],
        "objects": [{"a": row} for row in range(rows)],
        "nothing": torch.empty(0),
        "half": torch.arange(rows, dtype=torch.bfloat16),
    }


def assert_same(got, expected):
    assert type(got) is dict
    assert list(got) == list(expected)
    for name, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert got[name].dtype == value.dtype, name
            assert torch.equal(got[name], value), name
        elif name == "lists":
            pairs = zip(got[name], value, strict=True)
            assert all(a is b is None or torch.equal(a, b) for a, b in pairs), name
        else:
            assert got[name] == value, name


@pytest.mark.parametrize("rows", [1, 7, 40_000])
def test_a_parcel_arrives_as_the_dict_it_was(rows):
    batch = batch_of(rows)

    got = pickle.loads(ForkingPickler.dumps(copy.copy(SharedBatch(batch))))

    assert_same(got, batch)
    got["id"][0] = 9  # memory of its own
    assert batch["id"][0] == 0


def test_an_empty_batch_and_lists_without_tensors_travel_too():
    for batch in (
        {},
        {"lists": [None, None]},
        {"lists": []},
        {"mixed": [torch.ones(1), torch.ones(1, dtype=torch.int8)]},
    ):
        got = pickle.loads(ForkingPickler.dumps(SharedBatch(batch)))
        assert list(got) == list(batch)
        assert len(got.get("lists", [])) == len(batch.get("lists", []))


class Batches(IterableDataset):
    def __iter__(self):
        yield from (SharedBatch(batch_of(rows)) for rows in (3, 40_000, 3))


@pytest.mark.slow
@pytest.mark.smoke("fork")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_parcels_cross_a_data_loader(method):
    batches = list(
        DataLoader(Batches(), batch_size=None, num_workers=1, multiprocessing_context=method)
    )

    for got, rows in zip(batches, (3, 40_000, 3), strict=True):
        assert_same(got, batch_of(rows))


class Unpicklable(IterableDataset):
    def __iter__(self):
        yield SharedBatch(batch_of(3))
        yield SharedBatch({**batch_of(3), "odd": [lambda: None]})
        yield SharedBatch(batch_of(4))


@pytest.mark.slow
def test_a_batch_that_cannot_be_pickled_is_an_error_in_the_loop_and_never_a_wait_without_end():
    batches = iter(DataLoader(Unpicklable(), batch_size=None, num_workers=1, timeout=120))
    assert_same(next(batches), batch_of(3))
    with pytest.raises(
        StreamError, match=r"worker process \d+: column 'odd': a batch cannot be sent .* columns="
    ):
        next(batches)
    assert_same(next(batches), batch_of(4))


class NoMoreFiles(IterableDataset):
    """Large batches from a worker that may open no more files, which shared memory needs."""

    def __iter__(self):
        yield SharedBatch(batch_of(3))
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = os.dup(0)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, most))
        with pytest.raises(OSError, match="Too many open files"):
            os.dup(0)
        yield SharedBatch(batch_of(40_000))
        yield SharedBatch(batch_of(5))


@pytest.mark.slow
def test_without_shared_memory_the_bytes_travel_in_the_message():
    batches = list(DataLoader(NoMoreFiles(), batch_size=None, num_workers=1, timeout=120))

    for got, rows in zip(batches, (3, 40_000, 5), strict=True):
        assert_same(got, batch_of(rows))


def test_a_slice_of_a_table_is_sent_without_the_rows_beside_it():
    table = pa.table(
        {
            "n": range(100_000),
            "text": [str(n) for n in range(100_000)],
            "list": [[n] for n in range(100_000)],
        }
    )
    part = table.slice(70_000, 10)

    data = ForkingPickler.dumps(copy.copy(TableParcel(part)))

    assert len(data) < 10_000
    assert pickle.loads(data).equals(part)


class Tables(IterableDataset):
    def __iter__(self):
        table = pa.table({"n": range(10)})
        yield from (TableParcel(table.slice(start, 5)) for start in (0, 5))


def test_tables_cross_a_data_loader():
    batches = list(DataLoader(Tables(), batch_size=None, num_workers=1, timeout=120))

    assert [batch.to_pydict() for batch in batches] == [
        {"n": [0, 1, 2, 3, 4]},
        {"n": [5, 6, 7, 8, 9]},
    ]


def with_process(columns):
    """Makes a batch that says where it was made."""
    return {**columns, "process": os.getpid()}


def receive(connection):
    connection.send(connection.recv()["process"])


def test_columns_are_made_a_batch_by_the_process_that_receives_them():
    here, there = multiprocessing.Pipe()
    receiver = multiprocessing.get_context("fork").Process(target=receive, args=(there,))
    receiver.start()
    there.close()
    here.send(UnmadeBatch({"row": np.arange(3)}, with_process))

    assert receiver.pid == here.recv()
    receiver.join()


@pytest.mark.parametrize("rows", [1, 7, 40_000])
def test_columns_arrive_as_they_were_gathered(rows):
    pool = pa.table(
        {
            "text": [None if row % 3 == 0 else f"{row} é" for row in range(2 * rows)],
            "ids": [None if row % 5 == 0 else list(range(row % 4)) for row in range(2 * rows)],
            "nested": [[{"a": str(row)}] for row in range(2 * rows)],
            "number": [float("nan") if row % 7 == 0 else row for row in range(2 * rows)],
        }
    )
    gathered = gather([from_table(pool, arrow=False, where="here")], None)
    columns = cut(gathered, rows // 2, rows // 2 + rows)

    got = pickle.loads(ForkingPickler.dumps(UnmadeBatch(columns, with_process)))

    assert os.getpid() == got.pop("process")
    assert list(columns) == list(got)
    for name in ("text", "nested"):
        assert columns[name].equals(got[name])
    assert [row if row is None else row.tolist() for row in columns["ids"]] == [
        row if row is None else row.tolist() for row in got["ids"]
    ]
    assert columns["number"].tobytes() == got["number"].tobytes()
    got["number"][:] = 0  # memory of its own
    got["ids"].values[:] = 0


def test_columns_are_sent_without_the_pool_they_are_cut_from():
    pool = pa.table(
        {"text": [str(row) for row in range(100_000)], "ids": [[row] * 3 for row in range(100_000)]}
    )
    columns = cut(from_table(pool, arrow=False, where="here"), 70_000, 70_010)

    assert len(ForkingPickler.dumps(UnmadeBatch(columns, with_process))) < 10_000
