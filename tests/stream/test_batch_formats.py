"""The same rows, counts and masks in every form of a batch, from one process and from workers."""

import datetime
import itertools

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from option_cases import KINDS, ROWS, Kinds, items_of, kinds_dataset, real_rows, values_of
from stream_cases import index_of, ranks
from torch.utils.data import DataLoader

import headrace
from headrace.errors import SettingsError
from headrace.stream.audit.rows import audit
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.workers.parcel import whole_batch

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

FORMATS = ("torch", "numpy", "arrow", "rows")
KIND = {"torch": dict, "numpy": dict, "arrow": pa.Table, "rows": list}
TOTAL = sum(ROWS)
NULLABLE = pa.schema([field.with_nullable(True) for field in KINDS])
BATCH = 4


def check_pass(batches, *, batch_format, remainder, consumers):
    """The batches of all consumers of a pass: form, sizes, masks and rows."""
    step_rows = consumers * BATCH
    steps = -(-TOTAL // step_rows) if remainder == "pad" else TOTAL // step_rows
    rows = [row for batch in batches for row in real_rows(batch)]

    assert {KIND[batch_format]} == {type(batch) for batch in batches}
    assert steps * consumers == len(batches)
    assert {BATCH} == {items_of(batch) for batch in batches}
    assert all("valid" in names_of(batch) for batch in batches)
    assert len(set(rows)) == len(rows) == min(TOTAL, steps * step_rows)
    for batch in batches:
        check_values(batch, batch_format)


def names_of(batch):
    return (
        batch.column_names
        if isinstance(batch, pa.Table)
        else list(batch[0] if isinstance(batch, list) else batch)
    )


def check_values(batch, batch_format):
    """Every value is that of its row, in the type of the form."""
    if batch_format == "rows":
        for row in batch:
            assert values_of(row["row"]) == {
                name: value for name, value in row.items() if name != "valid"
            }
            assert type(row.get("valid", True)) is bool
        return
    if batch_format == "arrow":
        wanted = pa.Table.from_pylist(
            [values_of(row) for row in batch["row"].to_pylist()], schema=NULLABLE
        )
        assert wanted.equals(batch.select(KINDS.names))
        return
    wanted = [values_of(row) for row in batch["row"].tolist()]
    assert [row["text"] for row in wanted] == list(batch["text"])
    assert [row["point"] for row in wanted] == list(batch["point"])
    halves = np.array([np.nan if row["half"] is None else row["half"] for row in wanted])
    assert np.array_equal(halves, np.asarray(batch["half"]), equal_nan=True)
    assert [row["ids"] for row in wanted] == [
        None if ids is None else ids.tolist() for ids in batch["ids"]
    ]
    days = np.array([row["day"] for row in wanted], "datetime64[D]")
    times = np.array([row["time"].replace(tzinfo=None) for row in wanted], "datetime64[us]")
    if batch_format == "torch":
        assert batch["row"].dtype == batch["day"].dtype == batch["time"].dtype == torch.int64
        days, times = days.astype(np.int64), times.astype(np.int64)
        assert "valid" not in batch or batch["valid"].dtype == torch.bool
    else:
        assert (days.dtype, times.dtype, np.dtype(object)) == (
            batch["day"].dtype,
            batch["time"].dtype,
            batch["text"].dtype,
        )
        assert "valid" not in batch or batch["valid"].dtype == np.bool_
    assert days.tolist() == batch["day"].tolist()
    assert times.tolist() == batch["time"].tolist()


@pytest.mark.parametrize("batch_format", FORMATS)
@pytest.mark.parametrize("remainder", ["pad", "drop"])
@pytest.mark.parametrize("shuffle", [True, False])
def test_one_process_a_rank_gives_the_same_rows_counts_and_masks(batch_format, remainder, shuffle):
    settings = StreamOptions(
        batch_size=BATCH,
        batch_format=batch_format,
        remainder=remainder,
        shuffle=shuffle,
        shuffle_rows=20,
    )
    index = index_of(ROWS, schema=KINDS)
    loaders = [StreamLoader(index, Kinds(), settings, topology=rank) for rank in ranks(3)]
    batches = [batch for loader in loaders for batch in loader]

    check_pass(batches, batch_format=batch_format, remainder=remainder, consumers=3)
    assert len({len(loader) for loader in loaders}) == 1


@pytest.mark.slow
@pytest.mark.smoke("fork")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_two_ranks_of_two_workers_give_the_same_rows_counts_and_masks(method):
    formats = (
        FORMATS if method == "fork" else FORMATS[:1]
    )  # processes that are spawned take seconds to begin
    cases = list(itertools.product(formats, ("pad", "drop"), ranks(2)))
    delivered = []
    for batch_format, remainder, rank in cases:
        dataset = kinds_dataset(2, batch_format=batch_format, remainder=remainder, topology=rank)
        loader = DataLoader(
            dataset,
            batch_size=None,
            num_workers=2,
            multiprocessing_context=method,
            collate_fn=whole_batch,
        )
        delivered.append(list(loader))

    for first in range(0, len(cases), 2):
        batch_format, remainder, _ = cases[first]
        both = delivered[first] + delivered[first + 1]
        check_pass(both, batch_format=batch_format, remainder=remainder, consumers=2)
    rows = [[real_rows(batch) for batch in part] for part in delivered]
    assert all(
        rows[case] == rows[case % 4] for case in range(len(cases))
    )  # the form changes no order


@pytest.mark.smoke("torch-1", "rows-1", "arrow-0")
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("batch_format", FORMATS)
def test_exact_ends_with_a_shorter_batch_of_real_rows(batch_format, workers):
    batches = list(
        kinds_dataset(workers, batch_format=batch_format, remainder="exact").data_loader(
            method="fork"
        )
    )

    assert [BATCH] * (TOTAL // BATCH) + [TOTAL % BATCH] == [items_of(batch) for batch in batches]
    assert [items_of(batch) for batch in batches] == [len(real_rows(batch)) for batch in batches]
    assert sorted(row for batch in batches for row in real_rows(batch)) == list(range(TOTAL))
    for batch in batches:
        check_values(batch, batch_format)


@pytest.mark.parametrize("batch_format", FORMATS)
def test_a_rank_without_rows_of_its_own_gets_filling_rows_alone(batch_format):
    settings = StreamOptions(batch_size=2, batch_format=batch_format)
    index = index_of((2, 1), schema=KINDS)
    batches = [
        list(StreamLoader(index, Kinds((2, 1)), settings, topology=rank)) for rank in ranks(5)
    ]

    assert [1] * 5 == [len(part) for part in batches]
    assert [[0], [1], [2], [], []] == [real_rows(part[0]) for part in batches]
    assert {2} == {items_of(part[0]) for part in batches}


@pytest.mark.parametrize("batch_format", FORMATS)
def test_the_audit_counts_every_form(batch_format):
    watched = audit(
        kinds_dataset(0, batch_format=batch_format, remainder="pad"), key="row", expected=TOTAL
    )
    for _ in watched:
        pass
    twice = audit([batch for batch in watched for _ in range(2)], key="row", expected=TOTAL)
    for _ in twice:
        pass

    assert watched.report().ok
    assert TOTAL == twice.report().duplicates == twice.report().distinct


def test_a_foreign_loader_keeps_batches_with_whole_batch():
    dataset = kinds_dataset(0, batch_format="numpy")
    with pytest.raises(
        TypeError, match="datetime64"
    ):  # what torch's own conversion makes of a date
        list(DataLoader(dataset, batch_size=None))
    batches = list(DataLoader(dataset, batch_size=None, collate_fn=whole_batch))

    assert {np.ndarray} == {
        type(column) for batch in batches for name, column in batch.items() if name != "ids"
    }


def test_rows_of_another_process_can_be_resumed():
    first = kinds_dataset(2, batch_format="rows", remainder="pad")
    begun = [real_rows(batch) for batch in itertools.islice(first.data_loader(method="fork"), 5)]
    second = kinds_dataset(0, batch_format="arrow", remainder="pad")
    second.load_state_dict(first.state_after(5))
    rows = [row for batch in begun for row in batch] + [
        row for batch in second for row in real_rows(batch)
    ]

    assert sorted(rows) == list(range(TOTAL))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"transform": "double"}, "transform is 'double'; give a function"),
        ({"memory": "gpu"}, "memory is 'gpu'; expected one of pageable, pinned"),
        ({"memory": "pinned", "batch_format": "rows"}, 'batch_format="rows" has none'),
        ({"batch_format": "dicts"}, "expected one of torch, numpy, arrow, rows"),
    ],
)
def test_a_wrong_option_is_refused(settings, message):
    with pytest.raises(SettingsError, match=message):
        StreamOptions(batch_size=1, **settings)


