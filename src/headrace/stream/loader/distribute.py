"""Whole shards for the consumers of a topology, as the options say. Pure."""

from __future__ import annotations

import numpy as np

from headrace.dataset.index import SplitIndex
from headrace.errors import SettingsError
from headrace.stream.loader.options import StreamOptions
from headrace.stream.order.lanes import estimate_block_bytes
from headrace.stream.order.layout import BlendIndex
from headrace.stream.order.regions import Regions
from headrace.stream.order.shards import deal_shards, local_consumers, pack_shards


def regions_of(
    index: SplitIndex, options: StreamOptions, *, world_size: int, workers: int, epoch: int
) -> Regions | None:
    """The regions of an epoch; None for "balanced", where every consumer strides over all rows.

    Raises `SettingsError` for blends and parts of epochs, which no whole shards make up.
    """
    if options.distribution == "balanced":
        return None
    if isinstance(index, BlendIndex) or options.samples_per_epoch is not None:
        raise SettingsError(
            f'distribution="{options.distribution}" gives out whole shards of one dataset and whole epochs; use'
            ' "balanced" with blends and with samples_per_epoch'
        )
    workers = max(1, workers)
    consumers = world_size * workers
    if options.distribution == "round_robin":
        consumer = deal_shards(
            index,
            world_size=world_size,
            workers=workers,
            seed=options.seed,
            epoch=epoch,
            shuffle=options.shuffle,
        )
    else:
        shards = len(index.shards)
        block_bytes = estimate_block_bytes(index)
        shard_bytes = np.bincount(index.shard_of_block, weights=block_bytes, minlength=shards).astype(np.int64)
        allowed = None
        if options.distribution == "local":
            allowed = local_consumers(
                index,
                options.locality or {},
                world_size=world_size,
                workers=workers,
                ranks_per_node=options.ranks_per_node or world_size,
            )
        consumer = pack_shards(shard_bytes, consumers=consumers, allowed=allowed)
    rows = np.bincount(consumer[index.shard_of_block], weights=index.rows, minlength=consumers).astype(np.int64)
    return Regions(
        distribution=options.distribution,
        world_size=world_size,
        workers=workers,
        rows=tuple(rows.tolist()),
        assignment=None if options.distribution == "round_robin" else tuple(consumer.tolist()),
    )
