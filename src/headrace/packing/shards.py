"""Pack the sequences of a dataset in a split into bins, write the bins to shards, and write the
tree beside them.

A bin never mixes splits. It holds sequences of all datasets of the split, and records the origin of
each. With pack_across="dataset" it holds those of one dataset, so that a trainer can weight
datasets by their shards.

    runs/<run_id>/datasets/<name>/<hash>/shard_000000.parquet
    runs/<run_id>/splits/<split>/000000__<name>__shard_000000.parquet -> ../../datasets/...
    runs/<run_id>/blend.json, packing_metadata.json, rejected.jsonl
    splits/<split> -> ../runs/<run_id>/splits/<split>
    blend.json -> runs/<run_id>/blend.json, and so on

Links are made inside the run, before its manifest. Outside there is one link per split, which is
replaced in one step, so a split's directory never mixes two runs.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.arrays import I64
from headrace.bins.bins import Bins, costs, packing_metrics, padded_lengths
from headrace.bins.pack import pack
from headrace.bins.rows import ALIGNMENT_KEY, PackedRows
from headrace.digest import digest_file, sha256_hex
from headrace.formats.write import Block, Written
from headrace.packing.blend import SPLITS, BlendDataset, Split
from headrace.packing.config import PackedSequences
from headrace.packing.encode import EncodeTask
from headrace.packing.sequences import Origins, set_print
from headrace.packing.storage.legacy import LegacyPickleWriter
from headrace.packing.storage.packed_parquet import ParquetShardWriter
from headrace.packing.storage.spool import JoinedSpool, SequenceSpool, gather
from headrace.run.context import TaskFiles, read_arrow
from headrace.storage import local

BLEND, METADATA, REJECTED = PUBLISHED = "blend.json", "packing_metadata.json", "rejected.jsonl"
EXTENSIONS = {"parquet": "parquet", "legacy_npy_pickle": "npy"}


@dataclass(frozen=True)
class PackPool:
    """Datasets that share bins.

    owners: their indices in the blend. origins: origins of all their sequences, end to end.
    """

    name: str
    datasets: Sequence[BlendDataset]
    owners: Sequence[int]
    origins: Origins

    @property
    def files(self) -> list[str]:
        """Name the files whose numbers are in `origins`."""
        return [name for dataset in self.datasets for name in dataset.names]

    def shares(self, sequences: I64) -> dict[str, dict[str, int]]:
        """Count rows, sequences, tokens and labels of some sequences, per dataset."""
        ends = np.cumsum([len(dataset.names) for dataset in self.datasets])
        owner = np.searchsorted(ends, self.origins.file[sequences], "right")
        counts: dict[str, dict[str, int]] = {}
        for number, dataset in enumerate(self.datasets):
            members = sequences[owner == number]
            if not len(members):
                continue
            name = dataset.source.name
            totals = self.origins.counts(members)
            # a blend per split may name a dataset twice
            before = counts.get(name, dict.fromkeys(totals, 0))
            counts[name] = {key: before[key] + value for key, value in totals.items()}
        return counts


@dataclass(frozen=True)
class PackGroup:
    """One pool in one split. number: index among all groups. pool: index of its pool."""

    number: int
    pool: int
    name: str
    split: Split
    directory: str

    @property
    def bins_file(self) -> str:
        """Return the path of the file of its bins, relative to the run."""
        return f"stage/bins-{self.number:05d}.arrow"


@dataclass(frozen=True)
class BinShard:
    """An output shard with the bins start..stop-1 of its group.

    target: path relative to the run.
    """

    group: PackGroup
    start: int
    stop: int
    target: str
    input_bytes: int


def pack_group(
    files: TaskFiles, settings: PackedSequences, group: PackGroup, sequences: I64, pool: PackPool
) -> dict[str, Any]:
    """Pack a group and write its bins to a file of the stage.

    The receipt's result counts what they hold.

    sequences: the group's sequences, as indices into the joined spools of its pool. Sequences in
    bins that were dropped because they have no label are counted. A row is counted only if no
    sequence of it is left.
    """
    origins = pool.origins
    lengths = origins.lengths[sequences]
    cost = costs(lengths, settings.capacity, settings.pad_multiple)
    stored = padded_lengths(lengths, settings.pad_multiple, settings.capacity)
    bins = _ordered_bins(settings, cost, stored)
    empty = bins.loads(origins.labels[sequences]) == 0
    dropped = Bins.of_lists([])
    if settings.empty_bins == "drop" and empty.any():
        dropped = bins.take(np.flatnonzero(empty))
        bins = bins.take(np.flatnonzero(~empty))
    packed = bins.sequences
    _write_bins(files, settings, group, origins, Bins(bins.offsets, sequences[packed]))
    packed_counts = origins.counts(sequences[packed])
    gone = origins.counts(sequences[dropped.sequences])
    if len(dropped):  # some rows have sequences in both
        gone["rows"] = origins.counts(sequences)["rows"] - packed_counts["rows"]
    metrics = packing_metrics(cost, bins, settings.pack_size)
    runtime = np.maximum(stored - 1, 1)
    return {
        "rows_in": len(sequences),
        "bins": len(bins),
        **packed_counts,
        "stored_tokens": int(stored[packed].sum()),
        "bins_without_label": int(empty.sum()),
        "print": set_print(origins.prints[sequences[packed]]),
        **({"sources": pool.shares(sequences[packed])} if settings.packs_across else {}),
        "metrics": asdict(metrics),
        "runtime": {
            "max_samples_per_bin": metrics.sequences_max,
            "dataset_max_seqlen": int(runtime[packed].max(initial=0)),
            "min_packed_seqlen": int(bins.loads(runtime).min()) if len(bins) else 0,
        },
        "dropped": {"bins": len(dropped), **gone},
    }


def _ordered_bins(settings: PackedSequences, cost: I64, stored: I64) -> Bins:
    """Pack sequences of these costs, and order the bins. stored: tokens of each, with padding."""
    bins = pack(
        cost,
        settings.pack_size,
        algorithm=settings.algorithm,
        seed=settings.seed,
        max_sequences=settings.max_sequences_per_bin,
    )
    if settings.bin_order == "spread":
        return bins.spread(bins.loads(np.square(stored)), settings.seed)
    if settings.algorithm == "concatenative":  # which must keep its order
        return bins
    return bins.shuffled(settings.seed)


def _write_bins(
    files: TaskFiles, settings: PackedSequences, group: PackGroup, origins: Origins, bins: Bins
) -> None:
    """Write which sequences of the pool are in each bin of a group."""
    packed = bins.sequences
    columns = {"sequences": packed}
    if settings.traced:
        columns["sources"] = origins.file[packed].astype(np.int64)
        columns["rows"] = origins.row[packed]
    offsets = pa.array(bins.offsets)
    lists = {}
    for name, values in columns.items():
        lists[name] = pa.LargeListArray.from_arrays(offsets, pa.array(values))
    files.write_arrow(group.bins_file, pa.table(lists))


def shard_counts(
    bins: Mapping[Split, int], tokens: Mapping[Split, int], num_shards: int | None
) -> dict[Split, int]:
    """Count the shards of each split of a dataset, in proportion to bins if `num_shards` gives
    their number, else by tokens.

    A split with bins has at least one shard, and never more shards than bins. Without
    `num_shards`, a shard holds about 2^26 tokens.
    """
    total = sum(bins.values())
    counts: dict[Split, int] = {}
    for split, count in bins.items():
        if num_shards is None:
            target = -(-tokens[split] // (1 << 26))
        else:
            target = (2 * num_shards * count + total) // (2 * total or 1)
        counts[split] = min(count, max(1, target))
    return counts


def even_cuts(count: int, shards: int) -> list[tuple[int, int]]:
    """Cut 0..count-1 into `shards` ranges (start, stop) whose lengths differ by at most one."""
    return [(count * index // shards, count * (index + 1) // shards) for index in range(shards)]


def write_shard(  # noqa: PLR0913 - arguments of one worker's task
    files: TaskFiles,
    settings: PackedSequences,
    shard: BinShard,
    *,
    tasks: Sequence[EncodeTask],
    sources: Sequence[str],
    pad_id: int,
    encoder: str,
) -> dict[str, Any]:
    """Write the bins of a shard and count the rows as they are gathered. O(row group) of memory.

    tasks: those that encoded the sequences of the pool. sources: names of the pool's files.
    encoder: fingerprint of the encoder, for the footer.
    """
    joined = JoinedSpool([SequenceSpool.open(files.run / task.file()) for task in tasks])
    table = read_arrow(files.run / shard.group.bins_file)  # mapped, not read
    counted = Counter(bins=0, sequences=0, stored_tokens=0, mask_sum=0)
    gathered = _gathered(settings, shard, joined, table, pad_id, counted)
    temporary = files.temporary(shard.target)
    if settings.packed_storage == "legacy_npy_pickle":
        written = _write_pickle(temporary, gathered, counted)
    else:
        metadata = {
            ALIGNMENT_KEY: settings.loss_mask_alignment,
            "headrace.pack_size": str(settings.pack_size),
            "headrace.capacity": settings.capacity,
            "headrace.pad_multiple": str(settings.pad_multiple),
            "headrace.algorithm": settings.algorithm,
            "headrace.seed": str(settings.seed),
            "headrace.dataset": shard.group.name,
            "headrace.split": shard.group.split,
            "headrace.encoder": encoder,
        }
        with ParquetShardWriter(
            shard.target,
            temporary=temporary,
            **settings.parquet,
            sources=sources,
            metadata=metadata,
        ) as writer:
            for rows in gathered:
                writer.write_bins(rows)
            written = writer.finish()
    files.finished(temporary, shard.target, written)
    return {
        "rows_in": counted["bins"],
        **counted,
        "blocks": [asdict(block) for block in written.blocks],
    }


def _gathered(
    settings: PackedSequences,
    shard: BinShard,
    joined: JoinedSpool,
    table: pa.Table,
    pad_id: int,
    counted: Counter[str],
) -> Iterator[PackedRows]:
    """Yield the rows of a shard, a row group at a time, and count them. table: its group's bins."""
    lists = {name: table[name].combine_chunks() for name in table.column_names}
    offsets = lists["sequences"].offsets.to_numpy()
    arrays = {name: column.values.to_numpy() for name, column in lists.items()}
    bins = Bins(offsets, arrays["sequences"])
    step = settings.parquet["row_group_size"]
    for start in range(shard.start, shard.stop, step):
        stop = min(start + step, shard.stop)
        rows = gather(
            joined,
            bins[start:stop],
            alignment=settings.loss_mask_alignment,
            pad_multiple=settings.pad_multiple,
            pad_id=pad_id,
            counted=settings.capacity,
        )
        counted.update(
            bins=len(rows),
            sequences=len(rows.starts),
            stored_tokens=len(rows.ids),
            mask_sum=int(np.sum(rows.mask, dtype=np.int64)),
        )
        if settings.traced:
            members = slice(offsets[start], offsets[stop])
            rows = replace(
                rows, sources=arrays["sources"][members], source_rows=arrays["rows"][members]
            )
        yield rows


