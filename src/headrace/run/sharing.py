"""One run, shared out over independent processes that see the same storage and nothing else of each other.

Every process executes the whole recipe. Of each stage it does the tasks of its own share first, then those that nobody
has begun, then those whose process died; it goes on to the next stage when all receipts are there. A task is claimed by
a symbolic link `<stage>-<number>.<generation>` to the member's token, which exactly one process can make; generation
g + 1 may be claimed once the holder of g is dead. Claims save double work and nothing hangs on them: files are
published without overwrite, and a task done twice leaves the same bytes.

Nobody waits for ever: a task is finished, or its process dies and after `dead_after_s` somebody else does it, or it
takes longer than `straggler_s` while others have nothing to do, and then one of them does it as well.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

from headrace.dataset.manifest import MANIFEST
from headrace.errors import StoreError
from headrace.run.events import Note, OnEvent
from headrace.run.members import Members, Patience, Share
from headrace.run.receipts import Receipt, peek_receipt, read_receipt, receipts_of
from headrace.storage import local

Do = Callable[[int], Receipt]


class RunFinished(Exception):
    """Another process has published the run: there is nothing left to do."""


class Shared:
    """This process's part in a shared run."""

    def __init__(self, run: Path, members: Members, share: Share, patience: Patience, on_event: OnEvent) -> None:
        self.run, self.members, self.share, self.patience, self.on_event = run, members, share, patience, on_event
        self._claims = sharing_directory(run) / "claims"
        self._begin()

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
        """The receipts of all tasks, in task order: `do` has made some of them here, other processes the rest.

        begin hears how many tasks were finished before; accept of every receipt, once, in this thread.
        """
        stage = _Stage(self, name, subjects)
        stage.check_own()
        begin(len(stage.receipts))
        for receipt in stage.receipts.values():
            accept(receipt)
        return stage.finish(do, workers, accept)

    def alone(self, name: str, finished: Callable[[], bool]) -> bool:
        """Whether this process is the one that shall do `name`; False once `finished()` says that another did it."""
        holder = _Holder(self, name, 0)
        told = False
        while not finished():
            if holder.take():
                return not finished()  # whoever had it may have finished and left since the question before
            if not told:
                self.on_event(Note("info", f"{self.share}: waiting for {self.members.name(holder.token())} to {name}"))
                told = True
            time.sleep(self.patience.poll_s)
        return False

    def claim(self, name: str, number: int, generation: int) -> bool:
        """Claim a task; exactly one process gets each generation."""
        link = self._claims / f"{name}-{number:05d}.{generation}"
        try:
            os.symlink(self.members.token, link)
        except FileExistsError:
            return _target(link) == self.members.token  # a reply that was lost on the way
        except FileNotFoundError:  # swept away: whoever did it has published
            self.refuse_finished()
            local.make_directory(self._claims)
            return False
        except OSError as error:
            raise StoreError(
                f"{link}: cannot be made ({error.strerror}); processes that share a run out need a file system with "
                f"symbolic links: choose another output directory, or leave shard_of out"
            ) from error
        return True

    def claims(self, name: str) -> dict[int, int]:
        """The newest generation of every task of a stage that was ever claimed."""
        found: dict[int, int] = {}
        for each in self._claimed():
            task, _, generation = each.rpartition(".")
            stage, _, number = task.rpartition("-")
            if stage == name:
                found[int(number)] = max(found.get(int(number), 0), int(generation))
        return found

    def holder(self, name: str, number: int, generation: int) -> str:
        """The token of who has claimed a task; "" if it cannot be read."""
        return _target(self._claims / f"{name}-{number:05d}.{generation}")

    def refuse_finished(self) -> None:
        """Raise `RunFinished` if the run has been published."""
        if (self.run / MANIFEST).exists():
            raise RunFinished

    # Where receipts and claims are seen: in directories. In an object store it is otherwise; see `sharing_in_store`.

    def receipts_of(self, name: str) -> set[int]:
        """The numbers of the tasks of a stage that have a receipt, whole or not."""
        return receipts_of(self.run, name)

    def check_receipt(self, name: str, number: int) -> Receipt | None:
        """A receipt that holds to the last byte of its files; None, and it is gone, if it does not."""
        return read_receipt(self.run, name, number)

    def peek_receipt(self, name: str, number: int) -> Receipt | None:
        """A receipt that another process made, at a glance."""
        return peek_receipt(self.run, name, number)

    def _begin(self) -> None:
        local.make_directory(self._claims)

    def _claimed(self) -> list[str]:
        try:
            return os.listdir(self._claims)
        except FileNotFoundError:
            return []


@contextmanager
def shared_run(run: Path, share: Share, patience: Patience, on_event: OnEvent) -> Iterator[Shared]:
    """Take part in a run until the block ends. Raises `RunBusy` where the same share is being worked on."""
    with Members(sharing_directory(run) / "members", share, patience) as members:
        yield Shared(run, members, share, patience, on_event)


