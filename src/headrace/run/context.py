"""Run the stages of a run: tasks whose outputs are files with receipts.

Until a task has a receipt, the intermediate files include a record of its attempts: one when it starts, and another if
it fails. The records that a stopped run leaves name the tasks that failed and those that were interrupted; the next
attempt reports them and does both again. Records only inform people; the program never relies on them.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import pyarrow as pa

from headrace.digest import canonical_json, checksum_file
from headrace.engine.engine import Engine
from headrace.engine.local import LocalEngine
from headrace.errors import HeadraceError, StoreError
from headrace.formats.write import HashingFile, Written
from headrace.run.events import Note, OnEvent, StageBegan, Step, TaskDone
from headrace.run.identity import SourceState
from headrace.run.in_store import fetch_tasks, publish_found, publish_task
from headrace.run.receipts import STAGE_DIRECTORY as STAGE_DIRECTORY
from headrace.run.receipts import FileRecord, Receipt, read_receipt, receipts_of, write_receipt
from headrace.run.sharing import Shared
from headrace.storage import local

Result = TypeVar("Result")

ATTEMPTS = f"{STAGE_DIRECTORY}/attempts"
_NO_SOURCES = SourceState({})
_TOLD = 3  # number of tasks named in a message


@dataclass
class TaskFiles:
    """The files that a task makes. They get their final names together, when the task has finished."""

    run: Path
    durable: bool
    existing: local.Existing | None = None
    _made: list[tuple[Path, Path, Written]] = field(default_factory=list)
    _begun: set[Path] = field(default_factory=set)
    _directories: set[Path] = field(default_factory=set)

    def temporary(self, target: str) -> Path:
        """Return a temporary path for the file that will be `target`, relative to the run directory."""
        path = self.run / target
        if path.parent not in self._directories:
            local.make_directory(path.parent)
            self._directories.add(path.parent)
        temporary = local.temporary_for(path)
        self._begun.add(temporary)
        return temporary

    def write(self, target: str, data: bytes) -> Written:
        """Write a file of these bytes, without a row count."""
        temporary = self.temporary(target)
        with HashingFile(temporary) as file:
            file.write(data)
        written = file.holding(0)
        self.finished(temporary, target, written)
        return written

    def write_arrow(self, target: str, table: pa.Table) -> None:
        """Write a table as a checksummed intermediate file for a later stage to map. Raises `StoreError`."""
        with self.arrow_batches(target, table.schema) as write:
            write(table)

    @contextmanager
    def arrow_batches(self, target: str, schema: pa.Schema) -> Iterator[Callable[[pa.Table], None]]:
        """Write an intermediate file, as `write_arrow` does, of tables one after the other.

        A table in one chunk, or empty, becomes a record batch.
        """
        temporary, rows = self.temporary(target), 0
        with (
            local.storing(temporary.parent),
            pa.OSFile(str(temporary), "wb") as sink,
            pa.ipc.new_file(sink, schema) as writer,
        ):

            def write(table: pa.Table) -> None:
                nonlocal rows
                writer.write_table(table)
                if not table.num_rows:  # Arrow writes no batch for an empty table
                    writer.write_batch(pa.RecordBatch.from_pylist([], schema))
                rows += table.num_rows

            yield write
        size = temporary.stat().st_size
        self.finished(temporary, target, Written(rows, size, "", (), checksum_file(temporary)))

    def finished(self, temporary: Path, target: str, written: Written) -> None:
        """Record that the file at `temporary` is complete."""
        self._made.append((temporary, self.run / target, written))

    def publish(self, on_event: OnEvent) -> tuple[FileRecord, ...]:
        """Give every finished file its final name."""
        published = []
        for temporary, target, written in self._made:
            name = target.relative_to(self.run).as_posix()
            on_event(Step("shard.written", name))

            def announce(step: str, name: str = name) -> None:
                on_event(Step("shard.synced" if step == "synced" else "shard.linked", name))

            sync: local.Sync = "file" if self.durable else "none"
            local.publish(temporary, target, sync=sync, existing=self.existing, announce=announce)
            published.append(FileRecord(name, written.bytes, written.digest, written.checksum))
            self._begun.remove(temporary)
        return tuple(published)

    def discard(self) -> None:
        """Remove files that were begun and not published."""
        for temporary in self._begun:
            temporary.unlink(missing_ok=True)


def read_arrow(path: Path) -> pa.Table:
    """Map a table that `TaskFiles.write_arrow` made, each column as one chunk."""
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source).read_all().combine_chunks()


@dataclass(frozen=True)
class Task:
    """An independent piece of a stage. `work` makes files and returns JSON for the receipt.

    subject: the file or split it is about; rows and bytes of its input are taken from the result's "rows_read" and
    `input_bytes`, for progress only. reads: the files of the source that it reads, which must not change meanwhile.
    """

    subject: str
    input_bytes: int
    work: Callable[[TaskFiles], dict[str, Any]]
    reads: Sequence[Path] = ()


@dataclass(frozen=True)
class RunContext:
    """A run being executed.

    engine: runs its tasks. shared: this process's part if other processes make the run too. store: the run's location
    if it is in an object store; `run` is then its work directory. sources: the state of the source when the run began.
    """

    run: Path
    workers: int
    on_event: OnEvent
    engine: Engine = field(default_factory=LocalEngine)
    shared: Shared | None = None
    store: Path | None = None
    sources: SourceState = _NO_SOURCES

    def stage(self, name: str, tasks: Sequence[Task], *, durable: bool = True) -> list[Receipt]:
        """Run all tasks that have no valid receipt, and return the receipts of all tasks, in task order.

        durable=False is for intermediate files: they are accepted only if their digest matches, so they need no sync. A
        note lists the tasks that an earlier attempt at the run began and did not finish, with their errors.
        """
        local.make_directory(self.run / "receipts")
        do = partial(do_task, self.run, name, sources=self.sources)
        if self.shared is None:
            store = self.store if durable else None
            receipts = self._alone(name, tasks, partial(do, durable=durable, store=store), store)
        else:  # other processes check only the file sizes of a receipt, so all files are synced
            existing: local.Existing = "compare" if durable else "replace"
            do = partial(do, durable=True, existing=existing, store=self.store)
            receipts = self._together(self.shared, name, tasks, do)
        if durable:
            for directory in sorted({(self.run / each.path).parent for receipt in receipts for each in receipt.files}):
                local.sync_directory(directory)
        return receipts

    def map(self, tasks: Sequence[Callable[[], Result]]) -> list[Result]:
        """Return the results of tasks that only read, in task order. They leave no receipts."""
        work = [partial(_silently, task) for task in tasks]
        return self.engine.run(work, self.workers, hear=self.on_event, done=lambda place, result: None)

    def warn(self, texts: Iterable[str]) -> None:
        """Emit each of these sentences as a warning."""
        for text in texts:
            self.on_event(Note("warning", text))

    def _done(self, stage: str, task: Task, receipt: Receipt) -> None:
        rows = int(receipt.result.get("rows_read", 0))
        self.on_event(TaskDone(stage, task.subject, rows, task.input_bytes))

    def _alone(self, name: str, tasks: Sequence[Task], do: Callable[..., Receipt], store: Path | None) -> list[Receipt]:
        found = {number: read_receipt(self.run, name, number) for number in range(len(tasks))}
        receipts = {number: receipt for number, receipt in found.items() if receipt is not None}
        self.on_event(StageBegan(name, len(tasks), len(receipts)))
        for number, receipt in receipts.items():
            self._done(name, tasks[number], receipt)
        left = [number for number in range(len(tasks)) if number not in receipts]
        if left:
            if (sentence := told(name, attempts_left(self.run, name, left))) is not None:
                self.on_event(Note("warning", sentence))
            with suppress(OSError, StoreError):
                local.make_directory(self.run / ATTEMPTS)
        made = self.engine.run(
            [partial(do, number, tasks[number]) for number in left],
            self.workers,
            hear=self.on_event,
            done=lambda place, receipt: self._done(name, tasks[left[place]], receipt),
        )
        receipts |= dict(zip(left, made, strict=True))
        if store is not None:  # an earlier attempt may have been killed before it published these tasks
            publish_found(self.run, store, [found[number] for number in sorted(found)], self.workers)
        return [receipts[number] for number in range(len(tasks))]

    def _together(self, shared: Shared, name: str, tasks: Sequence[Task], do: Callable[..., Receipt]) -> list[Receipt]:
        if self.store is not None:  # files made before this process was killed may exist only here
            kept = sorted(number for number in receipts_of(self.run, name) if number < len(tasks))
            publish_found(self.run, self.store, [read_receipt(self.run, name, each) for each in kept], self.workers)
        receipts = shared.stage(
            name,
            [task.subject for task in tasks],
            lambda number: do(number, tasks[number], self.on_event),
            self.workers,
            begin=lambda finished: self.on_event(StageBegan(name, len(tasks), finished)),
            accept=lambda receipt: self._done(name, tasks[receipt.number], receipt),
        )
        if self.store is not None:
            fetch_tasks(self.store, self.run, receipts)
        return receipts


def do_task(
    run: Path,
    stage: str,
    number: int,
    task: Task,
    on_event: OnEvent,
    *,
    durable: bool,
    existing: local.Existing | None = None,
    store: Path | None = None,
    sources: SourceState = _NO_SOURCES,
) -> Receipt:
    """Run one task, publish its files, then its receipt. A repeated task leaves the same files.

    store: the run in an object store, which receives both as well. sources: the state of the source's files.
    Raises `InputError` if one of those changed, and `StoreError` if the run directory is not visible, as on a machine
    that does not share the storage.
    """
    if not run.is_dir():
        raise StoreError(
            f"{run}: is not seen from {platform.node()}; all machines must share the storage of the output directory"
        )
    files = TaskFiles(run, durable, existing)
    with recorded(run, stage, number, task.subject, task.input_bytes):
        try:
            with sources.part(task.reads).unchanged():
                result = task.work(files)
            published = files.publish(on_event)
        finally:
            files.discard()
        receipt = Receipt(stage, number, task.subject, published, result)
        write_receipt(run, receipt)
    if store is not None:
        publish_task(run, store, receipt)
    on_event(Step("receipt.linked", f"{stage}-{number:05d}"))
    return receipt


def _silently(task: Callable[[], Result], _: OnEvent) -> Result:
    return task()


@dataclass(frozen=True)
class Attempt:
    """A task that has no receipt yet. number: of the attempt, from 1. seconds: until it failed."""

    stage: str
    task: int
    subject: str
    state: Literal["started", "failed"]
    number: int
    started_at: str
    input_bytes: int
    seconds: float | None = None
    error: str | None = None


@contextmanager
def recorded(run: Path, stage: str, task: int, subject: str, input_bytes: int) -> Iterator[None]:
    """Keep a record of an attempt while the block does the task.

    The record holds the start and, if the task fails, the error and the duration. It is removed when the task has its
    receipt. A record that cannot be written is skipped: nothing needs it.
    """
    before = attempts_left(run, stage, [task])
    number, at = before[0].number + 1 if before else 1, datetime.now(UTC).isoformat(timespec="seconds")
    attempt = Attempt(stage, task, subject, "started", number, at, input_bytes)
    _keep(run, attempt)
    began = time.monotonic()
    try:
        yield
    except BaseException as error:
        said = str(error) if isinstance(error, HeadraceError) else f"{type(error).__name__}: {error}"
        _keep(run, replace(attempt, state="failed", seconds=round(time.monotonic() - began, 3), error=said))
        raise
    with suppress(OSError):
        _attempt_path(run, stage, task).unlink(missing_ok=True)


def attempts_left(run: Path, stage: str, tasks: Sequence[int]) -> list[Attempt]:
    """Read the records that earlier attempts left for these tasks of a stage."""
    found = []
    if (run / ATTEMPTS).is_dir():
        for task in tasks:
            with suppress(OSError, ValueError, TypeError):
                found.append(Attempt(**json.loads(_attempt_path(run, stage, task).read_bytes())))
    return found


def told(stage: str, attempts: Sequence[Attempt]) -> str | None:
    """Return a sentence about the tasks that have to be done again; None if there are none."""
    parts = []
    for state, word in (("failed", " failed"), ("started", " cut short")):
        those = [each for each in attempts if each.state == state]
        if those:
            whys = [
                each.subject if each.error is None else f"{each.subject} (attempt {each.number}): {each.error}"
                for each in those[:_TOLD]
            ]
            separator = "; " if state == "failed" else ", "
            count = "1 task" if len(those) == 1 else f"{len(those)} tasks"
            parts.append(f"{count}{word}: {separator.join(whys + ['…'] * (len(those) > _TOLD))}")
    return f"{stage}: before, {'; '.join(parts)}; doing them again" if parts else None


def _attempt_path(run: Path, stage: str, task: int) -> Path:
    return run / ATTEMPTS / f".{stage}-{task:05d}.json"  # hidden, because it is not part of the output


def _keep(run: Path, attempt: Attempt) -> None:
    """Write a record if the directory exists, so that a task that outlives its run leaves nothing."""
    path = _attempt_path(run, attempt.stage, attempt.task)
    with suppress(OSError, StoreError), local.beside(path) as temporary:
        temporary.write_bytes(canonical_json(asdict(attempt)))
        temporary.replace(path)
