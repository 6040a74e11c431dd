"""A blend of real files streams like one dataset: equal steps, exact resume, workers of every kind, clear refusals."""

import json
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from stream_cases import ranks

import headrace
from raised import raised

SIZES = {"books": 190, "code": 61, "talks": 17}
FIRST = {"books": 0, "code": 1000, "talks": 2000}


def write(root, name, rows, first, kind="int64"):
    (root / name).mkdir()
    table = pa.table(
        {
            "row": pa.array(range(first, first + rows), kind),
            "text": [f"{name} {n}" for n in range(rows)],
        }
    )
    for shard, start in enumerate(range(0, rows, 50)):
        pq.write_table(
            table.slice(start, 50), root / name / f"part-{shard}.parquet", row_group_size=20
        )
    return headrace.open(root / name, cache_dir=root / "cache")


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    root = tmp_path_factory.mktemp("blend")
    return {name: write(root, name, rows, FIRST[name]) for name, rows in SIZES.items()}


def rows_of(batch):
    return np.asarray(batch["row"])[
        np.asarray(batch["valid"]) if "valid" in batch else slice(None)
    ].tolist()


def every_row():
    return sorted(FIRST[name] + n for name, rows in SIZES.items() for n in range(rows))


def test_without_weights_an_epoch_is_every_row_once(datasets):
    loaders = [
        headrace.blend(datasets).stream(batch_size=8, shuffle=True, seed=1, topology=topology)
        for topology in ranks(3)
    ]
    batches = [list(loader) for loader in loaders]

    assert len({len(each) for each in batches}) == 1
    assert every_row() == sorted(
        row for each in batches for batch in each for row in rows_of(batch)
    )
    assert batches[0][0]["text"][0].split()[0] in SIZES


