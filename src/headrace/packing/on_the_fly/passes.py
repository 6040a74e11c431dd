"""Pack rows of tokens while they are streamed.

    loader = headrace.open("tokens").stream(batch_size=4, shuffle=True, pack=4096)  # four bins of 4,096 tokens a batch
    for batch in loader: ...                                                        # as of rows packed before

The rows of each rank are read a window of `buffer_rows` at a time, and a window becomes bins of its own, see `plan`.
Lengths are known before, so the number of batches is arithmetic: every rank has as many as the one with the most bins
needs, and what a rank lacks is filled up with bins that train nothing, false in batch["valid"]. Every row with tokens
is in one bin. A part of a window is laid end to end by one gather for each column.

A state is where the pass began and how many batches every rank has received. On as many ranks with the same batch size
the window it stands in is read and packed again, and the next batch is the one that would have come. Elsewhere the rows
that nobody has received are dealt out anew. Memory: a window of rows beside what a stream holds, and lengths, 4 bytes a
row. Lengths are counted once by reading one column, and kept beside the index.
"""

from __future__ import annotations

import io
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import I32, I64
from headrace.bins.alignment import shift_left
from headrace.bins.bins import Bins
from headrace.bins.preference import preference_field
from headrace.dataset.index import SplitIndex
from headrace.dataset.indexed import ReadBlock
from headrace.digest import canonical_json, sha256_hex
from headrace.engine.local import default_workers, run_tasks
from headrace.errors import CorruptShard, InputError, SettingsError, StoreError, StreamError
from headrace.packing.on_the_fly.plan import PackingPlan, PackingReport, PackRows
from headrace.packing.read.batches import MADE, Laid, PackedBatches, make_packed_batch
from headrace.packing.read.packed_rows import holds_whole_numbers
from headrace.storage.local import make_directory, write_new
from headrace.stream.loader.options import VALID, StreamOptions
from headrace.stream.loader.passes import Pass, Reading, RowPass, RowPasses
from headrace.stream.order.plan import Plan
from headrace.stream.order.remaining import Remainder, check_batches, resolve_remainder
from headrace.stream.order.state import PackingState, StreamState
from headrace.stream.ranks.topology import Topology
from headrace.stream.read.batch import Batch, in_format, make_batch
from headrace.stream.read.columns import Columns, cut, from_table, gather, join
from headrace.stream.read.ragged import Ragged
from headrace.stream.read.reader import read_share
from headrace.stream.read.transform import TransformContext

_LENGTHS_VERSION = 1  # of the files that keep them


