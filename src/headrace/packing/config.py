"""The settings of packed sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from headrace.bins.bins import Counted
from headrace.bins.pack import Algorithm
from headrace.bins.rows import Alignment
from headrace.near import LEAST_NEAR
from headrace.packing.blend import SPLITS, SourceBlend, Split, blend_of
from headrace.packing.chats.settings import ROWS, ChatSettings, fingerprint_of
from headrace.packing.storage.packed_parquet import Codec, checked_codec
from headrace.run.settings import RecipeSettings
from headrace.settings import Duplicates, Names
from headrace.stream.audit.exclude import Exclude, ExcludeWords, exclusion_identity

_rows = partial(Field, json_schema_extra=ROWS)
_packing = partial(Field, json_schema_extra={"panel": "Packing"})
_output = partial(Field, json_schema_extra={"panel": "Output"})
_splits = partial(Field, json_schema_extra={"panel": "Splits"})


class PackedSequences(RecipeSettings, ChatSettings):
    """Chats as packed training bins: rendered, tokenised, masked, packed over the whole set, written as Parquet.

    Raises `SettingsError` when built with values that cannot work.
    """

    recipe_name: ClassVar[str] = "packed_sequences"
    executed_by: ClassVar[str] = "headrace.packing.recipe"
    later: ClassVar[Sequence[tuple[str, ...]]] = (("near",),)

    blend: Annotated[SourceBlend, BeforeValidator(blend_of)] = Field(
        description="What to prepare: a blend file, a path to data, or the same as values."
    )
    pack_size: int = _packing(4096, ge=2, description="Tokens that a bin may hold.")
    pack_across: Literal["split", "dataset"] = _packing(
        "split",
        description="What a bin may hold; split: sequences of all datasets of a split, with the source and row of each "
        "in columns of their own; dataset: of one dataset, whose shards a trainer can weigh.",
    )
    capacity: Counted = _packing(
        "stored",
        description="What counts against pack_size; stored: all tokens; runtime: one less per sequence, for readers "
        "that drop one.",
    )
    algorithm: Algorithm = _packing(
        "fullest_shuffle",
        description="fullest_shuffle: best_fit_shuffle or exact_fit_shuffle, whichever needs fewer bins.",
    )
    seed: int = _splits(42, ge=0, lt=2**63, description="Decides splits, samples, mixes and packing.")
    too_long: Literal["truncate", "drop", "split", "turns", "error"] = _packing(
        "error",
        description="Sequences that fit no bin; truncate: cut at the end; split: cut into pieces; turns: cut chats "
        "between turns into pieces that repeat system prompt and tools. All but error are counted, and so are trained "
        "tokens lost.",
    )
    pad_multiple: int = _packing(
        1,
        ge=1,
        description="Pad each sequence so that what counts against pack_size is a multiple (context parallelism).",
    )
    pad_id: int | None = _packing(
        None,
        ge=0,
        description="Token to pad with; the tokenizer's end-of-text token unless given, which readers cut off again.",
    )
    bin_order: Literal["shuffled", "spread"] = _packing(
        "shuffled",
        description="Order of bins in files; spread: every stretch holds cheap and dear ones alike, for streams with "
        "balance. Concatenative bins keep their order unless spread.",
    )
    max_sequences_per_bin: int | None = _packing(None, ge=1, description="No limit unless given.")
    loss_mask_alignment: Alignment = _packing(
        "shift_left",
        description="shift_left: whether the label at each position counts; legacy_roll_right: as in older files.",
    )
    empty_bins: Literal["keep", "drop"] = _packing(
        "drop", description="Bins without a label to train on; drop: dropped and counted."
    )
    reader: Literal["megatron", "headrace"] = _output(
        "megatron",
        description="megatron: 32 bins a row group; headrace: 1000, and columns without nulls, which decode faster.",
    )
    row_group_bins: int | None = _output(
        None, ge=1, description="Bins of a row group; as the reader likes them unless given."
    )
    compression: Codec = _output("zstd", description="Compression of Parquet.")
    compression_level: int | None = _output(
        None, description="Level of zstd (6 unless given) or gzip (its own unless given)."
    )
    num_shards: int | None = _output(
        None, ge=1, le=99_999, description="Tasks and shards of each dataset; by size unless given."
    )
    train_ratio: float = _splits(
        0.98, ge=0, le=1, description="Share of units that train, exactly. Not for blends per split."
    )
    val_ratio: float = Field(
        0.01,
        ge=0,
        le=1,
        json_schema_extra={"panel": "Splits", "former": ["valid_ratio"]},
        description="Share of units that validate.",
    )
    test_ratio: float = _splits(0.01, ge=0, le=1, description="Share of units that test.")
    entity: str | None = Field(
        None,
        min_length=1,
        json_schema_extra={"panel": "Splits", "former": ["split_key"]},
        description="Field whose value is in one split only: a task, a conversation. Unless given every row is on "
        "its own.",
    )
    duplicates: Duplicates | None = _splits(
        None,
        description="Rows with the same user turns (case and white space aside) or a same sequence; group: in one "
        "split; drop: in one split, and the later copies of a whole row go; count: reported; allow: not looked for. "
        "Unless given group, or count where the blend gives the splits.",
    )
    content: Names = _splits((), description="Columns to compare in place of user turns.")
    near: float | None = _splits(
        None,
        ge=LEAST_NEAR,
        le=1,
        description="Rows are one too, for duplicates, if sequences of theirs are near: shingles of five tokens with "
        "this Jaccard index or more; 0.8 is usual. Not looked for unless given.",
    )
    exclude: Exclude = ()
    exclude_ngram: ExcludeWords = 13
    sample: int | None = _rows(
        None, ge=1, description="At most this many rows of each dataset, chosen by seed; all unless given."
    )
    max_bad_share: float = _rows(
        0.01, ge=0, le=1, description="More rejected rows than this share of all fail the run."
    )
    packed_storage: Literal["parquet", "legacy_npy_pickle"] = _output(
        "parquet", description="Format of the shards; legacy_npy_pickle for old readers."
    )

    @model_validator(mode="after")
    def _consistent(self) -> PackedSequences:
        total = self.train_ratio + self.val_ratio + self.test_ratio
        if abs(total - 1) > 1e-9:
            raise ValueError(
                f"train_ratio, val_ratio and test_ratio are {self.train_ratio}, {self.val_ratio} and "
                f"{self.test_ratio}, together {total:g}; make them add up to 1"
            )
        if self.train_ratio == 0 and self.blend.datasets:
            raise ValueError("train_ratio is 0; leave something to train on")
        if self.pad_multiple > 1 and self.reader == "megatron" and self.capacity == "stored":
            raise ValueError(
                f"pad_multiple is {self.pad_multiple} and capacity is 'stored', but that reader wants the tokens it "
                f"trains on, one less than are stored, to be a multiple; give capacity='runtime', or reader='headrace'"
            )
        if self.near is not None and self.duplicates == "allow":
            raise ValueError(
                f"near is {self.near:g} and duplicates is 'allow', which looks for none; give group, drop or count"
            )
        checked_codec(self.compression, self.compression_level)
        if self.longest < 2:
            raise ValueError(
                f"no sequence of two tokens fits pack_size {self.pack_size} with pad_multiple {self.pad_multiple}; "
                f"choose a larger pack_size or a smaller multiple"
            )
        return self

    @property
    def several_sources(self) -> bool:
        """Tell whether a split may hold rows of more than one dataset."""
        return any(sum(each.weight > 0 for each in sources) > 1 for _, sources in self.blend.groups())

    @property
    def packs_across(self) -> bool:
        """Tell whether bins hold sequences of several datasets."""
        return self.several_sources and self.pack_across == "split"

    @property
    def duplicates_are(self) -> Duplicates:
        """The rule for rows with the same content: the setting, or a default that depends on who gives the splits."""
        return self.duplicates or ("group" if self.blend.datasets else "count")

    @property
    def least_compared(self) -> int:
        """The least tokens of a sequence that is compared with others: pieces of cut ones may be short and common."""
        return self.longest if self.too_long == "split" else 1

    @property
    def longest(self) -> int:
        """The most tokens a sequence may have, before it is padded, to fit an empty bin."""
        return self.pack_size // self.pad_multiple * self.pad_multiple + (1 if self.capacity == "runtime" else 0)

    @property
    def parquet(self) -> dict[str, Any]:
        """Return the arguments of `ParquetShardWriter` for shards; our own reader gets columns without nulls."""
        own = self.reader == "headrace"
        level = 6 if self.compression == "zstd" and self.compression_level is None else self.compression_level
        return {
            "row_group_size": self.row_group_bins or (1000 if own else 32),
            "compression": self.compression,
            "compression_level": level,
            "declared": "required" if own else "nullable",
            "traced": self.packs_across,
        }

    @property
    def ratios(self) -> Mapping[Split, float]:
        """The ratio of every split."""
        return dict(zip(SPLITS, (self.train_ratio, self.val_ratio, self.test_ratio), strict=True))

    @property
    def asked_splits(self) -> list[Split]:
        """The splits that the output has."""
        if self.blend.datasets:
            return [split for split in SPLITS if self.ratios[split] > 0]
        return [split for split in SPLITS if getattr(self.blend, split)]

    def identity_settings(self) -> dict[str, Any]:
        """List the settings that can change a byte of output; tokenizer, template and benchmarks by digest, no paths.

        A tokenizer of the hub is there by its name and commit too.
        """
        settings = self.identity_without(
            "tokenizer", "chat_template", "tokenizer_backend", "max_bad_share", "exclude", "exclude_ngram"
        )
        if not self.packs_across:  # as all runs were before it could be asked
            del settings["pack_across"]
        for sources in settings["blend"].values():
            for source in sources:
                del source["path"]
        named = {"tokenizer": self.tokenizer} if isinstance(self.tokenizer, str) else {}
        return {**settings, **named, **exclusion_identity(self), "encoder": fingerprint_of(self)}

    def source_files(self) -> list[tuple[Path, str]]:
        """List the files of all datasets, each name after its split (of blends per split) and dataset."""
        pairs = [pair for each in self.blend.find_files() for pair in zip(each.paths, each.names, strict=True)]
        return sorted(pairs, key=lambda pair: pair[1])

    def source_places(self) -> Sequence[str | Path]:
        """Files, directories and patterns of all datasets, as given."""
        return [place for _, sources in self.blend.groups() for each in sources for place in each.path]
