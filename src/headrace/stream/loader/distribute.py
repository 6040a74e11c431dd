"""Whole shards for the ranks of a job, as the options say. Pure."""

from __future__ import annotations

import numpy as np

from headrace.dataset.index import SplitIndex
from headrace.errors import SettingsError
from headrace.stream.loader.options import StreamOptions
from headrace.stream.order.lanes import estimate_block_bytes
from headrace.stream.order.layout import BlendIndex
from headrace.stream.order.regions import Regions, deal_shards, local_ranks, pack_shards


def regions_of(index: SplitIndex, options: StreamOptions, *, ranks: int, epoch: int) -> Regions | None:
    """The regions of an epoch; None for "balanced", where every rank strides over all rows.

    Raises `SettingsError` for blends and parts of epochs, which no whole shards make up.
    """
    if options.distribution == "balanced":
        return None
    if isinstance(index, BlendIndex) or options.samples_per_epoch is not None:
        raise SettingsError(
            f'distribution="{options.distribution}" gives out whole shards of one dataset and whole epochs; use'
            ' "balanced" with blends and with samples_per_epoch'
        )
    if options.distribution == "round_robin":
        rank = deal_shards(index, ranks=ranks, seed=options.seed, epoch=epoch, shuffle=options.shuffle)
    else:
        shards = len(index.shards)
        block_bytes = estimate_block_bytes(index)
        shard_bytes = np.bincount(index.shard_of_block, weights=block_bytes, minlength=shards).astype(np.int64)
        allowed = None
        if options.distribution == "local":
            allowed = local_ranks(
                index, options.locality or {}, ranks=ranks, ranks_per_node=options.ranks_per_node or ranks
            )
        rank = pack_shards(shard_bytes, ranks=ranks, allowed=allowed)
    rows = np.bincount(rank[index.shard_of_block], weights=index.rows, minlength=ranks).astype(np.int64)
    return Regions(
        distribution=options.distribution,
        rows=tuple(rows.tolist()),
        assignment=None if options.distribution == "round_robin" else tuple(rank.tolist()),
    )
