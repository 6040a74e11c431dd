"""N processes make one run together: the bytes of one process, whichever of them die, stand still or start again."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recipe_runs import RECIPES, recipes_over
from shared_child import PATIENCE, Fate, Process

import headrace
from headrace.dataset.manifest import read_manifest
from headrace.errors import CorruptShard, RunBusy, SettingsError
from headrace.run.collect import collect
from headrace.run.events import Step
from headrace.run.prepare import prepare
from headrace.storage.local import strays
from headrace.storage.places import place_of
from tables import digests, small_source, write_rows

N = 3
KILLS = [("shard.written", 2), ("shard.linked", 3), ("receipt.linked", 1), ("index.linked", 1), ("manifest.linked", 1), ("splits.linked", 1)]  # fmt: skip


@pytest.fixture(scope="module")
def recipes(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Callable[[], Any]]:
    return recipes_over(tmp_path_factory.mktemp("source"), rows=600)


@pytest.fixture(scope="module")
def expected(
    recipes: Mapping[str, Callable[[], Any]], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], dict[str, str]]:
    """Digests of the run that one process makes."""
    found: dict[str, dict[str, str]] = {}

    def of(name: str) -> dict[str, str]:
        if name not in found:
            found[name] = digests(prepare(recipes[name](), tmp_path_factory.mktemp(name), workers=1).run)
        return found[name]

    return of


@pytest.fixture
def started() -> Iterator[list[Process]]:
    processes: list[Process] = []
    yield processes
    for each in processes:
        each.process.kill()
        each.process.join()


def run_of(out: Path) -> Path:
    (run,) = (out / "runs").iterdir()
    return run


def check_finished(out: Path, expected: dict[str, str]) -> None:
    assert expected == digests(run_of(out))
    assert not (run_of(out) / "stage").exists()


@pytest.mark.smoke("packed_sequences")
@pytest.mark.parametrize("name", RECIPES)
def test_three_processes_write_what_one_writes_and_do_no_task_twice(
    tmp_path: Path, recipes: Mapping[str, Any], expected: Any, started: list[Process], name: str
) -> None:
    started += [Process(recipes[name](), tmp_path / "out", index, N) for index in range(N)]

    assert [0, 0, 0] == [each.wait() for each in started]
    check_finished(tmp_path / "out", expected(name))
    assert [] == strays(tmp_path / "out")
    done = Counter(subject for each in started for step, subject in each.said("step") if step == "receipt.linked")
    receipts = [path.stem for path in (run_of(tmp_path / "out") / "receipts").iterdir()]
    assert dict.fromkeys(receipts, 1) == done
    published = [step for each in started for step, _ in each.said("step") if step == "manifest.linked"]
    assert ["manifest.linked"] == published


def test_one_process_of_many_makes_the_run_alone(tmp_path: Path, recipes: Mapping[str, Any], expected: Any) -> None:
    prepared = prepare(recipes["temporal_split"](), tmp_path / "out", shard_of=(5, 8), workers=2)

    assert expected("temporal_split") == digests(prepared.run)


@pytest.mark.slow
@pytest.mark.smoke("receipt.linked-1")
@pytest.mark.parametrize(("step", "count"), KILLS)
def test_a_process_that_is_killed_is_made_up_for_by_the_others(
    tmp_path: Path, recipes: Mapping[str, Any], expected: Any, started: list[Process], step: str, count: int
) -> None:
    recipe = recipes["temporal_split"]
    doomed = Process(recipe(), tmp_path / "out", 0, N, fate=Fate("killed", step, count))
    if step.startswith(("index", "manifest", "splits")):  # it is the only one that gets there
        assert -signal.SIGKILL == doomed.wait()
    started += [Process(recipe(), tmp_path / "out", index, N) for index in (1, 2)]
    assert -signal.SIGKILL == doomed.wait() or step.startswith("shard") or step.startswith("receipt")

    assert [0, 0] == [each.wait() for each in started]
    again = prepare(recipe(), tmp_path / "out", shard_of=(0, N))
    assert "reused" == again.how
    assert expected("temporal_split") == digests(again.run)


@pytest.mark.slow
def test_all_killed_and_all_started_again(
    tmp_path: Path, recipes: Mapping[str, Any], expected: Any, started: list[Process]
) -> None:
    recipe = recipes["temporal_split"]
    for attempt in range(2):
        fates = [Fate("killed", "shard.linked", 2 + index + 3 * attempt) for index in range(N)]
        doomed = [
            Process(recipe(), tmp_path / "out", index, N, fate=fate, name=f"-{attempt}")
            for index, fate in enumerate(fates)
        ]
        assert {each.wait() for each in doomed} <= {0, -signal.SIGKILL}
    started += [Process(recipe(), tmp_path / "out", index, N) for index in range(N)]

    assert [0, 0, 0] == [each.wait() for each in started]
    assert expected("temporal_split") == digests(run_of(tmp_path / "out"))


def kill_at_random(out: Path, recipe: Callable[[], Any], seed: int, processes: list[Process]) -> None:
    """Each of the processes may be killed, at any instant, and is started again; all may be."""
    draw = random.Random(seed)
    doomed = [Process(recipe(), out, index, N, name="-doomed") for index in range(N)]
    victims = draw.sample(range(N), draw.randint(1, N))
    for index in victims:
        time.sleep(draw.random() * 0.4)
        doomed[index].process.kill()
    processes += doomed
    for index in victims:
        assert doomed[index].wait() in (0, -signal.SIGKILL)  # its lock is free now
    again = [Process(recipe(), out, index, N) for index in victims]
    processes += again
    assert {each.wait() for each in doomed} <= {0, -signal.SIGKILL}
    assert {0} == {each.wait() for each in again}, [each.said("error") for each in again]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_kills_at_random_instants_lose_and_double_nothing(
    tmp_path: Path, recipes: Mapping[str, Any], expected: Any, started: list[Process], seed: int
) -> None:
    name = RECIPES[(seed + 1) % len(RECIPES)]
    kill_at_random(tmp_path / "out", recipes[name], seed, started)

    assert expected(name) == digests(run_of(tmp_path / "out"))


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(100, 150))
def test_50_kills_at_random_instants_lose_and_double_nothing(
    tmp_path: Path, recipes: Mapping[str, Any], expected: Any, started: list[Process], seed: int
) -> None:
    name = RECIPES[seed % len(RECIPES)]
    kill_at_random(tmp_path / "out", recipes[name], seed, started)

    assert expected(name) == digests(run_of(tmp_path / "out"))


@pytest.mark.slow
def test_who_waits_says_for_whom_and_goes_on_when_that_process_dies(
    tmp_path: Path, recipes: Mapping[str, Any], expected: Any, started: list[Process]
) -> None:
    recipe = recipes["temporal_split"]
    holder = Process(recipe(), tmp_path / "out", 0, N, fate=Fate("waits", "shard.written", 1))
    started.append(holder)
    holder.until("waits")
    waiting = Process(recipe(), tmp_path / "out", 1, N)
    started.append(waiting)
    waiting.until("note")
    (note,) = waiting.said("note")[0]
    assert "1/3: waiting for 1 tasks of stage scan that other processes work on, first part-00000.csv (0/3 on " in note
    assert f"process {holder.process.pid})" in note
    holder.process.kill()

    assert 0 == waiting.wait()
    assert expected("temporal_split") == digests(run_of(tmp_path / "out"))


@pytest.mark.slow
def test_a_process_that_stands_still_is_made_up_for_and_may_go_on(
    tmp_path: Path, recipes: Mapping[str, Any], expected: Any, started: list[Process]
) -> None:
    recipe = recipes["temporal_split"]
    patience = replace(PATIENCE, dead_after_s=1.0)
    holder = Process(recipe(), tmp_path / "out", 0, N, fate=Fate("waits", "shard.written", 1), patience=patience)
    started.append(holder)
    holder.until("waits")
    holder.signal(signal.SIGSTOP)
    other = Process(recipe(), tmp_path / "out", 1, N, patience=patience)
    started.append(other)
    assert 0 == other.wait()
    finished = digests(run_of(tmp_path / "out"))
    holder.go()
    holder.signal(signal.SIGCONT)

    assert 0 == holder.wait(), holder.said("error")
    assert expected("temporal_split") == finished
    check_finished(tmp_path / "out", expected("temporal_split"))


@pytest.mark.slow
def test_a_live_process_that_takes_too_long_is_not_waited_for(
    tmp_path: Path, recipes: Mapping[str, Any], expected: Any, started: list[Process]
) -> None:
    recipe = recipes["temporal_split"]
    holder = Process(recipe(), tmp_path / "out", 0, N, fate=Fate("waits", "shard.written", 1))
    started.append(holder)
    holder.until("waits")
    other = Process(recipe(), tmp_path / "out", 1, N, patience=replace(PATIENCE, straggler_s=0.5))
    started.append(other)

    assert 0 == other.wait()
    assert holder.process.is_alive()
    assert expected("temporal_split").items() <= digests(run_of(tmp_path / "out")).items()
    holder.go()
    assert 0 == holder.wait(), holder.said("error")
    assert expected("temporal_split") == digests(run_of(tmp_path / "out"))


@pytest.mark.slow
def test_a_stranger_a_twin_and_a_process_of_another_number_are_refused(
    tmp_path: Path, recipes: Mapping[str, Any], started: list[Process]
) -> None:
    recipe, out = recipes["temporal_split"], tmp_path / "out"
    holder = Process(recipe(), out, 0, N, fate=Fate("waits", "shard.written", 1))
    started.append(holder)
    holder.until("waits")

    with pytest.raises(RunBusy, match="another process is working on this run"):
        prepare(recipe(), out)
    with pytest.raises(RunBusy, match=r"works on share 0/3 already; start each share once"):
        prepare(recipe(), out, shard_of=(0, 3))
    with pytest.raises(RunBusy, match=r"is shared out over 3 processes, this one would be 1/4"):
        prepare(recipe(), out, shard_of=(1, 4))
    assert (run_of(out),) == collect(out).busy


def test_a_shared_run_is_refused_while_one_process_makes_it_alone(tmp_path: Path, recipes: Mapping[str, Any]) -> None:
    refused: list[str] = []

    def listen(event: object) -> None:
        if isinstance(event, Step) and event.name == "shard.written" and not refused:
            with pytest.raises(RunBusy, match="another process") as caught:
                prepare(recipes["temporal_split"](), tmp_path / "out", shard_of=(0, 2))
            refused.append(str(caught.value))

    prepare(recipes["temporal_split"](), tmp_path / "out", workers=1, on_event=listen)

    assert 1 == len(refused)


@pytest.mark.slow
def test_an_error_is_told_by_every_process(tmp_path: Path, started: list[Process]) -> None:
    source = small_source(tmp_path / "in", count=5)
    write_rows(source / "part-00003.csv", ("id", "date", "row"), [("1", "no date", "1")])
    recipe = headrace.TemporalSplit(source=source, time="date", entity="id", split_date="2025-01-01")
    started += [Process(recipe, tmp_path / "out", index, N) for index in range(N)]

    assert [1, 1, 1] == [each.wait() for each in started]
    for each in started:
        ((kind, text),) = each.said("error")
        assert "InputError" == kind
        assert "part-00003.csv" in text


@pytest.mark.slow
def test_a_damaged_intermediate_file_is_made_again(
    tmp_path: Path, recipes: Mapping[str, Any], expected: Any, started: list[Process]
) -> None:
    recipe, out = recipes["temporal_split"], tmp_path / "out"
    doomed = Process(recipe(), out, 0, 1, fate=Fate("killed", "receipt.linked", 4))
    assert -signal.SIGKILL == doomed.wait()
    victim = sorted((run_of(out) / "stage").glob("scan-*.rows.arrow"))[0]
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)

    assert expected("temporal_split") == digests(prepare(recipe(), out, shard_of=(0, 1)).run)


def test_who_publishes_second_finds_the_first_manifest(tmp_path: Path, recipes: Mapping[str, Any]) -> None:
    prepared = prepare(recipes["temporal_split"](), tmp_path / "out")
    place = place_of(prepared.run / "manifest.json")

    assert "kept" == place.put_new(prepared.manifest.to_json())
    assert prepared.manifest == read_manifest(prepared.run)
    with pytest.raises(CorruptShard, match="exists with other bytes"):
        place.put_new(replace(prepared.manifest, index_digest="0" * 64).to_json())


@pytest.mark.parametrize("share", [(3, 3), (-1, 3), (0, 0), (0.5, 2)])
def test_a_share_that_is_none_is_refused(tmp_path: Path, recipes: Mapping[str, Any], share: Any) -> None:
    with pytest.raises(SettingsError, match="processes are numbered 0 to N-1"):
        prepare(recipes["temporal_split"](), tmp_path / "out", shard_of=share)
    with pytest.raises(SettingsError, match="give one of them"):
        prepare(recipes["temporal_split"](), tmp_path / "out", shard_of=(0, 2), engine="ray")

    assert not (tmp_path / "out").exists()