def _write_pickle(path: Path, gathered: Iterator[PackedRows], counted: Counter[str]) -> Written:
    """Write bins as one pickle, which is one block, without metadata."""
    with LegacyPickleWriter(path) as legacy:
        for rows in gathered:
            legacy.write_bins(rows)
    size = path.stat().st_size
    digest = digest_file(path)
    block = Block(
        first_row=0, rows=counted["bins"], offset=0, length=size, key_min=None, key_max=None
    )
    return Written(block.rows, size, digest.sha256, (block,), digest.checksum)


@dataclass(frozen=True)
class Linked:
    """A shard that was written. path: relative to the run. tokens: tokens stored in it."""

    split: Split
    dataset: str
    path: str
    tokens: int


def split_directory(split: Split) -> str:
    """Name the directory of a split's links."""
    return f"splits/{split}"


def links_of(shards: Sequence[Linked]) -> dict[str, str]:
    """Map each link to its target, relative to the run, in the order of the shards.

    Positions count inside a split.
    """
    links = {}
    position = dict.fromkeys(SPLITS, 0)
    for shard in shards:
        directory = split_directory(shard.split)
        name = PurePosixPath(shard.path).name
        link = f"{directory}/{position[shard.split]:06d}__{shard.dataset}__{name}"
        links[link] = os.path.relpath(shard.path, directory)
        position[shard.split] += 1
    return links


