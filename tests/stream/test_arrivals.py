"""A state after batches that came in another order than that of the pass is refused, and none other."""

import json
import pickle
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from torch_cases import dataset_of
from worker_cases import alike

from headrace.errors import StreamError
from headrace.stream.workers.arrivals import Arrivals, StepMark
from headrace.stream.workers.parcel import whole_batch
from raised import raised

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")

in_any_order = pytest.mark.skipif(
    torch.__version__ < "2.6", reason="torch gives batches in order alone"
)


def slow_at_first(batch):
    """Let batches of even steps take longer."""
    if int(batch["step"]) % 2 == 0:
        time.sleep(0.3)
    return batch


def with_step(batch, context):
    return slow_at_first({**batch, "step": torch.tensor(context.step)})


@given(st.permutations(range(12)))
def test_all_before_the_first_gap_have_arrived(steps):
    arrivals, came = Arrivals(0), set()
    for step in steps:
        pickle.loads(pickle.dumps(StepMark(arrivals.number, step))).note()
        came.add(step)
        assert arrivals.without_gap == min(set(range(13)) - came)


def test_batches_of_a_pass_that_is_gone_are_noted_nowhere():
    arrivals = Arrivals(0)
    mark = StepMark(arrivals.number, 0)
    del arrivals
    mark.note()


@in_any_order
def test_a_state_that_would_leave_a_gap_is_refused():
    dataset = dataset_of(2, transform=with_step)
    loader = DataLoader(
        dataset, batch_size=None, num_workers=2, multiprocessing_context="fork", in_order=False
    )
    steps = []
    refused = exact = 0
    for batch in loader:
        steps.append(int(batch["step"]))
        received = len(steps)
        if sorted(steps) == list(range(received)):
            dataset.state_after(received)
            exact += 1
        else:
            with raised(StreamError, remedy="in_order=False"):
                dataset.state_after(received)
            refused += 1
    assert refused
    assert exact
    assert sorted(steps) == list(range(len(steps)))


@pytest.mark.parametrize("transform", [None, with_step])
@pytest.mark.parametrize("batch_format", ["torch", pytest.param("arrow", marks=pytest.mark.slow)])
def test_a_state_in_order_is_exact_at_every_step(transform, batch_format):
    """Workers' batches arrive in another order than they are given in."""
    if transform is not None and batch_format == "arrow":
        transform = with_table
    settings = {"transform": transform, "batch_format": batch_format}
    dataset, whole = dataset_of(2, **settings), alike(dataset_of(0, **settings))
    loader = DataLoader(
        dataset,
        batch_size=None,
        num_workers=2,
        multiprocessing_context="fork",
        collate_fn=whole_batch if batch_format == "arrow" else None,
    )
    for number, _ in enumerate(loader, start=1):
        state = dataset.state_after(number)
        if number == 3:
            rest = dataset_of(0, **settings)
            rest.load_state_dict(json.loads(json.dumps(state)))
            assert whole[3:] == alike(rest)


def with_table(batch, context):
    if context.step % 2 == 0:
        time.sleep(0.1)
    return batch
