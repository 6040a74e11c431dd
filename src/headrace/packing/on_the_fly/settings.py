"""Define the settings of packing rows while they are streamed, and count the lengths of the rows
beforehand.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from headrace.arrays import I32, I64
from headrace.bins.pack import ALGORITHMS, Algorithm
from headrace.checks import check_integer, check_word
from headrace.dataset.counts import count_lengths
from headrace.dataset.index import SplitIndex
from headrace.dataset.indexed import ReadBlock
from headrace.digest import canonical_json, sha256_hex
from headrace.errors import SettingsError, setting, setting_name
from headrace.packing.chats.preference_columns import preference_field
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.passes import MakePasses

TooLong = Literal["error", "truncate", "drop"]
TokenMask = Literal["shift_left", "unshifted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackRows:
    """Pack rows that are one sequence of tokens each into bins, in windows of `buffer_rows` rows of
    each rank's order.

    capacity: most tokens of a bin, not counting last tokens if packed batches drop them.
    too_long: what to do with longer rows. "error": raise before anything is read. "truncate": keep
    the first tokens. "drop": leave the row out. Rows without tokens are always left out. All are
    counted, see `PackingLoader.report`. tokens: the column of lists. mask: the column of masks
    beside it; None: every token is trained. mask_alignment: whether the mask is aligned with
    trained tokens, "unshifted", or with labels, "shift_left".
    lengths: a column with the number of tokens of each row, which is read in place of the tokens
    when lengths are counted; None: the tokens' column itself.
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
        choices = {
            "too_long": get_args(TooLong),
            "mask_alignment": get_args(TokenMask),
            "algorithm": ALGORITHMS,
        }
        for name, words in choices.items():
            check_word(f"pack: {name}", getattr(self, name), words)
        columns = [name for name in (self.tokens, self.mask, self.lengths) if name is not None]
        if not all(isinstance(name, str) and name for name in columns) or len(set(columns)) < len(
            columns
        ):
            raise SettingsError(
                f"{setting_name('tokens')}, {setting_name('mask')} and {setting_name('lengths')}"
                f" are {columns}",
                remedy="give each column once",
            )

    @property
    def identity(self) -> str:
        """The digest of the settings that decide which rows lie in which bin."""
        deciding = [
            name for name in self.__slots__ if name not in ("mask", "mask_alignment", "lengths")
        ]
        return sha256_hex(canonical_json({name: getattr(self, name) for name in deciding}))

    def passes_of(
        self,
        index: SplitIndex,
        read_block: ReadBlock,
        options: StreamOptions,
        *,
        contents: str | None,
        cache_dir: Path | None,
    ) -> MakePasses:
        """Count the tokens of each row, and return the passes over the bins; see `RowSource`.

        Raises `SettingsError` for settings that cannot work, before anything is read.
        """
        from headrace.packing.on_the_fly.passes import PackingPasses, check_packing

        check_packing(options)
        judged = None
        if options.columns is None:
            judged = preference_field(index.schema, but=(self.tokens,))
        if judged is not None:
            raise SettingsError(
                "it judges answers, so rows that were rejected would be packed",
                column=judged,
                remedy=(
                    f"say what to read with {setting('columns', [self.tokens])} if all rows are"
                    " good, else prepare a dataset of the good ones"
                ),
            )
        lengths = self._lengths(index, read_block, contents=contents, cache_dir=cache_dir)
        return partial(PackingPasses, lengths=lengths)

    def count_tokens(
        self,
        index: SplitIndex,
        read_block: ReadBlock,
        *,
        contents: str | None,
        cache_dir: Path | None,
    ) -> I64:
        """Count the tokens of rows that bins hold; see `RowSource`."""
        lengths = self._lengths(index, read_block, contents=contents, cache_dir=cache_dir)
        return self.retained(lengths.astype(np.int64), self.capacity)

    def retained(self, lengths: I64, longest: int) -> I64:
        """Return the tokens of rows after packing: long rows truncated, 0 for rows that are left
        out.
        """
        if self.too_long == "drop":
            return np.where(lengths > longest, 0, lengths)
        return np.minimum(lengths, longest)

    def _lengths(
        self,
        index: SplitIndex,
        read_block: ReadBlock,
        *,
        contents: str | None,
        cache_dir: Path | None,
    ) -> I32:
        return count_lengths(
            index,
            read_block,
            self.lengths or self.tokens,
            needed_by=setting("pack"),
            contents=contents,
            cache_dir=cache_dir,
        )


def pack_setting(value: Any) -> PackRows:
    """Return the settings for a value of `pack=`, which is settings or a capacity."""
    if isinstance(value, PackRows):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return PackRows(capacity=value)
    raise SettingsError(
        setting="pack",
        value=value,
        remedy="give the tokens of a bin, headrace.PackRows(...), or None",
    )
