"""Execute a recipe: identity, stages, index, manifest. Reads like the description of a run.

A run that has a manifest is finished and is reused unchanged. Everything before the manifest is
invisible to readers and can be killed at any instant: finished tasks have receipts, and their files
are kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from headrace.checks import check_integer
from headrace.dataset.manifest import (
    CONFIG,
    MANIFEST,
    SUCCESS,
    Manifest,
    SplitTotals,
    read_manifest,
)
from headrace.dataset.pointer import check_pointer, point_at, point_record_at
from headrace.dataset.receipts import RECEIPTS, STAGE_DIRECTORY, FileRecord
from headrace.digest import canonical_json
from headrace.engine.choose import check_engine
from headrace.engine.engine import EngineName
from headrace.errors import RunBusy, SettingsError, StoreError
from headrace.formats.dialect import PLAIN, TextDialect
from headrace.recipe import JobSettings
from headrace.run import in_store
from headrace.run.events import OnEvent, RunBegan, Step, listener_here, log_warnings
from headrace.run.identity import (
    Fingerprint,
    SourceState,
    check_disjoint,
    check_output,
    fingerprint_of,
    run_id,
    versions_of,
)
from headrace.storage import local
from headrace.storage.cache_room import cache_directory
from headrace.storage.places import path_of, place_of
from headrace.storage.run_lock import RunRemoved, only_writer, remove_run

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.dataset.index import IndexRow
    from headrace.run.execute import Job


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of a recipe's stages: the blocks of every split, and counts made on the way.

    retained: files that the run takes over from another one, which no task has made. Files that
    tasks have not named either are named when the run is published. texts: the types that all
    values of columns of text fit, which streams deliver. gaps: columns of whole numbers or truths
    that lack a value in some rows, as in `SplitIndex`.
    """

    schema: pa.Schema
    index: Sequence[IndexRow]
    splits: Mapping[str, SplitTotals]
    dropped: Mapping[str, int]
    source: Mapping[str, Any]
    directories: Mapping[str, str]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    dialect: TextDialect = PLAIN
    retained: Sequence[FileRecord] = ()
    texts: Mapping[str, pa.DataType] = field(default_factory=dict)
    gaps: Collection[str] = ()


@dataclass(frozen=True)
class Prepared:
    """A finished run.

    out: as given. run: the run's own directory. how: "computed", or "reused" if the run existed and
    nothing was done.
    """

    out: Path
    run: Path
    manifest: Manifest
    how: Literal["computed", "reused"]

    def __repr__(self) -> str:
        rows = ", ".join(f"{name} {totals.rows:,}" for name, totals in self.manifest.splits.items())
        return f"Prepared({self.manifest.recipe}, {self.how}, {str(self.run)!r}: {rows} rows)"

    def _repr_html_(self) -> str:
        """Show the run's path and its rows by split and by drop reason, for notebooks."""
        return self.manifest._repr_html_() + f"<p>{escape(self.how)}: {escape(str(self.run))}</p>"


def prepare(  # noqa: PLR0913 - the arguments are settings
    recipe: JobSettings,
    out: str | Path,
    *,
    workers: int | None = None,
    engine: EngineName = "local",
    address: str | None = None,
    work_dir: str | Path | None = None,
    fingerprint_by: Fingerprint = "stat",
    on_event: OnEvent | None = None,
) -> Prepared:
    """Make the run of this recipe over its source, or reuse it; afterwards `out` has its files and
    links.

    workers: concurrent tasks, by default one per core. engine, address: "ray" runs the tasks on a
    Ray cluster whose nodes share the storage of source and `out`. The address is that of the
    cluster: "auto" for the one this machine belongs to, None for the one this process is connected
    to, or else a Ray on this machine alone. The engine does not change a byte of the output.
    fingerprint_by: "content" identifies sources by their bytes instead of by size and modification
    time. work_dir: a local directory for intermediate files and output (None: ~/.cache/headrace),
    used if `out` is in an object store. The run is made there, published file by file, and removed
    from there at the end. on_event: receives every event, from any thread; see
    `headrace.run.events`. None draws progress below the cell in a notebook; elsewhere, warnings go
    to the log "headrace".

    Neither source nor `out` may be inside the other.
    Raises `SettingsError`, `InputError`, `StoreError`, `EngineError`, `RunBusy`.
    """
    _check_arguments(recipe, engine, address, workers)
    out_path = path_of(out)
    check_output(out_path)
    files = recipe.source_files()
    check_disjoint(out_path, recipe.source_places(), files)
    state = SourceState.of([path for path, _ in files])
    versions = versions_of(files, fingerprint_by, state)
    digest = fingerprint_of(files, versions)
    identity = run_id(recipe.recipe_name, recipe.identity_settings(), digest)
    observer = on_event or listener_here(recipe.recipe_name) or log_warnings
    target = out_path / "runs" / identity
    work = run = target
    if place_of(out_path).writes != "in place":
        work = in_store.work_directory(cache_directory(work_dir, "work_dir"), out_path, identity)
        run = work / "runs" / identity
    how: Literal["computed", "reused"] = "reused"
    with local.storing(target):
        manifest = read_manifest(target)
    if manifest is None:
        from headrace.run.execute import Job

        how = "computed"
        job = Job(
            recipe, run, target, files, state, digest, fingerprint_by, workers, observer, versions
        )
        manifest = _make(job, work, out_path, engine, address)
    if run == target:
        _point_in_place(out_path, run, manifest, observer)
    else:
        _point_in_store(out_path, target, work, manifest, observer)
    return Prepared(out_path, target, manifest, how)


