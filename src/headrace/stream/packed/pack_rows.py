"""How rows of tokens are packed while they are streamed: the settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from headrace.checks import check_integer, check_word
from headrace.digest import canonical_json, sha256_hex
from headrace.errors import SettingsError
from headrace.packing.pack import ALGORITHMS, Algorithm

TooLong = Literal["error", "truncate", "drop"]
TokenMask = Literal["shift_left", "unshifted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackRows:
    """Rows that are one sequence of tokens each become bins, in windows of `buffer_rows` rows of each reader's order.

    capacity: most tokens of a bin; with packed batches that drop each sequence's last token, those that are left.
    too_long: what becomes of a longer row: "error" before anything is read; "truncate" keeps its first tokens; "drop".
        Rows without tokens take no part. All are counted, see `PackingLoader.report`.
    tokens: the column of lists; mask: the column of masks beside it, None: every token is trained. mask_alignment:
        whether the mask stands on trained tokens, "unshifted", or on labels, "shift_left".
    lengths: a column that holds the number of tokens of each row, to be read in place of the tokens when lengths are
        counted; None: the tokens' column itself.
    algorithm, max_sequences: see `headrace.packing.pack`.

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


def pack_setting(value: Any) -> PackRows | None:
    """What `pack=` means: None, settings, or the capacity alone."""
    if value is None or isinstance(value, PackRows):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return PackRows(capacity=value)
    raise SettingsError(f"pack is {value!r}; expected tokens of a bin, headrace.PackRows(...), or None")
