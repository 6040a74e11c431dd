"""The sharded iterable dataset: what its specification shows, and what the specification's own sketch gets wrong."""

import json
import random
from itertools import islice, pairwise

import numpy as np
import pandas
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch
from tabular_cases import CONFIG, UNEVEN, Telling, ids, loader_of, real_ids, table_of, write_shards

import headrace
from headrace.errors import HeadraceError, InputError, SettingsError, StreamError
from headrace.stream.loader.stateful import stream_state
from headrace.stream.ranks.topology import Topology
from headrace.tabular.dataset import PipelineIterableDataset
from raised import raised

# The number of workers is the test's subject, whatever machine it runs on.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

TOTAL = sum(UNEVEN)
ALONE = Topology(rank=0, world_size=1)
SKIPPED = "1 of 7 files has no rows and is skipped: part-00001.parquet"


@pytest.fixture
def shards(tmp_path):
    write_shards(tmp_path)
    return tmp_path


def group_of(data, world_size, **settings):
    topologies = [Topology(rank=rank, world_size=world_size) for rank in range(world_size)]
    return [
        PipelineIterableDataset(CONFIG, data, topology=topology, **settings)
        for topology in topologies
    ]


def dataset_of(data, **settings):
    return PipelineIterableDataset(CONFIG, data, topology=ALONE, **settings)


class Measured(torch.utils.data.IterableDataset):
    """A wrapper that asks the dataset in it how long it is."""

    def __init__(self, dataset):
        self._hidden = [dataset]

    def __iter__(self):
        yield len(self._hidden[0])


@pytest.mark.parametrize("batch_size", [None, 4])
def test_the_length_is_refused_where_a_worker_reads_another_dataset(shards, batch_size):
    dataset = dataset_of(shards, batch_size=batch_size)
    loader = torch.utils.data.DataLoader(
        Measured(dataset), batch_size=None, num_workers=1, multiprocessing_context="fork"
    )

    with pytest.raises(SettingsError, match="worker 0 reads Measured"):
        next(iter(loader))


def test_one_process_gets_all_shards_in_order(shards):
    dataset = dataset_of(shards)
    info = dataset.get_shard_distribution_info()

    assert list(range(TOTAL)) == ids(dataset)
    assert TOTAL == len(dataset)
    assert {"id": 3, "label": 1, "text": "text 3", "valid": True} == list(dataset)[3]
    assert {
        "total_shards": 7,
        "shards_per_rank": 6,
        "shards_per_worker": 6,
        "rank": 0,
        "world_size": 1,
        "worker_id": 0,
        "num_workers": 1,
        "assigned_shards": [f"part-{shard:05d}.parquet" for shard in (0, 2, 3, 4, 5, 6)],
    } == info  # part-00001 has no rows, so nobody takes rows from it
    assert [shards / f"part-{shard:05d}.parquet" for shard in range(7)] == dataset.shard_files


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_whole_shards_are_dealt_as_striding_deals_them(tmp_path, ranks):
    total = write_shards(tmp_path, [5] * 10)
    group = group_of(tmp_path, ranks, distribution="round_robin")
    names = [f"part-{shard:05d}.parquet" for shard in range(10)]
    rows = [list(dataset) for dataset in group]

    assert [names[rank::ranks] for rank in range(ranks)] == [
        dataset.get_shard_distribution_info()["assigned_shards"] for dataset in group
    ]
    assert 1 == len({len(part) for part in rows})
    assert list(range(total)) == sorted(row for part in rows for row in ids(part))
    assert headrace.tabular.verify_no_shard_overlap(loader_of(group[-1]), ranks, 0)


