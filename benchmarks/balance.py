"""What the slowest rank of a step costs over the mean rank, with balanced steps and without. Nothing is timed.

    python benchmarks/balance.py [--pack-sizes 4096 32768 131072] [--ranks 8 64] [--group 32] [--tokens 1073741824]

Bins are packed by best fit from lengths that are drawn as those of chats are: lognormal, median 700, sigma 1.6, none
longer than a bin. What a bin costs is computed: 6 operations for each parameter and token, and 6 · layers · width for
each squared token of a sequence, of a transformer of 8 billion parameters. Slowest over mean is added up over all steps
of an epoch, one bin a rank: what ranks that wait for each other take, over what they would take if all were equal.
Blocks decoded, of each block once, are the plan's.

    as they come          balance="none"
    balanced, shuffled    balance="flops", bins in the order in which they are written by default
    balanced, spread      balance="flops", bins written with bin_order="spread"
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from figures import Cell, Table
from reporting import parser, publish

from headrace.bins.bins import Bins
from headrace.bins.pack import pack
from headrace.dataset.index import SplitIndex
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.passes import RowPasses
from headrace.stream.order.balance import CostModel, CountedIndex
from headrace.stream.order.plan import Plan
from headrace.stream.ranks.topology import Topology

SCHEMA = pa.schema(
    [(name, pa.list_(pa.int32())) for name in ("input_ids", "loss_mask", "seq_start_id")]
)


def drawn_lengths(tokens: int, longest: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Lengths of chats, of about so many tokens together."""
    random = np.random.default_rng(1)
    lengths = np.clip(random.lognormal(np.log(700), 1.6, tokens // 500), 16, longest).astype(
        np.int64
    )
    return lengths[: np.searchsorted(np.cumsum(lengths), tokens)]


def index_of(
    bins: Bins, lengths: np.ndarray[Any, np.dtype[np.int64]], *, group: int, pack_size: int
) -> CountedIndex:
    """The index of bins in one file, so many to a row group: 5 bytes a token when decoded."""
    blocks = -(-len(bins) // group)
    rows = np.full(blocks, group)
    rows[-1] = len(bins) - group * (blocks - 1)
    number = np.arange(blocks, dtype=np.int64)
    index = SplitIndex(
        split="train",
        schema=SCHEMA,
        shards=("bins.parquet",),
        formats=("parquet",),
        shard_of_block=np.zeros(blocks, np.int64),
        block=number,
        rows=rows,
        offset=number,
        length=rows * pack_size * 5 // 3,  # compressed; taken to be three times as long in memory
    )
    return CountedIndex.of(index, bins.loads(lengths), bins.loads(lengths**2))


def planned(index: CountedIndex, ranks: int, balance: Any) -> Plan:
    """The plan of an epoch, one bin a rank and step, with what the bins cost."""

    def reads_nothing(block: int, columns: Any) -> Any:
        raise AssertionError(f"a plan read block {block}: {columns}")

    options = StreamOptions(batch_size=1, shuffle=True, batch_format="numpy", balance=balance)
    plan = (
        RowPasses(index, reads_nothing, options, Topology(rank=0, world_size=ranks)).begin(0).plan()
    )
    return replace(plan, costs=index.costs(CostModel().even_tokens))


def tables(asked: argparse.Namespace) -> Iterator[Table]:
    """One row for each pack size and number of ranks."""
    rows: list[tuple[Cell, ...]] = []
    for pack_size in asked.pack_sizes:
        lengths = drawn_lengths(asked.tokens, pack_size)
        bins = pack(lengths, pack_size, algorithm="best_fit_shuffle", seed=1)
        shuffled, spread = (
            index_of(each, lengths, group=asked.group, pack_size=pack_size)
            for each in (bins.shuffled(1), bins.spread(bins.loads(lengths**2), 1))
        )
        for ranks in asked.ranks:
            plans = [
                planned(shuffled, ranks, "none"),
                planned(shuffled, ranks, "flops"),
                planned(spread, ranks, "flops"),
            ]
            slowest = (f"{plan.imbalance:.3f}" for plan in plans)
            decoded = (f"{plan.read_amplification:.2f}" for plan in (plans[0], plans[2]))
            rows.append((f"{pack_size:,}", f"{len(bins):,}", str(ranks), *slowest, *decoded))
    heads = (
        "tokens of a bin",
        "bins",
        "ranks",
        "as they come",
        "balanced, shuffled",
        "balanced, spread",
        "blocks decoded, as they come",
        "balanced",
    )
    title = f"Cost of the slowest rank of a step over the mean, row groups of {asked.group} bins"
    yield Table("slowest", title, heads, rows)


def main() -> None:
    """Compute and print."""
    asking = parser(__doc__)
    asking.add_argument("--pack-sizes", type=int, nargs="+", default=[4096, 32_768, 131_072])
    asking.add_argument("--ranks", type=int, nargs="+", default=[8, 64])
    asking.add_argument("--group", type=int, default=32, help="bins of a row group")
    asking.add_argument("--tokens", type=int, default=1 << 30, help="in all bins of a pack size")
    asked = asking.parse_args()
    publish(tables(asked), asked.json)


if __name__ == "__main__":
    main()
