"""Under a real Lightning trainer: epochs by themselves, positions in checkpoints, the rest of an epoch on other ranks."""

import json
import subprocess
import sys
from itertools import chain

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from packing_stream_cases import some_lengths
from prepared import prepare_dataset, rows_of
from rank_processes import free_ports, run_ranks

pytest.importorskip("lightning", reason="needs lightning")

from lightning.pytorch import Trainer
from lightning_cases import QUIET, PackedRecorder, Recorder, fit, on_rank
from torch.utils.data import DataLoader

import headrace
from headrace.lightning import EpochCallback, HeadraceDataModule

pytestmark = [
    pytest.mark.filterwarnings(
        "ignore:This DataLoader will create"
    ),  # the number of workers is the subject
    pytest.mark.filterwarnings(
        "ignore:GPU available but not used"
    ),  # a machine with one runs these too
    pytest.mark.filterwarnings("ignore:Checkpoint directory:"),  # the same folder on purpose
    pytest.mark.filterwarnings(
        "ignore:.*LeafSpec.* is deprecated:FutureWarning"
    ),  # lightning 2.6 in newer torch
    pytest.mark.filterwarnings(
        "ignore:Be aware that when using `ckpt_path`"
    ),  # resumed without saving again
    pytest.mark.filterwarnings(
        "ignore:You defined a `validation_step` but have no"
    ),  # foreign loops only train
    pytest.mark.filterwarnings(
        "ignore:The 'train_dataloader' does not have many workers"
    ),  # plain loaders, on purpose
]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return prepare_dataset(tmp_path_factory.mktemp("lightning"))


def flat(parts):
    return list(chain.from_iterable(parts))


def test_packed_sequences_are_packed_batches_of_both_loaders(tmp_path):
    rows = [
        {"input_ids": list(range(10 * n, 10 * n + 9)), "loss_mask": [0] * 4 + [1] * 5}
        for n in range(1, 80)
    ]
    (tmp_path / "raw.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    recipe = headrace.PackedSequences(
        blend=str(tmp_path / "raw.jsonl"),
        pack_size=32,
        train_ratio=0.75,
        val_ratio=0.25,
        test_ratio=0,
    )
    headrace.prepare(recipe, tmp_path / "out")
    module = HeadraceDataModule(tmp_path / "out", batch_size=2, options={"packed": "padded"})

    train, val = list(module.train_dataloader()), list(module.val_dataloader())

    assert all((2, 27) == tuple(batch["input_ids"].shape) for batch in train[:-1])
    assert all("cu_seqlens" in batch for batch in train + val)
    tokens = [
        token
        for batch in train + val
        for token in batch["labels"][batch["labels"] != -100].tolist()
    ]
    assert sorted(token for row in rows for token in row["input_ids"][4:]) == sorted(tokens)


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    """Rows of tokens in splits; every row is an entity of its own."""
    root = tmp_path_factory.mktemp("tokens")
    lengths = some_lengths(400, most=40)
    table = pa.table(
        {
            "input_ids": pa.array(
                [list(range(100 * row, 100 * row + n)) for row, n in enumerate(lengths)]
            ),
            "entity": [f"e{row}" for row in range(400)],
            "time": ["2020-01-01"] * 400,
        }
    )
    (root / "raw").mkdir()
    for shard in range(4):
        pq.write_table(
            table.slice(100 * shard, 100), root / "raw" / f"part-{shard}.parquet", row_group_size=30
        )
    headrace.prepare(
        headrace.TemporalSplit(
            source=str(root / "raw"), time="time", entity="entity", split_date="2025-01-01"
        ),
        root / "out",
    )
    return root / "out"


PACKED = {
    "batch_size": 2,
    "columns": None,
    "options": {
        "pack": headrace.PackRows(capacity=100, buffer_rows=64),
        "packed": headrace.PackedBatches(pad_id=-1),
    },
}


def rows_of_tokens(path, split):
    return sorted(
        ids
        for batch in headrace.open(path).stream(split, batch_size=64, batch_format="rows")
        for ids in [row["input_ids"] for row in batch]
    )


@pytest.mark.smoke("0")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_rows_packed_while_streaming_come_once_an_epoch_though_each_epoch_has_other_bins(
    tokens, num_workers
):
    model = fit(tokens, epochs=4, model=PackedRecorder(), num_workers=num_workers, **PACKED)
    train, val = rows_of_tokens(tokens, "train"), rows_of_tokens(tokens, "val")

    assert [0, 1, 2, 3] == sorted(model.seen)
    assert all(train == sorted(flat(batches)) for batches in model.seen.values())
    assert flat(model.seen[0]) != flat(model.seen[1])
    assert [val] * 4 == [sorted(rows) for rows in model.validated]