def test_the_verdict_knows_every_order(shards, caplog):
    frame = headrace.open(shards)
    blend = headrace.blend({"a": (frame, "all"), "b": (frame, "all")}, weights={"a": 3, "b": 1})
    of_rank_1 = {"topology": Topology(rank=1, world_size=3)}
    dealt = group_of(shards, 3, distribution="by_size", batch_size=8)[1]
    parts = group_of(shards, 3, shuffle_shards=True, samples_per_epoch=2 * TOTAL + 7)[1]
    stopped = frame.torch_dataset(batch_size=4, shuffle=True, topology=ALONE)
    rest = frame.torch_dataset(batch_size=4, shuffle=True, **of_rank_1)
    rest.load_state_dict(stopped.state_after(5))
    mixed = blend.torch_dataset(batch_size=8, shuffle=True, **of_rank_1)

    assert headrace.tabular.verify_no_shard_overlap(
        loader_of(dealt, workers=2, batch_size=None), 3, 2
    )
    assert headrace.tabular.verify_no_shard_overlap(loader_of(parts), 3, 1)
    assert headrace.tabular.verify_no_shard_overlap(loader_of(rest, batch_size=None), 3, 1)
    assert headrace.tabular.verify_no_shard_overlap(loader_of(mixed, batch_size=None), 3, 1)
    assert {SKIPPED} == {record.message for record in caplog.records}
    of_rows = group_of(shards, 3, distribution="by_size")[1]
    assert headrace.tabular.verify_no_shard_overlap(loader_of(of_rows, workers=2), 3, 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shards_", "ranks", "workers"), [(100, 8, 1), (100, 8, 4), (3, 8, 2), (7, 3, 2)]
)
def test_ranks_get_equal_numbers_of_rows_and_every_row_once(tmp_path, shards_, ranks, workers):
    dice = random.Random(shards_ * ranks)
    total = write_shards(tmp_path, [dice.randint(0, 9) for _ in range(shards_)])
    for shuffle in (False, True):
        group = group_of(tmp_path, ranks, shuffle_shards=shuffle)
        rows = [list(dataset) for dataset in group]

        assert (
            {-(-total // ranks)}
            == {len(part) for part in rows}
            == {len(dataset) for dataset in group}
        )
        assert list(range(total)) == sorted(row for part in rows for row in ids(part))
        assert headrace.tabular.verify_no_shard_overlap(
            loader_of(group[-1], workers=workers), ranks, workers
        )


@pytest.mark.slow
@pytest.mark.smoke("None-1-23", "drop-3-24", "None-3-1")
@pytest.mark.parametrize("rows", [0, 1, 23, 24])
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("remainder", [None, "drop"])
def test_len_is_what_comes_for_any_number_of_workers(rows, ranks, remainder):
    for workers in (0, 1, 3):
        parts = []
        for rank in range(ranks):
            dataset = PipelineIterableDataset(
                CONFIG,
                dataframe=table_of(0, rows),
                topology=Topology(rank=rank, world_size=ranks),
                remainder=remainder,
                shuffle_shards=True,
            )
            batches = list(loader_of(dataset, workers=workers, batch_size=4))

            assert len(dataset) == sum(len(batch["id"]) for batch in batches)
            assert len(batches) - len(loader_of(dataset, workers=workers, batch_size=4)) in range(
                max(1, workers)
            )
            parts.append((len(batches), real_ids(batches)))
        delivered = [row for _, part in parts for row in part]

        assert len({count for count, _ in parts}) == 1
        assert len(set(delivered)) == len(delivered)
        assert len(delivered) == (rows // ranks * ranks if remainder == "drop" else rows)


@pytest.mark.smoke("fork-8")
@pytest.mark.parametrize(("method", "batch_size"), [("fork", None), ("spawn", None), ("fork", 8)])
def test_persistent_workers_see_set_epoch(shards, method, batch_size):
    settings = {
        "shuffle_shards": True,
        "batch_size": batch_size,
        "num_workers": 2 if batch_size else None,
    }
    dataset = dataset_of(shards, **settings)
    loader = loader_of(
        dataset, workers=2, batch_size=None if batch_size else 8, method=method, persistent=True
    )
    passes = []
    for epoch in (0, 1, 0):
        dataset.set_epoch(epoch)
        passes.append(real_ids(loader))

    assert passes[0] == passes[2] != passes[1]
    assert list(range(TOTAL)) == sorted(passes[0]) == sorted(passes[1])


def test_orders_of_epochs_and_shares_of_ranks_never_repeat(shards):
    first, other = group_of(shards, 2, shuffle_shards=True)
    orders, shares = [], []
    for epoch in (
        0,
        1,
        2,
        100,
        10000,
    ):  # the sketch's seeds meet at 100 (another worker) and 10000 (another rank)
        for dataset in (first, other):
            dataset.set_epoch(epoch)
            orders.append(ids(dataset))
        shares.append(frozenset(orders[-1]))

    assert len(orders) == len(set(map(tuple, orders)))
    assert len(shares) == len(set(shares))  # nor do the same rows go to the same rank


def test_the_seed_decides_the_order(shards):
    orders = [
        ids(dataset_of(shards, shuffle_shards=True, **seed))
        for seed in ({}, {"seed": 42}, {"seed": 7})
    ]

    assert orders[0] == orders[1] != orders[2]


def test_processors_run_over_rows_and_batches_alike(shards):
    def length(column):
        return pc.utf8_length(column)

    for batch_size in (None, 16):
        dataset = dataset_of(
            shards,
            batch_size=batch_size,
            processor_pipelines={
                "label": headrace.tabular.FunctionProcessor(lambda value: value + 5)
            },
        )
        dataset.add_pipeline("text", str.upper)
        dataset.add_pipeline(
            "text",
            headrace.tabular.FunctionProcessor(str.strip)
            >> headrace.tabular.ColumnProcessor(length),
        )
        given = list(dataset)
        texts = (
            [row["text"] for row in given]
            if batch_size is None
            else torch.cat([b["text"] for b in given]).tolist()
        )
        labels = (
            [row["label"] for row in given]
            if batch_size is None
            else torch.cat([b["label"] for b in given]).tolist()
        )

        assert [len(f"text {number}") for number in range(TOTAL)] == texts
        assert [number % 2 + 5 for number in range(TOTAL)] == labels
        assert {"text", "label"} == set(dataset.processor_pipelines)


def test_what_processors_make_takes_the_form_of_the_batch(shards):
    processors = {
        "id": lambda value: [value, 2 * value],
        "text": lambda text: {"length": len(text)},
    }
    whole = {
        "label": headrace.tabular.ColumnProcessor(
            lambda column: torch.tensor(column.to_pylist())[:, None] + torch.zeros(2)
        )
    }

    def first(batch_format):
        dataset = dataset_of(
            shards,
            batch_size=3,
            batch_format=batch_format,
            processor_pipelines={**processors, **whole},
        )
        return next(iter(dataset))

    tensors, arrays, table = first("torch"), first("numpy"), first("arrow")

    assert [[0, 0], [1, 2], [2, 4]] == tensors["id"]
    assert [{"length": 6}] * 3 == tensors["text"]
    assert (
        [[0.0, 0.0], [1.0, 1.0], [0.0, 0.0]]
        == tensors["label"].tolist()
        == arrays["label"].tolist()
    )
    assert [[0.0, 0.0], [1.0, 1.0], [0.0, 0.0]] == table["label"].to_pylist()
    assert [[0, 0], [1, 2], [2, 4]] == table["id"].to_pylist()
    assert ["id", "label", "text", "valid"] == list(tensors) == list(arrays) == table.column_names


def test_a_failing_processor_names_itself_in_the_loop(shards):
    dataset = dataset_of(shards, batch_size=4)
    dataset.add_pipeline("text", int)

    with raised(StreamError, value="text 0"):
        list(dataset.data_loader())


@pytest.mark.slow
def test_batches_are_those_of_the_stream_and_resume_on_other_workers(shards):
    settings = {"batch_size": 7, "num_workers": 2, "shuffle_shards": True}
    dataset = dataset_of(shards, **settings)
    batches = list(dataset.data_loader(method="fork"))
    stream = headrace.open(shards).torch_dataset(
        batch_size=7, num_workers=2, shuffle=True, seed=42, topology=ALONE
    )
    again = dataset_of(shards, **{**settings, "batch_size": 5, "num_workers": 0})
    again.load_state_dict(json.loads(json.dumps(dataset.state_after(9))))

    assert len(dataset) == len(batches) == len(dataset.data_loader())
    assert real_ids(stream.data_loader(method="fork")) == real_ids(batches)
    assert list(range(TOTAL)) == sorted(real_ids(batches[:9]) + real_ids(again))


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:'set_vital' is deprecated"
)  # torchdata 0.11 calls it in newer torch
def test_batches_resume_inside_a_stateful_loader(shards):
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="needs torchdata")

    def loader():
        dataset = dataset_of(shards, batch_size=7, num_workers=2, shuffle_shards=True)
        return stateful.StatefulDataLoader(
            dataset, batch_size=None, num_workers=2, multiprocessing_context="fork"
        )

    whole, stopped, resumed = loader(), loader(), loader()
    before = list(islice(stopped, 5))
    saved = stopped.state_dict()
    resumed.load_state_dict(json.loads(json.dumps(saved)))
    other = dataset_of(shards, batch_size=16, shuffle_shards=True)
    other.load_state_dict(stream_state(saved))

    assert real_ids(whole) == real_ids(before) + real_ids(resumed)
    assert list(range(TOTAL)) == sorted(real_ids(before) + real_ids(other))


def test_looking_at_a_row_moves_nothing(shards):
    dataset, other = (
        dataset_of(shards, shuffle_shards=True),
        dataset_of(shards, shuffle_shards=True),
    )
    first = next(iter(dataset))
    rows = list(dataset)

    assert first == rows[0]
    assert list(other) == rows
    assert list(dataset) != rows  # the epoch was taken to its end


def test_what_is_declared_after_a_pass_holds_for_the_next(shards):
    dataset = dataset_of(shards, shuffle_shards=True)
    dataset.set_epoch(0)
    before = list(dataset)
    dataset.set_cat_field_list(["label"])
    dataset.set_full_field_list(["label", "id", "text"])
    dataset.set_epoch(0)
    after = list(dataset)

    assert [{**row, "label": str(row["label"])} for row in before] == after
    dataset = PipelineIterableDataset(
        {}, dataframe=pa.table({"n": [1, None]}), shuffle=True, topology=ALONE
    )
    dataset.set_epoch(0)
    assert {1, None} == {row["n"] for row in dataset}
    dataset.fill_missing_value(columns={"n": 3})
    dataset.set_epoch(0)
    assert {1, 3} == {row["n"] for row in dataset}


@pytest.mark.slow
@pytest.mark.smoke("1-by_size", "3-balanced")
@pytest.mark.parametrize("distribution", ["balanced", "by_size"])
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_rows_of_ranks_with_workers_resume_on_other_ranks(
    tmp_path, monkeypatch, distribution, workers
):
    monkeypatch.setattr("headrace.tabular.dataset._PIECE_ROWS", 16)  # several for each worker
    total = write_shards(tmp_path)
    group = group_of(tmp_path, 3, shuffle_shards=True, distribution=distribution)
    batches = [list(loader_of(dataset, workers=workers, batch_size=4)) for dataset in group]
    states = [dataset.state_after(7, batch_size=4, num_workers=workers) for dataset in group]
    rest = group_of(tmp_path, 2, shuffle_shards=True, distribution=distribution)
    for dataset in rest:
        dataset.load_state_dict(json.loads(json.dumps(states[0])))
    later = [list(loader_of(dataset, workers=2, batch_size=4)) for dataset in rest]

    assert 1 == len({len(part) for part in batches})
    assert states[0] == states[1] == states[2]
    assert len(later[0]) == len(later[1])
    assert {len(dataset) for dataset in rest} == {
        sum(len(batch["id"]) for batch in part) for part in later
    }
    received = [row for part in batches for row in real_ids(part[:7])]
    assert list(range(total)) == sorted(
        received + [row for part in later for row in real_ids(part)]
    )


@pytest.mark.slow
@pytest.mark.smoke("3")
@pytest.mark.parametrize("workers", [0, 3])
def test_rows_resume_where_the_loop_stopped(shards, workers):
    dataset = dataset_of(shards, shuffle_shards=True)
    dataset.set_epoch(2)
    before = list(loader_of(dataset, workers=workers, batch_size=4))[:7]
    state = dataset.state_after(7, batch_size=4, num_workers=workers)
    rest = dataset_of(shards, shuffle_shards=True)
    rest.load_state_dict(state)

    assert TOTAL - 28 == len(rest) == rest.remaining
    assert list(range(TOTAL)) == sorted(real_ids(before) + ids(rest))
    assert (TOTAL - 28, 0) == (len(rest), rest.remaining)
    rest.set_epoch(3)
    assert list(range(TOTAL)) == sorted(ids(rest))
    with raised(StreamError, remedy="call state_after"):
        dataset.state_dict()
    with raised(SettingsError, setting="batch_size", remedy="give batch_size and num_workers"):
        dataset.state_after(7)


@pytest.mark.slow
def test_audit_counts_what_a_loader_over_rows_delivers(shards):
    dataset = dataset_of(shards, shuffle_shards=True)
    watched = headrace.audit(loader_of(dataset, workers=2), key="id", expected=TOTAL)
    for _ in watched:
        pass

    assert watched.report().ok


@pytest.mark.parametrize("word", ["csv", "csv.gz", "tsv", "jsonl", "parquet"])
@pytest.mark.parametrize("pattern", [None, "part-*", "named"])
def test_shards_of_every_format_are_found(tmp_path, word, pattern):
    for shard in range(3):
        write(tmp_path / f"part-{shard}.{word}", 5 * shard, 5)
    (tmp_path / "_SUCCESS").write_text("")
    (tmp_path / "notes.txt").write_text("no data")
    dataset = dataset_of(tmp_path, shard_pattern=f"*.{word}" if pattern == "named" else pattern)

    assert [str(number) for number in range(15)] == [str(row["id"]) for row in dataset]
    assert [number % 2 for number in range(15)] == [row["label"] for row in dataset]
    assert 3 == dataset.get_shard_distribution_info()["total_shards"]


def write(path, first, rows):
    frame = polars.from_arrow(table_of(first, rows))
    match path.name.split(".")[1]:
        case "parquet":
            frame.write_parquet(path)
        case "jsonl":
            frame.write_ndjson(path)
        case "tsv":
            frame.write_csv(path, separator="\t")
        case _ if path.suffix == ".gz":
            frame.write_csv(path, compression="gzip")
        case _:
            frame.write_csv(path)


def test_one_file_or_several_patterns(tmp_path):
    for name, first in (
        ("part-0.parquet", 0),
        ("part-1.parquet", 5),
        ("extra.parquet", 10),
        ("other.csv", 20),
    ):
        write(tmp_path / name, first, 5)

    assert list(range(5, 10)) == ids(dataset_of(tmp_path, filename="part-1.parquet"))
    assert list(range(10)) == ids(dataset_of(tmp_path))  # part-* alone, as there are some
    assert [*range(10, 15), *range(5)] == ids(
        dataset_of(tmp_path, shard_pattern=["extra.*", "part-0.*", "e*.parquet"])
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"file_dir": "nowhere"}, "nowhere: file_dir: no such directory"),
        ({"filename": "absent.csv"}, "absent.csv: no such file"),
        ({"shard_pattern": "x-*.parquet"}, "holds no shard that matches x-"),
        (
            {"shard_pattern": "*"},
            "holds shards of several formats, csv, parquet, which may be the same rows twice",
        ),
        ({"shard_pattern": "*", "filename": "a.csv"}, "give one of them"),
        ({"split": "train"}, "split is 'train': not a prepared dataset"),
        ({"dataframe": pa.table({"a": [1]})}, "either file_dir or dataframe is needed"),
        ({"filename": "a.csv", "batch_size": 0}, "batch_size is 0"),
        ({"filename": "a.csv", "num_workers": -1}, "num_workers is -1"),
    ],
)
def test_a_place_without_shards_is_an_error(tmp_path, settings, message):
    write(tmp_path / "a.csv", 0, 2)
    write(tmp_path / "b.parquet", 0, 2)
    with pytest.raises(HeadraceError, match=message):
        PipelineIterableDataset(CONFIG, **{"file_dir": tmp_path, "topology": ALONE, **settings})


