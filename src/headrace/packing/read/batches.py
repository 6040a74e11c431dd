"""Make batches of bins for attention that keeps sequences apart.

A packed row is a bin: several sequences end to end in `input_ids`, a `loss_mask` of the same
length, and in `seq_start_id` where each sequence begins.

    form="varlen"   all bins of the batch end to end as one row, [1, tokens], with cu_seqlens
                    and max_seqlen
    form="padded"   one row per bin, [bins, width], padded; the same cu_seqlens over the
                    flattened tokens

Both forms have position_ids that begin at 0 in each sequence, and labels that never cross into the
next one. Padding is a sequence of its own, so that cu_seqlens end at the last token and no row of
an attention matrix is empty.

The bins of a batch are first laid end to end. Labels, position ids and masks are then one
expression each over all tokens.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.arrays import I64, offsets_from_lengths
from headrace.bins.rows import TRACES, PackedRows
from headrace.checks import check_integer, check_word
from headrace.dataset.counts import count_rows
from headrace.dataset.index import SplitIndex
from headrace.dataset.indexed import ReadBlock
from headrace.errors import InputError, SettingsError, StreamError, setting, setting_name
from headrace.packing.read.packed_rows import (
    INPUT_IDS,
    LOSS_MASK,
    PACKED_COLUMNS,
    SEQ_START_ID,
    MaskAlignment,
    PackedBlocks,
    columns_of_other_types,
    sequences_in,
    stored_alignment,
)
from headrace.stream.loader.options import (
    BLEND_SOURCE,
    IN_ARROW,
    VALID,
    BatchFormat,
    PackedWord,
    StreamOptions,
)
from headrace.stream.order.balance import CountedIndex
from headrace.stream.read.batch import in_format, make_batches
from headrace.stream.read.columns import Columns
from headrace.stream.read.ragged import Ragged, padded_rows

PackedForm = Literal["varlen", "padded"]
LabelPosition = Literal["next", "same"]
LastToken = Literal["keep", "drop"]
AttentionMask = Literal["none", "bool", "additive"]
Bool = npt.NDArray[np.bool_]

MADE = (
    INPUT_IDS,
    "labels",
    LOSS_MASK,
    "position_ids",
    "cu_seqlens",
    "max_seqlen",
    "attention_mask",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedBatches:
    """Settings for turning bins into batches; pass them as `packed=` of a stream, or pass the word
    of a form.

    form: "varlen" or "padded", see above.
    labels: "next": the label of a position is the next token of its sequence. "same": the token
    itself, for models that shift labels themselves (Hugging Face). loss_mask is aligned with the
    labels.
    ignore_index: the label of untrained positions; None: they keep their token, and only loss_mask
    marks them. last_token: "keep": all L tokens of a sequence, the last without a label. "drop":
    leave the last token out, as readers do that feed L - 1 tokens and L - 1 labels (Megatron); a
    sequence of one token then disappears. pad_id: the padding token of input_ids. pad_to: width of
    every row; None: as wide as the batch needs, rounded up to pad_to_multiple_of.
    most_sequences: fixes the length of cu_seqlens at one more than this by repeating the last
    entry, for constant shapes. Sequences of padding count. None: as many entries as the batch
    needs.
    attention_mask: "bool" (true: may attend) or "additive" (0 or -inf, float32): causal inside each
    sequence, [bins or 1, 1, width, width]. It takes width² values per row, so use it for small
    widths.
    loss_mask_alignment: the alignment of the stored mask in files that do not declare one.
    "shift_left": on the labels, one position left of the trained tokens. "unshifted": on those
    tokens. "legacy_roll_right": one position right of them, rolled over the whole bin, so the last
    token's value is lost and counts as untrained.

    Raises `SettingsError` when built with values that cannot work.
    """

    form: PackedForm = "varlen"
    labels: LabelPosition = "next"
    ignore_index: int | None = -100
    last_token: LastToken = "keep"
    pad_id: int = 0
    pad_to: int | None = None
    pad_to_multiple_of: int = 1
    most_sequences: int | None = None
    attention_mask: AttentionMask = "none"
    loss_mask_alignment: MaskAlignment | None = None

    def __post_init__(self) -> None:
        words = {
            "form": PackedForm,
            "labels": LabelPosition,
            "last_token": LastToken,
            "attention_mask": AttentionMask,
        }
        if self.loss_mask_alignment is not None:
            words["loss_mask_alignment"] = MaskAlignment
        for name, choices in words.items():
            check_word(f"packed: {name}", getattr(self, name), get_args(choices))
        least = {
            "pad_id": None,
            "pad_to_multiple_of": 1,
            "ignore_index": None,
            "most_sequences": 1,
            "pad_to": 1,
        }
        for name, lowest in least.items():
            value = getattr(self, name)
            if value is not None or name in ("pad_id", "pad_to_multiple_of"):
                check_integer(f"packed: {name}", value, least=lowest)
        if self.pad_to is not None and self.pad_to % self.pad_to_multiple_of:
            raise SettingsError(
                f"not a multiple of {setting_name('pad_to_multiple_of')}, which is"
                f" {self.pad_to_multiple_of}",
                setting="pad_to",
                value=self.pad_to,
                remedy="give one of them, or numbers that fit",
            )
        if self.labels == "same" and self.last_token == "drop":
            raise SettingsError(
                f"{setting('labels', 'same')} needs the last token of each sequence, which"
                f" {setting('last_token', 'drop')} leaves out",
                value="same",
                remedy=f"use {setting('labels', 'next')}",
            )

    @property
    def word(self) -> str:
        """A word that changes whenever blocks are read differently."""
        return f"packed {self.loss_mask_alignment}"

    def check(self, root: Path, index: SplitIndex) -> None:
        """Raise `SettingsError` if the columns of a split do not have the types of packed rows."""
        for name in columns_of_other_types(index.schema):
            raise SettingsError(
                "packed rows have lists of whole numbers there",
                path=root,
                column=name,
                value=str(index.schema.field(name).type),
                remedy=f"use {setting('packed', 'off')} for rows as they are",
            )

    def default_columns(self, available: Sequence[str]) -> list[str]:
        """Return the columns without origins of sequences, which models do not need, but keep a
        user's own `source`.
        """
        traced = set(TRACES) <= set(available)
        return [name for name in available if not traced or name not in TRACES]

    def check_columns(self, columns: Sequence[str]) -> None:
        """Raise `SettingsError` unless batches can be made of these columns."""
        missing = [name for name in PACKED_COLUMNS if name not in columns]
        clashing = [name for name in columns if name in MADE and name not in PACKED_COLUMNS]
        if missing:
            raise SettingsError(
                f"{setting_name('columns')} lacks {missing}, which packed batches are made of",
                value=missing,
                remedy=f"read them too, or use {setting('packed', 'off')}",
            )
        if clashing:
            raise SettingsError(
                f"{setting_name('columns')} has {clashing}, which packed batches make themselves",
                value=clashing,
                remedy=f"choose without them, or use {setting('packed', 'off')}",
            )

    def index_of(self, index: SplitIndex) -> SplitIndex:
        """Return the index with the type that masks have after `blocks`; filling rows need it."""
        if LOSS_MASK not in index.schema.names:
            return index
        position = index.schema.get_field_index(LOSS_MASK)
        field = index.schema.field(position).with_type(pa.list_(pa.uint8()))
        return replace(index, schema=index.schema.set(position, field))

    def blocks(self, read_block: ReadBlock, *, root: Path, index: SplitIndex) -> ReadBlock:
        """Return a reader that checks and normalises the blocks of a reader of stored blocks."""
        return PackedBlocks(read_block, root=root, index=index, alignment=self.loss_mask_alignment)

    def count(
        self,
        index: SplitIndex,
        read_block: ReadBlock,
        *,
        contents: str | None,
        cache_dir: Path | None,
    ) -> CountedIndex:
        """Count the tokens of each row, and the sum of squared lengths of its sequences, from
        starts and mask.

        The mask is as long as the tokens and takes a fraction of their bytes.
        """
        tokens, squares = count_rows(
            index,
            read_block,
            [LOSS_MASK, SEQ_START_ID],
            _tokens_and_squares,
            counts=["tokens", "squares"],
            contents=contents,
            cache_dir=cache_dir,
        )
        return CountedIndex.of(index, tokens, squares)

    def batches(
        self, columns: Columns, batch_size: int, batch_format: BatchFormat
    ) -> Iterator[dict[str, Any]]:
        """Yield batches of `batch_size` bins, the last with the rest; other columns are added, one
        value per bin.
        """
        ids, mask, starts = (cast(Ragged, columns[name]) for name in PACKED_COLUMNS)
        others = {name: column for name, column in columns.items() if name not in PACKED_COLUMNS}
        valid = cast(Any, others.get(VALID))
        sources = cast(Any, others.pop(BLEND_SOURCE, None))
        packed = packed_batches(
            ids, mask, starts, valid=valid, sources=sources, batch_size=batch_size, settings=self
        )
        if others:
            beside = make_batches(others, batch_size, batch_format)
        else:
            beside = ({} for _ in range(0, len(ids), batch_size))
        for batch, more in zip(packed, beside, strict=True):
            yield {**in_format(batch, batch_format), **cast(dict[str, Any], more)}


def _tokens_and_squares(table: pa.Table) -> I64:
    """Compute (tokens, sum of squared lengths) from the mask and starts of bins; int64 [2,
    bins].
    """
    tokens, counts, lengths = sequences_in(table)
    return np.stack(
        [tokens, np.diff(offsets_from_lengths(np.square(lengths))[offsets_from_lengths(counts)])]
    )


def packed_setting(value: Any) -> PackedBatches:
    """Return the settings for a value of `packed=`, which is settings or the word of a form."""
    if value == "varlen" or value == "padded":
        return PackedBatches(form=value)
    if isinstance(value, PackedBatches):
        return value
    raise SettingsError(
        setting="packed",
        value=value,
        remedy=f"give one of {', '.join(get_args(PackedWord))}, or headrace.PackedBatches(...)",
    )


def packed_form(
    parts: Sequence[tuple[Path, SplitIndex]], options: StreamOptions
) -> PackedBatches | None:
    """Decide packed="auto": return "varlen" settings if the first shard of every split holds packed
    rows, else None.

    parts: root and index of each split. Rows are packed if the three columns are lists of integers
    (the mask also of booleans), all of them are read, and the metadata declares the alignment of
    masks.
    """
    reads_all = options.columns is None or set(PACKED_COLUMNS) <= set(options.columns)
    possible = reads_all and options.batch_format not in IN_ARROW and options.lists == "ragged"
    if possible and all(_says_packed(root, index) for root, index in parts):
        return PackedBatches()
    return None


def _says_packed(root: Path, index: SplitIndex) -> bool:
    known = set(PACKED_COLUMNS) <= set(index.schema.names) and not columns_of_other_types(
        index.schema
    )
    if not known or not index.shards:
        return False
    try:
        alignment = stored_alignment(root / index.shards[0], index.formats[0])
    except (FileNotFoundError, InputError):
        return False  # reading it will raise
    if alignment == "unknown":
        warnings.warn(
            f"{root / index.shards[0]}: holds packed rows whose loss masks have no known alignment,"
            " so batches are lists and not packed; say where masks stand, e.g."
            ' packed=headrace.PackedBatches(loss_mask_alignment="shift_left"), or'
            ' "legacy_roll_right"',
            UserWarning,
            stacklevel=2,
        )
    return alignment not in (None, "unknown")


def packed_batches(  # noqa: PLR0913 - columns of the same rows
    ids: Ragged,
    mask: Ragged,
    starts: Ragged,
    *,
    valid: Bool | None,
    sources: I64 | None = None,
    batch_size: int,
    settings: PackedBatches,
) -> Iterator[dict[str, Any]]:
    """Yield batches of `batch_size` bins as arrays, the last one with the rest; bins that are not
    valid train nothing.

    ids, mask, starts: the packed columns of the same rows, as `normal_rows` makes them. valid: bool
    [rows]; None: all. sources: of a blend, int64 [rows]. Raises `StreamError` if a row is wider
    than pad_to, or a batch has more than most_sequences.
    """
    for start in range(0, len(ids), batch_size):
        part = slice(start, start + batch_size)
        trained = _flat(mask[part], np.uint8)
        if valid is not None and not valid[part].all():
            trained[np.repeat(~valid[part], ids.lengths[part])] = 0
        tokens = offsets_from_lengths(ids.lengths[part])
        sequences = offsets_from_lengths(starts.lengths[part])
        of_sequences = None
        if sources is not None:
            of_sequences = np.repeat(sources[part], starts.lengths[part])
        bins = PackedRows(
            _flat(ids[part], np.int64),
            trained,
            _flat(starts[part], np.int64),
            tokens,
            sequences,
            of_sequences,
        )
        yield make_packed_batch(bins, settings)


def make_packed_batch(bins: PackedRows, settings: PackedBatches) -> dict[str, Any]:
    """Make one batch of bins whose ids are int64 and whose masks are aligned with labels, 0 at each
    sequence's end.

    input_ids, labels, position_ids: int64 [rows, width]. loss_mask: uint8 [rows, width].
    cu_seqlens: int32 [sequences + 1, or most_sequences + 1] over the flattened tokens. max_seqlen:
    int. attention_mask, if requested: [rows, 1, width, width]. blend_source, if the bins have
    sources: int64, parallel to the lengths of cu_seqlens, -1 for filling.
    """
    filling = settings.pad_id
    if settings.ignore_index is not None:
        filling = settings.ignore_index
    ids = bins.ids
    lengths = bins.sequence_lengths
    sequences = bins.counts
    tokens = bins.sizes
    sources = bins.sources
    if sources is None:
        sources = np.full(len(lengths), -1, np.int64)
    last = np.cumsum(lengths) - 1
    labels, mask = _labels(bins, last, settings, filling)
    if settings.last_token == "drop":
        ids = np.delete(ids, last)
        labels = np.delete(labels, last)
        mask = np.delete(mask, last)
        tokens = tokens - sequences
        lengths = lengths - 1
        sequences = np.diff(offsets_from_lengths(lengths > 0)[bins.start_offsets])
        sources = sources[lengths > 0]
        lengths = lengths[lengths > 0]
    if settings.form == "varlen":
        sequences = np.array([len(lengths)], np.int64)
        tokens = np.array([len(ids)], np.int64)
    width = _width(tokens, settings)
    sources = np.insert(sources, np.cumsum(sequences), -1)
    lengths = np.insert(lengths, np.cumsum(sequences), width - tokens)
    sources = sources[lengths > 0]
    lengths = lengths[lengths > 0]
    offsets = offsets_from_lengths(lengths)
    most = _most_sequences(len(lengths), settings)
    positions = np.arange(width * len(tokens)) - np.repeat(offsets[:-1], lengths)
    batch: dict[str, Any] = {
        "input_ids": _rows(ids, tokens, width, settings.pad_id),
        "labels": _rows(labels, tokens, width, filling),
        "loss_mask": _rows(mask, tokens, width, 0),
        "position_ids": positions.reshape(len(tokens), width),
        "cu_seqlens": np.pad(offsets, (0, most - len(lengths)), mode="edge").astype(np.int32),
        "max_seqlen": int(lengths.max(initial=0)),
    }
    if bins.sources is not None:
        batch[BLEND_SOURCE] = np.pad(sources, (0, most - len(lengths)), constant_values=-1)
    if settings.attention_mask != "none":
        sequence = np.repeat(np.arange(len(lengths)), lengths).reshape(len(tokens), 1, width)
        batch["attention_mask"] = _attention_mask(sequence, settings)
    return batch


def _attention_mask(sequence: I64, settings: PackedBatches) -> npt.NDArray[Any]:
    """Allow attention to earlier tokens of the same sequence, whose number each token has."""
    allowed: Bool = np.tril(sequence[:, :, :, None] == sequence[:, :, None, :])
    if settings.attention_mask == "additive":
        return np.where(allowed, np.float32(0), np.float32(-np.inf))
    return allowed


def _labels(
    bins: PackedRows, last: I64, settings: PackedBatches, filling: int
) -> tuple[I64, npt.NDArray[np.uint8]]:
    """Return the label of each token, int64 [tokens], and the mask aligned with it, uint8."""
    mask = bins.mask
    if settings.labels == "next":
        labels = np.empty_like(bins.ids)
        labels[:-1] = bins.ids[1:]
        labels[last] = filling
    else:
        labels = bins.ids.copy()
        # the wrapped value is 0, like the end of each sequence
        mask = np.concatenate([mask[-1:], mask[:-1]])
    if settings.ignore_index is not None:
        labels[mask == 0] = settings.ignore_index
    return labels, mask


def _most_sequences(sequences: int, settings: PackedBatches) -> int:
    """Return the number of sequences that `cu_seqlens` has room for.

    Raises `StreamError` if there are more.
    """
    most = settings.most_sequences
    if most is None:
        return sequences
    if sequences > most:
        raise StreamError(
            f"a batch has {sequences} sequences, filling among them",
            setting="most_sequences",
            value=most,
            remedy=(
                f"set a larger one, or prepare bins with {setting_name('max_sequences_per_bin')}"
            ),
        )
    return most


def _width(tokens: I64, settings: PackedBatches) -> int:
    """Return the width of a batch whose rows have this many tokens.

    Raises `StreamError` if `pad_to` is less than the longest row.
    """
    longest = int(tokens.max(initial=0))
    if settings.pad_to is None:
        multiple = settings.pad_to_multiple_of
        return -(-longest // multiple) * multiple
    if longest > settings.pad_to:
        hint = ", which counts all bins of a batch"
        if settings.form == "padded":
            hint = ""
        less = f", or {setting('last_token', 'drop')} for bins packed with it"
        if settings.last_token == "drop":
            less = ""
        raise StreamError(
            f"a row has {longest} tokens{hint}",
            setting="pad_to",
            value=settings.pad_to,
            remedy=f"set a larger one{less}",
        )
    return settings.pad_to


def _flat(rows: Ragged, dtype: Any) -> npt.NDArray[Any]:
    """Concatenate the lists, cast to this type. Types were checked when the stream was set up."""
    lists = cast(Iterator[npt.NDArray[Any]], iter(rows))  # no list is null
    return np.concatenate([np.zeros(0, dtype), *lists], dtype=dtype, casting="unsafe")


def _rows(flat: npt.NDArray[Any], tokens: I64, width: int, filling: int) -> npt.NDArray[Any]:
    """Return the values of each row, padded to the width, [rows, width]; a view if no row needs
    padding.
    """
    if len(flat) == width * len(tokens):
        return flat.reshape(len(tokens), width)
    return padded_rows(flat, (np.cumsum(tokens) - tokens).tolist(), tokens.tolist(), width, filling)
