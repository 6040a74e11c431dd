"""Settings of a stream, checked when they are built."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, get_args

import pyarrow as pa

from headrace.arrays import I64
from headrace.checks import as_integer, check_boolean, check_word, nearest
from headrace.dataset.index import SplitIndex
from headrace.dataset.indexed import ReadBlock, Verify
from headrace.digest import canonical_json, sha256_hex
from headrace.errors import SettingsError, setting, setting_name
from headrace.formats.column_paths import ColumnSelection, column_path, with_paths
from headrace.formats.decoders import Decoder
from headrace.formats.plain_types import check_read
from headrace.recipe import recipe_of_option
from headrace.sealed import MOST_LANES, MOST_POSITIONS
from headrace.storage.places import place_of
from headrace.stream.order.balance import CostModel, CountedIndex
from headrace.stream.order.lanes import OPEN_BYTES
from headrace.stream.order.remaining import Remainder
from headrace.stream.read.mask import EntityMask
from headrace.stream.read.ragged import LENGTHS, Padding
from headrace.stream.workers.options import WorkerArguments

if TYPE_CHECKING:
    from headrace.stream.loader.passes import MakePasses
    from headrace.stream.read.columns import Columns

BatchFormat = Literal["torch", "numpy", "arrow", "rows"]
Cache = Literal["none", "files"]
Memory = Literal["pageable", "pinned"]
Distribution = Literal["balanced", "round_robin", "by_size", "local", "dynamic"]
OnBadBlock = Literal["raise", "quarantine"]
Lists = Literal["ragged", "padded"]
PackedWord = Literal["auto", "varlen", "padded", "off"]
BalanceWord = Literal["none", "flops"]

_UNBALANCED: Mapping[str, Any] = {  # setting → the value that balanced steps require
    "shuffle": True,
    "samples_per_epoch": None,
    "distribution": "balanced",
    "pack": None,
    "on_bad_block": "raise",
}
# they mostly wait; `headrace.storage.bucket` measures how many send requests at once
STORE_THREADS = 64
_WORDS: Mapping[str, Any] = {  # setting → its allowed words
    "batch_format": BatchFormat,
    "lists": Lists,
    "cache": Cache,
    "distribution": Distribution,
    "on_bad_block": OnBadBlock,
    "verify": Verify,
    "decoder": Decoder,
    "memory": Memory,
}

_NAMES_ELSEWHERE: Mapping[str, str] = {  # option of other loaders → its equivalent here
    "num_workers": "a stream takes workers=, a torch dataset num_workers=",
    "workers": "a stream takes workers=, a torch dataset num_workers=",
    "drop_last": 'remainder="drop" does that',
    "collate_fn": "transform= takes a function of a whole batch",
    "pin_memory": 'memory="pinned" does that',
    "prefetch_factor": "a stream with workers= takes it; else it is an argument of the DataLoader",
    "multiprocessing_context": "a stream with workers= takes it; else it is an argument of the"
    " DataLoader",
    "worker_init_fn": "a stream with workers= takes it; else it is an argument of the DataLoader",
    "buffer_size": "shuffle=True shuffles over all rows, and shuffle_rows= sets how many at a time",
    "rank": "topology=headrace.Topology(rank=…, world_size=…) sets both",
    "world_size": "topology=headrace.Topology(rank=…, world_size=…) sets both",
    "revision": "datasets.load_dataset takes it, and headrace.open what that returns",
    "split": 'the split of an opened dataset is chosen with stream("train", …) or dataset["train"]',
    "batch_size": "the dataset is opened first, and stream(batch_size=…) makes batches",
    "columns": "the dataset is opened first, and stream(columns=…) reads some columns",
    "num_replicas": "topology=headrace.Topology(rank=…, world_size=…) sets both",
}

VALID = "valid"
TOKENS = "input_ids"  # the column of tokens, unless a setting names another one
BLEND_SOURCE = "blend_source"  # of rows of a blend: the number of their source
IN_ARROW: tuple[BatchFormat, ...] = ("arrow", "rows")  # made of Arrow columns, which keep nulls


class RowForm(Protocol):
    """A way to make batches of rows that are more than their columns, such as packed bins; frozen
    and picklable.
    """

    @property
    def word(self) -> str:
        """A word that changes whenever blocks are read in another way."""

    def check(self, root: Path, index: SplitIndex) -> None:
        """Raise `SettingsError` if the rows of a split have another form."""

    def default_columns(self, available: Sequence[str]) -> list[str]:
        """List the columns to read if the caller names none."""

    def check_columns(self, columns: Sequence[str]) -> None:
        """Raise `SettingsError` unless batches can be made of these columns."""

    def index_of(self, index: SplitIndex) -> SplitIndex:
        """Return the index with the column types that `blocks` produces."""

    def blocks(self, read_block: ReadBlock, *, root: Path, index: SplitIndex) -> ReadBlock:
        """Return a reader of checked blocks that reads through a reader of stored blocks."""

    def batches(
        self, columns: Columns, batch_size: int, batch_format: BatchFormat
    ) -> Iterator[dict[str, Any]]:
        """Yield batches of `batch_size` rows; the last has the rest.

        `VALID` is the mask column, if the columns have one.
        """

    def count(
        self,
        index: SplitIndex,
        read_block: ReadBlock,
        *,
        contents: str | None,
        cache_dir: Path | None,
    ) -> CountedIndex:
        """Count the tokens of each row.

        contents, cache_dir: as in `RowSource`. Raises what reading blocks raises.
        """


class RowSource(Protocol):
    """A source of passes other than plain rows, such as bins that are packed while rows are
    streamed.
    """

    def passes_of(
        self,
        index: SplitIndex,
        read_block: ReadBlock,
        options: StreamOptions,
        *,
        contents: str | None,
        cache_dir: Path | None,
    ) -> MakePasses:
        """Return a factory of the passes over a split.

        contents: a word that changes whenever the rows may have changed; it keys what is cached
        under cache_dir. None: nothing is cached. Raises what reading blocks raises.
        """

    def count_tokens(
        self,
        index: SplitIndex,
        read_block: ReadBlock,
        *,
        contents: str | None,
        cache_dir: Path | None,
    ) -> I64:
        """Count the tokens that batches have of each row: int64 [rows]; see `passes_of`."""


class StreamArguments(TypedDict, total=False):
    """The options of a stream other than its batch size, for functions that pass them on; see
    `StreamOptions`.
    """

    shuffle: bool
    seed: int
    shuffle_rows: int | None
    lanes: int | None
    remainder: Remainder | None
    columns: Sequence[str] | None
    drop_columns: Sequence[str] | None
    batch_format: BatchFormat
    lists: Lists
    pad_values: Mapping[str, float]
    pad_to_multiple_of: int
    packed: PackedWord | RowForm
    pack: RowSource | int | None
    batch_tokens: int | None
    group_by_length: str | None
    global_batch_size: int | None
    prefetch_bytes: int
    prefetch_blocks: int
    read_threads: int | None
    memory_bytes: int
    cache: Cache
    cache_dir: str | Path | None
    cache_bytes: int
    distribution: Distribution
    on_bad_block: OnBadBlock
    quarantine_limit: float
    stall_seconds: float | None
    verify: Verify
    decoder: Decoder
    samples_per_epoch: int | None
    transform: Callable[[Any], Any] | None
    memory: Memory
    device: str | None
    locality: Mapping[str, int | Sequence[int]] | None
    ranks_per_node: int | None
    balance: BalanceWord | CostModel
    mask_entities: Sequence[str]
    entity_column: str | None


class LoopArguments(StreamArguments, WorkerArguments, total=False):
    """The options of a stream that may have worker processes."""


def check_options(names: Iterable[str], known: Iterable[str], of: str = "a stream") -> None:
    """Raise `SettingsError` for an unknown option, and name the equivalent of an option of other
    loaders.
    """
    known = list(known)
    for name in names:
        if name not in known:
            hint = _NAMES_ELSEWHERE.get(name) or nearest(
                name, known, f"options are {', '.join(known)}"
            )
            raise SettingsError(f"{setting_name(name)} is not an option of {of}", remedy=hint)


_SEEDED = ("shuffle", "transform", "pack")  # what a seed is for


def stream_options(batch_size: int | None, requested: StreamArguments) -> StreamOptions:
    """Build the settings of a stream from a caller's options.

    batch_size: None with batch_tokens, which bounds the rows too, as each is at least one wide, and
    with global_batch_size.
    Raises `SettingsError` for unknown names and bad values, and for a seed that nothing uses: one
    without a word on `shuffle`. With `shuffle=False` a seed is no mistake, as one set of options
    serves training and validation.
    """
    check_options(requested, StreamArguments.__annotations__)
    if "seed" in requested and requested.keys().isdisjoint(_SEEDED):
        raise SettingsError(
            f"{setting_name('seed')} is {requested['seed']}, and rows are in the order of the"
            " files",
            value=requested["seed"],
            remedy=(
                f"give {setting('shuffle', True)}, or {setting('shuffle', False)} if that order is"
                " meant"
            ),
        )
    for name in ("batch_tokens", "global_batch_size"):
        most = requested.get(name)
        if batch_size is None and most is not None:
            batch_size = as_integer(name, most, least=1)
    if batch_size is None:
        raise SettingsError(
            "nothing says how large a batch is",
            setting="batch_size",
            remedy=(
                f"give it, {setting_name('global_batch_size')} or {setting_name('batch_tokens')}"
            ),
        )
    return StreamOptions(batch_size=batch_size, **requested)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """Settings of a stream over a split.

    batch_size: rows in a batch of one rank.
    shuffle, seed: a keyed order of rows, the same on every machine; without shuffle, the order of
    the files, whatever the seed.
    shuffle_rows: rows of a round, which are shuffled among themselves over all ranks. None: as many
        as memory_bytes allow, see `lanes`.
    lanes: slices of the data that are read side by side; None: chosen from the index,
    see `lanes`. They decide the
        order, and a resumed stream keeps those of its state.
    remainder: "pad" fills the last step with rows that are false in batch["valid"], a mask that
        every batch has; "drop" leaves out less than one global batch; "exact" gives one consumer a
        shorter last batch. None: "exact" for one consumer, else "pad".
    columns: the columns to read, in this order; None: all.
    drop_columns: the columns to leave out instead; all others are read.
    batch_format: "torch" tensors, "numpy" arrays, an "arrow" table, or "rows": a list of dicts of
    Python values, slow. lists: "ragged" keeps lists of numbers as they are; "padded" pads them to
    the longest of the batch, and adds a
        column name + "_lengths" for each. pad_values: by column, else 0. pad_to_multiple_of: widths
        are rounded up to a multiple.
    packed: the form of rows that hold packed sequences: "varlen" or "padded" batches, or
        `PackedBatches` with more settings; "off": rows as they are. "auto": "varlen" if the first
        shard says that its rows are packed.
    pack: packs rows of tokens while they are streamed, into bins of this number of tokens or as
        `PackRows` says; batch_size then counts bins. See `packing`.
    batch_tokens: batches hold rows of like lengths, and at most this many values, padding
    included: rows times width, on each rank; batch_size is then the most rows.
        group_by_length: the column of lists, or of their lengths, by which rows are grouped;
        without batch_tokens into batches of batch_size rows. None: "input_ids" with batch_tokens.
        See `by_length`.
    global_batch_size: rows of a step of the optimizer over all ranks, which decides batch_size on
    any number of them: the largest that is at most the one given, if any, and goes into a rank's
        part a whole number of times. See `StreamLoader.batches_per_step`.
    prefetch_bytes, prefetch_blocks: bounds of what is decoded ahead. read_threads: threads that
        decode. None: the number of processors of this process, 2 to 8, and 64 if shards are in an
        object store, whose responses take time.
    memory_bytes: what a process that reads all lanes may hold: open blocks, the rows of a round and
        its order. A shuffled split of up to three quarters of it, decoded, is kept by every rank.
        Lanes and rounds are chosen by it, so it is part of the order.
    cache: "files" keeps whole shards of an object store in cache_dir (None: ~/.cache/headrace),
        fetched once for all processes of a machine and checked against their checksums. The whole
        content of cache_dir is limited to cache_bytes.
    on_bad_block: what to do with a block that cannot be read: "raise", or "quarantine" its rows,
        which are then false in batch["valid"].
    quarantine_limit: the share of the split's rows, in [0, 1], that one reader may give up in a
    pass before it raises. stall_seconds: a longer wait for data logs a warning; None: no warnings.
    verify: when a shard of a prepared run is checked against its checksum: at the "first_touch" in
        each process, or "never", which leaves the checksums of Parquet pages. Applies to prepared
        runs only.
    decoder: who decodes columns of Parquet; the rows are the same. "polars" takes Polars for all
        columns that it reads equal, if pages have no checksums that it would pass over; a damaged
        file without any may then end the process. "auto" takes it where that cannot happen and it
        is faster: for prepared runs, columns with nulls, truths and decimals. "pyarrow": never.
    samples_per_epoch: rows of an epoch, fewer or more than the split has; an epoch continues where
        the last one ended. None: every row once; for a blend with weights, the number of rows of
        its splits together.
    transform: a function of (batch) or (batch, context) that returns what the loop receives. It
        runs ahead of the loop, in a thread or in workers; see `transform`.
    memory: "pinned" puts tensors where a GPU can copy them in the background; not with DataLoader
    workers. device: "cuda", "cuda:N" or "cpu": tensors are ready there when the loop receives them;
    see `memory`. None: they
        stay where they are made. Not with DataLoader workers.
    distribution: "balanced" shares out rows evenly. The others give whole shards to each rank:
        "round_robin" in turns, "by_size" packed evenly by bytes, and "local" to nodes that hold
        them, the rest by size. "dynamic", experimental: ranks claim blocks when they are ready for
        them, see `dynamic`.
    locality: for "local": the node or nodes that hold a shard, by the shard's path in the index.
        ranks_per_node: ranks are numbered node by node.
    balance: "flops" gives all ranks packed rows of similar cost in each step, by the cost of an
        8-billion-parameter transformer or by your own `CostModel`; see `balance`. Rows are counted
        when the stream is made, and the counts are cached. "none": no balancing.
    mask_entities: rows of these entities are false in batch["valid"]; batches, steps and states are
        the same as without. All ranks need the same list. A step may then have no valid row.
        entity_column: the column whose values name entities, as text; None: the one in the run's
        settings.

    Raises `SettingsError` when built with values that cannot work.
    """

    batch_size: int
    shuffle: bool = False
    seed: int = 0
    shuffle_rows: int | None = None
    lanes: int | None = None
    remainder: Remainder | None = None
    columns: Sequence[str] | None = None
    drop_columns: Sequence[str] | None = None
    batch_format: BatchFormat = "torch"
    lists: Lists = "ragged"
    pad_values: Mapping[str, float] = field(default_factory=dict)
    pad_to_multiple_of: int = 1
    packed: PackedWord | RowForm = "auto"
    pack: RowSource | int | None = None
    batch_tokens: int | None = None
    group_by_length: str | None = None
    global_batch_size: int | None = None
    prefetch_bytes: int = 1 << 25
    prefetch_blocks: int = 256
    read_threads: int | None = None
    memory_bytes: int = OPEN_BYTES
    cache: Cache = "none"
    cache_dir: str | Path | None = None
    cache_bytes: int = 1 << 35
    distribution: Distribution = "balanced"
    on_bad_block: OnBadBlock = "raise"
    quarantine_limit: float = 0.01
    stall_seconds: float | None = 5.0
    verify: Verify = "first_touch"
    decoder: Decoder = "auto"
    samples_per_epoch: int | None = None
    transform: Callable[[Any], Any] | None = None
    memory: Memory = "pageable"
    device: str | None = None
    locality: Mapping[str, int | Sequence[int]] | None = None
    ranks_per_node: int | None = None
    balance: BalanceWord | CostModel = "none"
    mask_entities: Sequence[str] = ()
    entity_column: str | None = None

    def __post_init__(self) -> None:
        self._check_numbers()
        check_boolean("shuffle", self.shuffle)
        if self.remainder is not None:
            check_word("remainder", self.remainder, get_args(Remainder))
        for name, words in _WORDS.items():
            check_word(name, getattr(self, name), get_args(words))
        if self.packed not in ("auto", "off"):
            object.__setattr__(
                self, "packed", recipe_of_option("packed").row_option("packed", self.packed)
            )
        if self.pack is not None:
            object.__setattr__(self, "pack", recipe_of_option("pack").row_option("pack", self.pack))
        self._check_batches()
        self._check_lengths()
        for name in ("locality", "ranks_per_node"):
            if (getattr(self, name) is not None) != (self.distribution == "local"):
                raise SettingsError(
                    f"{setting_name(name)} is {getattr(self, name)!r} and"
                    f" {setting('distribution', self.distribution)}",
                    remedy=(
                        f"give {setting('locality')} and {setting('ranks_per_node')} with"
                        f" {setting('distribution', 'local')}, and neither without it"
                    ),
                )
        self._check_balance()
        self._check_mask()
        if self.locality is not None:
            object.__setattr__(self, "locality", _nodes(self.locality))
        self._check_choice()

    def _check_choice(self) -> None:
        selection = ColumnSelection(self.columns, self.drop_columns)
        object.__setattr__(self, "columns", selection.columns)
        object.__setattr__(self, "drop_columns", selection.drop_columns)

    def _check_balance(self) -> None:
        if not isinstance(self.balance, CostModel):
            check_word("balance", self.balance, get_args(BalanceWord))
        values = {name: getattr(self, name) for name in _UNBALANCED}
        others = [
            setting(name, value) for name, value in values.items() if value != _UNBALANCED[name]
        ]
        if self.balance != "none" and others:
            if isinstance(self.balance, CostModel):
                model = "a CostModel"
            else:
                model = f'"{self.balance}"'
            raise SettingsError(
                f"{setting_name('balance')} is {model}, which orders the packed rows of whole"
                f" shuffled epochs by their cost, and does not go with {', '.join(others)}",
                remedy="leave one of them out",
            )

    def _check_lengths(self) -> None:
        """Check what cannot be in batches of like lengths."""
        column = self.grouped_column
        if column is None:
            return
        if not isinstance(column, str) or not column:
            raise SettingsError(
                setting="group_by_length",
                value=column,
                remedy="give the name of a column of lists, or of their lengths",
            )
        early = "needs the lengths of all rows before it begins"
        for name, possible, why in (
            ("pack", (None,), "makes padded batches"),
            ("packed", ("auto", "off"), "makes padded batches"),
            ("global_batch_size", (None,), "decides how many rows a batch has"),
            ("balance", ("none",), "gives all ranks batches of like costs in each step"),
            ("remainder", (None, "pad", "exact"), "puts every row into a batch"),
            ("distribution", ("balanced",), early),
            ("on_bad_block", ("raise",), early),
        ):
            value = getattr(self, name)
            if value not in possible:
                words = [word for word in possible if word is not None]
                grouping = "batch_tokens" if self.group_by_length is None else "group_by_length"
                raise SettingsError(
                    f"{setting_name(grouping)} {why}",
                    setting=name,
                    value=value,
                    remedy=f"use {setting(name, *words)}" if words else "leave one of them out",
                )

    def _check_mask(self) -> None:
        names = self.mask_entities
        if isinstance(names, str) or not all(isinstance(name, str) and name for name in names):
            raise SettingsError(
                "these are not a list of texts, which name entities in their column",
                setting="mask_entities",
                value=names,
                remedy='write numbers as text, e.g. ["17"]',
            )
        object.__setattr__(self, "mask_entities", tuple(sorted(set(names))))
        if self.entity_column is not None and not self.mask_entities:
            raise SettingsError(
                f"{setting_name('entity_column')} is {self.entity_column!r}, and no"
                f" {setting('mask_entities')} are given",
                remedy="give them, or leave it out",
            )
        if self.mask_entities and (self.pack is not None or self.form is not None):
            raise SettingsError(
                f"{setting_name('mask_entities')} masks rows of one entity each, and does not go"
                f" with {'packed rows' if self.pack is None else setting('pack', self.pack)}",
                remedy="leave the entities out when the rows are packed, or leave it out",
            )

    def _make_integer(self, name: str, **bounds: int) -> None:
        """Keep a setting as a Python int, which states and contracts need; see `as_integer`."""
        object.__setattr__(self, name, as_integer(name, getattr(self, name), **bounds))

    def _check_numbers(self) -> None:
        for name in ("batch_size", "memory_bytes", "cache_bytes", "pad_to_multiple_of"):
            self._make_integer(name, least=1)
        for name in (
            "shuffle_rows",
            "lanes",
            "samples_per_epoch",
            "ranks_per_node",
            "read_threads",
            "batch_tokens",
            "global_batch_size",
        ):
            if getattr(self, name) is not None:
                if name == "lanes":
                    most = MOST_LANES
                else:
                    most = MOST_POSITIONS
                self._make_integer(name, least=1, most=most)
        for name in ("prefetch_bytes", "prefetch_blocks"):
            self._make_integer(name, least=0)
        self._make_integer("seed")
        if not all(isinstance(value, int | float) for value in dict(self.pad_values).values()):
            raise SettingsError(
                setting="pad_values",
                value=self.pad_values,
                remedy="give a number for each column named",
            )
        if not 0 <= _number("quarantine_limit", self.quarantine_limit) <= 1:
            raise SettingsError(
                setting="quarantine_limit",
                value=self.quarantine_limit,
                remedy="give a part of the rows, 0 to 1",
            )
        if self.stall_seconds is not None and not _number("stall_seconds", self.stall_seconds) > 0:
            raise SettingsError(
                setting="stall_seconds",
                value=self.stall_seconds,
                remedy="give seconds above 0, or None",
            )

    def _check_batches(self) -> None:
        """Check that the options of batches are compatible."""
        if self.lists == "padded" and self.batch_format in IN_ARROW:
            raise SettingsError(
                f"{setting('lists', 'padded')} makes tensors or arrays, and"
                f" {setting('batch_format', self.batch_format)} has none",
                remedy="leave one of them out",
            )
        if self.lists == "ragged" and (self.pad_values or self.pad_to_multiple_of != 1):
            raise SettingsError(
                f"{setting_name('pad_values')} and {setting_name('pad_to_multiple_of')} are for"
                f" {setting('lists', 'padded')}",
                remedy="set it, or leave them out",
            )
        if self.form is not None and (self.batch_format in IN_ARROW or self.lists == "padded"):
            raise SettingsError(
                "packed batches are tensors or arrays of their own form",
                setting="packed",
                remedy=(
                    f"use {setting('batch_format', 'torch', 'numpy')} and leave {setting('lists')}"
                    f" out, or {setting('packed', 'off')} for rows as they are"
                ),
            )
        if self.transform is not None and not callable(self.transform):
            raise SettingsError(
                setting="transform",
                value=self.transform,
                remedy="give a function of the batch, or None",
            )
        if self.device is not None and not re.fullmatch(r"cpu|cuda(:\d{1,4})?", str(self.device)):
            raise SettingsError(
                setting="device",
                value=self.device,
                remedy='give "cpu", "cuda", "cuda:N" or None',
            )
        if self.device is not None and not isinstance(self.device, str):
            raise SettingsError(
                setting="device", value=self.device, remedy=f'pass the text "{self.device}"'
            )
        has_tensors = self.batch_format == "torch" or self.transform is not None
        if (self.memory == "pinned" or self.device is not None) and not has_tensors:
            raise SettingsError(
                f"{self.memory_option} is for tensors, and"
                f" {setting('batch_format', self.batch_format)} has none",
                remedy=(
                    f"use {setting('batch_format', 'torch')}, or a transform that makes tensors"
                ),
            )

    def check_columns(self, schema: pa.Schema) -> tuple[str, ...]:
        """Return the columns to read, in order; a name may be a path to a field of a struct.

        Raises `SettingsError` for unknown columns and for a name that the batch needs itself, and
        `InputError` for a type that is not read.
        """
        available = schema.names
        if self.form is None:
            read = available
        else:
            read = self.form.default_columns(available)
        columns = tuple(read if self.columns is None else self.columns)
        known = set(available)
        unknown = [
            name for name in columns if name not in known and column_path(schema, name) is None
        ]
        if unknown:
            raise SettingsError(
                "some are not in the dataset",
                setting="columns",
                value=unknown,
                remedy=f"give some of {available}",
            )
        check_read(schema if columns == tuple(available) else with_paths(schema, columns))
        if self.form is not None:
            self.form.check_columns(columns)
        if self.lists == "padded":
            clashing = [name + LENGTHS for name in columns if name + LENGTHS in columns]
            strange = [name for name in self.pad_values if name not in columns]
            if clashing or strange:
                raise SettingsError(
                    f"{setting('lists', 'padded')}: columns {clashing} clash with lengths,"
                    f" pad_values {strange} are not columns",
                    remedy=f"leave them out with {setting('columns')}",
                )
        if VALID in columns:
            raise SettingsError(
                "every batch has its mask of real rows there",
                column=VALID,
                remedy=f"leave it out with {setting('columns')}, or rename it when preparing",
            )
        return columns

    @property
    def memory_option(self) -> str:
        """The setting that asks for pinned memory or a device, marked for a message."""
        if self.device is None:
            return setting("memory", self.memory)
        return setting("device", self.device)

    @property
    def padding(self) -> Padding | None:
        """The padding of lists; None if they stay ragged."""
        if self.lists == "padded":
            return Padding(values=self.pad_values, multiple=self.pad_to_multiple_of)
        return None

    @property
    def form(self) -> RowForm | None:
        """The form of rows that are more than their columns; None for plain rows."""
        if isinstance(self.packed, str):
            return None
        return self.packed

    @property
    def needs_lengths(self) -> bool:
        """Whether batches are made by the lengths of all rows."""
        return self.pack is not None or self.grouped_column is not None

    @property
    def grouped_column(self) -> str | None:
        """The column by whose lengths rows are grouped into batches; None if they are not."""
        if self.group_by_length is None and self.batch_tokens is not None:
            return TOKENS
        return self.group_by_length

    @property
    def cost_model(self) -> CostModel | None:
        """The model that balances steps; None if they are not balanced."""
        if isinstance(self.balance, CostModel):
            return self.balance
        if self.balance != "none":
            return CostModel()
        return None

    @property
    def mask(self) -> EntityMask | None:
        """The mask of entities; None if no row is masked.

        Raises `SettingsError` if no column names entities.
        """
        if not self.mask_entities:
            return None
        if self.entity_column is None:
            raise SettingsError(
                "nothing says which column names entities",
                setting="mask_entities",
                remedy=f"give {setting('entity_column')}",
            )
        return EntityMask(self.entity_column, tuple(self.mask_entities))

    @property
    def mask_digest(self) -> str | None:
        """A digest by which ranks compare their masks without revealing names."""
        mask = self.mask
        if mask is None:
            return None
        return sha256_hex(canonical_json([mask.column, list(mask.entities)]))[:32]

    @property
    def threads(self) -> int:
        """The number of threads that decode."""
        if hasattr(os, "sched_getaffinity"):
            usable = len(os.sched_getaffinity(0))
        else:
            usable = os.cpu_count() or 2
        return self.read_threads or max(2, min(8, usable))

    def for_ranks(self, ranks: int) -> StreamOptions:
        """Return the options with the batch size that global_batch_size gives this many ranks.

        Raises `SettingsError` if they cannot divide a global batch equally.
        """
        if self.global_batch_size is None:
            return self
        rank_rows, left_over = divmod(self.global_batch_size, ranks)
        if left_over:
            nearest_sizes = [size * ranks for size in (rank_rows, rank_rows + 1) if size]
            raise SettingsError(
                f"{ranks} ranks cannot divide it equally, and another size changes the training",
                setting="global_batch_size",
                value=self.global_batch_size,
                remedy=(
                    "start a number of ranks that divides it, or give"
                    f" {setting('global_batch_size', *nearest_sizes)}"
                ),
            )
        batches = -(-rank_rows // self.batch_size)
        while rank_rows % batches:
            batches += 1
        return replace(self, batch_size=rank_rows // batches)

    def rank_step_rows(self, ranks: int) -> int:
        """Return the rows of each of these ranks in a step of the optimizer."""
        if self.global_batch_size is None:
            return self.batch_size
        return max(1, self.global_batch_size // ranks)

    def _without_dropped(self, schemas: Sequence[pa.Schema]) -> StreamOptions:
        """Return the options with the columns to read in place of those to leave out.

        Raises `SettingsError` if no split has one of these, or if none is left.
        """
        selection = ColumnSelection(drop_columns=self.drop_columns)
        selection.check(schemas)
        columns: dict[str, None] = {}
        for schema in schemas:
            columns |= dict.fromkeys(selection.names_in(schema))
        return replace(self, columns=tuple(columns), drop_columns=None)

    def for_splits(self, parts: Sequence[tuple[Path, SplitIndex]]) -> StreamOptions:
        """Return the options with packed="auto", drop_columns and the number of threads resolved
        for these splits.

        parts: each split's root and index. Raises `SettingsError` if the rows do not have the
        requested form.
        """
        if self.read_threads is None and any(
            place_of(root).reads == "requests" for root, _ in parts
        ):
            return replace(self, read_threads=STORE_THREADS).for_splits(parts)
        if self.drop_columns is not None:
            return self._without_dropped([index.schema for _, index in parts]).for_splits(parts)
        if self.packed == "auto" and not self.needs_lengths:
            # Packed rows are lists. Skip the import for others: it takes a third of the time to
            # open a small split.
            may_be = all(any(map(pa.types.is_nested, index.schema.types)) for _, index in parts)
            form = None
            if may_be:
                form = recipe_of_option("packed").detect_form(parts, self)
            return replace(self, packed=form or "off")
        for root, index in parts:
            if self.form is not None:
                self.form.check(root, index)
        return self


def _nodes(locality: Any) -> dict[str, int | tuple[int, ...]]:
    nodes_of_shard: dict[str, int | tuple[int, ...]] = {}
    for shard, nodes in dict(locality).items():
        if isinstance(nodes, int):
            numbers = (nodes,)
        else:
            numbers = tuple(nodes)
        if not isinstance(shard, str) or any(type(node) is not int or node < 0 for node in numbers):
            raise SettingsError(
                f"{shard!r} is on node {nodes!r}",
                setting="locality",
                remedy="give the number of a node, or several",
            )
        nodes_of_shard[shard] = numbers
    return nodes_of_shard


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SettingsError(setting=name, value=value, remedy="give a number")
    return float(value)
