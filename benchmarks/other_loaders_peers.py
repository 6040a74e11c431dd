"""The loaders of `other_loaders.py`: one epoch of each, from its beginning or from a state, as lists of row numbers."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import multiprocessing
import shutil
import sys
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import headrace

SEED, EPOCH, BUFFER = 1, 2, 200


@dataclass(frozen=True, kw_only=True)
class Pass:
    """What one rank is asked for. work: a folder of this pass, of all ranks, not made yet.

    states: of every rank there was, by rank, or None to begin an epoch; stop: steps before a stop, None: to the end.
    """

    data: Path
    work: Path
    batch_size: int
    workers: int
    states: list[Any] | None
    stop: int | None

    @property
    def own_state(self) -> Any:
        """This rank's; of a rank that there was not, there is none."""
        rank = dist.get_rank()
        return self.states[rank] if self.states is not None and rank < len(self.states) else None


Read = Callable[[Pass], tuple[list[list[int]], Any]]


@dataclass(frozen=True, kw_only=True)
class Peer:
    """read: its batches of a pass, and its state after them. needs: imports what it takes, beside the package.

    preload: modules that are imported once and not by every rank; none that start threads, which no fork survives.
    workers: whether its worker processes are forked, or are interpreters that import everything anew.
    """

    name: str
    package: str
    read: Read
    prepare: Callable[[Path], None] = lambda _data: None
    needs: Callable[[], Any] = lambda: None
    preload: tuple[str, ...] = ()
    workers: Literal["forked", "imported"] = "forked"

    def missing(self) -> str | None:
        """Why it cannot be compared here; None if it can."""
        try:
            self.version()
            self.needs()
            for module in self.preload:
                importlib.import_module(module)
        except (importlib.metadata.PackageNotFoundError, ImportError) as error:
            return f"{error}".split("\n")[0] or type(error).__name__
        return None

    def version(self) -> str:
        """Of the package."""
        return importlib.metadata.version(self.package)


def listed(batches: Iterable[Any], stop: int | None) -> list[list[int]]:
    """The rows of every batch, as many batches as asked for."""
    return [batch["row"].tolist() for batch in islice(batches, stop)]


def ours(asked: Pass) -> Any:
    """A stream, or a DataLoader over it with workers; what only fills a batch is said by the batch."""
    dataset = headrace.open(str(asked.data / "*.parquet"), cache_dir=asked.data / "cache")
    workers = asked.workers
    rows = dataset.torch_dataset(
        batch_size=asked.batch_size, num_workers=workers, shuffle=True, seed=SEED
    )
    rows.set_epoch(EPOCH)
    if asked.states is not None:
        rows.load_state_dict(asked.states[0])
    batches = [
        batch["row"][batch["valid"]].tolist()
        for batch in islice(DataLoader(rows, batch_size=None, num_workers=workers), asked.stop)
    ]
    return batches, rows.state_after(len(batches)) if asked.stop is not None else None


class Rows(Dataset):
    """All rows in memory, by number."""

    def __init__(self, data: Path) -> None:
        self.rows = [
            row
            for path in sorted(data.glob("*.parquet"))
            for row in pq.read_table(path).to_pylist()
        ]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> dict[str, Any]:
        return self.rows[number]


def sampler(asked: Pass, *, drop: bool = False) -> Any:
    """DistributedSampler has no state: what was seen is skipped, by global batches."""
    rows = Rows(asked.data)
    sampler = DistributedSampler(rows, shuffle=True, seed=SEED, drop_last=drop)
    sampler.set_epoch(EPOCH)
    loader = DataLoader(
        rows,
        batch_size=asked.batch_size,
        sampler=sampler,
        drop_last=drop,
        num_workers=asked.workers,
    )
    skip = 0 if asked.states is None else asked.states[0]
    batches = listed(loader, asked.stop)[skip:]
    return batches, len(batches)


def sampler_dropping(asked: Pass) -> Any:
    """The same with drop_last, of the sampler and the loader."""
    return sampler(asked, drop=True)


