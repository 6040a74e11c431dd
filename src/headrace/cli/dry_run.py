"""Say what a run would do, without doing it: which files, which run, and how much of it is there already."""

from __future__ import annotations

import json
import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any

from headrace.cli.about_run import AboutRun
from headrace.cli.for_machines import tell
from headrace.cli.printing import printer

_STORE_THREADS = 32  # each waits for an answer


def show_dry_run(recipe: Any, out: Path, about: AboutRun) -> None:
    """Print what `execute` would meet. Writes nothing."""
    record = dry_run(recipe, out, about)
    if about.as_json:
        tell(record)
        return
    _print(record)


def dry_run(recipe: Any, out: Path, about: AboutRun) -> dict[str, Any]:
    """Collect what is known before a run from names, sizes and times of the source."""
    from headrace.dataset.manifest import read_manifest
    from headrace.engine.local import run_tasks
    from headrace.run.apart import check_apart
    from headrace.run.identity import fingerprint, run_id
    from headrace.storage.remote_path import is_remote, path_of
    from headrace.storage.verbs import stat

    out = path_of(out)
    pairs = recipe.source_files()
    check_apart(out, recipe.source_places(), pairs)
    identity = run_id(recipe.recipe_name, recipe.identity_settings(), fingerprint(pairs, about.how))
    threads = _STORE_THREADS if any(is_remote(path) for path, _ in pairs) else 1
    source_bytes = sum(fact.size for fact in run_tasks([partial(stat, path) for path, _ in pairs], threads))
    run = out / "runs" / identity
    finished = read_manifest(run) is not None
    receipts = len(list((run / "receipts").glob("*.json")))
    state = "finished: it would be reused" if finished else "begun: it would go on" if receipts else "new"
    record: dict[str, Any] = {
        "recipe": recipe.recipe_name,
        "run_id": identity,
        "run": str(run),
        "state": state,
        "tasks_done": receipts,
        "source_files": len(pairs),
        "source_bytes": source_bytes,
        "free_bytes": None if is_remote(out) else _free(out),
        "cores": os.cpu_count() or 1,
    }
    if not finished:
        record["out_bytes"] = source_bytes
        record["estimate"] = "the output is taken to be as large as the source; intermediate files are not counted"
    return {**record, "settings": recipe.config()}


def _free(out: Path) -> int:
    standing = next(each for each in (out.absolute(), *out.absolute().parents) if each.exists())
    return shutil.disk_usage(standing).free


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
        table.add_row("beware", Text("there may be too little room on the disk", style="bold red"))
    table.add_section()
    for name, value in sorted(record["settings"].items()):
        if name != "recipe":
            table.add_row(name, Text(json.dumps(value, ensure_ascii=False, default=str)))
    printer().print(table)


_NAMES = {
    "source_bytes": "source",
    "free_bytes": "free",
    "out_bytes": "output, about",
}


def _shown(name: str, value: Any) -> str:
    if name.endswith("_bytes"):
        return f"{value / 1e6:,.1f} MB"
    return f"{value:,}" if isinstance(value, int) else str(value)
