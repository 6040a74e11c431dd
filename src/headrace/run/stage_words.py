"""What the stages of recipes are called where people watch them."""

from __future__ import annotations

# What a stage does, and what its tasks are.
STAGES = {
    "scan": ("find entities and dates", "shards"),
    "split": ("write splits", "shards"),
    "join": ("join files", "splits"),
    "nulls": ("find nulls", "shards"),
    "rewrite": ("rewrite shards", "shards"),
    "sample": ("choose a sample", "parts"),
    "tokenise": ("render and tokenise", "parts"),
    "pack": ("pack into bins", "splits"),
    "materialise": ("write bins", "shards"),
    "gather": ("gather measurements", "shards"),
    "order": ("order entities", "partitions"),
    "rows": ("list rows", "files"),
    "spread": ("sort rows by entity", "tables"),
    "frequency": ("find the frequency", "steps"),
    "clean": ("clean series", "batches"),
    "fit": ("fit scalers", "steps"),
    "write": ("scale and write series", "batches"),
    "finish": ("write reports and scalers", "steps"),
}


def in_words(stage: str) -> tuple[str, str]:
    """(what it does, what its tasks are); a stage that is not known here has its own name."""
    return STAGES.get(stage, (stage, "tasks"))
