"""Define the settings of packed sequences."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from headrace.bins import Alignment
from headrace.bins.bins import Counted
from headrace.bins.pack import Algorithm
from headrace.errors import setting, setting_name
from headrace.near import LEAST_NEAR
from headrace.packing.chat_recipe import ChatRecipe
from headrace.packing.storage.packed_parquet import Codec, checked_codec

_packing = partial(Field, json_schema_extra={"panel": "Packing"})
_output = partial(Field, json_schema_extra={"panel": "Output"})
_splits = partial(Field, json_schema_extra={"panel": "Splits"})


class PackedSequences(ChatRecipe):
    """Chats as packed training bins: rendered, tokenised, masked, packed over the whole set,
    written as Parquet.

    Raises `SettingsError` when built with values that cannot work.
    """

    recipe_name: ClassVar[str] = "packed_sequences"

    pack_size: int = _packing(4096, ge=2, description="Tokens that a bin may hold.")
    pack_across: Literal["split", "dataset"] = _packing(
        "split",
        description=(
            "What a bin may mix; split: all datasets of a split, with columns for the source and"
            " row of each sequence; dataset: one dataset, so that a trainer can weigh its shards."
        ),
    )
    capacity: Counted = _packing(
        "stored",
        description=(
            "What counts against pack_size; stored: all tokens; runtime: one fewer per sequence,"
            " for readers that drop one."
        ),
    )
    algorithm: Algorithm = _packing(
        "fullest_shuffle",
        description=(
            "fullest_shuffle: best_fit_shuffle or exact_fit_shuffle, whichever needs fewer bins."
        ),
    )
    too_long: Literal["truncate", "drop", "split", "error"] = _packing(
        "error",
        description=(
            "Sequences that fit no bin; truncate: cut at the end; split: cut into pieces. All but"
            " error are counted, with the tokens that the loss no longer has."
        ),
    )
    pad_multiple: int = _packing(
        1,
        ge=1,
        description=(
            "Pad each sequence so that what counts against pack_size is a multiple (context"
            " parallelism)."
        ),
    )
    pad_id: int | None = _packing(
        None,
        ge=0,
        description=(
            "Token to pad with; readers cut it off again. Default: the tokenizer's end-of-text"
            " token."
        ),
    )
    bin_order: Literal["shuffled", "spread"] = _packing(
        "shuffled",
        description=(
            "Order of bins in files; spread: mix cheap and expensive bins evenly, for streams with"
            " balance. Concatenative bins keep their order otherwise."
        ),
    )
    max_sequences_per_bin: int | None = _packing(None, ge=1, description="No limit unless given.")
    loss_mask_alignment: Alignment = _packing(
        "shift_left",
        description=(
            "shift_left: whether the label at each position counts; legacy_roll_right: as in older"
            " files."
        ),
    )
    empty_bins: Literal["keep", "drop"] = _packing(
        "drop", description="Bins without a token in the loss; drop: dropped and counted."
    )
    reader: Literal["megatron", "headrace"] = _output(
        "megatron",
        description=(
            "megatron: 32 bins a row group; headrace: 1000, and columns without nulls, which decode"
            " faster."
        ),
    )
    row_group_bins: int | None = _output(
        None, ge=1, description="Bins of a row group. Default: what suits the reader."
    )
    compression: Codec = _output("zstd", description="Compression of Parquet.")
    compression_level: int | None = _output(
        None, description="Level of zstd (default: 6) or gzip (default: its own)."
    )
    near: float | None = _splits(
        None,
        ge=LEAST_NEAR,
        le=1,
        description=(
            "For duplicates, rows also count as the same if the token 5-grams of two sequences have"
            " at least this Jaccard index; 0.8 is usual. Off by default."
        ),
    )
    packed_storage: Literal["parquet", "legacy_npy_pickle"] = _output(
        "parquet", description="Format of the shards; legacy_npy_pickle for old readers."
    )

    @model_validator(mode="after")
    def _consistent(self) -> PackedSequences:
        if self.pad_multiple > 1 and self.reader == "megatron" and self.capacity == "stored":
            raise ValueError(
                f"{setting_name('pad_multiple')} is {self.pad_multiple} and"
                f" {setting_name('capacity')} is 'stored', but that reader wants the tokens it"
                " trains on, one less than are stored, to be a multiple; give"
                f" {setting('capacity', 'runtime')}, or {setting('reader', 'headrace')}"
            )
        if self.near is not None and self.duplicates == "allow":
            raise ValueError(
                f"{setting_name('near')} is {self.near:g} and {setting_name('duplicates')} is"
                " 'allow', which looks for none; give group, drop or count"
            )
        checked_codec(self.compression, self.compression_level, named=setting_name)
        if self.longest < 2:
            raise ValueError(
                f"no sequence of two tokens fits {setting_name('pack_size')} {self.pack_size} with"
                f" {setting_name('pad_multiple')} {self.pad_multiple}; choose a larger pack size or"
                " a smaller multiple"
            )
        return self

    @property
    def packs_across(self) -> bool:
        """Return whether bins hold sequences of several datasets."""
        return self.several_sources and self.pack_across == "split"

    @property
    def traced(self) -> bool:
        """Return whether bins hold the origins of their sequences."""
        return self.packs_across

    @property
    def least_compared(self) -> int:
        """The fewest tokens of a sequence that is compared with others: pieces of cut ones may be
        short and common.
        """
        if self.too_long == "split":
            return self.longest
        return 1

    @property
    def longest(self) -> int:
        """The most tokens of a sequence, before padding, that fit an empty bin."""
        return self.pack_size // self.pad_multiple * self.pad_multiple + (
            1 if self.capacity == "runtime" else 0
        )

    @property
    def parquet(self) -> dict[str, Any]:
        """The arguments of `ParquetShardWriter` for shards; our own reader gets columns without
        nulls.
        """
        for_headrace = self.reader == "headrace"
        level = self.compression_level
        if self.compression == "zstd" and level is None:
            level = 6
        return {
            "row_group_size": self.row_group_bins or (1000 if for_headrace else 32),
            "compression": self.compression,
            "compression_level": level,
            "declared": "required" if for_headrace else "nullable",
            "traced": self.traced,
        }

    def identity_settings(self) -> dict[str, Any]:
        """Return the settings that can change a byte of output."""
        settings = super().identity_settings()
        if not self.packs_across:
            del settings["pack_across"]
        return settings
