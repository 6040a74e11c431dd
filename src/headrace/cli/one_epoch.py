"""Which epoch is asked about: the flags that `plan` and `where` share, and those of them that `stream` has too."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from headrace.stream.order.plan import Plan

Source = Annotated[
    str, typer.Argument(metavar="PATH", help="A prepared dataset, or plain shards: directory, file, glob.")
]
Split = Annotated[str | None, typer.Option(help="Which split; may be left out where there is only one.")]
Ranks = Annotated[int, typer.Option(min=1, max=1 << 20, help="World size.")]
Workers = Annotated[
    int, typer.Option(min=0, max=1 << 10, help="DataLoader workers of each rank; 0: threads in its own process.")
]
BatchSize = Annotated[int, typer.Option(min=1, help="Rows in a batch of one rank.")]
Remainder = Annotated[str | None, typer.Option(help="pad, drop or exact; default: exact for one rank, else pad.")]
Shuffle = Annotated[bool, typer.Option("--shuffle/--no-shuffle", help="A keyed order of rows, or files in order.")]
Seed = Annotated[int, typer.Option(help="Seed of the order.")]
Epoch = Annotated[int, typer.Option(min=0, help="Which epoch.")]
Lanes = Annotated[int | None, typer.Option(min=1, help="Lanes; default: as a stream of this topology chooses.")]
Samples = Annotated[int | None, typer.Option("--samples-per-epoch", min=1, help="Rows of an epoch; default: all.")]
Distribution = Annotated[str, typer.Option(help="balanced, or whole shards: round_robin, by_size.")]
ShuffleRows = Annotated[int | None, typer.Option(min=1, help="Rows a reader shuffles among; default: as a stream.")]


@dataclass(frozen=True, kw_only=True)
class OneEpoch:
    """One epoch of one split, as so many ranks would read it."""

    ranks: Ranks
    batch_size: BatchSize
    split: Split = None
    remainder: Remainder = None
    shuffle: Shuffle = True
    seed: Seed = 0
    epoch: Epoch = 0
    lanes: Lanes = None
    shuffle_rows: ShuffleRows = None
    samples_per_epoch: Samples = None
    distribution: Distribution = "balanced"

    def plan(self, index: Any, state: Any = None) -> Plan:
        """Its plan over the split's index; state: of what this saved state leaves, in the state's own order.

        Raises `SettingsError`, `InputError` for blocks that are no table, and `StreamError` for a state of other rows.
        """
        from headrace.formats.blocks import kind_of_word
        from headrace.stream.loader.options import StreamOptions
        from headrace.stream.loader.passes import RowPasses
        from headrace.stream.ranks.topology import Topology

        for word in dict.fromkeys(index.formats):
            kind_of_word(word)  # nothing could be said of what cannot be streamed
        settings = asdict(self)
        ranks, epoch = (settings.pop(name) for name in ("ranks", "epoch"))
        del settings["split"]
        if state is not None:
            from headrace.stream.order.state import StreamState

            saved = StreamState.from_dict(state)
            settings |= {name: getattr(saved, name) for name in ("seed", "shuffle", "samples_per_epoch")}
        options = StreamOptions(**settings, batch_format="numpy")  # checks what words and numbers may be
        passes = RowPasses(index, _reads_nothing, options, Topology(rank=0, world_size=ranks))
        return (passes.begin(epoch) if state is None else passes.resume(state)).plan()


def _reads_nothing(block: int, columns: Any) -> Any:
    raise AssertionError(f"a plan reads no block: {block}, {columns}")