@pytest.mark.slow
@pytest.mark.parametrize("library", [pandas.DataFrame, polars.DataFrame])
def test_a_dataframe_is_divided_among_ranks_and_workers(library):
    table = table_of(0, 20001)
    frame = library(table.to_pydict())
    parts = []
    for rank in range(3):
        dataset = PipelineIterableDataset(
            CONFIG, dataframe=frame, shuffle_shards=True, topology=Topology(rank=rank, world_size=3)
        )
        parts.append(real_ids(loader_of(dataset, workers=2, batch_size=512)))

    assert [6667] * 3 == [len(part) for part in parts]
    assert list(range(20001)) == sorted(row for part in parts for row in part)
    assert [["dataframe"], []] == [
        dataset.get_shard_distribution_info()["assigned_shards"],
        dataset.shard_files,
    ]


def test_a_prepared_dataset_is_streamed_by_split(tmp_path):
    rows = [f"{n},c{n},20{20 + n % 6}-03-01T00:00:00,{n % 2}" for n in range(600)]
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "part-0.csv").write_text(
        "\n".join(["id,customer,time,label", *rows]) + "\n"
    )
    split = headrace.TemporalSplit(
        source=tmp_path / "raw", time="time", entity="customer", split_date="2025-01-01"
    )
    prepared = headrace.prepare(split, tmp_path / "out")
    config = {"label_name": "label"}
    by_split = PipelineIterableDataset(config, tmp_path / "out", split="train", topology=ALONE)
    by_folder = PipelineIterableDataset(
        config, tmp_path / "out" / "splits" / "train", topology=ALONE
    )

    assert prepared.manifest.splits["train"].rows == len(by_split)
    assert list(by_split) == list(by_folder)
    with raised(InputError, remedy='name one of them, such as with split="train"'):
        PipelineIterableDataset(config, tmp_path / "out", topology=ALONE)


