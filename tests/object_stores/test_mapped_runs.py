"""Contexts and windows of runs in a store: the same as of the local run, over copies that are fetched once."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fault_proxy import FaultProxy, Faults
from recipe_runs import recipes_over
from store_cases import upload

import headrace
import headrace.windows
from headrace.contexts import open_contexts
from headrace.errors import CorruptShard, SettingsError
from headrace.storage.places import path_of, place_of

SHARDS = (".array_record", ".arrow", ".arrayrecord")
CONTEXTS: dict[str, Any] = {
    "context_tokens": 128,
    "measurements_per_context": 5,
    "seed": 3,
}
WINDOWS: dict[str, Any] = {"input_length": 20, "output_length": 3}


@pytest.fixture(scope="module")
def recipes(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Callable[[], Any]]:
    return recipes_over(tmp_path_factory.mktemp("source"), rows=200, shards=4)


@pytest.fixture(scope="module")
def local(
    recipes: Mapping[str, Callable[[], Any]], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Histories in both formats, and series."""
    place = tmp_path_factory.mktemp("local")
    headrace.prepare(recipes["histories"](), place / "array_record", workers=1)
    mapped = recipes["histories"]().model_copy(update={"format": "arrow"})
    headrace.prepare(mapped, place / "arrow", workers=1)
    headrace.prepare(recipes["series"](), place / "series", workers=1)
    return place


class Remote:
    """Datasets are put into the store when they are first asked for."""

    def __init__(self, bucket: str, proxy: FaultProxy, local: Path) -> None:
        self.proxy = proxy
        self._bucket, self._local = bucket, local
        self._there: set[str] = set()

    def place(self, name: str) -> str:
        """The address of one of them; requests count from there."""
        if name not in self._there:
            upload(self._local / name, f"{self._bucket}/{name}")
            self._there.add(name)
            self.proxy.begin(Faults())
        return f"{self._bucket}/{name}"


@pytest.fixture
def remote(proxied: tuple[str, FaultProxy], local: Path) -> Remote:
    return Remote(*proxied, local)


def fetched(proxy: FaultProxy) -> Counter[str]:
    """How often each shard was asked for."""
    return Counter(
        path for method, path in proxy.seen.paths if method == "GET" and path.endswith(SHARDS)
    )


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return set(one) == set(other) and all(
        np.array_equal(one[name], other[name], equal_nan=True) for name in one
    )


@pytest.mark.smoke("arrow")
@pytest.mark.parametrize("format_", ["array_record", "arrow"])
def test_contexts_are_those_of_the_local_run(
    remote: Remote, local: Path, tmp_path: Path, format_: str
) -> None:
    here = open_contexts(local / format_, **CONTEXTS)
    there = open_contexts(remote.place(format_), cache_dir=tmp_path / "cache", **CONTEXTS)
    n = len(here)

    assert len(there) == n > 20
    assert same(there.batch(range(n + 5)), here.batch(range(n + 5)))  # into the second epoch
    assert same(pickle.loads(pickle.dumps(there)).batch([7, 3]), here.batch([7, 3]))
    again = open_contexts(
        remote.place(format_), cache_dir=tmp_path / "cache", verify="never", **CONTEXTS
    )
    assert same(again.batch(range(3, n)), here.batch(range(3, n)))
    assert set(fetched(remote.proxy).values()) == {1}


@pytest.mark.slow
def test_grain_resumes_over_a_store(remote: Remote, local: Path, tmp_path: Path) -> None:
    grain = pytest.importorskip("headrace.grain")

    def begin(place: str | Path) -> Any:
        dataset = grain.contexts(place, batch_size=4, cache_dir=tmp_path / "cache", **CONTEXTS)
        return iter(dataset.to_iter_dataset(grain.read_options(dataset, num_threads=2)))

    expected = list(begin(local / "array_record"))
    stream = begin(remote.place("array_record"))
    head = [next(stream) for _ in range(3)]
    resumed = begin(remote.place("array_record"))
    resumed.set_state(stream.get_state())
    found = [*head, *resumed]

    assert len(found) == len(expected) > 4
    assert all(same(one, other) for one, other in zip(found, expected, strict=True))
    assert set(fetched(remote.proxy).values()) == {1}


