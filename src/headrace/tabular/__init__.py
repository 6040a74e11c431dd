"""Rows and batches of text, categories and numbers for users of sharded iterable datasets, over
`stream`.
"""

from __future__ import annotations

from headrace.tabular.distribution import verify_no_shard_overlap
from headrace.tabular.processors import ColumnProcessor, FunctionProcessor, Processor

__all__ = ["ColumnProcessor", "FunctionProcessor", "Processor", "verify_no_shard_overlap"]
