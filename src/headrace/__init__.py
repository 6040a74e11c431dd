"""headrace: raw tables, logs and chats into leak-free training shards, and each row to exactly one
rank, once per epoch.

    import headrace

    split = headrace.TemporalSplit(
        source="raw", time="time", entity="customer", split_date="2025-01-01"
    )
    headrace.prepare(split, "out")
    for batch in headrace.open("out").stream("train", batch_size=1024, shuffle=True, seed=0):
        ...

Names are imported when first used, so that `import headrace` is quick. Other public names are in
`headrace.errors`, `types`, `tabular`, `windows`, `contexts`, `frames`, `grain` and `lightning`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.cli.init.choose import init
    from headrace.dataset.verify import certify, verify
    from headrace.errors import HeadraceError, InputError, SettingsError
    from headrace.folds.settings import GroupKFold, Rolling
    from headrace.formats.dialect import TextDialect
    from headrace.histories.config import Histories
    from headrace.packing.config import PackedSequences
    from headrace.packing.on_the_fly.settings import PackRows
    from headrace.packing.preferences.settings import Preferences
    from headrace.packing.read.batches import PackedBatches
    from headrace.packing.storage.packed_parquet import ParquetShardWriter
    from headrace.rewriting.settings import Rewrite, rewrite
    from headrace.run.collect import collect
    from headrace.run.forget import forget
    from headrace.run.prepare import prepare
    from headrace.series.pipelines.frames import GroupedPipeline, UnifiedPipeline
    from headrace.series.pipelines.save import load_pipelines
    from headrace.series.settings import Series
    from headrace.split.random_split import RandomSplit
    from headrace.split.settings import TemporalSplit
    from headrace.stream.audit.leaks import find_leaks
    from headrace.stream.audit.rows import audit
    from headrace.stream.loader.blend import blend
    from headrace.stream.loader.dataset import Dataset
    from headrace.stream.loader.dataset import open_dataset as open  # noqa: A004  # noqa: A004 - headrace.open is the name users expect
    from headrace.stream.loader.stateful import stream_state
    from headrace.stream.ranks.topology import Topology
    from headrace.tabular.dataset import PipelineIterableDataset

__version__ = "1.0.0rc1"

_NAMES = {
    "cli.init.choose": "init",
    "dataset.verify": "certify verify",
    "errors": "HeadraceError InputError SettingsError",
    "folds.settings": "GroupKFold Rolling",
    "formats.dialect": "TextDialect",
    "histories.config": "Histories",
    "packing.config": "PackedSequences",
    "packing.on_the_fly.settings": "PackRows",
    "packing.preferences.settings": "Preferences",
    "packing.read.batches": "PackedBatches",
    "packing.storage.packed_parquet": "ParquetShardWriter",
    "rewriting.settings": "Rewrite rewrite",
    "run.collect": "collect",
    "run.forget": "forget",
    "run.prepare": "prepare",
    "series.settings": "Series",
    "series.pipelines.frames": "GroupedPipeline UnifiedPipeline",
    "series.pipelines.save": "load_pipelines",
    "split.random_split": "RandomSplit",
    "split.settings": "TemporalSplit",
    "stream.audit.leaks": "find_leaks",
    "stream.audit.rows": "audit",
    "stream.loader.blend": "blend",
    "stream.loader.dataset": "Dataset",
    "stream.loader.stateful": "stream_state",
    "stream.ranks.topology": "Topology",
    "tabular.dataset": "PipelineIterableDataset",
}
_WHERE = {name: f"headrace.{module}" for module, names in _NAMES.items() for name in names.split()}
_WHERE["open"] = "headrace.stream.loader.dataset:open_dataset"
_MODULES = ("contexts", "errors", "frames", "grain", "lightning", "tabular", "types", "windows")

__all__ = [
    "Dataset",
    "GroupKFold",
    "GroupedPipeline",
    "HeadraceError",
    "Histories",
    "InputError",
    "PackRows",
    "PackedBatches",
    "PackedSequences",
    "ParquetShardWriter",
    "PipelineIterableDataset",
    "Preferences",
    "RandomSplit",
    "Rewrite",
    "Rolling",
    "Series",
    "SettingsError",
    "TemporalSplit",
    "TextDialect",
    "Topology",
    "UnifiedPipeline",
    "audit",
    "blend",
    "certify",
    "collect",
    "find_leaks",
    "forget",
    "init",
    "load_pipelines",
    "open",
    "prepare",
    "rewrite",
    "stream_state",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"headrace.{name}")
    if name not in _WHERE:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    from headrace.shortage import refuse_small_address_space  # `import headrace` loads nothing

    refuse_small_address_space()
    module, _, attribute = _WHERE[name].partition(":")
    value = getattr(import_module(module), attribute or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
