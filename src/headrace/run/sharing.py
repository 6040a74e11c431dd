"""Share one run among independent processes that have nothing but the storage in common.

Every process executes the whole recipe. In each stage it first does the tasks of its own share, then those that no
process has begun, then those whose process died. It enters the next stage when all receipts exist. A task is claimed by
creating the name `<stage>-<number>.<generation>`, which exactly one process can do. The claim is a symbolic link to the
member's token, or in an object store an object that contains it. Generation g + 1 may be claimed once the holder of g
is dead. Claims only avoid double work; correctness does not depend on them. Files are published without overwrite, and
a task done twice leaves the same bytes.

No process waits forever. A task finishes; or its process dies and another process does it after `dead_after_s`; or it
takes longer than `straggler_s` while others are idle, and one of them does it as well.

In an object store each process works in its own directory. Intermediate files and their receipts go to the store too,
and at the end of a stage every process fetches the files that it has not made itself (`in_store.fetch_tasks`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

from headrace.dataset.manifest import MANIFEST
from headrace.errors import CorruptShard, StoreError
from headrace.run.events import Note, OnEvent
from headrace.run.members import Members, Patience, Share
from headrace.run.receipts import Receipt, peek_receipt, read_receipt, receipts_of
from headrace.storage import local
from headrace.storage.places import place_of

Do = Callable[[int], Receipt]


class RunFinished(Exception):
    """Another process has published the run, so nothing is left to do."""


class Shared:
    """This process's part in a shared run. run: its directory, or its location in an object store."""

    def __init__(self, run: Path, members: Members, share: Share, patience: Patience, on_event: OnEvent) -> None:
        self.run, self.members, self.share, self.patience, self.on_event = run, members, share, patience, on_event
        self._claims = sharing_directory(run) / "claims"
        self._has_links = place_of(run).has_links
        if self._has_links:
            local.make_directory(self._claims)

    def stage(
        self,
        name: str,
        subjects: Sequence[str],
        do: Do,
        workers: int,
        *,
        begin: Callable[[int], None],
        accept: Callable[[Receipt], None],
    ) -> list[Receipt]:
        """Return the receipts of all tasks, in task order: some made here by `do`, the others by other processes.

        begin: called with the number of tasks that were finished before. accept: called once for each receipt, in this
        thread.
        """
        stage = _Stage(self, name, subjects, accept)
        checks = self._has_links  # in an object store, a receipt is put after its files and so proves them
        found = []
        for number in sorted(receipts_of(self.run, name)):  # files are verified byte by byte for the own share alone
            own = checks and number % self.share.count == self.share.index
            receipt = (read_receipt if own else peek_receipt)(self.run, name, number)
            if receipt is not None and number < len(subjects):
                found.append(receipt)
        begin(len(found))
        for receipt in found:
            stage.take(receipt)
        return stage.finish(do, workers)

    def alone(self, name: str, finished: Callable[[], bool]) -> bool:
        """Wait to become the one process that does `name`; return False once `finished()` shows that another did it."""
        holder = _Holder(self, name, 0)
        told = False
        while not finished():
            if holder.take():
                return not finished()  # its owner may have finished since `finished()` was last called
            if not told:
                self.on_event(Note("info", f"{self.share}: waiting for {self.members.name(holder.token())} to {name}"))
                told = True
            time.sleep(self.patience.poll_s)
        return False

    def claim(self, name: str, number: int, generation: int) -> bool:
        """Claim a task; exactly one process gets each generation. Raises `RunFinished`, `StoreError`."""
        claim = self._claim(name, number, generation)
        try:
            if self._has_links:
                os.symlink(self.members.token, claim)
            else:
                place_of(claim).put_new(self.members.token.encode())
        except FileExistsError:
            # It may be this process's own claim: the store's reply to the first request was lost.
            return self.holder(name, number, generation) == self.members.token
        except CorruptShard:  # the object of another process
            return False
        except FileNotFoundError:  # the directory is gone, usually because the run was published
            self.refuse_finished()
            if self._has_links:
                local.make_directory(self._claims)
            return False
        except OSError as error:
            raise StoreError(
                f"{claim}: cannot be made ({error.strerror}); processes that share a run out need a file system with "
                f"symbolic links: choose another output directory, or leave shard_of out"
            ) from error
        return True

    def claims(self, name: str) -> dict[int, int]:
        """Return the newest generation of every task of a stage that was ever claimed."""
        if not self._has_links:
            names = [fact.name for fact in place_of(self._claims).files_below()]
        else:
            names = os.listdir(self._claims) if self._claims.is_dir() else []
        found: dict[int, int] = {}
        for each in names:
            task, _, generation = each.rpartition(".")
            stage, _, number = task.rpartition("-")
            if stage == name:
                found[int(number)] = max(found.get(int(number), 0), int(generation))
        return found

    def holder(self, name: str, number: int, generation: int) -> str:
        """Return the token of the process that has claimed a task; "" if it cannot be read."""
        claim = self._claim(name, number, generation)
        try:
            return os.readlink(claim) if self._has_links else claim.read_text()
        except OSError:
            return ""

    def refuse_finished(self) -> None:
        """Raise `RunFinished` if the run has been published."""
        if (self.run / MANIFEST).is_file():
            raise RunFinished

    def _claim(self, name: str, number: int, generation: int) -> Path:
        return self._claims / f"{name}-{number:05d}.{generation}"


