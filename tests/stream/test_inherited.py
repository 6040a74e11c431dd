"""Garbage of the parent is the parent's: a forked worker never runs its finalizers."""

import gc
import os

import numpy as np
import pytest
from option_cases import kinds_dataset
from torch.utils.data import DataLoader

pytestmark = [
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded"),  # forks on purpose
    pytest.mark.filterwarnings(
        "ignore:This DataLoader will create"
    ),  # the number of workers is the subject
]


class Cycle:
    """Garbage that only a collector frees; it writes down in which process."""

    def __init__(self, notes):
        self.itself = self
        self.notes = notes

    def __del__(self):
        with self.notes.open("a") as file:
            file.write(f"{os.getpid()}\n")


def collecting(batch):
    gc.collect()
    return {"row": batch["row"], "process": np.full(len(batch["row"]), os.getpid())}


def test_a_forked_worker_frees_no_garbage_of_its_parent(tmp_path):
    notes = tmp_path / "notes"
    gc.collect()
    gc.disable()
    try:
        Cycle(notes)
        dataset = kinds_dataset(2, transform=collecting, columns=["row"])
        loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="fork")
        workers = {int(batch["process"][0]) for batch in loader}
        gc.collect()
    finally:
        gc.enable()

    assert 2 == len(workers - {os.getpid()})
    assert f"{os.getpid()}\n" == notes.read_text()
