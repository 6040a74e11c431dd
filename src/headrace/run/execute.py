"""Make a run that does not exist yet: the recipe's stages, then the index, then the manifest.

It is separate from `prepare`, so that reusing a finished run does not import the libraries that
make one.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.dataset.index import index_bytes
from headrace.dataset.manifest import CONFIG, INDEX, MANIFEST, SUCCESS, Manifest, read_manifest
from headrace.dataset.pointer import make_split_links, split_links
from headrace.digest import sha256_hex
from headrace.engine.choose import engine_named
from headrace.engine.engine import EngineName
from headrace.errors import HeadraceError
from headrace.formats.source import describe_empty
from headrace.formats.types import describe
from headrace.machine import LIBRARIES, library_version
from headrace.recipe import JobSettings
from headrace.run import in_store
from headrace.run.context import STAGE_DIRECTORY, RunContext
from headrace.run.events import Note, OnEvent, Step
from headrace.run.identity import Fingerprint, SourceState, Version, keep_beginning
from headrace.run.receipts import Others, vouch_for
from headrace.storage import local
from headrace.storage.places import place_of

if TYPE_CHECKING:
    from headrace.run.prepare import Outcome


@dataclass(frozen=True)
class Job:
    """A run to be made.

    run: where it is made. target: where it is read; in an object store, this is another path.
    """

    recipe: JobSettings
    run: Path
    target: Path
    files: Sequence[tuple[Path, str]]
    state: SourceState
    fingerprint: str
    fingerprint_by: Fingerprint
    workers: int | None
    on_event: OnEvent
    versions: Mapping[Path, Version]

    @property
    def store(self) -> Path | None:
        if self.run == self.target:
            return None
        return self.target


def make(job: Job, engine: EngineName, address: str | None) -> Manifest:
    """Execute the recipe and publish the run; return its manifest."""
    manifest = read_manifest(job.run)  # a work directory may have it before the store does
    if manifest is None:
        if job.store is not None:
            in_store.adopt(job.store, job.run)
        with engine_named(engine, address, job.workers) as executor:
            context = RunContext(
                job.run,
                job.workers or executor.default_workers(),
                job.on_event,
                executor,
                job.store,
                job.state,
                versions=job.versions,
            )
            outcome = _execute(job, context)
        manifest = _publish(job, context, outcome)
    if job.store is not None:
        _publish_in_store(job, manifest)
    return manifest


def _execute(job: Job, context: RunContext) -> Outcome:
    """Execute the recipe over a source that must not change between the first stage and the
    last.
    """
    # fingerprints by content ignore the times: other content is another run
    if job.fingerprint_by == "stat":
        keep_beginning(job.run / STAGE_DIRECTORY, job.state, job.files)
    with job.state.unchanged():
        outcome = job.recipe.execute(context, job.files)
    with suppress(HeadraceError):
        new = sorted(
            {name for _, name in job.recipe.source_files()} - {name for _, name in job.files}
        )
        if new:
            more = ""
            if len(new) > 1:
                more = f", nor are {len(new) - 1:,} other files"
            context.warn(
                [
                    f"{new[0]} was added to the source during the run and is not part of it{more};"
                    " prepare again to have it"
                ]
            )
    return outcome


def _publish(job: Job, context: RunContext, outcome: Outcome) -> Manifest:
    """Write the last receipt, the index, then the manifest, after which the run is finished."""
    run = job.run
    on_event = job.on_event
    empty = outcome.source["empty_shards"]
    if empty:
        on_event(Note("warning", describe_empty(empty, outcome.source["files"])))
    for stray in local.strays(run):  # a killed attempt left them, and they are no part of the run
        stray.unlink(missing_ok=True)
    others = Others(
        {row.shard for row in outcome.index}, outcome.retained, split_links(outcome.directories)
    )
    receipts = vouch_for(run, context.stages, others, context.workers)
    dialect = outcome.dialect.stored()
    index = index_bytes(outcome.index, outcome.schema, dialect, outcome.texts, outcome.gaps)
    local.write_new(run / INDEX, index)
    on_event(Step("index.linked", INDEX))
    with local.storing(run / CONFIG):
        config = (run / CONFIG).read_bytes()
    manifest = Manifest(
        run_id=job.target.name,
        recipe=job.recipe.recipe_name,
        libraries={
            "python": platform.python_version(),
            **{name: library_version(name) for name in LIBRARIES},
        },
        source={"fingerprint": job.fingerprint, **outcome.source},
        schema=describe(outcome.schema),
        splits=dict(outcome.splits),
        dropped=dict(outcome.dropped),
        index_digest=sha256_hex(index),
        config_digest=sha256_hex(config),
        receipts=receipts,
        metadata={**outcome.metadata, "directories": dict(outcome.directories)},
    )
    make_split_links(run, outcome.directories)  # syncs the run's directory
    place_of(run / MANIFEST).put_new(manifest.to_json())
    on_event(Step("manifest.linked", MANIFEST))
    local.write_new(run / SUCCESS, b"")
    on_event(Step("success.linked", SUCCESS))
    return manifest


def _publish_in_store(job: Job, manifest: Manifest) -> None:
    """Put everything that tasks have not put into the store there, the manifest last."""
    in_store.publish_remaining(
        job.run, job.target, lambda name: job.on_event(Step("shard.linked", name))
    )
    place_of(job.target / MANIFEST).put_new(manifest.to_json())
    job.on_event(Step("manifest.linked", str(job.target / MANIFEST)))
