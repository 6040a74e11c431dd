"""A stream inside somebody's own dataset gives every row once, or is refused by name."""

import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rank_processes import run_ranks
from script_processes import held_store
from torch.utils.data import DataLoader
from torch_cases import ROWS, dataset_of
from wrapper_cases import Asking, Begun, InOneWorker, Wrapped, read_whole, stream_of

from headrace.errors import SettingsError, StreamError
from headrace.stream.ranks.topology import Topology
from headrace.stream.workers import serving
from headrace.stream.workers.options import WorkerOptions
from raised import raised

EVERY = list(range(sum(ROWS)))
METHODS = [
    pytest.param(method, marks=() if method == "fork" else pytest.mark.slow)
    for method in ("fork", "spawn", "forkserver")
]


def read_by_workers(
    dataset: Any, method: str | None, workers: int = 2, **more: Any
) -> DataLoader[Any]:
    return DataLoader(
        dataset, batch_size=None, num_workers=workers, multiprocessing_context=method, **more
    )


def rows_of(loader: Any) -> list[int]:
    return [row for batch in loader for row in batch["row"].tolist()]


@pytest.mark.parametrize("method", METHODS)
def test_a_wrapped_stream_is_refused_in_workers(method: str) -> None:
    """a `stream(...)` inside your own dataset, read by workers of a `DataLoader`."""
    with pytest.raises(SettingsError, match=r"worker 0, which reads Wrapped.*torch_dataset"):
        rows_of(read_by_workers(Wrapped(stream_of()), method))


@pytest.mark.parametrize("method", METHODS)
def test_a_wrapped_dataset_gives_every_row_once(method: str) -> None:
    assert EVERY == sorted(rows_of(read_by_workers(Wrapped(dataset_of(2)), method)))
    assert EVERY == sorted(rows_of(DataLoader(Wrapped(stream_of()), batch_size=None)))


def test_batches_that_no_worker_takes_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_COME_S", 0.3)
    with pytest.raises(StreamError, match=r"\d batches were read for worker 1 of 2"):
        rows_of(read_by_workers(InOneWorker(dataset_of(2)), "fork"))
    assert EVERY == sorted(rows_of(read_by_workers(InOneWorker(dataset_of(1)), "fork", workers=1)))


@pytest.mark.parametrize("make", [stream_of, partial(dataset_of, 0)], ids=["stream", "dataset"])
def test_forks_do_not_go_on_with_a_loop_that_their_parent_began(make: Any) -> None:
    begun = Begun(make())
    first = [next(begun.batches)]
    with pytest.raises(StreamError, match="began this loop, and process"):
        rows_of(read_by_workers(begun, "fork"))
    assert EVERY == sorted(rows_of([*first, *begun.batches]))


@pytest.mark.parametrize("asks", ["length", "state", "batches"])
@pytest.mark.parametrize("make", [stream_of, partial(dataset_of, 2)], ids=["stream", "dataset"])
def test_length_and_state_are_refused_inside_a_worker(make: Any, asks: str) -> None:
    with pytest.raises(SettingsError, match="worker 0"):
        next(iter(read_by_workers(Asking(make(), asks), "fork")))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
@pytest.mark.parametrize("make", [stream_of, partial(dataset_of, 0)], ids=["stream", "dataset"])
@pytest.mark.parametrize("method", METHODS)
def test_processes_that_are_given_a_stream_do_not_each_read_all_of_it(
    make: Any, method: str
) -> None:
    """one stream given to several processes, as by `ProcessPoolExecutor`."""
    here = multiprocessing.get_context(method)
    with ProcessPoolExecutor(2, mp_context=here) as pool:
        with pytest.raises(StreamError, match=r"made this stream.*in the process that reads it"):
            list(pool.map(read_whole, [make(), make()]))
        parts = [Topology(rank=rank, world_size=2) for rank in range(2)]
        shares = pool.map(read_whole, [make(topology=part, remainder="drop") for part in parts])
        rows = [row for share in shares for row in share]
    assert len(rows) == len(set(rows)) > len(EVERY) - 10


