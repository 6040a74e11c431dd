"""Whole shards kept on a local disk: fetched once, checked, never more than the limit, originals never touched."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from fault_proxy import FaultProxy, Faults
from store_cases import rows_of, split_of, tree, upload, write_raw

import headrace
from headrace.errors import CorruptShard, SettingsError
from headrace.storage.places import path_of, place_of
from raised import raised


@pytest.fixture(params=["parquet", "csv"])
def local(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A prepared dataset on a disk."""
    settings = {"format": request.param, "types": {"row": "int64"}}
    return headrace.prepare(
        split_of(str(write_raw(tmp_path / "raw")), **settings), tmp_path / "out", workers=1
    ).out


@pytest.fixture
def remote(proxied: tuple[str, FaultProxy], local: Path) -> tuple[str, FaultProxy]:
    """The same in a store behind a proxy that counts."""
    bucket, proxy = proxied
    upload(local, f"{bucket}/out")
    proxy.begin(Faults())
    return f"{bucket}/out", proxy


def shard_requests(proxy: FaultProxy) -> Counter[str]:
    return Counter(
        path.rpartition("/")[2]
        for method, path in proxy.seen.paths
        if method == "GET" and "part-" in path
    )


def copies(cache: Path) -> dict[str, tuple[int, int]]:
    found = [
        path for path in (cache / "files").rglob("*") if path.is_file() and path.name[0] != "."
    ]
    return {path.name: (path.stat().st_ino, path.stat().st_size) for path in found}


@pytest.mark.smoke("parquet")
def test_shards_are_fetched_once_for_all_epochs(
    remote: tuple[str, FaultProxy], local: Path, tmp_path: Path
) -> None:
    place, proxy = remote
    expected = rows_of(headrace.open(local), "train", shuffle=True)
    options: dict[str, Any] = {"shuffle": True, "cache": "files", "cache_dir": tmp_path / "cache"}
    dataset = headrace.open(place)

    first = rows_of(dataset, "train", **options)
    fetched = shard_requests(proxy)
    again = rows_of(headrace.open(place), "train", **options)

    assert first == again == expected
    assert set(fetched.values()) == {1}
    assert len(fetched) == len(dataset.split_index("train").shards)
    assert shard_requests(proxy) == fetched
    assert rows_of(dataset.filter([("row", "<", 50)]), "train", **options) == rows_of(
        headrace.open(local).filter([("row", "<", 50)]), "train", shuffle=True
    )


def test_a_later_pass_asks_for_no_copied_shard(
    proxied: tuple[str, FaultProxy], tmp_path: Path
) -> None:
    bucket, proxy = proxied
    upload(write_raw(tmp_path / "raw"), f"{bucket}/raw")
    proxy.begin(Faults())
    dataset = headrace.open(f"{bucket}/raw")
    options: dict[str, Any] = {"cache": "files", "cache_dir": tmp_path / "cache"}
    first = rows_of(dataset, None, **options)
    asked = len([path for _, path in proxy.seen.paths if "part-" in path])

    again = rows_of(dataset, None, **options)

    assert asked > 0
    assert again == first
    assert len([path for _, path in proxy.seen.paths if "part-" in path]) == asked


_CHILD = """
import sys
from store_cases import rows_of
import headrace
print(len(rows_of(headrace.open(sys.argv[1]), "train", cache="files", cache_dir=sys.argv[2])))
"""


