"""A transform runs over every batch where it is made; its errors name it, lose nothing and leave no thread."""

import functools
import os
import pickle
import subprocess
import sys
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from option_cases import (
    ALONE,
    KINDS,
    ROWS,
    Doubled,
    Kinds,
    as_pair,
    fail_at_row_fifty,
    forget,
    kinds_dataset,
    real_rows,
    to_rows_only,
)
from stream_cases import Numbers, index_of, ranks

import headrace
from headrace.errors import SettingsError, StreamError
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.read.transform import name_of
from raised import raised

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

TOTAL = sum(ROWS)
NUMBERS = ["row", "half"]


def loader_of(transform, *, topology=ALONE, rows=ROWS, **settings):
    settings = StreamOptions(
        **{"batch_size": 4, "shuffle": True, "columns": NUMBERS, **settings}, transform=transform
    )
    return StreamLoader(index_of(rows, schema=KINDS), Kinds(rows), settings, topology=topology)


def test_what_it_returns_is_what_the_loop_receives():
    plain = list(loader_of(None))
    pairs = list(loader_of(as_pair))
    doubled = list(loader_of(Doubled("row")))

    assert [batch["row"].tolist() for batch in plain] == [row.tolist() for row, _ in pairs]
    assert [(batch["row"] * 2).tolist() for batch in plain] == [
        batch["twice"].tolist() for batch in doubled
    ]


@pytest.mark.parametrize("batch_format", ["torch", "numpy", "arrow", "rows"])
def test_it_is_given_the_batch_in_the_form_asked_for_with_the_mask(batch_format):
    seen = []
    for topology in ranks(2):
        loader = loader_of(
            lambda batch: (seen.append(batch), 1)[1], topology=topology, batch_format=batch_format
        )
        assert [1] * len(loader) == list(loader)

    kinds = {"torch": dict, "numpy": dict, "arrow": pa.Table, "rows": list}
    assert {kinds[batch_format]} == {type(batch) for batch in seen}
    assert sorted(row for batch in seen for row in real_rows(batch)) == list(range(TOTAL))


@pytest.mark.slow
@pytest.mark.smoke("fork-2")
@pytest.mark.parametrize(("method", "workers"), [("fork", 2), ("spawn", 1)])
def test_it_runs_in_the_workers_and_its_batches_arrive(method, workers):
    options = {"columns": NUMBERS, "remainder": "drop"}
    plain = [
        batch["row"].tolist()
        for batch in kinds_dataset(workers, **options).data_loader(method="fork")
    ]
    doubled = list(
        kinds_dataset(workers, transform=Doubled("row"), **options).data_loader(method=method)
    )

    assert plain == [batch["row"].tolist() for batch in doubled]
    assert all(torch.equal(batch["twice"], batch["row"] * 2) for batch in doubled)
    assert {"row", "half", "twice", "valid"} == set(doubled[0])


def test_it_runs_in_the_process_of_the_worker():
    here = kinds_dataset(1, transform=lambda batch: os.getpid(), columns=NUMBERS)

    assert os.getpid() not in set(here.data_loader(method="fork"))


def test_tables_and_pairs_it_makes_cross_from_workers():
    tables = list(
        kinds_dataset(1, transform=to_rows_only, batch_format="arrow").data_loader(method="fork")
    )
    pairs = list(kinds_dataset(1, transform=as_pair, columns=NUMBERS).data_loader(method="fork"))

    assert sorted(row for table in tables for row in table["row"].to_pylist()) == list(range(TOTAL))
    assert all(isinstance(row, torch.Tensor) and len(row) == len(half) for row, half in pairs)


def test_it_runs_ahead_of_the_loop_in_another_thread(own_threads):
    """The loop holds the first batch until the second one is made: inside its own `next` that would never be."""
    began, seen = threading.Event(), []

    def note(batch):
        seen.append(threading.current_thread())
        if len(seen) == 2:
            began.set()
        return batch

    batches = iter(loader_of(note))
    next(batches)

    assert began.wait(120)
    assert threading.current_thread() not in seen
    batches.close()
    assert [] == own_threads.left()


@pytest.mark.parametrize("prefetch_bytes", [0, 1 << 25])
def test_a_state_counts_what_the_loop_received_and_not_what_was_made_ahead(prefetch_bytes):
    made = []
    ahead = loader_of(lambda batch: (made.append(1), batch)[1], prefetch_bytes=prefetch_bytes)
    plain = loader_of(None)
    for received, (_, _) in enumerate(zip(plain, ahead, strict=True), start=1):
        assert received <= len(made) <= received + (4 if prefetch_bytes else 1)
        assert (received, plain.state_dict()) == (ahead.delivered_count, ahead.state_dict())


def test_claimed_rows_that_were_made_ahead_are_not_received(tmp_path):
    pq.write_table(pa.table({"row": range(400)}), tmp_path / "a.parquet", row_group_size=20)
    opened = headrace.open(tmp_path / "a.parquet", cache_dir=tmp_path / "cache")
    made, is_ahead = [], threading.Event()

    def transform(batch):
        made.append(1)
        if len(made) > 7:
            is_ahead.set()
        return batch

    options = {"batch_size": 8, "shuffle": True, "distribution": "dynamic", "topology": ALONE}
    stream = opened.stream(transform=transform, **options)
    batches = iter(stream)
    received = [row for _ in range(4) for row in real_rows(next(batches))]
    first = stream.state_dict()
    received += [row for _ in range(3) for row in real_rows(next(batches))]
    assert is_ahead.wait(120)  # before the state is taken
    state, rows = stream.state_dict(), stream.stats().rows
    batches.close()
    rest = opened.stream(**options)
    rest.load_state_dict(state)

    assert 56 == rows == len(received)
    assert first != state
    assert list(range(400)) == sorted(
        [*received, *(row for batch in rest for row in real_rows(batch))]
    )


