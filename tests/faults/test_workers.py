"""DataLoader workers that the kernel kills: noticed at once, the shard named, begun anew twice, and no row is lost, doubled
or in another place. The loops are in `killed_workers`, each in a process of its own."""

import json
from pathlib import Path

import numpy as np
import pytest
from fault_table import note
from forks import run_child
from hypothesis import given
from hypothesis import strategies as st
from stream_cases import index_of

from headrace.dataset.index import SplitIndex
from headrace.errors import EngineError
from headrace.stream.loader.stateful import turn_after
from headrace.stream.workers.deaths import WorkerDeath, told_by_torch, why_not_again
from headrace.stream.workers.notes import WorkerNotes, being_read, notes_shape, process_of, read_last

PATIENCE_S, TRIALS, FEW = 100, 100, 3
METHODS = ("fork", "spawn", "forkserver")


def loop(directory: Path, call: str, *arguments: object, limit_s: float = 240) -> list[dict]:
    """A loop in a child process: the lines of JSON that it said."""
    output = directory / f"{call}.out"
    ended = run_child(f"killed_workers:{call}", str(directory / call), *arguments, output=output, limit_s=limit_s)

    assert 0 == ended.code, ended.output[-6000:]
    return [json.loads(line) for line in ended.output.splitlines() if line.startswith("{")]


def kills(directory: Path, first: int, trials: int, method: str) -> None:
    told = loop(directory, "at_random", first, trials, method, limit_s=PATIENCE_S * trials)

    assert trials == len(told)
    for each in told:
        assert each["after_s"] < PATIENCE_S
        note("DataLoader worker killed", method, after_s=round(each["after_s"], 3))


def test_killed_workers_are_begun_anew_and_every_batch_is_as_if_they_had_lived(tmp_path: Path) -> None:
    kills(tmp_path, TRIALS, FEW, "fork")


@pytest.mark.parametrize("times", [1, 2])
def test_the_shard_that_a_worker_died_over_is_named_and_read_again(tmp_path: Path, times: int) -> None:
    (told,) = loop(tmp_path, "in_a_block", times, "fork")

    assert "" == told["error"]
    said = told["said"][0]
    assert times >= len(told["said"]) >= 1  # two workers may die over it at a time
    assert "was killed by SIGKILL, as when memory ends, while it read part-2.parquet block 0" in said
    assert "all workers are begun anew after" in said


def test_a_shard_over_which_workers_die_each_time_is_an_error_that_names_it(tmp_path: Path) -> None:
    (told,) = loop(tmp_path, "in_a_block", 9, "fork")  # two workers may die over it at a time

    assert "worker " in told["error"]
    assert "while it read part-2.parquet block 0" in told["error"]
    assert "workers died over part-2.parquet block 0 3 times" in told["error"]
    assert 3 == len(told["said"])  # twice begun anew, and the failure
    assert "num_workers" in told["error"]


def test_workers_that_die_before_any_batch_are_begun_anew_twice(tmp_path: Path) -> None:
    (told,) = loop(tmp_path, "at_every_block")

    assert "workers died 3 times, and no batch came in between" in told["error"]
    assert 2 == len(told["said"])


def test_a_worker_that_dies_when_all_is_delivered_costs_nothing(tmp_path: Path) -> None:
    loop(tmp_path, "at_the_end")


def test_a_batch_that_was_half_sent_does_not_hang_the_loop(tmp_path: Path) -> None:
    (told,) = loop(tmp_path, "in_a_message")

    assert 1 == len(told["said"])


def test_workers_that_live_on_are_begun_anew_within_a_pass_and_between_two(tmp_path: Path) -> None:
    (told,) = loop(tmp_path, "between_passes")

    within, between = told["said"]
    assert "worker 1: " in within
    assert "batches of the pass" in within
    assert "workers [0] died between two passes" in between


def test_packed_and_tabular_batches_are_as_if_nothing_had_happened(tmp_path: Path) -> None:
    (told,) = loop(tmp_path, "other_datasets")

    assert 2 == len(told["said"])


def test_rows_given_up_are_counted_once_whoever_dies(tmp_path: Path) -> None:
    (told,) = loop(tmp_path, "in_quarantine")

    assert 1 == len(told["said"])


def test_a_loader_of_another_make_names_the_shard(tmp_path: Path) -> None:
    assert ["DataLoader", "StatefulDataLoader"] == [each["named"] for each in loop(tmp_path, "of_another_loader")]


@pytest.mark.faults
@pytest.mark.timeout(3600)
def test_100_killed_workers_cost_no_row(tmp_path: Path) -> None:
    kills(tmp_path, 0, TRIALS, "fork")


