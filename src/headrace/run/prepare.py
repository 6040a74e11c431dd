"""Execute a recipe: identity, stages, index, manifest. Reads like the description of a run.

A run that has a manifest is finished and is reused as it is. Everything before the manifest is invisible to readers
and can be killed at any instant: finished tasks have receipts, and their files are kept.
"""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from headrace.dataset.index import IndexRow, index_bytes
from headrace.dataset.manifest import INDEX, MANIFEST, Manifest, SplitTotals, read_manifest
from headrace.dataset.plain import cache_directory
from headrace.digest import canonical_json, sha256_hex
from headrace.engine.choose import engine_named
from headrace.engine.engine import Engine, EngineName, check_engine
from headrace.engine.local import LocalEngine
from headrace.errors import HeadraceError, RunBusy, SettingsError, StoreError
from headrace.formats.schema import describe
from headrace.formats.source import told_empty
from headrace.machine import library_version
from headrace.recipe import Recipe
from headrace.run import in_store
from headrace.run.apart import check_apart
from headrace.run.context import STAGE_DIRECTORY, RunContext
from headrace.run.events import Note, OnEvent, Step, silent
from headrace.run.identity import Fingerprint, fingerprint_of, run_id
from headrace.run.in_notebook import listener_here
from headrace.run.members import Patience, Share
from headrace.run.point import check_pointer, make_own_links, point_at
from headrace.run.sharing import Shared, shared_run
from headrace.run.sharing_in_store import shared_in_store
from headrace.run.source_state import SourceState, keep_beginning
from headrace.storage import local
from headrace.storage.places import path_of, place_of

