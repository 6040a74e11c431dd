"""A checkpoint of Lightning, saved at any moment, resumes with the next batch of the same epoch.

What counts is the sequence of batches: the interrupted fit and the resumed one together are the uninterrupted one.
"""

import json
from itertools import chain, islice

import pytest
from prepared import prepare_dataset, rows_of
from rank_processes import free_ports, run_ranks

pytest.importorskip("lightning", reason="needs lightning")

from lightning.pytorch import Trainer
from lightning_cases import QUIET, Recorder, SaveAt, saves_of_rank

import headrace
from headrace.lightning import HeadraceDataModule
from headrace.sealed import seal, unseal
from headrace.stream.loader.resumed import FORMAT_VERSION

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
    pytest.mark.filterwarnings("ignore:You requested to overfit"),  # on purpose
    pytest.mark.filterwarnings("ignore:`max_epochs` was not set"),  # steps are the subject
]

FOREVER = {"max_epochs": -1}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return prepare_dataset(tmp_path_factory.mktemp("lightning"))


def run(
    path,
    *,
    ckpt_path=None,
    callbacks=(),
    save=None,
    num_workers=0,
    module=None,
    model=None,
    **options,
):
    """A fit; its batches in order."""
    model = model or Recorder()
    module = module or HeadraceDataModule(
        path, batch_size=16, num_workers=num_workers, columns=["row", "x", "y"]
    )
    options = {
        "devices": 1,
        "num_sanity_val_steps": 0,
        **QUIET,
        "enable_checkpointing": False,
        **FOREVER,
        **options,
    }
    trainer = Trainer(callbacks=list(callbacks), **options)
    trainer.fit(model, datamodule=module, ckpt_path=ckpt_path)
    if save is not None:
        trainer.save_checkpoint(save)
    return list(chain.from_iterable(model.seen.values()))


@pytest.fixture(scope="module")
def steps(path):
    """Batches of an epoch."""
    return len(HeadraceDataModule(path, batch_size=16).train_dataloader())


KINDS = {
    "plain": {},
    "validates every 4": {"val_check_interval": 4},
    "validates every 9, over epochs": {"val_check_interval": 9, "check_val_every_n_epoch": None},
    "6 batches an epoch": {"limit_train_batches": 6},
    "new loaders each epoch": {"reload_dataloaders_every_n_epochs": 1},
}


@pytest.mark.slow
@pytest.mark.smoke("plain-0")
@pytest.mark.parametrize(("kind", "num_workers"), [*((kind, 0) for kind in KINDS), ("plain", 2)])
def test_a_checkpoint_after_a_fit_that_stopped_inside_an_epoch(
    path, tmp_path, steps, kind, num_workers
):
    options = {"num_workers": num_workers, **KINDS[kind]}
    whole = run(path, **options, max_steps=3 * steps)
    for stop in (4, 6, steps):  # whole rounds of two workers
        run(path, **options, max_steps=stop, save=tmp_path / "stopped.ckpt")
        rest = run(path, **options, ckpt_path=tmp_path / "stopped.ckpt", max_steps=stop + steps + 2)

        assert whole[stop : stop + steps + 2] == rest, stop


@pytest.mark.slow
def test_several_stops_in_a_row_leave_every_row_once(path, tmp_path, steps):
    whole = run(path, max_steps=3 * steps)
    parts, at = [], 0
    for number, more in enumerate((3, 2, steps - 5, 4, 1, steps)):  # the third one ends the epoch
        last = tmp_path / f"{number - 1}.ckpt" if number else None
        at += more
        parts += run(path, ckpt_path=last, max_steps=at, save=tmp_path / f"{number}.ckpt")

    assert whole[:at] == parts
    assert rows_of(path, "train") == sorted(chain.from_iterable(parts[:steps]))


HOOKS = (
    "on_train_batch_start",
    "on_before_backward",
    "on_train_batch_end",
    "on_train_epoch_start",
    "on_train_epoch_end",
    "on_validation_start",
    "on_validation_end",
    "on_train_end",
)


@pytest.mark.slow
@pytest.mark.smoke("on_train_batch_end", "on_validation_end")
@pytest.mark.parametrize("hook", HOOKS)
def test_a_checkpoint_at_any_moment_of_a_fit(path, tmp_path, steps, hook):
    check_hook(path, tmp_path, steps, {}, hook, stops=3)


@pytest.mark.faults
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hook", HOOKS)
def test_a_checkpoint_at_any_moment_of_any_fit(path, tmp_path, steps, kind, hook):
    check_hook(path, tmp_path, steps, KINDS[kind], hook, stops=12)