def test_dates_of_rows_are_python_dates():
    row = next(iter(kinds_dataset(0, batch_format="rows", shuffle=False, lanes=1)))[1]

    assert datetime.date(2020, 1, 2) == row["day"]
    assert datetime.datetime(2021, 1, 1, 0, 0, 1, 1, tzinfo=datetime.UTC) == row["time"]
    assert type(row["time"]) is datetime.datetime


@pytest.mark.parametrize("source", ["parquet", "arrow", "table"])
def test_what_a_loop_writes_to_a_batch_is_in_no_other_one(source, tmp_path):
    """Batches in file order may be cut from decoded blocks."""
    table = pa.table({"row": np.arange(6000), "share": np.arange(6000) / 8})
    data = tmp_path / "data"
    data.mkdir()
    if source == "arrow":
        with pa.ipc.new_file(str(data / "part.arrow"), table.schema) as writer:
            writer.write_table(table, max_chunksize=1000)
    else:
        pq.write_table(table, data / "part.parquet", row_group_size=1000)
    dataset = headrace.open(table if source == "table" else data, cache_dir=tmp_path / "cache")
    stream = dataset.stream(batch_size=64, shuffle=False, batch_format="numpy")
    for _ in range(2):
        rows = []
        for batch in stream:
            rows.append(batch["row"].copy())
            for name in ("row", "share"):
                assert batch[name].flags.c_contiguous
                batch[name].fill(-1)

        assert np.concatenate(rows).tolist() == list(range(6000))
    assert table["row"].to_numpy().tolist() == list(range(6000))
