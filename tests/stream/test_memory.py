"""Pinned memory: every tensor of a batch is pinned once, in the process that trains; without CUDA nothing changes."""

import contextlib
import gc
import subprocess
import sys
import warnings
from collections import namedtuple
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pytest
import torch
from option_cases import kinds_dataset
from stream_cases import ranks
from torch.utils.data import DataLoader
from torch_cases import dataset_of

from headrace.errors import SettingsError
from headrace.stream.loader.options import StreamOptions
from headrace.stream.read import memory
from headrace.stream.read.memory import pinned
from raised import raised

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
    batch = {
        "x": x,
        "text": text,
        "array": np.arange(2),
        "pair": Pair(y, 1),
        "deep": [{"y": y}],
        "both": (x, "t"),
    }
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


@pytest.mark.slow
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
    done = subprocess.run(
        [sys.executable, "-c", f"{paths}\n{code}"], capture_output=True, text=True, check=True
    )

    assert 1 == done.stderr.count('memory="pinned": CUDA is not available here')


@pytest.mark.skipif(not CUDA, reason="needs CUDA")
def test_with_cuda_every_tensor_is_in_pinned_memory():
    batches = list(kinds_dataset(0, memory="pinned", remainder="pad"))

    assert all(
        batch[name].is_pinned()
        for batch in batches
        for name in ("row", "half", "day", "time", "valid")
    )
    assert all(
        ids is None or not ids.numel() or ids.is_pinned()
        for batch in batches
        for ids in batch["ids"]
    )


@pytest.mark.smoke("asked0")
@pytest.mark.parametrize("asked", [{"memory": "pinned"}, {"device": "cpu"}, {"device": "cuda:1"}])
def test_in_workers_it_is_refused_with_what_to_do(asked):
    [name] = asked
    with raised(SettingsError, setting=name, remedy="DataLoader(..., pin_memory=True)"):
        dataset_of(2, **asked)
    with pytest.raises(SettingsError, match=rf"{name}=.* with num_workers=1: "):  # told by torch
        list(
            DataLoader(
                dataset_of(0, **asked),
                batch_size=None,
                num_workers=1,
                multiprocessing_context="fork",
            )
        )


# --- a device ---


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:-1", "cpu:0", "", 0, torch.device("cpu")])
def test_a_device_is_a_word(device):
    with raised(SettingsError, setting="device", value=device):
        StreamOptions(batch_size=4, device=device)


def test_a_device_needs_tensors():
    with raised(SettingsError, setting="device", remedy="a transform that makes tensors"):
        StreamOptions(batch_size=4, device="cpu", batch_format="arrow")
    made = StreamOptions(
        batch_size=4, device="cpu", batch_format="arrow", transform=lambda table: torch.ones(3)
    )

    assert "cpu" == made.device


def test_the_data_loader_does_not_pin_what_is_on_a_device():
    with raised(SettingsError, setting="memory", remedy="leave memory= out"):
        dataset_of(0, device="cpu").data_loader(memory="pinned")


def test_batches_of_a_device_are_the_same_batches_in_one_piece_each():
    plain, placed = list(kinds_dataset(0)), list(kinds_dataset(0, device="cpu"))

    assert len(plain) == len(placed)
    for expected, batch in zip(plain, placed, strict=True):
        assert list(expected) == list(batch)
        tensors = [batch[name] for name in ("row", "half", "day", "time", "valid")]
        assert 1 == len({tensor.untyped_storage().data_ptr() for tensor in tensors})
        assert all(tensor.is_contiguous() and not tensor.data_ptr() % 64 for tensor in tensors)
        for name in expected:
            assert repr(expected[name]) == repr(batch[name])


def test_a_batch_of_a_device_may_be_written_to_and_kept():
    loader = kinds_dataset(0, device="cpu", columns=["row"], shuffle=False)
    kept = []
    for batch in loader:
        batch["row"] += 1000
        kept.append(batch)

    assert list(range(1000, 1000 + 81)) == sorted(
        row for batch in kept for row in batch["row"].tolist()
    )
    assert all(batch["valid"].all() for batch in kept)


def test_padded_steps_of_a_device_have_one_shape():
    shapes = set()
    for topology in ranks(2):
        dataset = kinds_dataset(
            0, topology=topology, device="cpu", columns=["row", "half"], remainder="pad"
        )
        shapes |= {
            tuple((name, value.shape, value.dtype, value.stride()) for name, value in batch.items())
            for batch in dataset
        }

    assert 1 == len(shapes)


