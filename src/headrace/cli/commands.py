"""Define the commands that work on any recipe: run, inspect, verify, forget, gc."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.config_file import about_the_run, check_names, read_config, schema_of, with_settings
from headrace.cli.entities import EntityColumn, EntityFile, names_of, say_absent
from headrace.cli.flags import Json, RunOptions, WorkDir, unless_given, with_groups
from headrace.cli.output import emit, printer, record_table, say, table
from headrace.errors import HeadraceError, SettingsError, setting
from headrace.printable import printable
from headrace.report.words import many, size

if TYPE_CHECKING:
    from rich.console import Console

    from headrace.run.prepare import Prepared as PreparedRun

Settings = Annotated[
    list[str] | None,
    unless_given("--set", metavar="NAME=VALUE", help="Override a setting of the file; may be repeated."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done without doing it.")]
Run = Annotated[str | None, typer.Option("--run", help="A run other than the newest.")]
Prepared = Annotated[Path, typer.Argument(help="A dataset directory or a run directory.")]

_WHEN = ("auto", "never")
_CHUNK = 32 << 20  # bytes of text that a task holds at once
_COPIES = 4  # of a chunk: its bytes, their parse, columns, output
_SHARD = 50 << 20  # bytes of histories read while others are written
_COMPRESSED, _COLUMNAR = 8, 4  # size as text, relative to compressed text and to Parquet
_NAMES = {
    "source_bytes": "source",
    "free_bytes": "free",
    "out_bytes": "output, at most about",
    "memory_bytes": "memory of tasks, about",
}


@with_groups
def run(
    config: Annotated[
        Path | None,
        typer.Argument(
            help="YAML or JSON file: recipe, settings, out, workers, fingerprint_by, engine, address.",
            show_default=False,
        ),
    ] = None,
    *,
    out: Annotated[Path | None, typer.Option(help="Output directory; overrides the one in the file.")] = None,
    settings: Settings = None,
    dry_run: DryRun = False,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema of configuration files instead, for editors.")
    ] = False,
    about: RunOptions,
) -> None:
    """Run a recipe from a configuration file.

    In an editor with a YAML language server, the first line of a file names the output of --schema:
    `# yaml-language-server: $schema=headrace.schema.json`. The schema is never stricter than the run.

    Example:  headrace run config.yaml

    Example:  headrace run config.yaml --set seed=7 --dry-run
    """
    from headrace.recipe import find_recipe, recipes
    from headrace.settings import former_names

    if (config is None) != schema:
        raise SettingsError(f"a run needs a configuration, and {setting('schema')} none; give one of them")
    if config is None:
        emit(schema_of(sorted(recipes())), indent=None if about.as_json else 1)
        return
    record = with_settings(read_config(config), settings or ())
    try:
        made_by = find_recipe(record.get("recipe")).settings()
    except SettingsError as error:
        raise SettingsError(f"{config}: {error}") from None
    former = former_names(made_by)
    check_names(config, [name for name in record if name not in former], list(made_by.model_fields))
    record.pop("recipe")
    target, about = about_the_run(config, record, out=out, flags=about)
    recipe = made_by(**record)
    if dry_run:
        show_dry_run(recipe, target, about)
        return
    execute(recipe, target, about)


def execute(recipe: Any, out: Path, about: RunOptions) -> Path:
    """Prepare a recipe with progress on the terminal, print the result and return the run directory.

    report.html is written as --report says, but not with --json.
    """
    from rich.text import Text

    from headrace.cli.progress import progress_on
    from headrace.cli.tables import manifest_record, print_run
    from headrace.run.prepare import prepare
    from headrace.storage.places import path_of, place_of

    if about.report not in _WHEN:
        raise SettingsError(f"--report is {about.report!r}; give one of {', '.join(_WHEN)}")
    if about.workers is not None:  # the thread count of tokenizers, which reads it once
        os.environ.setdefault("RAYON_NUM_THREADS", str(about.workers))
    out = path_of(out)
    inferred = getattr(recipe, "inferred_types", None)  # a recipe of another package may lack it
    if inferred is not None and not about.as_json:  # in the form that --types takes
        types = ",".join(f"{name}={word}" for name, word in inferred.items()) or "none; all text columns stay text"
        printer("err").print(f"types of all rows  {printable(types, 10_000)}", highlight=False, soft_wrap=True)
    with progress_on(printer("err"), recipe.recipe_name, "quiet" if about.as_json else "full") as on_event:
        prepared = prepare(recipe, out, on_event=on_event, **about.options())
    if about.as_json:
        emit(manifest_record(prepared.manifest, prepared.run, prepared.how))
        return prepared.run
    console = printer()
    print_run(console, prepared.manifest, prepared.run, "short")
    if prepared.how == "reused":
        told = ": this run already exists for the same files and settings; nothing was computed"
        console.print(Text.assemble(("reused", "green"), told))
    names = prepared.manifest.facts["directories"]
    if prepared.manifest.folds:
        names = [*list(names)[:1], "…"]
    console.print(
        f"shards  {printable(str(out / 'splits'))}/{{{','.join(names)}}}"
        if place_of(out).has_links
        else f"splits  {printable(str(out / 'splits.json'))} names them",
        highlight=False,
    )
    console.print(f"run     {printable(str(prepared.run))}", highlight=False)
    # A report is opened in the run's directory, so an object store gets none.
    page = _report_of(prepared, about.report, console) if place_of(out).writes == "in place" else None
    if page is not None:
        console.print(f"report  {printable(str(page))}", highlight=False)
    return prepared.run


def _report_of(prepared: PreparedRun, when: str, console: Console) -> Path | None:
    """Write the page of a run that has just finished, or say how to get one; a reused run keeps its page.

    A page that cannot be drawn causes only a warning, because the run itself is finished.
    """
    from headrace.report import REPORT

    page = prepared.run / REPORT
    if when == "never" or (prepared.how == "reused" and not page.exists()):
        return None
    if prepared.how == "reused":
        return page
    from headrace.report.page import can_draw

    if not can_draw():
        console.print(
            "for a report with charts: pip install 'headrace[report]', then headrace inspect --report", style="dim"
        )
        return None
    try:
        from headrace.report.write import write_report

        return write_report(prepared.run)
    except Exception as error:  # noqa: BLE001 - the run is published and sound; a picture must not make it fail
        text = f"warning: no report.html ({type(error).__name__}: {error}); the run itself is complete"
        console.print(text, style="yellow", highlight=False)
        return None


def dry_run(recipe: Any, out: Path, about: RunOptions) -> dict[str, Any]:
    """Collect what is known before a run: its id, its finished tasks, and its need for disk and memory.

    This needs only the names, sizes and times of the source files: no row is read, and nothing is written.
    """
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
    state = "unfinished: it would be resumed" if receipts else "new"
    state = "finished: it would be reused" if finished else state
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
        record |= estimate(recipe, sizes, about.workers or default_workers())
    return {**record, "settings": recipe.config()}


def estimate(recipe: Any, sizes: Mapping[Path, int], workers: int) -> dict[str, Any]:
    """Return upper bounds for a run whose source files have these sizes in bytes.

    out_bytes: of all shards. memory_bytes: of the tasks; libraries take 200 MB more. estimate: in words.
    """
    unpacked = [size * _times(path) for path, size in sizes.items()]
    kept = getattr(recipe, "format", None) == "same" and recipe.compression is None
    output = "the size of the source" if kept else "the size of the source as text"
    if hasattr(recipe, "memory_limit"):
        memory, held = int(recipe.memory_limit) + _SHARD, "memory_limit, plus 50 MiB for the shard being read"
    else:
        chunk = min(_CHUNK, max(unpacked, default=0))
        memory, held = workers * _COPIES * chunk, f"{workers} tasks with chunks of up to {_CHUNK >> 20} MiB each"
    return {
        "out_bytes": sum(sizes.values() if kept else unpacked),
        "memory_bytes": memory,
        "estimate": f"output: at most {output}; memory: {held}",
    }


def _times(path: Path) -> int:
    from headrace.formats.registry import file_type_of_name

    kind = file_type_of_name(path.name)
    if kind is None or kind.compression != "none":
        return _COMPRESSED
    return _COLUMNAR if kind.format.name == "parquet" else 1


def show_dry_run(recipe: Any, out: Path, about: RunOptions) -> None:
    """Print what `execute` would do, without writing anything."""
    record = dry_run(recipe, out, about)
    if about.as_json:
        emit(record)
        return
    from rich.text import Text

    facts = {
        _NAMES.get(name, name): size(value) if name.endswith("_bytes") else value
        for name, value in record.items()
        if name != "settings" and value is not None
    }
    made = record_table(f"{record['recipe']}, not run", facts)
    if record.get("free_bytes") is not None and record.get("out_bytes", 0) > record["free_bytes"]:
        made.add_row("beware", Text("the output may not fit in the free space on the disk", style="bold red"))
    made.add_section()
    for name, value in sorted(record["settings"].items()):
        if name != "recipe":
            made.add_row(name, Text(json.dumps(value, ensure_ascii=False, default=str)))
    printer().print(made)


@dataclass(frozen=True, kw_only=True)
class ReportPage:
    """Flags of the page about a run."""

    report: Annotated[
        bool, typer.Option("--report", help="Draw the run as one page that opens offline; prints where it is.")
    ] = False
    to: Annotated[Path | None, unless_given(help="Write the page to this file instead of into the run.")] = None
    show: Annotated[bool, typer.Option("--open", help="Draw the page and open it in the browser.")] = False

    @property
    def wanted(self) -> bool:
        """True if any of the flags was given."""
        return self.report or self.show or self.to is not None


@with_groups
def inspect(
    out: Prepared,
    *,
    run_id: Run = None,
    folds: Annotated[
        bool, typer.Option("--folds", help="List the folds with the rows of each split; other commands take --fold.")
    ] = False,
    page: ReportPage,
    as_json: Json = False,
) -> None:
    """Print the manifest of a finished run as a table: rows of each split, dropped rows, columns, facts.

    --report draws a page instead: splits in time, entities, packing, what was dropped.

    Example:  headrace inspect out

    Example:  headrace inspect out --report --open
    """
    from headrace.cli.tables import folds_record, folds_table, manifest_record, print_run
    from headrace.dataset.open import find_run

    if folds and page.wanted:
        raise SettingsError(f"{setting('folds')} prints a table and {setting('report')} draws a page; give one of them")
    if page.wanted:
        draw_report(out, run_id, page, as_json=as_json)
        return
    root, manifest = find_run(out, run_id)
    if folds and not manifest.folds:
        raise SettingsError(
            "was prepared as a single split, so it has no folds", path=root, remedy="prepare it with --folds"
        )
    if as_json:
        emit(folds_record(manifest, root) if folds else manifest_record(manifest, root, "finished"))
    elif folds:
        printer().print(folds_table(manifest))
    else:
        print_run(printer(), manifest, root, "full")


def draw_report(out: Path, run: str | None, page: ReportPage, *, as_json: bool) -> None:
    """Write the page of a run, print its path and open it if asked."""
    from headrace.report.write import write_report

    written = write_report(out, run=run, to=page.to)
    if as_json:
        emit({"report": str(written)})
    else:
        say(f"report  {written}")
    if page.show:
        import webbrowser

        if not webbrowser.open(written.resolve().as_uri()):
            say(f"no browser could be started; open {written} yourself", "err")


def verify(
    out: Prepared,
    *,
    run_id: Run = None,
    workers: Annotated[int | None, typer.Option(help="Shards verified at a time; default: one per core.")] = None,
    certificate: Annotated[
        Path | None,
        unless_given(help="Write a certificate of what was proved, and what was not, to this file."),
    ] = None,
    against: Annotated[
        Path | None,
        unless_given(help="Compare the run with a certificate that --certificate wrote."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check digests, row counts and the recipe's laws, derived again from the output. Exit 1 if one fails.

    Example:  headrace verify out

    Example:  headrace verify out --certificate certificate.json
    """
    from rich.text import Text

    from headrace.dataset.verify import verify as check

    verdict = check(out, run=run_id, workers=workers, against=against)
    if certificate is not None and not verdict.problems:
        from headrace.dataset.certificate import write_certificate
        from headrace.dataset.open import FinishedRun, find_run

        write_certificate(FinishedRun(*find_run(out, run_id)), verdict, certificate)
    if as_json:
        checks = [asdict(each) for each in verdict.checks]
        emit({"run_id": verdict.run_id, "ok": not verdict.problems, "checks": checks})
    else:
        made = table(f"verify {verdict.run_id}", ("check", "result", "found"))
        for each in verdict.checks:
            result = Text("ok", "green") if each.problem is None else Text("FAILED", "bold red")
            made.add_row(each.name, result, printable(each.problem or each.detail))
        printer().print(made)
    if verdict.problems:
        raise HeadraceError(f"{verdict.problems[0]}; restore the data or prepare the run again")


