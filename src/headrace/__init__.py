"""headrace: raw tables, logs and chats into leak-free training shards, and every row exactly once to every rank.

    import headrace

    split = headrace.TemporalSplit(source="raw", date_column="time", group_column="customer", split_date="2025-01-01")
    headrace.prepare(split, "out")
    for batch in headrace.open("out").stream("train", batch_size=1024, shuffle=True, seed=0):
        ...

Names are imported when first used, so that `import headrace` is quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.bins.online import OnlinePacker
    from headrace.dataset.manifest import Manifest
    from headrace.dataset.verify import Verdict, verify
    from headrace.errors import (
        CorruptShard,
        EngineError,
        HeadraceError,
        InputError,
        MissingExtra,
        RunBusy,
        SettingsError,
        StoreError,
        StreamError,
    )
    from headrace.histories.config import Histories
    from headrace.packing.config import PackedSequences
    from headrace.packing.storage.packed_parquet import ParquetShardWriter
    from headrace.rewriting.config import Rewrite, rewrite
    from headrace.run.collect import collect
    from headrace.run.prepare import Prepared, prepare
    from headrace.series.builder import SeriesBuilder
    from headrace.series.config import Series
    from headrace.series.pipelines.grouped import GroupedPipeline
    from headrace.series.pipelines.save import load_pipelines
    from headrace.series.pipelines.unified import UnifiedPipeline
    from headrace.split.config import TemporalSplit
    from headrace.stream.audit.rows import Audit, AuditReport, audit
    from headrace.stream.loader.blend import Blend, blend
    from headrace.stream.loader.dataset import Dataset
    from headrace.stream.loader.dataset import open_dataset as open  # noqa: A004 - headrace.open is the name users expect
    from headrace.stream.loader.options import StreamOptions
    from headrace.stream.loader.stateful import stream_state
    from headrace.stream.loader.stream_loader import StreamLoader
    from headrace.stream.loader.torch_dataset import StreamingDataset
    from headrace.stream.packed.batches import PackedBatches, PackRows
    from headrace.stream.ranks.topology import Topology
    from headrace.tabular.dataset import PipelineIterableDataset
    from headrace.tabular.distribution import verify_no_shard_overlap
    from headrace.tabular.processors import ColumnProcessor, FunctionProcessor, Processor

__version__ = "0.1.0"

_WHERE = {
    "Audit": "headrace.stream.audit.rows",
    "AuditReport": "headrace.stream.audit.rows",
    "Blend": "headrace.stream.loader.blend",
    "ColumnProcessor": "headrace.tabular.processors",
    "CorruptShard": "headrace.errors",
    "Dataset": "headrace.stream.loader.dataset",
    "EngineError": "headrace.errors",
    "FunctionProcessor": "headrace.tabular.processors",
    "GroupedPipeline": "headrace.series.pipelines.grouped",
    "HeadraceError": "headrace.errors",
    "Histories": "headrace.histories.config",
    "InputError": "headrace.errors",
    "Manifest": "headrace.dataset.manifest",
    "MissingExtra": "headrace.errors",
    "OnlinePacker": "headrace.bins.online",
    "PackRows": "headrace.stream.packed.batches",
    "PackedBatches": "headrace.stream.packed.batches",
    "PackedSequences": "headrace.packing.config",
    "ParquetShardWriter": "headrace.packing.storage.packed_parquet",
    "PipelineIterableDataset": "headrace.tabular.dataset",
    "Prepared": "headrace.run.prepare",
    "Processor": "headrace.tabular.processors",
    "Rewrite": "headrace.rewriting.config",
    "RunBusy": "headrace.errors",
    "Series": "headrace.series.config",
    "SeriesBuilder": "headrace.series.builder",
    "SettingsError": "headrace.errors",
    "StoreError": "headrace.errors",
    "StreamError": "headrace.errors",
    "StreamLoader": "headrace.stream.loader.stream_loader",
    "StreamOptions": "headrace.stream.loader.options",
    "StreamingDataset": "headrace.stream.loader.torch_dataset",
    "TemporalSplit": "headrace.split.config",
    "Topology": "headrace.stream.ranks.topology",
    "UnifiedPipeline": "headrace.series.pipelines.unified",
    "Verdict": "headrace.dataset.verify",
    "audit": "headrace.stream.audit.rows",
    "blend": "headrace.stream.loader.blend",
    "collect": "headrace.run.collect",
    "load_pipelines": "headrace.series.pipelines.save",
    "open": "headrace.stream.loader.dataset:open_dataset",
    "prepare": "headrace.run.prepare",
    "rewrite": "headrace.rewriting.config",
    "stream_state": "headrace.stream.loader.stateful",
    "verify": "headrace.dataset.verify",
    "verify_no_shard_overlap": "headrace.tabular.distribution",
}

__all__ = [
    "Audit",
    "AuditReport",
    "Blend",
    "ColumnProcessor",
    "CorruptShard",
    "Dataset",
    "EngineError",
    "FunctionProcessor",
    "GroupedPipeline",
    "HeadraceError",
    "Histories",
    "InputError",
    "Manifest",
    "MissingExtra",
    "OnlinePacker",
    "PackRows",
    "PackedBatches",
    "PackedSequences",
    "ParquetShardWriter",
    "PipelineIterableDataset",
    "Prepared",
    "Processor",
    "Rewrite",
    "RunBusy",
    "Series",
    "SeriesBuilder",
    "SettingsError",
    "StoreError",
    "StreamError",
    "StreamLoader",
    "StreamOptions",
    "StreamingDataset",
    "TemporalSplit",
    "Topology",
    "UnifiedPipeline",
    "Verdict",
    "audit",
    "blend",
    "collect",
    "load_pipelines",
    "open",
    "prepare",
    "rewrite",
    "stream_state",
    "verify",
    "verify_no_shard_overlap",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    module, _, attribute = _WHERE[name].partition(":")
    value = getattr(import_module(module), attribute or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