@pytest.mark.slow
def test_windows_are_those_of_the_local_run(remote: Remote, local: Path, tmp_path: Path) -> None:
    kept: dict[str, Any] = {"cache_dir": tmp_path / "cache"}
    for split in ("train", "val", "test"):
        here = headrace.windows.open_windows(local / "series", split, **WINDOWS)
        there = headrace.windows.open_windows(remote.place("series"), split, **kept, **WINDOWS)
        numbers = np.arange(len(here))[::3]

        assert len(there) == len(here) > 0
        assert there.identity == here.identity
        assert same(there.batch(numbers), here.batch(numbers))
        assert same(pickle.loads(pickle.dumps(there)).batch([0]), here.batch([0]))
    assert set(fetched(remote.proxy).values()) == {1}


@pytest.mark.slow
def test_a_stream_of_windows_resumes_over_a_store(
    remote: Remote, local: Path, tmp_path: Path
) -> None:

    def begin(place: str | Path) -> Any:
        windows = headrace.windows.open(place, cache_dir=tmp_path / "cache", **WINDOWS)
        return windows.stream(batch_size=16, seed=5, batch_format="numpy")

    expected = list(begin(local / "series"))
    stream = begin(remote.place("series"))
    batches = iter(stream)
    head = [next(batches) for _ in range(3)]
    resumed = begin(remote.place("series"))
    resumed.load_state_dict(stream.state_dict())
    found = [*head, *resumed]

    assert len(found) == len(expected) > 5
    assert all(same(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.slow
def test_a_data_module_trains_on_a_store(remote: Remote, local: Path, tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    from headrace.series.windows.datamodule import SeriesDataModule

    def batches(source: str | Path) -> list[dict[str, Any]]:
        module = SeriesDataModule(
            source, batch_size=32, chunk_size=3, cache_dir=tmp_path / "cache", **WINDOWS
        )
        module.setup("fit")
        pool = module.val_dataloader()
        assert not isinstance(pool, list)
        scale = module.inverse_transform(np.zeros(2), np.zeros(2, np.int64))
        return [*module.train_dataloader(), *pool, {"scale": scale}]

    found, expected = batches(remote.place("series")), batches(local / "series")

    assert len(found) == len(expected) > 3
    assert all(same(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.slow
def test_a_limit_below_the_shards_is_refused_at_the_start(remote: Remote, tmp_path: Path) -> None:
    kept: dict[str, Any] = {"cache_dir": tmp_path / "cache", "disk_bytes": 1000}

    with pytest.raises(
        SettingsError, match=r"array_record.*disk_bytes is 1,000.*disk_bytes=\d+ or more"
    ):
        open_contexts(remote.place("array_record"), **kept, **CONTEXTS)
    with pytest.raises(SettingsError, match=r"series.*disk_bytes is 1,000"):
        headrace.windows.open_windows(remote.place("series"), **kept, **WINDOWS)
    with pytest.raises(SettingsError, match="disk_bytes is 0"):
        open_contexts(remote.place("arrow"), disk_bytes=0, **CONTEXTS)
    assert not fetched(remote.proxy)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["array_record", "arrow", "series"])
def test_other_bytes_are_never_read(remote: Remote, tmp_path: Path, name: str) -> None:
    shards = [
        fact.name
        for fact in place_of(path_of(remote.place(name))).files_below()
        if fact.name.endswith(SHARDS)
    ]
    for shard in shards:
        place = path_of(remote.place(name)) / shard
        data = bytearray(place.read_bytes())
        data[len(data) // 2] ^= 1
        place_of(place).replace(bytes(data))

    with pytest.raises(CorruptShard, match=r"part-.*not those that were published"):
        if name == "series":
            headrace.windows.open_windows(remote.place("series"), cache_dir=tmp_path, **WINDOWS)
        else:
            open_contexts(remote.place(name), cache_dir=tmp_path, **CONTEXTS).batch(range(20))


@pytest.mark.smoke("array_record/rows.parquet")
@pytest.mark.parametrize("name", ["array_record/rows.parquet", "series/entities.parquet"])
def test_other_bytes_in_the_lists_are_never_read(remote: Remote, tmp_path: Path, name: str) -> None:
    dataset, file = name.split("/")
    run = next((path_of(remote.place(dataset)) / "runs").iterdir())
    place = run / file
    place_of(place).replace(place.read_bytes()[:-9] + b"x" * 9)

    with pytest.raises(CorruptShard, match=file):
        if dataset == "series":
            headrace.windows.open_windows(remote.place("series"), cache_dir=tmp_path, **WINDOWS)
        else:
            open_contexts(remote.place("array_record"), cache_dir=tmp_path, **CONTEXTS)
