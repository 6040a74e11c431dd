"""Keep the images of packed sequences: a table beside each spool, columns of bins, and their part of fingerprints.

    images         list<string>   names of the images in a bin's sequences, in the order of placeholders
    image_start    list<int32>    position in the bin of the first placeholder of each image
    image_tokens   list<int32>    number of placeholders of each image

An image whose bytes are in the row itself is named FILE#ROW/N: the N-th image, from 0, of that row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from headrace.arrays import I32, I64, U64
from headrace.bins.bins import offsets_of
from headrace.bins.rows import IMAGE_COLUMNS, PackedRows
from headrace.keyed_hash import hash_texts
from headrace.packing.chats.images import PlacedImage
from headrace.packing.sequences import mix

_KEY = (0, 0)  # the hashes need no secret


@dataclass(frozen=True)
class Images:
    """Images of sequences. sequence: int64, ascending. start and tokens: int32. reference: names of the images."""

    sequence: I64
    start: I32
    tokens: I32
    reference: pa.Array

    def __len__(self) -> int:
        return len(self.sequence)

    @classmethod
    def of(cls, placed: Sequence[PlacedImage], names: Sequence[str]) -> Images:
        """Build the columns from images in the order of sequences.

        names: name of each image's row, used for images without a reference.
        """
        return cls(
            np.array([image.sequence for image in placed], np.int64),
            np.array([image.start for image in placed], np.int32),
            np.array([image.tokens for image in placed], np.int32),
            pa.array(
                [image.reference or f"{name}/{image.number}" for image, name in zip(placed, names, strict=True)],
                pa.string(),
            ),
        )

    @classmethod
    def of_table(cls, table: pa.Table) -> Images:
        """View the columns of a table."""
        sequence, start, tokens = (table[name].to_numpy() for name in ("sequence", "start", "tokens"))
        return cls(sequence, start, tokens, pa.concat_arrays([pa.array([], pa.string()), *table["reference"].chunks]))

    @classmethod
    def joined(cls, parts: Sequence[Images], sizes: Sequence[int]) -> Images:
        """Join the images of several spools end to end. sizes: number of sequences in each spool."""
        begins = offsets_of(sizes)[:-1]
        return cls(
            np.concatenate(
                [np.empty(0, np.int64), *(part.sequence + begin for part, begin in zip(parts, begins, strict=True))]
            ),
            np.concatenate([np.empty(0, np.int32), *(part.start for part in parts)]),
            np.concatenate([np.empty(0, np.int32), *(part.tokens for part in parts)]),
            pa.concat_arrays([pa.array([], pa.string()), *(part.reference for part in parts)]),
        )

    @classmethod
    def of_bins(cls, rows: PackedRows) -> Images:
        """Read images from the columns of bins. sequence: index among the sequences of these bins."""
        if rows.beside is None:
            return cls.of([], [])
        start, tokens, names = (rows.beside[name].combine_chunks() for name in (*IMAGE_COLUMNS[1:], IMAGE_COLUMNS[0]))
        bins = np.repeat(np.arange(len(rows)), np.diff(start.offsets.to_numpy()))
        at = rows.token_offsets[bins] + start.flatten().to_numpy()
        sequence = np.searchsorted(rows.sequence_begins, at, "right") - 1
        first = (at - rows.sequence_begins[sequence]).astype(np.int32)
        return cls(sequence, first, tokens.flatten().to_numpy(), names.flatten())

    def prints(self, sequences: int) -> U64:
        """Hash each image with its position, and add the hashes per sequence, modulo 2^64; uint64 [`sequences`]."""
        found = np.zeros(sequences, np.uint64)
        if len(self):
            places = self.start.astype(np.uint64) << np.uint64(32) | self.tokens.astype(np.uint64)
            high, low = hash_texts(_KEY, self.reference.cast(pa.large_string()))
            np.add.at(found, self.sequence, mix(high ^ mix(low ^ places)))
        return found

    def beside(self, rows: PackedRows, sequences: I64) -> PackedRows:
        """Return the image columns of bins. sequences: index of the sequence of each of the bins' sequences."""
        first, last = (np.searchsorted(self.sequence, sequences, side) for side in ("left", "right"))
        counts = last - first
        borders = offsets_of(counts)
        at = np.arange(borders[-1]) + np.repeat(first - borders[:-1], counts)
        offsets = pa.array(borders[rows.start_offsets].astype(np.int32))
        start = self.start[at] + np.repeat(rows.starts, counts).astype(np.int32)
        values = (self.reference.take(pa.array(at)), pa.array(start), pa.array(self.tokens[at]))
        columns = [pa.ListArray.from_arrays(offsets, each) for each in values]
        return replace(rows, beside=pa.Table.from_arrays(columns, IMAGE_COLUMNS))