@pytest.mark.slow
@pytest.mark.smoke("0")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_checkpoint_of_packing_resumes_exactly(tokens, tmp_path, num_workers):
    settings = {"epochs": 3, "num_workers": num_workers, **PACKED}
    whole = fit(tokens, model=PackedRecorder(), folder=tmp_path, every=1, **settings)
    first = len(whole.seen[0])
    for step in (3, first - 1, first, first + 5):
        resumed = fit(
            tokens, model=PackedRecorder(), ckpt_path=tmp_path / f"step={step}.ckpt", **settings
        )
        epoch, done = (0, step) if step < first else (1, step - first)
        expected = {number: batches for number, batches in whole.seen.items() if number >= epoch}
        expected[epoch] = expected[epoch][done:]

        assert expected == resumed.seen, step


@pytest.mark.smoke("0")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_every_epoch_delivers_every_row_once_in_an_order_of_its_own(path, num_workers):
    model = fit(path, epochs=3, num_workers=num_workers, val_batch_size=7)
    train, val = rows_of(path, "train"), rows_of(path, "val")
    dataset = headrace.open(path).torch_dataset(
        "train", batch_size=16, num_workers=num_workers, shuffle=True, columns=["row"]
    )
    dataset.set_epoch(2)
    expected = [
        (batch["row"][batch["valid"]] if "valid" in batch else batch["row"]).tolist()
        for batch in DataLoader(dataset, batch_size=None, num_workers=num_workers)
    ]

    assert [0, 1, 2] == sorted(model.seen)
    assert all(train == sorted(flat(batches)) for batches in model.seen.values())
    assert flat(model.seen[0]) != flat(model.seen[1])
    assert expected == model.seen[2]
    assert [val] * 3 == [sorted(rows) for rows in model.validated]


