"""Say what a run would do before it starts: `headrace run --dry-run`.

This needs only the names, sizes and times of the source files: no row is read, and nothing is
written.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.cli.output import emit, printer, record_table
from headrace.cli.settings_flags import RunOptions
from headrace.report.words import size

_CHUNK = 32 << 20  # bytes of text that a task parses at once
_COPIES = 4  # of a chunk: its bytes, their parse, columns, output
_SHARD = 50 << 20  # bytes of histories read while others are written
# size as text, relative to compressed text and to Parquet
_COMPRESSED = 8
_COLUMNAR = 4
_TITLES = {
    "source_bytes": "source",
    "free_bytes": "free",
    "out_bytes": "output, at most about",
    "memory_bytes": "memory of tasks, about",
}


def dry_run_record(recipe: Any, out: Path, options: RunOptions) -> dict[str, Any]:
    """Collect what is known before a run: its id, its finished tasks, its need for disk and
    memory.
    """
    from headrace.dataset.manifest import read_manifest
    from headrace.engine.local import default_workers
    from headrace.run.identity import SourceState, check_apart, fingerprint, run_id
    from headrace.storage.places import path_of, place_of

    out = path_of(out)
    pairs = recipe.source_files()
    check_apart(out, recipe.source_places(), pairs)
    source_state = SourceState.of([path for path, _ in pairs])
    source = fingerprint(pairs, options.fingerprint_by or "stat", source_state)
    identity = run_id(recipe.recipe_name, recipe.identity_settings(), source)
    sizes = {path: fact.size for path, fact in source_state.metadata.items()}
    run = out / "runs" / identity
    receipts = len(list((run / "receipts").glob("*.json")))
    finished = read_manifest(run) is not None
    if finished:
        state = "finished: it would be reused"
    elif receipts:
        state = "unfinished: it would be resumed"
    else:
        state = "new"
    record: dict[str, Any] = {
        "recipe": recipe.recipe_name,
        "run_id": identity,
        "run": str(run),
        "state": state,
        "tasks_done": receipts,
        "source_files": len(pairs),
        "source_bytes": sum(sizes[path] for path, _ in pairs),
        "free_bytes": place_of(out).free_bytes(),
        "cores": os.cpu_count() or 1,
    }
    if not finished:
        record |= estimate(recipe, sizes, options.workers or default_workers())
    return {**record, "settings": recipe.config()}


def estimate(recipe: Any, sizes: Mapping[Path, int], workers: int) -> dict[str, Any]:
    """Return upper bounds for a run whose source files have these sizes in bytes.

    out_bytes: of all shards. memory_bytes: of the tasks; libraries take 200 MB more. estimate: in
    words.
    """
    text_sizes = [size * _text_per_byte(path) for path, size in sizes.items()]
    if getattr(recipe, "format", None) == "same" and recipe.compression is None:
        out_bytes = sum(sizes.values())
        out_words = "the size of the source"
    else:
        out_bytes = sum(text_sizes)
        out_words = "the size of the source as text"
    if hasattr(recipe, "memory_limit"):
        memory = int(recipe.memory_limit) + _SHARD
        memory_words = "memory_limit, plus 50 MiB for the shard being read"
    else:
        chunk = min(_CHUNK, max(text_sizes, default=0))
        memory = workers * _COPIES * chunk
        memory_words = f"{workers} tasks with chunks of up to {_CHUNK >> 20} MiB each"
    return {
        "out_bytes": out_bytes,
        "memory_bytes": memory,
        "estimate": f"output: at most {out_words}; memory: {memory_words}",
    }


def _text_per_byte(path: Path) -> int:
    """Return how many bytes of text a byte of a file may hold."""
    from headrace.formats.registry import file_type_of_name

    file_type = file_type_of_name(path.name)
    if file_type is None or file_type.compression != "none":
        return _COMPRESSED
    if file_type.format.name == "parquet":
        return _COLUMNAR
    return 1


def show_dry_run(recipe: Any, out: Path, options: RunOptions) -> None:
    """Print what a run would do, without writing anything."""
    record = dry_run_record(recipe, out, options)
    if options.as_json:
        emit(record)
        return
    from rich.text import Text

    values = {}
    for name, value in record.items():
        if name != "settings" and value is not None:
            if name.endswith("_bytes"):
                values[_TITLES.get(name, name)] = size(value)
            else:
                values[_TITLES.get(name, name)] = value
    rows = record_table(f"{record['recipe']}, not run", values)
    free = record["free_bytes"]
    if free is not None and record.get("out_bytes", 0) > free:
        warning = "the output may not fit in the free space on the disk"
        rows.add_row("beware", Text(warning, style="bold red"))
    rows.add_section()
    for name, value in sorted(record["settings"].items()):
        if name != "recipe":
            rows.add_row(name, Text(json.dumps(value, ensure_ascii=False, default=str)))
    printer().print(rows)
