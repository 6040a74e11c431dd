"""Define the commands that work on any recipe: run, inspect, verify, forget, gc."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from headrace.cli.entities import EntityColumn, EntityFile, entity_names, report_absent
from headrace.cli.outermost import spare_pandas
from headrace.cli.output import emit, in_flags, printer, say, table
from headrace.cli.settings_file import (
    check_names,
    read_config,
    schema_of,
    take_run_options,
    with_settings,
)
from headrace.cli.settings_flags import (
    FlagValues,
    Json,
    Out,
    RunOptions,
    WorkDir,
    unless_given,
    with_groups,
)
from headrace.errors import HeadraceError, SettingsError, setting
from headrace.printable import printable
from headrace.report.words import pluralise, size

if TYPE_CHECKING:
    from rich.console import Console

    from headrace.run.events import Event
    from headrace.run.forget import Forgotten
    from headrace.run.prepare import Prepared

Settings = Annotated[
    list[str] | None,
    unless_given(
        "--set", metavar="NAME=VALUE", help="Override a setting of the file; may be repeated."
    ),
]
RunId = Annotated[str | None, typer.Option("--run", help="A run other than the newest.")]
_ALIAS = "oot"  # of test, for trainers that read it by this name
PreparedPath = Annotated[Path, typer.Argument(help="A dataset directory or a run directory.")]


@with_groups
def run(
    config: Annotated[
        Path | None,
        typer.Argument(
            help="YAML or JSON file: recipe, settings, out, workers, fingerprint_by, engine, "
            "address, max_dropped.",
            show_default=False,
        ),
    ] = None,
    *,
    out: Annotated[
        Path | None, typer.Option(help="Output directory; overrides the one in the file.")
    ] = None,
    settings: Settings = None,
    schema: Annotated[
        bool,
        typer.Option(
            "--schema",
            help="Print the JSON Schema of configuration files instead, for editors.",
        ),
    ] = False,
    options: RunOptions,
) -> None:
    """Run a recipe from a configuration file.

    In an editor with a YAML language server, the first line of a file names the output of --schema:
    `# yaml-language-server: $schema=headrace.schema.json`. Whatever the schema rejects, `run`
    rejects; `run` checks more.

    Example:  headrace run config.yaml

    Example:  headrace run config.yaml --set seed=7
    """
    from headrace.recipe import find_recipe, recipes

    if (config is None) != schema:
        problem = f"a run needs a configuration, and {setting('schema')} none"
        raise SettingsError(problem, remedy="give one of them")
    if config is None:
        emit(schema_of(sorted(recipes())), indent=None if options.as_json else 1)
        return
    record = with_settings(read_config(config), settings or ())
    try:
        model = find_recipe(record.get("recipe")).settings()
    except SettingsError as error:
        raise error.at(path=config) from None
    check_names(config, record, list(model.model_fields))
    record.pop("recipe")
    target, options = take_run_options(config, record, out=out, flags=options)
    execute(model(**record), target, options)


def prepare_run(*, flags: FlagValues, out: Out, options: RunOptions) -> None:
    """Prepare the run of the recipe that the flags describe."""
    execute(flags.recipe(), out, options)


def execute(recipe: Any, out: Path, options: RunOptions) -> Path:
    """Prepare a recipe with progress on the terminal, print the result and return the run
    directory.

    report.html is written as --report says, but not with --json. Raises `typer.Exit` if the run
    lost more than is allowed.
    """
    from headrace.cli.progress import progress_on
    from headrace.cli.tables import manifest_record
    from headrace.dataset.grade import MOST_DROPPED, grade_of
    from headrace.recipe import BUILT_IN
    from headrace.run.events import Note, RunBegan
    from headrace.run.prepare import prepare
    from headrace.storage.places import path_of

    if options.workers is not None:  # the thread count of tokenizers, which reads it once
        os.environ.setdefault("RAYON_NUM_THREADS", str(options.workers))
    out = path_of(out)
    if options.as_json:
        detail: Literal["full", "quiet"] = "quiet"
    else:
        detail = "full"
    warnings = 0
    with progress_on(printer("err"), recipe.recipe_name, detail) as show:

        def on_event(event: Event) -> None:
            nonlocal warnings
            if isinstance(event, Note) and event.level == "warning":
                warnings += 1
            if isinstance(event, RunBegan) and recipe.recipe_name in BUILT_IN:
                spare_pandas()
            show(event)

        prepared = prepare(recipe, out, on_event=on_event, **options.options())
    most = MOST_DROPPED if options.max_dropped is None else options.max_dropped
    grade = grade_of(prepared.manifest, most, warnings=warnings)
    if options.as_json:
        record = manifest_record(prepared.manifest, prepared.run, prepared.how)
        doubts = [printable(in_flags(doubt.sentence)) for doubt in grade.doubts]
        emit({**record, "grade": {"word": grade.word, "doubts": doubts}})
    else:
        _print_prepared(prepared, out, options)
        style = {"pass": "green", "warn": "yellow", "fail": "bold red"}[grade.word]
        printer().print(printable(in_flags(grade.line())), style=style, highlight=False)
    if grade.word == "fail":
        raise typer.Exit(1)
    return prepared.run


def _print_prepared(prepared: Prepared, out: Path, options: RunOptions) -> None:
    """Print what a run made and where it is."""
    from rich.text import Text

    from headrace.cli.tables import print_run
    from headrace.storage.places import place_of

    console = printer()
    print_run(console, prepared.manifest, prepared.run, "short")
    if prepared.how == "reused":
        reason = ": this run already exists for the same files and settings; nothing was computed"
        console.print(Text.assemble(("reused", "green"), reason))
    store = place_of(out)
    if store.has_links:
        names = [name for name in prepared.manifest.metadata["directories"] if name != _ALIAS]
        if prepared.manifest.folds:
            names = [*list(names)[:1], "…"]
        text = f"shards  {printable(str(out / 'splits'))}/{{{','.join(names)}}}"
    else:
        text = f"splits  {printable(str(out / 'splits.json'))} names them"
    console.print(text, highlight=False)
    console.print(f"run     {printable(str(prepared.run))}", highlight=False)
    # A report is opened in the run's directory, so an object store gets none.
    page = None
    if store.writes == "in place" and options.report == "auto":
        page = _report_of(prepared, console)
    if page is not None:
        console.print(f"report  {printable(str(page))}", highlight=False)


def _report_of(prepared: Prepared, console: Console) -> Path | None:
    """Write the page of a run that has just finished; a reused run keeps its page.

    A page that cannot be drawn causes only a warning, because the run itself is finished.
    """
    from headrace.report import REPORT

    if prepared.how == "reused":
        page = prepared.run / REPORT
        if page.exists():
            return page
        return None

    from headrace.report.write import write_report  # loads more libraries

    try:
        return write_report(prepared.run)
    except Exception as error:  # noqa: BLE001 - the run is published and valid; a picture must not make it fail
        problem = f"{type(error).__name__}: {error}"
        text = f"warning: no report.html ({problem}); the run itself is complete"
        console.print(text, style="yellow", highlight=False)
        return None


@dataclass(frozen=True, kw_only=True)
class ReportPage:
    """Flags of the page about a run."""

    report: Annotated[
        bool,
        typer.Option("--report", help="Draw the run as one page that opens offline."),
    ] = False
    to: Annotated[
        Path | None, unless_given(help="Draw the page to this file instead of into the run.")
    ] = None
    show: Annotated[
        bool, typer.Option("--open", help="Draw the page and open it in the browser.")
    ] = False

    @property
    def requested(self) -> bool:
        """True if any of the flags was given."""
        return self.report or self.show or self.to is not None


@with_groups
def inspect(
    out: PreparedPath,
    *,
    run: RunId = None,
    folds: Annotated[
        bool,
        typer.Option(
            "--folds",
            help="List the folds with the rows of each split; other commands take --fold.",
        ),
    ] = False,
    page: ReportPage,
    as_json: Json = False,
) -> None:
    """Print the manifest of a finished run as a table: rows by split, dropped rows, columns, facts.

    --report draws a page instead: splits in time, entities, packing, what was dropped.

    Example:  headrace inspect out

    Example:  headrace inspect out --report --open
    """
    from headrace.cli.tables import folds_record, folds_table, manifest_record, print_run
    from headrace.dataset.open import find_run

    if folds and page.requested:
        problem = f"{setting('folds')} prints a table and {setting('report')} draws a page"
        raise SettingsError(problem, remedy="give one of them")
    if page.requested:
        _draw_report(out, run, page, as_json=as_json)
        return
    root, manifest = find_run(out, run)
    if folds and not manifest.folds:
        problem = "was prepared as a single split, so it has no folds"
        raise SettingsError(problem, path=root, remedy=f"prepare it with {setting('folds')}")
    if as_json and folds:
        emit(folds_record(manifest, root))
    elif as_json:
        emit(manifest_record(manifest, root, "finished"))
    elif folds:
        printer().print(folds_table(manifest))
    else:
        print_run(printer(), manifest, root, "full")


def _draw_report(out: Path, run: str | None, page: ReportPage, *, as_json: bool) -> None:
    """Write the page of a run, print its path and open it if requested."""
    from headrace.report.write import write_report

    path = write_report(out, run=run, to=page.to)
    if as_json:
        emit({"report": str(path)})
    else:
        say(f"report  {path}")
    if page.show:
        import webbrowser

        if not webbrowser.open(path.resolve().as_uri()):
            say(f"no browser could be started; open {path} yourself", "err")


def verify(
    out: PreparedPath,
    *,
    run: RunId = None,
    workers: Annotated[
        int | None, typer.Option(help="Shards verified at a time; default: one per core.")
    ] = None,
    certificate: Annotated[
        Path | None,
        unless_given(
            help="Write a certificate of what was proved, and what was not, to this file."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check digests, row counts and the recipe's laws, derived again from the output.

    Exit 1 if one fails.

    Example:  headrace verify out

    Example:  headrace verify out --certificate certificate.json
    """
    from rich.text import Text

    from headrace.dataset.verify import verify as verify_run

    verdict = verify_run(out, run=run, workers=workers)
    if certificate is not None and not verdict.problems:
        from headrace.dataset.certificate import write_certificate
        from headrace.dataset.open import FinishedRun, find_run

        write_certificate(FinishedRun(*find_run(out, run)), verdict, certificate)
    if as_json:
        checks = [asdict(check) for check in verdict.checks]
        emit({"run_id": verdict.run_id, "ok": not verdict.problems, "checks": checks})
    else:
        rows = table(f"verify {verdict.run_id}", ("check", "result", "found"))
        for check in verdict.checks:
            result = Text("ok", "green")
            if check.problem is not None:
                result = Text("FAILED", "bold red")
            rows.add_row(check.name, result, printable(check.problem or check.detail))
        printer().print(rows)
    if verdict.problems:
        remedy = "restore the data or prepare the run again"
        raise HeadraceError(verdict.problems[0], remedy=remedy)


