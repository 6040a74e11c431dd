"""Check stored packed rows, a block at a time, and normalise them for batches.

Stored files differ: ids of 32 or 64 bits, masks of numbers or booleans, masks aligned with tokens
or with labels. After the check, a block has flat values with one meaning: mask uint8, aligned with
labels, 0 on the last token of each sequence; starts that begin at 0, increase, and end below the
row's length.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, cast, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import I64, U8
from headrace.bins.rows import ALIGNMENT_KEY, first_fault, shift_left
from headrace.dataset.counts import lengths_of
from headrace.dataset.index import SplitIndex
from headrace.dataset.indexed import ReadBlock
from headrace.errors import (
    InputError,
    SettingsError,
    setting,
    setting_name,
)
from headrace.formats.parquet import key_values
from headrace.formats.source import file_type_of_word
from headrace.packing.storage.packed_parquet import rows_of

MaskAlignment = Literal["shift_left", "unshifted", "legacy_roll_right"]

INPUT_IDS, LOSS_MASK, SEQ_START_ID = PACKED_COLUMNS = ("input_ids", "loss_mask", "seq_start_id")
ALIGNMENT_KEYS = (
    ALIGNMENT_KEY,
    "loss_mask_alignment",
)  # in the key-value metadata of Parquet files: ours, and that of others


def holds_whole_numbers(data_type: pa.DataType, *, or_truth: bool = False) -> bool:
    """Return whether a column of this type has lists of integers, or of booleans if those are
    allowed.
    """
    if pa.types.is_list(data_type) or pa.types.is_large_list(data_type):
        inner = data_type.value_type
    else:
        inner = pa.null()
    return bool(pa.types.is_integer(inner) or (or_truth and pa.types.is_boolean(inner)))


def columns_of_other_types(schema: pa.Schema) -> list[str]:
    """Return the packed columns of a schema whose types packed rows cannot have."""
    result = []
    for name in PACKED_COLUMNS:
        if name in schema.names and not holds_whole_numbers(
            schema.field(name).type, or_truth=name == LOSS_MASK
        ):
            result.append(name)
    return result


def normal_rows(table: pa.Table, alignment: MaskAlignment) -> pa.Table:
    """Check the packed columns of a table, and return them with a mask of list<uint8> that is
    aligned with labels.

    Raises `InputError` that names the row of the table (from 1) that is not a packed row.
    """
    rows = rows_of(table)
    fault = first_fault(rows, empty="take")
    if fault is not None:
        raise InputError(fault[1], row=fault[0] + 1, remedy="write the file anew")
    values = rows.mask
    ends = rows.sequence_starts + rows.sequence_lengths
    if (
        values.dtype != np.bool_
        and len(values)
        and not 0 <= int(values.min()) <= int(values.max()) <= 255
    ):
        raise InputError(
            "not 0 and 1",
            column=LOSS_MASK,
            value=f"{values.min()}..{values.max()}",
            remedy="write the file anew",
        )
    mask: U8 = values.astype(np.uint8)
    if alignment == "legacy_roll_right":
        mask = np.append(mask[1:], mask[:1])
        mask[rows.token_offsets[1:][rows.sizes > 0] - 1] = (
            0  # the value of a row's last token was rolled out of the row
        )
    if alignment == "shift_left":
        mask[ends - 1] = 0
    else:
        mask = shift_left(mask, ends)
    column = pa.ListArray.from_arrays(pa.array(rows.token_offsets.astype(np.int32)), pa.array(mask))
    return table.set_column(table.schema.get_field_index(LOSS_MASK), LOSS_MASK, column)


class PackedBlocks:
    """A block reader of packed rows, on top of a reader of stored blocks.

    Picklable and thread-safe.

    alignment: of masks in files that do not declare it. Raises `SettingsError` if a file declares
    another one, or if neither does. Blocks read without the packed columns are returned unchanged.
    """

    def __init__(
        self,
        read_block: ReadBlock,
        *,
        root: Path,
        index: SplitIndex,
        alignment: MaskAlignment | None,
    ) -> None:
        self._read_block = read_block
        self._root = root
        self._index = index
        self._alignment = alignment
        self._alignments: dict[int, MaskAlignment] = {}

    def __call__(self, number: int, columns: Sequence[str] | None) -> pa.Table:
        table = self._read_block(number, columns)
        if not all(name in table.column_names for name in PACKED_COLUMNS):
            return table
        shard = int(self._index.shard_of_block[number])
        path = self._root / self._index.shards[shard]
        try:
            if shard not in self._alignments:
                self._alignments[shard] = self._alignment_of(path, self._index.formats[shard])
            return normal_rows(table, self._alignments[shard])
        except InputError as error:
            raise error.at(path=path) from None

    def _alignment_of(self, path: Path, word: str) -> MaskAlignment:
        declared = stored_alignment(path, word)
        if declared == "unknown":
            declared = None
        if declared is None and self._alignment is None:
            raise SettingsError(
                f"its metadata has no {setting_name(ALIGNMENT_KEYS[1])}",
                path=path,
                remedy=(
                    "say where its masks stand, e.g."
                    ' packed=headrace.PackedBatches(loss_mask_alignment="shift_left"), or'
                    ' "unshifted"'
                ),
            )
        if declared is not None and self._alignment not in (None, declared):
            raise SettingsError(
                f"its metadata says {setting(ALIGNMENT_KEYS[1], declared)}, and"
                f' "{self._alignment}" was asked for',
                path=path,
                value=self._alignment,
                remedy="leave it out, or open files of one kind at a time",
            )
        return cast(MaskAlignment, declared or self._alignment)


def stored_alignment(path: Path, word: str) -> MaskAlignment | Literal["unknown"] | None:
    """Read the alignment of masks from a shard's metadata; None if absent.

    Raises `InputError` for an unknown word.

    "unknown" is written for older bins whose alignment was not given. word: the format of the shard
    in the index. Only Parquet has such metadata.
    """
    file_type = file_type_of_word(word)
    if file_type.format.name != "parquet":
        return None
    metadata = key_values(path, file_type)
    value = None
    for key in ALIGNMENT_KEYS:
        if value is None:
            value = metadata.get(key.encode())
    if value is None:
        return None
    declared = value.decode("utf-8", "replace")
    if declared == "unknown":
        return "unknown"
    if declared not in get_args(MaskAlignment):
        raise InputError(
            f"its metadata says {ALIGNMENT_KEYS[1]} {declared!r}; this version knows"
            f" {', '.join(get_args(MaskAlignment))}",
            path=path,
            remedy="upgrade headrace, or write the file anew",
        )
    return cast(MaskAlignment, declared)


def sequences_in(table: pa.Table) -> tuple[I64, I64, I64]:
    """Count the tokens and the sequences of bins, and the tokens of each sequence, from the mask
    and starts.
    """
    tokens = lengths_of(table[LOSS_MASK])
    counts = lengths_of(table[SEQ_START_ID])
    starts = pc.list_flatten(table[SEQ_START_ID]).to_numpy().astype(np.int64)
    ends = np.append(starts[1:], 0)
    nonempty = np.flatnonzero(counts)
    ends[np.cumsum(counts)[nonempty] - 1] = tokens[nonempty]
    return tokens, counts, ends - starts
