"""Stream several datasets as one: `headrace.blend`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import pyarrow as pa

from headrace.arrays import I64, offsets_from_lengths
from headrace.dataset.index import SplitIndex
from headrace.errors import InputError, SettingsError, setting, setting_name
from headrace.stream.loader.dataset import Dataset
from headrace.stream.loader.options import (
    BLEND_SOURCE,
    LoopArguments,
    StreamArguments,
    StreamOptions,
    stream_options,
)
from headrace.stream.loader.source import StreamSource, source_of_rows
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.order.layout import BlendIndex
from headrace.stream.order.mixture import Mixture, SourceTokens, WeightUnit
from headrace.stream.ranks.topology import Topology, resolve_topology
from headrace.stream.read.batch import import_torch
from headrace.stream.read.reader import ReadBlock
from headrace.stream.workers.options import split_worker_options

if TYPE_CHECKING:
    from headrace.stream.loader.torch_dataset import StreamingDataset

Part = Dataset | tuple[Dataset, str]
Begin = int | float | str
Proportions = Mapping[str, float] | Sequence[float] | float | str
_SOURCE_FIELD = pa.field(BLEND_SOURCE, pa.int64(), nullable=False)


@dataclass(frozen=True, eq=False, repr=False)
class Blend:
    """Datasets streamed as one. Created by `headrace.blend`; read-only.

    parts: each dataset with its split, or None. mixture: their names and proportions.
    """

    parts: tuple[tuple[Dataset, str | None], ...]
    mixture: Mixture

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the datasets."""
        return self.mixture.names

    def __repr__(self) -> str:
        pairs = zip(self.names, self.parts, strict=True)
        datasets = ", ".join(f"{name}: {part[0]!r}" for name, part in pairs)
        return f"Blend({datasets}; {self.mixture.description})"

    def stream(
        self,
        split: str | None = None,
        *,
        batch_size: int | None = None,
        workers: int = 0,
        topology: Topology | None = None,
        mesh: Any = None,
        data_dims: str | Sequence[str] | None = None,
        **options: Unpack[LoopArguments],
    ) -> StreamLoader:
        """Stream the blend, as `Dataset.stream` does for a dataset.

        split: for the datasets that were given without one. Raises `InputError` if the columns to
        read differ between datasets, `SettingsError`, `StreamError`.
        """
        of_workers, others = split_worker_options(workers, options)
        source = self._source_of(split, stream_options(batch_size, others))
        resolved = resolve_topology(topology, mesh, data_dims)
        return source.stream(workers=of_workers, topology=resolved)

    def torch_dataset(
        self,
        split: str | None = None,
        *,
        batch_size: int | None = None,
        num_workers: int = 0,
        topology: Topology | None = None,
        mesh: Any = None,
        data_dims: str | Sequence[str] | None = None,
        **options: Unpack[StreamArguments],
    ) -> StreamingDataset:
        """Wrap the blend as `Dataset.torch_dataset` does.

        split: for the datasets that were given without one. Raises what `stream` raises, and
        `MissingExtra` without torch.
        """
        import_torch()  # before anything is read
        source = self._source_of(split, stream_options(batch_size, options))
        resolved = resolve_topology(topology, mesh, data_dims)
        return source.torch_dataset(num_workers=num_workers, topology=resolved)

    def _splits(self, split: str | None) -> list[tuple[Dataset, str | None]]:
        return [(dataset, split if chosen is None else chosen) for dataset, chosen in self.parts]

    def _source_of(self, split: str | None, options: StreamOptions) -> StreamSource:
        """Return the source of the loader; packed="auto" is resolved for all datasets together."""
        if options.cost_model is not None:
            raise SettingsError(
                f"{setting_name('balance')} orders the rows of one dataset, and a blend of datasets"
                " takes them by turns",
                remedy="prepare the datasets as one blend with PackedSequences, or leave it out",
            )
        if options.mask_entities:
            raise SettingsError(
                f"{setting_name('mask_entities')} is for one dataset, and a blend has several",
                remedy="mask or erase entities in each, or leave it out",
            )
        options = options.for_splits(
            [(dataset.root, dataset.split_index(chosen)) for dataset, chosen in self._splits(split)]
        )
        options = replace(options, columns=self._columns(split, options.columns))
        return source_of_rows(partial(self.source, split), options)

    def _columns(self, split: str | None, columns: Sequence[str] | None) -> Sequence[str] | None:
        """Return the columns to read, that of the source among them; None for all.

        Raises `InputError` if the data has a column of that name too.
        """
        for name, (dataset, chosen) in zip(self.names, self._splits(split), strict=True):
            is_read = columns is None or BLEND_SOURCE in columns
            if is_read and BLEND_SOURCE in dataset.split_index(chosen).schema.names:
                raise InputError(
                    f"{name} has it, and each batch of a blend has the source of its rows there",
                    path="blend",
                    column=BLEND_SOURCE,
                    remedy=(
                        "rename it when preparing, or name the columns to read with"
                        f" {setting('columns')}"
                    ),
                )
        if columns is None or BLEND_SOURCE in columns:
            return columns
        return (*columns, BLEND_SOURCE)

    def source(self, split: str | None, options: StreamOptions) -> tuple[BlendIndex, ReadBlock]:
        """Return the blocks of all splits as one index, and a function that reads them as these
        options say.

        Raises `InputError` if the columns to read differ between datasets.
        """
        splits = self._splits(split)
        form = options.form
        indexes = [dataset.split_index(chosen) for dataset, chosen in splits]
        if form is not None:
            indexes = [form.index_of(index) for index in indexes]
        index = join_indexes(indexes, self.mixture, columns=options.columns)
        if self.mixture.needs_tokens:
            counts = [dataset.count_tokens(chosen, options) for dataset, chosen in splits]
            index = replace(index, tokens=tuple(map(SourceTokens.of, counts)))
        readers = [dataset.reader(chosen, options) for dataset, chosen in splits]
        return index, partial(
            _read_part, readers, offsets_from_lengths([len(part.rows) for part in indexes])
        )