class PackingPasses:
    """Passes over the rows of a split, packed into bins of each rank's own; picklable if `read_block` is.

    lengths: tokens of every row of the index, int32 [N]. rows: how rows are read, a window as a batch; remainder: what
    becomes of the last batch of bins. Raises `SettingsError` for options that packing does not have, `InputError` for
    rows that are too long where the settings say so.
    """

    def __init__(
        self, index: SplitIndex, read_block: ReadBlock, options: StreamOptions, topology: Topology, *, lengths: I32
    ) -> None:
        self.index, self.options, self.topology, self.lengths = index, options, topology, lengths
        self.pack, self.form = cast(PackRows, options.source), check_packing(options)
        self.remainder: Remainder = resolve_remainder(options.remainder, topology.world_size)
        own = [name for name in (self.pack.tokens, self.pack.mask) if name is not None]
        self.others = [name for name in options.columns or () if name not in own]
        taken = [name for name in self.others if name in (*MADE, VALID)]
        if taken:
            raise SettingsError(f"pack: columns {taken} are in the way of what packed batches hold; leave them out")
        rows = replace(
            options,
            batch_size=self.pack.buffer_rows,
            columns=(*own, *self.others),
            remainder="pad",
            packed="off",
            pack=None,
            transform=None,
            memory="pageable",
            device=None,
        )
        self.read_block: ReadBlock = _TokenBlocks(read_block, self.pack)
        self.rows = RowPasses(index, self.read_block, rows, topology)
        self.plan_from(self.rows.begin(0).start, topology.world_size, options.batch_size).check_lengths()

    @property
    def identity(self) -> str:
        """A digest of what decides which rows lie in which bin."""
        return f"{self.pack.identity}-{self.form.last_token}"

    def begin(self, epoch: int, after: Pass | None = None) -> PackingPass:
        """Begin an epoch; see `Passes`."""
        return PackingPass(self, self.rows.begin(epoch, after.rows if isinstance(after, PackingPass) else None))

    def whole(self, of: Pass) -> PackingPass:
        """Return the epoch of a pass from its beginning."""
        assert isinstance(of, PackingPass)
        return PackingPass(self, self.rows.whole(of.rows))

    def resume(self, values: Mapping[str, Any]) -> PackingPass:
        """Go on from a saved state: exactly on as many ranks with the same batch size, else with the rows left."""
        state = PackingState.from_dict(values)
        if state.identity != self.identity:
            raise StreamError(
                "packing state: it was saved with other settings of pack= or packed=; bins would hold other rows: pass"
                " the saved ones, or begin the epoch anew"
            )
        start = self.rows.checked(state.start.to_dict())
        plan = self.plan_from(start, state.world_size, state.batch_size)
        if state.batches > plan.steps:
            raise StreamError(
                f"packing state: it counts {state.batches} batches of a pass of {plan.steps}; pass it on unchanged"
            )
        if (state.world_size, state.batch_size) == (self.topology.world_size, self.options.batch_size):
            return PackingPass(self, RowPass(self.rows, start), given=state.batches)
        left = plan.left_after(np.full(state.world_size, state.batches))
        return PackingPass(self, RowPass(self.rows, start.at(left)))

    def plan_from(self, start: StreamState, world_size: int, batch_size: int) -> PackingPlan:
        """Plan the bins of a pass that begins at `start`, on so many ranks."""
        plan = Plan(
            index=self.index,
            order=self.rows.order(start),
            remaining=start.remaining,
            world_size=world_size,
            batch_size=self.pack.buffer_rows,
            remainder="pad",
        )
        return PackingPlan(
            plan=plan,
            start=start,
            lengths=self.lengths,
            first_row=self.index.first_row,
            pack=self.pack,
            counted="runtime" if self.form.last_token == "drop" else "stored",
            batch_size=batch_size,
        )


