"""Types that calls of headrace take or return, for annotations.

They are imported when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.dataset.manifest import Manifest
    from headrace.dataset.verify import Verdict
    from headrace.run.forget import Forgotten
    from headrace.run.prepare import Prepared
    from headrace.stream.audit.leaks import LeakReport
    from headrace.stream.audit.rows import Audit, AuditReport
    from headrace.stream.loader.blend import Blend
    from headrace.stream.loader.options import StreamOptions
    from headrace.stream.loader.stream_loader import StreamLoader
    from headrace.stream.loader.torch_dataset import StreamingDataset
    from headrace.stream.order.balance import CostModel

_MODULES = {
    "Audit": "stream.audit.rows",
    "AuditReport": "stream.audit.rows",
    "Blend": "stream.loader.blend",
    "CostModel": "stream.order.balance",
    "Forgotten": "run.forget",
    "LeakReport": "stream.audit.leaks",
    "Manifest": "dataset.manifest",
    "Prepared": "run.prepare",
    "StreamLoader": "stream.loader.stream_loader",
    "StreamOptions": "stream.loader.options",
    "StreamingDataset": "stream.loader.torch_dataset",
    "Verdict": "dataset.verify",
}

__all__ = [
    "Audit",
    "AuditReport",
    "Blend",
    "CostModel",
    "Forgotten",
    "LeakReport",
    "Manifest",
    "Prepared",
    "StreamLoader",
    "StreamOptions",
    "StreamingDataset",
    "Verdict",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'headrace.types' has no attribute {name!r}")
    value = getattr(import_module(f"headrace.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