def forget(
    named: Annotated[
        list[str], typer.Argument(metavar="[ENTITY]... OUT", help="Entities to erase, then the dataset directory.")
    ],
    *,
    entities: EntityFile = None,
    entity_column: EntityColumn = None,
    delete_old: Annotated[
        bool, typer.Option("--delete-old", help="Delete the old run once the new one is published.")
    ] = False,
    workers: Annotated[int | None, unless_given(min=1, help="Tasks at a time; default: one per core.")] = None,
    work_dir: WorkDir = None,
    as_json: Json = False,
) -> None:
    """Erase entities from a prepared dataset: a new run, in which only the shards that held their rows are written
    again. The other shards are linked, and splits moves to the new run in one step. A run that was killed goes on.

    Without --delete-old the old run stays. Either way the data remains in other runs and copies, caches of decoded
    blocks and checkpoints, and preparing from the source again brings it back.

    Example:  headrace forget C1042 C1077 out

    Example:  headrace forget out --entities erased.txt --delete-old
    """
    from headrace.cli.progress import progress_on
    from headrace.dataset.open import find_run
    from headrace.run.forget import forget as erase

    *names, out = named
    names = names_of(names, entities)
    with progress_on(printer("err"), find_run(out)[1].recipe, "quiet" if as_json else "full") as on_event:
        done = erase(
            out,
            names,
            entity_column=entity_column,
            old_run="delete" if delete_old else "keep",
            workers=workers,
            work_dir=work_dir,
            on_event=on_event,
        )
    if as_json:
        emit(asdict(done))
        return
    say_absent(done.entities - done.found, done.entities, out)
    if done.how == "nothing":
        say("nothing was written: no row belongs to these entities")
    else:
        say(
            f"erased {done.rows:,} rows of {done.found:,} entities: {done.shards:,} shards rewritten, from "
            f"{done.bytes_before:,} to {done.bytes:,} bytes; the other shards are linked"
        )
        say(f"run     {done.run}")
        say(f"record  {done.run / 'forgotten.json'}")
    if done.how != "nothing" and not delete_old:
        say(f"The old run {done.old} still has these rows. --delete-old deletes it.")
    if done.other_runs:
        say(f"Other runs were not checked: {', '.join(done.other_runs)}")
    say(
        "The data is gone only once the old runs, copies of them, caches of decoded blocks and checkpoints "
        "trained on it are deleted too. Preparing again from a source that still has the data brings it back."
    )