def sharing_directory(run: Path) -> Path:
    """Where processes tell each other what they do: it goes with the stage when the run is finished."""
    return run / "stage" / "sharing"


class _Holder:
    """Who has claimed a task, and when somebody else may."""

    def __init__(self, shared: Shared, name: str, number: int) -> None:
        self._shared, self._name, self._number = shared, name, number
        self._generation = 0
        self._since: float | None = None  # this process has waited for this generation, with nothing else to do

    def token(self) -> str:
        return self._shared.holder(self._name, self._number, self._generation)

    def see(self, generation: int) -> None:
        """The newest claim is of this generation."""
        if generation > self._generation:
            self._generation, self._since = generation, None

    def take(self) -> bool:
        """Claim the task if nobody has it, or if whoever has it is dead or too slow."""
        shared, token = self._shared, self.token()
        if token:
            if token == shared.members.token:
                return False
            now = time.monotonic()
            self._since = now if self._since is None else self._since
            if not shared.members.is_dead(token) and now - self._since < shared.patience.straggler_s:
                return False
        following = self._generation + 1 if token else self._generation
        if shared.claim(self._name, self._number, following):
            self.see(following)
            return True
        self.see(following)
        return False


class _Stage:
    def __init__(self, shared: Shared, name: str, subjects: Sequence[str]) -> None:
        self.shared, self.name, self.subjects = shared, name, subjects
        self.receipts: dict[int, Receipt] = {}
        self._holders: dict[int, _Holder] = {}
        self._told = False

    def check_own(self) -> None:
        """Receipts that are there: those of the own share are checked to the last byte, the others by their sizes."""
        share = self.shared.share
        for number in sorted(self.shared.receipts_of(self.name)):
            own = number % share.count == share.index
            receipt = (self.shared.check_receipt if own else self.shared.peek_receipt)(self.name, number)
            if receipt is not None and number < len(self.subjects):
                self.receipts[number] = receipt

    def finish(self, do: Do, workers: int, accept: Callable[[Receipt], None]) -> list[Receipt]:
        running: dict[Future[Receipt], int] = {}
        failed: dict[int, BaseException] = {}
        with ThreadPoolExecutor(max_workers=max(1, workers), thread_name_prefix="headrace-task") as pool:
            todo = self._free(set(running.values()))
            looked, pause = time.monotonic(), self.shared.patience.poll_s
            while running or (len(self.receipts) < len(self.subjects) and not failed):
                while todo and len(running) < workers and not failed:
                    number = todo.pop()
                    if self._holder(number).take() and not self._done_meanwhile(number, accept):
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
                        continue
                    self._take(future.result(), accept)
                if idle and not todo and time.monotonic() - looked >= pause and not failed:
                    began = time.monotonic()
                    self._look(set(running.values()), accept)
                    todo = self._free(set(running.values()))
                    looked = time.monotonic()
                    pause = max(self.shared.patience.poll_s, 10 * (looked - began))
        if failed:
            raise failed[min(failed)]
        return [self.receipts[number] for number in range(len(self.subjects))]

    def _take(self, receipt: Receipt, accept: Callable[[Receipt], None]) -> None:
        if receipt.number not in self.receipts:
            self.receipts[receipt.number] = receipt
            accept(receipt)

    def _done_meanwhile(self, number: int, accept: Callable[[Receipt], None]) -> bool:
        """Whether the holder before has finished a task just claimed: it may have left since the last look."""
        receipt = self.shared.peek_receipt(self.name, number)
        if receipt is None:
            return False
        self._take(receipt, accept)
        return True

    def _look(self, busy: set[int], accept: Callable[[Receipt], None]) -> None:
        """Take the receipts that other processes have made, and see who has claimed what."""
        for number in sorted(self.shared.receipts_of(self.name) - set(self.receipts) - busy):
            receipt = self.shared.peek_receipt(self.name, number) if number < len(self.subjects) else None
            if receipt is not None:
                self._take(receipt, accept)
        left = [number for number in range(len(self.subjects)) if number not in self.receipts and number not in busy]
        if left:
            self.shared.refuse_finished()
        if left and not self._told:
            self._told = True
            first = left[0]
            self.shared.on_event(
                Note(
                    "info",
                    f"{self.shared.share}: waiting for {len(left)} tasks of stage {self.name} that other processes "
                    f"work on, first {self.subjects[first]} ({self._who(first)})",
                )
            )

    def _who(self, number: int) -> str:
        return self.shared.members.name(self._holder(number).token())

    def _free(self, busy: set[int]) -> list[int]:
        """The tasks left, in the order to try them from the end: own ones first, then the neighbours'."""
        for number, generation in self.shared.claims(self.name).items():
            self._holder(number).see(generation)
        share = self.shared.share
        left = [number for number in range(len(self.subjects)) if number not in self.receipts and number not in busy]
        return sorted(left, key=lambda number: ((number - share.index) % share.count, number), reverse=True)

    def _holder(self, number: int) -> _Holder:
        if number not in self._holders:
            self._holders[number] = _Holder(self.shared, self.name, number)
        return self._holders[number]


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""