def test_missing_values_that_a_tensor_cannot_hold_say_what_to_do():
    dataset = PipelineIterableDataset(
        {}, dataframe=pa.table({"n": [1, None]}), batch_size=2, topology=ALONE
    )
    with raised(InputError, column="n"):
        list(dataset)
    dataset.fill_missing_value(columns={"n": 3})

    assert [1, 3] == next(iter(dataset))["n"].tolist()


def test_rows_say_which_are_real_on_several_ranks_and_on_one(shards):
    alone, (*_, last) = dataset_of(shards), group_of(shards, 3)
    masked = dataset_of(shards, remainder="pad")

    assert {True} == {row["valid"] for row in alone}
    assert [True] * 55 + [False] == [row["valid"] for row in last]  # 167 rows: 56, 56, 55
    assert {True} == {row["valid"] for row in masked}
    with raised(SettingsError, setting="remainder", value="exact"):
        group_of(shards, 3, remainder="exact")


@pytest.mark.parametrize("batch_size", [None, 8])
def test_rows_of_a_block_that_cannot_be_read_are_filling_ones_if_asked(shards, batch_size):
    settings = {"batch_size": batch_size, "on_bad_block": "quarantine", "quarantine_limit": 0.6}
    dataset = dataset_of(shards, **settings)
    dataset.set_cat_field_list(["label"])  # declared after the stream was made
    (shards / "part-00004.parquet").write_bytes(b"")
    given = list(dataset)
    if batch_size is None:
        real = ids(given)
        assert TOTAL == len(given)
    else:
        real = real_ids(given)
    good = [*range(54), *range(144, TOTAL)]  # part-00004 has the 90 rows from 54 on

    assert good == real


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_column_named_valid_is_refused_and_may_be_left_out(world_size):
    frame = pa.table({"x": [1, 2], "valid": ["a", "b"]})
    here = Topology(rank=0, world_size=world_size)
    with raised(SettingsError, column="valid", remedy="rename it when preparing"):
        PipelineIterableDataset({}, dataframe=frame, topology=here)

    assert [True] * (2 // world_size) == [
        row["valid"]
        for row in PipelineIterableDataset({}, dataframe=frame, columns=["x"], topology=here)
    ]