def gc(
    out: Annotated[Path | None, typer.Argument(help="A dataset directory.", show_default=False)] = None,
    *,
    incomplete: Annotated[
        bool, typer.Option("--incomplete", help="Also delete unfinished runs, which could be resumed.")
    ] = False,
    tables: Annotated[
        str | None,
        unless_given(metavar="TIME", help="Delete copies of tables that were not opened for this long, such as 30d."),
    ] = None,
    cache_dir: Annotated[
        Path | None, unless_given(help="The cache directory, if another command was given --cache-dir.")
    ] = None,
    work_dir: WorkDir = None,
    as_json: Json = False,
) -> None:
    """Remove what killed runs left behind: temporary files and intermediate stages. Finished shards are never touched.

    With --tables instead of OUT it removes copies of tables from the cache.

    Example:  headrace gc out
    """
    from headrace.run.collect import Swept, collect

    if (out is None) == (tables is None):
        raise SettingsError(
            "gc: nothing to clean was named; give a dataset directory, or --tables TIME to clean "
            "the cache, such as --tables 30d"
        )
    if out is None:
        from headrace.checks import duration_us
        from headrace.dataset.tables import remove_unused

        swept = Swept(*remove_unused(cache_dir, duration_us("--tables", str(tables)) / 1e6), busy=())
    else:
        swept = collect(out, incomplete="remove" if incomplete else "keep", work_dir=work_dir)
    if as_json:
        removed, busy = ([str(path) for path in paths] for paths in (swept.removed, swept.busy))
        emit({"removed": removed, "bytes": swept.bytes, "busy": busy})
        return
    for path in swept.busy:
        say(f"kept, in use: {path}")
    what = "leftover" if tables is None else "table"
    say(f"removed {many(len(swept.removed), what)}, {size(swept.bytes)}")
