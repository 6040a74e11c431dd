"""Plan which rows lie in which bin of a pass, and how many batches every rank has. Pure.

A rank's own rows, in the order of its share, are cut into windows, and each window is packed by itself. So bins
depend on the order of the pass and on lengths alone; any rank can say what the others do, and a place in a pass is a
number of batches. Cost: O(rows of the split) for the number of steps, once a pass; a window at a time for what is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from headrace.arrays import I32, I64
from headrace.bins.bins import Bins
from headrace.bins.lengths import Counted, costs
from headrace.bins.pack import ALGORITHMS, Algorithm, pack
from headrace.checks import check_integer, check_word
from headrace.dataset.index import SplitIndex
from headrace.dataset.indexed import ReadBlock
from headrace.digest import canonical_json, derive_key, sha256_hex
from headrace.errors import InputError, SettingsError
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.passes import MakePasses
from headrace.stream.order.plan import Plan, plan_pools
from headrace.stream.order.remaining import Remaining
from headrace.stream.order.state import StreamState

TooLong = Literal["error", "truncate", "drop"]
TokenMask = Literal["shift_left", "unshifted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackRows:
    """Pack rows that are one sequence of tokens each into bins, in windows of `buffer_rows` rows of each rank's order.

    capacity: most tokens of a bin; with packed batches that drop each sequence's last token, those that are left.
    too_long: what becomes of a longer row: "error" before anything is read; "truncate" keeps its first tokens; "drop".
        Rows without tokens take no part. All are counted, see `PackingLoader.report`.
    tokens: the column of lists; mask: the column of masks beside it, None: every token is trained. mask_alignment:
        whether the mask stands on trained tokens, "unshifted", or on labels, "shift_left".
    lengths: a column that holds the number of tokens of each row, to be read in place of the tokens when lengths are
        counted; None: the tokens' column itself.
    algorithm, max_sequences: see `headrace.bins.pack`.

    Raises `SettingsError` when built with values that cannot work.
    """

    capacity: int
    too_long: TooLong = "error"
    tokens: str = "input_ids"
    mask: str | None = None
    mask_alignment: TokenMask = "unshifted"
    lengths: str | None = None
    algorithm: Algorithm = "best_fit_shuffle"
    max_sequences: int | None = None
    buffer_rows: int = 8192

    def __post_init__(self) -> None:
        for name in ("capacity", "buffer_rows", "max_sequences"):
            value = getattr(self, name)
            if (name, value) != ("max_sequences", None):
                check_integer(f"pack: {name}", value, least=1)
        choices = {"too_long": get_args(TooLong), "mask_alignment": get_args(TokenMask), "algorithm": ALGORITHMS}
        for name, words in choices.items():
            check_word(f"pack: {name}", getattr(self, name), words)
        columns = [name for name in (self.tokens, self.mask, self.lengths) if name is not None]
        if not all(isinstance(name, str) and name for name in columns) or len(set(columns)) < len(columns):
            raise SettingsError(f"pack: columns are {columns}; give tokens=, mask= and lengths= names, each once")

    @property
    def identity(self) -> str:
        """A digest of what decides which rows lie in which bin."""
        kept = [name for name in self.__slots__ if name not in ("mask", "mask_alignment", "lengths")]
        return sha256_hex(canonical_json({name: getattr(self, name) for name in kept}))

    def passes_of(
        self,
        index: SplitIndex,
        read_block: ReadBlock,
        options: StreamOptions,
        *,
        contents: str | None,
        cache_dir: Path | None,
    ) -> MakePasses:
        """Count the tokens of each row, and return what makes passes over the bins; see `RowSource`."""
        from headrace.packing.on_the_fly.passes import PackingPasses, lengths_for

        lengths = lengths_for(index, read_block, self, options, contents=contents, cache_dir=cache_dir)
        return partial(PackingPasses, lengths=lengths)


def pack_setting(value: Any) -> PackRows:
    """Return the settings that `pack=` means: themselves, or those of a capacity."""
    if isinstance(value, PackRows):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return PackRows(capacity=value)
    raise SettingsError(f"pack is {value!r}; expected tokens of a bin, headrace.PackRows(...), or None")


@dataclass(frozen=True, kw_only=True)
class PackingReport:
    """A pass in numbers, over all ranks; known before it begins.

    rows: those that are packed; bins: that hold them; filling_bins: that only fill last batches, and train nothing.
    tokens: in bins; fill: their part of what bins could hold. truncated_rows, truncated_tokens, dropped_rows,
    dropped_tokens: what too_long did; empty_rows: rows without tokens.
    """

    rows: int
    bins: int
    filling_bins: int
    tokens: int
    fill: float
    truncated_rows: int
    truncated_tokens: int
    dropped_rows: int
    dropped_tokens: int
    empty_rows: int


@dataclass(frozen=True, kw_only=True, eq=False)
class PackingPlan:
    """The bins of a pass that begins where `plan` does; batches of `batch_size` bins.

    plan: of rows, cut into "batches" of pack.buffer_rows, remainder "pad". lengths: of all rows, int32 [N], by their
    number in the split; first_row: of each block. start: the state at which the pass begins.
    """

    plan: Plan
    start: StreamState
    lengths: I32
    first_row: I64
    pack: PackRows
    counted: Counted
    batch_size: int
    _known: dict[int, I64] = field(default_factory=dict, repr=False)

    @property
    def longest(self) -> int:
        """Tokens that a row may have to fit into a bin."""
        return self.pack.capacity + (1 if self.counted == "runtime" else 0)

    @cached_property
    def steps(self) -> int:
        """Batches of every rank: what the one with the most bins needs. Raises `InputError` for too long rows."""
        self.check_lengths()
        most = max(int(self.bins_of_windows(rank).sum()) for rank in range(self.plan.world_size))
        return -(-most // self.batch_size)

    def check_lengths(self) -> None:
        """Raise `InputError` if too_long="error" and a row does not fit into a bin."""
        if self.pack.too_long != "error":
            return
        long = np.flatnonzero(self.lengths > self.longest)
        if len(long):
            raise InputError(
                f"pack: {len(long)} rows have more than {self.longest} tokens, the first of them row {long[0]} with"
                f' {self.lengths[long[0]]}; choose a larger capacity, or too_long="truncate" or "drop"'
            )

    def lengths_of(self, rank: int) -> I64:
        """Tokens of each of its rows, in its order, as they are stored: int64 [rows]."""
        share = self.plan.share(rank)
        if not share.rows:
            return np.zeros(0, np.int64)
        parts = []
        for pool in plan_pools(self.plan.order, self.plan.remaining, share):
            firsts = self.first_row
            rows = [self.lengths[firsts[block] + start : firsts[block] + stop] for block, start, stop in pool.pieces]
            laid = np.concatenate(rows)
            parts.append(laid if pool.index is None else laid[pool.index])
        return np.concatenate(parts)[: share.rows].astype(np.int64)

    def bins_of_windows(self, rank: int) -> I64:
        """Count the bins of each window of a rank: int64 [windows]."""
        if rank not in self._known:
            self._known[rank] = np.array([len(bins) for _, bins in self.windows(rank)], np.int64)
        return self._known[rank]

    def windows(self, rank: int, first: int = 0) -> Iterator[tuple[I64, Bins]]:
        """Each window of a rank, from window `first` on: tokens of its rows as they are stored, and its bins.

        Sequences of the bins are places in the window.
        """
        lengths, size = self.lengths_of(rank), self.pack.buffer_rows
        for window in range(first, -(-len(lengths) // size)):
            of_window = lengths[window * size : (window + 1) * size]
            kept = self.kept(of_window)
            taking = np.flatnonzero(kept)
            seed = derive_key(self.start.seed, "stream.pack", self.start.epoch, rank, window)[0] >> 1
            bins = pack(
                costs(kept[taking], self.counted),
                self.pack.capacity,
                algorithm=self.pack.algorithm,
                seed=seed,
                max_sequences=self.pack.max_sequences,
            )
            bins = Bins(bins.offsets, taking[bins.sequences])
            yield of_window, bins.shuffled(seed) if self.start.shuffle else bins

    def kept(self, lengths: I64) -> I64:
        """The tokens of rows as they are packed: what is too long cut, or 0 where a row takes no part."""
        if self.pack.too_long == "drop":
            return np.where(lengths > self.longest, 0, lengths)
        return np.minimum(lengths, self.longest)

    def left_after(self, batches: I64) -> Remaining:
        """The rows that nobody has received after so many batches of each rank, int64 [ranks].

        Rows that take no part are left if their window is not delivered to its end.
        """
        positions = [np.zeros(0, np.int64)]
        for rank in range(self.plan.world_size):
            share = self.plan.share(rank)
            left = np.ones(share.rows, np.bool_)
            given = int(batches[rank]) * self.batch_size
            for window, (_, bins) in enumerate(self.windows(rank)):
                begin = window * self.pack.buffer_rows
                if given >= len(bins):
                    left[begin : begin + self.pack.buffer_rows] = False
                else:
                    left[begin + bins[:given].sequences] = False
                given -= min(given, len(bins))
                if not given:
                    break
            positions.append(self.plan.remaining.positions(share.places(0, share.rows)[left]))
        return Remaining.of_positions(self.plan.order.rows, np.sort(np.concatenate(positions)))

    def report(self) -> PackingReport:
        """The pass in numbers; of what is too long and empty, all rows of the split are counted."""
        packed = np.concatenate([self.lengths_of(rank) for rank in range(self.plan.world_size)])
        kept = self.kept(packed)
        bins = sum(int(self.bins_of_windows(rank).sum()) for rank in range(self.plan.world_size))
        long = packed > self.longest
        cut, dropped = long & (kept > 0), long & (kept == 0)
        held = costs(kept[kept > 0], self.counted)
        return PackingReport(
            rows=int(np.count_nonzero(kept)),
            bins=bins,
            filling_bins=self.steps * self.batch_size * self.plan.world_size - bins,
            tokens=int(kept.sum()),
            fill=int(held.sum()) / (bins * self.pack.capacity) if bins else 0.0,
            truncated_rows=int(np.count_nonzero(cut)),
            truncated_tokens=int((packed - kept)[cut].sum()),
            dropped_rows=int(np.count_nonzero(dropped)),
            dropped_tokens=int(packed[dropped].sum()),
            empty_rows=int(np.count_nonzero(packed == 0)),
        )
