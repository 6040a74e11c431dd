"""Define the commands that present a run: its report page, its differences from another run, and its card."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.flags import Json, offers, unless_given
from headrace.cli.output import cell, emit, printer, say, table
from headrace.errors import SettingsError

CARDS = ("markdown", "croissant")


def report(
    paths: Annotated[list[Path], typer.Argument(metavar="OUT", help="A dataset directory or a run directory.")],
    *,
    run_id: Annotated[str | None, typer.Option("--run", help="A run other than the newest.")] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Compare two runs: `--compare RUN1 RUN2`.")] = False,
    to: Annotated[Path | None, unless_given(help="Write the page to this file instead of into the run.")] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    as_json: Json = False,
) -> None:
    """Draw a finished run as one page that opens offline: splits in time, shards, entities, packing, what was dropped.

    With --compare: what differs between two runs in settings, source, counts and columns, as a table without a page.

    Example:  headrace report out --open

    Example:  headrace report --compare out/runs/RUN1 out/runs/RUN2
    """
    if compare:
        if to is not None or show:
            raise SettingsError("--compare prints a table and writes no page; leave out --to and --open")
        if len(paths) != 2:
            raise SettingsError(
                f"--compare expects two runs, got {len(paths)}; write headrace report --compare RUN1 RUN2"
            )

        from headrace.report.facts import differences, read_run

        first, second = (read_run(path) for path in paths)
        found = differences(first, second)
        ids = [each.manifest.run_id for each in (first, second)]
        if as_json:
            emit({"runs": ids, "same": not found, "differences": [asdict(each) for each in found]})
            return
        made = table(f"1: {ids[0]}\n2: {ids[1]}", ("in", "what", "1", "2"))
        for each in found:
            made.add_row(*map(cell, (each.kind, each.name, each.first, each.second)))
        printer().print(made if found else "settings, source, counts and columns are the same")
        return
    if len(paths) != 1:
        raise SettingsError(f"report expects one directory, got {len(paths)}; add --compare to compare two runs")

    from headrace.report.write import write_report

    written = write_report(paths[0], run=run_id, to=to)
    if as_json:
        emit({"report": str(written)})
    else:
        say(f"report  {written}")
    if show:
        import webbrowser

        if not webbrowser.open(written.resolve().as_uri()):
            say(f"no browser could be started; open {written} yourself", "err")


def card(
    path: Annotated[Path, typer.Argument(metavar="OUT", help="A dataset directory or a run directory.")],
    *,
    format: Annotated[  # noqa: A002 - the name of the flag
        str,
        typer.Option(
            help="markdown: README.md as the Hugging Face Hub reads it | croissant: croissant.json.",
            autocompletion=offers(*CARDS),
        ),
    ] = "markdown",
    license: Annotated[str | None, unless_given(help="Licence of the data, such as cc-by-4.0.")] = None,  # noqa: A002 - the name of the flag
    run_id: Annotated[str | None, typer.Option("--run", help="A run other than the newest.")] = None,
    to: Annotated[Path | None, unless_given(help="Write the card to this file instead of into the run.")] = None,
    as_json: Json = False,
) -> None:
    """Describe a finished run for others: a dataset card, or Croissant metadata, beside its shards.

    datasets.load_dataset opens the run's directory by this card, here or uploaded to a hub. Paths in the card are
    relative to the run. A card that was edited is not replaced.

    Example:  headrace card out --license cc-by-4.0

    Example:  headrace card out --format croissant
    """
    if format not in CARDS:
        raise SettingsError(f"--format is {format!r}; give one of {', '.join(CARDS)}")

    from headrace.report.write import write_card

    written = write_card(path, format, run=run_id, to=to, license_=license)
    if as_json:
        emit({"card": str(written)})
    else:
        say(f"card  {written}")
