"""Bins of a pool as batches for attention that keeps sequences apart. Pure: a copy per bin, nothing per sequence.

Of a batch the bins are first laid end to end; where a sequence begins and ends is then one array, and labels, position
ids, dropped last tokens and masks are one expression each over all tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.arrays import I64, U8
from headrace.errors import StreamError
from headrace.stream.packed.batches import PackedBatches
from headrace.stream.read.ragged import Ragged, padded_rows

Bool = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, eq=False)
class Laid:
    """Bins end to end. input_ids int64 [T], loss_mask uint8 [T], standing on labels, 0 at the end of each sequence.

    lengths: tokens of each sequence, int64 [S], none 0; sequences, tokens: of each bin, int64 [B].
    """

    input_ids: I64
    loss_mask: U8
    lengths: I64
    sequences: I64
    tokens: I64

    @classmethod
    def join(cls, parts: Sequence[Laid]) -> Laid:
        """The bins of all parts; a single part as it is."""
        if len(parts) == 1:
            return parts[0]
        names = [each.name for each in fields(cls)]
        return cls(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


def packed_batches(
    ids: Ragged, mask: Ragged, starts: Ragged, *, valid: Bool | None, batch_size: int, settings: PackedBatches
) -> Iterator[dict[str, Any]]:
    """Batches of `batch_size` bins, the last with what is left, as arrays; bins that are not valid train nothing.

    ids, mask, starts: the packed columns of as many rows, as `normal_rows` makes them. valid: bool [rows]; None: all.
    Raises `StreamError` if a row is wider than pad_to, or a batch has more than most_sequences.
    """
    for start in range(0, len(ids), batch_size):
        part = slice(start, start + batch_size)
        bins = lay_bins(ids[part], mask[part], starts[part], valid=None if valid is None else valid[part])
        yield make_packed_batch(bins, settings)


def lay_bins(ids: Ragged, mask: Ragged, starts: Ragged, *, valid: Bool | None = None) -> Laid:
    """Some rows of a pool, end to end."""
    begin = _flat(starts, np.int64) + np.repeat(np.cumsum(ids.lengths) - ids.lengths, starts.lengths)
    flat_mask = _flat(mask, np.uint8)
    if valid is not None and not valid.all():
        flat_mask[np.repeat(~valid, mask.lengths)] = 0
    return Laid(
        input_ids=_flat(ids, np.int64),
        loss_mask=flat_mask,
        lengths=np.diff(begin, append=int(ids.lengths.sum())),
        sequences=starts.lengths,
        tokens=ids.lengths,
    )


def make_packed_batch(bins: Laid, settings: PackedBatches) -> dict[str, Any]:
    """One batch of these bins.

    input_ids, labels, position_ids: int64 [rows, width]; loss_mask: uint8 [rows, width]; cu_seqlens: int32
    [sequences + 1, or most_sequences + 1] over the flattened tokens; max_seqlen: int; attention_mask, if asked for:
    [rows, 1, width, width].
    """
    filling = settings.pad_id if settings.ignore_index is None else settings.ignore_index
    ids, mask = bins.input_ids, bins.loss_mask
    last = np.cumsum(bins.lengths) - 1
    if settings.labels == "next":
        labels = np.empty_like(ids)
        labels[:-1] = ids[1:]
        labels[last] = filling
    else:
        labels = ids.copy()
        mask = np.concatenate([mask[-1:], mask[:-1]])  # the last is 0, as at the end of each sequence
    if settings.ignore_index is not None:
        labels[mask == 0] = settings.ignore_index
    lengths, sequences, tokens = bins.lengths, bins.sequences, bins.tokens
    if settings.last_token == "drop":
        kept = np.ones(len(ids), np.bool_)
        kept[last] = False
        ids, labels, mask = ids[kept], labels[kept], mask[kept]
        tokens, lengths = tokens - sequences, lengths - 1
        held = np.concatenate([[0], np.cumsum(lengths > 0)])
        sequences = np.diff(held[np.concatenate([[0], np.cumsum(sequences)])])
        lengths = lengths[lengths > 0]
    if settings.form == "varlen":
        sequences, tokens = np.array([len(lengths)], np.int64), np.array([len(ids)], np.int64)
    width = _width(tokens, settings)
    lengths = np.insert(lengths, np.cumsum(sequences), width - tokens)
    lengths = lengths[lengths > 0]
    borders = np.concatenate([[0], np.cumsum(lengths)])
    positions = np.arange(width * len(tokens)) - np.repeat(borders[:-1], lengths)
    batch: dict[str, Any] = {
        "input_ids": _rows(ids, tokens, width, settings.pad_id),
        "labels": _rows(labels, tokens, width, filling),
        "loss_mask": _rows(mask, tokens, width, 0),
        "position_ids": positions.reshape(len(tokens), width),
        "cu_seqlens": _borders(borders, settings.most_sequences),
        "max_seqlen": int(lengths.max(initial=0)),
    }
    if settings.attention_mask != "none":
        allowed = block_diagonal(lengths, rows=len(tokens), width=width)
        additive = settings.attention_mask == "additive"
        batch["attention_mask"] = np.where(allowed, np.float32(0), np.float32(-np.inf)) if additive else allowed
    return batch


def block_diagonal(lengths: I64, *, rows: int, width: int) -> Bool:
    """Which token attends to which: itself and those before it in its sequence; bool [rows, 1, width, width].

    lengths: of the sequences that fill all rows, in order, int64 [sequences].
    """
    sequence = np.repeat(np.arange(len(lengths)), lengths).reshape(rows, 1, width)
    allowed: Bool = sequence[:, :, :, None] == sequence[:, :, None, :]
    return np.tril(allowed)


def _flat(rows: Ragged, dtype: Any) -> npt.NDArray[Any]:
    """The lists end to end, of this type."""
    if not len(rows):
        return np.zeros(0, dtype)
    ends = (rows.starts + rows.lengths).tolist()
    parts = [rows.values[start:end] for start, end in zip(rows.starts.tolist(), ends, strict=True)]
    return np.concatenate(parts, dtype=dtype, casting="unsafe")  # types were looked at when the stream was set up


def _width(tokens: I64, settings: PackedBatches) -> int:
    longest = int(tokens.max(initial=0))
    if settings.pad_to is None:
        return -(-longest // settings.pad_to_multiple_of) * settings.pad_to_multiple_of
    if longest > settings.pad_to:
        whole = "" if settings.form == "padded" else ", which counts all bins of a batch"
        less = "" if settings.last_token == "drop" else ', or last_token="drop" for bins packed with it'
        raise StreamError(
            f"packed: a row has {longest} tokens and pad_to is {settings.pad_to}{whole}; set a larger pad_to{less}"
        )
    return settings.pad_to


def _borders(borders: I64, most: int | None) -> npt.NDArray[np.int32]:
    """As cu_seqlens, with `most` + 1 entries if that is asked for."""
    if most is not None and len(borders) > most + 1:
        raise StreamError(
            f"packed: a batch has {len(borders) - 1} sequences, filling among them, and most_sequences is {most}; set a"
            " larger one, or prepare bins with max_sequences_per_bin"
        )
    return np.pad(borders, (0, 0 if most is None else most + 1 - len(borders)), mode="edge").astype(np.int32)


def _rows(flat: npt.NDArray[Any], tokens: I64, width: int, filling: int) -> npt.NDArray[Any]:
    """The values of each row, filled up to the width: [rows, width]; without filling the values themselves."""
    if len(flat) == width * len(tokens):
        return flat.reshape(len(tokens), width)
    return padded_rows(flat, (np.cumsum(tokens) - tokens).tolist(), tokens.tolist(), width, filling)
