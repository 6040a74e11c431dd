"""Print a run of histories."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.text import Text

from headrace.cli.output import in_flags
from headrace.cli.tables import Detail, print_manifest
from headrace.dataset.manifest import Manifest
from headrace.printable import printable
from headrace.report.words import many

_FAILED = {"missing": "have no value", "negative": "are below 0", "zero": "are 0"}


def print_histories(console: Console, manifest: Manifest, run: Path, detail: Detail) -> None:
    """Print a run, and its failed measurements: how many, why, where the first is and some of their values."""
    print_manifest(console, manifest, run, detail)
    clamped, failed = manifest.facts.get("clamped", 0), manifest.facts.get("failed_by", {})
    if clamped:
        told = f"{many(clamped, 'latency is', 'latencies are')} above 51 days and stored as 51 days; check value_unit="
        console.print(Text(in_flags(told), style="yellow"))
    if not failed:
        return
    reasons = []
    for word, each in failed.items():
        values = f", such as {', '.join(f'{value:g}' for value in each['values'])}" if each["values"] else ""
        reasons.append(f"{each['rows']:,} {_FAILED[word]}{values}, first in {printable(each['first'])}")
    of, total = sum(manifest.facts["source_rows"].values()), manifest.facts["failed"]
    text = f"{total:,} of {of:,} measurements are kept as failed: {'; '.join(reasons)}"
    console.print(
        Text(
            in_flags(
                f"{text}. To change this, set missing=, negative= or zero=, or name a column of other values in values="
            ),
            style="yellow",
        )
    )