def test_what_it_raises_comes_after_the_batches_before_it_were_received():
    def fail_late(batch):
        if len(seen) == 7:
            raise ZeroDivisionError("the eighth")
        seen.append(1)
        return batch

    seen, received = [], 0
    loader = loader_of(fail_late)
    with pytest.raises(StreamError, match=r"batch 7 \(from 0, in this pass\).*the eighth"):
        for _ in loader:
            received += 1

    assert 7 == received == loader.delivered_count


def test_a_block_that_cannot_be_read_fails_in_its_place_and_ends_all_threads(own_threads):
    class Damaged(Kinds):
        def __call__(self, block, columns):
            if block == 4:
                raise OSError("gone")
            return super().__call__(block, columns)

    options = StreamOptions(batch_size=4, columns=NUMBERS, transform=as_pair)
    received = []
    with pytest.raises(StreamError, match="gone"):
        received.extend(
            row
            for rows, _ in StreamLoader(index_of(ROWS, schema=KINDS), Damaged(), options)
            for row in rows.tolist()
        )

    assert list(range(len(received))) == received
    assert [] == own_threads.left()


def test_its_error_names_it_is_chained_and_loses_nothing(own_threads):
    loader = loader_of(fail_at_row_fifty)
    received = []
    with pytest.raises(StreamError, match=r"rank 0 of 1: batch \d+ \(from 0") as caught:
        received.extend(row for batch in loader for row in batch["row"].tolist())

    assert (
        "transform option_cases.fail_at_row_fifty raised ZeroDivisionError: row 50 is not liked"
        in str(caught.value)
    )
    assert f"batch {len(received) // 4} " in str(caught.value)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert own_threads.left() == []

    mended = loader_of(None)
    mended.load_state_dict(loader.state_dict())
    received += [row for batch in mended for row in batch["row"].tolist()]
    assert sorted(received) == list(range(TOTAL))


@pytest.mark.parametrize("number", range(0, 24, 5))
def test_a_stop_with_a_transform_resumes_exactly(number):
    whole = [batch["twice"].tolist() for batch in loader_of(Doubled("row"))]
    first, second = loader_of(Doubled("row")), loader_of(Doubled("row"))
    batches = iter(first)
    begun = [next(batches)["twice"].tolist() for _ in range(min(number, len(whole)))]
    second.load_state_dict(first.state_dict())

    assert whole == begun + [batch["twice"].tolist() for batch in second]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "workers"), [("fork", 2), ("spawn", 1)])
def test_its_error_in_a_worker_reaches_the_loop_with_worker_and_cause(method, workers):
    dataset = kinds_dataset(workers, transform=fail_at_row_fifty, columns=NUMBERS)
    with pytest.raises(StreamError) as caught:
        list(dataset.data_loader(method=method))

    message = str(caught.value)
    assert "rank 0 of 1, worker" in message
    assert (
        "transform option_cases.fail_at_row_fifty raised ZeroDivisionError: row 50 is not liked"
        in message
    )
    assert "Traceback" in message  # the worker's own, with the line of the transform


def test_a_forgotten_return_is_an_error_and_no_early_end(own_threads):
    with raised(StreamError, remedy="end it with `return batch`"):
        list(loader_of(forget))
    assert own_threads.left() == []


def test_stop_iteration_in_a_transform_does_not_end_the_pass():
    with pytest.raises(StreamError, match="raised StopIteration"):
        list(loader_of(lambda batch: next(iter(()))))


def test_leaving_the_loop_early_ends_the_threads(own_threads):
    for _ in loader_of(Doubled("row")):
        break

    assert own_threads.left() == []


def test_a_transform_that_cannot_travel_is_named_before_workers_start():
    dataset = kinds_dataset(1, transform=lambda batch: batch)
    with raised(SettingsError, setting="transform", remedy="start the workers by fork") as caught:
        list(dataset.data_loader(method="spawn"))

    assert "top level of a module" in str(caught.value)
    assert len(pickle.dumps(kinds_dataset(1, transform=functools.partial(Doubled("row"))))) > 0


@pytest.mark.slow
def test_a_transform_of_an_interactive_session_is_refused_where_workers_cannot_have_it():
    code = (
        "from option_cases import kinds_dataset\n"
        "def mine(batch): return batch\n"
        "for batch in kinds_dataset(1, transform=mine, columns=['row']).data_loader(method='spawn'): pass"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )

    assert "SettingsError: transform __main__.mine cannot be sent" in done.stderr
    assert "interactive session" in done.stderr


def test_names_of_transforms():
    assert name_of(as_pair) == "option_cases.as_pair"
    assert name_of(Doubled("row")) == "option_cases.Doubled"
    assert name_of(functools.partial(as_pair)) == "option_cases.as_pair"
    assert name_of(np.asarray).endswith("asarray")


def test_with_quarantine_filling_rows_are_false_in_the_mask_it_sees():
    class Damaged:
        def __call__(self, block, columns):
            if block == 2:
                raise OSError("gone")
            return Numbers(ROWS)(block, columns)

    options = StreamOptions(
        batch_size=4,
        on_bad_block="quarantine",
        quarantine_limit=1.0,
        transform=lambda batch: batch["row"][batch["valid"]],
    )
    rows = torch.cat(list(StreamLoader(index_of(ROWS), Damaged(), options, topology=ALONE)))

    assert rows.tolist() == [*range(17), *range(57, TOTAL)]
