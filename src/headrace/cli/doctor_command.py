"""`headrace doctor`: what is installed, what this process would be taken for, places of data, and usual mistakes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.flags import Json
from headrace.cli.for_machines import tell
from headrace.cli.printing import printer

if TYPE_CHECKING:
    from headrace.cli.doctor.finding import Finding


def doctor(
    places: Annotated[
        list[str] | None,
        typer.Argument(
            help="Directories or addresses (s3://, gs://, az://) that data is read from or runs are written to.",
            show_default=False,
        ),
    ] = None,
    *,
    as_json: Json = False,
) -> None:
    """Print versions, extras, rank, limits, what places can do, and usual mistakes. Exit 1 if something is wrong.

    A place is tried: small files are written and deleted again. What may only be read is no problem.

    Example:  headrace doctor out s3://bucket/raw
    """
    import importlib.metadata as metadata

    from headrace.cli.doctor.installed import extras, libraries
    from headrace.cli.doctor.job import launcher, mistakes, topology
    from headrace.cli.doctor.machine import cores, limits
    from headrace.cli.doctor.places import look_at

    findings = [
        *libraries(),
        *extras(metadata.requires("headrace") or ()),
        topology(os.environ),
        launcher(os.environ),
        *limits(),
        *mistakes(os.environ, cores()),
        *(each for place in places or () for each in look_at(place)),
    ]
    problems = [each for each in findings if each.verdict == "problem"]
    if as_json:
        tell({"ok": not problems, "findings": [asdict(each) for each in findings]})
    else:
        _print(findings)
    if problems:
        raise typer.Exit(1)


def _print(findings: Iterable[Finding]) -> None:
    from rich.table import Table
    from rich.text import Text

    styles: dict[str, Any] = {"ok": "green", "note": "dim", "problem": "bold red"}
    table = Table(title="headrace doctor", title_justify="left", header_style="bold")
    for name in ("what", "found", ""):
        table.add_column(name, overflow="fold")
    for each in findings:
        mark = Text(each.advice or each.verdict, style=styles[each.verdict])
        table.add_row(each.name, Text(each.found), mark)
    printer().print(table)
