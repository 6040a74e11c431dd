"""The loaders of `other_loaders.py`: one epoch of each, from its beginning or from a state, as lists of row numbers."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import pickle
import shutil
import sys
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import pyarrow.parquet as pq
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import headrace

SEED, EPOCH, BUFFER = 1, 2, 200

# (data, an empty folder of this pass, batch size of a rank, a state or None, steps before a stop or None)
Read = Callable[[Path, Path, int, bytes | None, int | None], tuple[list[list[int]], Any]]


@dataclass(frozen=True, kw_only=True)
class Peer:
    """state: who has to save it. needs: imports what it takes, beside the package itself."""

    name: str
    package: str
    read: Read
    prepare: Callable[[Path], None] = lambda _data: None
    needs: Callable[[], Any] = lambda: None
    state: Literal["one", "of each rank"] = "one"

    def missing(self) -> str | None:
        """Why it cannot be compared here; None if it can."""
        try:
            self.version()
            self.needs()
        except (importlib.metadata.PackageNotFoundError, ImportError) as error:
            return f"{error}".split("\n")[0] or type(error).__name__
        return None

    def version(self) -> str:
        """Of the package."""
        return importlib.metadata.version(self.package)


def listed(batches: Iterable[Any], stop: int | None) -> list[list[int]]:
    """The rows of every batch, as many batches as asked for."""
    return [batch["row"].tolist() for batch in islice(batches, stop)]


def ours(data: Path, _work: Path, batch_size: int, resume: bytes | None, stop: int | None) -> Any:
    """A stream; what only fills a batch is said by the batch."""
    dataset = headrace.open(str(data / "*.parquet"), cache_dir=data / "cache")
    stream = dataset.stream(batch_size=batch_size, shuffle=True, seed=SEED, shuffle_rows=BUFFER)
    stream.set_epoch(EPOCH)
    if resume is not None:
        stream.load_state_dict(pickle.loads(resume))
    batches = [batch["row"][batch["valid"]].tolist() for batch in islice(stream, stop)]
    return batches, stream.state_dict()


class Rows(Dataset):
    """All rows in memory, by number."""

    def __init__(self, data: Path) -> None:
        self.rows = [row for path in sorted(data.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> dict[str, Any]:
        return self.rows[number]


def sampler(data: Path, _work: Path, batch_size: int, resume: bytes | None, stop: int | None, drop=False) -> Any:
    """DistributedSampler has no state: what was seen is skipped, by global batches."""
    rows = Rows(data)
    sampler = DistributedSampler(rows, shuffle=True, seed=SEED, drop_last=drop)
    sampler.set_epoch(EPOCH)
    loader = DataLoader(rows, batch_size=batch_size, sampler=sampler, drop_last=drop)
    skip = 0 if resume is None else pickle.loads(resume)
    batches = listed(loader, stop)[skip:]
    return batches, len(batches)


def sampler_dropping(*arguments: Any) -> Any:
    """The same with drop_last, of the sampler and the loader."""
    return sampler(*arguments, drop=True)


def hugging_face(data: Path, work: Path, batch_size: int, resume: bytes | None, stop: int | None) -> Any:
    """Streaming, shuffled in a buffer, divided by node; the state is that of the dataset, of each rank its own."""
    import datasets
    from datasets.distributed import split_dataset_by_node

    datasets.disable_progress_bars()
    files = sorted(map(str, data.glob("*.parquet")))
    streamed = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True, cache_dir=str(work))
    shuffled = streamed.shuffle(seed=SEED, buffer_size=BUFFER)
    divided = split_dataset_by_node(shuffled, rank=dist.get_rank(), world_size=dist.get_world_size())
    mine = divided.with_format("torch")
    mine.set_epoch(EPOCH)
    if resume is not None:
        mine.load_state_dict(pickle.loads(resume))
    batches = listed(DataLoader(mine, batch_size=batch_size), stop)
    return batches, mine.state_dict()


def mosaic_modules() -> Any:
    """Its `streaming.base` without what text and image datasets of the package import."""
    if "streaming" not in sys.modules:
        package = sys.modules["streaming"] = types.ModuleType("streaming")
        package.__path__ = [str(importlib.metadata.distribution("mosaicml-streaming").locate_file("streaming"))]
        if importlib.util.find_spec("transformers") is None:  # two types of batches that are not made here
            for name, kind in (
                ("feature_extraction_utils", "BatchFeature"),
                ("tokenization_utils_base", "BatchEncoding"),
            ):
                module = sys.modules[f"transformers.{name}"] = types.ModuleType(name)
                setattr(module, kind, type(kind, (dict,), {}))
            sys.modules.setdefault("transformers", types.ModuleType("transformers"))
    return importlib.import_module("streaming.base")


def write_mds(data: Path) -> None:
    """Its own format, shards of some 100 rows."""
    with mosaic_modules().MDSWriter(out=str(data / "mds"), columns={"row": "int64"}, size_limit=1500) as writer:
        for row in Rows(data).rows:
            writer.write({"row": row["row"]})


def mosaic(data: Path, work: Path, batch_size: int, resume: bytes | None, stop: int | None) -> Any:
    """StreamingDataset in its own loader, which counts what the loop has received."""
    base = mosaic_modules()
    if dist.get_rank() == 0:
        shutil.copytree(data / "mds", work)  # a folder of its own: it keeps shared memory by folder
    dist.barrier()
    dataset = base.StreamingDataset(local=str(work), shuffle=True, shuffle_seed=SEED, batch_size=batch_size)
    loader = base.StreamingDataLoader(dataset, batch_size=batch_size)
    if resume is not None:
        loader.load_state_dict(pickle.loads(resume))
    batches = listed(loader, stop)
    return batches, loader.state_dict() if stop is not None else None


PEERS = {
    peer.name: peer
    for peer in (
        Peer(name="headrace", package="headrace", read=ours),
        Peer(name="DistributedSampler", package="torch", read=sampler),
        Peer(name="DistributedSampler, drop_last", package="torch", read=sampler_dropping),
        Peer(
            name="datasets",
            package="datasets",
            read=hugging_face,
            needs=lambda: importlib.import_module("datasets"),
            state="of each rank",
        ),
        Peer(
            name="mosaicml-streaming",
            package="mosaicml-streaming",
            read=mosaic,
            prepare=write_mds,
            needs=mosaic_modules,
        ),
    )
}
