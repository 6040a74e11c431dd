"""Packed rows as every packed batch expects them, made of blocks as they were stored, in whole columns.

Stored files differ: ids of 32 or 64 bits, masks of numbers or truth values, masks that stand on tokens or on labels. A
block that passed here has flat values with one meaning: mask uint8, standing on labels, 0 on the last token of each
sequence; starts that begin at 0, rise, and end below the row's length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.arrays import I64, U8
from headrace.bins.alignment import shift_left
from headrace.dataset.index import SplitIndex
from headrace.dataset.indexed import ReadBlock
from headrace.errors import InputError, SettingsError
from headrace.formats.blocks import kind_of_word
from headrace.formats.open_parquet import key_values
from headrace.stream.loader.options import IN_ARROW, StreamOptions
from headrace.stream.packed.batches import (
    ALIGNMENT_KEYS,
    INPUT_IDS,
    LOSS_MASK,
    PACKED_COLUMNS,
    SEQ_START_ID,
    MaskAlignment,
    PackedBatches,
)
from headrace.stream.read.columns import whole_array


def aligned_to_labels(mask: U8, *, rows: I64, sequences: I64, alignment: MaskAlignment) -> U8:
    """The mask as it stands on labels: uint8 [T], a new array.

    mask: uint8 [T] of rows end to end; rows, sequences: where each of them that holds a token ends, int64, the last T.
    """
    if alignment == "legacy_roll_right":
        mask = np.append(mask[1:], mask[:1])
        mask[rows - 1] = 0  # that of a row's last token was rolled out of the row
    if alignment != "shift_left":
        return shift_left(mask, sequences)
    made = mask.copy()
    made[sequences - 1] = 0
    return made


def checked_ends(starts: I64, *, counts: I64, lengths: I64) -> tuple[I64, int]:
    """(where each sequence ends in the rows end to end, int64 [sequences]; the first bad row, or -1 if all are good).

    starts: int64 [sequences], inside their rows; counts: sequences of each row; lengths: tokens of each row.
    """
    row_end = np.cumsum(lengths)
    row = np.repeat(np.arange(len(counts)), counts)
    begin = starts + (row_end - lengths)[row]
    ends = np.append(begin[1:], row_end[-1:])[: len(begin)]
    bad = np.zeros(len(counts), np.bool_)
    bad[row[(starts < 0) | (starts >= lengths[row])]] = True
    bad[row[1:][(row[1:] == row[:-1]) & (starts[1:] <= starts[:-1])]] = True
    first = np.cumsum(counts) - counts
    held = np.flatnonzero(counts > 0)
    bad[held] |= starts[first[held]] != 0
    bad |= (counts == 0) != (lengths == 0)
    found = np.flatnonzero(bad)
    return ends, int(found[0]) if len(found) else -1


def _lists(table: pa.Table, name: str) -> tuple[npt.NDArray[Any], I64]:
    """(the values end to end, the length of each list) of a column of lists."""
    whole = whole_array(table[name])
    if whole.null_count or whole.flatten().null_count:
        raise InputError(f"column {name} holds nulls; a packed row has none: write the file anew")
    offsets = whole.offsets.to_numpy().astype(np.int64, copy=False)
    return whole.values.to_numpy(zero_copy_only=False)[offsets[0] : offsets[-1]], np.diff(offsets)


def normal_rows(table: pa.Table, alignment: MaskAlignment) -> pa.Table:
    """The table with its packed columns checked and the mask as list<uint8> that stands on labels.

    Raises `InputError` naming the row (from 0, in the table) that is no packed row.
    """
    lengths = _lists(table, INPUT_IDS)[1]
    values, mask_lengths = _lists(table, LOSS_MASK)
    starts, counts = _lists(table, SEQ_START_ID)
    unlike = np.flatnonzero(lengths != mask_lengths)
    if len(unlike):
        row = int(unlike[0])
        raise InputError(
            f"row {row}: {lengths[row]} input_ids and {mask_lengths[row]} values of loss_mask; a packed row has as"
            " many of both: write the file anew"
        )
    begin = starts.astype(np.int64, copy=False)
    ends, bad = checked_ends(begin, counts=counts, lengths=lengths)
    if bad >= 0:
        first = int(counts[:bad].sum())
        shown = begin[first : first + int(counts[bad])].tolist()
        raise InputError(
            f"row {bad}: seq_start_id is {shown[:8]}{'…' if len(shown) > 8 else ''} in a row of {lengths[bad]}"
            " tokens; it begins with 0, rises, and stays below the length: write the file anew"
        )
    if values.dtype != np.bool_ and len(values) and not 0 <= int(values.min()) <= int(values.max()) <= 255:
        raise InputError(f"loss_mask holds {values.min()}..{values.max()}; expected 0 and 1: write the file anew")
    row_ends = np.cumsum(lengths)[lengths > 0]
    made = aligned_to_labels(values.astype(np.uint8), rows=row_ends, sequences=ends, alignment=alignment)
    offsets = np.concatenate([[0], np.cumsum(mask_lengths)]).astype(np.int32)
    column = pa.ListArray.from_arrays(pa.array(offsets), pa.array(made))
    return table.set_column(table.schema.get_field_index(LOSS_MASK), LOSS_MASK, column)


class PackedBlocks:
    """A block reader of packed rows, over one of blocks as they are stored. Picklable; safe from any thread.

    alignment: of masks in files that do not say; a file that says another one is refused, and one that does not say
    needs it: both `SettingsError`. Blocks read without the packed columns come as they are.
    """

    def __init__(
        self, read_block: ReadBlock, *, root: Path, index: SplitIndex, alignment: MaskAlignment | None
    ) -> None:
        self._read_block, self._root, self._index, self._alignment = read_block, root, index, alignment
        self._found: dict[int, MaskAlignment] = {}

    def __call__(self, number: int, columns: Sequence[str] | None) -> pa.Table:
        table = self._read_block(number, columns)
        if not all(name in table.column_names for name in PACKED_COLUMNS):
            return table
        shard = int(self._index.shard_of_block[number])
        try:
            return normal_rows(table, self._alignment_of(shard))
        except InputError as error:
            raise InputError(f"{self._root / self._index.shards[shard]}: {error}") from error

    def _alignment_of(self, shard: int) -> MaskAlignment:
        if shard in self._found:
            return self._found[shard]
        path = self._root / self._index.shards[shard]
        said = stored_alignment(path, self._index.formats[shard])
        if said is None and self._alignment is None:
            raise SettingsError(
                f"{path}: its metadata has no {ALIGNMENT_KEYS[1]}; say where its masks stand, e.g."
                ' packed=headrace.PackedBatches(loss_mask_alignment="shift_left"), or "unshifted"'
            )
        if said is not None and self._alignment not in (None, said):
            raise SettingsError(
                f'{path}: its metadata says {ALIGNMENT_KEYS[1]} "{said}", and "{self._alignment}" was asked for; leave'
                " loss_mask_alignment out, or open files of one kind at a time"
            )
        found = self._found[shard] = cast(MaskAlignment, said or self._alignment)
        return found


def stored_alignment(path: Path, word: str) -> MaskAlignment | None:
    """What a shard's metadata says of its masks; None if nothing. Raises `InputError` on a word that is not known.

    word: the format of the shard in the index. Only Parquet has such metadata.
    """
    kind = kind_of_word(word)
    if kind.format != "parquet":
        return None
    metadata = key_values(path, kind)
    said = next((metadata[key.encode()] for key in ALIGNMENT_KEYS if key.encode() in metadata), None)
    if said is None:
        return None
    found = said.decode("utf-8", "replace")
    if found not in get_args(MaskAlignment):
        raise InputError(
            f"{path}: its metadata says {ALIGNMENT_KEYS[1]} {found!r}; this version knows"
            f" {', '.join(get_args(MaskAlignment))}: upgrade headrace, or write the file anew"
        )
    return cast(MaskAlignment, found)


def packed_options(parts: Sequence[tuple[Path, SplitIndex]], options: StreamOptions) -> StreamOptions:
    """The options with packed="auto" decided: "varlen" if all splits hold packed rows, as their first shards say.

    parts: root and index of each split. Rows are packed if the three columns are lists of whole numbers (the mask also
    of truth values), all of them are read, and the metadata says where masks stand. Of a setting asked for, raises
    `SettingsError` if the columns are of other types.
    """
    if options.packed == "off":
        return options
    if options.packed_batches is not None:
        for root, index in parts:
            for name in _of_other_types(index.schema):
                raise SettingsError(
                    f"{root}: column {name} is {index.schema.field(name).type}, and packed rows have lists of whole"
                    ' numbers there; use packed="off" for rows as they are'
                )
        return options
    wanted = options.columns is None or set(PACKED_COLUMNS) <= set(options.columns)
    possible = wanted and options.batch_format not in IN_ARROW and options.lists == "ragged"
    packed = possible and all(_says_packed(root, index) for root, index in parts)
    return replace(options, packed=PackedBatches() if packed else "off")


def packed_index(index: SplitIndex, options: StreamOptions) -> SplitIndex:
    """The index with the type that the mask has after `PackedBlocks`, if rows are packed; filling rows need it."""
    if options.packed_batches is None or LOSS_MASK not in index.schema.names:
        return index
    place = index.schema.get_field_index(LOSS_MASK)
    field = index.schema.field(place).with_type(pa.list_(pa.uint8()))
    return replace(index, schema=index.schema.set(place, field))


def _says_packed(root: Path, index: SplitIndex) -> bool:
    if not set(PACKED_COLUMNS) <= set(index.schema.names) or _of_other_types(index.schema) or not index.shards:
        return False
    try:
        return stored_alignment(root / index.shards[0], index.formats[0]) is not None
    except (FileNotFoundError, InputError):
        return False  # reading will say what is wrong with it


def _of_other_types(schema: pa.Schema) -> list[str]:
    """The packed columns that there are and that do not hold what packed rows hold."""
    found = []
    for name in (name for name in PACKED_COLUMNS if name in schema.names):
        kind = schema.field(name).type
        inner = kind.value_type if pa.types.is_list(kind) or pa.types.is_large_list(kind) else None
        if inner is None or not (pa.types.is_integer(inner) or (name == LOSS_MASK and pa.types.is_boolean(inner))):
            found.append(name)
    return found
