"""Under a real Lightning trainer: epochs by themselves, positions in checkpoints, the rest of an epoch on other ranks."""

import json
import socket
import subprocess
import sys
from itertools import chain

import pytest
import torch
from prepared import prepare_dataset, rows_of

pytest.importorskip("lightning", reason="needs lightning")

from lightning.pytorch import Trainer
from lightning_cases import QUIET, Recorder, fit, on_rank
from torch.utils.data import DataLoader

import headrace
from headrace.stream.lightning import EpochCallback, HeadraceDataModule

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # the number of workers is the subject
    pytest.mark.filterwarnings("ignore:GPU available but not used"),  # a machine with one runs these too
    pytest.mark.filterwarnings("ignore:Checkpoint directory:"),  # the same folder on purpose
    pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning"),  # lightning 2.6 in newer torch
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`"),  # resumed without saving again
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no"),  # foreign loops only train
    pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers"),  # plain loaders, on purpose
]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return prepare_dataset(tmp_path_factory.mktemp("lightning"))


def flat(parts):
    return list(chain.from_iterable(parts))


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


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_checkpoint_resumes_exactly_wherever_it_was_saved(path, tmp_path, num_workers):
    whole = fit(path, epochs=3, num_workers=num_workers, folder=tmp_path, every=1)
    steps = len(whole.seen[0])
    stops = (4, steps, 2 * steps) if num_workers else (3, steps - 1, steps, steps + 1, 2 * steps)  # whole rounds
    for step in stops:
        resumed = fit(path, epochs=3, num_workers=num_workers, ckpt_path=tmp_path / f"step={step}.ckpt")
        done = step % steps
        expected = {epoch: batches for epoch, batches in whole.seen.items() if epoch >= step // steps}
        expected[step // steps] = expected[step // steps][done:]

        assert expected == resumed.seen, step


@pytest.mark.parametrize(("batch_size", "num_workers"), [(5, 0), (33, 2)])
def test_another_batch_size_and_workers_get_the_rest_and_then_whole_epochs(path, tmp_path, batch_size, num_workers):
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


def spawn(world_size, path, folder, jobs):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(on_rank, (world_size, port, str(path), str(folder), jobs), nprocs=world_size)
    ranks = [json.loads((folder / f"world-{world_size}-rank-{rank}.json").read_text()) for rank in range(world_size)]
    return [list(parts) for parts in zip(*ranks, strict=True)]  # [job][rank]


def test_two_ddp_ranks_take_equal_steps_and_three_resume_them(path, tmp_path):
    again = {"epochs": 2, "ckpt_path": str(tmp_path / "step=5.ckpt")}
    whole, same = spawn(2, path, tmp_path, [{"epochs": 2, "every": 5}, again])
    (other,) = spawn(3, path, tmp_path, [{**again, "batch_size": 9, "num_workers": 1}])
    train, val = rows_of(path, "train"), rows_of(path, "val")
    before = [batch for rank in whole for batch in rank["seen"]["0"][:5]]

    for epoch in ("0", "1"):
        assert len({len(rank["seen"][epoch]) for rank in whole}) == 1
        assert train == sorted(row for rank in whole for row in flat(rank["seen"][epoch]))
    for old, new in zip(whole, same, strict=True):
        assert {"0": old["seen"]["0"][5:], "1": old["seen"]["1"]} == new["seen"]
    assert train == sorted(flat(before) + [row for rank in other for row in flat(rank["seen"]["0"])])
    assert train == sorted(row for rank in other for row in flat(rank["seen"]["1"]))
    assert len({len(rank["seen"]["1"]) for rank in other}) == 1
    assert val == sorted(row for rank in other for row in rank["validated"][-1])


@pytest.mark.filterwarnings("ignore:Your `IterableDataset` has `__len__`")  # true there, and exact
@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_callback_tells_foreign_loops_their_epoch(path, tmp_path, num_workers):
    def run(epochs, **settings):
        dataset = headrace.open(path).torch_dataset(
            "train", batch_size=16, num_workers=num_workers, shuffle=True, columns=["row", "x", "y"]
        )
        model = Recorder()
        loader = DataLoader(dataset, batch_size=None, num_workers=num_workers)
        trainer = Trainer(max_epochs=epochs, callbacks=[EpochCallback(dataset)], enable_checkpointing=False, **QUIET)
        trainer.fit(model, loader, **settings)
        trainer.save_checkpoint(tmp_path / "end.ckpt")
        return model.seen

    module = fit(path, epochs=3, num_workers=num_workers)
    seen = run(2)

    assert {epoch: module.seen[epoch] for epoch in (0, 1)} == seen
    assert {2: module.seen[2]} == run(3, ckpt_path=tmp_path / "end.ckpt")


def test_splits_that_are_not_there_have_no_loader_and_settings_are_checked(path):
    module = HeadraceDataModule(path, batch_size=8)

    assert sorted(flat(batch["row"][batch["valid"]].tolist() for batch in module.test_dataloader())) == rows_of(
        path, "test"
    )
    with pytest.raises(headrace.StreamError, match=r"data module state: keys \['x'\]"):
        module.load_state_dict({"x": 1})


@pytest.mark.parametrize(
    ("module", "use"), [("lightning", "import headrace.lightning"), ("torch", "import headrace.stream.map")]
)
def test_without_the_library_the_error_names_the_extra(module, use):
    code = f"import sys; sys.modules[{module!r}] = None\n{use}"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert f"pip install 'headrace[{module}]'" in child.stderr