def test_what_a_transform_made_is_copied_too():
    class Own:
        def __init__(self, where="here"):
            self.where = where

        def to(self, device):
            return Own(device)

    sparse = torch.eye(2).to_sparse()
    made = {
        "pair": Pair(torch.ones(2), [torch.zeros(3)]),
        "own": Own(),
        "sparse": sparse,
        "empty": torch.ones(0, 4),
    }
    loader = kinds_dataset(
        0, device="cpu", columns=["row"], transform=lambda batch: made | {"row": batch["row"]}
    )
    batch = next(iter(loader))

    assert type(batch["pair"]) is Pair
    assert batch["pair"].x.untyped_storage().data_ptr() == batch["row"].untyped_storage().data_ptr()
    assert torch.equal(torch.zeros(3), batch["pair"].y[0])
    assert torch.device("cpu") == batch["own"].where
    assert torch.equal(sparse.to_dense(), batch["sparse"].to_dense())
    assert (0, 4) == batch["empty"].shape


@pytest.mark.skipif(CUDA, reason="there is CUDA here")
def test_without_cuda_a_device_warns_and_gives_the_same_batches():
    memory._warn_once.cache_clear()
    with pytest.warns(UserWarning, match='device="cuda:3": CUDA is not available here'):
        batches = list(kinds_dataset(0, device="cuda:3", columns=["row"]))

    assert [b["row"].tolist() for b in kinds_dataset(0, columns=["row"])] == [
        b["row"].tolist() for b in batches
    ]


class Device(torch.Tensor):
    """A tensor that says what is done with it."""

    said: ClassVar = []

    def to(self, device, *, non_blocking):
        self.said.append(("copy", str(device), non_blocking, FakeCuda.present))
        return self.clone()

    def record_stream(self, stream):
        self.said.append(("record", stream.name))


class Stream:
    def __init__(self, name):
        self.name = name

    def record_event(self):
        Device.said.append(("event", self.name))
        return "done"

    def wait_event(self, event):
        Device.said.append(("wait", self.name, event))


class FakeCuda:
    """What `DeviceCopies` asks of torch: one device, the loop's stream, and another one."""

    present = "loop"

    def __getattr__(self, name):
        return getattr(torch, name)

    cuda = property(lambda self: self)
    is_available = staticmethod(lambda: True)
    device_count = staticmethod(lambda: 1)
    current_device = staticmethod(lambda: 0)
    current_stream = staticmethod(lambda device: Stream("loop"))
    Stream = staticmethod(lambda device: Stream("side"))

    @contextlib.contextmanager
    def stream(self, stream):
        FakeCuda.present = stream.name
        yield
        FakeCuda.present = "loop"

    @staticmethod
    def empty(size, *, dtype, pin_memory):
        Device.said.append(("pinned" if pin_memory else "pageable", FakeCuda.present))
        return torch.empty(size, dtype=dtype).as_subclass(Device)


def test_a_copy_is_made_aside_and_the_stream_of_the_loop_waits_for_it():
    """The order of the calls; that CUDA does what they say is for a machine that has it."""
    Device.said.clear()
    copies = memory.DeviceCopies(FakeCuda(), "cuda")
    copied = copies.begin({"x": torch.arange(3), "text": ["a"]})
    begun = list(Device.said)
    batch = copies.finish(copied)

    assert [("pinned", "side"), ("copy", "cuda:0", True, "side"), ("event", "side")] == begun
    assert [("wait", "loop", "done"), ("record", "loop")] == Device.said[len(begun) :]
    assert ([0, 1, 2], ["a"]) == (batch["x"].tolist(), batch["text"])
    with raised(SettingsError, setting="device", value="cuda:1"):
        memory.DeviceCopies(FakeCuda(), "cuda:1")


@pytest.mark.skipif(not CUDA, reason="needs CUDA")
def test_with_cuda_batches_are_on_the_device_and_right_under_a_busy_loop():
    plain = list(kinds_dataset(0, columns=["row", "half", "ids"], remainder="pad"))
    placed = kinds_dataset(0, columns=["row", "half", "ids"], remainder="pad", device="cuda")
    busy = torch.rand(2000, 2000, device="cuda")
    sums = []
    for batch in placed:
        assert "cuda" == batch["row"].device.type
        busy = busy @ busy  # the loop's stream is behind its copies
        busy /= busy.max()
        sums.append((batch["row"] * 2).sum())
        del batch  # its memory may be used again, but not before the stream has used it

    assert [int(batch["row"].sum()) * 2 for batch in plain] == [int(each) for each in sums]
    for expected, batch in zip(plain, placed, strict=True):
        assert torch.equal(expected["half"].nan_to_num(), batch["half"].cpu().nan_to_num())


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
