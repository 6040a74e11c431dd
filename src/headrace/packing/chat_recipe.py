"""Define the settings that all recipes over chats share: sources, what to leave out, and the split
of a row.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from headrace.errors import setting_name
from headrace.formats.dialect import DialectSetting, dialect_field
from headrace.packing.blend import SPLITS, SourceBlend, Split, blend_of
from headrace.packing.chats.settings import ROWS, ChatForm, ChatSettings, fingerprint_of
from headrace.run.settings import RecipeSettings
from headrace.settings import Duplicates, Names
from headrace.stream.audit.exclude import Exclude, ExcludeWords, exclusion_identity

_rows = partial(Field, json_schema_extra=ROWS)
_splits = partial(Field, json_schema_extra={"panel": "Splits"})


class ChatRecipe(RecipeSettings, ChatSettings):
    """Rows of chats from a blend of datasets, split by what they ask."""

    blend: Annotated[SourceBlend, BeforeValidator(blend_of)] = Field(
        description="What to prepare: a blend file, a path to data, or their contents as values."
    )
    seed: int = _splits(
        42, ge=0, lt=2**63, description="Decides splits, samples, mixes and packing."
    )
    train_ratio: float = _splits(
        0.98, ge=0, le=1, description="Exact share of units in train. Not for blends per split."
    )
    val_ratio: float = _splits(0.01, ge=0, le=1, description="Share of units in val.")
    test_ratio: float = _splits(0.01, ge=0, le=1, description="Share of units in test.")
    entity: str | None = _splits(
        None,
        min_length=1,
        description=(
            "Field whose rows share a split: a task, a conversation. By default, every row is"
            " independent."
        ),
    )
    duplicates: Duplicates | None = _splits(
        None,
        description=(
            "Rows with the same user turns (ignoring case and white space) or a common sequence;"
            " group: in one split; drop: in one split, without later copies of whole rows; count:"
            " reported; allow: not looked for. Default: group, or count where the blend gives the"
            " splits."
        ),
    )
    content: Names = _splits((), description="Columns to compare instead of user turns.")
    exclude: Exclude = ()
    exclude_ngram: ExcludeWords = 13
    sample: int | None = _rows(
        None,
        ge=1,
        description="At most this many rows of each dataset, chosen by seed. Default: all.",
    )
    max_bad_share: float = _rows(
        0.01,
        ge=0,
        le=1,
        description="The run fails if more than this share of the rows is rejected.",
    )
    max_lost_share: float = _rows(
        0,
        ge=0,
        le=1,
        description=(
            "The run fails if more than this share of the rows loses words: reasoning of the last"
            " turn, words under a key of a message that nothing reads, a prompt that is in no"
            " message."
        ),
    )
    dialect: DialectSetting = dialect_field(ROWS)
    num_shards: int | None = Field(
        None,
        ge=1,
        le=99_999,
        json_schema_extra={"panel": "Output"},
        description="Tasks and shards of each dataset. Default: by size.",
    )

    @model_validator(mode="after")
    def _ratios_add_up(self) -> ChatRecipe:
        total = self.train_ratio + self.val_ratio + self.test_ratio
        if abs(total - 1) > 1e-9:
            raise ValueError(
                f"{setting_name('train_ratio')}, {setting_name('val_ratio')} and"
                f" {setting_name('test_ratio')} are {self.train_ratio}, {self.val_ratio} and"
                f" {self.test_ratio}, together {total:g}; make them add up to 1"
            )
        if self.train_ratio == 0 and self.blend.datasets:
            raise ValueError(f"{setting_name('train_ratio')} is 0; leave something to train on")
        return self

    def named_columns(self, form: ChatForm) -> Collection[str] | None:
        """Return the columns of a dataset that settings name; None if all are needed."""
        names = [*form.mapping.values(), *form.filters, *self.content]
        return names if self.entity is None else [*names, self.entity]

    @property
    def unread_columns(self) -> Collection[str]:
        """The columns that are not needed, whatever their type."""
        return ()

    @property
    def several_sources(self) -> bool:
        """Return whether a split may hold rows of more than one dataset."""
        return any(
            sum(source.weight > 0 for source in sources) > 1 for _, sources in self.blend.groups()
        )

    @property
    def duplicates_are(self) -> Duplicates:
        """The rule for rows with the same content: the setting, or a default that depends on the
        form of the blend.
        """
        return self.duplicates or ("group" if self.blend.datasets else "count")

    @property
    def ratios(self) -> Mapping[Split, float]:
        """The ratio of each split."""
        return dict(zip(SPLITS, (self.train_ratio, self.val_ratio, self.test_ratio), strict=True))

    @property
    def requested_splits(self) -> list[Split]:
        """The splits that the output has."""
        if self.blend.datasets:
            return [split for split in SPLITS if self.ratios[split] > 0]
        result = []
        for split in SPLITS:
            if getattr(self.blend, split):
                result.append(split)
        return result

    def source_files(self) -> list[tuple[Path, str]]:
        """List the files of all datasets, each named after its split (in blends per split) and
        dataset.
        """
        pairs = [
            pair
            for dataset in self.blend.find_files()
            for pair in zip(dataset.paths, dataset.names, strict=True)
        ]
        return sorted(pairs, key=lambda pair: pair[1])

    def source_places(self) -> Sequence[str | Path]:
        """The files, directories and patterns of all datasets, as given."""
        return [
            path for _, sources in self.blend.groups() for source in sources for path in source.path
        ]

    def identity_settings(self) -> dict[str, Any]:
        """Return the settings that can change a byte of output, without paths.

        Tokenizer, template and benchmarks are given by digest. A tokenizer of the hub is also
        listed by name and commit.
        """
        settings = self.identity_without(
            *("tokenizer", "chat_template", "tokenizer_backend"),
            *("max_bad_share", "max_lost_share", "unread", "exclude", "exclude_ngram"),
        )
        for sources in settings["blend"].values():
            for source in sources:
                del source["path"]
        named = {}
        if isinstance(self.tokenizer, str):
            named = {"tokenizer": self.tokenizer}
        return {**settings, **named, **exclusion_identity(self), "encoder": fingerprint_of(self)}
