"""What a run would do, without doing it: which files, which run, how much of it is there already, room on the disk."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any, Literal

import typer


def show_dry_run(recipe: Any, out: Path, style: Literal["json", "text"]) -> None:
    """Print what `execute` would meet. Reads names, sizes and times of the source, and writes nothing."""
    from headrace.dataset.manifest import read_manifest
    from headrace.run.identity import fingerprint, run_id
    from headrace.storage.verbs import stat

    files = recipe.source_files()
    identity = run_id(recipe.recipe_name, recipe.identity_settings(), fingerprint(files))
    run = out / "runs" / identity
    finished = read_manifest(run) is not None
    receipts = len(list((run / "receipts").glob("*.json")))
    state = "finished: it would be reused" if finished else "begun: it would go on" if receipts else "new"
    standing = next(each for each in (out.absolute(), *out.absolute().parents) if each.exists())
    record: dict[str, Any] = {
        "recipe": recipe.recipe_name,
        "run_id": identity,
        "run": str(run),
        "state": state,
        "tasks_done": receipts,
        "source_files": len(files),
        "source_bytes": sum(stat(path).size for path, _ in files),
        "free_bytes": shutil.disk_usage(standing).free,
        "cores": os.cpu_count() or 1,
        "settings": recipe.config(),
    }
    if style == "json":
        typer.echo(json.dumps(record, default=str))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=f"{recipe.recipe_name}, not run", title_justify="left", show_header=False)
    table.add_column()
    table.add_column(overflow="fold")
    settings = record.pop("settings")
    for name, value in record.items():
        shown = (
            f"{value / 1e6:,.1f} MB" if name.endswith("_bytes") else f"{value:,}" if isinstance(value, int) else value
        )
        table.add_row(name.replace("_", " "), Text(str(shown)))
    table.add_section()
    for name, value in sorted(settings.items()):
        if name != "recipe":
            table.add_row(name, Text(json.dumps(value, ensure_ascii=False, default=str)))
    Console(soft_wrap=not os.isatty(1)).print(table)
