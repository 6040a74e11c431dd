"""What a stage of a run works with: tasks whose outputs are files with receipts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.engine.local import run_tasks
from headrace.formats.write import Written
from headrace.run.events import OnEvent, StageBegan, Step, TaskDone
from headrace.run.receipts import FileRecord, Receipt, read_receipt, write_receipt
from headrace.storage import local


@dataclass
class TaskFiles:
    """The files a task makes. They get their names together, when the task has finished."""

    run: Path
    durable: bool
    _made: list[tuple[Path, Path, Written]] = field(default_factory=list)
    _begun: set[Path] = field(default_factory=set)
    _directories: set[Path] = field(default_factory=set)

    def temporary(self, target: str) -> Path:
        """A temporary path for the file that will be `target`, relative to the run directory."""
        path = self.run / target
        if path.parent not in self._directories:
            local.make_directory(path.parent)
            self._directories.add(path.parent)
        temporary = local.temporary_for(path)
        self._begun.add(temporary)
        return temporary

    def finished(self, temporary: Path, target: str, written: Written) -> None:
        """The file at `temporary` is complete."""
        self._made.append((temporary, self.run / target, written))

    def publish(self, on_event: OnEvent) -> tuple[FileRecord, ...]:
        """Give every finished file its name."""
        published = []
        for temporary, target, written in self._made:
            name = target.relative_to(self.run).as_posix()
            on_event(Step("shard.written", name))

            def announce(step: str, name: str = name) -> None:
                on_event(Step("shard.synced" if step == "synced" else "shard.linked", name))

            local.publish(temporary, target, sync="file" if self.durable else "none", announce=announce)
            published.append(FileRecord(name, written.bytes, written.digest, written.checksum))
            self._begun.remove(temporary)
        return tuple(published)

    def discard(self) -> None:
        """Remove what was begun and not published."""
        for temporary in self._begun:
            temporary.unlink(missing_ok=True)


@dataclass(frozen=True)
class Task:
    """An independent piece of a stage. `work` makes files and returns JSON for the receipt.

    subject: the file or split it is about; rows and bytes of its input are taken from the result's "rows_read" and
    `input_bytes`, for progress only.
    """

    subject: str
    input_bytes: int
    work: Callable[[TaskFiles], dict[str, Any]]


@dataclass(frozen=True)
class RunContext:
    """A run being executed."""

    run: Path
    workers: int
    on_event: OnEvent

    def stage(self, name: str, tasks: Sequence[Task], *, durable: bool = True) -> list[Receipt]:
        """Do all tasks that have no valid receipt; the receipts of all, in task order.

        durable=False is for intermediate files: they are believed only if their digest matches, so they need no sync.
        """
        local.make_directory(self.run / "receipts")
        known = [read_receipt(self.run, name, number) for number in range(len(tasks))]
        self.on_event(StageBegan(name, len(tasks), sum(receipt is not None for receipt in known)))

        def do(number: int) -> Receipt:
            receipt = known[number]
            if receipt is None:
                receipt = self._do(name, number, tasks[number], durable)
            rows = int(receipt.result.get("rows_read", 0))
            self.on_event(TaskDone(name, tasks[number].subject, rows, tasks[number].input_bytes))
            return receipt

        def bound(number: int) -> Callable[[], Receipt]:
            return lambda: do(number)

        receipts = run_tasks([bound(number) for number in range(len(tasks))], self.workers)
        if durable:
            for directory in sorted({(self.run / each.path).parent for receipt in receipts for each in receipt.files}):
                local.sync_directory(directory)
        return receipts

    def _do(self, stage: str, number: int, task: Task, durable: bool) -> Receipt:
        files = TaskFiles(self.run, durable)
        try:
            result = task.work(files)
            published = files.publish(self.on_event)
        finally:
            files.discard()
        receipt = Receipt(stage, number, task.subject, published, result)
        write_receipt(self.run, receipt)
        self.on_event(Step("receipt.linked", f"{stage}-{number:05d}"))
        return receipt