@dataclass(frozen=True, eq=False)
class PackingPass:
    """The rest of an epoch whose rows are packed. rows: where it began; given: batches received since then."""

    passes: PackingPasses
    rows: RowPass
    given: int = 0

    @property
    def epoch(self) -> int:
        return self.rows.epoch

    @property
    def is_partial(self) -> bool:
        return bool(self.given or self.rows.is_partial)

    @property
    def steps(self) -> int:
        """Batches that each rank receives: as many as the rank with the most bins needs."""
        return self.packing.steps - self.given

    @property
    def dropped_rows(self) -> int:
        """Rows that too_long="drop" leaves out, over all ranks."""
        return self.report().dropped_rows

    @cached_property
    def packing(self) -> PackingPlan:
        """The plan of which rows lie in which bin."""
        passes = self.passes
        return passes.plan_from(self.rows.start, passes.topology.world_size, passes.options.batch_size)

    def plan(self) -> Plan:
        """Return the plan of the rows: who reads which when."""
        return self.rows.plan()

    def report(self) -> PackingReport:
        """Return the pass in numbers, over all ranks, from where its rows begin."""
        return self.packing.report()

    def state_after(self, batches: int) -> dict[str, Any]:
        check_batches(batches, self.steps)
        return PackingState(
            start=self.rows.start,
            batches=self.given + batches,
            world_size=self.passes.topology.world_size,
            batch_size=self.passes.options.batch_size,
            identity=self.passes.identity,
        ).to_dict()

    def context(self, batch: int) -> TransformContext:
        """Say where this rank's batch of this number stands: its step, counted from where the rows were dealt out."""
        options, rank = self.passes.options, self.passes.topology.rank
        step = self.given + batch
        return TransformContext(seed=options.seed, epoch=self.epoch, step=step, rank=rank, positions=None)

    def rows_after(self, batches: int) -> int:
        """Count the bins that this rank's first `batches` batches hold, without filling ones."""
        bins, size = int(self.packing.bins_of_windows(self.passes.topology.rank).sum()), self.passes.options.batch_size
        return max(0, min((self.given + batches) * size, bins) - min(self.given * size, bins))

    def batches(self, reading: Reading, *, first: int = 0) -> Generator[Batch, None, None]:
        size, left = self.packing.batch_size, self.steps - first
        parts: list[tuple[Laid, Columns]] = []
        ready = 0
        with closing(self._laid(reading, self.given + first)) as laid:
            for part in laid:
                parts.append(part)
                ready += len(part[0].tokens)
                if ready == size:
                    yield self._batch(parts, ready)
                    parts, ready, left = [], 0, left - 1
        if self.passes.remainder == "exact":
            if ready:
                yield self._batch(parts, ready)
            return
        for _ in range(left):
            yield self._batch([*parts, self._filling(size - ready)], ready)
            parts, ready = [], 0

    def _laid(self, reading: Reading, given: int) -> Generator[tuple[Laid, Columns], None, None]:
        """Bins from where the pass goes on, in parts that end where batches and windows end."""
        passes, plan, rank = self.passes, self.packing, self.passes.topology.rank
        size = room = plan.batch_size
        ends = np.cumsum(plan.bins_of_windows(rank))
        first = int(np.searchsorted(ends, given * size, side="right"))
        if first == len(ends):
            return
        at = given * size - (int(ends[first - 1]) if first else 0)
        windows = read_share(
            self.rows.after(first).plan(),
            reading.read_block,
            passes.rows.options,
            topology=passes.topology,
            make=_whole_windows,
        )
        with closing(windows):
            for columns, (lengths, bins) in zip(windows, plan.windows(rank, first), strict=True):
                columns = cut(columns, 0, len(lengths))  # the rest fills the last window up
                self._check(columns, lengths)
                kept = plan.kept(lengths)
                while at < len(bins):
                    stop = min(len(bins), at + room)
                    yield self._lay(columns, bins[at:stop], kept)
                    room = room - (stop - at) or size
                    at = stop
                at = 0

    def _check(self, columns: Columns, lengths: I64) -> None:
        pack, reader = self.passes.pack, str(self.passes.topology)
        tokens: Any = columns[pack.tokens]
        if not np.array_equal(tokens.lengths, lengths):
            raise CorruptShard(
                f"{reader}: rows have other lengths than when they were counted; the shards changed, or column"
                f" {pack.lengths or pack.tokens} says something else: open the dataset again"
            )
        if pack.mask is None:
            return
        mask: Any = columns[pack.mask]
        unlike = np.flatnonzero(mask.lengths != lengths)
        if len(unlike):
            row = int(unlike[0])
            raise InputError(
                f"{reader}: a row has {lengths[row]} values in column {pack.tokens} and {mask.lengths[row]} in"
                f" {pack.mask}; a mask is as long as its tokens: write the file anew"
            )

    def _lay(self, columns: Columns, bins: Bins, kept: I64) -> tuple[Laid, Columns]:
        """Some bins of a window, end to end, and the other columns of their rows."""
        pack, rows = self.passes.pack, bins.sequences
        lengths = kept[rows]
        ends = np.cumsum(lengths)
        ids = _picked(columns[pack.tokens], rows, lengths).astype(np.int64)
        mask = np.ones(len(ids), np.uint8)
        if pack.mask is not None:
            mask = _picked(columns[pack.mask], rows, lengths).astype(np.uint8)
        if pack.mask is None or pack.mask_alignment == "unshifted":
            mask = shift_left(mask, ends)
        else:
            mask[ends - 1] = 0
        laid = Laid(input_ids=ids, loss_mask=mask, lengths=lengths, sequences=bins.counts, tokens=bins.loads(kept))
        return laid, self._beside(columns, rows)

    def _beside(self, columns: Columns, rows: I64) -> Columns:
        """The columns of some rows that are not tokens."""
        return gather([{name: columns[name] for name in self.passes.others}], rows) if self.passes.others else {}

    def _filling(self, bins: int) -> tuple[Laid, Columns]:
        """Bins of a few filling tokens, that train nothing, and the other columns of no row."""
        tokens = min(2, self.passes.pack.capacity)
        ones = np.ones(bins, np.int64)
        laid = Laid(
            input_ids=np.full(bins * tokens, self.passes.form.pad_id, np.int64),
            loss_mask=np.zeros(bins * tokens, np.uint8),
            lengths=ones * tokens,
            sequences=ones,
            tokens=ones * tokens,
        )
        schema = pa.schema([self.passes.index.schema.field(name) for name in self.passes.others])
        return laid, self._beside(from_table(schema.empty_table(), arrow=False, where="no rows"), np.zeros(0, np.int64))

    def _batch(self, parts: Sequence[tuple[Laid, Columns]], real: int) -> Batch:
        laid, form = Laid.join([part for part, _ in parts]), self.passes.options.batch_format
        batch = in_format(make_packed_batch(laid, self.passes.form), form)
        if self.passes.others:
            batch |= cast(dict[str, Any], make_batch(join([columns for _, columns in parts]), form))
        return batch | in_format({VALID: np.arange(len(laid.tokens)) < real}, form)

    def __getstate__(self) -> dict[str, Any]:
        return {"passes": self.passes, "rows": self.rows, "given": self.given}