def write_links(run: Path, directories: Sequence[str], links: Mapping[str, str]) -> None:
    """Make the split directories hold exactly these links.

    Readers see them only after the manifest is written.
    """
    with local.storing(run):
        for directory in directories:
            local.make_directory(run / directory)
            for path in sorted((run / directory).iterdir()):
                if not path.is_symlink() or os.readlink(path) != links.get(
                    path.relative_to(run).as_posix()
                ):
                    path.unlink()
        for link, target in links.items():
            with suppress(FileExistsError):  # an earlier attempt made it
                os.symlink(target, run / link)
    for directory in directories:
        local.sync_directory(run / directory)


def blend_json(run_id: str, splits: Sequence[Split], shards: Sequence[Linked]) -> bytes:
    """Write the blend of each split: weight, path, weight, path, ... as texts.

    Paths are relative to the dataset directory and have no extension. A shard's weight is its share
    of the tokens of its split: drawing from the shards by these weights draws every bin equally
    often.
    """
    record: dict[str, list[str]] = {}
    for split in splits:
        split_shards = [shard for shard in shards if shard.split == split]
        total = sum(shard.tokens for shard in split_shards)
        record[split] = []
        for shard in split_shards:
            path = PurePosixPath(shard.path).with_suffix("")
            record[split] += [f"{shard.tokens / total:.9f}", f"runs/{run_id}/{path}"]
    return (json.dumps(record, indent=1) + "\n").encode()