@contextmanager
def shared_run(run: Path, share: Share, patience: Patience, on_event: OnEvent) -> Iterator[Shared]:
    """Take part in a run until the block ends. Raises `RunBusy` if another process works on the same share."""
    with Members(sharing_directory(run) / "members", share, patience) as members:
        yield Shared(run, members, share, patience, on_event)


def sharing_directory(run: Path) -> Path:
    """Return the directory of members and claims; it is deleted with the stage when the run is finished."""
    return run / "stage" / "sharing"


class _Holder:
    """The claim on one task, which decides when another process may take the task over."""

    def __init__(self, shared: Shared, name: str, number: int) -> None:
        self._shared, self._name, self._number = shared, name, number
        self._generation = 0
        self._since: float | None = None  # since when this process, otherwise idle, has waited for this generation

    def token(self) -> str:
        return self._shared.holder(self._name, self._number, self._generation)

    def see(self, generation: int) -> None:
        """Record that the newest claim has this generation."""
        if generation > self._generation:
            self._generation, self._since = generation, None

    def take(self) -> bool:
        """Claim the task if it is free, or if its owner is dead or too slow."""
        shared, token = self._shared, self.token()
        if token:
            if token == shared.members.token:
                return False
            now = time.monotonic()
            self._since = now if self._since is None else self._since
            if not shared.members.is_dead(token) and now - self._since < shared.patience.straggler_s:
                return False
        following = self._generation + 1 if token else self._generation
        taken = shared.claim(self._name, self._number, following)
        self.see(following)
        return taken


class _Stage:
    """The tasks of one stage, as this process sees them. accept: called once for each receipt."""

    def __init__(self, shared: Shared, name: str, subjects: Sequence[str], accept: Callable[[Receipt], None]) -> None:
        self.shared, self.name, self.subjects, self._accept = shared, name, subjects, accept
        self.receipts: dict[int, Receipt] = {}
        self._holders: dict[int, _Holder] = {}
        self._running: dict[Future[Receipt], int] = {}
        self._told = False

    def finish(self, do: Do, workers: int) -> list[Receipt]:
        """Do the remaining tasks, and wait for those of other processes. Raises the first failure in task order."""
        running, patience = self._running, self.shared.patience
        failed: dict[int, BaseException] = {}
        with ThreadPoolExecutor(max_workers=max(1, workers), thread_name_prefix="headrace-task") as pool:
            todo = self._free()
            looked, pause = time.monotonic(), patience.poll_s
            while running or (len(self.receipts) < len(self.subjects) and not failed):
                while todo and len(running) < workers and not failed:
                    number = todo.pop()
                    # The previous holder may have finished and left since the last look.
                    if self._holder(number).take() and not self._peek(number):
                        running[pool.submit(do, number)] = number
                idle = len(running) < workers and not failed
                if running:
                    finished, _ = wait(running, timeout=pause if idle else None, return_when=FIRST_COMPLETED)
                else:
                    finished = set()
                    time.sleep(pause)
                for future in finished:
                    number, error = running.pop(future), future.exception()
                    if error is not None:
                        failed[number] = error
                    else:
                        self.take(future.result())
                if idle and not todo and time.monotonic() - looked >= pause and not failed:
                    began = time.monotonic()
                    self._look()
                    todo = self._free()
                    looked = time.monotonic()
                    pause = max(patience.poll_s, 10 * (looked - began))
        if failed:
            raise failed[min(failed)]
        return [self.receipts[number] for number in range(len(self.subjects))]

    def take(self, receipt: Receipt) -> None:
        if receipt.number not in self.receipts:
            self.receipts[receipt.number] = receipt
            self._accept(receipt)

    def _peek(self, number: int) -> bool:
        """Take the receipt of a task if another process has finished it; return whether it has."""
        receipt = peek_receipt(self.shared.run, self.name, number)
        if receipt is not None:
            self.take(receipt)
        return receipt is not None

    def _left(self) -> list[int]:
        busy = set(self._running.values())
        return [number for number in range(len(self.subjects)) if number not in self.receipts and number not in busy]

    def _look(self) -> None:
        """Take the receipts that other processes have made, and report once which process this one waits for."""
        there = receipts_of(self.shared.run, self.name)
        for number in self._left():
            if number in there:
                self._peek(number)
        left = self._left()
        if not left:
            return
        self.shared.refuse_finished()
        if not self._told:
            self._told = True
            first = left[0]
            who = self.shared.members.name(self._holder(first).token())
            self.shared.on_event(
                Note(
                    "info",
                    f"{self.shared.share}: waiting for {len(left)} tasks of stage {self.name} that other processes "
                    f"work on, first {self.subjects[first]} ({who})",
                )
            )

    def _free(self) -> list[int]:
        """Return the tasks left to try, from the end of the list: own tasks first, then those of the next shares."""
        for number, generation in self.shared.claims(self.name).items():
            self._holder(number).see(generation)
        share = self.shared.share
        return sorted(self._left(), key=lambda number: ((number - share.index) % share.count, number), reverse=True)

    def _holder(self, number: int) -> _Holder:
        return self._holders.setdefault(number, _Holder(self.shared, self.name, number))
