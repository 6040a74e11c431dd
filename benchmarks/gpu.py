"""How long a training step waits for its batch: an MLP on numeric columns, and a transformer on packed tokens.

    python benchmarks/gpu.py [--models mlp transformer] [--rows 4000000] [--sequences 400000] [--steps 400] [--rounds 3]

Each model is trained from synthetic Parquet files, in turns:

    device      batches of a tensor that already sits on the device: what the step itself takes
    headrace    headrace.open(...).stream(..., device=...)
    workers     DataLoader(num_workers=8, pin_memory=True) over a reader of row groups, copied with non_blocking=True

The loop waits for the device after every step, so that each second is either the step's or the loader's. The first
steps, which start readers and compile the model, are left out. Waiting is the time inside `next()` and, with workers,
the copy to the device. Exits 1 on a GPU if headrace waits for more than 1 % of the time.

Without a GPU the models are small, are not compiled and run on one thread of the CPU. The shares then say that the
program works, and nothing about a GPU.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from figures import Cell, Figure, Table, figure
from reporting import parser, publish
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import headrace

COLUMNS, GROUP_ROWS, SHARDS = 28, 65_536, 8
FIRST_STEPS = 20
WORKERS = 8
MOST_WAITING = 0.01
VOCABULARY = 8_192

Batches = Iterator[dict[str, torch.Tensor]]


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Sizes of the models and their batches."""

    mlp_batch: int
    mlp_width: int
    tokens: int
    bins: int
    model_width: int
    layers: int


ON_GPU = Scale(mlp_batch=8_192, mlp_width=4_096, tokens=2_048, bins=8, model_width=1_024, layers=8)
ON_CPU = Scale(mlp_batch=1_024, mlp_width=64, tokens=128, bins=2, model_width=64, layers=1)


# --- data ---


def write_numbers(folder: Path, rows: int) -> None:
    """Shards of float32 columns and a label."""
    folder.mkdir()
    random = np.random.default_rng(0)
    for shard in range(SHARDS):
        count = rows // SHARDS
        table = {f"f{n:02d}": random.standard_normal(count, np.float32) for n in range(COLUMNS)}
        table["y"] = (table["f00"] > 0).astype(np.float32)
        pq.write_table(
            pa.table(table), folder / f"part-{shard:02d}.parquet", row_group_size=GROUP_ROWS
        )


def write_tokens(folder: Path, sequences: int, most: int) -> None:
    """Shards of token lists, mostly short."""
    folder.mkdir()
    random = np.random.default_rng(1)
    for shard in range(SHARDS):
        count = sequences // SHARDS
        lengths = np.minimum(random.lognormal(4.5, 0.8, count).astype(np.int64) + 2, most)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        values = random.integers(1, VOCABULARY, int(offsets[-1]), np.int32)
        table = pa.table({"input_ids": pa.ListArray.from_arrays(offsets, values)})
        pq.write_table(table, folder / f"part-{shard:02d}.parquet", row_group_size=8_192)


class RowGroups(IterableDataset[dict[str, torch.Tensor]]):
    """What is usually written by hand: each worker reads its row groups, shuffles inside them, and cuts batches."""

    def __init__(self, folder: Path, make: Callable[[pa.Table], Batches]) -> None:
        self.folder, self.make = folder, make

    def __iter__(self) -> Batches:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        groups = [
            (path, group)
            for path in sorted(self.folder.glob("*.parquet"))
            for group in range(pq.ParquetFile(path).num_row_groups)
        ]
        for path, group in groups[worker::workers]:
            yield from self.make(pq.ParquetFile(path).read_row_group(group, use_threads=False))


@dataclass(frozen=True)
class NumberBatches:
    """Row groups as batches of numbers."""

    batch: int

    def __call__(self, table: pa.Table) -> Batches:
        order = np.random.default_rng(0).permutation(table.num_rows)
        columns = {name: table[name].to_numpy()[order] for name in table.column_names}
        for start in range(0, len(order) - self.batch + 1, self.batch):
            yield {
                name: torch.from_numpy(column[start : start + self.batch])
                for name, column in columns.items()
            }


