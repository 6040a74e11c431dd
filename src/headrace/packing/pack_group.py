"""One dataset in one split: its sequences into bins, over the whole set at once.

A bin never mixes datasets or splits: shards are per dataset, so that a trainer can weigh datasets by their shards.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headrace.arrays import I64
from headrace.bins.bins import Bins
from headrace.bins.lengths import costs, padded_lengths
from headrace.bins.metrics import packing_metrics
from headrace.bins.pack import pack
from headrace.digest import sha256_file
from headrace.formats.write import Written
from headrace.packing.assign import Split
from headrace.packing.config import PackedSequences
from headrace.packing.fingerprint import set_print
from headrace.packing.origins import Origins
from headrace.run.context import TaskFiles
from headrace.storage.local import storing


@dataclass(frozen=True)
class Group:
    """The sequences of one dataset in one split. dataset: its place; sequences int64: places in its spools, joined."""

    dataset: int
    name: str
    split: Split
    directory: str
    sequences: I64


def pack_group(
    files: TaskFiles, settings: PackedSequences, group: Group, origins: Origins, number: int
) -> dict[str, Any]:
    """Pack a group and keep its bins in two files of the stage; the receipt's result says what they hold.

    Sequences in bins that were dropped for having no label are counted; rows only if none of their sequences is left.
    """
    lengths = origins.lengths[group.sequences]
    cost = costs(lengths, settings.capacity, settings.pad_multiple)
    bins = pack(
        cost,
        settings.pack_size,
        algorithm=settings.algorithm,
        seed=settings.seed,
        max_sequences=settings.max_sequences_per_bin,
    )
    if settings.algorithm != "concatenative":  # whose order is the point
        bins = bins.shuffled(settings.seed)
    labels = origins.labels[group.sequences]
    empty = bins.loads(labels) == 0
    dropped = bins.take(np.flatnonzero(empty)) if settings.empty_bins == "drop" else Bins.empty()
    if len(dropped):
        bins = bins.take(np.flatnonzero(~empty))
    kept, lost = bins.sequences, dropped.sequences
    rows_kept, rows_lost = _rows(origins, group.sequences[kept]), _rows(origins, group.sequences[lost])
    metrics = packing_metrics(cost, bins, settings.pack_size)
    stored = padded_lengths(lengths, settings.pad_multiple, settings.capacity)
    runtime = np.maximum(stored - 1, 1)
    for name, values in (("offsets", bins.offsets), ("sequences", group.sequences[kept])):
        _write(files, bins_file(number, name), values)
    return {
        "rows_read": len(group.sequences),
        "bins": len(bins),
        "rows": len(rows_kept),
        "sequences": len(kept),
        "tokens": int(lengths[kept].sum()),
        "stored_tokens": int(stored[kept].sum()),
        "labels": int(labels[kept].sum()),
        "bins_without_label": int(empty.sum()),
        "print": set_print(origins.prints[group.sequences[kept]]),
        "metrics": asdict(metrics),
        "runtime": {
            "max_samples_per_bin": metrics.sequences_max,
            "dataset_max_seqlen": int(runtime[kept].max(initial=0)),
            "min_packed_seqlen": int(bins.loads(runtime).min()) if len(bins) else 0,
        },
        "dropped": {
            "bins": len(dropped),
            "rows": len(np.setdiff1d(rows_lost, rows_kept)),
            "sequences": len(lost),
            "tokens": int(lengths[lost].sum()),
            "labels": 0,
        },
    }


def bins_file(number: int, name: str) -> str:
    """Where the bins of a group lie, relative to the run."""
    return f"stage/bins-{number:05d}.{name}.npy"


def read_bins(run: Path, number: int) -> Bins:
    """The bins of a group; their sequences are places in the joined spools of its dataset. Mapped, not read."""
    return Bins(
        np.load(run / bins_file(number, "offsets"), mmap_mode="r").view(np.ndarray),
        np.load(run / bins_file(number, "sequences"), mmap_mode="r").view(np.ndarray),
    )


def _rows(origins: Origins, sequences: I64) -> I64:
    """Distinct rows of these sequences, each as the place of its first sequence."""
    first = origins.first_of_row
    return np.unique(np.searchsorted(first, sequences, "right"))


def _write(files: TaskFiles, target: str, values: I64) -> None:
    temporary = files.temporary(target)
    with storing(temporary.parent), temporary.open("xb") as file:
        np.save(file, values, allow_pickle=False)
    files.finished(temporary, target, Written(len(values), temporary.stat().st_size, sha256_file(temporary), ()))
