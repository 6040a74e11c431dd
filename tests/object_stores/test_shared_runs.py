"""Processes that see the same store make one run together: the bytes of one process, whichever of them die."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from doomed_part import Part
from fault_proxy import FaultProxy, Faults
from recipe_runs import RECIPES, recipes_over
from store_cases import files_on_disk, shards_of, split_of, tree, write_raw

import headrace
from headrace.run.collect import collect
from headrace.run.events import Event, Step
from headrace.run.members import Members, Patience, Share
from headrace.run.sharing import RunFinished, Shared
from headrace.storage import bucket as buckets
from headrace.storage.object_store import ObjectPath
from headrace.storage.places import path_of, place_of

N = 3
PATIENCE = Patience(beat_s=0.2, dead_after_s=600, straggler_s=600, poll_s=0.05)


@pytest.fixture(scope="module")
def recipes(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Callable[[], Any]]:
    return recipes_over(tmp_path_factory.mktemp("source"), rows=200, shards=4)


class Heard:
    """Steps of a part."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, str]] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, Step):
            self.steps.append((event.name, event.subject))

    def of(self, name: str) -> list[str]:
        return [subject for step, subject in self.steps if step == name]


def take_part(recipe: Callable[[], Any], out: str, base: Path, index: int, heard: Heard, count: int = N) -> str:
    made = headrace.prepare(
        recipe(), out, workers=1, shard_of=(index, count), patience=PATIENCE, work_dir=base / str(index), on_event=heard
    )
    return made.how


def together(recipe: Callable[[], Any], out: str, base: Path) -> list[Heard]:
    """Every part in a thread of its own, with a work directory of its own."""
    heard = [Heard() for _ in range(N)]
    with ThreadPoolExecutor(N) as pool:
        list(pool.map(lambda index: take_part(recipe, out, base, index, heard[index]), range(N)))
    return heard


@pytest.mark.slow
@pytest.mark.smoke("packed_sequences")
@pytest.mark.parametrize("name", RECIPES)
def test_parts_write_what_one_process_writes_and_do_no_task_twice(
    s3: str, tmp_path: Path, recipes: Mapping[str, Callable[[], Any]], name: str
) -> None:
    local = headrace.prepare(recipes[name](), tmp_path / "out", workers=1)

    heard = together(recipes[name], f"{s3}/out", tmp_path / "work")

    assert shards_of(f"{s3}/out") == files_on_disk(tmp_path / "out")
    assert [each for each in tree(f"{s3}/out") if "/stage/" in each] == []
    assert [each for each in (tmp_path / "work").rglob("*") if each.is_file()] == []
    done = Counter(subject for each in heard for subject in each.of("receipt.linked"))
    assert done == dict.fromkeys((path.stem for path in (local.run / "receipts").iterdir()), 1)
    assert sum(len(each.of("manifest.linked")) for each in heard) == 2  # in the work directory, and then there
    assert headrace.verify(f"{s3}/out").problems == []


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_a_task_done_twice_leaves_the_same_intermediate_files(
    s3: str, tmp_path: Path, recipes: Mapping[str, Callable[[], Any]], name: str
) -> None:
    seen: list[dict[str, bytes]] = []
    for place in ("first", "second"):

        def look(event: Event, place: str = place) -> None:
            if isinstance(event, Step) and event.name == "index.linked":
                seen.append(tree(f"{s3}/{place}"))

        headrace.prepare(
            recipes[name](), f"{s3}/{place}", workers=1, shard_of=(0, 2), work_dir=tmp_path / place, on_event=look
        )
    first, second = ({n: data for n, data in each.items() if "/sharing/" not in n} for each in seen)

    assert name == "rewrite" or any("/stage/" in each for each in first)
    assert first == second


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gs", "az"])
def test_other_kinds_of_stores_share_runs_out(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    bucket = request.getfixturevalue(kind)
    raw = write_raw(tmp_path / "raw", shards=3)
    headrace.prepare(split_of(str(raw)), tmp_path / "out", workers=1)

    together(lambda: split_of(str(raw)), f"{bucket}/out", tmp_path / "work")

    assert shards_of(f"{bucket}/out") == files_on_disk(tmp_path / "out")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["slow_down", "lost_reply", "cut"])
def test_faults_on_the_way_change_nothing(
    proxied: tuple[str, FaultProxy], tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets, "_LONGEST_PAUSE_S", 0.05)
    monkeypatch.setattr(buckets, "_FIRST_BACKOFF_S", 0.005)
    buckets.forget_buckets()
    bucket, proxy = proxied
    raw = write_raw(tmp_path / "raw", shards=3)
    headrace.prepare(split_of(str(raw)), tmp_path / "out", workers=1)
    proxy.begin(Faults(kind, 0.15, seed=8))

    heard = together(lambda: split_of(str(raw)), f"{bucket}/out", tmp_path / "work")

    assert proxy.seen.faults[kind] > 3
    proxy.begin(Faults())
    assert shards_of(f"{bucket}/out") == files_on_disk(tmp_path / "out")
    assert set(Counter(subject for each in heard for subject in each.of("receipt.linked")).values()) == {1}


