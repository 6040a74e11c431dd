"""The data module under real Lightning trainers: chunks epoch by epoch, pools, checkpoints, two and three ranks."""

import json
import logging
from itertools import chain

import numpy as np
import pyarrow as pa
import pytest
from series_cases import expected_windows, write_run

pytest.importorskip("lightning", reason="needs lightning")

from lightning_series_cases import ExtraLoaders, fit, ids, on_rank
from rank_processes import free_ports, run_ranks

from headrace.errors import InputError, SettingsError, StreamError
from headrace.lightning import SeriesDataModule
from headrace.sealed import seal
from headrace.series.windows.datamodule import choose_pool
from raised import raised

pytestmark = [
    pytest.mark.filterwarnings("ignore:GPU available but not used"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory:"),
    pytest.mark.filterwarnings(
        "ignore:.*LeafSpec.* is deprecated:FutureWarning"
    ),  # lightning 2.6 in newer torch
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`"),
    pytest.mark.filterwarnings("ignore:Lazy modules are a new feature"),
    pytest.mark.filterwarnings("ignore:.*will save all targets"),
]

LENGTHS = (60, 45, 80, 30, 52, 70, 66, 58, 61, 47, 73, 64)
RULE = {"input_length": 5, "output_length": 2}
DAY_0 = int(np.datetime64("2001-02-03", "D").astype(int))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("series")
    return out, write_run(out, LENGTHS, shards=3)


@pytest.fixture
def lightning_log():
    """What Lightning prints for rank 0, lines of the module's windows alone."""
    lines = []

    class Keep(logging.Handler):
        def emit(self, record):
            lines.append(record.getMessage())

    logger, keep = logging.getLogger("lightning.pytorch.utilities.rank_zero"), Keep()
    logger.addHandler(keep)
    yield lines
    logger.removeHandler(keep)


def windows_of(values, split, **rule):
    """(entity, day of the last input) of every window."""
    rule = {**RULE, **rule}
    return sorted(
        [e, DAY_0 + e + s + rule["input_length"] - 1]
        for e, s in expected_windows(values, split, **rule)
    )


def flat(batches):
    return list(chain.from_iterable(batches))


def trained(model):
    return {epoch: sorted(flat(batches)) for epoch, batches in model.seen.items()}


def entities(windows):
    return {entity for entity, _ in windows}


def test_epochs_are_chunks_and_a_pass_has_every_window_of_every_training_entity_once(run):
    out, values = run
    model, _, _ = fit(out, epochs=8, chunk_size=3, validation="time")
    seen = trained(model)

    assert list(range(8)) == sorted(seen)
    assert windows_of(values, "train") == sorted(flat(seen[epoch] for epoch in range(4)))
    assert windows_of(values, "train") == sorted(flat(seen[epoch] for epoch in range(4, 8)))
    first, second = (
        [frozenset(entities(seen[epoch])) for epoch in part] for part in (range(4), range(4, 8))
    )
    assert all(3 == len(each) for each in first + second)
    assert set(first) != set(second)  # T7
    assert len({len(each) for each in seen.values()}) > 1  # chunks of different sizes, none cut off
    assert model.finite


def test_loaders_that_nobody_uses_and_sanity_checks_move_nothing(run):
    """T8: Lightning makes loaders that it throws away, and resuming makes one more."""
    out, _ = run
    plain, _, _ = fit(out, epochs=3, chunk_size=3)
    asked, _, _ = fit(out, epochs=3, chunk_size=3, sanity=2, extra=[ExtraLoaders()])
    reloading, _, _ = fit(
        out, epochs=3, chunk_size=3, trainer={"reload_dataloaders_every_n_epochs": 1}
    )

    assert plain.seen == asked.seen == reloading.seen
    assert 3 + 1 == len(asked.validated)


@pytest.mark.slow
@pytest.mark.parametrize("chunks", [{}, {"chunk_size": 3}])
def test_a_stopped_fit_goes_on_exactly_where_it_was(run, tmp_path, chunks):
    out, _ = run
    whole, _, _ = fit(out, epochs=3, **chunks)
    steps = [len(whole.seen[epoch]) for epoch in range(3)]

    for stop in (1, steps[0] - 1, steps[0], steps[0] + 2):
        fit(out, epochs=3, max_steps=stop, folder=tmp_path / str(stop), every=1, **chunks)
        resumed, _, _ = fit(
            out, epochs=3, ckpt_path=tmp_path / str(stop) / f"step={stop}.ckpt", **chunks
        )

        rest = flat(resumed.seen[epoch] for epoch in sorted(resumed.seen))
        assert flat(whole.seen[epoch] for epoch in range(3))[stop:] == rest


@pytest.mark.slow
@pytest.mark.parametrize("chunks", [{}, {"chunk_size": 3}])
def test_a_checkpoint_after_a_fit_that_stopped_inside_an_epoch(run, tmp_path, chunks):
    out, _ = run
    whole, _, _ = fit(out, epochs=3, **chunks)
    steps = len(whole.seen[0])
    everything = flat(whole.seen[epoch] for epoch in range(3))

    for stop in (2, steps - 1, steps, steps + 2):
        _, module, _ = fit(out, epochs=3, max_steps=stop, **chunks)
        module.trainer.save_checkpoint(tmp_path / "stopped.ckpt")
        resumed, _, _ = fit(
            out, epochs=-1, max_steps=len(everything), ckpt_path=tmp_path / "stopped.ckpt", **chunks
        )

        rest = flat(resumed.seen[epoch] for epoch in sorted(resumed.seen))
        assert everything[stop:] == rest, stop


@pytest.mark.parametrize(
    ("validation", "split", "overlap"),
    [("time", "val", True), ("entity", "train", False), ("both", "val", False)],
)
def test_who_trains_and_who_validates_is_what_was_chosen(run, validation, split, overlap):
    """T10"""
    out, values = run
    model, module, _ = fit(out, epochs=1, validation=validation, validation_chunk_size=4)
    train, val = trained(model)[0], sorted(model.validated[-1])
    pool = entities(val)

    assert 4 == len(pool)
    assert overlap == bool(pool & entities(train))
    assert (set(range(12)) if overlap else set(range(12)) - pool) == entities(train)
    assert [each for each in windows_of(values, split) if each[0] in pool] == val
    assert [each for each in windows_of(values, "train") if each[0] in entities(train)] == train
    assert (
        module.windows("pool").matrices.rows < sum(LENGTHS) / 2
    )  # in memory: only the pool's own rows


def test_the_pool_by_default_holds_a_tenth_of_the_entities_out(run):
    module = SeriesDataModule(run[0], **RULE, batch_size=8)
    other = SeriesDataModule(run[0], **RULE, batch_size=8, seed=3)

    assert "both" == module.validation
    assert 1 == (module.windows("pool").per_entity > 0).sum()
    assert 11 == (module.windows("train").per_entity > 0).sum()
    assert (module.windows("pool").per_entity > 0).tolist() != (
        other.windows("pool").per_entity > 0
    ).tolist()


def test_testing_has_every_window_and_predicting_those_without_targets_too(run):
    out, values = run
    model, module, engine = fit(out, epochs=1, val_batch_size=5)
    engine.test(model, datamodule=module, verbose=False)
    predicted = engine.predict(model, datamodule=module)

    assert windows_of(values, "test") == sorted(model.tested)
    kept = windows_of(values, "test", targets="none", incomplete="keep")
    assert len(kept) <= sum(len(entity) for entity, _, _ in predicted) < len(kept) + 5
    for _, complete, out in predicted:
        assert bool(out[complete].isfinite().all())
    assert not all(complete.all() for _, complete, _ in predicted)
    item = module.inference_dataset()[0]
    assert "y" not in item
    assert (5, 2) == tuple(item["X"].shape)


def test_autoregressive_windows_read_the_targets_past(run):
    out, values = run
    module = SeriesDataModule(out, **RULE, batch_size=8, is_autoregressive=True, validation="time")
    batches = list(module.train_dataloader())

    assert ("flow", "rain", "warmth") == module.windows("train").input_names
    assert windows_of(values, "train", is_autoregressive=True) == sorted(flat(map(ids, batches)))
    assert all(bool(batch["X"].isfinite().all()) for batch in batches)


def test_missing_values_never_reach_a_model_in_training_or_validation(tmp_path):
    write_run(tmp_path, LENGTHS, missing=0.08)
    for targets in ("all", "any"):
        model, _, _ = fit(
            tmp_path,
            epochs=1,
            validation="time",
            options={"targets": targets, "history": "preceding"},
        )

        assert model.finite
        assert model.validated[-1]


def test_workers_are_warned_of_and_not_started(run):
    with pytest.warns(UserWarning, match="num_workers=4 is ignored: .* leave num_workers at 0"):
        SeriesDataModule(run[0], **RULE, batch_size=8, num_workers=4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"validation": "random"}, "validation is 'random'; expected one of time, entity, both"),
        ({"validation_chunk_size": 0}, "validation_chunk_size is 0"),
        (
            {"validation_chunk_size": 12, "validation": "entity"},
            r"leaves none of them; choose a smaller one",
        ),
        ({"chunk_size": 0}, "chunk_size is 0"),
        ({"chunk_size": "3"}, "chunk_size is '3'"),
        ({"input_length": 0}, "input_length is 0"),
    ],
)
def test_settings_that_cannot_work_are_said(run, settings, message):
    with pytest.raises(SettingsError, match=message):
        SeriesDataModule(run[0], **{**RULE, "batch_size": 8, **settings}).train_dataloader()


def test_setup_tells_the_windows_of_every_part(tmp_path, lightning_log):
    values = write_run(tmp_path, (60, 45, 80, 30, 52, 70, 20), missing=0)
    module = SeriesDataModule(
        tmp_path, input_length=10, output_length=2, batch_size=8, validation="time"
    )
    module.setup("fit")
    module.setup("test")

    train, pool, test = lightning_log
    windows = windows_of(values, "train", input_length=10)
    assert f"train: {len(windows)} windows of 7 entities" == train
    assert (
        "pool: 9 windows of 3 entities; 4 of 7 have none, e.g. basin_001, basin_003, basin_004, basin_006"
        in pool
    )
    assert test.startswith("test: 9 windows of 3 entities; 4 of 7 have none")
    counts = module.window_counts
    assert {"train": len(windows), "pool": 9, "test": 9} == {
        part: each.windows for part, each in counts.items()
    }
    assert ("basin_001", "basin_003", "basin_004", "basin_006") == counts["pool"].without


@pytest.mark.parametrize(
    ("validation", "words"),
    [
        ("both", "'val' has no window.*give input_length 14, the longest"),
        ("time", "val_ratio of about"),
    ],
)
def test_nothing_to_validate_on_is_an_error_that_names_the_fix(tmp_path, validation, words):
    write_run(tmp_path, LENGTHS, missing=0)
    settings = {"input_length": 20, "output_length": 2, "batch_size": 8}
    for stage in ("fit", "validate", None):
        with pytest.raises(InputError, match=words):
            SeriesDataModule(tmp_path, **settings, validation=validation).setup(stage)
    fixed = SeriesDataModule(tmp_path, **{**settings, "input_length": 14}, validation=validation)
    fixed.setup("fit")
    assert len(fixed.val_dataloader())
    with raised(
        InputError, setting="input_length", remedy="give input_length 14, the longest that gives a"
    ):
        SeriesDataModule(tmp_path, **settings, validation="none").setup("test")
    with raised(
        InputError, setting="input_length", remedy="give input_length 14, the longest that gives a"
    ):
        SeriesDataModule(tmp_path, **settings, validation="none").test_dataloader()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Total length of `list` across ranks is zero")
def test_nobody_validates_if_that_is_chosen(run):
    out, values = run
    model, module, _ = fit(out, epochs=1, validation="none")

    assert [] == model.validated
    assert [] == module.val_dataloader()
    assert windows_of(values, "train") == trained(model)[0]
    assert list(module.window_counts) == ["train", "test"]


def test_a_part_that_there_is_not_is_said(run):
    with raised(SettingsError, remedy="expected one of train, pool, test, predict"):
        SeriesDataModule(run[0], **RULE, batch_size=8).windows("trian")


def test_a_checkpoint_of_another_module_or_of_other_chunks_is_refused(run, tmp_path):
    out, _ = run
    module = SeriesDataModule(out, **RULE, batch_size=8)
    with raised(StreamError, remedy="resume with the version that saved it, or start"):
        module.load_state_dict({"stream": {}})
    with pytest.raises(StreamError, match="written with SeriesDataModule"):
        module.load_state_dict(seal("data module", 2, {"stream": {}}))
    fit(out, epochs=1, max_steps=2, folder=tmp_path, every=1, chunk_size=3)

    with pytest.raises(StreamError, match="or the chunks are others than when it was saved"):
        fit(out, epochs=1, ckpt_path=tmp_path / "step=1.ckpt", chunk_size=4)


@pytest.fixture(scope="module")
def ranks(run, tmp_path_factory):
    """Fits on 2 ranks, stopped and resumed on 3, with chunks and without: rank → group → job → what it saw."""
    out, _ = run
    folder = tmp_path_factory.mktemp("ranks")
    chunked, whole = {"chunk_size": 5, "validation_chunk_size": 2}, {"validation_chunk_size": 2}
    with free_ports(2) as (one, other):
        groups = [
            ("two", 2, one, {
                "whole": {"epochs": 3, **whole}, "chunked": {"epochs": 3, **chunked},
                "stopped": {"epochs": 3, "max_steps": 5, "every": 5, **chunked},
            }),
            ("three", 3, other, {"resumed": {"epochs": 3, "ckpt_path": str(folder / "step=5.ckpt"), **chunked}}),
        ]  # fmt: skip
        run_ranks(on_rank, 3, str(out), str(folder), groups)
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(3)]


def together(ranks, group, job, epoch):
    """(the batches of each rank, all their windows)."""
    batches = [each[group][job]["seen"].get(str(epoch), []) for each in ranks if group in each]
    return batches, sorted(flat(flat(each) for each in batches))


@pytest.mark.slow
def test_two_ranks_share_the_windows_of_the_same_chunk_in_equal_steps(run, ranks):
    """T9"""
    out, _ = run
    alone, _, _ = fit(out, epochs=3, chunk_size=5, validation_chunk_size=2)
    everywhere, _, _ = fit(out, epochs=3, validation_chunk_size=2)

    for job, expected in (("chunked", alone), ("whole", everywhere)):
        for epoch in range(3):
            batches, windows = together(ranks, "two", job, epoch)

            assert 1 == len({len(each) for each in batches})
            assert sorted(flat(expected.seen[epoch])) == windows
            shared = [
                entities(flat(each)) for each in batches
            ]  # entities are not dealt out, windows are
            assert all(2 * len(each) > len(entities(windows)) for each in shared)
    validated = sorted(flat(flat(each["two"]["chunked"]["validated"][-1:]) for each in ranks[:2]))
    assert sorted(alone.validated[-1]) == validated


@pytest.mark.slow
def test_a_fit_stopped_on_two_ranks_goes_on_on_three(run, ranks):
    seen, resumed = {}, {}
    for epoch in range(3):
        _, seen[epoch] = together(ranks, "two", "stopped", epoch)
        rest, resumed[epoch] = together(ranks, "three", "resumed", epoch)
        assert 1 == len({len(each) for each in rest})
        _, whole = together(ranks, "two", "chunked", epoch)

        assert whole == sorted(seen[epoch] + resumed[epoch])
    assert 0 < sum(map(len, seen.values())) <= 5 * 2 * 8
    assert resumed[2]


@pytest.mark.slow
def test_nothing_but_finite_numbers_reached_any_rank(ranks):
    assert all(job["finite"] for rank in ranks for group in rank.values() for job in group.values())


def test_entities_that_validate_go_on_validating_beside_one_more():
    names = pa.array([f"basin_{number}" for number in range(51)])

    def pool(count):
        ones = np.ones(count, np.int64)
        return choose_pool(names[:count], ones, ones, validation="both", size=7, seed=0)[1]

    before, after = pool(50), pool(51)

    assert 7 == before.sum() == after.sum()
    assert (before & after[:50]).sum() >= 6