def publish_tree(
    run: Path,
    settings: PackedSequences,
    shards: Sequence[Linked],
    groups: Sequence[Mapping[str, Any]],
    rejected: bytes,
) -> dict[str, str]:
    """Write the links and the files of `PUBLISHED`, and return the SHA-256 of each file.

    The packing metadata is the list that Megatron-style readers expect. It has a record for each
    dataset in each split, with the lengths that such a reader trains on: one less than the stored
    length of each sequence.
    """
    splits = settings.requested_splits
    write_links(run, [split_directory(split) for split in splits], links_of(shards))
    records = []
    for group in groups:
        if group["bins"]:
            records.append(
                {
                    **group["runtime"],
                    "packing_factor": round(group["metrics"]["packing_factor"], 6),
                    "packing_efficiency": round(group["metrics"]["packing_efficiency"], 6),
                    "pack_size": settings.pack_size,
                    "split": group["split"],
                    "dataset": group["dataset"],
                }
            )
    metadata = (json.dumps(records, indent=1, sort_keys=True) + "\n").encode()
    files = dict(
        zip(PUBLISHED, (blend_json(run.name, splits, shards), metadata, rejected), strict=True)
    )
    for name, data in files.items():
        local.write_new(run / name, data)
    local.sync_directory(run)
    return {name: sha256_hex(data) for name, data in files.items()}
