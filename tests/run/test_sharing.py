"""Claims, members and shares by themselves, without recipes."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.run.events import Event, Note
from headrace.run.members import Members, Patience, Share
from headrace.run.receipts import Receipt, write_receipt
from headrace.run.sharing import RunFinished, Shared, shared_run, sharing_directory

QUICK = Patience(beat_s=0.05, dead_after_s=0.5, straggler_s=60, poll_s=0.02)
PATIENCE_S = 100


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run" / "receipts").mkdir(parents=True)
    return tmp_path / "run"


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def member(run: Path, index: int, *, kernel: str = "", patience: Patience = QUICK) -> Members:
    return Members(sharing_directory(run) / "members", Share(index, 8), patience, kernel=kernel)


def part(run: Path, members: Members, index: int, events: list[Event] | None = None) -> Shared:
    return Shared(run, members, Share(index, 8), QUICK, (lambda event: None) if events is None else events.append)


def until(true: Callable[[], bool]) -> None:
    stop = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < stop
        time.sleep(0.01)


def test_exactly_one_of_many_gets_each_generation_of_a_claim(run: Path, stack: ExitStack) -> None:
    parts = [part(run, stack.enter_context(member(run, index)), index) for index in range(6)]
    won: Counter[tuple[int, int]] = Counter()
    start = threading.Barrier(len(parts))

    def race(shared: Shared) -> None:
        start.wait()
        for number in range(50):
            for generation in range(2):
                if shared.claim("scan", number, generation):
                    won[number, generation] += 1

    threads = [threading.Thread(target=race, args=(each,)) for each in parts]
    for each in threads:
        each.start()
    for each in threads:
        each.join()

    assert {(number, generation): 1 for number in range(50) for generation in range(2)} == won
    assert dict.fromkeys(range(50), 1) == parts[0].claims("scan")


def test_a_stage_whose_name_begins_as_anothers_keeps_its_own_claims(run: Path, stack: ExitStack) -> None:
    shared = part(run, stack.enter_context(member(run, 0)), 0)
    shared.claim("scan-more", 7, 0)
    shared.claim("scan", 3, 2)

    assert ({3: 2}, {7: 0}) == (shared.claims("scan"), shared.claims("scan-more"))


class Clock:
    """Time as a test wants it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("kernel", ["", "the same"])
def test_a_member_is_alive_until_it_leaves(run: Path, kernel: str) -> None:
    clock = Clock()
    observer = Members(sharing_directory(run) / "members", Share(0, 8), QUICK, kernel=kernel, clock=clock)
    with observer, member(run, 1, kernel=kernel) as observed:
        file = sharing_directory(run) / "members" / f"{observed.token}.member"
        for _ in range(5):
            assert not observer.is_dead(observed.token)
            before = file.read_bytes()
            until(lambda before=before: file.read_bytes() != before)
            clock.now += 0.9 * QUICK.dead_after_s
            assert not observer.is_dead(observed.token)

        observed.leave()
        assert observer.is_dead(observed.token)


def test_a_member_that_gives_no_sign_of_life_is_dead_after_a_while(run: Path, stack: ExitStack) -> None:
    observer = stack.enter_context(member(run, 0))
    silent = stack.enter_context(member(run, 1, patience=replace(QUICK, beat_s=1e6)))

    assert not observer.is_dead(silent.token)
    until(lambda: observer.is_dead(silent.token))


def test_on_another_machine_locks_prove_nothing(run: Path, stack: ExitStack) -> None:
    here, there = stack.enter_context(member(run, 0, kernel="a")), stack.enter_context(member(run, 0, kernel="b"))

    assert not here.is_dead(there.token)
    assert not there.is_dead(here.token)


def test_the_last_to_leave_knows_it(run: Path, stack: ExitStack) -> None:
    one, two = stack.enter_context(member(run, 0)), stack.enter_context(member(run, 1))

    assert not one.is_last()
    two.leave()
    assert one.is_last()


def test_a_dead_member_does_not_keep_anyone_from_being_the_last(run: Path, stack: ExitStack) -> None:
    one = stack.enter_context(member(run, 0))
    stack.enter_context(member(run, 1, patience=replace(QUICK, beat_s=1e6)))

    assert one.is_last()


