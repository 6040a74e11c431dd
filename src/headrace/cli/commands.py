"""The commands that work on any recipe: run, inspect, verify, gc."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Annotated, Any

import typer

from headrace.cli.flags import Json, RunOptions, WorkDir, with_groups
from headrace.cli.output import emit, printer, say
from headrace.cli.report_command import check_when, report_of
from headrace.errors import HeadraceError, SettingsError
from headrace.printable import printable

OF_THE_RUN = ("out", "workers", "fingerprint_by", "engine", "address")  # in a configuration, beside the settings

Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="A setting instead of the file's; may be repeated.", show_default=False
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]
Run = Annotated[str | None, typer.Option("--run", help="Another run than the newest.")]
Prepared = Annotated[Path, typer.Argument(help="A dataset directory or a run directory.")]


@with_groups
def run(
    config: Annotated[
        Path, typer.Argument(help="YAML or JSON file: recipe, settings, out, workers, fingerprint_by, engine, address.")
    ],
    *,
    out: Annotated[Path | None, typer.Option(help="Output directory; overrides the file's.")] = None,
    settings: Settings = None,
    dry_run: DryRun = False,
    about: RunOptions,
) -> None:
    """Run a recipe from a configuration file.

    Example:  headrace run config.yaml

    Example:  headrace run config.yaml --set seed=7 --dry-run
    """
    from headrace.recipe import load, registration
    from headrace.settings import former_names

    record = with_settings(read_config(config), settings or ())
    try:
        made_by = load(registration(record.get("recipe")).settings)
    except SettingsError as error:
        raise SettingsError(f"{config}: {error}") from None
    former = former_names(made_by)
    check_names(config, [name for name in record if name not in former], list(made_by.model_fields))
    record.pop("recipe")
    target, about = about_the_run(config, record, out=out, flags=about)
    recipe = made_by(**record)
    if dry_run:
        from headrace.cli.dry_run import show_dry_run

        show_dry_run(recipe, target, about)
        return
    execute(recipe, target, about)


def read_config(path: Path) -> dict[str, Any]:
    """Read the settings in a YAML or JSON file. Raises `SettingsError`."""
    import yaml

    from headrace.settings import load_yaml, shown

    if path.is_dir():
        raise SettingsError(
            f"{path}: is a directory; give a file of settings, `headrace init RECIPE {path} … --config FILE` writes one"
        )
    try:
        record = load_yaml(path.read_text("utf-8"))
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: is not UTF-8 (byte {error.start}); convert it to UTF-8") from error
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise SettingsError(f"{path}: is no YAML ({error}); correct it") from error
    if not isinstance(record, dict):
        raise SettingsError(f"{path}: holds no settings; write `recipe: temporal_split` and its settings")
    for wrong in (key for key in record if not isinstance(key, str)):
        raise SettingsError(f"{path}: {shown(wrong)} is no name of a setting; write names as text")
    return record


def with_settings(record: Mapping[str, Any], texts: Sequence[str]) -> dict[str, Any]:
    """Return the record with each NAME=VALUE put in; the value is YAML, a name with dots goes into nested settings.

    Raises `SettingsError`.
    """
    changed = dict(record)
    for text in texts:
        name, value = one_setting(text)
        *path, last = name.split(".")
        inner = changed
        for step in path:
            below = inner.get(step, {})
            if not isinstance(below, Mapping):
                raise SettingsError(f"--set {text!r}: {step} is {below!r} and has no {last}; set {step} as a whole")
            inner[step] = dict(below)
            inner = inner[step]
        inner[last] = value
    return changed


def one_setting(text: str) -> tuple[str, Any]:
    """Read NAME=VALUE as (name, value). Raises `SettingsError`."""
    import yaml

    from headrace.settings import load_yaml

    name, found, value = text.partition("=")
    if not found or not name.strip():
        raise SettingsError(f"--set is {text!r}; give NAME=VALUE, e.g. --set seed=7")
    try:
        return name.strip(), load_yaml(value)
    except yaml.YAMLError as error:
        raise SettingsError(f"--set {text!r}: the value is no YAML ({error}); quote it") from error


def check_names(where: object, names: Iterable[str], known: Sequence[str]) -> None:
    """Raise `SettingsError` naming everything that is no setting, each with the nearest one."""
    allowed = [*known, "recipe", *OF_THE_RUN]
    strange: list[str] = []
    for name in (each for each in names if each not in allowed):
        near = difflib.get_close_matches(name, allowed, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(allowed)}"
        told = any(line.endswith(hint) for line in strange)  # all of them once is enough
        strange.append(f"{where}: {name!r} is no setting" + ("" if told else f"; {hint}"))
    if strange:
        raise SettingsError(*strange)


def about_the_run(
    config: Path, record: dict[str, Any], *, out: Path | None, flags: RunOptions
) -> tuple[Path, RunOptions]:
    """Take out of a configuration what is about the run itself: (output, the flags with what only the file says).

    Flags come before the file. Raises `SettingsError`.
    """
    from headrace.settings import shown
    from headrace.storage.places import path_of

    found = {name: record.pop(name, None) for name in OF_THE_RUN}
    target = out or found["out"]
    count = found["workers"] if flags.workers is None else flags.workers
    if target is None:
        raise SettingsError(f"{config}: has no `out`; add it, or give --out DIRECTORY")
    if not isinstance(target, str | PurePath):
        raise SettingsError(f"{config}: out is {shown(target)}; give a directory")
    if count is not None and (not isinstance(count, int) or isinstance(count, bool)):
        raise SettingsError(f"{config}: workers is {shown(count)}; give a number, 1 or more")
    words = {name: getattr(flags, name) or found[name] for name in ("fingerprint_by", "engine", "address")}
    return path_of(target), replace(flags, workers=count, **words)


def execute(recipe: Any, out: Path, about: RunOptions) -> Path:
    """Prepare a recipe with progress on the terminal, and print what came of it. Returns the run directory.

    report.html is written as --report says, but not for machines (--json).
    """
    from rich.text import Text

    from headrace.cli.progress import progress_on
    from headrace.cli.tables import manifest_record, print_run
    from headrace.run.prepare import prepare
    from headrace.storage.places import path_of, place_of

    check_when(about.report)
    if about.workers is not None:  # tokenizers' own threads, of which it asks once
        os.environ.setdefault("RAYON_NUM_THREADS", str(about.workers))
    out = path_of(out)
    with progress_on(printer("err"), recipe.recipe_name, "quiet" if about.as_json else "full") as on_event:
        prepared = prepare(recipe, out, on_event=on_event, **about.options())
    if about.as_json:
        emit(manifest_record(prepared.manifest, prepared.run, prepared.how))
        return prepared.run
    console = printer()
    print_run(console, prepared.manifest, prepared.run, "short")
    if prepared.how == "reused":
        told = ": this was made before from the same files and settings; nothing was computed"
        console.print(Text.assemble(("reused", "green"), told))
    console.print(
        f"shards  {printable(str(out / 'splits'))}/{{{','.join(prepared.manifest.facts['directories'])}}}"
        if place_of(out).has_links
        else f"splits  {printable(str(out / 'splits.json'))} names them",
        highlight=False,
    )
    console.print(f"run     {printable(str(prepared.run))}", highlight=False)
    # A report is looked at where the run lies, so there is none where files cannot be opened in place.
    page = report_of(prepared, about.report, console) if place_of(out).writes == "in place" else None
    if page is not None:
        console.print(f"report  {printable(str(page))}", highlight=False)
    return prepared.run


def inspect(out: Prepared, *, run_id: Run = None, as_json: Json = False) -> None:
    """Print the manifest of a finished run as a table.

    Example:  headrace inspect out
    """
    from headrace.cli.tables import manifest_record, print_run
    from headrace.dataset.open import find_run

    root, manifest = find_run(out, run_id)
    if as_json:
        emit(manifest_record(manifest, root, "finished"))
        return
    print_run(printer(), manifest, root, "full")


def verify(
    out: Prepared,
    *,
    run_id: Run = None,
    workers: Annotated[int | None, typer.Option(help="Shards at a time; default one per core.")] = None,
    as_json: Json = False,
) -> None:
    """Check digests, row counts and the recipe's laws, derived again from the output. Exit 1 if one fails.

    Example:  headrace verify out
    """
    from rich.table import Table
    from rich.text import Text

    from headrace.dataset.verify import verify as check

    verdict = check(out, run=run_id, workers=workers)
    if as_json:
        checks = [{"name": each.name, "detail": each.detail, "problem": each.problem} for each in verdict.checks]
        emit({"run_id": verdict.run_id, "ok": not verdict.problems, "checks": checks})
    else:
        table = Table(title=f"verify {verdict.run_id}", title_justify="left", header_style="bold")
        table.add_column("check")
        table.add_column("result")
        table.add_column("found", overflow="fold")
        for each in verdict.checks:
            result = Text("ok", "green") if each.problem is None else Text("FAILED", "bold red")
            table.add_row(each.name, result, printable(each.problem or each.detail))
        printer().print(table)
    if verdict.problems:
        raise HeadraceError(f"{verdict.problems[0]}; restore the data or prepare the run again")


def gc(
    out: Annotated[Path, typer.Argument(help="A dataset directory.")],
    *,
    incomplete: Annotated[
        bool, typer.Option("--incomplete", help="Delete unfinished runs too; they could be resumed.")
    ] = False,
    work_dir: WorkDir = None,
    as_json: Json = False,
) -> None:
    """Remove what killed runs left behind: temporary files and intermediate stages. Finished shards are never touched.

    Example:  headrace gc out
    """
    from headrace.run.collect import collect

    swept = collect(out, incomplete="remove" if incomplete else "keep", work_dir=work_dir)
    if as_json:
        removed, busy = ([str(path) for path in paths] for paths in (swept.removed, swept.busy))
        emit({"removed": removed, "bytes": swept.bytes, "busy": busy})
        return
    for path in swept.busy:
        say(f"left alone, in use: {path}")
    say(f"removed {len(swept.removed):,} leftovers, {swept.bytes / 1e6:,.1f} MB")