@pytest.mark.slow
@pytest.mark.smoke("receipt.linked-2")
@pytest.mark.parametrize(("step", "count"), [("receipt.linked", 2), ("manifest.linked", 1)])
def test_a_process_that_is_killed_is_made_up_for(s3: str, tmp_path: Path, step: str, count: int) -> None:
    raw = write_raw(tmp_path / "raw")
    headrace.prepare(split_of(str(raw)), tmp_path / "out", workers=1)

    killed = Part(raw, f"{s3}/out", tmp_path / "one", 0, step, count).wait()
    other = Part(raw, f"{s3}/out", tmp_path / "two", 1).wait()

    assert (killed, other) == (-signal.SIGKILL, 0)
    assert shards_of(f"{s3}/out") == files_on_disk(tmp_path / "out")
    again = headrace.prepare(split_of(str(raw)), f"{s3}/out", shard_of=(0, 2), work_dir=tmp_path / "one")
    assert again.how == "reused"
    assert [each for each in tree(f"{s3}/out") if "/stage/" in each] == []
    assert [each for each in (tmp_path / "one").rglob("*") if each.is_file()] == []


@pytest.mark.slow
def test_processes_that_all_died_are_started_again_elsewhere(s3: str, tmp_path: Path) -> None:
    raw = write_raw(tmp_path / "raw")
    headrace.prepare(split_of(str(raw)), tmp_path / "out", workers=1)
    doomed = [Part(raw, f"{s3}/out", tmp_path / f"work-{index}", index, "receipt.linked", 2) for index in range(2)]
    killed = {each.wait() for each in doomed}
    again = [Part(raw, f"{s3}/out", tmp_path / f"new-{index}", index) for index in range(2)]

    assert killed <= {0, -signal.SIGKILL}
    assert [each.wait() for each in again] == [0, 0]
    assert shards_of(f"{s3}/out") == files_on_disk(tmp_path / "out")
    assert headrace.verify(f"{s3}/out").problems == []


@pytest.mark.slow
def test_what_a_killed_publisher_left_is_collected(s3: str, tmp_path: Path) -> None:
    raw = write_raw(tmp_path / "raw")
    killed = Part(raw, f"{s3}/out", tmp_path / "work", 0, "manifest.linked", 2).wait()
    before = tree(f"{s3}/out")

    swept = collect(f"{s3}/out", work_dir=tmp_path / "work")

    assert killed == -signal.SIGKILL
    assert any("/stage/sharing/claims/" in each for each in before)
    assert tree(f"{s3}/out") == {name: data for name, data in before.items() if "/stage/" not in name}
    assert swept.bytes > 0
    assert headrace.verify(path_of(f"{s3}/out") / "runs" / next(iter(before)).split("/")[1]).problems == []


# Claims and members by themselves


@pytest.fixture
def target(s3: str) -> ObjectPath:
    found = path_of(f"{s3}/out/runs/some")
    assert isinstance(found, ObjectPath)
    return found


def member(target: ObjectPath, index: int, patience: Patience = PATIENCE) -> Members:
    return Members(target / "stage/sharing/members", Share(index, 8), patience)


def part(target: ObjectPath, members: Members, index: int) -> Shared:
    return Shared(target, members, Share(index, 8), PATIENCE, lambda event: None)


def test_exactly_one_of_many_gets_each_generation_of_a_claim(target: ObjectPath) -> None:
    with member(target, 0) as a, member(target, 1) as b, member(target, 2) as c:
        parts = [part(target, each, index) for index, each in enumerate((a, b, c))]
        with ThreadPoolExecutor(3) as pool:
            asked = [(each, number) for number in range(6) for each in parts]
            won = list(pool.map(lambda each: each[0].claim("scan", each[1], each[1] % 2), asked))

        assert [sum(won[number * 3 : number * 3 + 3]) for number in range(6)] == [1] * 6
        assert parts[0].claims("scan") == {number: number % 2 for number in range(6)}
        assert parts[0].claims("sca") == {}
        holders = {parts[1].holder("scan", number, number % 2) for number in range(6)}
        assert holders <= {a.token, b.token, c.token}
        assert parts[1].holder("scan", 7, 0) == ""


def test_a_member_is_dead_when_its_counter_stands_still(target: ObjectPath) -> None:
    clock = [0.0]
    with member(target, 0) as observer, member(target, 1, Patience(beat_s=1e6)) as quiet:
        observer._clock = lambda: clock[0]

        assert not observer.is_dead(quiet.token)
        clock[0] = 599
        assert not observer.is_dead(quiet.token)
        quiet._say(b"7".zfill(20))
        clock[0] = 601
        assert not observer.is_dead(quiet.token)
        assert observer.name(quiet.token).startswith("1/8 on ")
        clock[0] = 1202
        assert observer.is_dead(quiet.token)
        quiet.leave()
        assert observer.is_dead(quiet.token)
        assert observer.name(quiet.token) == "a process that has left"
    assert place_of(target).files_below() == []


def test_a_finished_run_is_noticed(target: ObjectPath) -> None:
    with member(target, 0) as members:
        shared = part(target, members, 0)
        shared.refuse_finished()
        place_of(target / "manifest.json").put_new(b"{}")

        with pytest.raises(RunFinished):
            shared.refuse_finished()
