"""Tell which files a run would read, which run it would be, how much of it is there, and what room it will take."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from headrace.cli.about_run import AboutRun
from headrace.cli.for_machines import tell
from headrace.cli.printing import printer


def show_dry_run(recipe: Any, out: Path, about: AboutRun) -> None:
    """Print what `execute` would meet. Writes nothing."""
    record = dry_run(recipe, out, about)
    if about.as_json:
        tell(record)
        return
    _print(record)


def dry_run(recipe: Any, out: Path, about: AboutRun) -> dict[str, Any]:
    """Collect what is known before a run from the names, sizes and times of its source files."""
    from headrace.cli.estimate import estimate
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
    state = "finished: it would be reused" if finished else "begun: it would go on" if receipts else "new"
    count = about.workers or default_workers()
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
        found = estimate(recipe, sizes, count)
        record |= {"out_bytes": found.out_bytes, "memory_bytes": found.memory_bytes, "estimate": found.how}
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
        table.add_row("beware", Text("the output may be larger than the room on the disk", style="bold red"))
    table.add_section()
    for name, value in sorted(record["settings"].items()):
        if name != "recipe":
            table.add_row(name, Text(json.dumps(value, ensure_ascii=False, default=str)))
    printer().print(table)


_NAMES = {
    "source_bytes": "source",
    "free_bytes": "free",
    "out_bytes": "output, at most about",
    "memory_bytes": "memory of tasks, about",
}


def _shown(name: str, value: Any) -> str:
    if name.endswith("_bytes"):
        return f"{value / 1e6:,.1f} MB"
    return f"{value:,}" if isinstance(value, int) else str(value)