@pytest.mark.faults
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("method", METHODS)
def test_killed_workers_cost_no_row_however_they_start(tmp_path: Path, method: str) -> None:
    kills(tmp_path / "random", 2 * TRIALS, 5, method)

    assert "" == loop(tmp_path / "block", "in_a_block", 1, method)[0]["error"]


# --- what is said of deaths, and when a pass may go on ---


def death(*blocks: int, worker: int = 0, code: int | None = -9, reading: bool = True) -> WorkerDeath:
    return WorkerDeath(reader=f"worker {worker}", process=7, code=code, blocks=blocks, reading=reading)


@pytest.fixture
def index() -> SplitIndex:
    return index_of([5, 5, 5, 5], blocks_per_shard=2)


@pytest.mark.parametrize(
    ("of", "words"),
    [
        (
            death(3),
            "worker 0: process 7 was killed by SIGKILL, as when memory ends, while it read part-00001.parquet block 1",
        ),
        (death(0, 3), "while it read part-00000.parquet block 0, part-00001.parquet block 1"),
        (death(0, reading=False), "after it had read part-00000.parquet block 0"),
        (death(), "before it read anything"),
        (death(code=-11), "was killed by SIGSEGV, before"),
        (death(code=3), "ended with status 3 unasked"),
        (death(code=None), "process 7 died"),
        (death(code=-99), "was killed by signal 99"),
    ],
)
def test_a_death_is_told_by_its_cause_and_its_shards(index: SplitIndex, of: WorkerDeath, words: str) -> None:
    assert words in of.told(index)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.lists(st.sets(st.integers(0, 3)), min_size=1, max_size=2)), max_size=12)
)
def test_a_pass_goes_on_until_a_block_kills_a_third_time_or_nothing_comes(events: list) -> None:
    """Events: batches that came since the one before, and the blocks of each worker that died then."""
    index, earlier, received = index_of([5, 5, 5, 5], blocks_per_shard=2), [], 0
    for came, blocks in events:
        received += came
        now = [death(*sorted(each)) for each in blocks]
        over = {block: sum(block in set().union(*each) for each in [blocks, *_past(earlier)]) for block in range(4)}
        third = [block for block in set().union(*blocks) if over[block] == 3]
        stuck = sum(at == received for at, _ in earlier) == 2
        why = why_not_again(earlier, now, received, index)

        assert (why is not None) == (bool(third) or stuck)
        if why is not None:
            named = [f"part-{block // 2:05d}.parquet block {block % 2}" for block in sorted(third)]
            words = f"workers died over {', '.join(named)} 3 times" if third else "died 3 times, and no batch came"
            assert isinstance(why, EngineError)
            assert words in str(why)
            return
        earlier.append((received, now))


def _past(earlier: list) -> list:
    return [[set(each.blocks) for each in deaths] for _, deaths in earlier]


@given(st.integers(1, 6), st.integers(0, 30), st.integers(0, 30))
def test_shares_move_to_where_their_turn_comes(workers: int, received: int, more: int) -> None:
    shares = [iter(range(worker, 100, workers)) for worker in range(workers)]  # batch b is of worker b mod workers
    for batch in range(received):
        next(shares[batch % workers])
    moved = [turn_after(received, worker=worker, workers=workers) for worker in range(workers)]

    assert [next(shares[moved[number % workers][0]]) for number in range(more)] == list(
        range(received, received + more)
    )
    assert received == sum(given for _, given in moved)
    assert all(given == len(range(turn, received, workers)) for turn, given in moved)


@pytest.mark.parametrize(
    ("error", "processes"),
    [
        (RuntimeError("DataLoader worker (pid(s) 12, 13) exited unexpectedly"), [12, 13]),
        (RuntimeError("DataLoader worker (pid 12) is killed by signal: Killed. "), [12]),
        (RuntimeError("DataLoader timed out after 5 seconds"), []),
        (OSError("DataLoader worker (pid 12) is killed by signal: Killed. "), []),
    ],
)
def test_a_torch_error_that_names_processes_is_known(error: Exception, processes: list[int]) -> None:
    assert processes == told_by_torch(error)


def test_notes_tell_what_is_being_read_or_was_read_last() -> None:
    memory = np.full(notes_shape(2, 2), 9.0)
    notes = WorkerNotes(memory[1])

    assert [] == being_read(memory[1])
    assert None is read_last(memory[1])
    first, second = notes.begin(5), notes.begin(0)
    assert 0 == notes.begin(8)  # there is no third place
    assert [5, 0] == [block for _, block in being_read(memory[1])]
    notes.end(second)
    notes.end(0)
    assert [5] == [block for _, block in being_read(memory[1])]
    assert 0 == read_last(memory[1])
    notes.end(first)
    assert ([], 5) == (being_read(memory[1]), read_last(memory[1]))
    assert notes.begin(1)
    assert 0 != process_of(memory[1])
    assert 9.0 == memory[0, 0]