def blend(
    datasets: Mapping[str, Part] | Sequence[Part],
    *,
    weights: Mapping[str, float] | Sequence[float] | None = None,
    schedule: Sequence[tuple[Begin, Proportions]] | None = None,
    temperature: float | str | None = None,
    limits: Mapping[str, float] | None = None,
    unit: WeightUnit = "rows",
) -> Blend:
    """Stream several datasets as one: every batch holds rows of all of them, in proportion to the
    weights.

    datasets: opened datasets, or (dataset, split), by name or in a list.
    weights: positive numbers in the same form; only their proportion matters.
    temperature: weights are size ** (1 / temperature) instead: a number from 1 on, or
    "proportional" (1), "sqrt" (2) or "uniform" (infinite).
    schedule: stages instead: [(0, {"web": 9, "code": 1}), ("80%", {"web": 1, "code": 3})]. A stage
    begins at rows, steps or tokens of the run ("3M rows", "20k steps", "2B tokens"), or a share of
    the first epoch ("80%" or 0.8), and has weights, 0 included, or a temperature.
    limits: how many times a dataset may be read in the run, such as {"code": 4}. Its share then
    goes to the others; `plan().stages` shows when.
    unit: what weights and temperatures are of. "tokens" become rows by the mean length of each
    dataset, so shares are exact if all its rows have one length; else `plan().tokens` has the
    expected tokens and their deviation. Tokens are counted once, in the column that `pack` or
    `group_by_length` name, else "input_ids".

    Without any of them, an epoch is every row of every dataset once. Otherwise it has the total
    number of rows of the datasets, or `samples_per_epoch`. Small datasets then repeat, each row
    once per round of its dataset, and large ones continue in the next epoch. Raises
    `SettingsError`.
    """
    if not isinstance(datasets, Mapping | Sequence):
        raise SettingsError(
            f"it is {datasets!r}",
            setting="datasets",
            remedy='give several by name: {"web": web, "code": code}, or a list of them',
        )
    if isinstance(datasets, Mapping):
        names = tuple(datasets)
        sources = list(datasets.values())
    else:
        names = tuple(str(number) for number in range(len(datasets)))
        sources = list(datasets)
    if not sources:
        raise SettingsError("there is none", setting="datasets", remedy="give at least one")
    parts = []
    for name, source in zip(names, sources, strict=True):
        if isinstance(source, tuple) and len(source) == 2:
            dataset, split = source
        else:
            dataset = source
            split = None
        if not isinstance(dataset, Dataset) or not isinstance(split, str | None):
            raise SettingsError(
                f"{name} is {source!r}",
                setting="datasets",
                remedy="give what headrace.open returned, or that and a split's name",
            )
        parts.append((dataset, split))
    mixture = Mixture.build(
        names,
        weights=weights,
        schedule=schedule,
        temperature=temperature,
        limits=limits,
        unit=unit,
    )
    return Blend(tuple(parts), mixture)