def check_packing(options: StreamOptions) -> PackedBatches:
    """Return how bins become batches. Raises `SettingsError` for options that packing does not have."""
    if options.packed == "off":
        raise SettingsError('pack= makes packed batches; leave packed="off" out')
    if options.remainder == "drop":
        raise SettingsError('pack= puts every row into a bin; use remainder="pad", or "exact" on one rank')
    if options.distribution != "balanced" or options.on_bad_block != "raise":
        raise SettingsError(
            f'pack= knows the lengths of all rows before it begins; distribution="{options.distribution}" and'
            f' on_bad_block="{options.on_bad_block}" decide later: use "balanced" and "raise"'
        )
    if options.batch_format not in ("torch", "numpy"):
        raise SettingsError(
            f'pack= makes tensors or arrays; use batch_format="torch" or "numpy", not "{options.batch_format}"'
        )
    if options.lists != "ragged":
        raise SettingsError(
            'pack= makes rows of its own; leave lists="padded" out, see headrace.PackedBatches(pad_to=)'
        )
    return cast(PackedBatches, options.form) if options.form is not None else PackedBatches()


class _TokenBlocks:
    """Blocks of rows of tokens: lists of whole numbers, and a mask as long as each. Picklable; safe from any thread."""

    def __init__(self, read_block: ReadBlock, pack: PackRows) -> None:
        self._read_block, self._pack = read_block, pack

    def __call__(self, number: int, columns: Sequence[str] | None) -> pa.Table:
        table = self._read_block(number, columns)
        for name in (self._pack.tokens, self._pack.mask):
            if name is None or name not in table.column_names:
                continue
            kind = table.schema.field(name).type
            if not holds_whole_numbers(kind, or_truth=name == self._pack.mask):
                raise InputError(f"column {name} is {kind}; packing needs lists of whole numbers")
            if not holds_whole_numbers(kind):
                place = table.schema.get_field_index(name)
                table = table.set_column(place, name, table[name].cast(pa.list_(pa.uint8())))
            if table[name].null_count:
                raise InputError(f"column {name} holds nulls; a sequence without tokens is an empty list")
        return table


