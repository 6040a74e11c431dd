"""What can be asked of packed sequences."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from headrace.packing.pack import Algorithm
from headrace.recipes.packed_sequences.assign import SPLITS, Split
from headrace.recipes.packed_sequences.blend import SourceBlend, blend_of
from headrace.recipes.packed_sequences.storage.packed_parquet import checked_level
from headrace.run.context import RunContext
from headrace.run.prepare import Outcome
from headrace.settings import Settings
from headrace.storage.settings import LocalPath, PathOrTemplate

ROW_GROUPS = {"megatron": 32, "headrace": 1000}


class PackedSequences(Settings):
    """Chats as packed training bins: rendered, tokenised, masked, packed over the whole set, written as Parquet.

    blend: what to prepare: a blend file, a path to data, or the same as Python values; see `blend`.
    tokenizer: directory or file of a tokenizer; None where all rows are tokenised already.
    chat_template: a path to a Jinja file, or the template itself; None for the tokenizer's own.
    template_values: variables for the template, e.g. {"enable_thinking": False}. date: what a template that asks for
        today's date is told.
    pack_size: tokens a bin may hold.
    capacity: what counts against pack_size: "stored" all tokens of a sequence, "runtime" one less, because readers
        that make labels by a shift drop one token of each sequence.
    algorithm: see `headrace.packing.pack`; the default has bins of even size.
    seed: decides splits, samples, mixes and packing.
    too_long: sequences that fit no bin are cut at the end ("truncate"), left out ("drop"), cut into pieces ("split"),
        or end the run ("error"). Everything but "error" is counted, and so are trained tokens lost to it.
    pad_multiple: pad every sequence so that what is counted against pack_size is a multiple (context parallelism).
    pad_id: the token to pad with; None: the tokenizer's end-of-text token, which is the one that readers cut off again.
    max_sequences_per_bin: None for no limit.
    loss_mask_alignment: "shift_left", whether the label at each position counts; "legacy_roll_right" as older files.
    empty_bins: bins without a label to train on are kept, or dropped and counted.
    reader: row groups for whom: "megatron" (32 bins; that reader shuffles bins globally) or "headrace" (1000,
        and columns declared without nulls, which decode faster).
    row_group_bins: another number of bins a row group.
    compression: of Parquet. compression_level: of zstd or gzip; None: 6 of zstd, which takes a fifth off the size of
        level 1 for a twentieth more time of the whole run, and reads as fast; gzip's own.
    num_shards: tasks and output shards of each dataset; None: by size. A split with bins has one shard at least.
    train_ratio, valid_ratio, test_ratio: of units, exactly; see `assign`. Not for blends per split.
    split_key: field whose value belongs to one split only (a task, a conversation); None: every row on its own.
    sample: at most so many rows of each dataset, chosen by seed; None: all.
    reasoning: "template" leaves to the template which reasoning it writes, "every_user_turn" makes of a conversation
        with reasoning one sequence per user turn, trained on that turn's answer, so that none is stripped.
    eos: rows of plain text end with the end token ("append") or not ("none").
    nothing_trained: rows without a token to train on are rejected ("reject") or kept ("keep").
    special_text: text of a special token in a message, such as "<|im_end|>" typed by a user, stays "text", or its row
        is rejected ("reject"), or it becomes the token ("control"); such rows are counted in any case.
    max_bad_share: more rejected rows than this share of all fail the run.
    packed_storage: "parquet", or "legacy_npy_pickle" for old readers.

    Raises `SettingsError` when built with values that cannot work.
    """

    blend: Annotated[SourceBlend, BeforeValidator(blend_of)]
    tokenizer: LocalPath | None = None
    chat_template: PathOrTemplate | None = None
    template_values: Mapping[str, Any] = Field(default_factory=dict)
    date: datetime.date | None = None
    reasoning: Literal["template", "every_user_turn"] = "template"
    eos: Literal["append", "none"] = "append"
    nothing_trained: Literal["reject", "keep"] = "reject"
    special_text: Literal["text", "reject", "control"] = "text"
    pack_size: int = Field(4096, ge=2)
    capacity: Literal["stored", "runtime"] = "stored"
    algorithm: Algorithm = "fullest_shuffle"
    seed: int = Field(42, ge=0, lt=2**63)
    too_long: Literal["truncate", "drop", "split", "error"] = "error"
    pad_multiple: int = Field(1, ge=1)
    pad_id: int | None = Field(None, ge=0)
    max_sequences_per_bin: int | None = Field(None, ge=1)
    loss_mask_alignment: Literal["shift_left", "legacy_roll_right"] = "shift_left"
    empty_bins: Literal["keep", "drop"] = "drop"
    reader: Literal["megatron", "headrace"] = "megatron"
    row_group_bins: int | None = Field(None, ge=1)
    compression: Literal["zstd", "snappy", "gzip", "lz4", "none"] = "zstd"
    compression_level: int | None = None
    num_shards: int | None = Field(None, ge=1, le=99_999)
    train_ratio: float = Field(0.98, ge=0, le=1)
    valid_ratio: float = Field(0.01, ge=0, le=1)
    test_ratio: float = Field(0.01, ge=0, le=1)
    split_key: str | None = Field(None, min_length=1)
    sample: int | None = Field(None, ge=1)
    max_bad_share: float = Field(0.01, ge=0, le=1)
    packed_storage: Literal["parquet", "legacy_npy_pickle"] = "parquet"

    @model_validator(mode="after")
    def _consistent(self) -> PackedSequences:
        total = self.train_ratio + self.valid_ratio + self.test_ratio
        if abs(total - 1) > 1e-9:
            raise ValueError(
                f"train_ratio, valid_ratio and test_ratio are {self.train_ratio}, {self.valid_ratio} and "
                f"{self.test_ratio}, together {total:g}; make them add up to 1"
            )
        if self.train_ratio == 0 and self.blend.datasets:
            raise ValueError("train_ratio is 0; leave something to train on")
        if self.pad_multiple > 1 and self.reader == "megatron" and self.capacity == "stored":
            raise ValueError(
                f"pad_multiple is {self.pad_multiple} and capacity is 'stored', but that reader wants the tokens it "
                f"trains on, one less than are stored, to be a multiple; give capacity='runtime', or reader='headrace'"
            )
        checked_level(self.compression, self.compression_level)
        if self.longest < 2:
            raise ValueError(
                f"no sequence of two tokens fits pack_size {self.pack_size} with pad_multiple {self.pad_multiple}; "
                f"choose a larger pack_size or a smaller multiple"
            )
        return self

    @property
    def recipe_name(self) -> str:
        """The word in manifests and configuration files."""
        return "packed_sequences"

    @property
    def longest(self) -> int:
        """The most tokens a sequence may have, before it is padded, to fit an empty bin."""
        return self.pack_size // self.pad_multiple * self.pad_multiple + (1 if self.capacity == "runtime" else 0)

    @property
    def row_group_size(self) -> int:
        """Bins of a row group."""
        return self.row_group_bins or ROW_GROUPS[self.reader]

    @property
    def level(self) -> int | None:
        """Of the codec; None: its own."""
        return 6 if self.compression == "zstd" and self.compression_level is None else self.compression_level

    @property
    def declared(self) -> Literal["nullable", "required"]:
        """What shards say of nulls: for our own reader that there are none, for others what the format was given."""
        return "required" if self.reader == "headrace" else "nullable"

    @property
    def ratios(self) -> Mapping[Split, float]:
        """The ratio of every split."""
        return dict(zip(SPLITS, (self.train_ratio, self.valid_ratio, self.test_ratio), strict=True))

    @property
    def asked_splits(self) -> list[Split]:
        """The splits that the output has."""
        if self.blend.datasets:
            return [split for split in SPLITS if self.ratios[split] > 0]
        return [split for split in SPLITS if getattr(self.blend, split)]

    def config(self) -> dict[str, Any]:
        """All settings as JSON."""
        return {"recipe": self.recipe_name, **self.model_dump(mode="json")}

    def identity_settings(self) -> dict[str, Any]:
        """The settings that can change a byte of output: of tokenizer and template their digests, of paths nothing."""
        from headrace.recipes.packed_sequences.encoder import encoder_fingerprint  # which imports these settings

        settings = self.model_dump(mode="json", exclude={"tokenizer", "chat_template", "max_bad_share"})
        for sources in settings["blend"].values():
            for source in sources:
                del source["path"]
        return {**settings, "encoder": encoder_fingerprint(self)}

    def source_files(self) -> list[tuple[Path, str]]:
        """The files of all datasets, each name after its split (of blends per split) and dataset."""
        from headrace.recipes.packed_sequences.tasks import source_files  # which imports these settings

        return source_files(self)

    def source_places(self) -> Sequence[str | Path]:
        """Files, directories and patterns of all datasets, as given."""
        return [place for _, sources in self.blend.groups() for each in sources for place in each.path]

    def execute(self, context: RunContext, files: Sequence[tuple[Path, str]]) -> Outcome:
        """Do the work in the run directory; see `headrace.prepare`."""
        from headrace.recipes.packed_sequences.recipe import execute  # the recipe imports its settings

        return execute(self, context, files)