@pytest.mark.parametrize("workers", [0, 2])
def test_what_torch_would_shard_again_is_refused(workers: int) -> None:
    """`sharding_filter()` of torch over a stream."""
    from torch.utils.data.datapipes.iter import IterableWrapper

    def loader(ranks: int) -> Any:
        pipe = IterableWrapper(dataset_of(workers), deepcopy=False).sharding_filter()
        if not workers:
            pipe.apply_sharding(ranks, 0)
        return read_by_workers(pipe, "fork" if workers else None, workers)

    with pytest.raises(SettingsError, match=r"torch's sharding_filter shares out"):
        rows_of(loader(2) if workers else loader(2).dataset)
    if not workers:
        assert EVERY == sorted(rows_of(loader(1)))


@pytest.mark.slow
def test_a_stream_with_workers_is_refused_in_forked_workers() -> None:
    from headrace.stream.loader.source import StreamSource

    plain = stream_of()
    source = StreamSource(plain.index, plain.passes.read_block, plain.options)
    with pytest.raises(SettingsError, match="torch_dataset"):
        rows_of(
            read_by_workers(
                Wrapped(source.stream(workers=WorkerOptions(workers=1), topology=None)), "fork"
            )
        )


def test_what_accelerate_would_share_out_again_is_refused_through_a_wrapper(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="needs accelerate")
    from wrapper_cases import prepare_on_rank

    store = held_store()
    run_ranks(prepare_on_rank, 2, 2, store.port, str(tmp_path))
    told = json.loads((tmp_path / "rank-0.json").read_text())
    for title in ("stream", "dataset", "dataset in a worker"):
        assert told[title].startswith("Accelerate's DataLoaderDispatcher"), (title, told)
    assert "torch_dataset" in told["stream in a worker"]


@pytest.mark.parametrize(
    "more", [{}, {"batch_size": None}, {"shuffle": True}, {"num_workers": 1}], ids=str
)
def test_a_data_loader_over_a_stream_is_told_the_way(more: dict[str, Any]) -> None:
    # a worker's error has its text alone
    with pytest.raises(SettingsError, match=r"not read by index.*HeadraceTrainerMixin"):
        next(iter(DataLoader(stream_of(), **more)))


def test_integers_of_numpy_are_integers() -> None:
    stream = stream_of(batch_size=np.int64(5), seed=np.uint32(7), lanes=np.int32(8))
    stream.set_epoch(np.int64(3))
    plain = stream_of(seed=7)
    plain.set_epoch(3)
    assert rows_of(stream) == rows_of(plain)
    assert json.dumps(stream.state_dict()) == json.dumps(plain.state_dict())
    assert json.dumps(stream.state_after(np.int8(2))) == json.dumps(plain.state_after(2))
    for wrong in (np.float64(5), np.bool_(True), True, np.arange(2), "5"):  # fmt: skip
        with raised(SettingsError, setting="batch_size"):
            stream_of(batch_size=wrong)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_the_length_is_that_of_the_epoch_at_every_step(workers: int) -> None:
    whole = len(list(dataset_of(0)))
    for stop in range(whole + 1):
        dataset = dataset_of(workers)
        loader = dataset.data_loader(method="fork")
        batches = iter(loader)
        for _ in range(stop):
            next(batches)
        assert (len(dataset), len(loader), dataset.remaining) == (whole, whole, whole - stop)
        resumed = dataset_of(workers)
        resumed.load_state_dict(json.loads(json.dumps(dataset.state_dict())))
        del batches
        assert (len(resumed), resumed.remaining) == (whole, whole - stop)
        resumed.set_epoch(resumed.epoch)
        assert (len(resumed), resumed.remaining) == (whole, whole - stop)
        resumed.set_epoch(resumed.epoch + 1)
        assert (len(resumed), resumed.remaining) == (whole, whole)


def test_batches_taken_are_kept_over_changes_of_ranks_and_batch_sizes() -> None:
    taken, state = 0, None
    for ranks, batch_size in ((2, 5), (3, 4), (1, 7), (2, 3)):
        topology = Topology(rank=0, world_size=ranks)
        stream = dataset_of(0, batch_size=batch_size, topology=topology, remainder="pad")
        if state is not None:
            stream.load_state_dict(state)
        left = stream.current.steps
        assert (len(stream), stream.remaining) == (taken + left, left)
        state = stream.state_after(3)
        taken += 3