def hugging_face(asked: Pass) -> Any:
    """Streaming, shuffled in a buffer, divided by node, in torchdata's loader, which saves the states of workers."""
    import datasets
    from datasets.distributed import split_dataset_by_node
    from torchdata.stateful_dataloader import StatefulDataLoader

    datasets.disable_progress_bars()
    files = sorted(map(str, asked.data.glob("*.parquet")))
    streamed = datasets.load_dataset(
        "parquet", data_files=files, split="train", streaming=True, cache_dir=str(asked.work)
    )
    shuffled = streamed.shuffle(seed=SEED, buffer_size=BUFFER)
    mine = split_dataset_by_node(
        shuffled, rank=dist.get_rank(), world_size=dist.get_world_size()
    ).with_format("torch")
    mine.set_epoch(EPOCH)
    loader = StatefulDataLoader(mine, batch_size=asked.batch_size, num_workers=asked.workers)
    if asked.own_state is not None:
        loader.load_state_dict(asked.own_state)
    batches = listed(loader, asked.stop)
    return batches, loader.state_dict() if asked.stop is not None else None


def mosaic_modules() -> Any:
    """Its `streaming.base` without what text and image datasets of the package import."""
    if "streaming" not in sys.modules:
        package = sys.modules["streaming"] = types.ModuleType("streaming")
        package.__path__ = [
            str(importlib.metadata.distribution("mosaicml-streaming").locate_file("streaming"))
        ]
        if (
            importlib.util.find_spec("transformers") is None
        ):  # two types of batches that are not made here
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
    with mosaic_modules().MDSWriter(
        out=str(data / "mds"), columns={"row": "int64"}, size_limit=1500
    ) as writer:
        for row in Rows(data).rows:
            writer.write({"row": row["row"]})


def mosaic(asked: Pass) -> Any:
    """StreamingDataset in its own loader, which counts what the loop has received."""
    base = mosaic_modules()
    if dist.get_rank() == 0:
        shutil.copytree(
            asked.data / "mds", asked.work
        )  # a folder of its own: it keeps shared memory by folder
    dist.barrier()
    dataset = base.StreamingDataset(
        local=str(asked.work), shuffle=True, shuffle_seed=SEED, batch_size=asked.batch_size
    )
    loader = base.StreamingDataLoader(
        dataset, batch_size=asked.batch_size, num_workers=asked.workers
    )
    if asked.states is not None:
        loader.load_state_dict(asked.states[0])
    batches = listed(loader, asked.stop)
    return batches, loader.state_dict() if asked.stop is not None else None


def one_by_one(numbers: list[int]) -> Iterable[dict[str, int]]:
    """What litData writes of a list of rows."""
    for number in numbers:  # it asks whether the function is a generator
        yield {"row": number}


def write_litdata(data: Path) -> None:
    """Its own format, chunks of 100 rows at most."""
    import litdata

    numbers = [row["row"] for row in Rows(data).rows]
    parts = [numbers[first : first + 500] for first in range(0, len(numbers), 500)]
    litdata.optimize(
        fn=one_by_one,
        inputs=parts,
        output_dir=str(data / "litdata"),
        chunk_size=100,
        num_workers=1,
        verbose=False,
    )


def lit_data(asked: Pass, *, drop: bool | None = None) -> Any:
    """StreamingDataset in its own loader; it begins with its first epoch. drop: None: its default."""
    import litdata

    dataset = litdata.StreamingDataset(
        str(asked.data / "litdata"),
        cache_dir=f"{asked.work}-{dist.get_rank()}",
        shuffle=True,
        drop_last=drop,
        seed=SEED,
    )
    loader = litdata.StreamingDataLoader(
        dataset, batch_size=asked.batch_size, num_workers=asked.workers
    )
    if asked.states is not None:
        loader.load_state_dict(asked.states[0])
    batches = listed(loader, asked.stop)
    return batches, loader.state_dict() if asked.stop is not None else None


def lit_data_keeping(asked: Pass) -> Any:
    """The same without dropping rows, of which it warns."""
    return lit_data(asked, drop=False)