@pytest.mark.slow
@pytest.mark.smoke("0")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_checkpoint_resumes_exactly_wherever_it_was_saved(path, tmp_path, num_workers):
    whole = fit(path, epochs=3, num_workers=num_workers, folder=tmp_path, every=1)
    steps = len(whole.seen[0])
    stops = (
        (4, steps, 2 * steps) if num_workers else (3, steps - 1, steps, steps + 1, 2 * steps)
    )  # whole rounds
    for step in stops:
        resumed = fit(
            path, epochs=3, num_workers=num_workers, ckpt_path=tmp_path / f"step={step}.ckpt"
        )
        done = step % steps
        expected = {
            epoch: batches for epoch, batches in whole.seen.items() if epoch >= step // steps
        }
        expected[step // steps] = expected[step // steps][done:]

        assert expected == resumed.seen, step


@pytest.mark.smoke("5-0")
@pytest.mark.parametrize(("batch_size", "num_workers"), [(5, 0), (33, 2)])
def test_another_batch_size_and_workers_get_the_rest_and_then_whole_epochs(
    path, tmp_path, batch_size, num_workers
):
    first = fit(path, epochs=1, folder=tmp_path, every=4, max_steps=4)
    resumed = fit(
        path,
        epochs=3,
        ckpt_path=tmp_path / "step=4.ckpt",
        batch_size=batch_size,
        num_workers=num_workers,
        trainer={"reload_dataloaders_every_n_epochs": 0},
    )
    train = rows_of(path, "train")

    assert train == sorted(flat(first.seen[0]) + flat(resumed.seen[0]))
    assert train == sorted(flat(resumed.seen[1]))
    assert train == sorted(flat(resumed.seen[2]))
    assert len(resumed.validated) == 3


def test_a_stop_between_two_workers_leaves_each_row_once(path, tmp_path):
    whole = fit(path, epochs=1, num_workers=2, folder=tmp_path, every=3)
    resumed = fit(path, epochs=2, num_workers=2, ckpt_path=tmp_path / "step=3.ckpt")
    train = rows_of(path, "train")

    assert train == sorted(flat(whole.seen[0][:3] + resumed.seen[0]))
    assert train == sorted(flat(resumed.seen[1]))


def fit_groups(path, folder, groups):
    """What each rank recorded: [group][job] is a list over ranks. The same processes form one group after another."""
    processes = max(size for _, size, _ in groups)
    with free_ports(len(groups)) as ports:
        asked = [
            (name, size, port, jobs) for (name, size, jobs), port in zip(groups, ports, strict=True)
        ]
        run_ranks(on_rank, processes, str(path), str(folder), asked)
    records = [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(processes)]
    return {
        name: {title: [record[name][title] for record in records[:size]] for title in jobs}
        for name, size, jobs in groups
    }


def rows_on(ranks, epoch, *, steps=slice(None)):
    return [row for rank in ranks for row in flat(rank["seen"][epoch][steps])]


def check_epochs(ranks, train):
    """Every row once per epoch, in equal steps, in an order of its own."""
    for epoch in ("0", "1"):
        assert len({len(rank["seen"][epoch]) for rank in ranks}) == 1
        assert train == sorted(rows_on(ranks, epoch))
    assert rows_on(ranks, "0") != rows_on(ranks, "1")


def check_rest(before, after, train, *, stop):
    """The rest of the first epoch, then a whole one."""
    assert train == sorted(rows_on(before, "0", steps=slice(stop)) + rows_on(after, "0"))
    assert train == sorted(rows_on(after, "1"))
    for epoch in ("0", "1"):
        assert len({len(rank["seen"][epoch]) for rank in after}) == 1


def test_ddp_ranks_take_equal_steps_and_other_ranks_resume_them(path, tmp_path):
    again = {"epochs": 2, "ckpt_path": str(tmp_path / "step=5.ckpt")}
    four = {"epochs": 2, "batch_size": 7, "num_workers": 1, "every": 3}
    sampler = {"epochs": 2, "use_distributed_sampler": True}
    groups = [
        (
            "two",
            2,
            {
                "whole": {"epochs": 2, "every": 5},
                "same": again,
                "sampler": sampler,
                "no sampler": {**sampler, "use_distributed_sampler": False, "num_workers": 2},
            },
        ),
        ("three", 3, {"of two": {**again, "batch_size": 9, "num_workers": 1}}),
        ("four", 4, {"of two": {**again, "batch_size": 5}, "whole": four}),
        (
            "back",
            2,
            {
                "of four": {
                    "epochs": 2,
                    "ckpt_path": str(tmp_path / "step=3.ckpt"),
                    "batch_size": 11,
                }
            },
        ),
    ]
    runs = fit_groups(path, tmp_path, groups)
    train, val = rows_of(path, "train"), rows_of(path, "val")
    whole, same = runs["two"]["whole"], runs["two"]["same"]

    for ranks in (whole, runs["four"]["whole"], runs["two"]["sampler"], runs["two"]["no sampler"]):
        check_epochs(ranks, train)
    for old, new in zip(whole, same, strict=True):
        assert {"0": old["seen"]["0"][5:], "1": old["seen"]["1"]} == new["seen"]
    check_rest(whole, runs["three"]["of two"], train, stop=5)
    check_rest(whole, runs["four"]["of two"], train, stop=5)
    check_rest(runs["four"]["whole"], runs["back"]["of four"], train, stop=3)
    for ranks in (runs["three"]["of two"], runs["four"]["whole"]):
        assert val == sorted(row for rank in ranks for row in rank["validated"][-1])
    assert [rank["seen"] for rank in whole] == [rank["seen"] for rank in runs["two"]["sampler"]]


@pytest.mark.smoke("0")
@pytest.mark.filterwarnings("ignore:Your `IterableDataset` has `__len__`")  # true there, and exact
@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_callback_tells_foreign_loops_their_epoch(path, tmp_path, num_workers):
    def run(epochs, **settings):
        dataset = headrace.open(path).torch_dataset(
            "train", batch_size=16, num_workers=num_workers, shuffle=True, columns=["row", "x", "y"]
        )
        model = Recorder()
        loader = DataLoader(dataset, batch_size=None, num_workers=num_workers)
        trainer = Trainer(
            max_epochs=epochs,
            callbacks=[EpochCallback(dataset)],
            enable_checkpointing=False,
            **QUIET,
        )
        trainer.fit(model, loader, **settings)
        trainer.save_checkpoint(tmp_path / "end.ckpt")
        return model.seen

    module = fit(path, epochs=3, num_workers=num_workers)
    seen = run(2)

    assert {epoch: module.seen[epoch] for epoch in (0, 1)} == seen
    assert {2: module.seen[2]} == run(3, ckpt_path=tmp_path / "end.ckpt")


def test_splits_that_are_not_there_have_no_loader_and_settings_are_checked(path):
    module = HeadraceDataModule(path, batch_size=8)

    assert sorted(
        flat(batch["row"][batch["valid"]].tolist() for batch in module.test_dataloader())
    ) == rows_of(path, "test")
    with pytest.raises(
        headrace.errors.StreamError, match=r"data module state: format_version is None"
    ):
        module.load_state_dict({"x": 1})


@pytest.mark.smoke("lightning-import headrace.lightning")
@pytest.mark.parametrize(
    ("module", "use"),
    [("lightning", "import headrace.lightning"), ("torch", "import headrace.stream.loader.map")],
)
def test_without_the_library_the_error_names_the_extra(module, use):
    code = f"import sys; sys.modules[{module!r}] = None\n{use}"
    child = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )

    assert f"pip install 'headrace[{module}]'" in child.stderr
