"""What a run would do, without doing it: which files, which run, how much of it is there already, what it will cost."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from headrace.cli.about_run import AboutRun
from headrace.cli.for_machines import tell
from headrace.cli.printing import printer


def show_dry_run(recipe: Any, out: Path, about: AboutRun) -> None:
    """Print what `execute` would meet. Writes nothing below `out`; a small sample is run in a temporary directory."""
    record = dry_run(recipe, out, about)
    if about.as_json:
        tell(record)
        return
    _print(record)


def dry_run(recipe: Any, out: Path, about: AboutRun) -> dict[str, Any]:
    """What is known before a run. Reads names, sizes and times of the source, and some of its rows."""
    from headrace.cli.estimate.bounds import memory_of, tasks_of
    from headrace.cli.estimate.measured import estimate
    from headrace.cli.estimate.sized import sized
    from headrace.dataset.manifest import read_manifest
    from headrace.engine.local import default_workers
    from headrace.run.apart import check_apart
    from headrace.run.identity import fingerprint, run_id
    from headrace.storage.places import path_of, place_of

    out = path_of(out)
    pairs = recipe.source_files()
    check_apart(out, recipe.source_places(), pairs)
    identity = run_id(recipe.recipe_name, recipe.identity_settings(), fingerprint(pairs, about.how))
    files = sized(pairs)
    run = out / "runs" / identity
    finished = read_manifest(run) is not None
    receipts = len(list((run / "receipts").glob("*.json")))
    state = "finished: it would be reused" if finished else "begun: it would go on" if receipts else "new"
    count = about.workers or default_workers()
    record: dict[str, Any] = {
        "recipe": recipe.recipe_name,
        "run_id": identity,
        "run": str(run),
        "state": state,
        "tasks_done": receipts,
        "source_files": len(files),
        "source_bytes": sum(file.size for file in files),
        "free_bytes": place_of(out).free_bytes(),
        "cores": os.cpu_count() or 1,
    }
    if not finished:
        found = estimate(recipe, files)
        if isinstance(found, str):
            record["estimate"] = found
        else:
            memory = memory_of(recipe, files, found, count)
            tasks = tasks_of(recipe, files, found)
            record |= {
                "rows": found.rows,
                "out_bytes": found.out_bytes,
                "tasks": tasks,
                "cpu_s": round(found.cpu_s, 1),
                "wall_s": round(
                    found.cpu_s / max(1, min(count, os.cpu_count() or 1, max(tasks.values(), default=1))), 1
                ),
                "memory_bytes": memory.bytes,
                "estimate": f"{found.how}; sizes within a factor of 2. Memory: {memory.how}; beside the libraries",
            }
    return {**record, "settings": recipe.config()}


def _print(record: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=f"{record['recipe']}, not run", title_justify="left", show_header=False)
    table.add_column()
    table.add_column(overflow="fold")
    for name, value in record.items():
        if name != "settings" and value is not None:
            table.add_row(_NAMES.get(name, name.replace("_", " ")), Text(_shown(name, value)))
    short = record.get("free_bytes") is not None and record.get("out_bytes", 0) > record["free_bytes"]
    if short:
        table.add_row("beware", Text("the output is larger than the room on the disk", style="bold red"))
    table.add_section()
    for name, value in sorted(record["settings"].items()):
        if name != "recipe":
            table.add_row(name, Text(json.dumps(value, ensure_ascii=False, default=str)))
    printer().print(table)


_NAMES = {
    "source_bytes": "source",
    "free_bytes": "free",
    "out_bytes": "output, about",
    "rows": "rows, about",
    "cpu_s": "time of one core, about",
    "wall_s": "time, about",
    "memory_bytes": "memory, at most about",
}


def _shown(name: str, value: Any) -> str:
    if name.endswith("_bytes"):
        return f"{value / 1e6:,.1f} MB"
    if name.endswith("_s"):
        return f"{value:,.1f} s"
    if isinstance(value, dict):
        return ", ".join(f"{stage} {tasks:,}" for stage, tasks in value.items())
    return f"{value:,}" if isinstance(value, int) else str(value)
