"""A run shared out over processes that see the same object store, and of each other's machines nothing.

The rules are those of `sharing`; what says who does what are objects below the run's `stage/sharing`: a claim is put if
absent and holds the token of its member, so exactly one process gets it, also where the answer was lost; a sign of life
is the member's object, put again with a higher counter. A receipt in the store means that its files are whole there.

Each process works in a directory of its own. Intermediate files and their receipts go to the store too; at the end of
a stage every process fetches what it has not made itself (`in_store.fetch_tasks`), so that the next stage finds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from headrace.dataset.manifest import MANIFEST
from headrace.errors import CorruptShard, StoreError
from headrace.run.events import OnEvent
from headrace.run.members import Members, Patience, Share
from headrace.run.receipts import Receipt, parse_receipt, receipt_path
from headrace.run.sharing import RunFinished, Shared, sharing_directory
from headrace.storage.places import place_of


@contextmanager
def shared_in_store(target: Path, share: Share, patience: Patience, on_event: OnEvent) -> Iterator[Shared]:
    """Take part in a run in an object store until the block ends. Raises `StoreError`."""
    with StoreMembers(sharing_directory(target) / "members", share, patience) as members:
        yield StoreShared(target, members, share, patience, on_event)


class StoreMembers(Members):
    """Members as objects. There are no locks: a member is dead when its counter stands still."""

    def __init__(self, prefix: Path, share: Share, patience: Patience) -> None:
        super().__init__(prefix, share, patience, kernel="")
        self._prefix = prefix
        self._record = b""

    def _refuse_twin(self) -> None:
        """Nothing says whether a twin is alive; claims keep it from doing work twice."""

    def _appear(self, data: bytes) -> None:
        self._record = data
        place_of(self._path(self.token)).replace(data)

    def _say(self, beat: bytes) -> None:
        place_of(self._path(self.token)).replace(beat + self._record[len(beat) :])

    def _disappear(self) -> None:
        with suppress(StoreError):
            place_of(self._path(self.token)).delete()

    def _tokens(self) -> list[str]:
        return [fact.name.removesuffix(".member") for fact in place_of(self._prefix).files_below()]


class StoreShared(Shared):
    """This process's part in a run in an object store."""

    def __init__(self, target: Path, members: Members, share: Share, patience: Patience, on_event: OnEvent) -> None:
        super().__init__(target, members, share, patience, on_event)
        self._target = target
        self._prefix = sharing_directory(target) / "claims"

    def claim(self, name: str, number: int, generation: int) -> bool:
        """Claim a task; exactly one process gets each generation."""
        try:
            place_of(self._prefix / f"{name}-{number:05d}.{generation}").put_new(self.members.token.encode())
        except CorruptShard:  # another one's
            return False
        except FileNotFoundError:  # swept away between being put and being read back
            self.refuse_finished()
            return False
        return True

    def holder(self, name: str, number: int, generation: int) -> str:
        """The token of who has claimed a task; "" if nobody has."""
        try:
            return (self._prefix / f"{name}-{number:05d}.{generation}").read_text()
        except FileNotFoundError:
            return ""

    def refuse_finished(self) -> None:
        """Raise `RunFinished` if the run has been published."""
        if (self._target / MANIFEST).is_file():
            raise RunFinished

    def receipts_of(self, name: str) -> set[int]:
        """The numbers of the tasks of a stage that have a receipt."""
        names = (
            fact.name.removesuffix(".json").rpartition("-")
            for fact in place_of(self._target / "receipts").files_below()
        )
        return {int(number) for stage, _, number in names if stage == name}

    def check_receipt(self, name: str, number: int) -> Receipt | None:
        """A receipt; it was put when its files were whole there."""
        return self.peek_receipt(name, number)

    def peek_receipt(self, name: str, number: int) -> Receipt | None:
        """A receipt that another process made; None if there is none, or if it is damaged."""
        with suppress(FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
            return parse_receipt(receipt_path(self._target, name, number).read_bytes())
        return None

    def _begin(self) -> None:
        """There are no directories to make."""

    def _claimed(self) -> list[str]:
        return [fact.name for fact in place_of(self._prefix).files_below()]
