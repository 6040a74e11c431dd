"""Flags of the commands that open a dataset: plain shards, an epoch and its plan."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from headrace.cli.settings_flags import types_of, unless_given

if TYPE_CHECKING:
    from headrace.dataset.index import SplitIndex
    from headrace.stream.loader.dataset import Dataset
    from headrace.stream.order.plan import Plan

Source = Annotated[
    str,
    typer.Argument(
        metavar="PATH", help="A prepared dataset, or plain shards: directory, file, glob."
    ),
]
Split = Annotated[str | None, typer.Option(help="The split; needed only if there are several.")]
Ranks = Annotated[int, typer.Option(min=1, max=1 << 20, help="World size.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Rows per batch of one rank.")]


@dataclass(frozen=True, kw_only=True)
class PlainShards:
    """Options for opening a dataset: how to read plain shards, and which fold of a prepared
    dataset.
    """

    fold: Annotated[
        int | None,
        unless_given(min=0, help="Fold of a dataset that was prepared in folds, counted from 0."),
    ] = None
    types: Annotated[
        list[str] | None,
        unless_given(
            metavar="NAME=TYPE",
            help=(
                "Type of a column of plain CSV or TSV shards, e.g. price=float32; repeat it, or "
                "use commas. text: all stay text. Default: those that every value fits."
            ),
        ),
    ] = None
    dialect: Annotated[
        str | None,
        unless_given(
            metavar="NAME=VALUE,...",
            help=(
                "How plain CSV or TSV shards are written, e.g. encoding=latin-1,decimal=,: quoting,"
                " escape, encoding, decimal, thousands, null_values, time_format."
            ),
        ),
    ] = None
    schema_drift: Annotated[
        Literal["error", "widen"],
        typer.Option(
            help="Plain shards with different schemas; widen: where nothing is lost.",
        ),
    ] = "error"
    cache_dir: Annotated[
        Path | None,
        unless_given(
            help="Directory for the index of plain shards; ~/.cache/headrace unless given."
        ),
    ] = None

    def options(self) -> dict[str, Any]:
        """Return keyword arguments of `open` and `Rewrite`. Raises `SettingsError`."""
        from headrace.formats.dialect import PLAIN, dialect_of  # with pydantic

        return {
            "types": types_of(self.types),
            "dialect": PLAIN if self.dialect is None else dialect_of(self.dialect),
            "schema_drift": self.schema_drift,
            "cache_dir": self.cache_dir,
        }

    def open(self, path: str) -> Dataset:
        """Open a dataset; if many plain shards must be indexed, show progress on a terminal."""
        from headrace.cli.progress import shard_progress
        from headrace.stream.loader.dataset import open_dataset

        options = self.options()
        with shard_progress("index the shards") as on_progress:
            dataset = open_dataset(path, **options, on_progress=on_progress)
        if self.fold is None:
            return dataset
        return dataset.fold(self.fold)


@dataclass(frozen=True, kw_only=True)
class OneEpoch:
    """The flags that `plan` and `where` share: an epoch of a split."""

    split: Split = None
    remainder: Annotated[
        Literal["pad", "drop", "exact"] | None,
        typer.Option(help="What the last step contains; default: exact for one rank, else pad."),
    ] = None
    shuffle: Annotated[
        bool, typer.Option("--shuffle/--no-shuffle", help="Shuffle rows, or read files in order.")
    ] = True
    seed: Annotated[int, typer.Option(help="Seed of the shuffled order.")] = 0
    epoch: Annotated[int, typer.Option(min=0, help="The epoch, counted from 0.")] = 0
    lanes: Annotated[
        int | None,
        typer.Option(min=1, help="Lanes; default: what a stream of this topology chooses."),
    ] = None
    shuffle_rows: Annotated[
        int | None,
        typer.Option(
            min=1, help="Rows that a reader shuffles together; default: what a stream chooses."
        ),
    ] = None
    samples_per_epoch: Annotated[
        int | None,
        typer.Option("--samples-per-epoch", min=1, help="Rows per epoch; default: all."),
    ] = None
    distribution: Annotated[
        Literal["balanced", "round_robin", "by_size"],
        typer.Option(help="balanced, or whole shards: round_robin, by_size."),
    ] = "balanced"
    balance: Annotated[
        Literal["none", "flops"],
        typer.Option(
            help=(
                "flops: give all ranks packed bins of similar cost in each step. Counts the "
                "tokens of all bins."
            )
        ),
    ] = "none"

    def index_of(self, dataset: Dataset, state: Any = None) -> SplitIndex:
        """Return the index of the split; if steps are balanced, by flag or state, it has token
        counts.
        """
        from headrace.stream.order.state import StreamState

        if state is None:
            saved = None
        else:
            saved = StreamState.from_dict(state).balance
        if self.balance == "none" and saved is None:
            return dataset.split_index(self.split)
        return dataset.counted_index(self.split)

    def plan(self, index: Any, *, ranks: int, batch_size: int, state: Any = None) -> Plan:
        """Plan the epoch over the split's index, or what a saved state leaves of it, in its order.

        ranks: the world size. batch_size: rows per batch of one rank. Raises `SettingsError`,
        `InputError` for blocks without a table, and `StreamError` for a state of other rows.
        """
        from headrace.formats.source import file_type_of_word
        from headrace.stream.loader.options import StreamOptions
        from headrace.stream.loader.passes import RowPasses
        from headrace.stream.order.balance import CostModel
        from headrace.stream.order.state import StreamState
        from headrace.stream.ranks.topology import Topology

        for word in dict.fromkeys(index.formats):
            file_type_of_word(word)  # raises for formats that cannot be streamed
        settings = {**asdict(self), "batch_size": batch_size}
        epoch = settings.pop("epoch")
        del settings["split"]
        if state is not None:
            saved = StreamState.from_dict(state)
            for name in ("seed", "shuffle", "samples_per_epoch"):
                settings[name] = getattr(saved, name)
            if saved.balance is not None:
                settings["balance"] = CostModel(linear=saved.balance[1], quadratic=1)
        options = StreamOptions(**settings, batch_format="numpy")  # validates the settings
        topology = Topology(rank=0, world_size=ranks)
        passes = RowPasses(index, _refuse_to_read, options, topology)
        if state is None:
            return passes.begin(epoch).plan()
        return passes.resume(state).plan()


def _refuse_to_read(block: int, columns: Any) -> Any:
    raise AssertionError(f"a plan reads no block: {block}, {columns}")
