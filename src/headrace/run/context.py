"""Run the stages of a run: tasks whose outputs are files with receipts."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from headrace.dataset.receipts import RECEIPTS
from headrace.dataset.receipts import STAGE_DIRECTORY as STAGE_DIRECTORY
from headrace.digest import checksum_file
from headrace.engine.engine import Engine
from headrace.engine.local import LocalEngine
from headrace.errors import InputError, StoreError
from headrace.formats.write import HashingFile, Written
from headrace.gate.arrow import open_arrow
from headrace.run.events import Note, OnEvent, StageBegan, Step, TaskDone
from headrace.run.identity import SourceState, Version
from headrace.run.in_store import publish_earlier, publish_task
from headrace.run.receipts import FileRecord, Receipt, read_receipt, write_receipt
from headrace.storage import local

Result = TypeVar("Result")

_NO_SOURCES = SourceState({})


@dataclass
class TaskFiles:
    """The files that a task makes.

    They get their final names together, when the task has finished.
    """

    run: Path
    durable: bool
    _pending_files: list[tuple[Path, Path, Written, local.Sync]] = field(default_factory=list)
    _begun: set[Path] = field(default_factory=set)
    _directories: set[Path] = field(default_factory=set)

    def temporary(self, target: str) -> Path:
        """Return a temporary path for the file that will be `target`, relative to the run
        directory.
        """
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
        """Write a table as a checksummed intermediate file for a later stage to map.

        Raises `StoreError`.
        """
        with self.arrow_batches(target, table.schema) as write:
            write(table)

    @contextmanager
    def arrow_batches(self, target: str, schema: pa.Schema) -> Iterator[Callable[[pa.Table], None]]:
        """Write an intermediate file, as `write_arrow` does, of tables one after the other.

        A table in one chunk, or empty, becomes a record batch.
        """
        temporary = self.temporary(target)
        rows = 0
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

    def finished(
        self, temporary: Path, target: str, written: Written, *, on_disk: bool = False
    ) -> None:
        """Record that the file at `temporary` is complete. on_disk: and that it needs no sync."""
        sync: local.Sync = "file" if self.durable and not on_disk else "none"
        self._pending_files.append((temporary, self.run / target, written, sync))

    def publish(self, on_event: OnEvent) -> tuple[FileRecord, ...]:
        """Give every finished file its final name."""
        published = []
        for temporary, target, written, sync in self._pending_files:
            name = target.relative_to(self.run).as_posix()
            on_event(Step("shard.written", name))

            def announce(step: str, name: str = name) -> None:
                on_event(Step("shard.synced" if step == "synced" else "shard.linked", name))

            local.publish(temporary, target, sync=sync, announce=announce)
            published.append(FileRecord(name, written.bytes, written.digest, written.checksum))
            self._begun.remove(temporary)
        return tuple(published)

    def discard(self) -> None:
        """Remove files that were begun and not published."""
        for temporary in self._begun:
            temporary.unlink(missing_ok=True)


def read_arrow(path: Path, schema: pa.Schema | None = None) -> pa.Table:
    """Map a table that `TaskFiles.write_arrow` made, each column as one chunk.

    schema: what a file of a finished run must hold, without missing values.

    Raises `CorruptShard`.
    """
    return open_arrow(path).table(schema).combine_chunks()


@dataclass(frozen=True)
class Task:
    """An independent piece of a stage. `work` makes files and returns JSON for the receipt.

    Of that JSON, "rows_in", "rows_by_split" and "dropped_by_reason" become fields of the receipt,
    and all else its `extra`.
    subject: the file or split it is about. input_bytes: read for it, for progress only. reads: the
    files of the source that it reads, which must not change meanwhile.
    """

    subject: str
    input_bytes: int
    work: Callable[[TaskFiles], dict[str, Any]]
    reads: Sequence[Path] = ()


@dataclass(frozen=True)
class RunContext:
    """A run being executed.

    engine: runs its tasks. store: the run's location if it is in an object store; `run` is then its
    work directory. sources: the state of the source when the run began. stages: those executed so
    far, with the number of their tasks. versions: of the source's files, as its fingerprint has
    them.
    """

    run: Path
    workers: int
    on_event: OnEvent
    engine: Engine = field(default_factory=LocalEngine)
    store: Path | None = None
    sources: SourceState = _NO_SOURCES
    stages: dict[str, int] = field(default_factory=dict)
    versions: Mapping[Path, Version] = field(default_factory=dict)

    def stage(self, name: str, tasks: Sequence[Task], *, durable: bool = True) -> list[Receipt]:
        """Run all tasks that have no valid receipt, and return the receipts of all tasks, in task
        order.

        durable=False is for intermediate files: they are accepted only if their digest matches, so
        they need no sync.
        """
        local.make_directory(self.run / RECEIPTS)
        receipts: dict[int, Receipt] = {}
        for number in range(len(tasks)):
            receipt = read_receipt(self.run, name, number)
            if receipt is not None:
                receipts[number] = receipt
        self.stages[name] = len(tasks)
        self.on_event(StageBegan(name, len(tasks), len(receipts)))
        for number, receipt in receipts.items():
            self.on_event(task_done(tasks[number], receipt))
        if durable:
            store = self.store
        else:
            store = None
        # an earlier attempt may have been killed before it published these tasks
        if store is not None:
            publish_earlier(self.run, store, list(receipts.values()), self.workers)
        left = [number for number in range(len(tasks)) if number not in receipts]
        do = partial(do_task, self.run, name, durable=durable, store=store, sources=self.sources)
        work = [partial(do, number, tasks[number]) for number in left]
        new_receipts = self.engine.run(work, self.workers, on_event=self.on_event)
        receipts.update(zip(left, new_receipts, strict=True))
        ordered = [receipts[number] for number in range(len(tasks))]
        _check_distinct(self.run, ordered)
        if durable:
            for directory in sorted(
                {(self.run / file.path).parent for receipt in ordered for file in receipt.files}
            ):
                local.sync_directory(directory)
        return ordered

    def map(self, tasks: Sequence[Callable[[], Result]]) -> list[Result]:
        """Return the results of tasks that only read, in task order. They leave no receipts."""
        return self.engine.run(
            [partial(_without_events, task) for task in tasks], self.workers, on_event=self.on_event
        )

    def inform(self, texts: Iterable[str]) -> None:
        """Emit each of these sentences as a note."""
        for text in texts:
            self.on_event(Note("info", text))

    def warn(self, texts: Iterable[str]) -> None:
        """Emit each of these sentences as a warning."""
        for text in texts:
            self.on_event(Note("warning", text))


def _check_distinct(run: Path, receipts: Sequence[Receipt]) -> None:
    """Raise `InputError` if two tasks of a stage wrote the same file."""
    writers: dict[str, Receipt] = {}
    for receipt in receipts:
        for file in receipt.files:
            first = writers.setdefault(file.path, receipt)
            if first is not receipt:
                raise InputError(
                    f"was written for {first.subject} and again for {receipt.subject}",
                    path=run / file.path,
                    remedy=f"let each task of stage {receipt.stage!r} write files of its own",
                )


def do_task(  # noqa: PLR0913 - all that a worker needs, picklable
    run: Path,
    stage: str,
    number: int,
    task: Task,
    on_event: OnEvent,
    *,
    durable: bool,
    store: Path | None = None,
    sources: SourceState = _NO_SOURCES,
) -> Receipt:
    """Run one task, publish its files, then its receipt. A repeated task leaves the same files.

    store: the run in an object store, which receives both as well. sources: the state of the
    source's files. Raises `InputError` if one of those changed, and `StoreError` if the run
    directory is not visible, as on a machine that does not share the storage.
    """
    if not run.is_dir():
        raise StoreError(
            f"is not seen from {platform.node()}",
            path=run,
            remedy="all machines must share the storage of the output directory",
        )
    files = TaskFiles(run, durable)
    try:
        with sources.part(task.reads).unchanged():
            result = task.work(files)
        published = files.publish(on_event)
    finally:
        files.discard()
    receipt = Receipt.of(stage, number, task.subject, published, result)
    write_receipt(run, receipt)
    if store is not None:
        publish_task(run, store, receipt)
    on_event(Step("receipt.linked", f"{stage}-{number:05d}"))
    on_event(task_done(task, receipt))
    return receipt


def task_done(task: Task, receipt: Receipt) -> TaskDone:
    """Return the event of a finished task."""
    return TaskDone(receipt.stage, task.subject, receipt.rows_in, task.input_bytes)


def _without_events(task: Callable[[], Result], _: OnEvent) -> Result:
    return task()