def forget(  # noqa: PLR0913 - the arguments are flags
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[ENTITY]... OUT", help="Entities to erase, then the dataset directory."
        ),
    ],
    *,
    entities: EntityFile = None,
    entity_column: EntityColumn = None,
    delete_old: Annotated[
        bool, typer.Option("--delete-old", help="Delete the old run once the new one is published.")
    ] = False,
    workers: Annotated[
        int | None, unless_given(min=1, help="Tasks at a time; default: one per core.")
    ] = None,
    work_dir: WorkDir = None,
    as_json: Json = False,
) -> None:
    """Erase entities from a prepared dataset: a new run, in which only the shards that contain
    their rows are written again. The other shards are linked, and splits moves to the new run in
    one step. A run that was killed resumes.

    Without --delete-old the old run stays. Either way the data remains in other runs and copies,
    caches of decoded blocks and checkpoints, and preparing from the source again brings it back.

    Example:  headrace forget C1042 C1077 out

    Example:  headrace forget out --entities erased.txt --delete-old
    """
    from headrace.cli.progress import progress_on
    from headrace.dataset.open import find_run
    from headrace.run.forget import forget as erase

    *names, out = words
    names = entity_names(names, entities)
    recipe = find_run(out)[1].recipe
    with progress_on(printer("err"), recipe, "quiet" if as_json else "full") as on_event:
        result = erase(
            out,
            names,
            entity_column=entity_column,
            old_run="delete" if delete_old else "keep",
            workers=workers,
            work_dir=work_dir,
            on_event=on_event,
        )
    if as_json:
        emit(asdict(result))
        return
    report_absent(result.entities - result.matched, result.entities, out)
    _say_forgotten(result, delete_old=delete_old)