@dataclass(frozen=True)
class TokenBatches:
    """Row groups as bins: sequences end to end, cut wherever a bin is full, which costs less than packing them."""

    bins: int
    tokens: int

    def __call__(self, table: pa.Table) -> Batches:
        rows = table["input_ids"].combine_chunks()
        values, offsets = rows.flatten().to_numpy().astype(np.int64), rows.offsets.to_numpy()
        positions = np.arange(len(values)) - np.repeat(offsets[:-1], np.diff(offsets))
        size = self.bins * self.tokens
        for start in range(0, len(values) - size, size):
            part = {
                "input_ids": values[start : start + size],
                "labels": values[start + 1 : start + size + 1],
            }
            part["position_ids"] = positions[start : start + size]
            yield {
                name: torch.from_numpy(each.reshape(self.bins, self.tokens))
                for name, each in part.items()
            }


# --- models ---


class Classifier(nn.Module):
    """An MLP with batch norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        sizes = [COLUMNS, width, width, width]
        layers = [
            nn.Sequential(nn.Linear(a, b), nn.BatchNorm1d(b), nn.ReLU())
            for a, b in itertools.pairwise(sizes)
        ]
        self.layers = nn.Sequential(*layers, nn.Linear(width, 1))

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """The loss."""
        x = torch.stack([batch[f"f{n:02d}"] for n in range(COLUMNS)], dim=1)
        return functional.binary_cross_entropy_with_logits(self.layers(x)[:, 0], batch["y"])


class Block(nn.Module):
    """Attention and an MLP."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // 64)
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """The same shape."""
        bins, tokens, width = x.shape
        parts = (
            self.attend(self.before(x))
            .view(bins, tokens, 3, self.heads, width // self.heads)
            .unbind(2)
        )
        q, k, v = (part.transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2)
        x = x + self.out(mixed.reshape(bins, tokens, width))
        return x + self.mlp(self.between(x))


class Decoder(nn.Module):
    """A causal transformer whose sequences do not see each other."""

    def __init__(self, width: int, layers: int, tokens: int) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(VOCABULARY, width), nn.Embedding(tokens, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """The loss."""
        positions = batch["position_ids"]
        sequence = (positions == 0).cumsum(1)
        mask = (sequence[:, None, :, None] == sequence[:, None, None, :]).tril()
        x = self.embed(batch["input_ids"]) + self.place(positions)
        for block in self.blocks:
            x = block(x, mask)
        return functional.cross_entropy(
            self.head(x).flatten(0, 1), batch["labels"].flatten(), ignore_index=-100
        )


# --- one measurement ---


@dataclass(frozen=True, kw_only=True)
class Waits:
    """Seconds waited for each step, and of all steps together."""

    waits: list[float]
    seconds: float

    @property
    def share(self) -> float:
        """Of all seconds."""
        return sum(self.waits) / self.seconds


def measure(model: nn.Module, batches: Batches, steps: int, device: torch.device) -> Waits:
    """Train for so many steps behind the first ones."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    waits: list[float] = []
    began = 0.0
    for step in range(FIRST_STEPS + steps):
        asked = time.perf_counter()
        if step == FIRST_STEPS:
            began = asked
        batch = next(batches)
        if step >= FIRST_STEPS:
            waits.append(time.perf_counter() - asked)
        loss = model(batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    return Waits(waits=waits, seconds=time.perf_counter() - began)


def endless(make: Callable[[], Batches]) -> Batches:
    """Epoch after epoch."""
    while True:
        yield from make()


def copied(batches: Batches, device: torch.device) -> Batches:
    """Copied by the loop itself."""
    for batch in batches:
        yield {name: each.to(device, non_blocking=True) for name, each in batch.items()}


def repeated(batches: Batches, device: torch.device) -> Batches:
    """A few batches that stay on the device, again and again."""
    return itertools.cycle(
        [{name: each.to(device) for name, each in batch.items()} for batch in batches]
    )


def of_tensors(batch: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Numbers left out: a compiled model would be compiled anew for each."""
    return {name: each for name, each in batch.items() if isinstance(each, torch.Tensor)}


def sources(
    kind: str, folder: Path, scale: Scale, device: torch.device
) -> dict[str, Callable[[], Batches]]:
    """The three ways to the batches of a model."""
    opened = headrace.open(folder, cache_dir=folder.parent / "cache")
    options: dict[str, Any] = {"batch_size": scale.mlp_batch, "shuffle": True, "remainder": "drop"}
    make: Callable[[pa.Table], Batches] = NumberBatches(scale.mlp_batch)
    if kind == "transformer":
        pad = headrace.PackedBatches(form="padded", pad_to=scale.tokens)
        options = {"batch_size": scale.bins, "shuffle": True, "pack": scale.tokens, "packed": pad}
        options["transform"] = of_tensors
        make = TokenBatches(scale.bins, scale.tokens)
    stream = opened.stream(device=str(device), **options)
    loader = DataLoader(
        RowGroups(folder, make), batch_size=None, num_workers=WORKERS, pin_memory=device.type == "cuda",
        multiprocessing_context="spawn", persistent_workers=True,
    )  # fmt: skip
    few = itertools.islice(iter(opened.stream(**options)), 16)
    return {
        "device": lambda: repeated(map(of_tensors, few), device),
        "headrace": lambda: endless(lambda: iter(stream)),
        "workers": lambda: copied(endless(lambda: iter(loader)), device),
    }


def compared(asked: argparse.Namespace, device: torch.device, scale: Scale) -> Iterator[Table]:
    """A table for each model."""
    with tempfile.TemporaryDirectory() as made:
        root = Path(made)
        write_numbers(root / "mlp", asked.rows)
        write_tokens(root / "transformer", asked.sequences, scale.tokens)
        for kind in asked.models:
            found: dict[str, list[Waits]] = {}
            for _ in range(asked.rounds):
                for name, make in sources(kind, root / kind, scale, device).items():
                    torch.manual_seed(0)
                    model: nn.Module = (
                        Classifier(scale.mlp_width)
                        if kind == "mlp"
                        else Decoder(scale.model_width, scale.layers, scale.tokens)
                    ).to(device)
                    if device.type == "cuda":
                        model.compile()
                    batches = make()
                    found.setdefault(name, []).append(measure(model, batches, asked.steps, device))
                    if hasattr(batches, "close"):
                        batches.close()
            rows: list[tuple[Cell, ...]] = [
                (
                    name,
                    figure([1e3 * each.seconds / asked.steps for each in rounds]),
                    figure([1e3 * statistics.median(each.waits) for each in rounds], 3),
                    figure(
                        [1e3 * sorted(each.waits)[int(0.95 * asked.steps)] for each in rounds], 3
                    ),
                    figure([100 * each.share for each in rounds]),
                )
                for name, rounds in found.items()
            ]
            where = (
                torch.cuda.get_device_name(device)
                if device.type == "cuda"
                else "a CPU: small model, not compiled"
            )
            size = (
                f"batches of {scale.mlp_batch:,} rows"
                if kind == "mlp"
                else f"{scale.bins} bins of {scale.tokens:,}"
            )
            yield Table(
                f"gpu-{kind}",
                f"{kind}, {size}, {asked.steps} steps on {where}",
                (
                    "batches from",
                    "ms of a step",
                    "ms waited, median",
                    "95th percentile",
                    "% of the time waited",
                ),
                rows,
            )


def main() -> int:
    """Measure, print, judge."""
    made = parser(__doc__)
    made.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    made.add_argument(
        "--models", nargs="+", choices=("mlp", "transformer"), default=["mlp", "transformer"]
    )
    made.add_argument("--rows", type=int, default=4_000_000)
    made.add_argument("--sequences", type=int, default=400_000)
    made.add_argument("--steps", type=int, default=400)
    made.add_argument("--rounds", type=int, default=3)
    asked = made.parse_args()
    device = torch.device(asked.device)
    has_gpu = device.type == "cuda"
    if not has_gpu:
        torch.set_num_threads(1)
        print("no GPU: small models on the CPU; the figures say nothing about a GPU")
    tables = publish(compared(asked, device, ON_GPU if has_gpu else ON_CPU), asked.json, ["torch"])
    shares = [row[-1] for table in tables for row in table.rows if row[0] == "headrace"]
    return int(
        has_gpu
        and any(isinstance(share, Figure) and share.median > 100 * MOST_WAITING for share in shares)
    )


if __name__ == "__main__":
    sys.exit(main())
