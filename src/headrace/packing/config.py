"""What can be asked of packed sequences."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from headrace.bins.pack import Algorithm
from headrace.packing.assign import SPLITS, Split
from headrace.packing.blend import SourceBlend, blend_of
from headrace.packing.storage.packed_parquet import checked_level
from headrace.run.settings import RecipeSettings
from headrace.storage.settings import LocalPath, PathOrTemplate

if TYPE_CHECKING:
    from headrace.run.context import RunContext
    from headrace.run.prepare import Outcome

ROW_GROUPS = {"megatron": 32, "headrace": 1000}


_ROWS: dict[str, Any] = {"panel": "Rows and tokens"}
_PACKING: dict[str, Any] = {"panel": "Packing"}
_SPLITS: dict[str, Any] = {"panel": "Splits"}
_OUTPUT: dict[str, Any] = {"panel": "Output"}


class PackedSequences(RecipeSettings):
    """Chats as packed training bins: rendered, tokenised, masked, packed over the whole set, written as Parquet.

    Raises `SettingsError` when built with values that cannot work.
    """

    recipe_name: ClassVar[str] = "packed_sequences"

    blend: Annotated[SourceBlend, BeforeValidator(blend_of)] = Field(
        description="What to prepare: a blend file, a path to data, or the same as values."
    )
    tokenizer: LocalPath | None = Field(
        None,
        json_schema_extra=_ROWS,
        description="tokenizer.json or its directory; not for rows that are tokens already.",
    )
    chat_template: PathOrTemplate | None = Field(
        None,
        json_schema_extra=_ROWS,
        description="A Jinja file, or the template itself; the tokenizer's own unless given.",
    )
    template_values: Mapping[str, Any] = Field(
        default_factory=dict,
        json_schema_extra=_ROWS,
        description="Variables for the template, e.g. {enable_thinking: false}.",
    )
    date: datetime.date | None = Field(
        None,
        json_schema_extra=_ROWS,
        description="What a template that asks for today's date is told, e.g. 2026-01-31.",
    )
    reasoning: Literal["template", "every_user_turn"] = Field(
        "template",
        json_schema_extra=_ROWS,
        description="template: the template decides which reasoning it writes; every_user_turn: one sequence per "
        "user turn, trained on that turn's answer, so that none is stripped.",
    )
    eos: Literal["append", "none"] = Field(
        "append", json_schema_extra=_ROWS, description="Whether rows of plain text end with the end token."
    )
    nothing_trained: Literal["reject", "keep"] = Field(
        "reject", json_schema_extra=_ROWS, description="Rows without a token to train on."
    )
    special_text: Literal["text", "reject", "control"] = Field(
        "text",
        json_schema_extra=_ROWS,
        description="Text of a special token in a message, such as <|im_end|>; reject: its row; control: it becomes "
        "the token. Such rows are counted in any case.",
    )
    pack_size: int = Field(4096, ge=2, json_schema_extra=_PACKING, description="Tokens that a bin may hold.")
    capacity: Literal["stored", "runtime"] = Field(
        "stored",
        json_schema_extra=_PACKING,
        description="What counts against pack_size; stored: all tokens; runtime: one less per sequence, for readers "
        "that drop one.",
    )
    algorithm: Algorithm = Field(
        "fullest_shuffle",
        json_schema_extra=_PACKING,
        description="fullest_shuffle: best_fit_shuffle or exact_fit_shuffle, whichever needs fewer bins.",
    )
    seed: int = Field(
        42, ge=0, lt=2**63, json_schema_extra=_SPLITS, description="Decides splits, samples, mixes and packing."
    )
    too_long: Literal["truncate", "drop", "split", "error"] = Field(
        "error",
        json_schema_extra=_PACKING,
        description="Sequences that fit no bin; truncate: cut at the end; split: cut into pieces. All but error are "
        "counted, and so are trained tokens lost.",
    )
    pad_multiple: int = Field(
        1,
        ge=1,
        json_schema_extra=_PACKING,
        description="Pad each sequence so that what counts against pack_size is a multiple (context parallelism).",
    )
    pad_id: int | None = Field(
        None,
        ge=0,
        json_schema_extra=_PACKING,
        description="Token to pad with; the tokenizer's end-of-text token unless given, which readers cut off again.",
    )
    max_sequences_per_bin: int | None = Field(
        None, ge=1, json_schema_extra=_PACKING, description="No limit unless given."
    )
    loss_mask_alignment: Literal["shift_left", "legacy_roll_right"] = Field(
        "shift_left",
        json_schema_extra=_PACKING,
        description="shift_left: whether the label at each position counts; legacy_roll_right: as in older files.",
    )
    empty_bins: Literal["keep", "drop"] = Field(
        "drop", json_schema_extra=_PACKING, description="Bins without a label to train on; drop: dropped and counted."
    )
    reader: Literal["megatron", "headrace"] = Field(
        "megatron",
        json_schema_extra=_OUTPUT,
        description="megatron: 32 bins a row group; headrace: 1000, and columns without nulls, which decode faster.",
    )
    row_group_bins: int | None = Field(
        None, ge=1, json_schema_extra=_OUTPUT, description="Bins of a row group; as the reader likes them unless given."
    )
    compression: Literal["zstd", "snappy", "gzip", "lz4", "none"] = Field(
        "zstd", json_schema_extra=_OUTPUT, description="Compression of Parquet."
    )
    compression_level: int | None = Field(
        None, json_schema_extra=_OUTPUT, description="Level of zstd (6 unless given) or gzip (its own unless given)."
    )
    num_shards: int | None = Field(
        None,
        ge=1,
        le=99_999,
        json_schema_extra=_OUTPUT,
        description="Tasks and shards of each dataset; by size unless given.",
    )
    train_ratio: float = Field(
        0.98,
        ge=0,
        le=1,
        json_schema_extra=_SPLITS,
        description="Share of units that train, exactly. Not for blends per split.",
    )
    valid_ratio: float = Field(0.01, ge=0, le=1, json_schema_extra=_SPLITS, description="Share of units that validate.")
    test_ratio: float = Field(0.01, ge=0, le=1, json_schema_extra=_SPLITS, description="Share of units that test.")
    split_key: str | None = Field(
        None,
        min_length=1,
        json_schema_extra=_SPLITS,
        description="Field whose value is in one split only: a task, a conversation. Unless given every row is on "
        "its own.",
    )
    sample: int | None = Field(
        None,
        ge=1,
        json_schema_extra=_ROWS,
        description="At most this many rows of each dataset, chosen by seed; all unless given.",
    )
    max_bad_share: float = Field(
        0.01, ge=0, le=1, json_schema_extra=_ROWS, description="More rejected rows than this share of all fail the run."
    )
    packed_storage: Literal["parquet", "legacy_npy_pickle"] = Field(
        "parquet",
        json_schema_extra=_OUTPUT,
        description="Format of the shards; legacy_npy_pickle for old readers.",
    )

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

    def identity_settings(self) -> dict[str, Any]:
        """The settings that can change a byte of output: of tokenizer and template their digests, of paths nothing."""
        from headrace.packing.encoder import encoder_fingerprint  # which imports these settings

        settings = self.model_dump(mode="json", exclude={"tokenizer", "chat_template", "max_bad_share"})
        for sources in settings["blend"].values():
            for source in sources:
                del source["path"]
        return {**settings, "encoder": encoder_fingerprint(self)}

    def source_files(self) -> list[tuple[Path, str]]:
        """The files of all datasets, each name after its split (of blends per split) and dataset."""
        from headrace.packing.tasks import source_files  # which imports these settings

        return source_files(self)

    def source_places(self) -> Sequence[str | Path]:
        """Files, directories and patterns of all datasets, as given."""
        return [place for _, sources in self.blend.groups() for each in sources for place in each.path]

    def execute(self, context: RunContext, files: Sequence[tuple[Path, str]]) -> Outcome:
        """Do the work in the run directory; see `headrace.prepare`."""
        from headrace.packing.recipe import execute  # the recipe imports its settings

        return execute(self, context, files)
