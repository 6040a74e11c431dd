"""headrace: raw tables, logs and chats into leak-free training shards, and every row exactly once to every rank.

    import headrace

    split = headrace.TemporalSplit(source="raw", time="time", entity="customer", split_date="2025-01-01")
    headrace.prepare(split, "out")
    for batch in headrace.open("out").stream("train", batch_size=1024, shuffle=True, seed=0):
        ...

Names are imported when first used, so that `import headrace` is quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.bins.online import OnlinePacker as OnlinePacker
    from headrace.dataset.manifest import Manifest as Manifest
    from headrace.dataset.verify import Verdict as Verdict
    from headrace.dataset.verify import verify as verify
    from headrace.errors import CorruptShard as CorruptShard
    from headrace.errors import EngineError as EngineError
    from headrace.errors import HeadraceError as HeadraceError
    from headrace.errors import InputError as InputError
    from headrace.errors import MissingExtra as MissingExtra
    from headrace.errors import RunBusy as RunBusy
    from headrace.errors import SettingsError as SettingsError
    from headrace.errors import StoreError as StoreError
    from headrace.errors import StreamError as StreamError
    from headrace.histories.config import Histories as Histories
    from headrace.packing.config import PackedSequences as PackedSequences
    from headrace.packing.on_the_fly.plan import PackRows as PackRows
    from headrace.packing.read.batches import PackedBatches as PackedBatches
    from headrace.packing.storage.packed_parquet import ParquetShardWriter as ParquetShardWriter
    from headrace.rewriting.settings import Rewrite as Rewrite
    from headrace.rewriting.settings import rewrite as rewrite
    from headrace.run.collect import collect as collect
    from headrace.run.prepare import Prepared as Prepared
    from headrace.run.prepare import prepare as prepare
    from headrace.series.builder import SeriesBuilder as SeriesBuilder
    from headrace.series.config import Series as Series
    from headrace.series.pipelines.grouped import GroupedPipeline as GroupedPipeline
    from headrace.series.pipelines.save import load_pipelines as load_pipelines
    from headrace.series.pipelines.unified import UnifiedPipeline as UnifiedPipeline
    from headrace.split.settings import TemporalSplit as TemporalSplit
    from headrace.stream.audit.rows import Audit as Audit
    from headrace.stream.audit.rows import AuditReport as AuditReport
    from headrace.stream.audit.rows import audit as audit
    from headrace.stream.loader.blend import Blend as Blend
    from headrace.stream.loader.blend import blend as blend
    from headrace.stream.loader.dataset import Dataset as Dataset
    from headrace.stream.loader.dataset import open_dataset
    from headrace.stream.loader.options import StreamOptions as StreamOptions
    from headrace.stream.loader.stateful import stream_state as stream_state
    from headrace.stream.loader.stream_loader import StreamLoader as StreamLoader
    from headrace.stream.loader.torch_dataset import StreamingDataset as StreamingDataset
    from headrace.stream.ranks.topology import Topology as Topology
    from headrace.tabular.dataset import PipelineIterableDataset as PipelineIterableDataset
    from headrace.tabular.distribution import verify_no_shard_overlap as verify_no_shard_overlap
    from headrace.tabular.processors import ColumnProcessor as ColumnProcessor
    from headrace.tabular.processors import FunctionProcessor as FunctionProcessor
    from headrace.tabular.processors import Processor as Processor

    open = open_dataset  # noqa: A001 - headrace.open is the name users expect

__version__ = "0.1.0"

_NAMES = {
    "bins.online": "OnlinePacker",
    "dataset.manifest": "Manifest",
    "dataset.verify": "Verdict verify",
    "errors": "CorruptShard EngineError HeadraceError InputError MissingExtra RunBusy SettingsError"
    " StoreError StreamError",
    "histories.config": "Histories",
    "packing.config": "PackedSequences",
    "packing.on_the_fly.plan": "PackRows",
    "packing.read.batches": "PackedBatches",
    "packing.storage.packed_parquet": "ParquetShardWriter",
    "rewriting.settings": "Rewrite rewrite",
    "run.collect": "collect",
    "run.prepare": "Prepared prepare",
    "series.builder": "SeriesBuilder",
    "series.config": "Series",
    "series.pipelines.grouped": "GroupedPipeline",
    "series.pipelines.save": "load_pipelines",
    "series.pipelines.unified": "UnifiedPipeline",
    "split.settings": "TemporalSplit",
    "stream.audit.rows": "Audit AuditReport audit",
    "stream.loader.blend": "Blend blend",
    "stream.loader.dataset": "Dataset",
    "stream.loader.options": "StreamOptions",
    "stream.loader.stateful": "stream_state",
    "stream.loader.stream_loader": "StreamLoader",
    "stream.loader.torch_dataset": "StreamingDataset",
    "stream.ranks.topology": "Topology",
    "tabular.dataset": "PipelineIterableDataset",
    "tabular.distribution": "verify_no_shard_overlap",
    "tabular.processors": "ColumnProcessor FunctionProcessor Processor",
}
_WHERE = {name: f"headrace.{module}" for module, names in _NAMES.items() for name in names.split()}
_WHERE["open"] = "headrace.stream.loader.dataset:open_dataset"

__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    module, _, attribute = _WHERE[name].partition(":")
    value = getattr(import_module(module), attribute or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