def join_indexes(
    parts: Sequence[SplitIndex], mixture: Mixture, *, columns: Sequence[str] | None = None
) -> BlendIndex:
    """Join the indexes of several splits, with shards named NAME/SHARD.

    Raises `InputError` if their columns differ.
    """
    names = mixture.names
    shards: list[str] = []
    formats: list[str] = []
    shard_of_block = []
    for name, part in zip(names, parts, strict=True):
        shard_of_block.append(part.shard_of_block + len(shards))
        shards.extend(f"{name}/{shard}" for shard in part.shards)
        formats.extend(part.formats)
    of_blocks: dict[str, Any] = {}
    for column in ("block", "rows", "offset", "length"):
        of_blocks[column] = np.concatenate([getattr(part, column) for part in parts])
    return BlendIndex(
        split="+".join(dict.fromkeys(part.split for part in parts)),
        schema=_shared_schema(parts, names, columns),
        shards=tuple(shards),
        formats=tuple(formats),
        shard_of_block=np.concatenate(shard_of_block),
        **of_blocks,
        parts=tuple(parts),
        mixture=mixture,
    )


def _read_part(
    readers: Sequence[ReadBlock], firsts: I64, number: int, columns: Sequence[str] | None
) -> pa.Table:
    """Read a block of the part that has it, with the number of the part in each row.

    firsts: the number of the first block of each part.
    """
    part = int(np.searchsorted(firsts, number, side="right")) - 1
    if columns is None:
        stored = None
    else:
        stored = [name for name in columns if name != BLEND_SOURCE]
    table = readers[part](number - int(firsts[part]), stored)
    if columns is not None and BLEND_SOURCE not in columns:
        return table
    return table.append_column(_SOURCE_FIELD, pa.array(np.full(len(table), part, np.int64)))


def _shared_schema(
    parts: Sequence[SplitIndex], names: Sequence[str], columns: Sequence[str] | None
) -> pa.Schema:
    """Return the columns to read with the types of the first split, and that of their source; a
    column is nullable if it is so in any split.
    """
    first = parts[0].schema
    if columns is None:
        columns_to_read = first.names
    else:
        columns_to_read = [name for name in columns if name != BLEND_SOURCE]
    for name, part in zip(names, parts, strict=True):
        available = set(part.schema.names)
        is_missing = not available.issuperset(columns_to_read)
        if is_missing or (columns is None and not available.issubset(columns_to_read)):
            raise InputError(
                f"{name} has columns {part.schema.names}, {names[0]} has {first.names}",
                path="blend",
                remedy=f"name those to read that all have with {setting('columns')}",
            )
        for column in columns_to_read:
            dtype = part.schema.field(column).type
            expected = first.field(column).type
            if dtype != expected:
                raise InputError(
                    f"it is {dtype} in {name} and {expected} in {names[0]}",
                    path="blend",
                    column=column,
                    remedy=(
                        f"prepare or open them with the same {setting('types')}, or leave it out"
                        f" with {setting('columns')}"
                    ),
                )
    fields = []
    for column in columns_to_read:
        nullable = any(part.schema.field(column).nullable for part in parts)
        fields.append(first.field(column).with_nullable(nullable))
    return pa.schema([*fields, _SOURCE_FIELD])
