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
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, Protocol

import pyarrow as pa

from headrace.dataset.index import IndexRow, index_bytes
from headrace.dataset.manifest import INDEX, MANIFEST, Manifest, SplitTotals, read_manifest
from headrace.digest import canonical_json, sha256_hex
from headrace.engine.choose import engine_named
from headrace.engine.engine import EngineName, check_engine
from headrace.errors import RunBusy, SettingsError
from headrace.formats.schema import describe
from headrace.run.context import RunContext
from headrace.run.events import OnEvent, Step, silent
from headrace.run.identity import Fingerprint, fingerprint, run_id
from headrace.storage import local

STAGE_DIRECTORY = "stage"
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


class Recipe(Protocol):
    """An offline job."""

    @property
    def recipe_name(self) -> str: ...

    def identity_settings(self) -> dict[str, Any]:
        """Every setting that can change a byte of output, as JSON."""

    def config(self) -> dict[str, Any]:
        """Everything that was asked, as JSON; never a credential."""

    def source_files(self) -> list[tuple[Path, str]]:
        """The files of the source and their names relative to its root."""

    def execute(self, context: RunContext, files: Sequence[tuple[Path, str]]) -> Outcome:
        """Do the work."""


@dataclass(frozen=True)
class Prepared:
    """A finished run. reused: it was there already, and nothing was computed."""

    out: Path
    run: Path
    manifest: Manifest
    how: Literal["computed", "reused"]


def prepare(
    recipe: Recipe,
    out: str | Path,
    *,
    workers: int | None = None,
    engine: EngineName = "local",
    address: str | None = None,
    fingerprint_by: Fingerprint = "stat",
    on_event: OnEvent = silent,
) -> Prepared:
    """Make the run of this recipe over its source, or find it made; `out` then has its files and its links.

    workers: tasks at a time, default one per core. fingerprint_by="content" tells sources apart by their bytes
    instead of by size and modification time. engine="ray" does the tasks on a Ray cluster whose nodes share the
    storage of source and `out`; address: of the cluster, "auto" for the one this machine belongs to, None for the one
    this process is connected to, else a Ray on this machine alone. The engine changes no byte of the output.
    Raises `SettingsError`, `InputError`, `StoreError`, `EngineError`, `RunBusy`.
    """
    check_engine(engine, address)
    if workers is not None and workers < 1:
        raise SettingsError(f"workers is {workers}; give 1 or more")
    out = Path(out)
    files = recipe.source_files()
    source_fingerprint = fingerprint(files, fingerprint_by)
    identity = run_id(recipe.recipe_name, recipe.identity_settings(), source_fingerprint)
    run = out / "runs" / identity

    with local.storing(run):
        manifest = read_manifest(run)
    if manifest is not None:
        _link_splits(out, run, manifest, on_event)
        if (run / STAGE_DIRECTORY).is_dir():  # killed behind the manifest
            with suppress(RunBusy), only_writer(run):
                _remove_stage(run, on_event)
        return Prepared(out, run, manifest, "reused")

    local.make_directory(run)
    with only_writer(run):
        manifest = read_manifest(run)
        if manifest is None:
            config = canonical_json(recipe.config())
            if not (run / "config.json").exists():
                local.write_new(run / "config.json", config)
            with engine_named(engine, address, workers) as at_work:
                context = RunContext(run, workers or at_work.default_workers(), on_event, at_work)
                outcome = recipe.execute(context, files)
            manifest = _publish(recipe, run, identity, source_fingerprint, outcome, on_event)
        _link_splits(out, run, manifest, on_event)
        _remove_stage(run, on_event)
    return Prepared(out, run, manifest, "computed")


def _publish(
    recipe: Recipe, run: Path, identity: str, source_fingerprint: str, outcome: Outcome, on_event: OnEvent
) -> Manifest:
    index = index_bytes(outcome.index, outcome.schema, outcome.null_values)
    local.write_new(run / INDEX, index)
    on_event(Step("index.linked", INDEX))
    manifest = Manifest(
        run_id=identity,
        recipe=recipe.recipe_name,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        libraries={"python": platform.python_version(), **{name: version(name) for name in LIBRARIES}},
        source={"fingerprint": source_fingerprint, **outcome.source},
        schema=describe(outcome.schema),
        splits=dict(outcome.splits),
        dropped=dict(outcome.dropped),
        index_digest=sha256_hex(index),
        config_digest=sha256_hex((run / "config.json").read_bytes()),
        facts={**outcome.facts, "directories": dict(outcome.directories)},
    )
    local.sync_directory(run)
    local.write_new(run / MANIFEST, manifest.to_json())
    on_event(Step("manifest.linked", MANIFEST))
    local.sync_directory(run)
    local.write_new(run / "_SUCCESS", b"")
    on_event(Step("success.linked", "_SUCCESS"))
    return manifest


def _link_splits(out: Path, run: Path, manifest: Manifest, on_event: OnEvent) -> None:
    """`splits/<split>` points at the newest finished run, and so does every file that it publishes beside `splits/`.

    Links that an earlier run left and this one has no use for are removed first: a `valid` of yesterday beside a
    `train` of today would be a leak.
    """
    if not (run / "_SUCCESS").exists():
        local.write_new(run / "_SUCCESS", b"")
    directory = local.make_directory(out / "splits")
    links = {directory / split: relative for split, relative in manifest.facts["directories"].items()}
    links |= {out / name: relative for name, relative in manifest.facts.get("published", {}).items()}
    for stale in sorted([*directory.iterdir(), *out.iterdir()]):
        if stale not in links and _leads_into_a_run(stale, out):
            with local.storing(stale):
                stale.unlink(missing_ok=True)
    for link, relative in sorted(links.items()):
        target = run / relative
        if link.is_symlink() and os.readlink(link) == os.path.relpath(target, link.parent):
            continue
        local.point(link, target)
    on_event(Step("splits.linked", str(directory)))


def _leads_into_a_run(link: Path, out: Path) -> bool:
    if not link.is_symlink() or link.name.startswith(local.TEMP_PREFIX):
        return False
    target = os.path.normpath(link.parent / os.readlink(link))
    return Path(target).is_relative_to(os.path.normpath(out / "runs"))


def _remove_stage(run: Path, on_event: OnEvent) -> None:
    """Intermediate files have served once there is a manifest."""
    stage = run / STAGE_DIRECTORY
    if stage.is_dir():
        with local.storing(stage):
            shutil.rmtree(stage)
        on_event(Step("stage.removed", STAGE_DIRECTORY))


@contextmanager
def only_writer(run: Path) -> Iterator[None]:
    """Hold the run's lock. It is politeness: losing it costs double work, never a wrong result."""
    lock = run / ".lock"
    with local.storing(lock):
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunBusy(
                f"{run}: another process is working on this run; wait for it and run again to reuse its result"
            ) from None
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(descriptor)
