"""Tell which files a run would read, which run it would be, how much of it is there, and what room it will take.

Disk and memory are bounded by the sizes of the source files alone: no row is read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.cli.flags import RunOptions
from headrace.cli.output import emit, printer

_CHUNK = 32 << 20  # bytes of text that a task holds at a time
_COPIES = 4  # of a chunk: its bytes, what was found in them, columns, output
_SHARD = 50 << 20  # bytes of histories that are read while others are written
_COMPRESSED, _COLUMNAR = 8, 4  # times the size of compressed text, and of Parquet, that its rows take as text
_NAMES = {
    "source_bytes": "source",
    "free_bytes": "free",
    "out_bytes": "output, at most about",
    "memory_bytes": "memory of tasks, about",
}


def dry_run(recipe: Any, out: Path, about: RunOptions) -> dict[str, Any]:
    """Collect what is known before a run from the names, sizes and times of its source files. Writes nothing."""
    from headrace.dataset.manifest import read_manifest
    from headrace.engine.local import default_workers
    from headrace.run.identity import SourceState, check_apart, fingerprint, run_id
    from headrace.storage.places import path_of, place_of

    out = path_of(out)
    pairs = recipe.source_files()
    check_apart(out, recipe.source_places(), pairs)
    state_of_source = SourceState.of([path for path, _ in pairs])
    source = fingerprint(pairs, about.how, state_of_source)
    identity = run_id(recipe.recipe_name, recipe.identity_settings(), source)
    sizes = {path: fact.size for path, fact in state_of_source.facts.items()}
    run = out / "runs" / identity
    finished = read_manifest(run) is not None
    receipts = len(list((run / "receipts").glob("*.json")))
    record: dict[str, Any] = {
        "recipe": recipe.recipe_name,
        "run_id": identity,
        "run": str(run),
        "state": "finished: it would be reused" if finished else "begun: it would go on" if receipts else "new",
        "tasks_done": receipts,
        "source_files": len(pairs),
        "source_bytes": sum(sizes[path] for path, _ in pairs),
        "free_bytes": place_of(out).free_bytes(),
        "cores": os.cpu_count() or 1,
    }
    if not finished:
        record |= estimate(recipe, sizes, about.workers or default_workers())
    return {**record, "settings": recipe.config()}


def estimate(recipe: Any, sizes: Mapping[Path, int], workers: int) -> dict[str, Any]:
    """Bound a run whose source files have these sizes in bytes.

    Returns out_bytes: of all shards; memory_bytes: of the tasks, the libraries take 200 MB more; estimate: in words.
    """
    unpacked = [size * _times(path) for path, size in sizes.items()]
    kept = getattr(recipe, "format", None) == "same" and recipe.compression is None
    output = "the source, as it lies" if kept else "the source, as text"
    if hasattr(recipe, "memory_limit"):
        memory, held = int(recipe.memory_limit) + _SHARD, "memory_limit, and 50 MiB for a shard that is read"
    else:
        chunk = min(_CHUNK, max(unpacked, default=0))
        memory, held = workers * _COPIES * chunk, f"{workers} tasks with chunks of up to {_CHUNK >> 20} MiB each"
    return {
        "out_bytes": sum(sizes.values() if kept else unpacked),
        "memory_bytes": memory,
        "estimate": f"output: at most {output}; memory: {held}",
    }


def _times(path: Path) -> int:
    from headrace.formats.detect import kind_of_name

    kind = kind_of_name(path.name)
    if kind is None or kind.compression != "none":
        return _COMPRESSED
    return _COLUMNAR if kind.format == "parquet" else 1


def show_dry_run(recipe: Any, out: Path, about: RunOptions) -> None:
    """Print what `execute` would meet. Writes nothing."""
    record = dry_run(recipe, out, about)
    if about.as_json:
        emit(record)
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(title=f"{record['recipe']}, not run", title_justify="left", show_header=False)
    table.add_column()
    table.add_column(overflow="fold")
    for name, value in record.items():
        if name == "settings" or value is None:
            continue
        megabytes = f"{value / 1e6:,.1f} MB" if name.endswith("_bytes") else None
        text = megabytes or (f"{value:,}" if isinstance(value, int) else str(value))
        table.add_row(_NAMES.get(name, name.replace("_", " ")), Text(text))
    if record.get("free_bytes") is not None and record.get("out_bytes", 0) > record["free_bytes"]:
        table.add_row("beware", Text("the output may be larger than the room on the disk", style="bold red"))
    table.add_section()
    for name, value in sorted(record["settings"].items()):
        if name != "recipe":
            table.add_row(name, Text(json.dumps(value, ensure_ascii=False, default=str)))
    printer().print(table)