def write_lance(data: Path) -> None:
    """A table of its own format."""
    import lancedb

    rows = pa.table({"row": [row["row"] for row in Rows(data).rows]})
    lancedb.connect(str(data / "lance")).create_table("rows", rows)


def lance_db(asked: Pass) -> Any:
    """StreamingDataset in its own loader, as many splits as a global batch has rows; the states of all ranks merged."""
    import lancedb
    from lancedb.streaming import StreamingDataLoader, StreamingDataset

    table = lancedb.connect(str(asked.data / "lance")).open_table("rows")
    ranks = dist.get_world_size()
    dataset = StreamingDataset(
        table,
        num_splits=asked.batch_size * ranks,
        shuffle_seed=SEED,
        epoch=EPOCH,
        rank=dist.get_rank(),
        world_size=ranks,
    )
    if asked.states is not None:
        dataset.load_state_dict(StreamingDataset.merge_state_dicts(asked.states))
    context = (
        multiprocessing.get_context("forkserver") if asked.workers else None
    )  # its threads do not survive a fork
    loader = StreamingDataLoader(
        dataset,
        batch_size=asked.batch_size,
        num_workers=asked.workers,
        multiprocessing_context=context,
    )
    batches = listed(loader, asked.stop)
    return batches, dataset.state_dict() if asked.stop is not None else None


def grain_modules() -> Any:
    """Its package, whose flags nobody parses here."""
    import grain
    from absl import flags

    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()
    return grain


def grain_dataset(asked: Pass) -> Any:
    """A global shuffle, a rank's slice of it and batches of that; its workers take turns at the batches."""
    grain = grain_modules()
    ranks = (
        grain.MapDataset.source(Rows(asked.data))
        .seed(SEED)
        .shuffle()[dist.get_rank() :: dist.get_world_size()]
    )
    batches = ranks.batch(asked.batch_size).to_iter_dataset()
    if asked.workers:
        batches = batches.mp_prefetch(grain.MultiprocessingOptions(num_workers=asked.workers))
    given = iter(batches)
    if asked.own_state is not None:
        given.set_state(asked.own_state)
    found = listed(given, asked.stop)
    return found, given.get_state() if asked.stop is not None else None


def grain_elastic(asked: Pass) -> Any:
    """Its iterator for changes in ranks: any rank's state is that of all, and the last rows are left out."""
    grain = grain_modules()
    from grain.experimental import ElasticIterator

    ranks = dist.get_world_size()
    rows = grain.MapDataset.source(Rows(asked.data)).seed(SEED).shuffle()
    workers = grain.MultiprocessingOptions(num_workers=asked.workers) if asked.workers else None
    given = iter(
        ElasticIterator(
            rows,
            asked.batch_size * ranks,
            grain.sharding.ShardOptions(dist.get_rank(), ranks),
            multiprocessing_options=workers,
        )
    )
    if asked.states is not None:
        given.set_state(asked.states[0])
    found = listed(given, asked.stop)
    return found, given.get_state() if asked.stop is not None else None


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
            preload=("datasets", "torchdata.stateful_dataloader"),
        ),
        Peer(
            name="mosaicml-streaming",
            package="mosaicml-streaming",
            read=mosaic,
            prepare=write_mds,
            needs=mosaic_modules,
        ),
        Peer(
            name="litdata",
            package="litdata",
            read=lit_data,
            prepare=write_litdata,
            preload=("litdata",),
        ),
        Peer(
            name="litdata, drop_last=False",
            package="litdata",
            read=lit_data_keeping,
            prepare=write_litdata,
            preload=("litdata",),
        ),
        Peer(
            name="lancedb",
            package="lancedb",
            read=lance_db,
            prepare=write_lance,
            needs=lambda: importlib.import_module("lancedb.streaming"),
            workers="imported",
        ),
        Peer(
            name="grain",
            package="grain",
            read=grain_dataset,
            preload=("grain",),
            workers="imported",
        ),
        Peer(
            name="grain, ElasticIterator",
            package="grain",
            read=grain_elastic,
            preload=("grain", "grain.experimental"),
            workers="imported",
        ),
    )
}