PATIENCE = Patience()
LIBRARIES = ("headrace", "pyarrow", "polars", "numpy")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a recipe's stages made: the blocks of every split, and what was counted on the way.

    shards: split → (path relative to the run, bytes) of each shard.
    """

    schema: pa.Schema
    index: Sequence[IndexRow]
    splits: Mapping[str, SplitTotals]
    dropped: Mapping[str, int]
    source: Mapping[str, Any]
    directories: Mapping[str, str]
    facts: Mapping[str, Any] = field(default_factory=dict)
    null_values: Sequence[str] = ()


@dataclass(frozen=True)
class Prepared:
    """A finished run. out: as it was given; run: the run's own directory.

    how: "computed", or "reused" where it was there already and nothing was done.
    """

    out: Path
    run: Path
    manifest: Manifest
    how: Literal["computed", "reused"]

    def __repr__(self) -> str:
        rows = ", ".join(f"{name} {totals.rows:,}" for name, totals in self.manifest.splits.items())
        return f"Prepared({self.manifest.recipe}, {self.how}, {str(self.run)!r}: {rows} rows)"

    def _repr_html_(self) -> str:
        """For notebooks: where the run is, and rows of each split and of each reason to drop some."""
        return self.manifest._repr_html_() + f"<p>{escape(self.how)}: {escape(str(self.run))}</p>"


def prepare(
    recipe: Recipe,
    out: str | Path,
    *,
    workers: int | None = None,
    engine: EngineName = "local",
    address: str | None = None,
    shard_of: tuple[int, int] | None = None,
    patience: Patience = PATIENCE,
    work_dir: str | Path | None = None,
    fingerprint_by: Fingerprint = "stat",
    on_event: OnEvent | None = None,
) -> Prepared:
    """Make the run of this recipe over its source, or find it made; `out` then has its files and its links.

    workers: tasks at a time, default one per core. fingerprint_by="content" tells sources apart by their bytes
    instead of by size and modification time. engine="ray" does the tasks on a Ray cluster whose nodes share the
    storage of source and `out`; address: of the cluster, "auto" for the one this machine belongs to, None for the one
    this process is connected to, else a Ray on this machine alone. shard_of=(i, n): this is process i of n, 0 to n - 1,
    that make the run together over storage they share; each returns when the run is finished, whoever did the rest,
    and `patience` says how long they wait for each other. Neither changes a byte of the output.
    out may be in an object store (s3://, gs://, az://): the run is then made in `work_dir`, a local directory with room
    for intermediate files and output (None: ~/.cache/headrace), published file by file, and removed there at the end;
    processes that share it out need the store alone to be common.
    on_event: hears of every step, from any thread; see `headrace.run.events`. None: in a notebook progress is drawn
    below the cell, elsewhere nobody hears.
    Source and out lie apart: neither may be inside the other.
    Raises `SettingsError`, `InputError`, `StoreError`, `EngineError`, `RunBusy`.
    """
    check_engine(engine, address)
    share = None if shard_of is None else Share(*shard_of)
    if share is not None and engine != "local":
        raise SettingsError(
            f"shard_of is {share} and engine is {engine!r}; give one of them: Ray shares a run out itself"
        )
    if workers is not None and workers < 1:
        raise SettingsError(f"workers is {workers}; give 1 or more")
    place = path_of(out)
    files = recipe.source_files()
    check_apart(place, recipe.source_places(), files)
    state = SourceState.of([path for path, _ in files])
    source_fingerprint = fingerprint_of(files, state, fingerprint_by)
    identity = run_id(recipe.recipe_name, recipe.identity_settings(), source_fingerprint)
    hear = on_event if on_event is not None else listener_here(recipe.recipe_name) or silent
    asked = _Asked(
        recipe, place / "runs" / identity, identity, files, state, source_fingerprint, fingerprint_by, workers, hear
    )
    if place_of(place).writes == "whole files":
        base = cache_directory(work_dir, "work_dir")
        if share is not None:
            return _share_in_store(asked, place, base, share, patience)
        return _prepare_in_store(asked, place, base, engine, address)
    return _prepare_here(asked, place, engine, address, share, patience)


def _prepare_here(
    asked: _Asked, out: Path, engine: EngineName, address: str | None, share: Share | None, patience: Patience
) -> Prepared:
    recipe, run, on_event = asked.recipe, asked.run, asked.on_event
    with local.storing(run):
        manifest = read_manifest(run)
    if manifest is not None:
        _point(out, run, manifest, on_event)
        if (run / STAGE_DIRECTORY).is_dir():  # killed behind the manifest
            with suppress(RunBusy), only_writer(run):
                _remove_stage(run, on_event)
        return Prepared(out, run, manifest, "reused")

    clean = nullcontext() if asked.store is not None else _leaving_nothing_useless(run, run)
    with clean, only_writer(run, "alone" if share is None else "shared"):
        check_pointer(out)
        _keep_config(recipe, run)
        if share is None:
            manifest = read_manifest(run)
            if manifest is None:
                with engine_named(engine, address, asked.workers) as at_work:
                    manifest = _compute(asked, at_work)
            _point(out, run, manifest, on_event)
            _remove_stage(run, on_event)
        else:
            manifest = _compute_together(asked, run, share, patience)
            _point(out, run, manifest, on_event)
    return Prepared(out, run, manifest, "computed")


def _prepare_in_store(asked: _Asked, out: Path, base: Path, engine: EngineName, address: str | None) -> Prepared:
    """Make the run in a work directory, and let the store have it piece by piece; see `in_store`."""
    target = out / "runs" / asked.identity
    work = in_store.work_directory(base, out, asked.identity)
    manifest = read_manifest(target)
    how: Literal["computed", "reused"] = "reused"
    if manifest is None:
        run = work / "runs" / asked.identity
        with _leaving_nothing_useless(run, work), only_writer(work):
            if read_manifest(run) is None:
                in_store.adopt(target, run)
            here = replace(asked, run=run, store=target)
            manifest, how = _prepare_here(here, work, engine, address, None, PATIENCE).manifest, "computed"
            _publish_in_store(here, target, manifest)
    return _finish_in_store(asked, out, work, manifest, how)


def _share_in_store(asked: _Asked, out: Path, base: Path, share: Share, patience: Patience) -> Prepared:
    """Make a part of the run in a work directory of this process's own; see `sharing_in_store`."""
    target = out / "runs" / asked.identity
    work = in_store.work_directory(base, out, asked.identity, share)
    manifest = read_manifest(target)
    how: Literal["computed", "reused"] = "reused"
    if manifest is None:
        run = work / "runs" / asked.identity
        with _leaving_nothing_useless(run, work), only_writer(work):
            _keep_config(asked.recipe, run)
            manifest = _compute_together(replace(asked, run=run, store=target), target, share, patience)
            how = "computed"
    return _finish_in_store(asked, out, work, manifest, how)


def _publish_in_store(asked: _Asked, target: Path, made: Manifest) -> None:
    """Put there what tasks have not put there, the manifest last."""
    in_store.publish_rest(asked.run, target, lambda name: asked.on_event(Step("shard.linked", name)))
    place_of(target / MANIFEST).put_new(made.to_json())
    asked.on_event(Step("manifest.linked", str(target / MANIFEST)))


def _finish_in_store(
    asked: _Asked, out: Path, work: Path, manifest: Manifest, how: Literal["computed", "reused"]
) -> Prepared:
    """Name the run as the newest; the work directory has served."""
    target = out / "runs" / asked.identity
    in_store.finish(target)
    in_store.point(out, asked.identity, manifest)
    asked.on_event(Step("splits.linked", str(out)))
    if work.is_dir():
        with suppress(RunBusy, StoreError), only_writer(work):  # another process removes it when it is done with it
            shutil.rmtree(work, ignore_errors=True)
    return Prepared(out, target, manifest, how)


@dataclass(frozen=True)
class _Asked:
    """A run to be made. store: where it is in an object store, if `run` is its work directory."""

    recipe: Recipe
    run: Path
    identity: str
    files: Sequence[tuple[Path, str]]
    state: SourceState
    fingerprint: str
    fingerprint_by: Fingerprint
    workers: int | None
    on_event: OnEvent
    store: Path | None = None


@contextmanager
def _leaving_nothing_useless(run: Path, place: Path) -> Iterator[None]:
    """Make the run's directory; an attempt that fails before a task has finished removes what it made.

    A run with a receipt stays, for the next attempt. place: what is locked and removed, the run or its work directory.
    """
    missing = [each for each in (run, *run.parents) if not each.exists()]
    local.make_directory(run)
    try:
        yield
    except BaseException:
        with suppress(OSError, StoreError, RunBusy):
            with only_writer(place):  # another process may work on it
                if not (run / MANIFEST).exists() and not any((run / "receipts").glob("[!.]*.json")):
                    shutil.rmtree(place)
            for each in missing:
                if each.exists():
                    each.rmdir()  # stops at the first that holds something else
        raise


def _keep_config(recipe: Recipe, run: Path) -> None:
    config = canonical_json(recipe.config())
    if not (run / "config.json").exists():
        local.write_new(run / "config.json", config)


def _compute(asked: _Asked, engine: Engine) -> Manifest:
    return _publish(asked, _execute(asked, engine, None))


def _execute(asked: _Asked, engine: Engine, shared: Shared | None) -> Outcome:
    """Let the recipe do its work, over a source that stays what it was from the first stage to the last."""
    if asked.fingerprint_by == "stat":  # content that differs is another run, whatever the times say
        keep_beginning(asked.run / STAGE_DIRECTORY, asked.state, asked.files)
    workers = asked.workers or engine.default_workers()
    context = RunContext(asked.run, workers, asked.on_event, engine, shared, asked.store, asked.state)
    with asked.state.unchanged():
        outcome = asked.recipe.execute(context, asked.files)
    _tell_of_new_files(asked)
    return outcome


def _tell_of_new_files(asked: _Asked) -> None:
    """The run is of the files that were there when it began; what came since is for the next one."""
    with suppress(HeadraceError):
        new = sorted({name for _, name in asked.recipe.source_files()} - {name for _, name in asked.files})
        if new:
            told = f"{new[0]} came into the source during the run and is not part of it"
            more = f", nor are {len(new) - 1:,} other files" if len(new) > 1 else ""
            asked.on_event(Note("warning", f"{told}{more}; prepare again to have it"))


def _compute_together(asked: _Asked, place: Path, share: Share, patience: Patience) -> Manifest:
    """Execute the recipe with other processes. One of them publishes; the last one to leave removes the stage.

    place: of the run that they share: its directory, or where it is in an object store.
    """
    on_event = asked.on_event
    taken: Shared | None = None
    try:
        with _part_in(place, share, patience, on_event) as taken:
            # Once this process takes part nobody removes the stage: what is unfinished now can be gone on with.
            if read_manifest(place) is None:
                _execute_together(asked, place, taken)
    except Exception:
        # Who lags behind may miss what the others, having finished, have removed.
        if read_manifest(place) is None:
            raise
    if taken is not None and taken.members.is_last():
        with suppress(StoreError):  # another one is just removing it
            _remove_stage(place, on_event)
    manifest = read_manifest(place)
    assert manifest is not None
    return manifest


def _part_in(place: Path, share: Share, patience: Patience, on_event: OnEvent) -> AbstractContextManager[Shared]:
    take_part = shared_run if place_of(place).writes == "in place" else shared_in_store
    return take_part(place, share, patience, on_event)


def _execute_together(asked: _Asked, place: Path, shared: Shared) -> None:
    outcome = _execute(asked, LocalEngine(), shared)
    if shared.alone("publish", lambda: read_manifest(place) is not None):
        manifest = _publish(asked, outcome)
        if asked.store is not None:
            _publish_in_store(asked, asked.store, manifest)


def _publish(asked: _Asked, outcome: Outcome) -> Manifest:
    recipe, run, on_event = asked.recipe, asked.run, asked.on_event
    empty = outcome.source["empty_shards"]
    if empty:
        on_event(Note("warning", told_empty(empty, outcome.source["files"])))
    index = index_bytes(outcome.index, outcome.schema, outcome.null_values)
    local.write_new(run / INDEX, index)
    on_event(Step("index.linked", INDEX))
    manifest = Manifest(
        run_id=asked.identity,
        recipe=recipe.recipe_name,
        libraries={"python": platform.python_version(), **{name: library_version(name) for name in LIBRARIES}},
        source={"fingerprint": asked.fingerprint, **outcome.source},
        schema=describe(outcome.schema),
        splits=dict(outcome.splits),
        dropped=dict(outcome.dropped),
        index_digest=sha256_hex(index),
        config_digest=sha256_hex((run / "config.json").read_bytes()),
        facts={**outcome.facts, "directories": dict(outcome.directories)},
    )
    make_own_links(run, manifest)  # syncs the run's directory
    place_of(run / MANIFEST).put_new(manifest.to_json())  # another process may have published the same one
    on_event(Step("manifest.linked", MANIFEST))
    local.write_new(run / "_SUCCESS", b"")
    on_event(Step("success.linked", "_SUCCESS"))
    return manifest


def _point(out: Path, run: Path, manifest: Manifest, on_event: OnEvent) -> None:
    if not (run / "_SUCCESS").exists():
        local.write_new(run / "_SUCCESS", b"")
    point_at(out, run, manifest, on_event)


def _remove_stage(run: Path, on_event: OnEvent) -> None:
    """Intermediate files have served once there is a manifest."""
    if place_of(run / STAGE_DIRECTORY).delete_below() is not None:
        on_event(Step("stage.removed", STAGE_DIRECTORY))


@contextmanager
def only_writer(run: Path, how: Literal["alone", "shared"] = "alone") -> Iterator[None]:
    """Hold the run's lock: alone, or with others that share the run out. It is politeness: losing it costs double work.

    Raises `RunBusy` if another process holds it otherwise.
    """
    lock = run / ".lock"
    with local.storing(lock):
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_EX if how == "alone" else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunBusy(
                f"{run}: another process is working on this run; wait for it and run again to reuse its result"
            ) from None
        except OSError:
            pass  # a file system without locks
        if not os.path.exists(lock) or os.stat(lock).st_ino != os.fstat(descriptor).st_ino:
            raise RunBusy(f"{run}: was just removed by a process that failed or swept it; run again")
        yield
    finally:
        os.close(descriptor)