def _whole_windows(columns: Columns, batch_size: int) -> Iterator[Columns]:
    """Windows as columns, for `read_share`."""
    rows = len(next(iter(columns.values())))
    return (cut(columns, start, start + batch_size) for start in range(0, rows, batch_size))


def _picked(column: Any, rows: I64, lengths: I64) -> npt.NDArray[Any]:
    """The first `lengths` values of these rows' lists, end to end."""
    return Ragged(values=column.values, starts=column.starts[rows], lengths=lengths, missing=None).compact().values


def lengths_for(
    index: SplitIndex,
    read_block: ReadBlock,
    pack: PackRows,
    options: StreamOptions,
    *,
    contents: str | None,
    cache_dir: Path | None,
) -> I32:
    """Count the tokens of each row of a split, in the order of its blocks: int32 [N].

    contents: a word that changes whenever the rows may, to keep lengths under; None: they are not kept. Raises
    `SettingsError` for settings that cannot work, before anything is read, and what `read_block` raises.
    """
    check_packing(options)
    judged = preference_field(index.schema, but=(pack.tokens,)) if options.columns is None else None
    if judged is not None:
        raise SettingsError(
            f"pack: column {judged} judges answers, so rows that were rejected would be packed; say what to read with "
            f'columns=["{pack.tokens}"] if all rows are good, else prepare a dataset of the good ones'
        )
    column = pack.lengths or pack.tokens
    kind = index.schema.field(column).type if column in index.schema.names else None
    if kind is None or not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_integer(kind)):
        raise SettingsError(
            f"pack: column {column} is {'not there' if kind is None else kind}; packing needs lists of token ids, or"
            f" their lengths, and the dataset has {index.schema.names}"
        )
    kept = None
    if contents is not None and cache_dir is not None:
        key = sha256_hex(canonical_json([_LENGTHS_VERSION, contents, index.identity, column]))
        kept = cache_dir / f"lengths-{key}.npy"
        with suppress(OSError, ValueError):  # a file that is missing or damaged is made again
            data, digest = (whole := kept.read_bytes())[:-64], whole[-64:]
            if sha256_hex(data).encode() == digest:
                found: I32 = np.load(io.BytesIO(data), allow_pickle=False)
                if found.dtype == np.int32 and found.shape == (index.total_rows,):
                    return found
    counting = [partial(_count_tokens, index, read_block, column, block) for block in range(len(index.rows))]
    lengths = np.concatenate([np.zeros(0, np.int32), *run_tasks(counting, default_workers())])
    if kept is not None:
        written = io.BytesIO()
        np.save(written, lengths)
        with suppress(StoreError, CorruptShard, OSError):
            make_directory(kept.parent)
            kept.unlink(missing_ok=True)
            write_new(kept, written.getvalue() + sha256_hex(written.getvalue()).encode(), sync="none")
    return lengths


def _count_tokens(index: SplitIndex, read_block: ReadBlock, column: str, block: int) -> I32:
    where = f"{index.shards[index.shard_of_block[block]]} block {index.block[block]}"
    values = read_block(block, [column])[column]
    if len(values) != index.rows[block]:
        raise CorruptShard(
            f"{where}: has {len(values)} rows, the index says {index.rows[block]}; the shard changed after it was"
            " indexed: restore it or index the dataset again"
        )
    if values.null_count:
        raise InputError(
            f"{where}: column {column} holds {values.null_count} nulls; a sequence without tokens is an empty list"
        )
    counted = values if pa.types.is_integer(values.type) else pc.list_value_length(values)
    lengths: npt.NDArray[np.int64] = counted.to_numpy().astype(np.int64)
    if len(lengths) and not 0 <= int(lengths.min()) <= int(lengths.max()) < 1 << 31:
        raise InputError(f"{where}: column {column} holds {lengths.min()}..{lengths.max()}, which are no lengths")
    return lengths.astype(np.int32)
