"""Pinned memory: every tensor of a batch is pinned once, in the process that trains; without CUDA nothing changes."""

import gc
import subprocess
import sys
import warnings
from collections import namedtuple

import numpy as np
import pyarrow as pa
import pytest
import torch
from option_cases import kinds_dataset
from torch_cases import dataset_of

from headrace.errors import SettingsError
from headrace.stream.read.memory import pinned

CUDA = torch.cuda.is_available()
Pair = namedtuple("Pair", "x y")


class Pinning:
    """Stands for pinning: a copy, and which tensors were asked for."""

    def __init__(self):
        self.asked = []

    def __call__(self, tensor):
        self.asked.append(tensor)
        return tensor.clone()


def test_all_tensors_are_pinned_and_nothing_else_changes():
    pin = Pinning()
    x, y = torch.arange(4), torch.rand(2, 3)
    table, text = pa.table({"a": [1]}), ["a", None]
    batch = {"x": x, "text": text, "array": np.arange(2), "pair": Pair(y, 1), "deep": [{"y": y}], "both": (x, "t")}
    done = pinned(batch | {"table": table}, pin)

    assert [id(each) for each in (x, y, y, x)] == [id(each) for each in pin.asked]
    assert done["x"] is not x
    assert torch.equal(x, done["x"])
    assert torch.equal(y, done["pair"].x)
    assert type(done["pair"]) is Pair
    assert torch.equal(y, done["deep"][0]["y"])
    assert (text, table, "t", 1) == (done["text"], done["table"], done["both"][1], done["pair"].y)
    assert done["array"] is batch["array"]
    assert list(batch | {"table": table}) == list(done)


def test_lists_of_tensors_are_pinned_as_one_piece():
    pin = Pinning()
    rows = [torch.tensor([1, 2]), None, torch.tensor([], dtype=torch.int64), torch.tensor([3])]
    done = pinned(rows, pin)

    assert 1 == len(pin.asked)
    assert [None if row is None else row.tolist() for row in rows] == [
        None if row is None else row.tolist() for row in done
    ]


def test_what_can_pin_itself_is_asked_and_what_cannot_be_pinned_is_left():
    class Own:
        def pin_memory(self):
            return "pinned itself"

    pin = Pinning()
    sparse = torch.eye(2).to_sparse()

    assert "pinned itself" == pinned(Own(), pin)
    assert pinned(sparse, pin) is sparse
    assert [] == pin.asked


@pytest.mark.skipif(CUDA, reason="there is CUDA here")
def test_without_cuda_it_warns_once_and_batches_stay_as_they_are():
    code = (
        "import warnings; warnings.simplefilter('always')\n"
        "from torch_cases import dataset_of\n"
        "from headrace.stream.loader.stream_loader import StreamLoader\n"
        "d = dataset_of(0, memory='pinned')\n"
        "plain = [b['row'].tolist() for b in dataset_of(0)]\n"
        "for _ in range(2):\n"
        "    d.set_epoch(0)\n"
        "    assert plain == [b['row'].tolist() for b in d]\n"
    )
    paths = "import sys; sys.path[:0] = " + repr([path for path in sys.path if path])
    done = subprocess.run([sys.executable, "-c", f"{paths}\n{code}"], capture_output=True, text=True, check=True)

    assert 1 == done.stderr.count('memory="pinned": CUDA is not available here')


@pytest.mark.skipif(not CUDA, reason="needs CUDA")
def test_with_cuda_every_tensor_is_in_pinned_memory():
    batches = list(kinds_dataset(0, memory="pinned", remainder="pad"))

    assert all(batch[name].is_pinned() for batch in batches for name in ("row", "half", "day", "time", "valid"))
    assert all(ids is None or not ids.numel() or ids.is_pinned() for batch in batches for ids in batch["ids"])


def test_in_workers_it_is_refused_with_what_to_do():
    with pytest.raises(SettingsError, match=r"num_workers=2: .*DataLoader\(\.\.\., pin_memory=True\)"):
        dataset_of(2, memory="pinned")


@pytest.mark.skipif(CUDA, reason="there is CUDA here")
def test_the_data_loader_pins_what_workers_sent():
    loader = kinds_dataset(1, columns=["row", "ids"]).data_loader(method="fork", memory="pinned")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*pin_memory.*")
        rows = sorted(row for batch in loader for row in batch["row"].tolist())

    assert loader.pin_memory
    assert list(range(len(rows))) == rows
    assert not dataset_of(0).data_loader().pin_memory
    with pytest.raises(SettingsError, match="memory is 'page'"):
        dataset_of(0).data_loader(memory="page")
    gc.collect()