class SlowClock:
    """Time that goes on a little with every look at it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.03
        return self.now


def test_a_process_that_is_slow_itself_waits_long_enough_to_be_the_last(run: Path, stack: ExitStack) -> None:
    own = Members(sharing_directory(run) / "members", Share(0, 8), QUICK, clock=SlowClock())
    one = stack.enter_context(own)
    stack.enter_context(member(run, 1, patience=replace(QUICK, beat_s=1e6)))

    assert one.is_last()


def receipt_of(number: int) -> Receipt:
    return Receipt("scan", number, f"part {number}", (), {"number": number})


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("parts", [1, 2, 5])
@pytest.mark.parametrize("tasks", [0, 1, 4, 23])
def test_all_parts_get_all_receipts_and_every_task_is_done_once(
    run: Path, parts: int, workers: int, tasks: int
) -> None:
    did: list[list[int]] = [[] for _ in range(parts)]
    accepted: list[list[int]] = [[] for _ in range(parts)]
    found: list[list[Receipt]] = [[] for _ in range(parts)]

    def take_part(index: int) -> None:
        def do(number: int) -> Receipt:
            did[index].append(number)
            receipt = receipt_of(number)
            write_receipt(run, receipt)
            return receipt

        with shared_run(run, Share(index, parts), replace(QUICK, dead_after_s=60), lambda event: None) as shared:
            found[index] = shared.stage(
                "scan",
                [f"part {number}" for number in range(tasks)],
                do,
                workers,
                begin=lambda finished: None,
                accept=lambda receipt: accepted[index].append(receipt.number),
            )

    threads = [threading.Thread(target=take_part, args=(index,)) for index in range(parts)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()

    assert list(range(tasks)) == sorted(number for own in did for number in own)
    for index in range(parts):
        assert [receipt_of(number) for number in range(tasks)] == found[index]
        assert list(range(tasks)) == sorted(accepted[index])


def test_what_another_did_and_left_after_the_first_look_is_not_done_again(run: Path) -> None:
    def takes_part(index: int, do: Callable[[int], Receipt], begin: Callable[[int], None]) -> list[Receipt]:
        with shared_run(run, Share(index, 2), QUICK, lambda event: None) as shared:
            return shared.stage("scan", ["x"] * 7, do, 2, begin=begin, accept=lambda receipt: None)

    def other_does_all(finished: int) -> None:
        def do(number: int) -> Receipt:
            write_receipt(run, receipt_of(number))
            return receipt_of(number)

        takes_part(0, do, lambda finished: None)

    again: list[int] = []
    found = takes_part(1, lambda number: again.append(number) or receipt_of(number), other_does_all)

    assert ([], [receipt_of(number) for number in range(7)]) == (again, found)


def test_own_tasks_come_first_and_then_the_neighbours(run: Path) -> None:
    order: list[int] = []

    def do(number: int) -> Receipt:
        order.append(number)
        write_receipt(run, receipt_of(number))
        return receipt_of(number)

    with shared_run(run, Share(1, 3), QUICK, lambda event: None) as shared:
        shared.stage("scan", ["x"] * 9, do, 1, begin=lambda finished: None, accept=lambda receipt: None)

    assert [1, 4, 7, 2, 5, 8, 0, 3, 6] == order


def test_the_first_failing_task_of_a_part_is_raised_and_nothing_is_begun_after_it(run: Path) -> None:
    def do(number: int) -> Receipt:
        if number:
            raise ValueError(f"task {number}")
        return receipt_of(number)

    began: list[int] = []
    with (
        pytest.raises(ValueError, match="task 1"),
        shared_run(run, Share(0, 1), QUICK, lambda event: None) as shared,
    ):
        shared.stage(
            "scan",
            ["x"] * 9,
            lambda number: began.append(number) or do(number),
            1,
            begin=lambda finished: None,
            accept=lambda receipt: None,
        )

    assert [0, 1] == began


def test_one_is_chosen_and_the_others_wait_until_it_is_done(run: Path, stack: ExitStack) -> None:
    events: list[Event] = []
    patient = replace(QUICK, dead_after_s=60)  # one whose heart is slow must not be thought dead
    one, two = (stack.enter_context(member(run, index, patience=patient)) for index in range(2))
    done = threading.Event()

    assert part(run, one, 0).alone("publish", done.is_set)
    chosen: list[bool] = []
    waiting = threading.Thread(
        target=lambda: chosen.append(part(run, two, 1, events).alone("publish", done.is_set)), daemon=True
    )
    waiting.start()
    until(lambda: bool(events))
    done.set()
    waiting.join()

    assert [False] == chosen
    assert [True] == [isinstance(event, Note) and "waiting for 0/8 on" in event.text for event in events]


def test_who_finds_the_run_published_and_swept_stops(run: Path, stack: ExitStack) -> None:
    shared = part(run, stack.enter_context(member(run, 0)), 0)
    (sharing_directory(run) / "claims").rmdir()
    assert not shared.claim("scan", 0, 0)
    assert shared.claim("scan", 0, 0)

    (sharing_directory(run) / "claims" / "scan-00000.0").unlink()
    (sharing_directory(run) / "claims").rmdir()
    (run / "manifest.json").touch()
    with pytest.raises(RunFinished):
        shared.claim("scan", 0, 0)
