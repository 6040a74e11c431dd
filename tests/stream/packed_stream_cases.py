"""Packed shards written by hand, and what a batch of them is, said once more in plain Python."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


def make_bins(count, *, seed=0, most_sequences=6, most_tokens=12, least_tokens=1):
    """Bins of sequences, each a list of (token, trained); every token of a set is another one, so that it is known."""
    rng = np.random.default_rng(seed)
    bins, token = [], 1
    for _ in range(count):
        sequences = []
        for _ in range(int(rng.integers(1, most_sequences + 1))):
            length = int(rng.integers(least_tokens, most_tokens + 1))
            sequences.append([(token + place, int(rng.integers(0, 2))) for place in range(length)])
            token += length
        bins.append(sequences)
    return bins


def stored(sequences, alignment):
    """A bin as a row: ids, mask, starts."""
    ids = [token for sequence in sequences for token, _ in sequence]
    trained = [each for sequence in sequences for _, each in sequence]
    starts = np.cumsum([0, *map(len, sequences)])[:-1].tolist()
    if alignment == "shift_left":
        mask = [
            each
            for sequence in sequences
            for each in [*(trained for _, trained in sequence[1:]), 0]
        ]
    elif alignment == "unshifted":
        mask = trained
    else:
        mask = [0, *trained[:-1]]
    return ids, mask, starts


def table_of(
    bins, *, alignment="shift_left", ids=None, mask=None, starts=None, extra=None, metadata=None
):
    """The rows as a table of packed columns; metadata: None says what the alignment is."""
    rows = [stored(sequences, alignment) for sequences in bins]
    columns = {
        "input_ids": pa.array([row[0] for row in rows], ids or pa.list_(pa.int32())),
        "loss_mask": pa.array([row[1] for row in rows], pa.list_(pa.int32())).cast(
            mask or pa.list_(pa.uint8())
        ),
        "seq_start_id": pa.array([row[2] for row in rows], starts or pa.list_(pa.int32())),
        **(extra or {}),
    }
    said = {"headrace.loss_mask_alignment": alignment} if metadata is None else metadata
    return pa.table(columns).replace_schema_metadata(said)


def write_shards(root: Path, table: pa.Table, *, shard_rows=10_000, group_rows=7) -> Path:
    """The table as shards of a new directory."""
    root.mkdir(parents=True, exist_ok=True)
    for shard, start in enumerate(range(0, max(1, table.num_rows), shard_rows)):
        path = root / f"shard_{shard:06d}.parquet"
        pq.write_table(
            table.slice(start, shard_rows), path, row_group_size=group_rows, use_dictionary=False
        )
    return root


def expected(bins, settings, valid=None):
    """What `make_packed_batch` gives of these bins, as lists; written for reading, not for speed."""
    nothing = settings.pad_id if settings.ignore_index is None else settings.ignore_index
    rows = []
    for place, sequences in enumerate(bins):
        trains = valid is None or valid[place]
        row = []
        for sequence in sequences:
            made = []
            for at, (token, _) in enumerate(sequence):
                if settings.labels == "next":
                    label, trained = sequence[at + 1] if at + 1 < len(sequence) else (nothing, 0)
                else:
                    label, trained = token, sequence[at][1] if at else 0
                trained = trained if trains else 0
                if settings.ignore_index is not None and not trained:
                    label = settings.ignore_index
                made.append((token, label, trained, at))
            row.append(made[:-1] if settings.last_token == "drop" else made)
        rows.append([made for made in row if made])
    if settings.form == "varlen":
        rows = [[made for row in rows for made in row]]
    widest = max((sum(map(len, row)) for row in rows), default=0)
    width = (
        settings.pad_to or -(-widest // settings.pad_to_multiple_of) * settings.pad_to_multiple_of
    )
    for row in rows:
        missing = width - sum(map(len, row))
        if missing:
            row.append([(settings.pad_id, nothing, 0, at) for at in range(missing)])
    flat = [[each for made in row for each in made] for row in rows]
    lengths = [len(made) for row in rows for made in row]
    batch = {
        name: [[each[place] for each in row] for row in flat]
        for place, name in enumerate(("input_ids", "labels", "loss_mask", "position_ids"))
    }
    batch["cu_seqlens"] = np.cumsum([0, *lengths]).tolist()
    batch["max_seqlen"] = max(lengths, default=0)
    if settings.attention_mask != "none":
        batch["attention_mask"] = [
            [
                [
                    [_same(row, one, other) and other <= one for other in range(width)]
                    for one in range(width)
                ]
            ]
            for row in rows
        ]
    return batch


def _same(row, one, other):
    ends = np.cumsum([len(made) for made in row])
    return np.searchsorted(ends, one, side="right") == np.searchsorted(ends, other, side="right")


def as_lists(batch):
    return {
        name: value.tolist() if hasattr(value, "tolist") else value for name, value in batch.items()
    }