def check_hook(path, folder, steps, options, hook, *, stops):
    """Checkpoints that were saved in a hook, so many of them: each resumes with the next batch."""
    whole = run(path, **options, max_steps=4 * steps)
    saver = SaveAt(hook, folder)
    run(path, **options, callbacks=[saver], max_steps=2 * steps + 3)
    saved = saver.done
    borders = [each for each in saved if each % steps in (0, 1, 6, steps - 1)]
    chosen = sorted({*borders[: stops // 2], *saved[:: -(-len(saved) // stops)], saved[-1]})

    assert chosen
    for done in chosen:
        rest = run(path, **options, ckpt_path=folder / f"{done}.ckpt", max_steps=done + steps + 2)
        assert whole[done : done + steps + 2] == rest, done


def test_a_checkpoint_of_a_step_that_failed_does_it_again(path, tmp_path, steps):
    class Fails(Recorder):
        def training_step(self, batch):
            loss = super().training_step(batch)
            if sum(map(len, self.seen.values())) == 5:
                raise ZeroDivisionError
            return loss

    whole = run(path, max_steps=2 * steps)
    saver = SaveAt("on_exception", tmp_path)
    with pytest.raises(ZeroDivisionError):
        run(path, callbacks=[saver], max_steps=2 * steps, model=Fails())

    assert whole[4:steps] == run(path, ckpt_path=tmp_path / "4.ckpt", max_steps=steps)


@pytest.mark.smoke("0")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_overfitting_sees_the_same_batches_in_every_epoch(path, tmp_path, num_workers):
    options = {"num_workers": num_workers, "overfit_batches": 4}
    seen = run(path, **options, max_epochs=3, save=tmp_path / "overfit.ckpt")
    more = run(path, **options, max_epochs=5, ckpt_path=tmp_path / "overfit.ckpt")

    assert seen[:4] * 3 == seen
    assert more
    assert seen[:4] * (len(more) // 4) == more


@pytest.mark.smoke("0-3")
@pytest.mark.parametrize("limit", [3, 0.5])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_limited_passes_begin_their_epochs_and_limited_validation_sees_the_same_rows_each_time(
    path, steps, limit, num_workers
):
    limited = {
        "limit_train_batches": limit,
        "limit_val_batches": 2,
        "max_epochs": 3,
        "num_workers": num_workers,
    }
    model = Recorder()
    seen = run(path, **limited, model=model)
    whole = run(path, max_epochs=3)
    of_epoch = limit if isinstance(limit, int) else int(steps * limit)
    validation = HeadraceDataModule(path, batch_size=16).val_dataloader()
    first_two = [
        row for batch in islice(validation, 2) for row in batch["row"][batch["valid"]].tolist()
    ]

    assert [batch for n in range(3) for batch in whole[n * steps : n * steps + of_epoch]] == seen
    assert [first_two] * 3 == model.validated


def test_a_state_of_an_earlier_version_is_refused(path):
    module = HeadraceDataModule(path, batch_size=16, columns=["row", "x", "y"])
    stream = module.train_dataloader().stream
    with pytest.raises(headrace.errors.StreamError, match="format_version is None"):
        module.load_state_dict({"stream": stream.state_after(3), "batches": 3})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batches": -1}, "batches is -1, expected a number of 0 or more"),
        ({"batches": True}, "batches is True, expected a number"),
        ({"ended": 1}, "ended is 1, expected true or false"),
        ({"stream": 3}, "stream is 3, expected the state of a stream"),
        ({"epoch": 3}, "keys .'batches', 'ended', 'epoch', 'stream'."),
    ],
)
def test_a_damaged_state_is_refused(path, change, message):
    module = HeadraceDataModule(path, batch_size=16)
    module.train_dataloader()
    state = unseal(module.state_dict(), subject="data module", version=FORMAT_VERSION)
    with pytest.raises(headrace.errors.StreamError, match=message):
        module.load_state_dict(seal("data module", FORMAT_VERSION, {**state, **change}))


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 2])
def test_two_ranks_resume_a_fit_that_stopped_inside_an_epoch(path, tmp_path, num_workers):
    with free_ports(1) as (port,):
        run_ranks(saves_of_rank, 2, str(path), str(tmp_path), port, num_workers)
    ranks = [json.loads((tmp_path / f"rank-{rank}.json").read_text())["two"] for rank in range(2)]
    train = rows_of(path, "train")
    for moment in ("after the fit", "in a step"):
        before = [rank[moment]["before"] for rank in ranks]
        after = [rank[moment]["after"] for rank in ranks]
        epoch = [
            one + two[: len(rank["whole"]["epoch"]) - len(one)]
            for one, two, rank in zip(before, after, ranks, strict=True)
        ]

        assert train == sorted(chain.from_iterable(chain.from_iterable(epoch)))
        assert [rank["whole"]["epoch"] for rank in ranks] == epoch