def test_the_verdict_without_a_process_group_is_of_all_ranks(shards, caplog):
    dataset = group_of(shards, 2, shuffle_shards=True, remainder="drop", batch_size=8)[0]

    stream = headrace.open(shards).torch_dataset(
        batch_size=8, num_workers=3, topology=dataset.topology
    )

    assert headrace.tabular.verify_no_shard_overlap(loader_of(dataset, batch_size=None), 2, 1)
    assert headrace.tabular.verify_no_shard_overlap(
        loader_of(stream, workers=3, batch_size=None), 2, 3
    )
    assert not headrace.tabular.verify_no_shard_overlap(loader_of(dataset, batch_size=None), 3, 1)
    assert not headrace.tabular.verify_no_shard_overlap(loader_of(dataset, batch_size=None), 2, 4)
    assert not headrace.tabular.verify_no_shard_overlap(loader_of([1, 2, 3]), 1, 1)
    assert [
        "shard overlap: rank 0: num_ranks is 3: the dataset was built for 2 ranks",
        "shard overlap: rank 0: num_workers is 4: the DataLoader has 0 workers",
        "shard overlap: rank 0: dataloader: its dataset is a list, which has no plan",
    ] == [
        record.message.split(";")[0].split(", or")[0]
        for record in caplog.records
        if record.message != SKIPPED
    ]


