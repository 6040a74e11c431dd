"""How packed sequences become batches, and how rows of tokens are packed while they are streamed: the settings.

A packed row is a bin: several sequences end to end in `input_ids`, a `loss_mask` as long, and in `seq_start_id` where
each sequence begins. A batch of bins is made for attention that keeps sequences apart:

    form="varlen"   all bins of the batch end to end as one row, [1, tokens], with cu_seqlens and max_seqlen
    form="padded"   one row a bin, [bins, width], filled up; the same cu_seqlens over the flattened tokens

Both have position_ids that begin at 0 in each sequence, and labels that never reach into the next one. What fills a row
up is a sequence of its own, so that cu_seqlens end at the last token and no row of an attention matrix is empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from headrace.checks import check_integer, check_word
from headrace.digest import canonical_json, sha256_hex
from headrace.errors import SettingsError
from headrace.packing.alignment import ALIGNMENT_KEY
from headrace.packing.pack import ALGORITHMS, Algorithm

PackedForm = Literal["varlen", "padded"]
PackedWord = Literal["auto", "varlen", "padded", "off"]
LabelPlace = Literal["next", "same"]
LastToken = Literal["keep", "drop"]
AttentionMask = Literal["none", "bool", "additive"]
MaskAlignment = Literal["shift_left", "unshifted", "legacy_roll_right"]
TooLong = Literal["error", "truncate", "drop"]
TokenMask = Literal["shift_left", "unshifted"]

INPUT_IDS, LOSS_MASK, SEQ_START_ID = "input_ids", "loss_mask", "seq_start_id"
PACKED_COLUMNS = (INPUT_IDS, LOSS_MASK, SEQ_START_ID)
ALIGNMENT_KEYS = (ALIGNMENT_KEY, "loss_mask_alignment")  # in the key-value metadata of Parquet files: ours, others'
MADE = (INPUT_IDS, "labels", LOSS_MASK, "position_ids", "cu_seqlens", "max_seqlen", "attention_mask")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedBatches:
    """How bins become a batch; pass it as `packed=` of a stream, or a word for its form.

    form: "varlen" or "padded", see above.
    labels: "next", the label of a place is the token after it in its sequence; "same", the token itself, for models
        that shift labels themselves (Hugging Face). loss_mask stands where the labels stand.
    ignore_index: the label where nothing is trained; None: the token stays, and only loss_mask tells.
    last_token: "keep" all L tokens of a sequence, the last without a label; "drop" it, as readers do that feed L - 1
        tokens and L - 1 labels (Megatron); a sequence of one token is then gone.
    pad_id: what fills input_ids up. pad_to: width of every row; None: as wide as the batch needs, rounded up to
        pad_to_multiple_of.
    most_sequences: cu_seqlens has one entry more than these, whatever the batch holds, the last one repeated, for
        shapes that never change; those that fill rows up count. None: as many as there are.
    attention_mask: "bool" (true: may attend) or "additive" (0 or -inf, float32): causal inside each sequence,
        [bins or 1, 1, width, width]. It takes width² values a row: for small widths.
    loss_mask_alignment: where the stored mask stands in files that do not say: "shift_left", on the labels, by one
        place left of the trained tokens; "unshifted", on those tokens; "legacy_roll_right", one place right of them,
        over the whole bin, where the last token's is lost and counts as untrained.

    Raises `SettingsError` when built with values that cannot work.
    """

    form: PackedForm = "varlen"
    labels: LabelPlace = "next"
    ignore_index: int | None = -100
    last_token: LastToken = "keep"
    pad_id: int = 0
    pad_to: int | None = None
    pad_to_multiple_of: int = 1
    most_sequences: int | None = None
    attention_mask: AttentionMask = "none"
    loss_mask_alignment: MaskAlignment | None = None

    def __post_init__(self) -> None:
        words = {"form": PackedForm, "labels": LabelPlace, "last_token": LastToken, "attention_mask": AttentionMask}
        for name, choices in words.items():
            check_word(f"packed: {name}", getattr(self, name), get_args(choices))
        if self.loss_mask_alignment is not None:
            check_word("packed: loss_mask_alignment", self.loss_mask_alignment, get_args(MaskAlignment))
        check_integer("packed: pad_id", self.pad_id)
        check_integer("packed: pad_to_multiple_of", self.pad_to_multiple_of, least=1)
        if self.ignore_index is not None:
            check_integer("packed: ignore_index", self.ignore_index)
        if self.most_sequences is not None:
            check_integer("packed: most_sequences", self.most_sequences, least=1)
        if self.pad_to is not None:
            check_integer("packed: pad_to", self.pad_to, least=1)
            if self.pad_to % self.pad_to_multiple_of:
                raise SettingsError(
                    f"packed: pad_to {self.pad_to} is no multiple of pad_to_multiple_of {self.pad_to_multiple_of};"
                    " give one of them, or numbers that fit"
                )
        if self.labels == "same" and self.last_token == "drop":
            raise SettingsError(
                'packed: labels="same" needs the last token of each sequence, which last_token="drop" leaves out; use'
                ' labels="next"'
            )


def packed_setting(value: Any) -> PackedWord | PackedBatches:
    """What `packed=` means: settings as they are, "varlen" and "padded" as settings, "auto" and "off" as they are."""
    if isinstance(value, PackedBatches):
        return value
    if value == "varlen" or value == "padded":
        return PackedBatches(form=value)
    if value == "auto" or value == "off":
        word: PackedWord = value
        return word
    raise SettingsError(
        f"packed is {value!r}; expected one of {', '.join(get_args(PackedWord))}, or headrace.PackedBatches(...)"
    )


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