def test_weights_hold_in_every_batch_and_small_datasets_repeat(datasets):
    weights = {"talks": 1, "books": 1, "code": 2}
    loader = headrace.blend(datasets, weights=weights).stream(
        batch_size=64, shuffle=True, lanes=4, samples_per_epoch=512
    )
    seen = Counter()
    for _ in range(2):
        for batch in loader:
            seen.update(rows_of(batch))
            code = sum(1000 <= row < 2000 for row in rows_of(batch))
            assert 32 - 8 <= code <= 32 + 8
    of_talks = [seen[row] for row in range(2000, 2017)]

    assert 1024 == sum(seen.values())
    assert {256 // 17, 256 // 17 + 1} == set(of_talks)
    assert sorted(seen) == every_row()


@pytest.mark.slow
@pytest.mark.smoke("fork")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_and_a_resume_on_other_ranks_deliver_each_row_once(datasets, method):
    blend = headrace.blend(list(datasets.values()))
    head, saved = [], []
    for topology in ranks(2):
        dataset = blend.torch_dataset(
            batch_size=8, num_workers=2, shuffle=True, seed=5, topology=topology
        )
        dataset.set_epoch(1)
        batches = iter(dataset.data_loader(method=method))
        head += [row for _ in range(3) for row in rows_of(next(batches))]
        saved.append(json.dumps(dataset.state_after(3)))
    rest = []
    for topology in ranks(3):
        loader = blend.stream(batch_size=5, shuffle=True, seed=5, topology=topology)
        loader.load_state_dict(json.loads(saved[0]))
        counted = headrace.audit(loader, key="row")
        rest += [row for batch in counted for row in rows_of(batch)]

    assert saved[0] == saved[1]
    assert every_row() == sorted(head + rest)


def test_epochs_of_workers_that_live_on_follow_set_epoch(datasets):
    stages = [(0, "uniform"), ("4 steps", {"books": 3, "code": 1}), ("150 rows", [1, 1, 1])]
    blend = headrace.blend(datasets, schedule=stages, limits={"talks": 4})
    dataset = blend.torch_dataset(batch_size=16, num_workers=1, shuffle=True, samples_per_epoch=96)
    from torch.utils.data import DataLoader

    loader = DataLoader(
        dataset,
        batch_size=None,
        num_workers=1,
        persistent_workers=True,
        multiprocessing_context="fork",
    )
    epochs = []
    for epoch in (0, 1):
        dataset.set_epoch(epoch)
        epochs.append([row for batch in loader for row in rows_of(batch)])
    again = blend.stream(batch_size=16, shuffle=True, samples_per_epoch=96)

    assert epochs == [[row for batch in again for row in rows_of(batch)] for _ in (0, 1)]


def test_the_plan_of_a_blend_covers_its_epoch(datasets):
    plan = (
        headrace.blend(datasets, weights=[1, 2, 3])
        .stream(batch_size=4, topology=ranks(4)[1])
        .plan()
    )
    coverage = plan.coverage()

    assert (coverage.overlap_rows, coverage.missing_rows) == (0, 0)
    assert coverage.delivered_rows == sum(SIZES.values())


def test_a_state_of_another_blend_is_refused_and_both_are_named(datasets):
    state = headrace.blend(datasets).stream(batch_size=4).state_dict()
    (code, books, talks) = (datasets[name] for name in ("code", "books", "talks"))
    with raised(headrace.errors.StreamError, remedy="another filter or blend was set up"):
        headrace.blend({"books": code, "code": books, "talks": talks}).stream(
            batch_size=4
        ).load_state_dict(state)
    with raised(headrace.errors.StreamError, setting="blend", value="every row once"):
        code.stream(batch_size=4).load_state_dict(state)
    stages = [(0, {"books": 3, "code": 1}), ("50%", {"talks": 1})]
    saved = headrace.blend(datasets, schedule=stages).stream(batch_size=4).state_dict()
    stages[1] = ("60%", {"talks": 1})
    with raised(headrace.errors.StreamError, setting="blend", remedy="pass the saved") as caught:
        headrace.blend(datasets, schedule=stages).stream(batch_size=4).load_state_dict(saved)
    for named in ("from 50% talks 1.0", "from 60% talks 1.0"):
        assert named in str(caught.value)


def test_unlike_columns_are_named_with_both_datasets(datasets, tmp_path):
    other = write(tmp_path, "short", 10, 0, kind="int32")
    with raised(headrace.InputError, path="blend", column="row", remedy="with the same types="):
        headrace.blend({"code": datasets["code"], "short": other}).stream(batch_size=4)
    texts = headrace.blend({"code": datasets["code"], "short": other}).stream(
        batch_size=71, columns=["text"]
    )
    assert 71 == len(next(iter(texts))["text"])

    pq.write_table(pa.table({"row": [1], "more": [2]}), tmp_path / "more.parquet")
    more = headrace.open(tmp_path / "more.parquet", cache_dir=tmp_path / "cache")
    with raised(headrace.InputError, path="blend", remedy="that all have with columns="):
        headrace.blend({"code": datasets["code"], "more": more}).stream(batch_size=4)


@pytest.mark.parametrize(
    ("weights", "remedy"),
    [
        ([1, 2], "give one of each"),
        ([1, 2, 0], "give a positive number"),
        ([1, 2, float("nan")], "give a positive number"),
        ([1, True, 2], "give a positive number"),
        ({"books": 1}, "give one of each"),
    ],
)
def test_weights_that_are_none_are_refused(datasets, weights, remedy):
    with raised(headrace.SettingsError, setting="weights", remedy=remedy):
        headrace.blend(datasets, weights=weights)


def test_what_is_no_dataset_and_a_share_of_nothing_are_refused(datasets):
    with raised(headrace.SettingsError, setting="datasets", remedy="give at least one"):
        headrace.blend([])
    with raised(headrace.SettingsError, setting="datasets", remedy="what headrace.open returned"):
        headrace.blend(["books"])
    with raised(headrace.SettingsError, setting="datasets", remedy="by name"):
        headrace.blend(datasets["books"])
    with raised(headrace.SettingsError, setting="weights", remedy="raise its weight"):
        headrace.blend(datasets, weights=[1e12, 1e12, 1]).stream(batch_size=2, samples_per_epoch=10)
    with raised(headrace.InputError, setting="split", value="train"):
        headrace.blend({"books": (datasets["books"], "train")}).stream(batch_size=2)


def sources_of(batch):
    return np.asarray(batch["blend_source"])


@pytest.mark.parametrize("batch_format", ["torch", "numpy", "arrow"])
def test_each_batch_says_the_source_of_its_rows(datasets, batch_format):
    loaders = [
        headrace.blend(datasets).stream(
            batch_size=8,
            shuffle=True,
            columns=["row"],
            remainder="pad",
            batch_format=batch_format,
            topology=topology,
        )
        for topology in ranks(3)
    ]
    seen = Counter()
    rows = Counter()
    for loader in loaders:
        for batch in loader:
            expected = np.where(batch["valid"], np.asarray(batch["row"]) // 1000, -1)
            assert expected.tolist() == sources_of(batch).tolist()
            seen.update(sources_of(batch).tolist())
        rows.update(loader.stats().rows_by_source)

    assert list(SIZES) == loaders[0].blend_sources
    assert list(SIZES.values()) == [seen[number] for number in range(3)]
    assert SIZES == rows


@pytest.mark.slow
@pytest.mark.smoke("0")
@pytest.mark.parametrize("workers", [0, 2])
def test_stats_count_what_the_loop_has_by_source(datasets, workers):
    dataset = headrace.blend(datasets).torch_dataset(batch_size=8, num_workers=workers)
    loader = dataset.data_loader(method="fork")
    seen = Counter()
    for _, batch in zip(range(5), loader, strict=False):
        seen.update(sources_of(batch).tolist())

    names = dataset.blend_sources
    assert {names[number]: count for number, count in seen.items()} == {
        name: count for name, count in dataset.stats().rows_by_source.items() if count
    }


def test_a_data_column_called_like_the_source_is_refused(tmp_path):
    pq.write_table(pa.table({"row": [1], "blend_source": [2]}), tmp_path / "data.parquet")
    data = headrace.open(tmp_path / "data.parquet", cache_dir=tmp_path / "cache")
    with raised(headrace.InputError, column="blend_source", remedy="rename it when preparing"):
        headrace.blend([data, data]).stream(batch_size=1)
    batch = next(iter(headrace.blend([data, data]).stream(batch_size=2, columns=["row"])))

    assert [0, 1] == sources_of(batch).tolist()


@pytest.fixture(scope="module")
def sentences(tmp_path_factory):
    root = tmp_path_factory.mktemp("sentences")
    opened = {}
    for number, name in enumerate(("short", "long")):
        lists = [[100 * number + 1] * (3 + 4 * number + row % 3) for row in range(40)]
        pq.write_table(pa.table({"input_ids": lists}), root / f"{name}.parquet")
        opened[name] = headrace.open(root / f"{name}.parquet", cache_dir=root / "cache")
    return opened


@pytest.mark.parametrize("form", ["varlen", "padded"])
@pytest.mark.parametrize("last_token", ["keep", "drop"])
def test_sequences_of_packed_bins_have_their_source(sentences, form, last_token):
    packed = headrace.PackedBatches(
        form=form, pad_id=7, pad_to_multiple_of=16, last_token=last_token, most_sequences=40
    )
    loader = headrace.blend(sentences).stream(
        batch_size=3, shuffle=True, pack=32, packed=packed, remainder="pad"
    )
    tokens = Counter()
    for batch in loader:
        lengths = np.diff(batch["cu_seqlens"])
        source = np.repeat(sources_of(batch), lengths)
        ids = np.asarray(batch["input_ids"]).ravel()
        assert [{7: -1}.get(token, token // 100) for token in ids.tolist()] == source.tolist()
        tokens.update(source.tolist())
    stats = loader.stats()

    assert {"short": 40, "long": 40} == stats.rows_by_source
    if last_token == "keep":
        assert [tokens[0], tokens[1]] == list(stats.tokens_by_source.values())


def test_losses_are_averaged_by_source(datasets, sentences):
    torch = pytest.importorskip("torch")
    loader = headrace.blend(datasets).stream(batch_size=64, shuffle=True)
    batch = next(iter(loader))
    means = loader.loss_by_source(batch["row"].double(), batch)
    expected = {
        name: float(np.mean(np.asarray(batch["row"])[sources_of(batch) == number]))
        for number, name in enumerate(SIZES)
    }
    packed = headrace.blend(sentences).stream(batch_size=2, pack=32)
    bins = next(iter(packed))
    of_tokens = packed.loss_by_source(bins["input_ids"].double(), bins)
    only = headrace.blend([datasets["code"], datasets["talks"]]).stream(batch_size=4)
    first = next(iter(only))
    first["blend_source"] = torch.zeros(4, dtype=torch.int64)

    assert pytest.approx(expected) == means
    assert {"short": 1.0, "long": 101.0} == of_tokens
    assert np.isnan(only.loss_by_source(torch.ones(4, 3), first)["1"])
    with raised(headrace.errors.StreamError, remedy="a loss of each row"):
        loader.loss_by_source(torch.ones(3), batch)


def test_columns_are_left_out_of_streams_and_blends(datasets):
    alone = datasets["code"].stream(batch_size=8, drop_columns=["text"])
    blended = headrace.blend(datasets).stream(batch_size=8, drop_columns=["text"])

    assert {"row", "valid"} == {*next(iter(alone))}
    assert {"row", "blend_source", "valid"} == {*next(iter(blended))}
    with raised(headrace.errors.SettingsError, setting="drop_columns", value=["rows"]):
        headrace.blend(datasets).stream(batch_size=8, drop_columns=["rows"])
    with raised(headrace.errors.SettingsError, setting="drop_columns", value=["row", "text"]):
        datasets["code"].stream(batch_size=8, drop_columns=["row", "text"])


def test_batches_by_length_say_the_source_of_their_rows(sentences):
    loader = headrace.blend(sentences).stream(
        batch_size=16, batch_tokens=128, lists="padded", shuffle=True
    )
    seen = Counter()
    for batch in loader:
        rows = batch["input_ids"][:, 0].numpy() // 100
        expected = np.where(np.asarray(batch["valid"]), rows, -1)
        assert expected.tolist() == sources_of(batch).tolist()
        seen.update(expected.tolist())

    assert (40, 40) == (seen[0], seen[1])
    assert {"short": 40, "long": 40} == loader.stats().rows_by_source