def test_batches_may_be_rows(shards):
    tables = list(
        PipelineIterableDataset(CONFIG, shards, topology=ALONE, batch_size=8, batch_format="arrow")
    )
    rows = list(
        PipelineIterableDataset(CONFIG, shards, topology=ALONE, batch_size=8, batch_format="rows")
    )

    assert [table.to_pylist() for table in tables] == rows


def test_numpy_batches_stay_so_in_its_data_loader(shards):
    dataset = PipelineIterableDataset(
        CONFIG, shards, topology=ALONE, batch_size=8, batch_format="numpy"
    )

    assert {np.ndarray} == {type(batch["id"]) for batch in dataset.data_loader()}


@pytest.mark.parametrize("option", [{"transform": len}, {"memory": "pinned"}])
def test_options_of_streams_alone_are_refused(shards, option):
    with raised(SettingsError, setting=next(iter(option))):
        PipelineIterableDataset(CONFIG, shards, topology=ALONE, **option)
    with pytest.raises(SettingsError, match="batch_format is 'jax'"):
        PipelineIterableDataset(CONFIG, shards, topology=ALONE, batch_size=8, batch_format="jax")


@pytest.mark.slow
def test_diagnostics_in_workers_describe_each_of_them(shards):
    dataset = Telling(CONFIG, shards, topology=ALONE, shuffle_shards=True)
    infos = [
        info[0]
        for info in torch.utils.data.DataLoader(
            dataset, batch_size=1, num_workers=2, collate_fn=list
        )
    ]

    assert [(0, 2), (1, 2)] == [(info["worker_id"], info["num_workers"]) for info in infos]
    assert all(
        len(info["assigned_shards"]) == info["shards_per_worker"] <= info["shards_per_rank"]
        for info in infos
    )
    assert 6 == len(set(infos[0]["assigned_shards"]) | set(infos[1]["assigned_shards"]))


def test_rows_come_in_the_global_order_whatever_reads_them(shards):
    for world_size in (1, 2, 3):
        parts = [
            ids(dataset) for dataset in group_of(shards, world_size, shuffle_shards=True, lanes=8)
        ]
        together = [
            part[place] for place in range(len(parts[0])) for part in parts if place < len(part)
        ]
        if world_size == 1:
            alone = together
        assert alone == together
    assert any(a > b for a, b in pairwise(alone))


def test_the_members_that_training_code_reads_are_there(shards):
    dataset = dataset_of(shards, shuffle_shards=True)
    first, second = ids(dataset), ids(dataset)
    dataset._current_epoch = 0

    assert dataset.shuffle_shards
    assert not dataset_of(shards).shuffle_shards
    assert (0, first) == (dataset._current_epoch, ids(dataset))
    dataset.set_epoch(1)
    assert (1, second) == (dataset._current_epoch, ids(dataset))
    assert first != second
    assert {"shard_files", "processor_pipelines"} <= set(dir(dataset))
