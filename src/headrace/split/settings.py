"""Settings of splits of tables: what all have in common, and those of the temporal split."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from headrace.checks import duration_us
from headrace.errors import InputError, setting, setting_name
from headrace.folds.settings import Folds, GroupKFold, Rolling
from headrace.formats.dialect import DialectSetting, dialect_field
from headrace.formats.registry import FORMATS
from headrace.formats.type_words import ALL_COLUMNS, TypeWords
from headrace.formats.zones import known_zone
from headrace.near import LEAST_NEAR
from headrace.run.settings import RecipeSettings
from headrace.settings import ColumnChoice, Duplicates, Names, TimeColumns, known_duration
from headrace.split.cutoff import Cutoff, cutoffs
from headrace.split.reasons import Reason
from headrace.storage.settings import LocalPath, Places, RunPath
from headrace.stream.audit.exclude import Exclude, ExcludeWords, exclusion_identity

# Settings load no data libraries, so that completion and help of the command line are fast. So the
# methods below import them on use.

if TYPE_CHECKING:
    import pyarrow as pa

    OutputFormat = str
    OutputCompression = str
else:
    # the words of the registered formats
    OutputFormat = Literal[("same", *(entry.name for entry in FORMATS.written()))]
    OutputCompression = Literal[
        tuple(dict.fromkeys(word for entry in FORMATS.written() for word in entry.compressions))
    ]

COLUMNS: dict[str, Any] = {"panel": "Columns and dates"}
_JOINED: dict[str, Any] = {"panel": "Joined values"}
_OUTPUT: dict[str, Any] = {"panel": "Output"}
_ROWS: dict[str, Any] = {"panel": "Rows that do not fit"}


class SplitSettings(RecipeSettings):
    """What all splits of tables can be asked: source, columns, comparison of rows, output."""

    source: Places = Field(min_length=1, description="Files, directories or glob patterns.")
    seed: int = Field(
        42, ge=0, lt=2**63, description="Decides what is drawn into which split, and nothing else."
    )
    layout: Literal["sharded", "single"] = Field(
        "sharded",
        json_schema_extra=_OUTPUT,
        description="One output shard per source shard, or one file per split.",
    )
    format: OutputFormat = Field(
        "same",
        json_schema_extra=_OUTPUT,
        description="Format of the output; same: that of the source.",
    )
    compression: OutputCompression | None = Field(
        None,
        json_schema_extra=_OUTPUT,
        description="Compression of the output. Default: that of the source, and lz4 for Parquet.",
    )
    columns: ColumnChoice = Field(
        None,
        json_schema_extra=_OUTPUT,
        description=(
            "Columns to write, in this order; no other is read. They include those that other"
            " settings name. Default: all."
        ),
    )
    drop_columns: ColumnChoice = Field(
        None,
        json_schema_extra=_OUTPUT,
        description="Columns to leave out instead: they are neither read nor written.",
    )
    label: str | None = Field(
        None,
        json_schema_extra=COLUMNS,
        description=(
            "Column of classes. They become 0..k-1 by one map for all shards; rows without a "
            "label are dropped."
        ),
    )
    targets: Names | None = Field(
        None, json_schema_extra=COLUMNS, description="Target columns, with main_task_index."
    )
    main_task_index: int | None = Field(
        None,
        ge=0,
        json_schema_extra=COLUMNS,
        description="Index of the target, from 0, that becomes the row-wise maximum of the others.",
    )
    signature: LocalPath | None = Field(
        None,
        json_schema_extra=COLUMNS,
        description="File with the column names of CSV or TSV shards without header.",
    )
    null_entity: Literal["error", "own", "drop"] = Field(
        "error",
        json_schema_extra=_ROWS,
        description="Rows without an entity; own: they form one entity; drop: dropped and counted.",
    )
    linked_by: Names = Field(
        (),
        json_schema_extra=COLUMNS,
        description=(
            "Columns, such as email and phone, whose values link entities: those that share one"
            " count as one entity. A value of more than 10 entities links none."
        ),
    )
    duplicates: Duplicates = Field(
        "count",
        json_schema_extra=_ROWS,
        description=(
            "Rows with the same content; group: they and their entities share a split; drop: "
            "only the earliest stays; count: reported; allow: not looked for."
        ),
    )
    content: Names = Field(
        (),
        json_schema_extra=COLUMNS,
        description=(
            "Columns that make up the content of a row. Default: all but time, entity, label "
            "and targets."
        ),
    )
    near: float | None = Field(
        None,
        ge=LEAST_NEAR,
        le=1,
        json_schema_extra=_ROWS,
        description=(
            "For duplicates, rows also have the same content if their word trigrams have at "
            "least this Jaccard index; 0.8 is usual. Off by default."
        ),
    )
    schema_drift: Literal["error", "widen"] = Field(
        "error",
        json_schema_extra=_ROWS,
        description="Shards with different schemas; widen: widen the schema where nothing is lost.",
    )
    lineage: Literal["off", "columns"] = Field(
        "off",
        json_schema_extra=_OUTPUT,
        description="columns: add source_shard and source_row to every row.",
    )
    types: TypeWords = Field(
        default_factory=dict,
        json_schema_extra=COLUMNS,
        description=(
            "Types of text columns, e.g. distance=int32, for Parquet and streams; text: all stay "
            "text. Default: streams deliver the types that every value fits."
        ),
    )
    dialect: DialectSetting = dialect_field(COLUMNS)
    folds: Folds = Field(
        None,
        json_schema_extra={"panel": "Folds"},
        examples=["rolling:n=5,step=30d", "rolling:n=5,step=30d,window=180d", "group-kfold:k=5"],
        description=(
            "Prepare folds instead of one split: rolling cuts from the split date on, such as "
            "rolling:n=5,step=30d,window=180d, or each entity in test of one fold, such as "
            "group-kfold:k=5,stratify=COLUMN."
        ),
    )
    exclude: Exclude = ()
    exclude_ngram: ExcludeWords = 13
    assignment_from: RunPath | None = Field(
        None,
        json_schema_extra=_OUTPUT,
        description=(
            "An earlier run, or its output directory, whose assignment is kept: what it has in a "
            "split stays there, new ones are drawn, and shards that have not changed are linked."
        ),
    )
    shard_numbers: Literal["keep", "dense"] = Field(
        "keep",
        json_schema_extra=_OUTPUT,
        description="keep: the N of part-N; dense: 0, 1, 2, ... in name order.",
    )

    @property
    def time_columns(self) -> tuple[str, ...]:
        """The column of the time of a row, or those of date and clock; none if rows are split
        without time.
        """
        return ()

    @property
    def entity_column(self) -> str | None:
        """The column of the entity; None if none keeps rows together."""
        return None

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits of such a run."""
        raise NotImplementedError

    @property
    def train_share(self) -> float:
        """The share of what is drawn that goes to train."""
        raise NotImplementedError

    @property
    def cut_in_time(self) -> bool:
        """Whether one cut in time decides between train and test."""
        return False

    @property
    def strata(self) -> str | None:
        """The column of classes of which each split or fold gets its share, if there is one."""
        if isinstance(self.folds, GroupKFold):
            return self.folds.stratify
        return None

    @property
    def drawn_by(self) -> Literal["entity", "rows", "content"]:
        """What is drawn: entities, or rows by their own values."""
        return "entity"

    def drawn_columns(self, schema: pa.Schema) -> tuple[str, ...]:
        """Select the columns by which rows are drawn, if they are drawn by their own values."""
        from headrace.formats.content import content_columns

        if self.drawn_by == "content":
            return self.content
        return content_columns(schema, {self.label, self.main_target})

    @property
    def main_target(self) -> str | None:
        """The column that is set to the maximum of the other targets."""
        if self.targets is None or self.main_task_index is None:
            return None
        return self.targets[self.main_task_index]

    def roles(self) -> dict[str, Sequence[str]]:
        """Return the columns that decide where a row goes, by their role."""
        return {}

    def named_columns(self) -> Iterator[tuple[str, str]]:
        """Yield the role and the name of each column that the settings name."""
        columns: dict[str, Sequence[str]] = {
            **self.roles(),
            "stratify": () if self.strata is None else (self.strata,),
            "label": () if self.label is None else (self.label,),
            "types": tuple(name for name in self.types if name != ALL_COLUMNS),
            "targets": self.targets or (),
            "content": self.content,
            "linked_by": self.linked_by,
        }
        for role, names in columns.items():
            for name in names:
                yield role, name

    def config(self) -> dict[str, Any]:
        """Return all settings as JSON; `folds`, `columns`, `drop_columns`, `linked_by` and
        `assignment_from` only where they are given, the last as a run, since its directory will
        have others.
        """
        config = super().config()
        if not self.linked_by:
            del config["linked_by"]
        for name in ("folds", "columns", "drop_columns"):
            if getattr(self, name) is None:
                del config[name]
        if self.assignment_from is None:
            del config["assignment_from"]
        else:
            from headrace.dataset.open import find_run

            config["assignment_from"] = str(find_run(self.assignment_from)[0])
        return config

    def source_files(self) -> list[tuple[Path, str]]:
        """Return the source's files and their names, sorted by name, without the signature file."""
        files = super().source_files()
        if self.signature is not None:
            from headrace.storage.places import place_of

            signature = place_of(self.signature).real()
            all_files = files
            files = []
            for path, name in all_files:
                if place_of(path).real() != signature:
                    files.append((path, name))
        if not files:
            raise InputError(
                "holds no data file besides the signature",
                path=self.source[0],
                remedy="give the directory of the shards",
            )
        return files

    def identity_settings(self) -> dict[str, Any]:
        """Return the settings that can change a byte of output, with the signature's names and
        benchmark digests.
        """
        settings = self.identity_without(
            "source", "signature", "exclude", "exclude_ngram", "assignment_from"
        )
        if self.assignment_from is not None:
            from headrace.dataset.open import find_run

            settings["assignment_from"] = find_run(self.assignment_from)[1].index_digest
        settings |= exclusion_identity(self)
        if not self.linked_by:
            del settings["linked_by"]
        if self.drop_columns is None:
            del settings["drop_columns"]
        settings["signature"] = None
        if self.signature is not None:
            from headrace.formats.source import read_signature  # loads all formats

            settings["signature"] = read_signature(self.signature)
        return settings

    def compared(self, schema: pa.Schema) -> tuple[str, ...]:
        """Select the columns that form the content of a row: the named ones, or else all without a
        role.
        """
        from headrace.formats.content import content_columns

        roles = {*self.time_columns, self.entity_column, self.label, *(self.targets or ())}
        return self.content or content_columns(schema, roles)

    def _check_output(self) -> None:
        """Refuse settings that no split can have together."""
        self._check_targets()
        if self.format != "same" and (
            problem := compression_problem(self.format, self.compression)
        ):
            raise ValueError(problem)
        self._check_roles()
        self._check_linked()
        if self.near is not None and self.duplicates == "allow":
            raise ValueError(
                f"{setting_name('near')} is {self.near:g} and {setting_name('duplicates')} is"
                " 'allow', which looks for none; give group, drop or count"
            )
        self._check_computed_columns()
        if self.assignment_from is not None:
            self._check_assignment()

    def _check_linked(self) -> None:
        """Refuse links of what is not an entity, and by a column that says something else."""
        if not self.linked_by:
            return
        name = self._not_default({"assignment_from": None, "folds": None})
        if self.entity_column is None or name is not None:
            raise ValueError(
                f"{setting_name('linked_by')} joins entities that are drawn into splits once; give"
                f" the column of entities, and neither {setting_name('assignment_from')} nor"
                f" {setting_name('folds')}"
            )
        claimed = {self.entity_column, *self.time_columns, self.label, self.main_target}
        for name in self.linked_by:
            if name in claimed:
                raise ValueError(
                    f"{setting_name('linked_by')} names {name!r}, which has another role; name"
                    " columns of values that belong to one entity"
                )

    def _check_assignment(self) -> None:
        """Refuse settings by which earlier and new rows would have to be decided together."""
        for name, value in {"folds": self.folds, "near": self.near}.items():
            if value is not None:
                raise ValueError(
                    f"{setting_name(name)} with {setting_name('assignment_from')} is not defined:"
                    f" all rows are decided together; leave one of them out"
                )
        if self.duplicates == "group":
            raise ValueError(
                f"{setting_name('duplicates')} is 'group', and with"
                f" {setting_name('assignment_from')} what is drawn already cannot be joined; choose"
                " 'drop', or draw by content"
            )

    def assigns_by_hash(self, earlier: SplitSettings) -> bool:  # noqa: ARG002 - for subclasses
        """Return whether what is drawn has the same split as with earlier settings, by its hash
        alone.
        """
        return False

    def _not_default(self, defaults: Mapping[str, object]) -> str | None:
        """Return the first of these settings that has another value."""
        for name, default in defaults.items():
            if getattr(self, name) != default:
                return name
        return None

    def _check_comparison_in_folds(self) -> None:
        """Refuse to compare rows without a decision about them, which folds do not count."""
        name = self._not_default({"content": (), "near": None})
        if name is not None and self.duplicates not in ("group", "drop"):
            raise ValueError(
                f'{setting_name("duplicates")} is "{self.duplicates}", which compares no rows in'
                f' folds; choose "drop", or "group" for folds of entities, or leave'
                f" {setting_name(name)} out"
            )

    def _check_targets(self) -> None:
        targets = self.targets
        index = self.main_task_index
        if (targets is None) != (index is None):
            raise ValueError(
                f"{setting_name('targets')} and {setting_name('main_task_index')} go together;"
                " give both or neither"
            )
        if targets is None or index is None:
            return
        if len(targets) < 2 or len(set(targets)) != len(targets):
            raise ValueError(
                f"{setting_name('targets')} are {', '.join(targets)}; give two or more different"
                " columns"
            )
        if index >= len(targets):
            raise ValueError(
                f"{setting_name('main_task_index')} is {index}, there are {len(targets)}"
                f" {setting_name('targets')}; counting begins at 0"
            )

    def _check_roles(self) -> None:
        """Refuse columns of two roles of which one would be overwritten."""
        for role, names in self.roles().items():
            for name in names:
                if self.main_target == name:
                    raise ValueError(
                        f"the main target of {setting_name('targets')}, {name!r}, is also the"
                        f" {role}; it would be overwritten"
                    )
                if self.label == name:
                    raise ValueError(
                        f"{setting_name('label')} is {name!r}, which is also the {role} and would"
                        " be overwritten by classes; copy that column under another name to"
                        " learn it"
                    )

    def _check_computed_columns(self) -> None:
        """Refuse a comparison or a type of columns that headrace computes."""
        for role, computed in (("label", self.label), ("main target", self.main_target)):
            if computed is not None and computed in self.content:
                raise ValueError(
                    f"{setting_name('content')} names {computed!r}, the {role}, which headrace"
                    " computes; name columns that keep their values"
                )
        label_type = self.types.get(self.label or "", "int64")
        if label_type != "int64":
            raise ValueError(
                f"{setting_name('types')} has {self.label!r} as {label_type!r}, but a label becomes"
                f" int64 class numbers; leave it out of {setting_name('types')}, or leave"
                f" {setting('label')} out for values as they are"
            )


