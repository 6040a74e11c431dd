"""Offer the sharded iterable dataset that people know, over headrace's stream: every row exactly
once.

    dataset = PipelineIterableDataset(config, file_dir="/data/train", shuffle_shards=True)
    dataset.add_pipeline("text", strip >> tokenize)
    loader = DataLoader(dataset, batch_size=32, num_workers=4)
    for epoch in range(epochs):
        dataset.set_epoch(epoch)
        for batch in loader: ...

Rows come one by one as dicts, or in whole batches with `batch_size=`, which does no work per row.
Either way a `StreamingDataset` divides the rows: each row once over all ranks and workers, equal
numbers on every rank, a new order and new shares in each epoch, and `set_epoch` reaches the
workers.

Each rank has ceil(N / ranks) rows for any number of workers, and marks the rows that it repeats.
The workers of a rank take pieces of 256 rows in turn.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack, get_args

import pyarrow as pa

from headrace.checks import check_word
from headrace.errors import MissingExtra, SettingsError, StreamError, setting, setting_name
from headrace.formats.dialect import PLAIN, TextDialect, dialect_of
from headrace.stream.loader.options import BatchFormat, Memory, StreamArguments, StreamOptions
from headrace.stream.loader.passes import RowPass, RowPasses
from headrace.stream.order.plan import Plan
from headrace.stream.order.remaining import resolve_remainder
from headrace.stream.ranks.topology import Topology
from headrace.stream.ranks.watch import Watch
from headrace.tabular.distribution import distribution_info, left_after, verify_no_shard_overlap
from headrace.tabular.fields import (
    BadNumbers,
    DeclaredBlocks,
    Fields,
    NumberType,
    of_frame,
    open_files,
)
from headrace.tabular.processors import Processor, as_processor, batch_of, processed, rows_of

try:
    from torch.utils.data import get_worker_info

    from headrace.stream.loader.check_collation import (
        refuse_batches_of_batches,
        refuse_sharing_again,
    )
    from headrace.stream.loader.torch_dataset import StreamingDataset
    from headrace.stream.loader.watched_loader import WatchedLoader
    from headrace.stream.workers.parcel import share_batch, whole_batch
except ImportError as error:
    raise MissingExtra("torch", "torch") from error

_SEED = 42  # the default
_PIECE_ROWS = 1 << 8  # rows that a worker takes at a time when rows are yielded one by one
# sent to workers
_OWN = ("shard_files", "batch_size", "_blocks", "_format", "_row_remainder", "_processors")


class PipelineIterableDataset(StreamingDataset):
    """Rows of one rank as dicts, or batches of them; every row of the source once over all ranks
    and workers.

    config: declares the columns, see `Fields`; other keys are ignored. The source is `file_dir`,
    with `filename` or `shard_pattern`, or a prepared dataset and its `split`; or a `dataframe`
    (pandas, polars, Arrow). processor_pipelines: processors by column, as with `add_pipeline`.
    shuffle_shards: reshuffle the rows in each epoch, by `seed` (default 42); else read shards in
    order. batch_size: None yields rows; a number yields whole batches, for DataLoader(dataset,
    batch_size=None). num_workers: for `data_loader()`; a DataLoader of your own may have any number
    of workers.
    number_type, bad_numbers, dialect: the type of declared numbers, what to do with a text that is
    not a number ("error" or "missing"), and how text is written, as in `TextDialect`. Others: see
    `StreamOptions`; batch_format needs batch_size.

    Every row and every batch has "valid", which is false for a row that only pads a rank to the
    length of the others. remainder="drop" leaves out less than one row per rank instead. Everything
    else is as in `StreamingDataset`. Raises `SettingsError` and `InputError` for data that cannot
    be read as declared.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - all are settings; in the order of the call
        self,
        config: Mapping[str, Any],
        file_dir: str | Path | None = None,
        filename: str | None = None,
        dataframe: Any = None,
        processor_pipelines: Mapping[str, Processor | Callable[[Any], Any]] | None = None,
        shard_pattern: str | Sequence[str] | None = None,
        shuffle_shards: bool = False,
        *,
        split: str | None = None,
        batch_size: int | None = None,
        num_workers: int | None = None,
        number_type: NumberType = "float64",
        bad_numbers: BadNumbers = "error",
        dialect: TextDialect | Mapping[str, Any] | str = PLAIN,
        topology: Topology | None = None,
        **options: Unpack[StreamArguments],
    ) -> None:
        _refuse_options_of_streams(options)
        how_written = dialect_of(dialect)
        if (file_dir is None) == (dataframe is None):
            raise SettingsError(
                f"either {setting_name('file_dir')} or {setting_name('dataframe')} is needed",
                remedy="give one of them",
            )
        if file_dir is not None:
            source = open_files(
                file_dir,
                filename=filename,
                shard_pattern=shard_pattern,
                split=split,
                cache_dir=options.get("cache_dir"),
                dialect=how_written,
            )
        else:
            source = of_frame(dataframe)
        self.shard_files = list(source.files)
        self.batch_size = batch_size
        self._blocks = DeclaredBlocks(
            read_block=source.read_block,
            source_schema=source.index.schema,
            fields=Fields.of_config(config),
            number_type=number_type,
            bad_numbers=bad_numbers,
            dialect=how_written,
        )
        self._format = options.get("batch_format", "torch")
        check_word("batch_format", self._format, get_args(BatchFormat))
        self._row_remainder = options.get("remainder")
        if batch_size is None:
            # rows are cut here, so that every rank has as many: see `plan`
            options["remainder"] = None
        options["columns"] = self._columns(options.get("columns"))
        options["batch_format"] = "arrow"
        options.setdefault("shuffle", shuffle_shards)
        options.setdefault("seed", _SEED)
        super().__init__(
            replace(source.index, schema=self._blocks.schema),
            self._blocks,
            StreamOptions(batch_size=_PIECE_ROWS if batch_size is None else batch_size, **options),
            num_workers=num_workers or 0,
            topology=topology,
        )
        # of batches the stream refuses it
        if self._row_remainder == "exact" and self.topology.world_size > 1:
            raise SettingsError(
                f"{setting('remainder', 'exact')} gives the {self.topology.world_size} ranks"
                " unequal numbers of rows",
                setting="remainder",
                value="exact",
                remedy='use "pad" (nothing lost, see row["valid"]) or "drop"',
            )
        self._processors: dict[str, Processor] = {}
        for name, processor in (processor_pipelines or {}).items():
            self.add_pipeline(name, processor)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), **{name: self.__dict__[name] for name in _OWN}}

    # what is done to columns

    @property
    def processor_pipelines(self) -> Mapping[str, Processor]:
        """The processors by column."""
        return dict(self._processors)

    def add_pipeline(
        self, field_name: str, processor_pipeline: Processor | Callable[[Any], Any]
    ) -> None:
        """Run a processor, or a function of one value, over a column.

        It replaces the column's earlier one.

        Raises `SettingsError` if there is no such column, or the argument is neither a processor
        nor a function.
        """
        self._known(field_name, "add_pipeline")
        self._processors[field_name] = as_processor(processor_pipeline)

    def fill_missing_value(
        self,
        *,
        label_name: str | None = None,
        column_cat_name: Sequence[str] | None = None,
        number: float = -1.0,
        text: str = "",
        columns: Mapping[str, Any] | None = None,
    ) -> None:
        """Fill missing values of the columns declared as numbers, texts and categories; of others
        only if named.

        number, text: the values to fill with. columns: other values for some columns, of their
        type. label_name, column_cat_name: declare these first. A missing label is filled only if
        `columns` names it.
        """
        if label_name is not None:
            self.set_label_field_name(label_name)
        if column_cat_name is not None:
            self.set_cat_field_list(column_cat_name)
        fields = self._blocks.fields
        self._blocks.fill(
            dict.fromkeys(fields.tab_field_list, number)
            | dict.fromkeys((*fields.texts, *fields.cat_field_list), text)
            | dict(columns or {})
        )
        self._reread(self._requested)

    def set_text_field_name(self, text_name: str | Sequence[str]) -> None:
        """Declare the text column, or the primary and the secondary one.

        Raises `SettingsError` for other numbers.
        """
        names = [text_name] if isinstance(text_name, str) else list(text_name)
        if not 1 <= len(names) <= 2:
            raise SettingsError(
                f"got {len(names)} names, {names}", setting="text_name", remedy="give one or two"
            )
        if len(names) == 1:
            self._declare(text_name=names[0], primary_text_name=None, secondary_text_name=None)
        else:
            self._declare(text_name=None, primary_text_name=names[0], secondary_text_name=names[1])

    def set_label_field_name(self, label_name: str) -> None:
        """Declare the label column. Raises `SettingsError` if the data has none of this name."""
        self._known(label_name, "set_label_field_name")
        self._declare(label_name=label_name)

    def set_cat_field_list(self, cat_field_list: Sequence[str]) -> None:
        """Declare the categorical columns."""
        self._declare(cat_field_list=cat_field_list)

    def set_full_field_list(self, full_field_list: Sequence[str]) -> None:
        """Deliver these columns, in this order.

        Raises `SettingsError` for one that the data does not have.
        """
        self._declare(full_field_list=full_field_list)

    def _known(self, name: str, where: str) -> None:
        if name not in self.index.schema.names:
            raise SettingsError(
                f"{where}: not in the data",
                column=name,
                remedy=f"choose one of {', '.join(self.index.schema.names)}",
            )

    def _declare(self, **values: Any) -> None:
        self._blocks.declare(replace(self._blocks.fields, **values))
        self._reread(self._columns(None) if "full_field_list" in values else self._requested)

    def _reread(self, columns: tuple[str, ...]) -> None:
        """Read these columns from the next pass on, as they are declared now."""
        assert isinstance(self.passes, RowPasses)
        self.passes.declare(self._blocks.schema, columns)

    def _columns(self, columns: Sequence[str] | None) -> tuple[str, ...]:
        if columns is None:
            return self._blocks.fields.columns(self._blocks.schema.names)
        return tuple(columns)

    @property
    def _requested(self) -> tuple[str, ...]:
        return tuple(self.options.columns or ())

    # the stream

    @property
    def shuffle_shards(self) -> bool:
        """True if the rows are reshuffled in each epoch."""
        return self.options.shuffle

    @property
    def _current_epoch(self) -> int:
        """The epoch, under the name that training code written for this interface reads and
        sets.
        """
        return self.epoch

    @_current_epoch.setter
    def _current_epoch(self, epoch: int) -> None:
        self.set_epoch(epoch)

    def plan(self) -> Plan:
        """Return the plan of the current pass: in batches, or in rows without `batch_size`."""
        plan = super().plan()
        if self.batch_size is not None:
            return plan
        remainder = resolve_remainder(self._row_remainder, self.topology.world_size)
        return replace(plan, batch_size=1, remainder=remainder)

    def __len__(self) -> int:
        """Return the rows of a pass on this rank over all workers, or batches with `batch_size`;
        equal on all ranks.

        A DataLoader over rows divides this by its batch size. With workers it may yield up to
        num_workers - 1 batches more than its len, because each worker ends with a partial batch.
        With `batch_size` set here, len is exact.
        """
        if self.batch_size is not None:
            return super().__len__()
        self._check_reader()
        return self._steps()

    def _steps(self) -> int:
        if self.batch_size is not None:
            return super()._steps()
        return self.plan().steps_per_rank

    def __iter__(self) -> Iterator[Any]:
        """Iterate over one pass of this worker, or of the rank without workers.

        Raises `StreamError` as `StreamingDataset` does, and if a processor fails. Raises
        `SettingsError` in a DataLoader that would batch batches, and in a wrapper that would divide
        this rank's rows again.
        """
        caller = sys._getframe(1)  # torch passes a dataset no other hint of who reads it
        refuse_sharing_again(self, world_size=self.topology.world_size, caller=caller)
        info = get_worker_info()
        if self.batch_size is not None:
            refuse_batches_of_batches(
                caller, self.batch_size, "PipelineIterableDataset(batch_size=…)"
            )
            return self._iterate_batches(in_worker=info is not None)
        if info is not None:
            return self._rows_of_blocks(self.batches(), worker=info.id, workers=info.num_workers)
        return self._iterate_rows()

    def _iterate_rows(self) -> Iterator[dict[str, Any]]:
        self.begin_next()
        yield from self.counted(self._rows_of_blocks(self.read()), steps=self._steps())

    def _iterate_batches(self, *, in_worker: bool) -> Iterator[Any]:
        with closing(self.batches()) as batches:
            for table in batches:
                batch = batch_of(self._processed(table), self._format)
                yield share_batch(batch) if in_worker else batch

    def _rows_of_blocks(
        self, batches: Generator[Any, None, None], *, worker: int = 0, workers: int = 1
    ) -> Generator[dict[str, Any], None, None]:
        """Yield the rows of every `workers`-th piece of this rank, up to the number of rows that
        every rank has.
        """
        rows = None
        begin = worker * self.options.batch_size
        with closing(batches):
            for table in batches:
                if rows is None:  # a worker learns its pass with the first piece
                    rows = self._steps()
                yield from rows_of(self._processed(table.slice(0, max(0, rows - begin))))
                begin += workers * self.options.batch_size

    def _processed(self, table: pa.Table) -> dict[str, Any]:
        try:
            return processed(table, self._processors, self._requested)
        except StreamError as error:
            if get_worker_info() is None:  # a worker's error reaches the loader, which tells it
                Watch(self, contract=None).report(error)
            raise

    def data_loader(
        self,
        *,
        method: str = "spawn",
        memory: Memory = "pageable",
        persistent_workers: bool = False,
    ) -> WatchedLoader:
        """Make a DataLoader over these batches with as many workers as were declared.

        method: how workers start.

        What a worker raises on one rank is known on all. Raises `SettingsError` where rows are
        given one by one.
        """
        if self.batch_size is None:
            raise SettingsError(
                "data_loader() takes batches, and this dataset gives rows",
                setting="batch_size",
                remedy=f"build it with {setting('batch_size')}, or wrap it yourself",
            )
        return WatchedLoader(
            self,
            batch_size=None,
            num_workers=self.num_workers,
            multiprocessing_context=method if self.num_workers else None,
            pin_memory=memory == "pinned",
            collate_fn=whole_batch,
            persistent_workers=persistent_workers and bool(self.num_workers),
        )

    def state_dict(self) -> dict[str, Any]:
        """Return where the stream is: see `StreamingDataset.state_dict`.

        Of rows, use `state_after`.
        """
        if self.batch_size is not None:
            return super().state_dict()
        raise StreamError(
            "a DataLoader batches these rows, and only the loop knows how many batches it received",
            remedy=(
                "call state_after(batches, batch_size=…, num_workers=…), or build the dataset with"
                f" {setting('batch_size')}"
            ),
        )

    def state_after(
        self, batches: int, *, batch_size: int | None = None, num_workers: int = 0
    ) -> dict[str, Any]:
        """Return the state after this many batches of the present pass on every rank, for
        `load_state_dict`.

        batch_size, num_workers: of the DataLoader that batches the rows; batches of a dataset's own
        need neither. Raises `SettingsError` where rows are given and batch_size is not,
        `StreamError` if a pass has fewer batches.
        """
        if self.batch_size is not None:
            return super().state_after(batches)
        if batch_size is None:
            raise SettingsError(
                f"{setting_name('batch_size')} of state_after() is missing",
                remedy="give batch_size and num_workers of the DataLoader over these rows",
            )
        current = self.current
        piece_rows = self.options.batch_size
        assert isinstance(current, RowPass)
        left = left_after(
            self.plan(), batches, batch_size=batch_size, workers=num_workers, piece_rows=piece_rows
        )
        return current.start.at(left, batches=0).to_dict()

    # diagnostics

    def get_shard_distribution_info(self) -> dict[str, Any]:
        """Return which shards this rank or worker takes rows from in the present pass; see
        `distribution_info`.
        """
        info = get_worker_info()
        return distribution_info(
            self.index,
            self.plan(),
            rank=self.topology.rank,
            worker=None if info is None else info.id,
            workers=1 if info is None else info.num_workers,
            step_rows=self.options.batch_size,
            total_shards=len(self.shard_files) or len(self.index.shards),
        )

    def verify_no_shard_overlap(self, dataloader: Any, num_ranks: int, num_workers: int) -> bool:
        """Check the present pass; see `headrace.tabular.verify_no_shard_overlap`."""
        return verify_no_shard_overlap(dataloader, num_ranks, num_workers)


def _refuse_options_of_streams(options: StreamArguments) -> None:
    if options.get("cache", "none") != "none":
        raise SettingsError(
            "decoded blocks are kept for headrace.open(...).stream and .torch_dataset only",
            setting="cache",
            value=options["cache"],
            remedy="leave it out here",
        )
    for name in ("transform", "memory", "device", "mask_entities", "drop_columns"):
        if name in options:
            raise SettingsError(
                "only headrace.open(...).stream and .torch_dataset take it",
                setting=name,
                remedy=(
                    "leave it out: here full_field_list chooses columns, add_pipeline changes them,"
                    " and DataLoader(pin_memory=True) pins"
                ),
            )