def _make(job: Job, work: Path, out: Path, engine: EngineName, address: str | None) -> Manifest:
    """Make a run that is not finished, alone in its work directory."""
    from headrace.run.execute import make  # loads more libraries

    in_place = job.store is None
    with _working_in(job.run, work):
        check_pointer(out if in_place else work)
        if not (job.run / CONFIG).exists():
            local.write_new(job.run / CONFIG, canonical_json(job.recipe.config()))
        job.on_event(RunBegan(job.target.name))
        manifest = make(job, engine, address)
        if in_place:
            _remove_stage(job.run, job.on_event)
    return manifest


def _check_arguments(
    recipe: object, engine: EngineName, address: str | None, workers: int | None
) -> None:
    if not hasattr(recipe, "source_files"):
        raise SettingsError(
            setting="recipe",
            value=recipe,
            remedy="give the settings of one, such as headrace.TemporalSplit(…)",
        )
    check_engine(engine, address)
    if workers is not None:
        check_integer("workers", workers, least=1)


def _point_in_place(out: Path, run: Path, manifest: Manifest, on_event: OnEvent) -> None:
    """Make the links of a finished run the current ones, and remove what a killed process left."""
    if not (run / SUCCESS).exists():
        local.write_new(run / SUCCESS, b"")
    point_at(out, run, manifest, lambda name, subject: on_event(Step(name, subject)))
    if (run / STAGE_DIRECTORY).is_dir():
        with suppress(RunBusy), only_writer(run):
            _remove_stage(run, on_event)


def _remove_stage(run: Path, on_event: OnEvent) -> None:
    if place_of(run / STAGE_DIRECTORY).delete_below() is not None:
        on_event(Step("stage.removed", STAGE_DIRECTORY))


def _point_in_store(
    out: Path, target: Path, work: Path, manifest: Manifest, on_event: OnEvent
) -> None:
    """Make a finished run of an object store the current one, and remove its intermediate files and
    its local work directory.
    """
    place_of(target / SUCCESS).put_new(b"")
    _remove_stage(target, on_event)
    point_record_at(out, target.name, manifest)
    on_event(Step("splits.linked", str(out)))
    if work.is_dir():
        # a process that still uses it removes it later
        with suppress(RunBusy, StoreError), only_writer(work):
            remove_run(work)


@contextmanager
def _working_in(run: Path, locked: Path) -> Iterator[None]:
    """Make the run's directory and lock it, and remove everything made if the block fails before a
    task has finished.

    A run with a receipt stays, for the next attempt. locked: the directory to lock and remove,
    either the run or its work directory.
    """
    missing = [directory for directory in (run, *run.parents) if not directory.exists()]
    try:
        with ExitStack() as stack:
            while True:
                local.make_directory(run)
                try:
                    stack.enter_context(only_writer(locked))
                    break
                except RunRemoved:  # between the two, by another process; it is made again
                    continue
            yield
    except BaseException:
        with suppress(OSError, StoreError, RunBusy):
            with only_writer(locked):  # raises `RunBusy` if another process works on it
                if not (run / MANIFEST).exists() and not any((run / RECEIPTS).glob("[!.]*.json")):
                    remove_run(locked)
            for directory in missing:
                if directory.exists():
                    directory.rmdir()  # fails at the first one that is not empty
        raise


def _files_below(directory: Path) -> list[Path]:
    """List the files at any depth, sorted; none if there is no such directory."""
    return sorted(path for path in directory.rglob("*") if path.is_file())


def export_tree(run: Path, target: Path, directories: Sequence[str]) -> None:
    """Give the files below `run/<directory>` second names below `target/<directory>` (hard links,
    else copies).

    For programs that expect a run's tree in a directory of its own. Files of another run would mix
    with these, so a target directory that holds other files, even under the same names, is refused
    with `StoreError` before anything changes.
    """
    trees = {name: _files_below(run / name) for name in directories}
    for directory, files in trees.items():
        names = {path.relative_to(run) for path in files}
        base = target / directory
        for path in _files_below(base):
            name = path.relative_to(target)
            if name not in names or not local.same_bytes(path, run / name):
                raise StoreError(
                    "is not of this run and would mix with it",
                    path=path,
                    remedy=f"empty {base} and run again",
                )
    for directory, files in trees.items():
        local.make_directory(target / directory)
        for path in files:
            copy = target / path.relative_to(run)
            local.make_directory(copy.parent)
            local.alias(path, copy)