def _say_forgotten(result: Forgotten, *, delete_old: bool) -> None:
    """Say what was erased, and where the data may still be."""
    if result.how == "nothing":
        say("nothing was written: no row belongs to these entities")
    else:
        say(
            f"erased {result.rows:,} rows of {result.matched:,} entities: {result.shards:,} shards "
            f"rewritten, from {result.bytes_before:,} to {result.bytes:,} bytes; the other shards "
            "are linked"
        )
        say(f"run     {result.run}")
        say(f"record  {result.run / 'forgotten.json'}")
        if not delete_old:
            say(f"The old run {result.old} still has these rows. --delete-old deletes it.")
    if result.other_runs:
        say(f"Other runs were not checked: {', '.join(result.other_runs)}")
    say(
        "The data is gone only once the old runs, copies of them, caches of decoded blocks and "
        "checkpoints trained on it are deleted too. Preparing again from a source that still has "
        "the data brings it back."
    )


def gc(
    out: Annotated[
        Path | None, typer.Argument(help="A dataset directory.", show_default=False)
    ] = None,
    *,
    incomplete: Annotated[
        bool,
        typer.Option("--incomplete", help="Also delete unfinished runs, which could be resumed."),
    ] = False,
    tables: Annotated[
        str | None,
        unless_given(
            metavar="TIME",
            help="Delete copies of tables that were not opened for this long, such as 30d.",
        ),
    ] = None,
    cache_dir: Annotated[
        Path | None,
        unless_given(help="The cache directory, if another command was given --cache-dir."),
    ] = None,
    work_dir: WorkDir = None,
    as_json: Json = False,
) -> None:
    """Remove what killed runs left behind: temporary files and intermediate stages.

    Finished shards are never touched.

    With --tables instead of OUT it removes copies of tables from the cache.

    Example:  headrace gc out
    """
    from headrace.run.collect import Swept, collect

    if (out is None) == (tables is None):
        remedy = f"give a dataset directory, or {setting('tables', '30d')} to clean the cache"
        raise SettingsError("nothing to clean was named", remedy=remedy)
    if out is None:
        from headrace.checks import duration_us
        from headrace.dataset.tables import remove_unused

        unused_s = duration_us("--tables", str(tables)) / 1e6
        swept = Swept(*remove_unused(cache_dir, unused_s), busy=())
    else:
        swept = collect(out, incomplete="remove" if incomplete else "keep", work_dir=work_dir)
    if as_json:
        emit(
            {
                "removed": [str(path) for path in swept.removed],
                "bytes": swept.bytes,
                "busy": [str(path) for path in swept.busy],
            }
        )
        return
    for path in swept.busy:
        say(f"kept, in use: {path}")
    noun = "table"
    if tables is None:
        noun = "leftover"
    say(f"removed {pluralise(len(swept.removed), noun)}, {size(swept.bytes)}")