class TemporalSplit(SplitSettings):
    """Rows before the split date go to train or val, by entity. Rows on or after it go to test,
    except entities already in train.

    Without `entity` time alone decides: rows before the split date go to train, the others to test.

    Raises `SettingsError` when built with values that cannot work.
    """

    recipe_name: ClassVar[str] = "temporal_split"

    time: TimeColumns = Field(
        json_schema_extra={**COLUMNS, "flag": "repeated"},
        description=(
            "Column of the time of a row; or several, such as its date and its time of day, which"
            " are read as one with blanks between them."
        ),
    )
    entity: str | None = Field(
        None,
        min_length=1,
        json_schema_extra=COLUMNS,
        description=(
            "Column of the entity: customer, device, aircraft, ... No entity is in both train "
            "and test. By default, time alone decides, and there is no val."
        ),
    )
    split_date: str | None = Field(
        None,
        json_schema_extra=COLUMNS,
        description=(
            "The cutoff, e.g. 2025-01-01 or an instant with offset; the instant itself is "
            "test. Required, except for folds of entities."
        ),
    )
    gap: str | None = Field(
        None,
        json_schema_extra=_ROWS,
        description=(
            "Rows this close before the cutoff are dropped and counted, such as 7d; also "
            "called an embargo."
        ),
    )
    label_horizon: str | None = Field(
        None,
        json_schema_extra=_ROWS,
        description=(
            "How long after the time of a row its label is known, such as 30d. Rows before the "
            "cutoff whose label is known only after it are dropped and counted."
        ),
    )
    train_ratio: float = Field(
        0.9,
        gt=0,
        lt=1,
        description=(
            "Share of the entities seen before the cutoff that go to train; exactly "
            "floor(entities × ratio)."
        ),
    )
    bad_rows: Literal["error", "drop"] = Field(
        "error",
        json_schema_extra=_ROWS,
        description="Rows without a readable time; drop: dropped and counted.",
    )
    time_zone: Annotated[str, AfterValidator(known_zone)] = Field(
        "UTC",
        json_schema_extra=COLUMNS,
        description="Time zone of times without an offset, and of the split date.",
    )
    val_in_test: Literal["keep", "drop"] = Field(
        "keep",
        json_schema_extra=_ROWS,
        description="Whether entities in val may also be in test.",
    )
    known_at: Names = Field(
        (),
        json_schema_extra=_JOINED,
        description=(
            "Columns of the instant from which a joined value was known. It must lie before "
            "the time of the row; a date counts as the end of its day."
        ),
    )
    known_equal: Literal["late", "keep"] = Field(
        "late",
        json_schema_extra=_JOINED,
        description=(
            "A value known at the very instant of the row; late: not before it; keep: allowed."
        ),
    )
    known_late: Literal["error", "drop"] = Field(
        "error",
        json_schema_extra=_JOINED,
        description=(
            "Rows with a value that was not known before their time, or at an unknown time; "
            "drop: dropped and counted."
        ),
    )

    @field_validator("split_date", mode="before")
    @classmethod
    def _date_as_text(cls, value: object) -> object:
        # YAML reads an unquoted date as a date.
        if hasattr(value, "isoformat"):
            return value.isoformat()
        return value

    @field_validator("gap", "label_horizon")
    @classmethod
    def _known_duration(cls, value: str | None, field: ValidationInfo) -> str | None:
        if value is None:
            return None
        return known_duration(str(field.field_name), value)

    @model_validator(mode="after")
    def _consistent(self) -> TemporalSplit:
        if isinstance(self.folds, GroupKFold):
            self._check_group_folds(self.folds)
        elif self.split_date is None:
            raise ValueError(f"{setting_name('split_date')} is required; give it")
        else:
            self.cutoff()
        if self.folds is not None:
            self._check_folds()
        if len(self.dialect.time_format) > 1:
            raise ValueError(
                f"{setting_name('dialect')} names {len(self.dialect.time_format)} forms of times;"
                " all times of a split are of one form: give one time_format"
            )
        if self.entity is None:
            self._check_without_entity()
        if self.entity in self.time_columns:
            raise ValueError(
                f"{setting_name('time')} and {setting_name('entity')} are both {self.entity!r};"
                " they must differ"
            )
        if not all(self.time_columns) or len(set(self.time_columns)) < len(self.time_columns):
            raise ValueError(
                f"{setting_name('time')} is {self.time!r}; name one column, or two different ones"
            )
        self._check_output()
        self._check_known_at()
        return self

    @property
    def time_format(self) -> str:
        """How times are written; auto: one form is found for the whole source."""
        return next(iter(self.dialect.time_format), "auto")

    def _check_without_entity(self) -> None:
        name = self._not_default(
            {"train_ratio": 0.9, "val_in_test": "keep", "null_entity": "error"}
        )
        if name is None and self.duplicates == "group":
            name = "duplicates"
        if name is not None:
            raise ValueError(
                f"{setting_name(name)} is {getattr(self, name)!r}, which needs entities, and"
                f" {setting_name('entity')} is not given; give {setting('entity')}, or leave"
                f" {setting_name(name)} out"
            )

    def _check_known_at(self) -> None:
        if not set(self.time_columns).isdisjoint(self.known_at):
            raise ValueError(
                f"{setting_name('known_at')} names {self.time_name!r}, the time, which cannot lie"
                " before itself; name the columns of joined values"
            )
        name = self._not_default({"known_equal": "late", "known_late": "error"})
        if name is not None and not self.known_at:
            raise ValueError(
                f"{setting_name(name)} is {getattr(self, name)!r}, and"
                f" {setting_name('known_at')} names no column; give {setting('known_at')}, or leave"
                f" {setting_name(name)} out"
            )

    def _check_group_folds(self, folds: GroupKFold) -> None:
        if self.entity is None:
            raise ValueError(
                f"{setting_name('folds')} divide entities here, and {setting_name('entity')} is not"
                f" given; give {setting('entity')}, or folds that roll in time"
            )
        name = self._not_default({"split_date": None, "gap": None, "label_horizon": None})
        if name is not None:
            raise ValueError(
                f"{setting_name(name)} is {getattr(self, name)!r}, and folds of entities have no"
                f" cut in time; leave {setting_name(name)} out, or choose folds that roll, such as"
                " rolling:n=5,step=30d"
            )
        name = self._not_default({"train_ratio": 0.9, "val_in_test": "keep"})
        if name is not None:
            raise ValueError(
                f"{setting_name(name)} is {getattr(self, name)!r}, and folds of entities have no"
                " val; leave it out"
            )
        if folds.stratify in (*self.time_columns, self.entity):
            raise ValueError(
                f"{setting_name('folds')} stratify by {folds.stratify!r}, the time or the entity;"
                " name a column of classes"
            )

    def _check_folds(self) -> None:
        """Refuse settings that are not defined for folds, where a row's side differs from fold to
        fold.
        """
        if self.duplicates == "group" and isinstance(self.folds, Rolling):
            raise ValueError(
                f'{setting_name("duplicates")} is "group", and in folds that roll a row is in'
                ' test of one fold and in train of the next; choose "drop", which keeps the'
                " earliest row of each content, or folds of entities"
            )
        self._check_comparison_in_folds()
        if self.null_entity == "own":
            raise ValueError(
                f'{setting_name("null_entity")} is "own", and folds need the entity of every row;'
                ' choose "drop", or fill the column'
            )

    @property
    def time_columns(self) -> tuple[str, ...]:
        """The column of the time of a row, or those of date and clock."""
        if isinstance(self.time, str):
            return (self.time,)
        return self.time

    @property
    def time_name(self) -> str:
        """The columns of the time, for messages."""
        return " and ".join(self.time_columns)

    @property
    def entity_column(self) -> str | None:
        """The column of the entity, if there is one."""
        return self.entity

    @property
    def train_share(self) -> float:
        """The share of the entities seen before the cutoff that goes to train."""
        return self.train_ratio

    @property
    def cut_in_time(self) -> bool:
        """Whether one cut in time decides between train and test."""
        return self.folds is None

    def roles(self) -> dict[str, Sequence[str]]:
        """Return the columns that decide where a row goes, by their role."""
        return {
            "time": self.time_columns,
            "entity": () if self.entity is None else (self.entity,),
            "known_at": self.known_at,
        }

    def identity_settings(self) -> dict[str, Any]:
        """Return the settings that can change a byte of output, with the cutoff as an instant."""
        settings = super().identity_settings()
        if self.split_date is not None:
            settings["split_date"] = str(self.cutoff().instant_us)
        return settings

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits of such a run; without an entity there is no val."""
        if self.entity is None:
            return ("train", "test")
        return ("train", "val", "test")

    def reaches_us(self) -> dict[Reason, int]:
        """Return how far before the cutoff a row must be, in microseconds, by the reason to drop it
        otherwise.
        """
        reaches: dict[Reason, int] = {}
        if self.gap is not None:
            reaches[Reason.GAP] = duration_us("gap", self.gap)
        if self.label_horizon is not None:
            reaches[Reason.LABEL_PAST] = duration_us("label_horizon", self.label_horizon)
        return reaches

    def cutoff(self) -> Cutoff:
        """Return the split date as an instant and as wall-clock time of the zone.

        Raises `ValueError` if unreadable.
        """
        return cutoffs(self)[0]


def compression_problem(output_format: str, compression: str | None) -> str | None:
    """Describe what is wrong with the compression of an output format; None if it fits."""
    allowed = FORMATS[output_format].compressions
    if compression is None or compression in allowed:
        return None
    return (
        f"{setting_name('compression')} is {compression!r}, which {output_format} does not take;"
        f" choose one of {', '.join(allowed)}"
    )