@pytest.mark.slow
def test_the_processes_of_a_node_fetch_a_shard_once(
    remote: tuple[str, FaultProxy], local: Path, tmp_path: Path
) -> None:
    place, proxy = remote
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    children = [
        subprocess.Popen(
            [sys.executable, "-c", _CHILD, place, str(tmp_path / "cache")],
            env={**os.environ, "PYTHONPATH": path, "RANK": "0", "WORLD_SIZE": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    rows = [int(child.communicate(timeout=200)[0]) for child in children]

    assert rows == [headrace.open(local).split_rows["train"]] * 2
    assert set(shard_requests(proxy).values()) == {1}


@pytest.mark.smoke("csv")
def test_a_damaged_copy_is_fetched_again(
    remote: tuple[str, FaultProxy], local: Path, tmp_path: Path
) -> None:
    place, proxy = remote
    options: dict[str, Any] = {"cache": "files", "cache_dir": tmp_path / "cache"}
    expected = rows_of(headrace.open(place), "train", **options)
    damaged = sorted((tmp_path / "cache" / "files").rglob("*-*"))[0]
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 4
    damaged.write_bytes(data)
    proxy.begin(Faults())

    assert rows_of(headrace.open(place), "train", **options) == expected
    assert sum(shard_requests(proxy).values()) == 1


@pytest.mark.smoke("csv")
def test_a_shard_that_is_not_what_was_published_is_refused(
    remote: tuple[str, FaultProxy], local: Path, tmp_path: Path
) -> None:
    place, _ = remote
    dataset = headrace.open(place)
    shard = dataset.root / dataset.split_index("train").shards[1]
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    place_of(path_of(str(shard))).replace(bytes(data))

    with pytest.raises(CorruptShard, match=shard.name):
        rows_of(dataset, "train", cache="files", cache_dir=tmp_path / "cache")
    assert not any(path.name.startswith(".tmp") for path in (tmp_path / "cache").rglob("*"))


@pytest.mark.slow
def test_a_limit_that_is_too_small_is_told_and_nothing_goes_in_circles(
    remote: tuple[str, FaultProxy], local: Path, tmp_path: Path
) -> None:
    place, _ = remote
    before = tree(place)
    dataset = headrace.open(place)
    sizes = [
        place_of(dataset.root / name).stat().size for name in dataset.split_index("train").shards
    ]
    limit = sizes[0] + sizes[1] + 10
    options: dict[str, Any] = {
        "cache": "files",
        "cache_dir": tmp_path / "cache",
        "cache_bytes": limit,
    }
    with pytest.warns(RuntimeWarning, match=f"cache_bytes={sum(sizes)}"):
        stream = dataset.stream("train", batch_size=7, batch_format="rows", **options)
    first = [row for batch in stream for row in batch]
    kept = copies(tmp_path / "cache")

    assert first == rows_of(headrace.open(local), "train")
    assert [row for batch in stream for row in batch] == first
    assert copies(tmp_path / "cache") == kept
    assert 0 < sum(size for _, size in kept.values()) <= limit
    assert tree(place) == before


@pytest.mark.slow
def test_another_dataset_takes_the_room_of_what_is_not_used(s3: str, tmp_path: Path) -> None:
    for name in ("a", "b"):
        upload(write_raw(tmp_path / name, shards=2), f"{s3}/{name}")
    size = sum(path.stat().st_size for path in (tmp_path / "a").iterdir())
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    script = (
        "import sys; from store_cases import rows_of; import headrace;"
        f"rows_of(headrace.open(sys.argv[1]), None, cache='files', cache_dir=sys.argv[2], cache_bytes={size + 100})"
    )
    for name in ("a", "b"):  # each in its own process, as what a process uses is never swept by it
        done = [sys.executable, "-c", script, f"{s3}/{name}", str(tmp_path / "cache")]
        subprocess.run(done, env={**os.environ, "PYTHONPATH": path}, check=True, timeout=200)
    held = copies(tmp_path / "cache")

    assert len(held) == 2
    assert sum(each for _, each in held.values()) <= size + 100
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(
            rows_of(headrace.open(f"{s3}/b"), None, cache="files", cache_dir=tmp_path / "cache")
        )
    assert copies(tmp_path / "cache") == held


def test_local_shards_are_not_copied(tmp_path: Path) -> None:
    raw = write_raw(tmp_path / "raw")

    with raised(SettingsError, remedy="leave it out"):
        rows_of(headrace.open(raw, cache_dir=tmp_path), None, cache="files")
