"""Keep tokenised sequences on disk between tokenising and packing, and gather bins from them.

A spool is flat arrays that are mapped, not read:

    tokens.bin     int32   all sequences end to end
    masks.bin      uint8   1 where the token is trained
    offsets.bin    uint64  [n + 1] where sequences begin, in tokens
    lengths.bin    uint32  [n]
    manifest.json  number of sequences and tokens, size and SHA-256 of each file

A task of a run writes a spool among its files, and its receipt proves that they are complete. All
numbers are little-endian.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.arrays import I32, I64, U8, offsets_from_lengths
from headrace.bins import Alignment
from headrace.bins.bins import Bins, Counted, padded_lengths
from headrace.bins.rows import PackedRows, as_type, shift_left
from headrace.digest import canonical_json
from headrace.errors import CorruptShard, InputError
from headrace.formats.write import HashingFile
from headrace.gate.json import parse_object
from headrace.gate.mapped import map_bytes
from headrace.run.context import TaskFiles

VERSION = "headrace-spool-1"
MANIFEST = "manifest.json"

_FILES: dict[str, np.dtype[Any]] = {
    "tokens.bin": np.dtype("<i4"),
    "masks.bin": np.dtype("u1"),
    "offsets.bin": np.dtype("<u8"),
    "lengths.bin": np.dtype("<u4"),
}


class SpoolWriter:
    """Writer of a spool among the files of a task, which publishes them.

    Use it as a context manager. O(1) memory.

    directory: of the spool, relative to the run.
    """

    def __init__(self, files: TaskFiles, directory: str) -> None:
        self._files = files
        self._directory = directory
        self.sequences = self.tokens = 0
        paths = {name: files.temporary(f"{directory}/{name}") for name in _FILES}
        self._open = {name: (path, HashingFile(path)) for name, path in paths.items()}
        self._open["offsets.bin"][1].write(np.zeros(1, "<u8"))

    def add(
        self, tokens: npt.NDArray[np.integer], mask: npt.NDArray[np.integer], lengths: npt.ArrayLike
    ) -> None:
        """Append sequences: flat tokens and mask, and the number of tokens of each sequence.

        tokens: integers that fit int32. mask: 0..255. lengths: integers >= 1 that add up to the
        tokens. Raises `ValueError` otherwise, and then keeps nothing of the call.
        """
        sizes = np.asarray(lengths)
        where = f"{self._directory}: sequences from {self.sequences} on"
        if tokens.ndim != 1 or mask.shape != tokens.shape or sizes.ndim != 1:
            raise ValueError(
                f"{where}: tokens {tokens.shape}, mask {mask.shape}, lengths {sizes.shape}; give"
                " flat arrays"
            )
        if int(sizes.sum()) != len(tokens):
            raise ValueError(
                f"{where}: lengths add up to {sizes.sum()}, tokens are {len(tokens)}; they must"
                " agree"
            )
        if not len(sizes):
            return
        if sizes.min() < 1:
            raise ValueError(
                f"{where}: sequence {self.sequences + int(sizes.argmin())} has"
                f" {sizes.min()} tokens; leave it out"
            )
        columns = {
            "tokens.bin": as_type(tokens, _FILES["tokens.bin"], f"{where}: tokens"),
            "masks.bin": as_type(mask, _FILES["masks.bin"], f"{where}: the mask"),
            "offsets.bin": (self.tokens + np.cumsum(sizes, dtype=np.int64)).astype("<u8"),
            "lengths.bin": as_type(sizes, _FILES["lengths.bin"], f"{where}: lengths"),
        }
        for name, values in columns.items():
            self._open[name][1].write(values)
        self.sequences += len(sizes)
        self.tokens += len(tokens)

    def __enter__(self) -> SpoolWriter:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        """Close the files and, unless there was an error, write the manifest."""
        records = {}
        for name, (temporary, file) in self._open.items():
            file.close()
            if error_type is None:
                written = file.holding(self.sequences)
                self._files.finished(temporary, f"{self._directory}/{name}", written)
                records[name] = {"bytes": written.bytes, "sha256": written.digest}
        if error_type is None:
            manifest = {
                "version": VERSION,
                "sequences": self.sequences,
                "tokens": self.tokens,
                "files": records,
            }
            self._files.write(f"{self._directory}/{MANIFEST}", canonical_json(manifest))


@dataclass(frozen=True, slots=True, eq=False)
class SequenceSpool:
    """Mapped sequences: sequence i has tokens[offsets[i] : offsets[i + 1]], and the same range of
    mask.

    tokens: int32 [tokens]; mask: uint8 [tokens]; offsets: uint64 [n + 1]; lengths: uint32 [n].
    Arrays of files are read-only maps.
    """

    tokens: I32
    mask: U8
    offsets: npt.NDArray[np.uint64]
    lengths: npt.NDArray[np.uint32]

    @classmethod
    def of_arrays(
        cls, tokens: npt.ArrayLike, mask: npt.ArrayLike, lengths: npt.ArrayLike
    ) -> SequenceSpool:
        """Make a spool in memory from sequences that lie end to end."""
        offsets = offsets_from_lengths(lengths).astype(np.uint64)
        sizes = np.asarray(lengths, np.uint32)
        return cls(np.asarray(tokens, np.int32), np.asarray(mask, np.uint8), offsets, sizes)

    @classmethod
    def open(cls, root: Path) -> SequenceSpool:
        """Map a spool.

        Raises `InputError` if it was never finished, `CorruptShard` if a file has another size, or
        sequences do not lie end to end.
        """
        try:
            manifest = parse_object((root / MANIFEST).read_bytes())
            sizes = {name: manifest["files"][name]["bytes"] for name in _FILES}
            sequences = int(manifest["sequences"])
            tokens = int(manifest["tokens"])
            version = manifest["version"]
        except FileNotFoundError:
            raise InputError(
                f"has no {MANIFEST}, so the spool was not finished",
                path=root,
                remedy="write it again",
            ) from None
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise CorruptShard(
                f"cannot be read ({error!r})", path=root / MANIFEST, remedy="write the spool again"
            ) from error
        if version != VERSION:
            raise CorruptShard(
                f"version is {version!r}, this is {VERSION!r}",
                path=root / MANIFEST,
                remedy="write the spool again",
            )
        arrays = []
        for (name, dtype), count in zip(
            _FILES.items(), (tokens, tokens, sequences + 1, sequences), strict=True
        ):
            path = root / name
            size = None
            if path.is_file():
                size = path.stat().st_size
            if size is None or size != count * dtype.itemsize or size != sizes[name]:
                raise CorruptShard(
                    f"has {('no' if size is None else size)} bytes, the manifest says"
                    f" {sizes[name]} for {count} of {dtype.name}",
                    path=path,
                    remedy="write the spool again",
                )
            arrays.append(map_bytes(path).data.view(dtype))
        spool = cls(*arrays)
        ends = spool.offsets[[0, -1]].tolist()
        # `take` follows them without another look
        if ends != [0, tokens] or not np.array_equal(np.diff(spool.offsets), spool.lengths):
            raise CorruptShard(
                f"sequences do not lie end to end in {tokens} tokens",
                path=root / "offsets.bin",
                remedy="write the spool again",
            )
        return spool

    def __len__(self) -> int:
        return len(self.lengths)

    def read_sequence(self, number: int) -> tuple[I32, U8]:
        """Return tokens and mask of one sequence, as views.

        Raises `IndexError` if there is no such sequence.
        """
        if not 0 <= number < len(self):
            raise IndexError(f"spool: no sequence {number}; there are {len(self)}, counted from 0")
        part = slice(int(self.offsets[number]), int(self.offsets[number + 1]))
        return self.tokens[part], self.mask[part]

    def take(self, sequences: I64) -> tuple[I32, U8, I64]:
        """Copy tokens and mask of sequences end to end in the given order; return them and the
        tokens of each.

        Copies ranges of bytes, without work per token. Raises `IndexError` for a sequence that does
        not exist.
        """
        _check_sequences(sequences, len(self))
        starts = self.offsets[sequences].astype(np.int64)
        lengths = self.lengths[sequences].astype(np.int64)
        return _runs(self.tokens, starts, lengths), _runs(self.mask, starts, lengths), lengths


def _check_sequences(sequences: I64, count: int) -> None:
    outside = sequences[(sequences < 0) | (sequences >= count)]
    if len(outside):
        raise IndexError(f"spool: no sequence {outside[0]}; there are {count}, counted from 0")


def _runs(values: npt.NDArray[Any], starts: I64, lengths: I64) -> npt.NDArray[Any]:
    """Return values[b : b + n] of each pair end to end, as a read-only array.

    Bounds are not checked.
    """
    views = pa.LargeListViewArray.from_arrays(pa.array(starts), pa.array(lengths), pa.array(values))
    laid: npt.NDArray[Any] = views.flatten().to_numpy()
    return laid


class JoinedSpool:
    """The sequences of several spools, numbered across them: those of the first spool, then those
    of the second, …

    `take` copies each token twice if more than one spool is read.
    """

    def __init__(self, spools: Sequence[SequenceSpool]) -> None:
        self._spools = tuple(spools)
        self._first: I64 = offsets_from_lengths([len(spool) for spool in self._spools])

    def __len__(self) -> int:
        return int(self._first[-1])

    def take(self, sequences: I64) -> tuple[I32, U8, I64]:
        """See `SequenceSpool.take`."""
        _check_sequences(sequences, len(self))
        owner = np.searchsorted(self._first, sequences, "right") - 1
        used = np.unique(owner)
        if not len(used):
            return np.empty(0, np.int32), np.empty(0, np.uint8), np.empty(0, np.int64)
        parts = []
        for number in used:
            parts.append(
                self._spools[int(number)].take(sequences[owner == number] - self._first[number])
            )
        if len(parts) == 1:
            return parts[0]
        by_owner = np.argsort(owner, kind="stable")
        ids, mask, sizes = (np.concatenate([part[column] for part in parts]) for column in range(3))
        starts = np.empty_like(sizes)
        lengths = np.empty_like(sizes)
        starts[by_owner] = np.cumsum(sizes) - sizes
        lengths[by_owner] = sizes
        return _runs(ids, starts, lengths), _runs(mask, starts, lengths), lengths


def gather(
    source: SequenceSpool | JoinedSpool,
    bins: Bins,
    *,
    alignment: Alignment = "shift_left",
    pad_multiple: int = 1,
    pad_id: int = 0,
    counted: Counted = "stored",
) -> PackedRows:
    """Yield the rows of all `bins`, a row group at a time: sequences end to end, each with an
    aligned mask.

    pad_multiple, counted: see `padded_lengths`. Padding follows each sequence and belongs to it,
    with `pad_id` and mask
    0. Memory: about three times the rows'. Raises `IndexError` for a sequence that is not in the
    source.
    """
    if alignment not in get_args(Alignment):
        raise ValueError(
            f"loss mask: alignment is {alignment!r}; choose one of {', '.join(get_args(Alignment))}"
        )
    ids, mask, lengths = source.take(bins.sequences)
    if alignment == "shift_left":
        mask = shift_left(mask, np.cumsum(lengths))
    stored = padded_lengths(lengths, pad_multiple, counted)
    if pad_multiple > 1:
        ends = np.cumsum(stored)
        size = int(stored.sum())
        at = np.repeat(ends - stored - (np.cumsum(lengths) - lengths), lengths) + np.arange(
            len(ids)
        )
        padded = np.full(size, pad_id, np.int32)
        trained = np.zeros(size, np.uint8)
        padded[at], trained[at] = ids, mask
        ids = padded
        mask = trained
    rows = PackedRows.of_sequences(ids, mask, stored, bins.offsets)
    if alignment == "shift_left":
        return rows
    rolled = np.append(mask[-1:], mask[:-1])
    rolled[rows.token_offsets[:-1][rows.sizes > 0]] = 0
    return replace(rows, mask=rolled)


def materialise_bin_arrays(  # noqa: PLR0913, PLR0917 - public, signature of the specification
    spool_reader: SequenceSpool,
    assignment: Bins,
    bin_id: int,
    pack_size: int,
    scratch_input_ids: npt.NDArray[np.int32],
    scratch_loss_mask: npt.NDArray[np.uint8],
    alignment: Alignment = "shift_left",
) -> tuple[int, I32]:
    """Copy one bin into buffers of pack_size; return its tokens, and where its sequences start,
    int32.

    Starts begin with 0, strictly increase, and stay below the number of tokens. Tokens beyond
    pack_size are cut off, and sequences after them are left out. The buffers are 0 after the
    tokens. For whole files `gather` is faster.
    """
    sequences = assignment.bin(bin_id)
    rows = gather(
        spool_reader, Bins(offsets_from_lengths([len(sequences)]), sequences), alignment=alignment
    )
    size = min(len(rows.ids), pack_size)
    scratch_input_ids[:size], scratch_input_ids[size:] = rows.ids[:size], 0
    scratch_loss_mask[:size], scratch_loss_mask[size:] = rows.mask[:size], 0
    if alignment == "shift_left":
        scratch_loss_mask[size - 1 : size] = 0  # the end of a sequence that was cut
    return size, rows.starts[rows.starts < size].astype(np.int32)


materialize_bin_arrays = materialise_bin_arrays
"""The specification's spelling."""
